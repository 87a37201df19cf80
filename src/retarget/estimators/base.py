"""What the estimators have in common: parameters, the stream, the function learned."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from retarget.arrays import as_non_negative, as_tensor, panels, require_memory
from retarget.errors import InvalidInputError
from retarget.kernels import RBF, Kernel, Linear, PrecomputedKernel, as_kernel
from retarget.kernels.simple import median_distance
from retarget.learners import SGD
from retarget.streaming.corrector import TargetCorrector
from retarget.streaming.trackers import CorrectionTracker, ShiftTracker
from retarget.theory.losses import check_loss, outputs, steepest_slope
from retarget.theory.offline.aims import as_aim
from retarget.theory.stability import largest_stable_lr

Correction = Literal["none", "exact", "iterative"]

FLOATS = (np.float64, np.float32)
# Kernel entries of queries that are held at a time: 128 MB in float64.
QUERY_ENTRIES = 2**24
# Samples in a block, at least, where block_size is left open.
BLOCK_SAMPLES = 64
# Ridge of a block where it is left open: enough for copies of a sample.
BLOCK_RIDGE = 0.01


class LearnedStream:
    """A stream, as far as it has been learned. A portion that fails leaves it as it was.

    Args:
        tracker: Learns the targets as they are (`ShiftTracker`), targets that make the learner end
            as the offline one (`CorrectionTracker`), or those that lead it there block by block
            (`TargetCorrector`).
    """

    def __init__(self, tracker: ShiftTracker | CorrectionTracker | TargetCorrector) -> None:
        self._tracker = tracker
        self._settled: np.ndarray | None = None  # targets that later samples do not change

    @property
    def samples(self) -> np.ndarray:
        """(n, d) all samples so far."""
        rows: np.ndarray = self._tracker.samples
        return rows

    def learn(self, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Learns more samples.

        Returns:
            The dual coefficients, and the targets that were learned, of all samples so far. What
            is open (a mini-batch, a block) counts as if the stream ended here, and stays open.
        """
        settled = self._settled
        if not isinstance(self._tracker, ShiftTracker):
            _require_room(len(self._tracker), X, Y)
        after = self._tracker.fork()
        if isinstance(after, TargetCorrector):
            settled = _joined(settled, after.correct(X, Y))
            open_targets, coefficients = after.preview()
            targets = _joined(settled, open_targets)
        else:
            after.update(X, Y)
            coefficients = after.coefficients
            if isinstance(after, ShiftTracker):
                targets = settled = _joined(settled, Y)
            else:
                targets = after.corrected_targets
        self._tracker, self._settled = after, settled
        return coefficients, targets


class AllOrNothing(BaseEstimator):
    """An estimator that a call that fails leaves as it was."""

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Whatever fails inside leaves the estimator as it was, the number of features included."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise


