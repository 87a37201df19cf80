"""A transformer in small with the parts of a BERT, to be run on token ids and masks."""

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """Attention and a feed-forward part, each with residual and norm behind."""

    def __init__(self, width, heads, inner, norm):
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.mix = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = norm(width), norm(width)

    def forward(self, x, mask):
        n, t, width = x.shape

        def split(y):
            return y.view(n, t, self.heads, -1).transpose(1, 2)

        attended = functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), attn_mask=mask
        )
        x = self.norm1(x + self.mix(attended.transpose(1, 2).reshape(n, t, width)))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class RMSNorm(nn.Module):
    """By hand, as many models write it: the weight is used by a product."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class SmallBert(nn.Module):
    """Token, position and segment embeddings, layers, a pooler and a classifier.

    Args:
        positions: How positions are looked up: "row" as (1, t), "flat" as (t,), "each" as (n, t),
            or "added", a parameter without any look-up.
        norm: Makes a norm of a width.
        tied: Whether the outputs are products with the first token embeddings.
    """

    def __init__(
        self, vocabulary=11, width=8, heads=2, layers=2, inner=10, longest=9, outputs=3,
        positions="row", norm=nn.LayerNorm, tied=False,
    ):  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.segments = nn.Embedding(2, width)
        self.how, self.tied = positions, tied
        if positions == "added":
            self.positions = nn.Parameter(torch.randn(1, longest, width))
        else:
            self.positions = nn.Embedding(longest, width)
        self.norm = norm(width)
        self.layers = nn.ModuleList(Layer(width, heads, inner, norm) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, outputs)

    def place(self, n, t):
        if self.how == "added":
            return self.positions
        places = torch.arange(t)
        if self.how == "row":
            places = places[None]
        elif self.how == "each":
            places = places.expand(n, t)
        return self.positions(places)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        n, t = input_ids.shape
        x = self.tokens(input_ids) + self.place(n, t)
        if token_type_ids is not None:
            x = x + self.segments(token_type_ids)
        x = self.norm(x)
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        if self.tied:
            return functional.linear(pooled, self.tokens.weight)[:, :3]
        return self.classifier(pooled)


def sentences(n, t=9, vocabulary=11, seed=0):
    """Token ids with repeats, the mask of what is there, and segments."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocabulary, (n, t), generator=random)
    ids[:, 3] = ids[:, 1]
    length = torch.randint(4, t + 1, (n, 1), generator=random)
    mask = (torch.arange(t) < length).long()
    segments = (torch.arange(t) >= length // 2).long()
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": segments}
