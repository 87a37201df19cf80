r"""The two loops of a `NetworkCorrector`, and the options that they share.

The open loop keeps all samples and corrects a whole task at once, as the theory does for a stream.

The closed loop guides a network block by block, with a learner of bounded memory. The aim $F$ for a
block is the prediction of a `TangentLearner` that has learned everything so far. The block's
targets use the network's *present* outputs $f$ and *present* tangent kernel $K$ on the block:

    a = (K + rho mean(diag K) I)^-1 (F - f)        Z = f + (I / eta + K^bL) a

where $K^{bL}$ couples a sample to those of earlier mini-batches. After training on $Z$, a network
with this kernel has the outputs $f + K a$. This is feedback: the network is never assumed to be
where the theory predicts. How far it can move before its kernel changes is not known beforehand, so
the damping $\rho$ is adapted as by Levenberg and Marquardt: it is doubled if the last block did not
go as expected, halved if it did, and never falls below the user's value.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from retarget.arrays import as_positive, as_targets, require_finite, require_no_overflow
from retarget.errors import InvalidInputError, LargeTargetsWarning
from retarget.kernels.feature_maps import as_count
from retarget.kernels.simple import Kernel
from retarget.learners import MOST_SAMPLES, SGD
from retarget.networks.linearization import (
    LinearizationWatch,
    linear_outputs,
    outputs,
    tangent_kernel,
)
from retarget.networks.trials import Rehearsal, Trial, checked_trials
from retarget.samples import (
    Samples,
    as_samples,
    count,
    form_of,
    from_named,
    join,
    leaves,
    mapped,
    named_leaves,
    shapes_of,
    take,
)
from retarget.state_files import part_of, require_shape
from retarget.streaming.tangent import TangentLearner
from retarget.theory.dual import Window
from retarget.theory.iterative import (
    FirstBlock,
    Parts,
    check_correction,
    distilled_targets,
    iterative_targets,
)
from retarget.theory.losses import Loss
from retarget.theory.response import step_response
from retarget.theory.tasks import targets_by_task

Refresh = Literal["never", "task", "epoch"]
Kind = Literal["iterative", "exact", "distilled"]
First = tuple[Samples, Tensor]  # zero rows of the first samples and targets: all others must match

# Relative errors above which steps were too long, and below which they could be longer.
TOO_FAR, NEAR = 0.5, 0.25
MOST_DAMPING = 64.0  # times the user's value


@dataclass(frozen=True)
class Options:
    """The options of a `NetworkCorrector`; see there for what they mean."""

    gamma: float | Literal["auto"]
    block_size: int
    refresh: Refresh = "task"
    kind: Kind = "iterative"
    ridge: float = 0.0
    parts: Parts = "both"
    first_block: FirstBlock = "corrected"
    loss: Loss = "squared"
    memory: int | None = None
    replay: int = 0
    damping: float = 1.0
    seed: int = 0

    def checked(self, learner: SGD) -> Self:
        """Returns the options as plain numbers; raises if they do not make sense together."""
        for name, kinds in (("refresh", get_args(Refresh)), ("kind", get_args(Kind))):
            if (given := getattr(self, name)) not in kinds:
                raise InvalidInputError(f"{name} is {given!r}; expected one of {kinds}")
        closed, kind, loss = self.memory is not None, self.kind, self.loss
        iterative = self.ridge, self.parts, self.first_block
        usual = iterative == (0.0, "both", "corrected")
        automatic = self.gamma == "auto"
        gamma = 1.0 if automatic else cast(float, self.gamma)
        gamma, ridge = check_correction(learner, gamma, self.block_size, *iterative, loss)
        if closed:
            as_count("memory", self.memory)
            if self.replay != 0:
                as_count("replay", self.replay)
        for wrong, message in (
            (
                automatic and not closed and kind != "iterative",
                f"gamma is 'auto' with kind={kind!r}; only kind='iterative' is tried on held-out "
                "rows: give gamma as a number, or leave kind out",
            ),
            (
                automatic and not closed and self.ridge != 0,
                f"ridge is {self.ridge} with gamma='auto', which chooses both together; leave "
                "ridge out, or give gamma as a number",
            ),
            (
                kind != "iterative" and not usual,
                "ridge, parts and first_block are options of kind='iterative', but kind is "
                f"{kind!r}; leave them out",
            ),
            (
                kind == "distilled" and loss != "squared",
                f"loss is {loss!r} with kind='distilled'; use loss='squared', because with "
                "cross-entropy the offline predictions are logits and not targets",
            ),
            (
                not closed and self.replay,
                f"replay is {self.replay} without memory; give memory=..., or leave replay out, as "
                "all samples are kept anyway",
            ),
            (
                closed and not (usual and (self.refresh, kind) == ("task", "iterative")),
                "refresh, kind, ridge, parts and first_block are options of the open loop; leave "
                "them out with memory=..., where damping stabilizes the steps",
            ),
            (
                closed and loss != "squared",
                f"loss is {loss!r} with memory={self.memory}, whose TangentLearner solves least "
                "squares; use loss='squared', or leave memory out",
            ),
            (
                closed and learner.has_memory,
                "the closed loop needs plain SGD, because the outputs do not show what momentum or "
                "weight decay will still do; use momentum=0 and weight_decay=0, or leave memory "
                "out",
            ),
        ):
            if wrong:
                raise InvalidInputError(message)
        return replace(
            self,
            gamma="auto" if automatic else gamma,
            block_size=int(self.block_size),
            ridge=ridge,
            damping=as_positive("damping", self.damping),
            seed=int(self.seed),
        )


class OpenLoop:
    """All samples so far, and the targets of the last task.

    Attributes:
        trials: What was tried for the last task, with `gamma="auto"`.
    """

    def __init__(
        self, module: nn.Module, options: Options, rehearsal: Rehearsal | None = None
    ) -> None:
        self.module, self.options, self._rehearsal = module, options, rehearsal
        self.trials: tuple[Trial, ...] = ()
        self.X: Samples = None
        self.Y = self.corrected = torch.empty(0)
        self.sizes: list[int] = []  # of the tasks
        self.watch: LinearizationWatch | None = LinearizationWatch()

    @property
    def samples(self) -> int:
        """Number of samples for which it has returned targets."""
        return len(self.Y)

    @property
    def nbytes(self) -> int:
        """Bytes kept for the stream."""
        return sum(part.nbytes for part in (*leaves(self.X), self.Y)) if self.samples else 0

    def trust(self) -> None:
        """Stops comparing the network with its linearization."""
        self.watch = None

    def correct(
        self, kernel: Kernel, learner: SGD, samples: Samples, targets: Tensor
    ) -> tuple[Samples, Tensor]:
        """Returns a task and its targets; a task whose correction fails is not counted as seen."""
        if self.watch is not None:
            self.watch.compare(self.module)
        # copied, because a caller may reuse its arrays for the next task
        X = join([self.X, samples]) if self.samples else mapped(torch.clone, samples)
        Y = torch.cat([self.Y, targets]) if self.samples else targets.clone()
        sizes, K = [*self.sizes, len(targets)], tangent_kernel(kernel, X)
        trials = self._tried(K, learner, X, Y, sizes)
        self.corrected = self._compute(K, learner, X, Y, sizes, targets.dtype, trials)
        self.X, self.Y, self.sizes, self.trials = X, Y, sizes, trials
        return samples, self.corrected

    def recorrect(self, kernel: Kernel, learner: SGD) -> Tensor:
        """Returns new targets for the last task, before another pass over it."""
        if self.watch is not None:
            self.watch.compare(self.module)
            self.watch.samples = None  # the theory makes no prediction for a second pass
        if not self.samples:
            raise InvalidInputError("there is no task to correct again; call correct first")
        if self.options.refresh == "epoch":
            K, tasks = tangent_kernel(kernel, self.X), (self.X, self.Y, self.sizes)
            dtype = self.corrected.dtype
            self.trials = self.trials or self._tried(K, learner, *tasks)
            self.corrected = self._compute(K, learner, *tasks, dtype, self.trials)
        return self.corrected

    def resume(
        self,
        tasks: Sequence[tuple[Samples, Tensor]],
        corrected: Tensor,
        trials: Sequence[Sequence[Any]],
    ) -> None:
        """Restores tasks, and the targets and trials of the last, without computing them again."""
        self.trials = checked_trials(trials, self._rehearsal is not None)
        self.X = join([samples for samples, _ in tasks])
        self.Y, self.corrected = torch.cat([true for _, true in tasks]), corrected
        self.sizes = [len(true) for _, true in tasks]

    def _tried(
        self, K: Tensor, learner: SGD, X: Samples, Y: Tensor, sizes: list[int]
    ) -> tuple[Trial, ...]:
        """Tries corrections for the last of the tasks, if one is to be chosen."""
        rehearsal = self._rehearsal
        return () if rehearsal is None else rehearsal.trials(K, X, Y, learner, sizes)

    def _compute(
        self,
        K: Tensor,
        learner: SGD,
        X: Samples,
        Y: Tensor,
        sizes: list[int],
        dtype: torch.dtype,
        trials: Sequence[Trial],
    ) -> Tensor:
        """Returns the targets of the last of the tasks, in this dtype."""
        options, Y, size = self.options, Y.double(), self.options.block_size
        task = slice(len(Y) - sizes[-1], None)
        gamma, ridge = options.gamma, options.ridge
        if trials:
            chosen = next(trial for trial in trials if trial.chosen)
            if chosen.gamma is None or chosen.ridge is None:
                if self.watch is not None:
                    self.watch.samples = None  # nothing to compare: the targets are the true ones
                return Y[task].to(dtype)
            gamma, ridge = chosen.gamma, chosen.ridge
        gamma = float(gamma)
        if options.kind == "iterative":
            form: tuple[Any, ...] = ridge, options.parts, options.first_block
            with warnings.catch_warnings():
                if trials:  # large targets that did well on held-out rows
                    warnings.simplefilter("ignore", LargeTargetsWarning)
                Z = iterative_targets(K, Y, learner, gamma, size, *form, loss=options.loss)
        elif options.kind == "exact":
            eps = torch.finfo(next(self.module.parameters()).dtype).eps
            Z = targets_by_task(K, Y, learner, gamma, sizes, options.loss, eps)
        else:
            Z = distilled_targets(K, Y, gamma, size)
        given: Tensor = Z[task].to(dtype)
        require_no_overflow(given)
        if self.watch is not None and not learner.has_memory:  # outputs do not show a velocity
            samples, first_step = take(X, task), sum(map(learner.steps, sizes[:-1]))
            before = outputs(self.module, samples)
            after = linear_outputs(
                K[task, task], before, Z[task], learner, first_step, options.loss
            )
            end = slice(-min(size, sizes[-1]), None)
            self.watch.expect(take(samples, end), before[end], after[end])
        return given

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and plain values."""
        if not self.samples:
            return {}
        held = {"targets": self.Y, "corrected": self.corrected, "sizes": self.sizes}
        return named_leaves("samples", self.X) | held | {"trials": list(map(list, self.trials))}

    def load_state_dict(self, state: dict[str, Any], first: First | None) -> None:
        """Restores a state; call it on a new loop."""
        samples = _samples_of(state, first)
        if samples is None:
            return
        targets = as_targets("targets", state["targets"])
        self.X, self.Y = samples, require_shape("targets", targets, count(samples), None)
        self.sizes = [as_count("sizes", size) for size in state["sizes"]]
        if sum(self.sizes) != self.samples:
            raise InvalidInputError(
                f"the tasks have {sum(self.sizes)} samples, but there are {self.samples} samples"
            )
        shape = self.sizes[-1], self.Y.shape[1]
        self.corrected = require_shape("corrected", state["corrected"], *shape)
        require_finite("corrected", self.corrected)
        self.trials = checked_trials(state["trials"], self._rehearsal is not None)


