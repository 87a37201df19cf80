"""What all estimators that learn sums share: the learner, its solution, a few samples at a time."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from retarget.errors import InvalidInputError
from retarget.estimators.base import StreamEstimator
from retarget.samples import count, take
from retarget.streaming.ridge.learner import StreamingRidge


class RidgeEstimator(StreamEstimator):
    """Shared by all that learn sums: the learner, its solution, and samples a few at a time."""

    FITTED = "learner_"
    learner_: StreamingRidge

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

    @abstractmethod
    def _arranged(self, values: np.ndarray) -> Any:
        """Puts the learner's values (c, ...) in the order and form that the caller expects."""

    @abstractmethod
    def _new_learner(self) -> StreamingRidge:
        """Makes a learner that has learned nothing, with the present parameters."""

    @abstractmethod
    def _samples(self, X: Any) -> Any:
        """Returns checked samples to predict."""

    @abstractmethod
    def _batches(self, X: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the rows of a few checked samples, and these samples as the learner takes them."""

    def _learn(self, X: Any, Y: Any, restart: bool, sample_weight: Any = None) -> None:
        learner = self._new_learner() if restart else self.learner_.fork()
        weights = None
        if sample_weight is not None:
            weights = as_weights(sample_weight, Y)
        for rows, samples in self._batches(X):
            # in scikit-learn a sample of weight 2 is two samples, in cross-validation as well
            learner.learn(*weighted(samples, Y[rows], weights, rows), repeats=True)
        self.learner_ = learner


def samples_in(X: Any) -> int:
    """Number of samples, also of a sparse matrix or a list."""
    return X.shape[0] if hasattr(X, "shape") else count(X)


def as_weights(sample_weight: Any, Y: np.ndarray) -> np.ndarray:
    """Checks weights, and returns one for each sample."""
    if not np.any(np.asarray(sample_weight)):
        raise InvalidInputError(
            "sample_weight is zero for all samples; expected at least one above 0"
        )
    weights: np.ndarray = _check_sample_weight(
        sample_weight, Y, dtype=np.float64, ensure_non_negative=True
    )
    return weights


def weighted(
    samples: Any, Y: np.ndarray, weights: np.ndarray | None, rows: Any
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Returns some samples, their targets and their weights, without samples of weight 0."""
    if weights is None:
        return samples, Y, None
    counts = np.flatnonzero(weights[rows] > 0)
    return take(samples, counts), Y[counts], weights[rows][counts]
