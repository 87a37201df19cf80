"""Corrected targets for a network, for a training loop of one's own."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from retarget.arrays import (
    as_targets,
    as_tensor,
    give_back,
    require_finite,
    require_float,
    require_no_overflow,
)
from retarget.errors import InvalidInputError, TrainingDivergedError
from retarget.kernels import EmpiricalNTK
from retarget.kernels.base import Kernel
from retarget.learners import SGD
from retarget.state_files import explained, part_of, read_state, require_shape, write_state
from retarget.theory.correction import corrected_targets
from retarget.theory.iterative import check_correction, distilled_targets, iterative_targets
from retarget.theory.sweep import FirstBlock, Parts

Refresh = Literal["never", "task", "epoch"]
Kind = Literal["iterative", "exact", "distilled"]
# What the constructor takes besides the network, the learner and the kernel.
OPTIONS = ("gamma", "block_size", "refresh", "kind", "ridge", "parts", "first_block")


class NetworkCorrector:
    """Targets to train a network on, task by task, instead of the true ones.

    Use it in a PyTorch training loop of your own, as a function from labels to targets before each
    task; `continual.Corrected` is the same inside `continual.train`. The network is taken for a
    kernel machine with its tangent kernel as it is when a task begins, and as having started
    from zero; all samples seen so far are the stream. They are kept: memory grows with the
    stream, and the kernel with its square. The stream is taken to be trained on in full mini-
    batches: let the batch size divide the tasks, and the block size too where the targets of
    earlier tasks are to have no part in those of a later task's first block. Samples that the
    network does not respond to (all units of a layer silent) have no part in others' targets.

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
        ridge: Of the iterative kind, as are `parts` and `first_block`: see `iterative_targets`.
        parts: Both halves of the correction, or one.
        first_block: Whether the first block is corrected too.
        kernel: Makes the kernel from the module.

    Example:
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
        gamma: float,
        block_size: int,
        *,
        refresh: Refresh = "task",
        kind: Kind = "iterative",
        ridge: float = 0.0,
        parts: Parts = "both",
        first_block: FirstBlock = "corrected",
        kernel: Callable[[nn.Module], Kernel] = EmpiricalNTK,
    ) -> None:
        self.gamma, self.ridge = check_options(
            learner,
            gamma,
            block_size,
            refresh=refresh,
            kind=kind,
            ridge=ridge,
            parts=parts,
            first_block=first_block,
        )
        self.learner, self.block_size, self.kind = learner, block_size, kind
        self.parts, self.first_block, self.refresh = parts, first_block, refresh
        self._module = copy.deepcopy(module) if refresh == "never" else module
        self.kernel = kernel(self._module)
        self._tasks: list[tuple[Tensor, Tensor]] = []
        self._targets: Tensor | None = None
        self._flat = self._numpy = False  # how the caller gave Y

    def correct(self, X: Any, Y: Any) -> Any:
        """Targets for the samples of the next task, in the order in which they will be trained on.

        Args:
            X: (n, ...) samples, as the network takes them.
            Y: (n, c) true targets: one-hot, for classes.

        Returns:
            Targets of the shape, the library and the dtype of Y.
        """
        samples, targets = as_tensor("X", X), as_targets("Y", Y)
        require_float("X", samples, "convert the samples first")
        if len(samples) != len(targets) or not len(samples):
            raise InvalidInputError(
                f"X has {len(samples)} samples and Y {len(targets)}; expected the same number, at "
                "least one"
            )
        if self._tasks:
            _require_alike(samples, targets, *self._tasks[0])
        # a copy, because a caller may fill its arrays with the next task
        tasks = [*self._tasks, (samples.clone(), targets.clone())]
        # a task whose correction fails has not been seen
        corrected, flat, numpy = self._compute(tasks), np.ndim(Y) == 1, not isinstance(Y, Tensor)
        self._targets, self._tasks, self._flat, self._numpy = corrected, tasks, flat, numpy
        return self._given()

    def recorrect(self) -> Any:
        """Targets for the same samples again, before another epoch over them."""
        if not self._tasks:
            raise InvalidInputError("there is no task to correct again; call correct first")
        if self.refresh == "epoch":
            self._targets = self._compute(self._tasks)
        return self._given()

    def resume(self, tasks: Sequence[tuple[Tensor, Tensor]], targets: Tensor) -> None:
        """Goes on where another corrector was, without its computations.

        Args:
            tasks: The samples and true targets of each task that it has corrected.
            targets: What it gave for the last of them.
        """
        self._tasks = [(samples.clone(), true.clone()) for samples, true in tasks]
        self._targets = targets.double()

    def save(self, path: str | Path) -> None:
        """Writes the whole state to one file, which replaces an older one only when complete.

        It holds the samples and targets of all tasks, and with `refresh="never"` the weights of the
        network that the kernel is of. Otherwise the network's weights are yours to save: the
        corrector only looks at it. Loading the file runs no code.
        """
        values = {
            "class": type(self).__name__,
            "options": {name: getattr(self, name) for name in OPTIONS},
            "learner": self.learner.to_dict(),
            "tasks": len(self._tasks),
            "flat": self._flat,
            "numpy": self._numpy,
        }
        tensors: dict[str, Tensor] = {}
        for i, (samples, targets) in enumerate(self._tasks):
            tensors |= {f"samples{i}": samples, f"targets{i}": targets}
        if self._targets is not None:
            tensors["corrected"] = self._targets
        if self.refresh == "never":
            tensors |= {f"network.{k}": v for k, v in self._module.state_dict().items()}
        write_state(Path(path), values, tensors)

    @classmethod
    def load(
        cls,
        path: str | Path,
        module: nn.Module,
        kernel: Callable[[nn.Module], Kernel] = EmpiricalNTK,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Loads what `save` wrote; the corrector then goes on as if nothing had happened.

        Args:
            path: What `save` wrote.
            module: The network, as it is to go on from now. With `refresh="never"` only its form
                matters: the weights that the kernel is of come from the file.
            kernel: Makes the kernel from the module, as in the constructor.
            device: Where the samples go: that of the network.
        """
        values, tensors = read_state(Path(path), device, cls.__name__)
        with explained(path, cls.__name__):
            options = {name: values["options"][name] for name in OPTIONS}
            if options["refresh"] == "never":
                module = copy.deepcopy(module)
                module.load_state_dict(part_of(tensors, "network"))
            loaded = cls(module, SGD(**values["learner"]), kernel=kernel, **options)
            loaded._restore(values, tensors)
        return loaded

    def _restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._flat, self._numpy = bool(values["flat"]), bool(values["numpy"])
        for i in range(values["tasks"]):
            samples, targets = tensors[f"samples{i}"], tensors[f"targets{i}"]
            require_finite(f"samples{i}", samples)
            require_shape(f"targets{i}", as_targets(f"targets{i}", targets), len(samples), None)
            if self._tasks:
                _require_alike(samples, targets, *self._tasks[0])
            self._tasks.append((samples, targets))
        if self._tasks:
            shape = self._tasks[-1][1].shape
            self._targets = require_shape("corrected", tensors["corrected"], *shape)
            require_finite("corrected", self._targets)

    def _given(self) -> Any:
        """The targets as the caller's own: what becomes of them there changes nothing here."""
        assert self._targets is not None
        Z = self._targets.clone()
        like = None if self._numpy else Z
        return give_back(Z[:, 0] if self._flat else Z, like, self._tasks[-1][1].dtype)

    def _compute(self, tasks: list[tuple[Tensor, Tensor]]) -> Tensor:
        X = torch.cat([samples for samples, _ in tasks])
        # The correction in double precision whatever the network's: it solves nearly singular
        # systems of the kernels of blocks.
        K = self.kernel(X).double()
        if not K.isfinite().all():
            raise TrainingDivergedError(
                "the network's kernel is not finite: its weights, or products of them, overflowed; "
                "use a smaller rate, or a larger gamma or ridge",
                step=0,
                members=(0,),
            )
        if len(tasks) == 1:
            _require_outputs(self._module, *tasks[0])
        K = _with_unheard_apart(K)
        Y = torch.cat([targets for _, targets in tasks]).double()
        if self.kind == "iterative":
            Z = iterative_targets(
                K,
                Y,
                self.learner,
                self.gamma,
                self.block_size,
                self.ridge,
                self.parts,
                self.first_block,
            )
        elif self.kind == "exact":
            Z = corrected_targets(K, Y, self.learner, self.gamma)
        else:
            Z = distilled_targets(K, Y, self.gamma, self.block_size)
        Z = Z[-len(tasks[-1][0]) :]
        require_no_overflow(Z.to(tasks[-1][1].dtype))  # in which it is given back
        return Z


def _require_outputs(module: nn.Module, samples: Tensor, targets: Tensor) -> None:
    """Refuses targets that are not one for each output of the network."""
    # stand-ins for the buffers: a forward pass may change them
    weights = {name: value.detach() for name, value in module.named_parameters()}
    weights |= {name: value.clone() for name, value in module.named_buffers()}
    like = next(iter(weights.values()), samples)
    with torch.no_grad():
        outputs = functional_call(module, weights, (samples[:1].to(like),))
    if outputs.shape[1:].numel() != targets.shape[1]:
        raise InvalidInputError(
            f"Y has {targets.shape[1]} columns, but the network has "
            f"{outputs.shape[1:].numel()} outputs; expected one target for each output"
        )


def _with_unheard_apart(K: Tensor) -> Tensor:
    """The kernel, with samples that the network does not respond to set apart.

    Where all units of a ReLU layer are silent for a sample, its gradient is zero, and so is its row
    of K: the network can learn nothing from it, and the kernel of its block is singular. With any
    positive number on the diagonal it is a sample unlike all others, and they are corrected as if
    it were not there.
    """
    unheard = K.diagonal() == 0
    if unheard.all():
        raise TrainingDivergedError(
            "the network's gradients are zero for every sample: its units have died; use a smaller "
            "rate, or a larger gamma or ridge",
            step=0,
            members=(0,),
        )
    if unheard.any():
        K = K.clone()  # it may be the caller's own
        K.diagonal()[unheard] = K.diagonal()[~unheard].mean()
    return K


def check_options(
    learner: SGD,
    gamma: float,
    block_size: int,
    *,
    refresh: Refresh = "task",
    kind: Kind = "iterative",
    ridge: float = 0.0,
    parts: Parts = "both",
    first_block: FirstBlock = "corrected",
) -> tuple[float, float]:
    """Refuses options of `NetworkCorrector` that have no meaning; returns gamma and ridge."""
    if refresh not in get_args(Refresh):
        raise InvalidInputError(f"refresh is {refresh!r}; expected one of {get_args(Refresh)}")
    if kind not in get_args(Kind):
        raise InvalidInputError(f"kind is {kind!r}; expected one of {get_args(Kind)}")
    if kind != "iterative" and (ridge, parts, first_block) != (0.0, "both", "corrected"):
        raise InvalidInputError(
            f"ridge, parts and first_block are options of kind='iterative', but kind is {kind!r}; "
            "leave them out"
        )
    return check_correction(learner, gamma, block_size, ridge, parts, first_block)


def _require_alike(samples: Tensor, targets: Tensor, X: Tensor, Y: Tensor) -> None:
    """Refuses a task that does not fit the first one."""
    got = tuple(samples.shape[1:]), targets.shape[1], samples.dtype, samples.device
    expected = tuple(X.shape[1:]), Y.shape[1], X.dtype, X.device
    if got != expected:
        raise InvalidInputError(
            f"this task has samples of shape {got[0]}, {got[1]} targets, {got[2]}, on {got[3]}; "
            f"the first one {expected[0]}, {expected[1]}, {expected[2]}, on {expected[3]}"
        )
