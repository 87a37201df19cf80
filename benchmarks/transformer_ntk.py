"""The tangent kernel of a BERT on token ids and masks: ours, torch.func's Jacobian, the limit.

$ python benchmarks/transformer_ntk.py                     # made weights, two cores
$ python benchmarks/transformer_ntk.py --antiberty         # real ones: pip install antiberty==0.1.3
$ python benchmarks/transformer_ntk.py --device cuda

The network has the sizes of AntiBERTy: 8 layers of width 512, 8 heads, 25 tokens, 26 million
parameters, 6 outputs; sequences of 100 to 120 tokens are padded to 120. The peer is what torch's
tutorial on neural tangent kernels does, `vmap(jacrev)` and an einsum, with one Jacobian for both
sides and attention written out, for which vmap has rules; it is measured on few sequences, and
its Jacobian scaled by their number. The limit is the passes through the network that nothing can
do without: one forward, and one backward for each output. On a CPU, seconds are those that its
cores were busy with this, so that other work on the machine does not count.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import retarget as rt

BAR = 20
WIDTH, HEADS, LAYERS, INNER, TOKENS, LONGEST, OUTPUTS = 512, 8, 8, 2048, 25, 120, 6


class Layer(nn.Module):
    """One block of a BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.mix = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attention and the feed-forward part."""
        n, t, _ = x.shape
        heads = [
            part(x).view(n, t, HEADS, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        attended = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        x = self.norm1(x + self.mix(attended.transpose(1, 2).reshape(n, t, WIDTH)))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):
    """The whole network, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.pooler, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUTPUTS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, outputs)."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.norm(self.tokens(input_ids) + self.positions(places))
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layer:
            x = layer(x, mask)
        return self.out(torch.tanh(self.pooler(x[:, 0])))


class AntiBERTy(nn.Module):
    """AntiBERTy's species, from its trained weights."""

    def __init__(self) -> None:
        super().__init__()
        from antiberty import AntiBERTy as Pretrained
        from antiberty.AntiBERTyRunner import CHECKPOINT_PATH

        self.network = Pretrained.from_pretrained(CHECKPOINT_PATH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, 6) logits."""
        return self.network(input_ids, attention_mask=attention_mask).species_logits


def sequences(n: int, device: str) -> dict[str, Tensor]:
    """Random tokens, of which those beyond a random length are padding."""
    ids = torch.randint(5, TOKENS, (n, LONGEST))
    mask = (torch.arange(LONGEST) < torch.randint(100, LONGEST + 1, (n, 1))).long()
    return {"input_ids": (ids * mask).to(device), "attention_mask": mask.to(device)}


def jacobian_contraction(
    module: nn.Module, names: list[str], X: dict[str, Tensor]
) -> tuple[Tensor, float, float]:
    """The kernel as in the tutorial, and the seconds of the Jacobian and of the contraction."""
    parameters = {name: module.get_parameter(name).detach() for name in names}

    def outputs(state: dict[str, Tensor], ids: Tensor, mask: Tensor) -> Tensor:
        return functional_call(module, state, (ids[None], mask[None]))[0]

    start = now()
    with sdpa_kernel(SDPBackend.MATH):
        jacobian = vmap(jacrev(outputs), (None, 0, 0))(parameters, *X.values())
    parts = [each.detach().flatten(2) for each in jacobian.values()]
    between = now()
    K = torch.stack([torch.einsum("Naf,Maf->NM", part, part) for part in parts]).sum(0)
    return K / parts[0].shape[1], between - start, now() - between


def passes(module: nn.Module, names: list[str], X: dict[str, Tensor]) -> None:
    """One pass forward, and one back for each output, down to the parameters."""
    wanted = [module.get_parameter(name) for name in names]
    outputs = module(*X.values()).sum(0)
    for k in range(len(outputs)):
        torch.autograd.grad(outputs[k], wanted, retain_graph=True, allow_unused=True)


def now() -> float:
    """Seconds, once what was asked of the device is done."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds(call: Callable[[], object], repeats: int = 2) -> float:
    """The shortest of a few times, after one more to warm up."""
    times = []
    for _ in range(repeats + 1):
        start = now()
        call()
        times.append(now() - start)
    return min(times[1:])


def measure(name: str, module: nn.Module, layer: str, n: int, part: int, peer: bool) -> None:
    """Ours, the peer's on the first `part` sequences, scaled, and the limit."""
    names = [each for each, _ in module.named_parameters() if each.startswith(layer)]
    kernel = rt.EmpiricalNTK(module, params=names)
    X = sequences(n, str(next(module.parameters()).device))
    numbers = sum(module.get_parameter(each).numel() for each in names)
    ours = seconds(lambda: kernel(X))
    for each, value in module.named_parameters():
        value.requires_grad_(each in names)
    limit = seconds(lambda: passes(module, names, X))
    module.requires_grad_(True)
    print(f"{name}: {numbers:,} parameters, {n} sequences, {torch.get_num_threads()} threads")
    print(f"  ours                  {ours:9.3f} s")
    print(f"  passes alone          {limit:9.3f} s, ours / passes: {ours / limit:.2f}")
    if peer:
        few = {key: value[:part] for key, value in X.items()}
        K, jacobian, contraction = jacobian_contraction(module, names, few)
        scaled = jacobian * n / part + contraction * (n / part) ** 2
        gap = ((kernel(few) - K).abs().max() / K.abs().max()).item()
        print(f"  Jacobian contraction  {scaled:9.3f} s (measured on {part}, scaled to {n})")
        print(f"  peer / ours: {scaled / ours:.1f} (bar {BAR}); largest difference {gap:.1e}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--antiberty", action="store_true", help="its weights and its code")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    module = (AntiBERTy() if options.antiberty else Bert()).eval().to(options.device)
    last = "network.bert.encoder.layer.7." if options.antiberty else "layer.7."
    # vmap cannot follow transformers, which looks at the numbers of a mask
    peer = not options.antiberty
    measure("last block", module, last, 24, 2, peer)
    measure("all parameters", module, "", 8, 1, peer)


if __name__ == "__main__":
    main()
