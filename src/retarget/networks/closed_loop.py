r"""Targets that lead a network block by block towards a learner of bounded memory.

The aim $F$ for a block is the prediction of a `TangentLearner` that has learned everything so far.
The block's targets use the network's *present* outputs $f$ and *present* tangent kernel $K$:

    a = (K + rho mean(diag K) I)^-1 (F - f)        Z = f + (I / eta + K^bL) a

where $K^{bL}$ couples a sample to those of earlier mini-batches. After training on $Z$, a network
with this kernel has the outputs $f + K a$. This is feedback: the network is never assumed to be
where the theory predicts. How far it can move before its kernel changes is not known beforehand, so
the damping $\rho$ is adapted as by Levenberg and Marquardt: it is doubled if the last block did not
go as expected, halved if it did, and never falls below the user's value.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from retarget.arrays import give_back, require_no_overflow
from retarget.engine.lesson import Lesson, Past
from retarget.engine.response import has_memory, step_response
from retarget.errors import InvalidInputError
from retarget.kernels import EmpiricalNTK
from retarget.kernels.base import Kernel
from retarget.kernels.empirical.parameters import ParameterChoice, Preconditioner
from retarget.labels import ClassNames, as_classes
from retarget.learners import MOST_SAMPLES, SGD, require_learner
from retarget.networks.base import Corrector, block_of
from retarget.networks.linearization import LinearizationWatch, outputs, tangent_kernel
from retarget.networks.reservoir import Reservoir
from retarget.samples import Samples, count, join, leaves, library_of, mapped, named_leaves, take
from retarget.scalars import as_count, as_positive
from retarget.settings import in_plain_torch
from retarget.state_files import part_of
from retarget.streaming.ridge.tangent import TangentLearner
from retarget.text import as_seed
from retarget.theory.iterative import check_correction

# Relative errors above which steps were too long, and below which they could be longer.
TOO_FAR = 0.5
NEAR = 0.25
MOST_DAMPING = 64.0  # times the user's value


@dataclass(frozen=True)
class ClosedLoopOptions:
    """The options of a `ClosedLoopCorrector`; see there for what they mean."""

    gamma: float | Literal["auto"] = "auto"
    features: int = 512
    block_size: int | Literal["auto"] = "auto"
    replay: int = 300
    damping: float = 1.0
    classes: ClassNames = None
    seed: int = 0

    def checked(self, learner: SGD) -> Self:
        """Returns the options as plain numbers; raises if they do not make sense."""
        require_learner(learner)
        gamma = 1.0 if self.gamma == "auto" else self.gamma
        block_size = block_of(self.block_size, learner)
        check_correction(learner, gamma, block_size, 0.0, "both", "corrected")
        if has_memory(learner):
            raise InvalidInputError(
                "the closed loop needs plain SGD, because the outputs do not show what momentum or "
                "weight decay will still do; use momentum=0 and weight_decay=0, or a "
                "NetworkCorrector"
            )
        return replace(
            self,
            gamma="auto" if self.gamma == "auto" else float(gamma),
            features=as_count("features", self.features),
            block_size=int(block_size),
            replay=as_count("replay", self.replay) if self.replay != 0 else 0,
            damping=as_positive("damping", self.damping),
            classes=as_classes(self.classes),
            seed=as_seed("seed", self.seed),
        )


class ClosedLoopCorrector(Corrector):
    r"""Computes targets that lead a network towards a `TangentLearner`, block by block.

    It keeps sums and `replay` samples. A `TangentLearner`, made from the network at construction,
    learns every sample, and the network should come to predict the same. The targets of each block
    are computed from the network's present outputs and kernel, so a network that has drifted is
    steered back. Call it block by block, each time after training on the previous block:

        for x, y in blocks:
            x, z = corrector.next_block(x, y)  # with replay=0: z = corrector.correct(x, y)
            train(x, z)

    Equally many stored samples are added to each block, with targets of the same kind. With m
    features, a block costs a forward pass, its kernel and $m^3/3$ multiplications. If you can use
    the `TangentLearner` itself, it is the better predictor.

    The loss of the loop must be half the squared error, and its optimizer plain SGD. Each call
    compares the last block's outputs with where they should be. If they are further off than the
    distance that they should have moved, it issues a `LinearizationWarning`, once.

    Args:
        module: The network, with outputs (n, c). It is never changed.
        learner: Describes the optimizer of your loop, without momentum and weight decay.
        gamma: Ridge of the `TangentLearner`; `"auto"` for generalized cross-validation.
        features: Its number of features.
        block_size: The most samples in a block, a multiple of the batch size; `"auto"` for the
            multiple nearest to 20.
        replay: Number of samples stored for `next_block`, drawn uniformly from all so far; 0 for
            none. Without them nothing tells the network what to output for earlier classes.
        damping: $\rho$: a block's coefficients are $(K + \rho\, \overline{K_{ii}} I)^{-1}$ times
            the distance to the aim. It grows up to 64 times this value while the network does not
            follow, and shrinks again when it does.
        kernel: A function that makes the kernel from the module, and from `params=` and
            `preconditioner=` if these are given.
        params: Which parameters the loop trains; as in `NetworkCorrector`.
        preconditioner: The optimizer of the loop, if it is Adam, AdamW or RMSprop, or SGD with
            several rates; as in `NetworkCorrector`.
        classes: The label that each output stands for, if labels are text or not the numbers from
            0 on.
        seed: Seed of the features and of the choice of stored samples.

    Examples:
        >>> network = nn.Linear(2, 1, bias=False).double()
        >>> corrector = ClosedLoopCorrector(network, SGD(0.1), gamma=1.0, features=64, replay=0)
        >>> corrector.correct(torch.eye(2).double(), torch.ones(2, 1).double()).shape
        torch.Size([2, 1])
    """

    options: ClosedLoopOptions
    _watch: LinearizationWatch

    def __init__(
        self,
        module: nn.Module,
        learner: SGD,
        gamma: float | Literal["auto"] = "auto",
        features: int = 512,
        block_size: int | Literal["auto"] = "auto",
        replay: int = 300,
        damping: float = 1.0,
        *,
        kernel: Callable[..., Kernel] = EmpiricalNTK,
        params: ParameterChoice = None,
        preconditioner: Preconditioner = None,
        classes: ClassNames = None,
        seed: int = 0,
    ) -> None:
        options = ClosedLoopOptions(gamma, features, block_size, replay, damping, classes, seed)
        options = options.checked(learner)
        super().__init__(module, learner, options, kernel, params, preconditioner)
        self.replay = options.replay
        self._steps = 0
        self._damping = options.damping
        self._leader = TangentLearner(
            module, options.gamma, options.features, params=self.params, seed=options.seed
        )
        self._stored = StoredSamples(options.replay, options.seed)

    @in_plain_torch
    def correct(self, X: Any, Y: Any) -> Any:
        """Returns targets for the next block, after training on the one before.

        Args:
            X: (n, ...) the block's samples, at most `block_size`.
            Y: (n, c) their true targets; or class labels (n,): whole numbers, or text with
                `classes`.

        Returns:
            Targets with the shape, library and dtype of Y. For labels they are rows (n, c) in the
            network's dtype, in the library of X.
        """
        if self.replay:
            raise InvalidInputError(
                f"with replay={self.replay} stored samples must be trained on too; call "
                "X, Z = next_block(X, Y) instead of correct, or make the corrector with replay=0"
            )
        with self._all_or_nothing() as after:
            return after._led(X, Y)[1]

    @in_plain_torch
    def next_block(self, X: Any, Y: Any) -> tuple[Any, Any]:
        """Returns samples to train on now, and their targets: those given, then stored ones.

        Args:
            X: (n, ...) the block's samples, at most `block_size`.
            Y: (n, c) their true targets, or class labels (n,).

        Returns:
            (m, ...) samples and (m, c) targets; train on them in this order.
        """
        with self._all_or_nothing() as after:
            samples, Z = after._led(X, Y)
            return mapped(lambda leaf: give_back(leaf, library_of(X)), samples), Z

    def _led(self, X: Any, Y: Any) -> tuple[Samples, Any]:
        samples, targets = self._checked(X, Y)
        if len(targets) > self.block_size:
            raise InvalidInputError(
                f"X has {len(targets)} samples, but block_size is {self.block_size}; in the closed "
                "loop, give one block at a time and train on it before the next"
            )
        self._leader = self._leader.fork()
        self._stored = copy.copy(self._stored)
        self._watch.compare(self.module)
        self._leader.learn(samples, targets)
        added = self._stored.draw(count(samples))
        self._stored.offer(samples)
        block = samples if added is None else join([samples, added])
        K = tangent_kernel(self.kernel, block)
        f = outputs(self.module, block)
        aim = self._leader.predict(block).to(f).reshape(f.shape)
        self._damping = self._next_damping(self._watch.last)
        Z, expected = closed_loop_targets(K, f, aim, self.learner, self._damping, self._steps)
        self._watch.expect(block, f, expected)
        given = Z.to(targets.dtype)
        require_no_overflow(given)
        self._steps += self.learner.steps(count(block))
        return block, self._handed_back(given, samples, targets, X, Y)

    def trust(self) -> None:
        """Stops warnings; the comparison continues, because the damping depends on it."""
        self._watch.warned = True

    @property
    def samples(self) -> int:
        """Number of samples for which it has returned targets."""
        return self._leader.samples

    @property
    def nbytes(self) -> int:
        """Bytes kept for the stream."""
        stored = [] if self._stored.samples is None else leaves(self._stored.samples)
        return self._leader.nbytes + sum(int(leaf.nbytes) for leaf in stored)

    def _next_damping(self, error: float | None) -> float:
        """Returns the damping, given how far off the last block was."""
        if error is not None and error > TOO_FAR:
            return min(2 * self._damping, MOST_DAMPING * self.options.damping)
        if error is not None and error < NEAR:
            return max(self._damping / 2, self.options.damping)
        return self._damping

    def _state(self) -> dict[str, Any]:
        values, tensors = self._leader.to_state()
        state = {"steps": self._steps, "damping": self._damping, "leader": values}
        parts = {
            "leader": tensors,
            "watch": self._watch.state_dict(),
            "replay": self._stored.state_dict(),
        }
        for part, entries in parts.items():
            state |= {f"{part}.{name}": value for name, value in entries.items()}
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        tensors = part_of(state, "leader")
        leader = TangentLearner.from_state(state["leader"], tensors, self.module)
        options = [each.to_state()[0]["options"] for each in (self._leader, leader)]
        if options[0] != options[1] or leader.learned.form.flat:  # it is given matrices
            raise InvalidInputError(
                "the options of the saved TangentLearner differ from the corrector's"
            )
        self._leader = leader
        self._steps = int(state["steps"])
        self._damping = float(state["damping"])
        least = self.options.damping
        if not least <= self._damping <= MOST_DAMPING * least:
            raise InvalidInputError(f"damping is {self._damping}; expected {least} or more")
        replay = part_of(state, "replay")
        watch = part_of(state, "watch")
        self._stored.load_state_dict(replay, self._samples_of(replay))
        outputs = self._first[1].shape[1] if self._first is not None else 0
        self._watch.load_state_dict(watch, self._samples_of(watch), outputs)


class StoredSamples(Reservoir):
    """The samples that a reservoir keeps, reproducible by its seed."""

    def __init__(self, capacity: int, seed: int) -> None:
        super().__init__(capacity)
        self.seed = seed
        self.samples: Samples | None = None

    def draw(self, number: int) -> Samples | None:
        """Draws stored samples, each at most once."""
        if self.samples is None:
            return None
        rows = torch.from_numpy(self.drawn_slots(number, self._random(0)))
        return mapped(lambda leaf: leaf[rows.to(leaf.device)], self.samples)

    def offer(self, samples: Samples) -> None:
        """Keeps each sample of a block with the same probability as all earlier ones."""
        if not self.capacity:
            return
        room = self.capacity - len(self)
        random = self._random(1)
        before = take(samples, slice(0, 0)) if self.samples is None else self.samples
        self.samples = join([before, take(samples, slice(0, room))])  # other copies keep the old
        for row in range(count(samples)):
            slot = self.next_slot(random)
            if room <= row and slot < self.capacity:
                for into, leaf in zip(leaves(self.samples), leaves(samples), strict=True):
                    into[slot] = leaf[row]

    def _random(self, use: int) -> np.random.Generator:
        return np.random.default_rng([self.seed % 2**64, self.offered, use])

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and plain values."""
        tensors = {} if self.samples is None else named_leaves("samples", self.samples)
        return {"offered": self.offered} | tensors

    def load_state_dict(self, state: dict[str, Any], samples: Samples | None) -> None:
        """Restores a state with these samples; call it on a new reservoir."""
        self.offered = int(state["offered"])
        self.samples = samples
        stored = 0 if samples is None else count(samples)
        if stored != len(self) or self.offered > MOST_SAMPLES:
            raise InvalidInputError(
                f"offered is {self.offered}, but {stored} samples are stored; expected at most "
                f"{MOST_SAMPLES}, and a stored sample for each while there is room"
            )


def closed_loop_targets(
    K: Tensor, outputs: Tensor, aim: Tensor, learner: SGD, damping: float, first_step: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns targets (m, c) of a block that starts at this step, and the outputs they lead to."""
    damped = K.clone()
    damped.diagonal().add_(damping * K.diagonal().mean())
    a = torch.linalg.solve(damped, aim - outputs)
    lesson = Lesson(0, K, Past(outputs), step_response(learner, first_step, len(K)))
    share = K.new_tensor(lesson.memory.deposit[0, lesson.memory.step_of])
    return lesson.targets(a / share[:, None]), outputs + K @ a
