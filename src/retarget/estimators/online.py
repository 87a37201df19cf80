"""Online kernel regression and classification, as scikit-learn estimators."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, cast, get_args

import numpy as np
import torch
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from retarget.arrays import as_tensor, panels, require_memory
from retarget.engine.losses import Loss, check_loss, outputs, steepest_slope
from retarget.engine.offline.recent import as_aim
from retarget.engine.stability import largest_stable_lr
from retarget.errors import InvalidInputError, own_constructor
from retarget.estimators.base import StreamClassifier, StreamEstimator, StreamRegressor
from retarget.kernels import Kernel
from retarget.kernels.lookup import as_kernel, takes_width
from retarget.learners import SGD
from retarget.scalars import as_non_negative
from retarget.streaming.corrector import TargetCorrector
from retarget.streaming.trackers import CorrectionTracker, ShiftTracker

CorrectionName = Literal["none", "exact", "iterative"]
Tracker = ShiftTracker | CorrectionTracker | TargetCorrector

# Kernel entries of queries in memory at a time: 128 MB in float64.
QUERY_ENTRIES = 2**24
# The smallest number of samples in a block if block_size is "auto".
BLOCK_SAMPLES = 64


class OnlineKernelEstimator(StreamEstimator):
    """A kernel machine trained by one online pass. Use the regressor or the classifier."""

    FITTED = "dual_coef_"
    dual_coef_: np.ndarray
    _tracker: Tracker
    _settled: np.ndarray | None  # targets that will not change with later samples

    def __init__(
        self,
        kernel: Any = "rbf",
        *,
        width: float | Literal["auto"] = "auto",
        lr: Any = "stable",
        gamma: float = 1.0,
        batch_size: int = 1,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        reduction: str | None = None,
        correction: str = "none",
        block_size: int | Literal["auto"] = "auto",
        ridge: float = 0.01,
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

    def fit(self, X: Any, y: Any) -> Self:
        """Learns a stream from the beginning.

        Args:
            X: (n, d) samples, in stream order.
            y: (n,) labels for a classifier; (n,) or (n, c) targets for a regressor.
        """
        return self._take(X, y, restart=True)

    def effective_targets(self) -> np.ndarray:
        r"""Returns the targets from which the offline learner would learn the same function.

        $Y^e = (\gamma I + K) A$ (Theorem 3.2, Eq. 8); for cross-entropy, $\sigma(K A) + \gamma A$.
        Their difference from the true targets is the shift, which is zero with
        `correction="exact"`. This computes the kernel of all pairs of training samples.
        """
        check_is_fitted(self, self.FITTED)
        gamma = as_non_negative("gamma", self.gamma)
        now = self._now()
        effective: np.ndarray = gamma * now.dual_coef_ + now._outputs(now._values(now.X_fit_))
        return effective

    def _learn(self, X: np.ndarray, Y: np.ndarray, restart: bool) -> None:
        """An open mini-batch or block counts as if the stream ended here, and stays open."""
        if restart:
            kernel, learner = self._describe(X, 1 if Y.ndim == 1 else Y.shape[1])
            tracker = self._new_tracker(kernel, learner)
            settled = None
            self.kernel_ = kernel
            self.learner_ = learner
            self.lr_ = learner.lr
            self.width_ = getattr(kernel, "width", None)
        else:
            tracker = self._tracker.fork()
            settled = self._settled
        if not isinstance(tracker, ShiftTracker):  # does the new part of the factor fit?
            before = len(tracker)
            n = len(tracker) + len(X)
            instead = "use fewer samples, float32, or correction='none', which keeps no factor"
            numbers = (n**2 - before**2) / 2
            require_memory(f"the factor of {n} samples", numbers, as_tensor("Y", Y), instead)
        if isinstance(tracker, TargetCorrector):
            settled = _joined(settled, tracker.correct(X, Y))
            open_targets, self.dual_coef_ = tracker.preview()
            self.targets_ = _joined(settled, open_targets)
        else:
            tracker.update(X, Y)
            self.dual_coef_ = tracker.coefficients
            if isinstance(tracker, ShiftTracker):
                self.targets_ = settled = _joined(settled, Y)
            else:
                self.targets_ = tracker.corrected_targets
        self._tracker = tracker
        self._settled = settled
        self.X_fit_ = tracker.samples

    def _describe(self, X: np.ndarray, count: int) -> tuple[Kernel, SGD]:
        """Returns the kernel and the learner, with automatic parameters set from the samples."""
        check_loss(self.loss)
        automatic = isinstance(self.lr, str)
        if automatic and self.lr != "stable":
            raise InvalidInputError(f"lr is {self.lr!r}; expected 'stable', one rate or a schedule")
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
            learner = replace(learner, lr=_safe_rate(kernel, X, learner, slope))
        return kernel, learner

    def _make_kernel(self, X: np.ndarray) -> Kernel:
        kernel: Kernel
        if takes_width(self.kernel):
            if self.width == "auto":
                _require_distances(X)
            kernel = as_kernel(self.kernel, self.width, as_tensor("X", X))
        else:
            kernel = as_kernel(self.kernel)
        if not kernel.takes_new_samples:
            raise InvalidInputError(
                "kernel is a precomputed matrix, which cannot compare new samples; give a kernel "
                "function, or use rt.online_coefficients on the matrix"
            )
        return kernel

    def _new_tracker(self, kernel: Kernel, learner: SGD) -> Tracker:
        """Returns the tracker for the chosen correction."""
        correction = self.correction
        gamma = self.gamma
        loss = cast("Loss", self.loss)
        if correction not in get_args(CorrectionName):
            expected = get_args(CorrectionName)
            raise InvalidInputError(f"correction is {correction!r}; expected one of {expected}")
        if not as_aim(self.aim).is_all and correction != "iterative":
            raise InvalidInputError(
                f"aim is {self.aim!r} with correction={correction!r}; use aim='all', or "
                "correction='iterative'"
            )
        if correction == "none":
            return ShiftTracker(kernel, learner, gamma, loss=loss)
        if correction == "exact":
            return CorrectionTracker(kernel, learner, gamma, loss=loss)
        size = self.block_size
        if size == "auto":
            size = -(-BLOCK_SAMPLES // learner.batch_size) * learner.batch_size
        return TargetCorrector(kernel, learner, gamma, size, self.ridge, loss=loss, aim=self.aim)

    def _queried(self, X: Any) -> np.ndarray:
        """Returns the learned function's values at the caller's samples."""
        check_is_fitted(self, self.FITTED)
        return self._values(validate_data(self, X, reset=False, dtype=self.X_fit_.dtype))

    def _outputs(self, values: np.ndarray) -> np.ndarray:
        """Returns what is compared with targets: for cross-entropy, probabilities."""
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
    """Joins targets, with as many axes as the first ones (the trackers check their number)."""
    if before is None:
        return new.copy()
    return np.concatenate([before, new.reshape(len(new), *before.shape[1:])])


def _require_distances(X: np.ndarray) -> None:
    """Raises if no two samples differ."""
    if (X[:1] == X).all():
        raise InvalidInputError(
            "width='auto' means the median distance between samples that differ, but with "
            f"n_samples = {len(X)} there is no such pair; give a width, or more samples at first"
        )


def _safe_rate(kernel: Kernel, X: np.ndarray, learner: SGD, slope: float) -> float:
    """Returns half the largest stable rate, for a loss with second derivative at most `slope`.

    At this rate plain SGD learns the steepest mini-batch in one step, and no step moves it away
    from a function that fits all samples.
    """

    def batch_gram(gram: Tensor, batch: slice) -> Tensor:
        return gram[batch, batch]

    limits = []
    for rows in panels(len(X), learner.batch_size, torch.device("cpu")):
        gram = slope * as_tensor("the kernel's result", kernel(X[rows]))
        limits.append(largest_stable_lr(partial(batch_gram, gram), learner, len(gram)))
    # A kernel of zeros learns nothing at any rate.
    return min(limits) / 2 if np.isfinite(min(limits)) else 1.0


@own_constructor
class OnlineKernelRegressor(StreamRegressor, OnlineKernelEstimator):
    r"""Kernel regression trained by one pass of SGD over the samples, in the given order.

    Use it to put an online learner, corrected or not, into a scikit-learn pipeline or search. Like
    `sklearn.linear_model.SGDRegressor` it has `partial_fit`; with `correction="exact"` it predicts
    the same as `sklearn.kernel_ridge.KernelRidge(alpha=gamma)` with the same kernel. The function
    starts at zero, so center targets that are far from zero.

    Time grows as $n^2$. `correction="none"` keeps the samples; the other corrections also keep
    $n^2/2$ numbers and take $n^3/3$ multiplications; if these do not fit in memory, they raise
    `StreamTooLargeError` before any work is done.

    Args:
        kernel: A name: `"rbf"`, `"laplace"`, `"matern32"`, `"matern52"`, `"linear"`, `"affine"`,
            that of a kernel of your own or of another scikit-learn kernel; a retarget kernel; or a
            function `k(A, B)`.
        width: Width of a kernel that is named and has one. `"auto"` uses the median distance
            between samples that differ, among at most 1,000 evenly spaced ones.
        lr: The learning rate; a schedule with one rate per step; or `"stable"` for half the largest
            rate at which the learner is stable on a stream in random order. For the "rbf" kernel
            with single samples and no momentum that is 1: each step fits its sample.
        gamma: Ridge of the offline learner that corrections aim at, and that `effective_targets`
            compares with; 0 or more.
        batch_size: Samples in a step. The last mini-batch may be smaller.
        momentum: Heavy-ball momentum, as in `torch.optim.SGD`.
        nesterov: Nesterov's form of it.
        weight_decay: As in `torch.optim.SGD`.
        reduction: `"sum"` or `"mean"` of the losses in a mini-batch; it must be given if
            `batch_size` is above 1.
        correction: `"none"` learns the targets as they are. `"exact"` learns targets that
            make it end as the offline learner; computing them needs the whole stream.
            `"iterative"` learns targets that lead to the offline learner's predictions, block by
            block.
        block_size: Samples whose targets the iterative correction finds together, a multiple of
            the batch size. `"auto"` uses the smallest multiple that is 64 or more.
        ridge: Stabilizes the iterative correction if samples of a block are very similar; 0.01 is
            enough for repeated samples.
        loss: `"squared"`; or `"cross-entropy"` for targets that are probabilities (one in [0, 1],
            or several that sum to 1): the learned function is then their logits, and `predict`
            returns probabilities.
        aim: The batch learner that the iterative correction leads to: `"all"` learns from all
            samples so far; `"window:500"` from the 500 newest; with `"discount:0.999"`, each newer
            sample multiplies the weight of a sample by 0.999. Use the last two if the data drift.

    Attributes:
        X_fit_: (n, d) the training samples so far.
        dual_coef_: (n,) or (n, c); a prediction is the kernel with `X_fit_` times these.
        targets_: (n,) or (n, c) the targets that were learned, corrected or not.
        kernel_: The kernel, with its width.
        width_: The width of the kernel; None if it has none.
        learner_: The `rt.SGD` that describes the training.
        lr_: Its learning rate.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if all are strings.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> X = np.linspace(0, 3, 31)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> query = [[0.5], [2.5]]
        >>> rt.OnlineKernelRegressor(width=1.0, lr=0.5).fit(X, y).predict(query).round(2)
        array([1.2 , 0.53])
        >>> model = rt.OnlineKernelRegressor(width=1.0, lr=0.5, gamma=0.01, correction="exact")
        >>> model.fit(X, y).predict(query).round(2)
        array([0.48, 0.6 ])
    """

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learns the next portion of the stream; all portions together learn what `fit` learns.

        A mini-batch or block that is open at the end of a portion counts, for predictions, as if
        the stream ended there; the next portion fills it up. An automatic `width` or `lr` is set
        from the first portion. With `correction="exact"`, every portion changes the targets of all
        samples so far, and computes the kernel of all pairs again.

        Args:
            X: (m, d) the next samples.
            y: (m,) or (m, c) their targets.
        """
        return self._take(X, y)

    def predict(self, X: Any) -> np.ndarray:
        """Returns predictions (m,) or (m, c); for cross-entropy, probabilities."""
        now = self._now()
        return now._outputs(now._queried(X))


