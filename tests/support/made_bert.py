"""A small network of sentences, in the place of the pretrained one, and its tokens."""

import types

import torch
from torch import nn


class MadeBert(nn.Module):
    """Looks tokens up, and mixes nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embeddings, self.layer = nn.Embedding(30, 4), nn.Linear(4, 4)

    def forward(self, input_ids, attention_mask):
        return types.SimpleNamespace(
            last_hidden_state=self.layer(self.embeddings(input_ids)).tanh()
        )


def made_tokens(texts, device="cpu"):
    longest = max(map(len, texts))
    ids = torch.tensor([[ord(c) % 30 for c in text.ljust(longest)] for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
