"""Corrected targets for a network, for a training loop of one's own."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from retarget.arrays import as_targets, give_back, require_finite, require_no_overflow
from retarget.continual.closed_loop import Block, ClosedLoop
from retarget.continual.corrector_options import (
    Kind,
    Refresh,
    check_loop_options,
    check_options,
    require_alike,
    require_current,
)
from retarget.continual.linearisation import (
    LinearisationWatch,
    linear_outputs,
    outputs,
    require_outputs,
    tangent_kernel,
)
from retarget.errors import InvalidInputError
from retarget.kernels import EmpiricalNTK
from retarget.kernels.empirical.parameters import Choice, Preconditioner, trained_parameters
from retarget.kernels.simple import Kernel
from retarget.learners import SGD
from retarget.samples import (
    Samples,
    as_samples,
    count,
    from_named,
    join,
    leaves,
    library_of,
    mapped,
    named_leaves,
    take,
)
from retarget.state_files import explained, part_of, read_state, require_shape, write_state
from retarget.theory.correction import corrected_targets
from retarget.theory.iterative import FirstBlock, Parts, distilled_targets, iterative_targets
from retarget.theory.losses import Loss

__all__ = ["Kind", "NetworkCorrector", "Refresh", "check_options"]

# What the constructor takes besides the network, the learner and the kernel.
OPTIONS: tuple[str, ...] = ("gamma", "block_size", "refresh", "kind", "ridge", "parts")
OPTIONS += ("first_block", "params", "loss")
LOOP_OPTIONS = ("memory", "replay", "damping", "seed")


class NetworkCorrector:
    r"""Targets to train a network on, task by task, instead of the true ones.

    Use it in a PyTorch training loop of your own, as a function from labels to targets before each
    task; `continual.Corrected` is the same inside `continual.train`. The network is taken for a
    kernel machine with its tangent kernel as it is when a task begins, and as having started
    from zero; all samples seen so far are the stream. They are kept: memory grows with the
    stream, and the kernel with its square. The stream is taken to be trained on in full mini-
    batches: let the batch size divide the tasks, and the block size too where the targets of
    earlier tasks are to have no part in those of a later task's first block. Samples that the
    network does not respond to (all units of a layer silent) have no part in others' targets.

    With `memory=m` nothing of the past is kept, and the loop is closed. A `TangentLearner` with m
    features, of the network as it is at construction, learns every sample; what it predicts is the
    aim. The targets of each block come from the network's outputs and kernel at that moment, so
    that a network that went astray is led back. It is called block by block, each time after
    training on the block before:

        for x, y in blocks:
            x, z = corrector.next_block(x, y)  # with replay=0: z = corrector.correct(x, y)
            train(x, z)

    With `replay` as many stored samples stand beside each block's own, with targets towards the
    aim. It costs a forward pass, the block's kernel and $m^3/3$ multiplications a block. Where the
    learner itself can be used as it is, it is the better predictor.

    Corrected targets are exact for the kernel; a network follows them only while its kernel hardly
    changes. With plain SGD, each call compares the last block's outputs with where they should be.
    If they are farther off than the distance that they were to move, a `LinearisationWarning` says
    so, once.

    Args:
        module: The network, with outputs (n, c). It is looked at, never changed.
        learner: The optimiser of the loop. Its `reduction` matters: a mean over the mini-batch is
            a rate divided by its size.
        gamma: Ridge of the offline learner that the targets lead to.
        block_size: Samples corrected together, a multiple of the batch size.
        refresh: When the kernel is computed anew: `"task"`, with every `correct`; `"epoch"`, with
            every `recorrect` too; `"never"`, from the network as it is now, for good.
        kind: `"iterative"` (Proposition 4.2), `"exact"` (Theorem 4.1, over the stream so far) or
            `"distilled"`: the offline predictions themselves, uncorrected.
        ridge: Ridge of a block, for the iterative kind; see `iterative_targets`.
        parts: Both halves of the iterative correction, or one.
        first_block: Whether the iterative kind corrects the first block too.
        kernel: Makes the kernel from the module, and from `params=` and `preconditioner=` where
            these are given.
        params: Which parameters the loop trains: a name, the name of a layer, a pattern such as
            `"*.lora_*"`, several of these, or a function of a name; None for all that are trained
            (`requires_grad`).
        preconditioner: The optimiser of the loop, where it is Adam, AdamW or RMSprop, or SGD with
            several rates: the kernel is $J P J^\top$ with its P as it is at each call, as
            `EmpiricalNTK` has it. It must have taken a step. `learner` then has its rate (that of
            the first group), and AdamW's `weight_decay`. Exact for a P that stands still, so
            approximate here, as each step changes it a little; a momentum ($\beta_1$) is taken for
            none by a learner without.
        loss: The loss of the loop: half the squared error, or cross-entropy (softmax; logistic for
            one output), whose true targets are one-hot rows or probabilities. The targets are for
            `torch.nn.functional.cross_entropy`, which takes real numbers. Not for the distilled
            kind, nor with `memory`.
        memory: Number of features of the learner that leads; None for the open loop above. It needs
            plain SGD, and leaves `refresh`, `kind`, `ridge`, `parts` and `first_block` no meaning.
            `gamma` may be `"auto"` then.
        replay: Samples that are stored for `next_block`, chosen fairly among all so far.
        damping: $\rho$: a block's coefficients are $(K + \rho\, \overline{K_{ii}} I)^{-1}$ times
            the way to the aim. This is the least: it grows, up to 64 times, while the network does
            not follow, and comes back when it does.
        seed: Seed of the features, and of the choice of stored samples.

    Examples:
        >>> network = nn.Linear(2, 2, bias=False).double()
        >>> corrector = NetworkCorrector(network, SGD(0.1, batch_size=2), gamma=1.0, block_size=2)
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
        params: Choice = None,
        preconditioner: Preconditioner = None,
        loss: Loss = "squared",
        memory: int | None = None,
        replay: int = 0,
        damping: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.gamma: float | Literal["auto"] = gamma
        automatic = gamma == "auto" and memory is not None
        checked, self.ridge = check_options(
            learner,
            1.0 if automatic else cast(float, gamma),
            block_size,
            refresh=refresh,
            kind=kind,
            ridge=ridge,
            parts=parts,
            first_block=first_block,
            loss=loss,
        )
        if not automatic:
            self.gamma = checked
        self.learner, self.block_size, self.kind = learner, block_size, kind
        self.parts, self.first_block, self.refresh, self.loss = parts, first_block, refresh, loss
        self.module = module
        self._module = copy.deepcopy(module) if refresh == "never" else module
        self.params = None if params is None else list(trained_parameters(module, params))
        given: dict[str, Any] = {} if params is None else {"params": self.params}
        if preconditioner is not None:
            require_current(refresh)
            given["preconditioner"] = preconditioner
        self.kernel = kernel(self._module, **given)
        self.memory, self.replay, self.damping, self.seed = memory, replay, damping, int(seed)
        self._loop: ClosedLoop | None = None
        others = refresh, kind, ridge, parts, first_block
        check_loop_options(learner, memory, replay, damping, others, loss)
        if memory is not None:
            self._loop = ClosedLoop(
                module, learner, self.gamma, memory, replay, float(damping), self.seed, self.params
            )
        self._watch: LinearisationWatch | None = LinearisationWatch()  # of the open loop
        self._first: tuple[Samples, Tensor] | None = None  # no rows: what samples are like
        self._tasks: list[tuple[Samples, Tensor]] = []
        self._targets: Tensor | None = None
        self._flat = self._numpy = False  # how the caller gave Y

    def correct(self, X: Any, Y: Any) -> Any:
        """Targets for the samples of the next task, in the order in which they will be trained on.

        Args:
            X: (n, ...) samples, as the network takes them: an array, or a dict or tuple of several
                (token ids and a mask), as `EmpiricalNTK` has them.
            Y: (n, c) true targets: one-hot, for classes.

        Returns:
            Targets of the shape, the library and the dtype of Y.
        """
        samples, targets = self._checked(X, Y)
        if self._loop is not None:
            if self.replay:
                raise InvalidInputError(
                    f"with replay={self.replay} there are stored samples to train on as well; call "
                    "X, Z = next_block(X, Y) instead of correct"
                )
            return self._next(self._loop, samples, targets, Y)[1]
        if self._watch is not None:
            self._watch.compare(self._module)
        # a copy, because a caller may fill its arrays with the next task
        tasks = [*self._tasks, (mapped(torch.clone, samples), targets.clone())]
        # a task whose correction fails has not been seen
        corrected, flat, numpy = self._compute(tasks), np.ndim(Y) == 1, not isinstance(Y, Tensor)
        self._targets, self._tasks, self._flat, self._numpy = corrected, tasks, flat, numpy
        self._first = _no_rows(samples, targets)
        return self._given()

    def next_block(self, X: Any, Y: Any) -> tuple[Any, Any]:
        """Samples to train on now, and their targets: those given, then some of the stored ones.

        Of the closed loop (`memory=...`) only.

        Args:
            X: (n, ...) the block's samples, at most `block_size`.
            Y: (n, c) their true targets.

        Returns:
            (m, ...) samples and (m, c) targets, in the order in which they are to be trained on.
        """
        if self._loop is None:
            raise InvalidInputError("next_block belongs to the closed loop: give memory=...")
        block, Z = self._next(self._loop, *self._checked(X, Y), Y)
        return mapped(lambda leaf: give_back(leaf, library_of(X)), block.samples), Z

    def recorrect(self) -> Any:
        """Targets for the same samples again, before another epoch over them (open loop only)."""
        if self._loop is not None:
            raise InvalidInputError(
                "with memory=... each block is corrected once; go on with the next block"
            )
        if self._watch is not None:
            self._watch.compare(self._module)
            self._watch.samples = None  # of a second pass the theory says nothing
        if not self._tasks:
            raise InvalidInputError("there is no task to correct again; call correct first")
        if self.refresh == "epoch":
            self._targets = self._compute(self._tasks)
        return self._given()

    def resume(self, tasks: Sequence[tuple[Samples, Tensor]], targets: Tensor) -> None:
        """Continues from another corrector's tasks and targets, without computing them again.

        Args:
            tasks: The samples and true targets of each task that it has corrected.
            targets: What it gave for the last of them.
        """
        if self._loop is not None:
            raise InvalidInputError("resume belongs to the open loop; use save and load")
        self._tasks = [(mapped(torch.clone, samples), true.clone()) for samples, true in tasks]
        self._first = _no_rows(*tasks[0]) if tasks else None
        self._targets = targets.double()

    def trust(self) -> None:
        """Stops comparing the network with its linearisation: no more `LinearisationWarning`."""
        self._watch = None
        if self._loop is not None:
            self._loop.watch.warned = True

    @property
    def samples(self) -> int:
        """Samples that it has given targets for."""
        if self._loop is not None:
            return self._loop.leader.samples
        return sum(len(targets) for _, targets in self._tasks)

    @property
    def linearisation_error(self) -> float | None:
        """How far the network was from where its kernel said, at the last few comparisons.

        Relative to the distance that it was to move: 0 is exact, and above 1 there is a
        `LinearisationWarning`. None where nothing was compared, as before the second call, with
        momentum or weight decay, or once `trust` has switched it off.
        """
        watch = self._watch if self._loop is None else self._loop.watch
        return None if watch is None else watch.off

    @property
    def nbytes(self) -> int:
        """Bytes that are kept of the stream."""
        kept = sum(part.nbytes for X, Y in self._tasks for part in (*leaves(X), Y))
        return kept if self._loop is None else self._loop.nbytes

    def save(self, path: str | Path) -> None:
        """Writes the whole state to one file, which replaces an older one only when complete.

        It holds the samples and targets of all tasks, and with `refresh="never"` the weights of the
        network that the kernel is of. Otherwise the network's weights are yours to save: the
        corrector only looks at it. With `memory` it holds the sums and the weights of the learner
        that leads, and the samples stored. Loading the file runs no code.
        """
        write_state(Path(path), *self.to_state())

    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `save` writes: plain values, and tensors by name."""
        values = {
            "class": type(self).__name__,
            "options": {name: getattr(self, name) for name in OPTIONS + LOOP_OPTIONS},
            "learner": self.learner.to_dict(),
            "tasks": len(self._tasks),
            "flat": self._flat,
            "numpy": self._numpy,
        }
        tensors: dict[str, Tensor] = {}
        for i, (samples, targets) in enumerate(self._tasks):
            tensors |= named_leaves(f"samples{i}", samples) | {f"targets{i}": targets}
        if self._targets is not None:
            tensors["corrected"] = self._targets
        if self.refresh == "never":
            tensors |= {f"network.{k}": v for k, v in self._module.state_dict().items()}
        if self._loop is not None:
            state = self._loop.state_dict()
            values["loop"] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
            tensors |= {f"loop.{k}": v for k, v in state.items() if isinstance(v, Tensor)}
            if self._first is not None:
                tensors |= named_leaves("first.samples", self._first[0])
                tensors["first.targets"] = self._first[1]
        return values, tensors

    @classmethod
    def load(
        cls,
        path: str | Path,
        module: nn.Module,
        kernel: Callable[..., Kernel] = EmpiricalNTK,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Loads what `save` wrote; the corrector then goes on as if nothing had happened.

        Args:
            path: What `save` wrote.
            module: The network, as it is to go on from now. With `refresh="never"` only its form
                matters: the weights that the kernel is of come from the file.
            kernel: Makes the kernel from the module, as in the constructor; with a preconditioner,
                `functools.partial(EmpiricalNTK, preconditioner=optimizer)`.
            device: Where the samples go: that of the network.
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
        """The corrector that `to_state` was asked of; the arguments are as in `load`."""
        options = {name: values["options"][name] for name in OPTIONS + LOOP_OPTIONS}
        loaded = cls(module, SGD(**values["learner"]), kernel=kernel, **options)
        loaded.restore(values, tensors)
        return loaded

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Goes on from what `to_state` gave; this corrector must be new, with the same options.

        Use it where the network and the kernel are at hand already; `load` makes a corrector.

        Args:
            values: Plain values.
            tensors: Tensors by name, on the network's device.
        """
        if self._first is not None:
            raise InvalidInputError(
                "this corrector has been used; expected a new one to go on from a state"
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
        self._restore(values, tensors)
        if self._loop is not None:
            state = values["loop"] | part_of(tensors, "loop")
            device = next(self._module.parameters()).device
            self._loop.load_state_dict(state, self._module, device, self._first)

    def _restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._flat, self._numpy = bool(values["flat"]), bool(values["numpy"])
        for i in range(values["tasks"]):
            samples = as_samples(f"samples{i}", from_named(f"samples{i}", tensors))
            targets = as_targets(f"targets{i}", tensors[f"targets{i}"])
            require_shape(f"targets{i}", targets, count(samples), None)
            if self._tasks:
                require_alike(samples, targets, *self._tasks[0])
            self._tasks.append((samples, targets))
        first = part_of(tensors, "first")
        if first:
            none = as_samples("samples", from_named("samples", first))
            self._first = none, require_shape("targets", first["targets"], count(none), None)
        if self._tasks:
            self._first = _no_rows(*self._tasks[0])
            shape = self._tasks[-1][1].shape
            self._targets = require_shape("corrected", tensors["corrected"], *shape)
            require_finite("corrected", self._targets)

    def _checked(self, X: Any, Y: Any) -> tuple[Samples, Tensor]:
        """Samples and targets that fit each other, the network, and those before them."""
        samples, targets = as_samples("X", X), as_targets("Y", Y)
        n = count(samples)
        if n != len(targets) or not n:
            raise InvalidInputError(
                f"X has {n} samples and Y {len(targets)}; expected the same number, at least one"
            )
        if self._first is not None:
            require_alike(samples, targets, *self._first)
        return samples, targets

    def _next(
        self, loop: ClosedLoop, samples: Samples, targets: Tensor, Y: Any
    ) -> tuple[Block, Any]:
        """The next block of the closed loop, and its targets in the caller's form."""
        if count(samples) > self.block_size:
            raise InvalidInputError(
                f"X has {count(samples)} samples, and block_size is {self.block_size}; the closed "
                "loop is fed block by block, with training in between"
            )
        if self._first is None:
            require_outputs(self._module, samples, targets)
        after = loop.fork()  # a block whose correction fails has not been seen
        try:
            after.watch.compare(self._module)
        finally:  # what was said was said
            loop.watch.warned = after.watch.warned
        beside = after.learn(samples, targets)
        block = after.lead(self._module, tangent_kernel(self.kernel, beside), beside)
        Z = give_back(block.targets[:, 0] if np.ndim(Y) == 1 else block.targets, Y, targets.dtype)
        after.settle()
        self._loop, self._first = after, _no_rows(samples, targets)
        return block, Z

    def _given(self) -> Any:
        """The targets as the caller's own: what becomes of them there changes nothing here."""
        assert self._targets is not None
        Z = self._targets.clone()
        like = None if self._numpy else Z
        return give_back(Z[:, 0] if self._flat else Z, like, self._tasks[-1][1].dtype)

    def _compute(self, tasks: list[tuple[Samples, Tensor]]) -> Tensor:
        X = join([samples for samples, _ in tasks])
        if len(tasks) == 1:
            require_outputs(self._module, *tasks[0])
        K = tangent_kernel(self.kernel, X)
        gamma = float(self.gamma)
        Y = torch.cat([targets for _, targets in tasks]).double()
        if self.kind == "iterative":
            Z = iterative_targets(
                K,
                Y,
                self.learner,
                gamma,
                self.block_size,
                self.ridge,
                self.parts,
                self.first_block,
                loss=self.loss,
            )
        elif self.kind == "exact":
            Z = corrected_targets(K, Y, self.learner, gamma, loss=self.loss)
        else:
            Z = distilled_targets(K, Y, gamma, self.block_size)
        n = len(tasks[-1][1])
        Z = Z[-n:]
        require_no_overflow(Z.to(tasks[-1][1].dtype))  # in which it is given back
        self._expect(K[-n:, -n:], Z, tasks[-1][0], len(Y) - n)
        return Z

    def _expect(self, K: Tensor, Z: Tensor, samples: Samples, seen: int) -> None:
        """Notes where the task's last block will be, from here, once the task was trained on."""
        if self._watch is None or self.learner.has_memory:  # whose velocity is not to be seen
            return
        before, last = outputs(self._module, samples), min(self.block_size, len(Z))
        first_step = self.learner.steps(seen)
        after = linear_outputs(K, before, Z, self.learner, first_step, self.loss)[-last:]
        block = mapped(torch.clone, take(samples, slice(-last, None)))
        self._watch.expect(block, before[-last:], after)


def _no_rows(samples: Samples, targets: Tensor) -> tuple[Samples, Tensor]:
    """What samples and targets are like, without any."""
    return take(samples, slice(0, 0)), targets[:0]
