"""Online kernel regression and classification, as scikit-learn estimators."""

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from retarget.errors import InvalidInputError
from retarget.estimators.base import FLOATS, OnlineKernelEstimator


class OnlineKernelRegressor(MultiOutputMixin, RegressorMixin, OnlineKernelEstimator):
    r"""One pass of SGD with a kernel over the samples, in the order in which they come.

    Use it to put an online learner, corrected or not, into a scikit-learn pipeline or search. As
    `sklearn.linear_model.SGDRegressor` it has `partial_fit`; with `correction="exact"` it
    predicts what `sklearn.kernel_ridge.KernelRidge(alpha=gamma)` with the same kernel predicts.
    The function starts at zero: centre targets that are far from it.

    Work grows as $n^2$. `correction="none"` keeps the samples; the others keep $n^2/2$ numbers too,
    take $n^3/3$ multiplications, and raise `StreamTooLargeError` beforehand where they do not fit.

    Args:
        kernel: `"rbf"`; `"linear"`; a retarget kernel; a function `k(A, B)`; or the name of another
            scikit-learn kernel.
        width: Width of the "rbf" kernel $\exp(-\|x - x'\|^2 / \text{width}^2)$. None: the median
            distance between samples (those that differ, of at most 1,000 of them, evenly spaced).
        lr: The learning rate; a schedule, one rate a step; or `"auto"`: half of the largest rate at
            which the learner is stable on a stream in random order. For the "rbf" kernel with
            single samples and no momentum that is 1: each step fits its sample.
        gamma: Ridge of the offline learner that corrections aim at, and that `effective_targets`
            compares with; 0 or more.
        batch_size: Samples in a step. A last, smaller mini-batch is a step of its own.
        momentum: Heavy-ball momentum, as in `torch.optim.SGD`.
        nesterov: Nesterov's form of it.
        weight_decay: As in `torch.optim.SGD`.
        reduction: `"sum"` or `"mean"` of the losses in a mini-batch.
        correction: `"none"`, learns the targets as they are; `"exact"`, learns targets that make it
            end as the offline learner, which takes the whole stream beforehand; `"iterative"`,
            learns targets that lead it to the offline learner's predictions, block by block.
        block_size: Samples whose targets the iterative correction finds together, a multiple of
            the batch size. None: the smallest that is 64 or more.
        ridge: Steadies the iterative correction where samples of a block are much alike; None
            takes 0.01, which is enough for copies.
        loss: `"squared"`; or `"cross-entropy"` for targets that are probabilities (one in [0, 1],
            or several that sum to 1): the function learned is then their logits, and `predict`
            makes probabilities of them.
        aim: What the iterative correction leads to: `"all"`, the batch learner of all the past;
            `"window:500"`, of the 500 newest samples; `"discount:0.999"`, of samples that count
            by that factor less with every newer one. Use the last two where the data drift.

    Attributes:
        X_fit_: (n, d) the training samples so far.
        dual_coef_: (n,) or (n, c): a prediction is the query's kernel with `X_fit_` times these.
        targets_: (n,) or (n, c) the targets that were learned: corrected, or as they came.
        kernel_: The kernel, with its width.
        width_: The width of an RBF kernel; None for any other.
        learner_: The `rt.SGD` that it was trained by.
        lr_: Its rate.
        n_features_in_: Number of features.
        feature_names_in_: Their names, where all are strings.

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

    def fit(self, X: Any, y: Any) -> Self:
        """Learns a stream from its beginning.

        Args:
            X: (n, d) samples, in stream order.
            y: (n,) or (n, c) targets.
        """
        return self._take(X, y, restart=True)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Goes on with the stream (or begins it): portions learn what `fit` learns on the whole.

        A mini-batch or block that is open at the end of a portion counts, for predictions, as if
        the stream ended there; the next portion fills it up. An open `width` or `lr` is found on
        the first portion. `correction="exact"` changes the targets of all samples so far with every
        portion, and computes the kernel of all pairs again.

        Args:
            X: (m, d) the next samples.
            y: (m,) or (m, c) their targets.
        """
        return self._take(X, y, restart=not self._has_begun)

    def predict(self, X: Any) -> np.ndarray:
        """The function learned so far, (m,) or (m, c); of cross-entropy, its probabilities."""
        return self._outputs(self._queried(X))

    def _take(self, X: Any, y: Any, restart: bool) -> Self:
        with self._all_or_nothing():
            X, y = validate_data(
                self, X, y, reset=restart, dtype=FLOATS, multi_output=True, y_numeric=True
            )
            return self._learn(X, y if y.dtype.kind == "f" else y.astype(X.dtype), restart)


def _has_probabilities(estimator: Any) -> bool:
    return bool(estimator.loss == "cross-entropy")


class OnlineKernelClassifier(ClassifierMixin, OnlineKernelEstimator):
    """Online kernel learning of one-hot targets; the class with the largest output is predicted.

    Use it as `sklearn.linear_model.SGDClassifier`, where a kernel is wanted or the correction of
    what one online pass forgets. Arguments, attributes and costs are those of
    `OnlineKernelRegressor`; `dual_coef_` and
    `targets_` have one column for each of `classes_`. With `loss="cross-entropy"` it learns by the
    softmax of its outputs, `predict_proba` is there, and `correction="exact"` makes it kernel
    logistic regression, as `sklearn.linear_model.LogisticRegression(C=1/gamma)` is on features.

    Attributes:
        classes_: (c,) the labels, sorted.

    Examples:
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
        """The outputs of the classes, (m, c); of two classes, the second less the first, (m,).

        Of cross-entropy they are logits.
        """
        outputs = self._queried(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: Any) -> np.ndarray:
        """(m,) labels."""
        winners = self._queried(X).argmax(axis=1)
        labels: np.ndarray = self.classes_[winners]
        return labels

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """(m, c) the probabilities of the classes; with `loss="cross-entropy"` only."""
        return self._outputs(self._queried(X))

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
