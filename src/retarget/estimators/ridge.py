"""Exact ridge regression and classification on streams, as scikit-learn estimators."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from retarget.errors import InvalidInputError, own_constructor
from retarget.estimators.base import StreamRegressor
from retarget.estimators.classes import Label, as_labels
from retarget.estimators.ridge_base import RidgeEstimator
from retarget.estimators.ridge_classifier import RidgeClassifier
from retarget.kernels.feature_maps import DEFAULT_FEATURES
from retarget.kernels.lookup import as_kernel, takes_width
from retarget.scalars import is_whole
from retarget.streaming.ridge.learner import StreamingRidge

DENSE_NUMBERS = 1 << 22  # of a sparse matrix that are made dense at a time


class StreamingRidgeEstimator(RidgeEstimator):
    """Shared by the regressor and the classifier of arrays: the parameters, and what X may be."""

    SPARSE = True

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

    def _new_learner(self, **options: Any) -> StreamingRidge:
        seed = self.random_state
        kernel = self.kernel
        width = self.width
        if not is_whole(seed):
            seed = check_random_state(seed).randint(2**31 - 1)
        if width != "auto" and takes_width(kernel):
            kernel = as_kernel(kernel, width)
        return StreamingRidge(
            kernel,
            self.gamma,
            self.features,
            intercept=self.fit_intercept,
            seed=int(seed),
            **options,
        )

    def _samples(self, X: Any) -> Any:
        return self._checked(X, reset=False)

    def _batches(self, X: Any) -> Iterator[tuple[slice, np.ndarray]]:
        sparse = issparse(X)
        rows = max(1, DENSE_NUMBERS // X.shape[1]) if sparse else X.shape[0]
        for start in range(0, X.shape[0], rows):
            some = slice(start, start + rows)
            yield some, X[some].toarray() if sparse else X[some]


@own_constructor
class StreamingRidgeRegressor(StreamRegressor, StreamingRidgeEstimator):
    r"""Ridge regression whose `partial_fit` is as good as `fit`.

    In whatever order and portions the samples come, the model is always the ridge solution on all
    of them: the same as `sklearn.linear_model.Ridge(alpha=gamma)` fitted on everything at once. It
    keeps only sums: with m features, $m^2$ numbers.

    Use it if data come in portions, or do not fit into memory. `kernel="rbf"` learns curves, and is
    better for dense samples with tens or hundreds of columns, such as embeddings; the default is a
    straight line, the same as scikit-learn's. Learning costs $O(m^2)$ per
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

    def predict(
        self, X: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Returns predictions (m,) or (m, c) of the ridge solution on everything learned so far.

        Args:
            X: (m, d) samples.
            return_std: Whether to return a pair: the predictions, and the standard deviation of
                each, that of the Gaussian process of which ridge regression is the mean. It grows
                with the distance from everything learned (`rt.StreamingRidge.predict`).
        """
        now = self._now()
        check_is_fitted(now, now.FITTED)
        batches = now._batches(now._samples(X))
        learner = now.learner_
        if not return_std:
            return np.concatenate([learner.predict(samples) for _, samples in batches])
        pairs = [learner.predict(samples, return_std=True) for _, samples in batches]
        predictions, deviations = zip(*pairs, strict=True)
        return np.concatenate(predictions), np.concatenate(deviations)

    def _arranged(self, values: np.ndarray) -> Any:
        if values.ndim == 1 and not self.learner_.intercept:
            return 0.0
        return values[0] if self.learner_.learned.form.flat else values


@own_constructor
class StreamingRidgeClassifier(RidgeClassifier, StreamingRidgeEstimator):
    """Ridge regression on one-hot targets; it predicts the class with the largest output.

    `partial_fit` is as good as `fit`, in any order and portions. A class may first appear in any
    call: its target was 0 for all earlier samples. With an intercept the predictions are those of
    `sklearn.linear_model.RidgeClassifier(alpha=gamma)`. Its decision function, for targets -1 and
    1, is twice this one minus 1 (for two classes they are equal).

    **For dense samples with tens or hundreds of columns, such as embeddings, pass `kernel="rbf"`:**
    the default, the samples as they are, gives each class a linear score, which is often five
    points of accuracy behind.

    `predict_proba` is calibrated, `predict(X, reject=.05)` answers None for samples that look like
    nothing learned, `forget` takes samples back and `merge` adds what another classifier learned.

    Arguments, attributes and costs are those of `StreamingRidgeRegressor`, and:

    Args:
        calibration: Number of learned samples, at most, whose features are kept for probabilities
            and `reject`; 0 for none, and then neither.

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

    def __init__(
        self,
        kernel: Any = "linear",
        gamma: float | Literal["auto"] = "auto",
        *,
        width: float | Literal["auto"] = "auto",
        features: int = DEFAULT_FEATURES,
        fit_intercept: bool = True,
        calibration: int = 1024,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            kernel,
            gamma,
            width=width,
            features=features,
            fit_intercept=fit_intercept,
            random_state=random_state,
        )
        self.calibration = calibration

    def _new_learner(self, **options: Any) -> StreamingRidge:
        return super()._new_learner(calibration=self.calibration, **options)

    def _labeled(self, X: Any, y: Any, restart: bool) -> tuple[Any, list[Label]]:
        X, y = self._with_labels(X, y, restart)
        return X, as_labels("y", y)

    def _targets(self, X: Any, y: Any, classes: Any, restart: bool) -> tuple[Any, list[Label]]:
        X, labels = super()._targets(X, y, classes, restart)
        _require_alike(self._classes.labels)
        return X, labels


def _require_alike(labels: Sequence[Label]) -> None:
    """Raises if text and numbers are mixed, which cannot be sorted and NumPy would join."""
    texts = np.array([label for label in labels if isinstance(label, str)])
    numbers = np.array([label for label in labels if not isinstance(label, str)])
    if len(texts) and len(numbers):
        raise InvalidInputError(
            f"some labels have type {numbers.dtype} ({numbers[:3]}) and others {texts.dtype} "
            f"({texts[:3]}); expected all labels to be text, or all to be numbers"
        )
