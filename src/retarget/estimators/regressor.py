"""Online kernel regression, as a scikit-learn estimator."""

from typing import Any, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import validate_data

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
        ridge: Steadies the iterative correction where samples of a block are much alike.

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

    Example:
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
        """The function learned so far, (m,) or (m, c)."""
        return self._queried(X)

    def _take(self, X: Any, y: Any, restart: bool) -> Self:
        with self._all_or_nothing():
            X, y = validate_data(
                self, X, y, reset=restart, dtype=FLOATS, multi_output=True, y_numeric=True
            )
            return self._learn(X, y if y.dtype.kind == "f" else y.astype(X.dtype), restart)
