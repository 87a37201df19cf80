"""A tangent learner's predictions as an ordinary PyTorch module."""

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap
from torch.nn import functional

from retarget.errors import InvalidInputError
from retarget.kernels.empirical.graph import Graph
from retarget.kernels.empirical.projection import Projection
from retarget.kernels.empirical.recording import CallMode, derivatives, outputs_with, tolerance
from retarget.locks import Lock
from retarget.samples import (
    Samples,
    count,
    leaves,
    mapped,
    outputs_of,
    require_replaceable_weights,
    take,
    with_leaves,
    with_type_of,
)
from retarget.settings import plain_attention
from retarget.streaming.intake import require_unchanged
from retarget.streaming.ridge.views import View

# Up to so many directions, forward-mode products take less time than gradients: with 2, a sixth of
# it for an MLP, though 1.4 times as long for conv nets; with 10, six times as long for these.
FEW_DIRECTIONS = 2
GRADIENT_NUMBERS = 1 << 26  # of gradients in memory at a time
EMBEDDING = inspect.signature(functional.embedding)
# torch counts its levels of forward mode for all threads together
_forward_mode = Lock()


class ForwardMode(CallMode):
    """Makes forward mode differentiate embeddings as backward passes do.

    They take the padding token for a constant; torch's forward mode does not know of it.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._over or func is not functional.embedding:
            return result
        given = EMBEDDING.bind(*args, **kwargs).arguments
        if given.get("scale_grad_by_freq"):
            raise InvalidInputError(
                "the network has an embedding with scale_grad_by_freq, which forward mode does not "
                "know, so torch.export cannot have this module; expected one without"
            )
        padding = given.get("padding_idx")
        if padding is None:
            return result
        is_padding = given["input"] == padding % len(given["weight"])
        return torch.where(is_padding[..., None], result.detach(), result)


class TangentNetwork(nn.Module):
    r"""What a `TangentLearner` had learned when `as_module` made this, as a frozen module.

    Its outputs (n, c) for samples (n, ...), or a dict or tuple of them, are the learner's
    predictions $f(x) + \phi(x)^\top W$. With one or two directions $S^\top W$ in the space of the
    parameters, $\phi(x)^\top W$ is the forward-mode product of the network with these. With more,
    gradients take less time: those of each sample, projected by $S$, times $W$.

    Several threads may use it.

    `torch.export` knows forward-mode products only, for batches of one size: that is what it gets.

    Args:
        network: The network, which is copied.
        params: The names of the parameters in use.
        weights: (m, c) the solution.
        combinations: (outputs, q) the combinations of the network's outputs.
        projection: S.
        views: Functions of samples; the outputs are the mean over them.
        dtype: Type of the outputs.
    """

    weights: Tensor
    mixes: Tensor
    buckets: Tensor
    signs: Tensor

    def __init__(
        self,
        network: nn.Module,
        params: list[str],
        weights: Tensor,
        combinations: Tensor,
        projection: Projection,
        views: tuple[View, ...],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        require_replaceable_weights(network)
        _load_forward_mode()
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.params = params
        self.views = views
        self.dtype = dtype
        chosen = self._chosen()
        like = next(iter(chosen.values()))
        mixes = combinations.mT
        tables = [  # under the names by which the learner knows the parameters
            projection.table(f"network.{name}", each.shape, range(len(mixes)))
            for name, each in chosen.items()
        ]
        buckets, signs = (torch.cat(each, 1) for each in zip(*tables, strict=True))
        own = torch.contiguous_format  # which is what torch.export can save
        self.register_buffer("weights", weights.to(like).clone(memory_format=own))
        self.register_buffer("mixes", mixes.to(like).clone(memory_format=own))
        self.register_buffer("buckets", buckets.long().to(like.device))
        self.register_buffer("signs", signs.to(like) / math.sqrt(len(mixes)))
        self.eval()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _load_forward_mode()

    def train(self, mode: bool = True) -> "TangentNetwork":
        """Stays in evaluation mode, in which the network was linearized."""
        return super().train(False)

    def forward(self, samples: Samples) -> Tensor:
        """(n, c) the learner's predictions."""
        samples = with_type_of(self.weights, samples)
        seen = [samples if view is None else view(samples) for view in self.views]
        with torch.autocast(self.weights.device.type, enabled=False):
            total = torch.stack([self._predicted(each) for each in seen]).mean(0)
        return total.to(self.dtype)

    def _predicted(self, samples: Samples) -> Tensor:
        own = {name: value.detach() for name, value in self._chosen().items()}
        run = self._network_on(samples)
        exporting = torch.compiler.is_exporting()
        if exporting:
            start = run(own)
        else:
            with torch.inference_mode(False), torch.enable_grad():
                start = run({name: value.requires_grad_() for name, value in own.items()})
        what = "the number of outputs of the network for these samples"
        require_unchanged(what, start.shape[1], self.mixes.shape[1])
        with plain_attention:
            if exporting:
                learned = self._by_directions(samples)
            else:
                learned = self._learned(samples, start, list(own.values()))
        start = start.detach()
        return start + learned if start.shape == learned.shape else learned

    def _learned(self, samples: Samples, start: Tensor, own: Sequence[Tensor]) -> Tensor:
        """(n, c) what was learned beside the network's own outputs."""
        if not count(samples):
            return self.weights.new_zeros(0, self.weights.shape[1])
        is_known = Graph.of(start).is_known
        ways = [self._by_gradients, self._by_directions]
        if self.weights.shape[1] * len(self.buckets) <= FEW_DIRECTIONS:
            ways.reverse()
        for way in ways:
            # vmap cannot follow, say, a branch on a number; forward mode knows no weight_norm
            with suppress(RuntimeError, ValueError):
                learned = way(samples)
                if is_known or self._is_plain(learned, start, own):
                    return learned
        return self._one_by_one(samples)  # an autograd.Function may have neither

    @torch.inference_mode(False)
    def _is_plain(self, learned: Tensor, start: Tensor, own: Sequence[Tensor]) -> bool:
        """Whether plain gradients give the same sum over the samples, with random weights."""
        random = torch.Generator().manual_seed(0)  # on the CPU: the same for all devices
        shares = torch.randn((len(learned), 1), generator=random, device="cpu").to(learned)
        features = self.weights.new_zeros(len(self.weights))
        for row, mix in enumerate(self.mixes if start.requires_grad else ()):
            gradients = _plain_gradients(start, own, shares * mix)
            features += self._projected(row, gradients)
        gap = (shares * learned).sum(0) - features @ self.weights
        size = (shares * learned).abs().sum()
        return bool(gap.abs().max() <= tolerance(learned) * size)

    def _by_directions(self, samples: Samples) -> Tensor:
        r"""(n, c) forward-mode products with $S^\top W$, one for each output and combination."""
        chosen = self._chosen()
        outputs = self._network_on(samples)
        results = []

        def run(parameters: dict[str, Tensor]) -> Tensor:
            return ForwardMode().during(lambda: outputs(parameters))

        for weights in self.weights.mT:
            for row, mix in enumerate(self.mixes):
                direction = self._by_name(self.signs[row] * weights[self.buckets[row]])
                with _forward_mode.of_this_process:
                    product = jvp(run, (chosen,), (direction,))[1]
                results.append(product @ mix)
        products = torch.stack(results, 1)
        return products.view(len(products), -1, len(self.mixes)).sum(2)

    def _by_gradients(self, samples: Samples) -> Tensor:
        """(n, c) the gradients of each sample, sketched, times the solution."""
        chosen = self._chosen()
        at_a_time = max(1, GRADIENT_NUMBERS // self.buckets.shape[1])
        projected = self.weights.new_zeros(count(samples), len(self.weights))
        for row, mix in enumerate(self.mixes):

            def features(*sample: Tensor, row: int = row, mix: Tensor = mix) -> Tensor:
                one = mapped(lambda leaf: leaf[None], with_leaves(samples, sample))
                run = self._network_on(one)
                by_name = grad(lambda parameters: (run(parameters) @ mix)[0])(chosen)
                return self._projected(row, tuple(by_name.values()))

            projected = projected + vmap(features, chunk_size=at_a_time)(*leaves(samples))
        return projected @ self.weights

    @torch.inference_mode(False)
    def _one_by_one(self, samples: Samples) -> Tensor:
        """The same by plain gradients of one sample after the other, which every network has."""
        features = self.weights.new_zeros(count(samples), len(self.weights))
        for i in range(count(samples)):
            with torch.enable_grad():
                chosen = {name: value.detach() for name, value in self._chosen().items()}
                wanted = [value.requires_grad_() for value in chosen.values()]
                outputs = self._network_on(take(samples, slice(i, i + 1)))(chosen)[0]
                if not outputs.requires_grad:  # the sample takes a way without these parameters
                    continue
                for row, mix in enumerate(self.mixes):
                    features[i] += self._projected(row, _plain_gradients(outputs, wanted, mix))
        return features @ self.weights

    def _projected(self, row: int, gradients: Sequence[Tensor]) -> Tensor:
        """(m,) the gradients of one combination by the chosen parameters, added up in buckets."""
        numbers = torch.cat([each.flatten() for each in gradients])
        zeros = numbers.new_zeros(len(self.weights))
        return zeros.index_add(0, self.buckets[row], numbers * self.signs[row])

    def _network_on(self, samples: Samples) -> Callable[[dict[str, Tensor]], Tensor]:
        run = outputs_of if torch.compiler.is_exporting() else outputs_with

        def outputs(parameters: dict[str, Tensor]) -> Tensor:
            # copies of the buffers, because a forward pass may change them: a counter, say
            copies = {name: value.clone() for name, value in self.network.named_buffers()}
            return run(self.network, samples, parameters | copies).flatten(1)

        return outputs

    def _chosen(self) -> dict[str, Tensor]:
        every = dict(self.network.named_parameters())
        return {name: every[name] for name in self.params}

    def _by_name(self, numbers: Tensor) -> dict[str, Tensor]:
        chosen = self._chosen()
        parts = torch.split(numbers, [each.numel() for each in chosen.values()])
        named = zip(chosen.items(), parts, strict=True)
        return {name: values.view_as(parameter) for (name, parameter), values in named}


def _plain_gradients(outputs: Tensor, by: Sequence[Tensor], seed: Tensor) -> list[Tensor]:
    """The gradients of outputs, weighted by the seed, and 0 where none depends on it."""
    pairs = zip(derivatives(outputs, by, seed), by, strict=True)
    return [torch.zeros_like(like) if each is None else each for each, like in pairs]


def _load_forward_mode() -> None:
    """Has torch load its rules for forward mode: torch 2.13 to 2.15 warn of their own code."""
    one = torch.ones(1, device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit")
        with _forward_mode.of_this_process:
            jvp(torch.neg, (one,), (one,))
