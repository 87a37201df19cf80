r"""Ridge regression one sample at a time, for a function that may change as the stream goes on.

The weights of the features are expected to drift: each keeps the share a of its value from one
sample to the next and is renewed by chance, so that its variance stays the same; a constant
wanders. The best prediction of sample t from those before it is that of the offline learner with
the ridge gamma and the kernel

    K_ts = a^|t - s| phi_t . phi_s + LEVEL + (1 - a^2) (min(t, s) - 1),      t = 1, 2, ...

in which samples are the less alike the further they lie apart. It is found by Kalman's filter:
with P the covariance of the weights (beside the constant), before sample t is known,

    g = P phi / (gamma + phi^T P phi),   w <- w + g (y - w . phi),   P <- P - g phi^T P    sample t
    w <- a w,   P <- a^2 P + (1 - a^2) I                                                 drift

At a = 1 nothing drifts, and this is recursive least squares: ridge regression on the whole stream.
Below 1 the ridge stays what it is, unlike that of exponential forgetting, which fades with the
samples until P blows up in every direction that no recent sample has; and the variance that is
added at each step makes the rounding errors of the past fade.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg.blas import dsymv, dsyr
from threadpoolctl import ThreadpoolController

from retarget.arrays import as_positive
from retarget.errors import InvalidInputError

# Variance of the constant before the first sample, where a weight has 1: it is hardly penalised.
LEVEL = 1e4
# P is kept as a number times a matrix, which is multiplied out when the number falls below this.
LEAST_SCALE = 1e-3


class DriftingWeights:
    """What is not known yet of the weights of a ridge regression, as their covariance.

    The first weight is that of the constant, whose feature is always 1. A sample takes two passes
    over half a matrix: with m features, 2 m^2 multiplications, and m^2 numbers are kept.

    Args:
        features: Number of features, with the constant.
        gamma: Ridge, above 0.
        discount: a, above 0 and at most 1.
    """

    def __init__(self, features: int, gamma: float, discount: float) -> None:
        self.gamma, self.discount = as_positive("gamma", gamma), as_positive("discount", discount)
        if self.discount > 1:
            raise InvalidInputError(f"discount is {discount!r}; expected above 0, at most 1")
        self._scale = 1.0
        # P / scale, by its lower triangle; in columns, as BLAS has it
        self._matrix = np.eye(features, order="F")
        self._matrix[0, 0] = LEVEL

    @property
    def covariance(self) -> np.ndarray:
        """(m, m) P, before the next sample."""
        lower = np.tril(self._matrix) * self._scale
        full: np.ndarray = lower + np.tril(lower, -1).T
        return full

    def gain(self, phi: np.ndarray) -> np.ndarray:
        """Takes the next sample in; call it within `one_thread`.

        Args:
            phi: (m,) its features, the first of which is 1.

        Returns:
            (m,) g: by how much its error changes each weight, before the weights drift.
        """
        spread: np.ndarray = dsymv(self._scale, self._matrix, phi, lower=1)  # P phi
        variance = float(phi @ spread)
        if variance > 0:  # rounding alone can make it negative: nothing is left to be learned there
            total = self.gamma + variance
            share = -1 / (total * self._scale)
            self._matrix = dsyr(share, spread, lower=1, a=self._matrix, overwrite_a=1)
            spread /= total
        else:
            spread = np.zeros_like(phi)
        if self.discount < 1:
            self._drift()
        return spread

    def grow(self, features: int) -> None:
        """Appends features that were 0 for all samples so far."""
        known = len(self._matrix)
        grown = np.eye(features, order="F") / self._scale
        grown[:known, :known] = self._matrix
        self._matrix = grown

    def _drift(self) -> None:
        """P <- a^2 P + (1 - a^2) I, but for the constant, which keeps its value: a = 1 there."""
        a, matrix = self.discount, self._matrix
        self._scale *= a * a
        matrix[0, 0] /= a * a
        matrix[1:, 0] /= a
        matrix.ravel(order="K")[:: len(matrix) + 1] += (1 - a * a) / self._scale
        if self._scale < LEAST_SCALE:
            matrix *= self._scale
            self._scale = 1.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Has BLAS use one thread.

    It would share out every small matrix, and its threads wait for each other by spinning: on a
    machine that has other work, a sample takes a hundred times as long with two.
    """
    blas = _blas()
    if all((each.get_num_threads() or 1) == 1 for each in blas.lib_controllers):
        yield  # as the limit takes longer than the question
    else:
        with blas.limit(limits=1):
            yield


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")
