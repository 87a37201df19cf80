"""What the classifiers that learn sums share: classes at any time, probabilities, rejection."""

from abc import abstractmethod
from typing import Any, Self
from weakref import ReferenceType, ref

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from retarget.errors import InvalidInputError, a_type
from retarget.estimators.base import StreamClassifier
from retarget.estimators.classes import Classes, Label, as_labels
from retarget.estimators.ridge_base import RidgeEstimator, as_weights, samples_in, weighted
from retarget.settings import in_plain_torch
from retarget.streaming.ridge.calibration import Calibration, calibrate, score_of
from retarget.streaming.ridge.learner import StreamingRidge
from retarget.streaming.ridge.moments import Moments


class Confidence:
    """What a learner's kept samples say of its scores; computed when it is first needed.

    It does not hold on to the sums that it belongs to: in them, a forgotten sample would live on.
    """

    def __init__(self) -> None:
        self._known: tuple[ReferenceType[Moments], Calibration] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Confidence, ()

    def of(self, learner: StreamingRidge) -> Calibration:
        """Returns the calibration of what the learner has learned by now."""
        moments = learner.learned.moments
        known = self._known
        if moments is not None and known is not None and known[0]() is moments:
            return known[1]
        calibration = calibrate(learner.left_out())
        if (
            moments is not None and learner.learned.moments is moments
        ):  # and no other thread learned
            self._known = ref(moments), calibration
        return calibration