class Reservoir:
    """A uniform sample of the stream so far (Vitter's algorithm R), reproducible by its seed."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity, self.seed, self.offered = capacity, seed, 0
        self.samples: Samples | None = None

    def __len__(self) -> int:
        return min(self.offered, self.capacity)

    def draw(self, number: int) -> Samples | None:
        """Draws stored samples, each at most once."""
        if self.samples is None:
            return None
        chosen = self._random(0).choice(len(self), min(number, len(self)), replace=False)
        rows = torch.from_numpy(chosen)
        return mapped(lambda leaf: leaf[rows.to(leaf.device)], self.samples)

    def offer(self, samples: Samples) -> None:
        """Keeps each sample of a block with the same probability as all earlier ones."""
        if not self.capacity:
            return
        room, random = self.capacity - len(self), self._random(1)
        before = take(samples, slice(0, 0)) if self.samples is None else self.samples
        self.samples = join([before, take(samples, slice(0, room))])  # other copies keep the old
        self.offered += min(room, count(samples))
        for row in range(room, count(samples)):
            self.offered += 1
            slot = int(random.integers(self.offered))
            if slot < self.capacity:
                for into, leaf in zip(leaves(self.samples), leaves(samples), strict=True):
                    into[slot] = leaf[row]

    def _random(self, use: int) -> np.random.Generator:
        return np.random.default_rng([self.seed % 2**64, self.offered, use])

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and plain values."""
        held = {} if self.samples is None else named_leaves("samples", self.samples)
        return {"offered": self.offered} | held

    def load_state_dict(self, state: dict[str, Any], first: First | None) -> None:
        """Restores a state; call it on a new reservoir."""
        self.offered, self.samples = int(state["offered"]), _samples_of(state, first)
        held = 0 if self.samples is None else count(self.samples)
        if held != len(self) or self.offered > MOST_SAMPLES:
            raise InvalidInputError(
                f"offered is {self.offered}, but {held} samples are stored; expected at most "
                f"{MOST_SAMPLES}, and a stored sample for each while there is room"
            )


