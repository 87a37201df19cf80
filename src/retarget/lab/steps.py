"""All members of a run as one batched network, and steps of SGD that train them at once.

On CUDA a step is recorded once in each pass, and then replayed.
"""

import copy
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from retarget.engine.response import step_law
from retarget.errors import InvalidInputError
from retarget.lab.methods import Method
from retarget.lab.streams import Labeled
from retarget.learners import SGD
from retarget.samples import evaluating

if TYPE_CHECKING:
    from retarget.lab.training import Run


class Ensemble:
    """The members' parameters, stacked: a leading dimension M on every tensor.

    Members never mix: each computes exactly what its module would compute alone. The given modules
    are copied; `write_back` copies the trained parameters back into them.

    Attributes:
        parameters: Trainable parameters, stacked, by name.
        modules: One module for each member; it shares memory with the stacked parameters, so it is
            always up to date.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        if not modules:
            raise InvalidInputError("there are no modules; expected one network for each member")
        if len({id(module) for module in modules}) < len(modules):
            raise InvalidInputError(
                "two members are the same module; expected a separate network for each member: use "
                "copy.deepcopy"
            )
        described = [_description(module) for module in modules]
        for i, other in enumerate(described):
            if other != described[0]:
                raise InvalidInputError(
                    f"module {i} has different parameters from module 0 (names, shapes, dtypes, "
                    "what is trainable, or training mode); expected one architecture: train others "
                    "in a separate call"
                )
        self._given = modules
        stacked, self.buffers = stack_module_state(list(modules))
        trainable = {name for name, p in modules[0].named_parameters() if p.requires_grad}
        if not trainable:
            raise InvalidInputError("the module has no trainable parameters")
        self._all = {
            name: p.detach().requires_grad_(name in trainable) for name, p in stacked.items()
        }
        self.parameters = {name: p for name, p in self._all.items() if name in trainable}
        self.modules = [self._view(module, m) for m, module in enumerate(modules)]
        # its values are never used; on the "meta" device it would lose which weights are tied
        self._base = copy.deepcopy(modules[0])

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return cast(torch.device, next(iter(self.parameters.values())).device)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Returns each member's outputs (M, n, c) for its own inputs (M, n, ...)."""

        def forward(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return cast(Tensor, functional_call(self._base, weights, (x,)))

        weights = self._all | self.buffers
        if len(self) == 1:  # nothing to batch: the plain network, without vmap's rewriting
            return forward({name: values[0] for name, values in weights.items()}, inputs[0])[None]
        return vmap(forward, randomness="different")(weights, inputs)

    @torch.no_grad()
    def predict(self, member: int, inputs: Tensor) -> Tensor:
        """Returns one member's outputs (n, c) in evaluation mode."""
        with evaluating(self.modules[member]) as module:
            return cast(Tensor, module(inputs))

    def state_dict(self) -> dict[str, Tensor]:
        """Returns what training changes: trainable parameters and buffers, stacked, by name."""
        return self.parameters | self.buffers

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies saved values into the stacked parameters and buffers."""
        for name, values in self.state_dict().items():
            values.copy_(state[name])

    @torch.no_grad()
    def write_back(self) -> None:
        """Copies parameters and buffers into the given modules."""
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
    return [*state, [(type(layer), layer.training) for layer in module.modules()]]


@dataclass(frozen=True)
class MemberSamples:
    """Samples of M members, n each."""

    pool: Tensor  # (N, ...) all inputs; those that members share are stored once
    rows: Tensor  # (M, n) the rows of the pool, in each member's order
    labels: Tensor  # (M, n) class of each sample
    spans: list[list[slice]]  # for each member the range of each task
    sample_bytes: int  # of one sample, as it would be stored

    @classmethod
    def gather(cls, members: Sequence[Labeled], device: torch.device) -> "MemberSamples":
        """Collects the members' samples on the device."""
        pools = list({id(each.inputs): each.inputs for each in members}.values())
        first_rows = np.cumsum([0, *(len(pool) for pool in pools)])
        offset = {id(pool): int(first) for pool, first in zip(pools, first_rows, strict=False)}
        moved = [pool.to(device) for pool in pools]
        return cls(
            pool=moved[0] if len(moved) == 1 else torch.cat(moved),
            rows=torch.stack([each.rows.to(device) + offset[id(each.inputs)] for each in members]),
            labels=torch.stack([each.labels.to(device) for each in members]),
            spans=[each.spans() for each in members],
            sample_bytes=members[0].sample_bytes or members[0].inputs[:1].nbytes,
        )

    def inputs(self, member: int, span: slice) -> Tensor:
        """Returns a range of one member's samples."""
        return self.pool[self.rows[member, span]]


WARM_UP_STEPS = 3  # before recording: libraries initialize themselves in their first calls
NEVER = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class PassPlan:
    """The samples of each step of a pass over the data, for all members."""

    positions: Tensor  # (steps, M, b) positions in the stream; the last mini-batch is padded
    weights: Tensor  # (steps, M, b) 1, or 0 for padding
    views: Tensor  # (steps, M, b) which view of each sample is shown

    @classmethod
    def in_order(
        cls, order: np.ndarray, shown: np.ndarray, batch_size: int, like: Tensor
    ) -> "PassPlan":
        """Plans mini-batches of the samples at (M, n) positions, in order; weights as `like`."""
        members, n = order.shape
        padding = ((0, 0), (0, -n % batch_size))
        filled = np.pad(order, padding, mode="edge")
        views = np.pad(shown, padding, mode="edge")
        real = np.broadcast_to(np.arange(filled.shape[1]) < n, filled.shape)
        positions, weights, chosen = (
            torch.from_numpy(values.reshape(members, -1, batch_size).swapaxes(0, 1).copy())
            for values in (filled, real, views)
        )
        return cls(positions.to(like.device), weights.to(like), chosen.to(like.device))

    def __len__(self) -> int:
        return len(self.positions)  # steps


class Optimizer:
    """The steps of SGD on stacked parameters; each member has its own rate, momentum and decay.

    A step takes weights w and velocity v to M (w, v) - u g, with the M and u of
    `engine.response.step_law` and g the gradient of the reduced loss.
    """

    def __init__(self, learners: Sequence[SGD], parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        laws = [step_law(replace(each, reduction="sum"), 0, 1) for each in learners]
        M = np.stack([matrix for matrix, _ in laws])
        u = np.stack([effects for _, effects in laws])
        self._velocity: list[Tensor] = []
        if M[:, 0, 1].any():
            self._velocity = [torch.zeros_like(p) for p in parameters]
        M[:, 0, 0] -= 1  # what a step adds to the weights: 1 and a small decay would lose digits
        self._decays = bool(M[:, 0, 0].any())
        # (members, 1, ...) numbers for each parameter
        self._of_weights = [_by_member(M[:, :, 0], p) for p in parameters]
        self._of_velocity = [_by_member(M[:, :, 1], p) for p in parameters]
        self._of_gradient = [_by_member(u, p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Moves every parameter against its gradient."""
        for i, (w, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            decay, to_velocity = self._of_weights[i]
            effect, on_velocity = self._of_gradient[i]
            move = effect * gradient
            if self._velocity:
                v = self._velocity[i]
                from_velocity, last = self._of_velocity[i]
                move -= from_velocity * v
                v.mul_(last).sub_(on_velocity * gradient)
                if self._decays:
                    v.add_(to_velocity * w)
            if self._decays:
                move -= decay * w
            w.sub_(move)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the velocities of the parameters, if there is momentum."""
        return {str(i): velocity for i, velocity in enumerate(self._velocity)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores the velocities."""
        for name, velocity in self.state_dict().items():
            velocity.copy_(state[name])


def _by_member(numbers: np.ndarray, parameter: Tensor) -> tuple[Tensor, Tensor]:
    """Shapes two numbers for each member (M, 2) to multiply a stacked parameter."""
    shape = [-1, *[1] * (parameter.ndim - 1)]
    first, second = parameter.new_tensor(numbers).unbind(1)
    return first.reshape(shape), second.reshape(shape)


class Stepper:
    """Takes the steps of one pass, the run's `plan`, and calls the hooks of the methods."""

    def __init__(self, run: "Run", methods: Sequence[Method]) -> None:
        self._run = run
        self._methods = methods
        device = run.ensemble.device
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        # recording takes about as long as a few dozen steps
        self._record = (
            run.record
            and device.type == "cuda"
            and len(run.plan) > 50
            and all(method.capturable for method in methods)
        )

    def step(self) -> None:
        """Takes the next step."""
        if not self._record:
            self._take()
        elif self._run.taken < WARM_UP_STEPS:
            aside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                self._take()
            torch.cuda.current_stream().wait_stream(aside)
        else:
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                with _no_garbage_collection(), torch.cuda.graph(self._graph):
                    self._take()
            self._graph.replay()
        self._run.taken += 1
        self._run.steps += 1

    def _take(self) -> None:
        run = self._run
        batch = run.batch(self._step)
        outputs = batch.outputs
        batch.outputs = batch.outputs.detach()
        for method in self._methods:
            batch.targets = method.targets(run, batch)
        loss = run.loss(outputs, batch.targets, batch.weights)
        for method in self._methods:
            penalty = method.penalty(run, batch)
            loss = loss if penalty is None else loss + penalty
        parameters = run.ensemble.parameters
        computed = torch.autograd.grad(
            loss.sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
        )
        gradients = dict(zip(parameters, computed, strict=True))
        for method in self._methods:
            gradients = method.gradients(run, batch, gradients)
        run.optimizer.step([gradients[name] for name in parameters])
        loss = loss.detach()
        run.total_loss += loss
        bad = torch.where(loss.isfinite(), NEVER, self._step)
        run.first_bad.copy_(torch.minimum(run.first_bad, bad))
        for method in self._methods:
            method.on_batch_end(run, batch)
        self._step += 1


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turns off the garbage collector: freeing an old graph would spoil recording a new one."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
