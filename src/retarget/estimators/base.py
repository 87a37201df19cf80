"""Shared by the estimators: checks of X and y, recovery after an error, and classes."""

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from retarget.locks import Lock

FLOATS = (np.float64, np.float32)


class StreamEstimator(BaseEstimator):
    """An estimator that is unchanged by a call that fails or is interrupted.

    Several threads may use it: they learn one after the other, and each prediction is that of one
    state, after some complete call.
    """

    SPARSE = False  # whether it takes SciPy's sparse matrices
    FITTED: str  # the name of an attribute that exists once something has been learned

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.SPARSE
        return tags

    @property
    def _has_begun(self) -> bool:
        return self.FITTED in vars(self)

    def _take(
        self, X: Any, y: Any, classes: Any = None, restart: bool = False, **others: Any
    ) -> Self:
        """Learns samples, as a new stream or as more of the present one."""

        def learn(after: Self) -> None:
            begins = restart or not after._has_begun
            after._learn(*after._targets(X, y, classes, begins), begins, **others)

        return self._change(learn)

    def _change(self, change: Callable[[Self], None]) -> Self:
        """Changes a copy, which then takes the place of this estimator."""
        turn: Lock = self.__dict__.setdefault("_turn", Lock())
        with turn.of_this_process:
            after = copy.copy(self)
            change(after)
            self.__dict__ = after.__dict__  # one assignment: no thread sees half of the change
        return self

    @abstractmethod
    def _targets(self, X: Any, y: Any, classes: Any, restart: bool) -> tuple[Any, Any]:
        """Returns checked samples and their targets."""

    @abstractmethod
    def _learn(self, X: Any, Y: Any, restart: bool) -> None:
        """Learns checked samples and targets, as a new stream or as more of the present one."""

    def _now(self) -> Self:
        """Returns a copy, whose attributes belong to one state even if another thread learns."""
        return copy.copy(self)

    def _checked(self, X: Any, *y: Any, **options: Any) -> Any:
        """Returns checked samples and, if there are some, targets."""
        sparse = "csr" if self.SPARSE else False
        return validate_data(self, X, *y, dtype=FLOATS, accept_sparse=sparse, **options)


class StreamRegressor(MultiOutputMixin, RegressorMixin, StreamEstimator):
    """Learns real targets, one or several for each sample."""

    def _targets(
        self, X: Any, y: Any, classes: Any, restart: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        X, y = self._checked(X, y, reset=restart, multi_output=True, y_numeric=True)
        return X, y if y.dtype.kind == "f" else y.astype(X.dtype)


class StreamClassifier(ClassifierMixin, StreamEstimator):
    """Predicts the class with the largest output."""

    classes_: np.ndarray

    def _with_labels(self, X: Any, y: Any, restart: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns checked samples and their labels."""
        X, y = self._checked(X, y, reset=restart)
        check_classification_targets(y)
        return X, y

    @abstractmethod
    def _class_outputs(self, X: Any) -> np.ndarray:
        """Returns the outputs (m, c), in the order of `classes_`."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the outputs (m, c); for two classes the second minus the first, (m,).

        If the loss is cross-entropy, they are logits.
        """
        outputs = self._now()._class_outputs(X)
        return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs

    def predict(self, X: Any) -> np.ndarray:
        """Returns the predicted labels (m,)."""
        now = self._now()
        winners = now._class_outputs(X).argmax(axis=1)
        labels: np.ndarray = now.classes_[winners]
        return labels