@own_constructor
class OnlineKernelClassifier(StreamClassifier, OnlineKernelEstimator):
    """Online kernel learning of one-hot targets; it predicts the class with the largest output.

    Use it like `sklearn.linear_model.SGDClassifier`, but with a kernel and, if you want, with a
    correction for what one online pass forgets. Arguments, attributes and costs are those of
    `OnlineKernelRegressor`; `dual_coef_` and `targets_` have one column for each of `classes_`.
    With `loss="cross-entropy"` it is trained on the softmax of its outputs and has `predict_proba`;
    `correction="exact"` then makes it kernel logistic regression, like
    `sklearn.linear_model.LogisticRegression(C=1/gamma)` on features.

    Attributes:
        classes_: (c,) the labels, sorted.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> X = np.array([[0.0], [0.2], [2.0], [2.2]])
        >>> model = rt.OnlineKernelClassifier(width=1.0).fit(X, ["left", "left", "right", "right"])
        >>> model.predict([[0.1], [1.9]])
        array(['left', 'right'], dtype='<U5')
    """

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learns the next portion of the stream; see `OnlineKernelRegressor.partial_fit`.

        Args:
            X: (m, d) the next samples.
            y: (m,) their labels.
            classes: All labels of the stream; needed only in the first call.
        """
        if classes is None and not self._has_begun:
            raise InvalidInputError(
                "classes is None in the first call of partial_fit; expected all labels that will "
                "come: partial_fit(X, y, classes=...)"
            )
        return self._take(X, y, classes)

    def _class_outputs(self, X: Any) -> np.ndarray:
        return self._queried(X)

    @available_if(lambda estimator: estimator.loss == "cross-entropy")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns class probabilities (m, c); only with `loss="cross-entropy"`."""
        now = self._now()
        return now._outputs(now._queried(X))

    def _targets(
        self, X: Any, y: Any, classes: Any, restart: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        X, y = self._with_labels(X, y, restart)
        known = np.unique(y if classes is None else classes) if restart else self.classes_
        if classes is not None and not np.array_equal(known, np.unique(classes)):
            raise InvalidInputError(
                f"classes is {np.unique(classes)}, but the stream began with {known}; leave it "
                "out, or call fit to start again"
            )
        if len(known) < 2:
            raise InvalidInputError(f"y has 1 class, {known}; expected two or more")
        one_hot = y[:, None] == known[None, :]
        unknown = ~one_hot.any(axis=1)
        if unknown.any():
            row = int(unknown.argmax())
            raise InvalidInputError(
                f"y holds {y[row]} in row {row}, which is not one of the classes {known}; the "
                "first call needs all labels of the stream"
            )
        self.classes_ = known
        return X, one_hot.astype(X.dtype)
