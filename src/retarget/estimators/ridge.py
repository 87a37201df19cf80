"""Exact ridge regression and classification on streams, as scikit-learn estimators."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from retarget.errors import InvalidInputError, own_constructor
from retarget.estimators.base import StreamClassifier, StreamEstimator, StreamRegressor
from retarget.kernels.feature_maps import DEFAULT_FEATURES
from retarget.kernels.lookup import as_kernel, takes_width
from retarget.streaming.ridge.learner import StreamingRidge

DENSE_NUMBERS = 1 << 22  # of a sparse matrix that are made dense at a time


class StreamingRidgeEstimator(StreamEstimator):
    """Shared by the regressor and the classifier: parameters, the learner and the solution."""

    FITTED, SPARSE = "learner_", True
    learner_: StreamingRidge

    def __init__(
        self,
        kernel: Any = "linear",
        gamma: float | Literal["auto"] = "auto",
        *,
        width: float | Literal["auto"] = "auto",
        features: int = DEFAULT_FEATURES,
        fit_intercept: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.width = width
        self.features = features
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learns a stream from the beginning.

        Args:
            X: (n, d) samples; a sparse matrix is made dense a few rows at a time.
            y: (n,) labels for a classifier; (n,) or (n, c) targets for a regressor.
            sample_weight: (n,) or one number, 0 or more; None for 1. A weight of 2 is like
                learning the sample twice.
        """
        return self._take(X, y, restart=True, sample_weight=sample_weight)

    @property
    def gamma_(self) -> float:
        """The ridge in use: as given, or chosen by cross-validation."""
        check_is_fitted(self, self.FITTED)
        return self.learner_.gamma_

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features, (c, m); (m,) for a regressor whose y had one axis."""
        now = self._now()
        check_is_fitted(now, self.FITTED)
        weights: np.ndarray = now._arranged(now.learner_.solution().weights.mT.cpu().numpy())
        return weights

    @property
    def intercept_(self) -> Any:
        """Constants (c,); one number if a regressor's y had one axis or there is no intercept."""
        now = self._now()
        check_is_fitted(now, self.FITTED)
        return now._arranged(now.learner_.solution().intercept.cpu().numpy())

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, self.FITTED)
        X, learner = self._checked(X, reset=False), self.learner_
        return np.concatenate([learner.predict(_dense(X[rows])) for rows in _portions(X)])

    @abstractmethod
    def _arranged(self, values: np.ndarray) -> Any:
        """Puts the learner's values (c, ...) in the order and form that the caller expects."""

    def _learn(
        self, X: np.ndarray, Y: np.ndarray, restart: bool, sample_weight: Any = None
    ) -> None:
        learner = self._new_learner() if restart else self.learner_.fork()
        weights = None
        if sample_weight is not None:
            if not np.any(np.asarray(sample_weight)):
                raise InvalidInputError(
                    "sample_weight is zero for all samples; expected at least one above 0"
                )
            weights = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
            counts = weights > 0  # samples without weight are left out
            X, Y, weights = X[counts], Y[counts], weights[counts]
        # in scikit-learn a sample of weight 2 is two samples, in cross-validation as well
        for rows in _portions(X):
            some = None if weights is None else weights[rows]
            learner.learn(_dense(X[rows]), Y[rows], some, repeats=True)
        self.learner_ = learner

    def _new_learner(self) -> StreamingRidge:
        seed, kernel, width = self.random_state, self.kernel, self.width
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        if width != "auto" and takes_width(kernel):
            kernel = as_kernel(kernel, width)
        return StreamingRidge(
            kernel, self.gamma, self.features, intercept=self.fit_intercept, seed=int(seed)
        )


