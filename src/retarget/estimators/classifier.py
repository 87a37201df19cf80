"""Online kernel classification, as a scikit-learn estimator."""

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from retarget.errors import InvalidInputError
from retarget.estimators.base import FLOATS, OnlineKernelEstimator


class OnlineKernelClassifier(ClassifierMixin, OnlineKernelEstimator):
    """Online kernel regression on one-hot targets; the class with the largest output is predicted.

    Use it as `sklearn.linear_model.SGDClassifier`, where a kernel is wanted or the correction of
    what one online pass forgets. Arguments, attributes and costs are those of
    `OnlineKernelRegressor`; `dual_coef_` and
    `targets_` have one column for each of `classes_`.

    Attributes:
        classes_: (c,) the labels, sorted.

    Example:
        >>> import numpy as np, retarget as rt
        >>> X = np.array([[0.0], [0.2], [2.0], [2.2]])
        >>> model = rt.OnlineKernelClassifier(width=1.0).fit(X, ["left", "left", "right", "right"])
        >>> model.predict([[0.1], [1.9]])
        array(['left', 'right'], dtype='<U5')
    """

    classes_: np.ndarray

    def fit(self, X: Any, y: Any) -> Self:
        """Learns a stream from its beginning.

        Args:
            X: (n, d) samples, in stream order.
            y: (n,) labels.
        """
        with self._all_or_nothing():
            X, y = self._checked(X, y, restart=True)
            return self._take(X, y, np.unique(y), restart=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Goes on with the stream (or begins it): see `OnlineKernelRegressor.partial_fit`.

        Args:
            X: (m, d) the next samples.
            y: (m,) their labels.
            classes: All labels that will come; needed in the first call only.
        """
        restart = not self._has_begun
        if restart and classes is None:
            raise InvalidInputError(
                "classes is None in the first call of partial_fit; expected all labels that will "
                "come: partial_fit(X, y, classes=...)"
            )
        with self._all_or_nothing():
            X, y = self._checked(X, y, restart)
            known = np.unique(classes) if restart else self.classes_
            if classes is not None and not np.array_equal(known, np.unique(classes)):
                raise InvalidInputError(
                    f"classes is {np.unique(classes)}, but the stream began with {known}; leave it "
                    "out, or call fit to start anew"
                )
            return self._take(X, y, known, restart)

    def decision_function(self, X: Any) -> np.ndarray:
        """The outputs of the classes, (m, c); of two classes, the second less the first, (m,)."""
        outputs = self._queried(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: Any) -> np.ndarray:
        """(m,) labels."""
        winners = self._queried(X).argmax(axis=1)
        labels: np.ndarray = self.classes_[winners]
        return labels

    def _checked(self, X: Any, y: Any, restart: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, reset=restart, dtype=FLOATS)
        check_classification_targets(y)
        return X, y

    def _take(self, X: np.ndarray, y: np.ndarray, classes: np.ndarray, restart: bool) -> Self:
        if len(classes) < 2:
            raise InvalidInputError(f"y has 1 class, {classes}; expected two or more")
        one_hot = y[:, None] == classes[None, :]
        unknown = ~one_hot.any(axis=1)
        if unknown.any():
            row = int(unknown.argmax())
            raise InvalidInputError(
                f"y holds {y[row]} in row {row}, which is not one of the classes {classes}; "
                "expected all labels of the stream in the classes of the first call"
            )
        self._learn(X, one_hot.astype(X.dtype), restart)
        self.classes_ = classes
        return self