class RidgeClassifier(StreamClassifier, RidgeEstimator):
    """Ridge regression on one-hot targets; it predicts the class with the largest output."""

    _classes: Classes  # in the order of the learner's outputs
    _confidence: Confidence

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learns more samples; the result is the same as one `fit` on all samples so far.

        Args:
            X: (n, d) samples.
            y: (n,) labels.
            classes: Labels that will appear. Optional: new labels are added when they appear.
            sample_weight: As in `fit`.
        """
        return self._take(X, y, classes, sample_weight=sample_weight)

    @in_plain_torch
    def predict(self, X: Any, reject: float | None = None) -> np.ndarray:
        """Returns the predicted labels (m,).

        Args:
            X: (m, d) samples.
            reject: The share of samples like those learned, such as .05, that may be rejected: the
                label is then None for every sample whose largest output, divided by its standard
                deviation, is as low as that of at most this share of the learned samples, each
                predicted without itself. None rejects nothing.

        Raises:
            InvalidInputError: So few samples were learned or kept that none could be rejected.
        """
        if reject is None:
            predicted: np.ndarray = super().predict(X)
            return predicted
        now = self._now()
        outputs, scores = now._outputs_and_scores(X)
        labels: np.ndarray = now.classes_[outputs.argmax(axis=1)].astype(object)
        new = now._confidence.of(now.learner_).looks_new(scores, reject)
        labels[new.numpy()] = None
        return labels

    @in_plain_torch
    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns probabilities (m, c) of the classes, in the order of `classes_`.

        They are softmax(outputs / T), with the temperature T for which samples that were learned,
        each predicted without itself, are most likely.

        Raises:
            InvalidInputError: Fewer than 2 samples were learned, or none are kept.
        """
        now = self._now()
        outputs = now._class_outputs(X)
        calibration = now._confidence.of(now.learner_)
        probabilities = calibration.probabilities(torch.from_numpy(outputs).double())
        result: np.ndarray = probabilities.numpy()
        return result

    def forget(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Forgets samples, as if they had never been learned, up to rounding.

        A class of which no sample is left is gone from `classes_`. No trace of a sample stays: it
        is subtracted from the sums, and deleted from the samples that are kept.

        Args:
            X: Samples that were learned.
            y: Their labels.
            sample_weight: The weights that they were learned with.

        Raises:
            InvalidInputError: More samples of a class are given than were learned, the samples
                cannot have been learned, or none would be left.
        """
        return self._change(lambda after: after._forget(X, y, sample_weight))

    def merge(self, other: Self) -> Self:
        """Adds everything that another classifier has learned; its classes may be different ones.

        Args:
            other: A classifier with the same parameters; it is not changed.
        """
        if type(other) is not type(self):
            raise InvalidInputError(f"other is {a_type(other)}; expected {a_type(self)}")
        there = other._now()
        return self._change(lambda after: after._merge(there))

    @abstractmethod
    def _labeled(self, X: Any, y: Any, restart: bool) -> tuple[Any, list[Label]]:
        """Returns checked samples and their labels."""

    def _targets(self, X: Any, y: Any, classes: Any, restart: bool) -> tuple[Any, list[Label]]:
        X, labels = self._labeled(X, y, restart)
        known = Classes() if restart else self._classes
        announced = [] if classes is None else as_labels("classes", classes)
        self._classes = known.announced([*announced, *labels])
        if not restart:
            self.learner_ = self.learner_.widened(len(self._classes.labels))
        return X, labels

    def _learn(self, X: Any, Y: list[Label], restart: bool, sample_weight: Any = None) -> None:
        dtype = np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64
        super()._learn(X, self._classes.one_hot(Y, dtype), restart, sample_weight)
        self._become(self._classes.plus(_counted(Y, sample_weight)), self.learner_)

    def _forget(self, X: Any, y: Any, sample_weight: Any) -> None:
        check_is_fitted(self, self.FITTED)
        X, labels = self._labeled(X, y, restart=False)
        left = self._classes.without(_counted(labels, sample_weight))
        dtype = np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64
        Y = self._classes.one_hot(labels, dtype)
        weights = None if sample_weight is None else as_weights(sample_weight, Y)
        learner = self.learner_.fork()
        batches = (weighted(samples, Y[rows], weights, rows) for rows, samples in self._batches(X))
        learner.forget_batches(batches, repeats=True)
        self._become(left, learner.rearranged(left.columns_in(self._classes)))

    def _merge(self, other: Self) -> None:
        for one in (self, other):
            check_is_fitted(one, self.FITTED)
        joined = self._classes.joined(other._classes)
        learner = self.learner_.widened(len(joined.labels))
        learner.merge(other.learner_.rearranged(joined.columns_in(other._classes)))
        self._become(joined, learner)

    def _become(self, classes: Classes, learner: StreamingRidge) -> None:
        self._classes = classes
        self.classes_, self._order = classes.in_order()
        self.learner_ = learner
        self._confidence = Confidence()

    def _class_outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, self.FITTED)
        X = self._samples(X)
        outputs = np.empty((samples_in(X), len(self.classes_)))
        for rows, samples in self._batches(X):
            outputs[rows] = _as_array(self.learner_.predict(samples))[:, self._order]
        return outputs

    def _outputs_and_scores(self, X: Any) -> tuple[np.ndarray, Tensor]:
        """Returns the outputs (m, c), and the scores (m,) by which samples are rejected."""
        check_is_fitted(self, self.FITTED)
        X = self._samples(X)
        outputs = np.empty((samples_in(X), len(self.classes_)))
        scores = torch.empty(len(outputs), dtype=torch.float64, device="cpu")
        for rows, samples in self._batches(X):
            features = self.learner_.prepare(samples)
            some = _as_array(self.learner_.predict(features))
            outputs[rows] = some[:, self._order]
            spreads = self.learner_.spread(features).cpu()
            scores[rows] = score_of(torch.from_numpy(some).double(), spreads)
        return outputs, scores

    def _arranged(self, values: np.ndarray) -> np.ndarray:
        arranged: np.ndarray = values[self._order]
        return arranged


def _counted(labels: list[Label], sample_weight: Any) -> list[Label]:
    """The labels of the samples that are learned: those whose weight is not 0."""
    if sample_weight is None:
        return labels
    weights = np.broadcast_to(np.asarray(sample_weight), len(labels))
    return [label for label, weight in zip(labels, weights, strict=True) if weight]


def _as_array(outputs: Any) -> np.ndarray:
    array: np.ndarray = outputs.cpu().numpy() if isinstance(outputs, Tensor) else outputs
    return array