@own_constructor
class StreamingRidgeRegressor(StreamRegressor, StreamingRidgeEstimator):
    r"""Ridge regression whose `partial_fit` is as good as `fit`.

    In whatever order and portions the samples come, the model is always the ridge solution on all
    of them: the same as `sklearn.linear_model.Ridge(alpha=gamma)` fitted on everything at once. It
    keeps only sums: with m features, $m^2$ numbers.

    Use it if data come in portions, or do not fit into memory. Learning costs $O(m^2)$ per
    sample, and the first prediction afterwards $O(m^3)$, or about eight times that with
    `gamma="auto"`.
    Parameters are read when a stream begins; `partial_fit` does not read them again.

    Args:
        kernel: `"linear"`, the samples as they are; `"rbf"`, `"laplace"`, `"matern32"` or
            `"matern52"`, random Fourier features of this kernel; or anything that
            `rt.StreamingRidge` accepts: a function from samples (n, d) to features (n, m), a
            kernel that has features or the name of your own, or a `torch.nn.Module`.
        gamma: Ridge, 0 or more; `"auto"` chooses it by generalized cross-validation, from the sums
            alone, again after every portion.
        width: Width of a kernel that is named and has one. `"auto"` uses the root of the number of
            columns (`"laplace"`: the number), like scikit-learn's `gamma=1/n_features`: scale X
            first.
        features: Number of random features.
        fit_intercept: Whether to add a constant that is not penalized.
        random_state: Seed of the random features. None draws a new seed for every stream.

    Attributes:
        gamma_: The ridge in use.
        coef_: (m,) or (c, m) weights of the features.
        intercept_: The constant, or (c,).
        learner_: The `rt.StreamingRidge`, which can also forget samples and be merged.
        n_features_in_: Number of columns of X.
        feature_names_in_: Their names, if all are strings.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> X = np.arange(6.0)[:, None]
        >>> model = rt.StreamingRidgeRegressor(gamma=1.0)
        >>> for rows in ([4, 0], [5], [1, 3, 2]):
        ...     model = model.partial_fit(X[rows], 3 * X[rows, 0])
        >>> model.predict([[6.0]])
        array([17.43243243])
        >>> rt.StreamingRidgeRegressor(gamma=1.0).fit(X, 3 * X[:, 0]).predict([[6.0]])
        array([17.43243243])
    """

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learns more samples; the result is the same as one `fit` on all samples so far.

        Args:
            X: (n, d) samples.
            y: (n,) or (n, c) targets.
            sample_weight: As in `fit`.
        """
        return self._take(X, y, sample_weight=sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Returns predictions (m,) or (m, c) of the ridge solution on everything learned so far."""
        return self._outputs(X)

    def _arranged(self, values: np.ndarray) -> Any:
        if values.ndim == 1 and not self.learner_.intercept:
            return 0.0
        return values[0] if self.learner_.learned.flat else values


@own_constructor
class StreamingRidgeClassifier(StreamClassifier, StreamingRidgeEstimator):
    """Ridge regression on one-hot targets; it predicts the class with the largest output.

    `partial_fit` is as good as `fit`, in any order and portions. A class may first appear in any
    call: its target was 0 for all earlier samples. With an intercept the predictions are those of
    `sklearn.linear_model.RidgeClassifier(alpha=gamma)`. Its decision function, for targets -1 and
    1, is twice this one minus 1 (for two classes they are equal).

    Arguments, attributes and costs are those of `StreamingRidgeRegressor`.

    Attributes:
        classes_: (c,) the labels so far, sorted.
        coef_: (c, m) weights of the features.
        intercept_: (c,) constants.
        learner_: The `rt.StreamingRidge`. Its outputs are in the order in which classes appeared.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> model = rt.StreamingRidgeClassifier(gamma=0.1)
        >>> model.partial_fit([[0.0], [1.0]], ["mild", "mild"]).classes_
        array(['mild'], dtype='<U4')
        >>> model.partial_fit([[9.0], [-7.0]], ["hot", "cold"]).classes_
        array(['cold', 'hot', 'mild'], dtype='<U4')
        >>> model.predict([[8.0], [-6.0]])
        array(['hot', 'cold'], dtype='<U4')
    """

    _labels: np.ndarray  # in the order of the learner's outputs

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learns more samples; the result is the same as one `fit` on all samples so far.

        Args:
            X: (n, d) samples.
            y: (n,) labels.
            classes: Labels that will appear. Optional: new labels are added when they appear.
            sample_weight: As in `fit`.
        """
        return self._take(X, y, classes, sample_weight=sample_weight)

    def _class_outputs(self, X: Any) -> np.ndarray:
        return self._outputs(X)[:, np.argsort(self._labels)]

    def _arranged(self, values: np.ndarray) -> np.ndarray:
        arranged: np.ndarray = values[np.argsort(self._labels)]
        return arranged

    def _targets(
        self, X: Any, y: Any, classes: Any, restart: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        X, y = self._with_labels(X, y, restart)
        given = y if classes is None else np.concatenate([y, _alike(np.unique(classes), y)])
        labels = np.unique(given)
        if not restart:
            new = np.setdiff1d(_alike(given, self._labels), self._labels)
            labels = np.concatenate([self._labels, new])
            self.learner_ = self.learner_.widened(len(labels))
        self._labels, self.classes_ = labels, np.sort(labels)
        return X, (y[:, None] == labels[None, :]).astype(X.dtype)


def _portions(X: Any) -> Iterator[slice]:
    """Yields the rows of a sparse matrix to make dense at a time; all rows of an array."""
    rows = max(1, DENSE_NUMBERS // X.shape[1]) if issparse(X) else len(X)
    for start in range(0, X.shape[0], rows):
        yield slice(start, start + rows)


def _dense(X: Any) -> Any:
    return X.toarray() if issparse(X) else X


def _alike(labels: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns the labels; raises if text and numbers are mixed, which NumPy would join."""
    if (labels.dtype.kind in "biuf") != (known.dtype.kind in "biuf"):
        raise InvalidInputError(
            f"some labels have type {labels.dtype} ({labels[:3]}) and others {known.dtype} "
            f"({known[:3]}); expected all labels to be text, or all to be numbers"
        )
    return labels
