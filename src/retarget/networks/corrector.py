"""Corrected targets for a network, for your own training loop."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retarget.arrays import as_targets, give_back
from retarget.errors import InvalidInputError
from retarget.kernels import EmpiricalNTK
from retarget.kernels.empirical.parameters import (
    ParameterChoice,
    Preconditioner,
    trained_parameters,
)
from retarget.kernels.simple import Kernel
from retarget.learners import SGD
from retarget.networks.linearization import require_outputs
from retarget.networks.loops import ClosedLoop, First, Kind, OpenLoop, Options, Refresh
from retarget.networks.trials import Rehearsal, Trial
from retarget.samples import (
    Samples,
    as_samples,
    count,
    form_of,
    from_named,
    leaves,
    library_of,
    mapped,
    named_leaves,
    require_network,
    shapes_of,
    take,
)
from retarget.state_files import explained, part_of, read_state, require_shape, write_state
from retarget.theory.iterative import FirstBlock, Parts
from retarget.theory.losses import Loss

__all__ = ["Kind", "NetworkCorrector", "Refresh"]


class NetworkCorrector:
    r"""Computes corrected targets to train a network on, task by task, instead of the true ones.

    Use it in your own PyTorch training loop to replace the labels by targets before each task;
    `lab.Corrected` does the same inside `lab.train`. The network is treated as a kernel
    machine that started from zero, with its tangent kernel at the beginning of a task; the stream
    is all samples so far. They are kept: memory grows with the stream, and the kernel with its
    square. Training is assumed to use full mini-batches, so the batch size should divide the tasks.
    The block size should divide them too if earlier tasks should not influence the first block of a
    later one. Samples that the network does not respond to (all units of a layer are silent) do not
    influence the targets of others. We call this the open loop.

    With `memory=m` no past samples are kept, and there is feedback (the closed loop). A
    `TangentLearner` with m features, of the network as it is at construction, learns every sample;
    its predictions are the aim. The targets of each block are computed from the network's present
    outputs and kernel, which brings back a network that has drifted off. Call it block by block,
    each time after training on the previous block:

        for x, y in blocks:
            x, z = corrector.next_block(x, y)  # with replay=0: z = corrector.correct(x, y)
            train(x, z)

    With `replay`, stored samples are added to each block, as many as it has itself, with targets
    towards the aim. A block costs a forward pass, its kernel and $m^3/3$ multiplications. If you
    can use the `TangentLearner` itself, it is the better predictor.

    Corrected targets are exact for the kernel; a network follows them only while its kernel hardly
    changes. With plain SGD, each call compares the last block's outputs with where they should be.
    If they are further off than the distance that they should have moved, there is a
    `LinearizationWarning`, once.

    Args:
        module: The network, with outputs (n, c). It is never changed.
        learner: Describes the optimizer of your loop. Its `reduction` matters: the mean over a
            mini-batch is like a rate divided by the batch size.
        gamma: Ridge of the offline learner that the targets lead to. `"auto"` chooses it and
            `ridge` anew in each task, or no correction: a tenth of the rows is held out, copies of
            the network are trained on the true targets and on four corrections, and the best on
            the held-out rows of all tasks so far is chosen, if it is clearly better than the true
            targets (by two standard errors). `trials` shows what was tried. It costs five passes
            over the task and four more corrections. The copies have no velocity at first.
        block_size: Samples corrected together, a multiple of the batch size.
        refresh: When the kernel is recomputed: `"task"`, with every `correct`; `"epoch"`, with
            every `recorrect` too; `"never"` always uses the network as it is at construction.
        kind: `"iterative"` (Proposition 4.2), `"exact"` or `"distilled"`: the offline predictions
            themselves, uncorrected. `"exact"` is Theorem 4.1 in the first task. After each later
            one the learner is as near to the offline learner of all samples so far (in the
            kernel's function space) as the samples of that task alone can bring it: it is that
            learner itself if they span the kernel's features, of which a wide network has more than
            a task has samples. Mini-batches need not be full at the end of a task.
        ridge: Ridge of a block, for the iterative kind; see `iterative_targets`.
        parts: Both halves of the iterative correction, or one.
        first_block: Whether the iterative kind corrects the first block too.
        kernel: A function that makes the kernel from the module, and from `params=` and
            `preconditioner=` if these are given.
        params: Which parameters the loop trains: a name, the name of a layer, a pattern such as
            `"*.lora_*"`, several of these, or a function of a name; None for all trainable ones
            (`requires_grad`).
        preconditioner: The optimizer of the loop, if it is Adam, AdamW or RMSprop, or SGD with
            several rates: the kernel is $J P J^\top$ with its P at each call, as in `EmpiricalNTK`.
            It must have taken a step. `learner` then has its rate (that of the first group), and
            AdamW's `weight_decay`. This would be exact for one output and a constant P; it is
            approximate here, as each step changes P a little, and the kernel is the mean over
            outputs whose P differ. $\beta_1$ is ignored if the learner has no momentum.
        loss: The loss of the loop: half the squared error, or cross-entropy (softmax; logistic for
            one output), whose true targets are one-hot rows or probabilities. The corrected ones
            are real numbers, which `torch.nn.functional.cross_entropy` accepts. Cross-entropy
            cannot be used with `kind="distilled"`, nor with `memory`.
        memory: Number of features of the `TangentLearner`; None for the open loop. It needs plain
            SGD and excludes `refresh`, `kind`, `ridge`, `parts` and `first_block`. `gamma="auto"`
            then means generalized cross-validation.
        replay: Number of samples stored for `next_block`, drawn uniformly from all so far.
        damping: $\rho$: a block's coefficients are $(K + \rho\, \overline{K_{ii}} I)^{-1}$ times
            the distance to the aim. It grows up to 64 times this value while the network does not
            follow, and shrinks again when it does.
        seed: Seed of the features and of the choice of stored samples, or of held-out rows.

    Examples:
        >>> network = nn.Linear(2, 2, bias=False).double()
        >>> corrector = NetworkCorrector(network, SGD(0.1, 2, reduction="sum"), 1.0, block_size=2)
        >>> X, Y = torch.tensor([[1.0, 0], [0, 1]]).double(), torch.eye(2).double()
        >>> corrector.correct(X, Y).round(decimals=3)
        tensor([[5., 0.],
                [0., 5.]], dtype=torch.float64)
    """

    def __init__(
        self,
        module: nn.Module,
        learner: SGD,
        gamma: float | Literal["auto"],
        block_size: int,
        *,
        refresh: Refresh = "task",
        kind: Kind = "iterative",
        ridge: float = 0.0,
        parts: Parts = "both",
        first_block: FirstBlock = "corrected",
        kernel: Callable[..., Kernel] = EmpiricalNTK,
        params: ParameterChoice = None,
        preconditioner: Preconditioner = None,
        loss: Loss = "squared",
        memory: int | None = None,
        replay: int = 0,
        damping: float = 1.0,
        seed: int = 0,
    ) -> None:
        require_network(module)
        closed = memory, replay, damping, seed
        options = Options(
            gamma, block_size, refresh, kind, ridge, parts, first_block, loss, *closed
        )
        self.options = options = options.checked(learner)
        self.learner, self.module, self.block_size, self.loss = learner, module, block_size, loss
        self.refresh, self.memory, self.replay = refresh, memory, replay
        self._module = copy.deepcopy(module) if refresh == "never" else module
        self.params = None if params is None else list(trained_parameters(module, params))
        given: dict[str, Any] = {} if params is None else {"params": self.params}
        if preconditioner is not None:
            if refresh == "never":
                raise InvalidInputError(
                    "refresh is 'never', but a preconditioner is read from the optimizer whenever "
                    "the kernel is computed; use refresh='task' or 'epoch'"
                )
            given["preconditioner"] = preconditioner
        self.kernel = kernel(self._module, **given)
        self._loop: OpenLoop | ClosedLoop = (
            OpenLoop(self._module, options, self._rehearsal())
            if memory is None
            else ClosedLoop(module, options, self.params)
        )
        self._first: First | None = None
        self._flat = self._numpy = False  # the form of the caller's Y

    def _rehearsal(self) -> Rehearsal | None:
        """Returns what chooses the strength of the correction, if that is asked for."""
        if self.options.gamma != "auto":
            return None
        optimizer = getattr(self.kernel, "preconditioner", None)  # `load` has it only there
        if not (optimizer is None or isinstance(optimizer, Optimizer)):
            raise InvalidInputError(
                f"the preconditioner is a {type(optimizer).__name__} with gamma='auto', which "
                "trains copies of the network; give the optimizer itself, or gamma as a number"
            )
        names = list(trained_parameters(self.module, self.params))
        return Rehearsal(self.module, names, optimizer, self.options)

    def correct(self, X: Any, Y: Any) -> Any:
        """Returns targets for the samples of the next task, given in the order of training.

        Args:
            X: (n, ...) samples, as the network takes them: an array, or a dict or tuple of several
                (token ids and a mask), as in `EmpiricalNTK`.
            Y: (n, c) true targets; one-hot rows for classes.

        Returns:
            Targets with the shape, library and dtype of Y.
        """
        if self.replay:
            raise InvalidInputError(
                f"with replay={self.replay} stored samples must be trained on too; call "
                "X, Z = next_block(X, Y) instead of correct"
            )
        return self._correct(X, Y)[1]

    def next_block(self, X: Any, Y: Any) -> tuple[Any, Any]:
        """Returns samples to train on now, and their targets: those given, then stored ones.

        It is only for the closed loop (`memory=...`).

        Args:
            X: (n, ...) the block's samples, at most `block_size`.
            Y: (n, c) their true targets.

        Returns:
            (m, ...) samples and (m, c) targets; train on them in this order.
        """
        if self.memory is None:
            raise InvalidInputError("next_block is only for the closed loop; give memory=...")
        samples, Z = self._correct(X, Y)
        return mapped(lambda leaf: give_back(leaf, library_of(X)), samples), Z

    def recorrect(self) -> Any:
        """Returns new targets for the same task, before another epoch (open loop only)."""
        if isinstance(self._loop, ClosedLoop):
            raise InvalidInputError(
                "with memory=... each block is corrected once; continue with the next block"
            )
        return self._given(self._loop.recorrect(self.kernel, self.learner))

    def resume(
        self,
        tasks: Sequence[tuple[Samples, Tensor]],
        targets: Tensor,
        trials: Sequence[Sequence[Any]] = (),
    ) -> None:
        """Continues from another corrector's tasks and targets, without computing them again.

        Args:
            tasks: The samples and true targets of each task that it has corrected.
            targets: The targets that it returned for the last task.
            trials: Its `trials`, with `gamma="auto"`; without them `recorrect` chooses anew.
        """
        if isinstance(self._loop, ClosedLoop):
            raise InvalidInputError("resume is only for the open loop; use save and load instead")
        if tasks:
            self._loop.resume(tasks, targets, trials)
            self._first = _without_rows(*tasks[0])

    def trust(self) -> None:
        """Stops comparing the network with its linearization: no more `LinearizationWarning`."""
        self._loop.trust()

    @property
    def samples(self) -> int:
        """Number of samples for which it has returned targets."""
        return self._loop.samples

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What `gamma="auto"` tried for the last task, no correction first; otherwise empty."""
        return () if isinstance(self._loop, ClosedLoop) else self._loop.trials

    @property
    def linearization_error(self) -> float | None:
        """How far the network was from the kernel's prediction, in the last few comparisons.

        It is relative to the predicted movement: 0 is exact, and above 1 there is a
        `LinearizationWarning`. None if nothing was compared: before the second call, with momentum
        or weight decay, or after `trust`.
        """
        return None if self._loop.watch is None else self._loop.watch.off

    @property
    def nbytes(self) -> int:
        """Bytes kept for the stream."""
        return self._loop.nbytes

    def save(self, path: str | Path) -> None:
        """Saves the whole state to one file; an older file is replaced only when it is complete.

        It contains the samples and targets of all tasks or, with `memory`, the `TangentLearner` and
        the stored samples. With `refresh="never"` it contains the weights that the kernel uses;
        otherwise you must save the network's weights yourself. Loading the file runs no code.
        """
        write_state(Path(path), *self.to_state())

    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns what `save` writes: plain values, and tensors by name."""
        state = self._loop.state_dict()
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        if self._first is not None:
            tensors |= named_leaves("first.samples", self._first[0])
            tensors["first.targets"] = self._first[1]
        if self.refresh == "never":
            tensors |= {f"network.{k}": v for k, v in self._module.state_dict().items()}
        values = {
            "class": type(self).__name__,
            "options": asdict(self.options) | {"params": self.params},
            "learner": self.learner.to_dict(),
            "flat": self._flat,
            "numpy": self._numpy,
            "loop": {name: value for name, value in state.items() if name not in tensors},
        }
        return values, tensors

    @classmethod
    def load(
        cls,
        path: str | Path,
        module: nn.Module,
        kernel: Callable[..., Kernel] = EmpiricalNTK,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Loads a file written by `save`; the corrector then continues as if never interrupted.

        Args:
            path: The file.
            module: The network as it is now. With `refresh="never"` only its architecture matters:
                the weights that the kernel uses come from the file.
            kernel: A function that makes the kernel, as in the constructor; with a preconditioner,
                `functools.partial(EmpiricalNTK, preconditioner=optimizer)`.
            device: The device of the network; the samples are loaded there.
        """
        values, tensors = read_state(Path(path), device, cls.__name__)
        with explained(path, cls.__name__):
            return cls.from_state(values, tensors, module, kernel)

    @classmethod
    def from_state(
        cls,
        values: dict[str, Any],
        tensors: dict[str, Tensor],
        module: nn.Module,
        kernel: Callable[..., Kernel] = EmpiricalNTK,
    ) -> Self:
        """Makes a corrector from the result of `to_state`; the arguments are as in `load`."""
        loaded = cls(module, SGD(**values["learner"]), kernel=kernel, **values["options"])
        loaded.restore(values, tensors)
        return loaded

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restores the result of `to_state`; call it on a new corrector with the same options.

        Use it if you already have a corrector with its network; `load` makes one.

        Args:
            values: Plain values.
            tensors: Tensors by name, on the network's device.
        """
        if self._first is not None:
            raise InvalidInputError(
                "this corrector has been used; expected a new one to restore a state"
            )
        mine = self.to_state()[0]
        for name in ("options", "learner"):
            saved = SGD(**values[name]).to_dict() if name == "learner" else values[name]
            if saved != mine[name]:
                raise InvalidInputError(
                    f"the state has the {name} {saved}, the corrector {mine[name]}; expected the "
                    "same"
                )
        if self.refresh == "never":
            self._module.load_state_dict(part_of(tensors, "network"))
        self._flat, self._numpy = bool(values["flat"]), bool(values["numpy"])
        first = part_of(tensors, "first")
        if first:
            samples = as_samples("samples", from_named("samples", first))
            self._first = samples, require_shape("targets", first["targets"], 0, None)
        self._loop.load_state_dict(values["loop"] | tensors, self._first)

    def _correct(self, X: Any, Y: Any) -> tuple[Samples, Any]:
        """Returns the samples to train on next, and their targets in the form of Y."""
        samples, targets = as_samples("X", X), as_targets("Y", Y)
        n = count(samples)
        if n != len(targets) or not n:
            raise InvalidInputError(
                f"X has {n} samples and Y has {len(targets)}; expected the same number, at least 1"
            )
        if self.memory is not None and n > self.block_size:
            raise InvalidInputError(
                f"X has {n} samples, but block_size is {self.block_size}; in the closed loop, give "
                "one block at a time and train on it before the next"
            )
        if self._first is None:
            require_outputs(self._module, samples, targets)
        else:
            _require_alike((samples, targets), self._first)
        block, Z = self._loop.correct(self.kernel, self.learner, samples, targets)
        self._first = _without_rows(samples, targets)
        self._flat, self._numpy = np.ndim(Y) == 1, not isinstance(Y, Tensor)
        return block, self._given(Z)

    def _given(self, Z: Tensor) -> Any:
        """Returns a copy of the targets for the caller, in the form of the last Y."""
        Z = Z.clone()
        return give_back(Z[:, 0] if self._flat else Z, None if self._numpy else Z)


def _without_rows(samples: Samples, targets: Tensor) -> First:
    return take(samples, slice(0, 0)), targets[:0]


def _require_alike(task: First, first: First) -> None:
    """Raises if a task does not match the first one."""

    def words(samples: Samples, targets: Tensor) -> str:
        kinds = {(leaf.dtype, leaf.device) for leaf in leaves(samples)}
        types = " and ".join(sorted(f"{dtype}, on {device}" for dtype, device in kinds))
        return f"samples of shape {shapes_of(samples)}, {targets.shape[1]} targets, {types}"

    if (form_of(task[0]), task[1].shape[1]) != (form_of(first[0]), first[1].shape[1]):
        raise InvalidInputError(
            f"this task has {words(*task)}; expected {words(*first)}, as in the first task"
        )