class OnlineKernelEstimator(AllOrNothing):
    """A kernel machine trained by one online pass. Use the regressor or the classifier."""

    X_fit_: np.ndarray
    dual_coef_: np.ndarray
    targets_: np.ndarray
    kernel_: Kernel
    learner_: SGD
    lr_: float | Sequence[float]
    width_: float | None
    _stream: LearnedStream

    def __init__(
        self,
        kernel: Any = "rbf",
        *,
        width: float | None = None,
        lr: Any = "auto",
        gamma: float = 1.0,
        batch_size: int = 1,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        reduction: str = "sum",
        correction: str = "none",
        block_size: int | None = None,
        ridge: float | None = None,
        loss: str = "squared",
        aim: str = "all",
    ) -> None:
        self.kernel = kernel
        self.width = width
        self.lr = lr
        self.gamma = gamma
        self.batch_size = batch_size
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay
        self.reduction = reduction
        self.correction = correction
        self.block_size = block_size
        self.ridge = ridge
        self.loss = loss
        self.aim = aim

    def effective_targets(self) -> np.ndarray:
        r"""The targets on which the offline learner would learn the function learned here.

        $Y^e = (\gamma I + K) A$ (Theorem 3.2, Eq. 8); of cross-entropy, $\sigma(K A) + \gamma A$.
        Their difference from the true targets is the shift; with `correction="exact"` there is
        none. Computes the kernel of all pairs of training samples.
        """
        check_is_fitted(self, "dual_coef_")
        gamma = as_non_negative("gamma", self.gamma)
        effective: np.ndarray = gamma * self.dual_coef_ + self._outputs(self._values(self.X_fit_))
        return effective

    @property
    def _has_begun(self) -> bool:
        return "dual_coef_" in vars(self)

    def _learn(self, X: np.ndarray, Y: np.ndarray, restart: bool) -> Self:
        """Takes checked samples and targets as a new stream, or as more of the old one."""
        if restart:
            kernel, learner = self._describe(X, 1 if Y.ndim == 1 else Y.shape[1])
        else:
            kernel, learner = self.kernel_, self.learner_
        stream = self._new_stream(kernel, learner) if restart else self._stream
        coefficients, targets = stream.learn(X, Y)
        self._stream, self.kernel_, self.learner_ = stream, kernel, learner
        self.lr_, self.width_ = learner.lr, kernel.width if isinstance(kernel, RBF) else None
        self.X_fit_, self.dual_coef_, self.targets_ = stream.samples, coefficients, targets
        return self

    def _describe(self, X: np.ndarray, count: int) -> tuple[Kernel, SGD]:
        """The kernel and the learner, once open parameters have been found on the samples."""
        check_loss(self.loss)
        automatic = isinstance(self.lr, str)
        if automatic and self.lr != "auto":
            raise InvalidInputError(
                f"lr is {self.lr!r}; expected 'auto', a rate or one rate a step"
            )
        learner = SGD(
            lr=1.0 if automatic else self.lr,
            batch_size=self.batch_size,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            reduction=self.reduction,  # type: ignore[arg-type]  # checked there
        )
        kernel = self._make_kernel(X)
        if automatic:
            slope = steepest_slope(self.loss, count)  # type: ignore[arg-type]  # checked above
            learner = replace(learner, lr=safe_rate(kernel, X, learner, slope))
        return kernel, learner

    def _make_kernel(self, X: np.ndarray) -> Kernel:
        if isinstance(self.kernel, str) and self.kernel == "rbf":
            return RBF(usual_width(X) if self.width is None else self.width)
        if isinstance(self.kernel, str) and self.kernel == "linear":
            return Linear()
        kernel = as_kernel(self.kernel)
        if isinstance(kernel, PrecomputedKernel):
            raise InvalidInputError(
                "kernel is a precomputed matrix, which knows its own samples only; expected one "
                "that can compare new samples, or use rt.online_coefficients on the matrix"
            )
        return kernel

    def _new_stream(self, kernel: Kernel, learner: SGD) -> LearnedStream:
        if self.correction not in get_args(Correction):
            raise InvalidInputError(
                f"correction is {self.correction!r}; expected one of {get_args(Correction)}"
            )
        if not as_aim(self.aim).is_all and self.correction != "iterative":
            raise InvalidInputError(
                f"aim is {self.aim!r} with correction={self.correction!r}; expected aim='all', or "
                "correction='iterative', which leads to an aim block by block"
            )
        loss: Any = self.loss
        if self.correction == "none":
            return LearnedStream(ShiftTracker(kernel, learner, self.gamma, loss=loss))
        if self.correction == "exact":
            return LearnedStream(CorrectionTracker(kernel, learner, self.gamma, loss=loss))
        size = self.block_size
        if size is None:
            size = -(-BLOCK_SAMPLES // learner.batch_size) * learner.batch_size
        ridge = BLOCK_RIDGE if self.ridge is None else self.ridge
        corrector = TargetCorrector(
            kernel, learner, self.gamma, size, ridge, loss=loss, aim=self.aim
        )
        return LearnedStream(corrector)

    def _queried(self, X: Any) -> np.ndarray:
        """The function learned, at the caller's queries."""
        check_is_fitted(self, "dual_coef_")
        return self._values(validate_data(self, X, reset=False, dtype=self.X_fit_.dtype))

    def _outputs(self, values: np.ndarray) -> np.ndarray:
        """What is compared with targets: of cross-entropy, probabilities."""
        if self.loss == "squared":
            return values
        logits = as_tensor("the logits", values).reshape(len(values), -1)
        probabilities: np.ndarray = outputs(logits, "cross-entropy").reshape(values.shape).numpy()
        return probabilities

    def _values(self, X: np.ndarray) -> np.ndarray:
        rows = max(1, QUERY_ENTRIES // len(self.X_fit_))
        parts = [
            self.kernel_(X[start : start + rows], self.X_fit_) @ self.dual_coef_
            for start in range(0, len(X), rows)
        ]
        return np.concatenate(parts)


def _joined(before: np.ndarray | None, new: np.ndarray) -> np.ndarray:
    """All targets, with as many axes as the first ones (the trackers check their number)."""
    if before is None:
        return new.copy()
    return np.concatenate([before, new.reshape(len(new), *before.shape[1:])])


def _require_room(before: int, X: np.ndarray, Y: np.ndarray) -> None:
    """Refuses samples whose part of the n^2/2 numbers of the factor cannot fit."""
    n = before + len(X)
    require_memory(
        f"the factor of {n} samples",
        (n**2 - before**2) / 2,
        as_tensor("Y", Y),
        "use fewer samples, float32, or correction='none', which keeps no factor",
    )


def usual_width(X: np.ndarray) -> float:
    """The median distance between samples that differ."""
    width = median_distance(as_tensor("X", X))
    if width is None:
        raise InvalidInputError(
            "width=None means the median distance between samples that differ, and with "
            f"n_samples = {len(X)} there is no such pair; give a width, or more samples at first"
        )
    return width


def safe_rate(kernel: Kernel, X: np.ndarray, learner: SGD, slope: float = 1.0) -> float:
    """Half of the largest stable rate, of a loss whose second derivative is at most `slope`.

    It is the rate at which plain SGD learns the steepest mini-batch in one step, and at which no
    step takes it away from a function that fits all samples.
    """
    limit = min(
        _largest_rate(slope * as_tensor("the kernel's result", kernel(X[rows])), learner)
        for rows in panels(len(X), learner.batch_size, torch.device("cpu"))
    )
    # A kernel of zeros learns nothing at any rate.
    return limit / 2 if np.isfinite(limit) else 1.0


def _largest_rate(gram: Tensor, learner: SGD) -> float:
    return largest_stable_lr(lambda batch: gram[batch, batch], learner, len(gram))
