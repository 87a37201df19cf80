"""The members of a run: networks trained at once as one batched network, and their samples."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from retarget.continual.streams import Labelled
from retarget.errors import InvalidInputError


class Ensemble:
    """The members' parameters, stacked: a leading dimension M on every tensor.

    Members never mix: what member m computes is what its module alone would.

    Args:
        modules: One network a member, all of one architecture. They are copied; `write_back`
            copies the trained parameters into them.

    Attributes:
        parameters: Trainable parameters, stacked, by name.
        modules: A module for each member, which shares its memory with the stacked parameters: it
            is always as trained as its member.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        if not modules:
            raise InvalidInputError("there are no modules; expected one network a member")
        if len({id(module) for module in modules}) < len(modules):
            raise InvalidInputError(
                "two members are the same module; expected one network a member: copy.deepcopy it"
            )
        described = [_description(module) for module in modules]
        if any(other != described[0] for other in described):
            differing = next(i for i, other in enumerate(described) if other != described[0])
            raise InvalidInputError(
                f"module {differing} has other parameters than module 0 (names, shapes, dtypes, "
                "what is trainable, or training mode); expected one architecture: train different "
                "ones in calls of their own"
            )
        self._given = modules
        stacked, self.buffers = stack_module_state(list(modules))
        trainable = {name for name, p in modules[0].named_parameters() if p.requires_grad}
        if not trainable:
            raise InvalidInputError("the module has no trainable parameters")
        frozen = {name: p.detach() for name, p in stacked.items() if name not in trainable}
        self.parameters = {
            name: p.detach().requires_grad_() for name, p in stacked.items() if name in trainable
        }
        self._all = self.parameters | frozen
        self.modules = [self._view(module, m) for m, module in enumerate(modules)]
        # its own values are never used; on "meta" it would lose which weights are tied
        self._base = copy.deepcopy(modules[0])

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = next(iter(self.parameters.values())).device
        return device

    def __call__(self, inputs: Tensor) -> Tensor:
        """(M, n, c) each member's outputs for its own inputs (M, n, ...)."""

        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(self._base, (parameters, buffers), (x,))
            return outputs

        if len(self) == 1:  # nothing to batch: the plain network, without vmap's rewriting
            parameters, buffers = (
                {name: values[0] for name, values in part.items()}
                for part in (self._all, self.buffers)
            )
            return forward(parameters, buffers, inputs[0])[None]
        outputs: Tensor = vmap(forward, randomness="different")(self._all, self.buffers, inputs)
        return outputs

    @torch.no_grad()
    def predict(self, member: int, inputs: Tensor) -> Tensor:
        """(n, c) one member's outputs in evaluation mode."""
        module = self.modules[member]
        training = [part for part in module.modules() if part.training]
        module.eval()
        try:
            outputs: Tensor = module(inputs)
        finally:
            for part in training:
                part.training = True
        return outputs

    def state_dict(self) -> dict[str, Tensor]:
        """What training changes: trainable parameters and buffers, stacked, by name."""
        return self.parameters | self.buffers

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies such values into the stacked parameters and buffers."""
        for name, values in self.state_dict().items():
            values.copy_(state[name])

    @torch.no_grad()
    def write_back(self) -> None:
        """Copies parameters and buffers into the modules that were given."""
        for given, trained in zip(self._given, self.modules, strict=True):
            given.load_state_dict(trained.state_dict())

    def _view(self, module: nn.Module, member: int) -> nn.Module:
        view = copy.deepcopy(module)
        for name, parameter in view.named_parameters():
            parameter.data = self._all[name].detach()[member]
        for name, buffer in view.named_buffers():
            buffer.data = self.buffers[name].detach()[member]
        return view


def _description(module: nn.Module) -> list[object]:
    state: list[object] = [
        (name, tuple(p.shape), p.dtype, p.device, p.requires_grad)
        for name, p in [*module.named_parameters(), *module.named_buffers()]
    ]
    return [*state, [(type(part), part.training) for part in module.modules()]]


@dataclass(frozen=True)
class Samples:
    """Samples of M members, n each.

    Attributes:
        pool: (N, ...) all inputs, those that members share only once.
        rows: (M, n) the rows of the pool, in each member's order.
        labels: (M, n) class of each sample.
        spans: For each member the range of each task.
    """

    pool: Tensor
    rows: Tensor
    labels: Tensor
    spans: list[list[slice]]

    @classmethod
    def gather(cls, parts: Sequence[Labelled], device: torch.device) -> "Samples":
        """The members' samples, moved to the device."""
        pools = list({id(part.inputs): part.inputs for part in parts}.values())
        first_rows = np.cumsum([0, *(len(pool) for pool in pools)])
        offset = {id(pool): int(first) for pool, first in zip(pools, first_rows, strict=False)}
        moved = [pool.to(device) for pool in pools]
        return cls(
            pool=moved[0] if len(moved) == 1 else torch.cat(moved),
            rows=torch.stack([p.rows.to(device) + offset[id(p.inputs)] for p in parts]),
            labels=torch.stack([p.labels.to(device) for p in parts]),
            spans=[part.spans() for part in parts],
        )

    def inputs(self, member: int, span: slice) -> Tensor:
        """A range of one member's samples."""
        return self.pool[self.rows[member, span]]