class ClosedLoop:
    """The learner whose predictions are the aim, the stored samples, and the expected outputs.

    The learner always uses the tangent features of the network as it is at construction.
    """

    def __init__(self, module: nn.Module, options: Options, params: list[str] | None) -> None:
        self.module, self.options, self.steps = module, options, 0
        self.damping = options.damping
        self.leader = TangentLearner(
            module, options.gamma, options.memory or 0, params=params, seed=options.seed
        )
        self.reservoir = Reservoir(options.replay, options.seed)
        self.watch = LinearizationWatch()

    @property
    def samples(self) -> int:
        """Number of samples for which it has returned targets."""
        return self.leader.samples

    @property
    def nbytes(self) -> int:
        """Bytes kept for the stream."""
        stored = [] if self.reservoir.samples is None else leaves(self.reservoir.samples)
        return self.leader.nbytes + sum(int(leaf.nbytes) for leaf in stored)

    def trust(self) -> None:
        """Stops warnings; the comparison continues, because the damping depends on it."""
        self.watch.warned = True

    def correct(
        self, kernel: Kernel, learner: SGD, samples: Samples, targets: Tensor
    ) -> tuple[Samples, Tensor]:
        """Returns a block, with stored samples added, and its targets towards the aim.

        State changes only at the end: a block whose correction fails is not counted as seen.
        """
        leader, watch, reservoir = (
            self.leader.fork(),
            copy.copy(self.watch),
            copy.copy(self.reservoir),
        )
        try:
            watch.compare(self.module)
        finally:  # a warning that is turned into an error is given only once, too
            self.watch.warned = watch.warned
        leader.learn(samples, targets)
        stored = reservoir.draw(count(samples))
        reservoir.offer(samples)
        block = samples if stored is None else join([samples, stored])
        K, f = tangent_kernel(kernel, block), outputs(self.module, block)
        aim = leader.predict(block).to(f).reshape(f.shape)
        damping = self._next_damping(watch.last)
        Z, expected = closed_loop_targets(K, f, aim, learner, damping, self.steps)
        watch.expect(block, f, expected)
        given = Z.to(targets.dtype)
        require_no_overflow(given)
        self.leader, self.watch, self.reservoir, self.damping = leader, watch, reservoir, damping
        self.steps += learner.steps(count(block))
        return block, given

    def _next_damping(self, error: float | None) -> float:
        """Returns the damping, given how far off the last block was."""
        if error is not None and error > TOO_FAR:
            return min(2 * self.damping, MOST_DAMPING * self.options.damping)
        if error is not None and error < NEAR:
            return max(self.damping / 2, self.options.damping)
        return self.damping

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and plain values."""
        values, tensors = self.leader.to_state()
        state = {"steps": self.steps, "damping": self.damping, "leader": values}
        parts = {
            "leader": tensors,
            "watch": self.watch.state_dict(),
            "replay": self.reservoir.state_dict(),
        }
        return state | {f"{part}.{k}": v for part, held in parts.items() for k, v in held.items()}

    def load_state_dict(self, state: dict[str, Any], first: First | None) -> None:
        """Restores a state, with the learner's weights; call it on a new loop."""
        options = self.leader.gamma, self.leader.features, self.leader.seed
        device = next(self.module.parameters()).device
        tensors = {name: tensor.to(device) for name, tensor in part_of(state, "leader").items()}
        self.leader = TangentLearner.from_state(state["leader"], tensors, self.module)
        same = options == (self.leader.gamma, self.leader.features, self.leader.seed)
        if not same or state["leader"]["flat"] is not False:  # it is given matrices
            raise InvalidInputError("the saved TangentLearner has other options than the corrector")
        self.steps, self.damping = int(state["steps"]), float(state["damping"])
        least = self.options.damping
        if not least <= self.damping <= MOST_DAMPING * least:
            raise InvalidInputError(f"damping is {self.damping}; expected {least} or more")
        self.reservoir.load_state_dict(part_of(state, "replay"), first)
        watch = part_of(state, "watch")
        outputs = first[1].shape[1] if first is not None else 0
        self.watch.load_state_dict(watch, _samples_of(watch, first), outputs)


def closed_loop_targets(
    K: Tensor, outputs: Tensor, aim: Tensor, learner: SGD, damping: float, first_step: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns targets (m, c) of a block that starts at this step, and the outputs they lead to."""
    damped = K.clone()
    damped.diagonal().add_(damping * K.diagonal().mean())
    a = torch.linalg.solve(damped, aim - outputs)
    window = Window(0, K, (outputs,), step_response(learner, first_step, len(K)))
    share = K.new_tensor(window.memory.deposit[0, window.memory.step_of])
    return window.targets(a / share[:, None]), outputs + K @ a


def _samples_of(state: dict[str, Any], first: First | None) -> Samples | None:
    """Returns the samples of a state, if it has any; they must match the first ones."""
    found = from_named("samples", state)
    if found is None:
        return None
    # copied to get the memory alignment of samples that were never saved: same bits in results
    samples = mapped(torch.clone, as_samples("samples", found))
    if first is None or form_of(samples) != form_of(first[0]):
        raise InvalidInputError(
            f"samples have shape {shapes_of(samples)}; expected the shape of the first samples"
        )
    return samples
