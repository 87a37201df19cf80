"""Shared by the estimators: checks of X and y, recovery after an error, and classes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

FLOATS = (np.float64, np.float32)


class StreamEstimator(BaseEstimator):
    """An estimator that is unchanged by a call that fails."""

    FITTED: str  # the name of an attribute that exists once something has been learned

    @property
    def _has_begun(self) -> bool:
        return self.FITTED in vars(self)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restores the estimator, including the number of features, if the body raises."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _with_targets(self, X: Any, y: Any, restart: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns checked samples and their targets, in floating point."""
        X, y = validate_data(
            self, X, y, reset=restart, dtype=FLOATS, multi_output=True, y_numeric=True
        )
        return X, y if y.dtype.kind == "f" else y.astype(X.dtype)

    def _with_labels(self, X: Any, y: Any, restart: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns checked samples and their labels."""
        X, y = validate_data(self, X, y, reset=restart, dtype=FLOATS)
        check_classification_targets(y)
        return X, y


class StreamClassifier(ClassifierMixin):
    """Predicts the class with the largest output."""

    classes_: np.ndarray

    def _class_outputs(self, X: Any) -> np.ndarray:
        """Returns the outputs (m, c), in the order of `classes_`."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the outputs (m, c); for two classes the second minus the first, (m,).

        If the loss is cross-entropy, they are logits.
        """
        outputs = self._class_outputs(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: Any) -> np.ndarray:
        """Returns the predicted labels (m,)."""
        winners = self._class_outputs(X).argmax(axis=1)
        labels: np.ndarray = self.classes_[winners]
        return labels
