"""The tangent kernel of a BERT on token ids and masks: ours, torch.func's Jacobian, the limit.

$ python benchmarks/transformer_ntk.py                     # made weights, two cores
$ python benchmarks/transformer_ntk.py --device cuda
$ pip install ".[text,figures]" && retarget data get banking77
$ python benchmarks/transformer_ntk.py --sentences         # all-MiniLM-L6-v2, real sentences

The network has 8 layers of width 512, 8 heads, 25 tokens, 26 million parameters, 6 outputs;
sequences of 100 to 120 tokens are padded to 120. Outputs are read from the first token, as BERT's
are, or from the mean of all. The limit is the passes through the network: one forward, and one
backward to the parameters for each output. (Ours goes back to the layers' results alone, so that it
can take less.) The peers are `mode="jacobian"`, and what torch's tutorial on neural tangent kernels
does: `vmap(jacrev)` and an einsum, with one Jacobian for both sides, and attention written out, for
which vmap has rules. They are measured on few sequences, and scaled to all. vmap cannot follow
transformers, which looks at the numbers of a mask. On a CPU, seconds are those that its cores were
busy with this, so that other work on the machine does not count.

With `--sentences`: the tangents of the six layers of all-MiniLM-L6-v2 (10.6 million parameters), as
`rt.TangentLearner` computes them, for questions of Banking77 of about the same length.
"""

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import retarget as rt

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
    """The whole network but for its read-out, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, tokens, width)."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.norm(self.tokens(input_ids) + self.positions(places))
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Classifier(nn.Module):
    """Outputs from the first token through a pooler, or from the mean of all tokens."""

    def __init__(self, network: nn.Module, readout: str) -> None:
        super().__init__()
        self.network, self.readout = network, readout
        self.pooler, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUTPUTS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, outputs)."""
        x = self.network(input_ids, attention_mask)
        there = attention_mask[..., None].to(x)
        read = x[:, 0] if self.readout == "first" else (x * there).sum(1) / there.sum(1)
        return self.out(torch.tanh(self.pooler(read)))


def sequences(n: int, device: str) -> dict[str, Tensor]:
    """Random tokens, of which those beyond a random length are padding."""
    ids = torch.randint(5, TOKENS, (n, LONGEST))
    mask = (torch.arange(LONGEST) < torch.randint(100, LONGEST + 1, (n, 1))).long()
    return {"input_ids": (ids * mask).to(device), "attention_mask": mask.to(device)}


def jacobian_contraction(
    module: nn.Module, names: list[str], X: dict[str, Tensor]
) -> tuple[float, float]:
    """The seconds of the Jacobian and of the contraction, as in the tutorial."""
    parameters = {name: module.get_parameter(name).detach() for name in names}

    def outputs(state: dict[str, Tensor], ids: Tensor, mask: Tensor) -> Tensor:
        return functional_call(module, state, (ids[None], mask[None]))[0]

    start = now()
    with sdpa_kernel(SDPBackend.MATH):
        jacobian = vmap(jacrev(outputs), (None, 0, 0))(parameters, *X.values())
    parts = [each.detach().flatten(2) for each in jacobian.values()]
    between = now()
    torch.stack([torch.einsum("Naf,Maf->NM", part, part) for part in parts]).sum(0)
    return between - start, now() - between


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


def measure(name: str, module: nn.Module, layer: str, n: int, part: int) -> None:
    """Ours, the limit, and the peers' on the first `part` sequences, scaled."""
    names = [each for each, _ in module.named_parameters() if layer in each]
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
    few = {key: value[:part] for key, value in X.items()}
    plain = rt.EmpiricalNTK(module, params=names, mode="jacobian")
    jacobian = seconds(lambda: plain(few), 1) * n / part
    print(f"  mode='jacobian'       {jacobian:9.3f} s, / ours: {jacobian / ours:.2f} (on {part})")
    jacobian, contraction = jacobian_contraction(module, names, few)
    scaled = jacobian * n / part + contraction * (n / part) ** 2
    print(f"  torch.func            {scaled:9.3f} s, / ours: {scaled / ours:.2f} (on {part})")
    exact = copy.deepcopy(module).double()
    K = rt.EmpiricalNTK(exact, params=names, mode="jacobian")(few)
    gap = ((kernel(few) - K).abs().max() / K.abs().max()).item()
    print(f"  largest difference    {gap:9.1e} (from the Jacobian in float64)", flush=True)


def measure_sentences(n: int, features: int) -> None:
    """Tangents of real sentences beside the passes and a step of training."""
    from retarget.kernels.feature_maps import tangent_map
    from retarget.lab.data.banking77 import load_banking77
    from retarget.lab.data.minilm import as_tokens, load_minilm

    network = load_minilm()
    texts = sorted(load_banking77()[0].texts, key=len)
    middle = len(texts) // 2
    X = as_tokens(texts[middle : middle + n])
    names = network.tangent_parameters()
    tangents = tangent_map(network, names, features, 1, 0)
    wanted = [network.get_parameter(name) for name in names]
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.0)

    def forward() -> None:
        with torch.no_grad():
            network(**X)

    def one_output() -> None:
        torch.autograd.grad(network(**X)[:, 0].sum(), wanted)

    def step() -> None:
        optimizer.zero_grad()
        network(**X).square().sum().backward()
        optimizer.step()

    numbers = sum(each.numel() for each in wanted)
    lengths = X["attention_mask"].sum(1).double()
    print(f"all-MiniLM-L6-v2: {numbers:,} parameters, {n} sentences of {lengths.mean():.0f} tokens")
    times = {"forward pass": forward, "passes": one_output, "step of AdamW": step}
    times["our tangents"] = lambda: tangents(X)
    found = {name: seconds(call) for name, call in times.items()}
    for name, each in found.items():
        ratio = each / found["passes"]
        print(f"  {name:20} {each / n * 1000:9.2f} ms a sentence, / passes: {ratio:.2f}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", action="store_true", help="all-MiniLM-L6-v2 on Banking77")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.sentences:
        measure_sentences(64, 8192)
        return
    network = Bert()
    first, mean = (
        Classifier(network, readout).eval().to(options.device) for readout in ("first", "mean")
    )
    measure("last block, first token read", first, "layer.7.", 24, 4)
    measure("last block, mean read", mean, "layer.7.", 24, 4)
    measure("all parameters, first token read", first, "", 8, 2)


if __name__ == "__main__":
    main()
