"""The iterative correction of a stream while it arrives (Proposition 4.2)."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from retarget.arrays import shallow
from retarget.engine.followers import Parts
from retarget.engine.losses import Loss
from retarget.engine.offline.recent import as_aim
from retarget.engine.stream import FirstBlock, SampleStream
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.scalars import as_count
from retarget.settings import in_plain_torch
from retarget.state_files import require_shape
from retarget.streaming.intake import BoundedIntake, Intake, Resumable
from retarget.streaming.turns import in_turn
from retarget.text import as_seed
from retarget.theory.iterative import FeatureSweep, Sweep, check_correction


class TargetCorrector(Resumable):
    r"""Corrects the targets of a stream while it arrives.

    Use it if samples arrive in portions and the online learner trains on each portion at once; for
    a whole stream, use `iterative_targets`. In a river pipeline it would be a transformer of the
    targets instead of the features. `correct` and `flush` together return what `iterative_targets`
    returns on the whole stream, however it is split. It keeps the samples and the Cholesky factor
    of the stream so far: $n^2/2$ numbers, and $O(n^2)$ work a sample. A call that fails changes
    nothing.

    With `features=m` it keeps no past samples, for an endless stream: it uses m features instead of
    the kernel and follows the offline learner by recursive least squares. That takes $m^2$ numbers,
    $O(m^2)$ work a sample and $O(m^3)$ a portion (256 samples, or a block). `Linear` and `Features`
    have exact features, so the targets are the same. For `RBF` (random Fourier features) and
    `EmpiricalNTK` (a sketch of the network as it is now) the features are approximate, and
    `feature_error` says how good they are.

    Args:
        kernel: A retarget kernel; a function `k(A, B)`; the name of a scikit-learn kernel; or a
            precomputed Gram matrix (samples are then its row numbers).
        learner: The online learner that will be trained on the targets.
        gamma: Ridge of the offline learner, 0 or more.
        block_size: Samples whose targets are found together, a multiple of the batch size.
        ridge: $\gamma_o$ of Eq. 15, for blocks whose kernel is nearly singular.
        parts: `"both"`, or one half of Eq. 16 alone: `"online"` or `"offline"`.
        first_block: `"plain"` leaves the first block's targets as they are.
        features: Number of features; the maximum, if the kernel has exact ones. None keeps the
            whole stream. It needs a `gamma` above 0 and the squared error.
        seed: Seed of the random features.
        loss: The loss of both learners: `"squared"` or `"cross-entropy"` (softmax for several
            outputs, logistic for one); see `iterative_targets`.
        aim: Which samples the offline learner counts: `"all"`; `"window:500"`, the 500 newest; or
            `"discount:0.999"`, where each newer sample multiplies a sample's weight by 0.999. Use
            the last two for streams that drift. The N samples whose weight is above rounding take
            $N^3/3$ multiplications a block and $N^2$ numbers; with `features=m`, $m^3/3$ and $N m$,
            or $m^2$ for a discount.

    Examples:
        Samples that have nothing in common: with $\gamma = 1$ the offline prediction is half of
        each target, which a step at the rate 1/4 reaches from twice the target.

        >>> import numpy as np, retarget as rt
        >>> X, Y = np.eye(3), np.array([1.0, 3.0, 5.0])
        >>> corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.25), gamma=1.0, block_size=2)
        >>> corrector.correct(X[:1], Y[:1])  # its block is not complete yet
        array([], dtype=float64)
        >>> corrector.correct(X[1:], Y[1:])
        array([2., 6.])
        >>> corrector.flush()  # closes the block of the third sample
        array([10.])
    """

    OPTIONS: ClassVar = (
        *("gamma", "block_size", "ridge", "parts", "first_block"),
        *("features", "seed", "loss", "aim"),
    )

    def __init__(
        self,
        kernel: Any,
        learner: SGD,
        gamma: float,
        block_size: int,
        ridge: float = 0.0,
        *,
        parts: Parts = "both",
        first_block: FirstBlock = "corrected",
        features: int | None = None,
        seed: int = 0,
        loss: Loss = "squared",
        aim: str = "all",
    ) -> None:
        gamma, ridge = check_correction(learner, gamma, block_size, ridge, parts, first_block, loss)
        self.learner = learner
        self.gamma = gamma
        self.block_size = int(block_size)
        self.ridge = ridge
        self.parts = parts
        self.first_block = first_block
        self.loss = loss
        self.features = None if features is None else as_count("features", features)
        self.seed = as_seed("seed", seed)
        self.aim = aim
        counted = as_aim(aim)
        if loss != "squared" and not counted.is_all:
            raise InvalidInputError(
                f"aim is {aim!r} with loss={loss!r}; expected aim='all', or loss='squared'"
            )
        self._sweep: Sweep
        if self.features is None:
            self._intake = Intake(kernel, learner, loss)
            gram = self._intake.gram
            self._sweep = Sweep(
                learner, gamma, ridge, parts, first_block, gram, 0, True, loss, counted
            )
        else:
            _require_sums(gamma, parts, loss)
            self._intake = BoundedIntake(kernel, learner, self.features, self.seed)
            self._sweep = FeatureSweep(learner, gamma, ridge, parts, first_block, counted)
        # (m, 2, c) targets and starting values of the samples in the open block
        self._waiting: Tensor | None = None

    @property
    @in_turn
    def waiting(self) -> int:
        """Number of samples whose block is not complete yet."""
        return len(self._intake) - len(self._sweep)

    @property
    def feature_error(self) -> float:
        r"""How far the features are from the kernel: $\|\Phi\Phi^\top - K\| / \|K\|$.

        Frobenius norms over the stream so far, from the first 32 samples of each portion that was
        corrected. 0 if the features are exact or not used (`features=None`); NaN until two samples
        have been corrected together.
        """
        return self._intake.feature_error if isinstance(self._intake, BoundedIntake) else 0.0

    @property
    def samples(self) -> Any:
        """All samples so far, in stream order: a view, so do not write to it."""
        if self.features is not None:
            raise InvalidInputError(
                f"samples are not kept with features={self.features}; keep them yourself, or leave "
                "features out"
            )
        return super().samples

    @in_turn
    @in_plain_torch
    def correct(self, X: Any, Y: Any, *, initial: Any = None) -> Any:
        """Adds any number of samples and returns the targets that are ready.

        Args:
            X: (m, ...) samples.
            Y: (m,) or (m, c) their true targets.
            initial: Values of the starting function on them, if it is not zero.

        Returns:
            The targets of every sample whose block is now complete, in stream order. There may be
            none, or more than the samples just given.
        """
        after = self.fork()
        new = torch.stack(after._intake.take(X, Y, initial), dim=1)
        if new.shape[0]:
            before = self._waiting
            after._waiting = torch.cat([before, new]) if before is not None and len(before) else new
        waiting = len(after._intake) - len(after._sweep)
        targets = after._correct(waiting - waiting % self.block_size)
        self._become(after)
        return targets

    @in_turn
    @in_plain_torch
    def flush(self) -> Any:
        """Closes the open block before it is full, and returns its targets.

        The stream may continue: the next sample then starts a new block and a new mini-batch.
        """
        after = self.fork()
        targets = after._correct(self.waiting)
        self._become(after)
        return targets

    @in_turn
    @in_plain_torch
    def preview(self) -> tuple[Any, Any]:
        """Returns what `flush` would return now, and the learner's dual coefficients after it.

        The open block stays open. The coefficients are those of the learner that is trained on the
        corrected targets; with `features`, its weights are returned instead, one row a feature.
        """
        if self._waiting is None:
            raise InvalidInputError("there are no samples yet; call correct(X, Y) first")
        ended = self.fork()
        targets = ended._correct(self.waiting)
        return targets, self._intake.give(ended._sweep.coefficients.clone())

    def _correct(self, count: int) -> Any:
        if self._waiting is None:
            return self._intake.give(torch.empty(0, max(1, self._intake.outputs), device="cpu"))
        first = len(self._sweep)
        targets, starts = self._waiting.unbind(1)
        stream = SampleStream(
            self._intake.seen, targets, starts if self._intake.has_start else None, first
        )
        corrected = []
        for window in stream.windows(self.block_size, self.first_block, stop=first + count):
            corrected.append(self._sweep.learn(window).targets)
            self._sweep.warn_once()
        if not corrected:
            return self._intake.give(targets[:0])
        # a copy, since a view would keep the whole portion in memory
        self._waiting = self._waiting[count:].clone()
        self._intake.release(first + count)
        return self._intake.give(torch.cat(corrected))  # a copy: see `Sweep.learn`

    @in_turn
    def fork(self) -> Self:
        """Returns an independent copy that continues from here."""
        fork = shallow(self)
        fork._intake = self._intake.fork()
        fork._sweep = self._sweep.fork(fork._intake.gram)
        return fork

    def _parts(self) -> dict[str, Any]:
        return {"intake": self._intake, "sweep": self._sweep}

    def _rest(self) -> dict[str, Any]:
        return {} if self._waiting is None else {"waiting": self._waiting}

    def _restore(self, state: dict[str, Any]) -> None:
        if len(self._sweep) > len(self):
            raise InvalidInputError(
                f"it counts {len(self._sweep)} of {len(self)} samples as corrected"
            )
        if len(self):
            outputs = self._intake.outputs
            self._waiting = require_shape("waiting", state["waiting"], self.waiting, 2, outputs)
        if len(self._sweep):
            rows = len(self._sweep)
            if isinstance(self._intake, BoundedIntake):
                rows = self._intake.features
                if self._intake.released != len(self._sweep):
                    raise InvalidInputError(f"{self._intake.released} samples are released")
            require_shape("coefficients", self._sweep.coefficients, rows, outputs)


def _require_sums(gamma: float, parts: Parts, loss: Loss) -> None:
    """Raises if sums over the past do not determine the offline learner."""
    if loss != "squared":
        raise InvalidInputError(
            f"features=... with loss={loss!r}, which needs every sample; expected loss='squared', "
            "or features=None"
        )
    if gamma == 0 and parts != "online":
        raise InvalidInputError(
            "gamma is 0 with features=..., where recursive least squares needs one above 0; use a "
            "small gamma, or leave features out"
        )
