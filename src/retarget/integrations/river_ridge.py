r"""Ridge regression one sample at a time, for a function that may change over the stream.

With P the covariance of the weights before a sample with features phi and target y, and gamma the
ridge, recursive least squares is

    g = P phi / (gamma + phi^T P phi),   w <- w + g (y - w . phi),   P <- P - g phi^T P

after which w is ridge regression on all samples so far. A discount a below 1 models weights that
drift: from one sample to the next each is multiplied by a, and random noise keeps its variance
constant; the constant term is a random walk.

    w <- a w,   P <- a^2 P + (1 - a^2) I

Then the prediction of sample t from earlier ones is that of the offline learner with the ridge
gamma and the kernel

    K_ts = a^|t - s| phi_t . phi_s + LEVEL + (1 - a^2) (min(t, s) - 1),      t = 1, 2, ...

in which samples are less similar the further apart they are. The ridge keeps its strength. With
exponential forgetting it would fade like the samples, until P blows up in every direction that no
recent sample covers. The variance that is added at each step also makes past rounding errors fade.

Rows that come together need not be taken one by one. What the recursion predicts for each of them
before learning it follows from their covariance S = K + gamma I under the weights before the first:
with S = L L^T and E what these weights get wrong, its errors are diag(L) L^-1 E.
"""

import copy
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from operator import call
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dsymv, dsyr
from threadpoolctl import ThreadpoolController

from retarget.arrays import shallow
from retarget.errors import InvalidInputError
from retarget.locks import Lock
from retarget.scalars import as_positive
from retarget.streaming.turns import in_turn

# Variance of the constant before the first sample (of a weight: 1), so it is hardly penalized.
LEVEL = 1e4
# P is kept as a number times a matrix, which is multiplied out when the number falls below this.
LEAST_SCALE = 1e-3
# Rows that are learned at once, if no variance is larger than so many gamma: rounding then leaves
# half of the digits.
BLOCK = 64
LARGEST_VARIANCE = 1e8

Update = partial[Any]  # a call of a function that is not written in Python


class SequentialRidge:
    r"""Ridge regression whose weights are at hand after every sample.

    With discount 1 it is `rt.StreamingRidge`, except that the constant is penalized ten thousand
    times less than the other weights. Use it if you need predictions after every sample:
    `rt.StreamingRidge` would solve a system each time. With m features, a sample costs $2 m^2$
    multiplications, and $m^2$ numbers are kept. Features and outputs that first appear later count
    as 0 before, exactly.

    Args:
        gamma: Ridge, above 0.
        discount: Above 0 and at most 1; a, above.

    Examples:
        >>> import numpy as np
        >>> learner = SequentialRidge(gamma=1e-6)
        >>> for x in (0.0, 1.0, 2.0, 3.0):
        ...     learner.learn(np.array([x]), np.array([5 + 2 * x]))
        >>> learner.predict(np.array([10.0])).round(2)
        array([25.])
    """

    def __init__(self, gamma: float = 0.1, discount: float = 1.0) -> None:
        self._learned = _Learned(np.zeros((0, 1)), DriftingWeights(1, gamma, discount), samples=0)
        self._turn = Lock()

    @property
    def samples(self) -> int:
        """Number of samples so far."""
        return self._learned.samples

    @in_turn
    def learn(self, phi: np.ndarray, target: np.ndarray) -> None:
        """Learns a sample's features (m,) and targets (c,); new ones come after the known ones."""
        before = self._learned
        weights = before.widened(len(target), len(phi))
        phi = np.concatenate(([1.0], phi))
        errors = target - weights @ phi
        with one_thread():
            gain, covariance, updates = before.covariance.step(phi)
            weights += np.outer(errors, gain)
            if covariance.discount < 1:  # all weights but that of the constant fall
                weights[:, 1:] *= covariance.discount
            learned = _Learned(weights, covariance, before.samples + 1)
            become = partial(setattr, self, "_learned", learned)
            # no interrupt can come between these calls, as no Python code runs between them
            deque(map(call, [*updates, become]), maxlen=0)

    @in_turn
    def learn_many(self, phi: np.ndarray, targets: np.ndarray) -> None:
        """Learns n samples (n, m) with targets (n, c) in their order, or none if interrupted."""
        ahead = copy.deepcopy(self)
        for first in range(0, len(phi), BLOCK):
            rows = phi[first : first + BLOCK]
            wanted = targets[first : first + BLOCK]
            if not ahead._learn_block(rows, wanted):
                for sample in zip(rows, wanted, strict=True):
                    ahead.learn(*sample)
        self._learned = ahead._learned

    def _learn_block(self, phi: np.ndarray, targets: np.ndarray) -> bool:
        """Learns a few samples at once; returns False if that would cost too many digits."""
        before = self._learned
        n = len(phi)
        weights = before.widened(targets.shape[1], phi.shape[1])
        phi = np.hstack([np.ones((n, 1)), phi])
        with one_thread():
            block = before.covariance.block(phi)
            if block is None:
                return False
            errors = solve_triangular(block.root, targets - block.kept @ weights.T, lower=True)
            weights = block.end * weights + errors.T @ block.gain
        self._learned = _Learned(weights, block.after, before.samples + n)
        return True

    def predict(self, phi: np.ndarray) -> np.ndarray:
        """Returns (c,) or (n, c) outputs for features (m,) or (n, m); unknown ones are ignored."""
        weights = self._learned.weights
        outputs: np.ndarray = phi[..., : weights.shape[1] - 1] @ weights[:, 1:].T + weights[:, 0]
        return outputs


class _Learned(NamedTuple):
    """What was learned."""

    weights: np.ndarray  # (outputs, features)
    covariance: "DriftingWeights"
    samples: int

    def widened(self, outputs: int, features: int) -> np.ndarray:
        """Returns a copy of the weights, with zeros for new outputs and features."""
        known_outputs, known = self.weights.shape
        if outputs < known_outputs or 1 + features < known:
            raise InvalidInputError(
                f"the sample has {features} features and {outputs} targets; expected at least "
                f"{known - 1} and {known_outputs}, as earlier samples have"
            )
        weights = np.zeros((outputs, 1 + features))
        weights[:known_outputs, :known] = self.weights
        return weights


class _Block(NamedTuple):
    """What n samples do to the weights w before the first of them."""

    kept: np.ndarray  # (n, m) the prediction of each is its row times w
    root: np.ndarray  # (n, n) L
    gain: np.ndarray  # (n, m) times L^-1 E, what is added to the weights
    end: np.ndarray  # (m,) what drift keeps of w after the last
    after: "DriftingWeights"


class DriftingWeights:
    """The covariance P of the weights; the first weight belongs to the constant feature 1.

    Args:
        features: Number of features, including the constant.
        gamma: Ridge, above 0.
        discount: a, above 0 and at most 1.
    """

    def __init__(self, features: int, gamma: float, discount: float) -> None:
        self.gamma = as_positive("gamma", gamma)
        self.discount = as_positive("discount", discount)
        if self.discount > 1:
            raise InvalidInputError(f"discount is {discount!r}; expected above 0 and at most 1")
        self._scale = 1.0
        # the lower triangle of P / scale, stored by columns as BLAS expects
        self._matrix = np.eye(features, order="F")
        self._matrix[0, 0] = LEVEL

    @property
    def covariance(self) -> np.ndarray:
        """The covariance P (m, m) before the next sample."""
        lower = np.tril(self._matrix) * self._scale
        full: np.ndarray = lower + np.tril(lower, -1).T
        return full

    def step(self, phi: np.ndarray) -> tuple[np.ndarray, Self, list[Update]]:
        """Returns g (m,) for a sample, P after it, and updates of the matrix that they share.

        P is right once these were called, within `one_thread`. New features were 0 so far.
        """
        after = shallow(self)
        updates = list[Update]()
        if len(phi) > len(self._matrix):
            after._grow(len(phi))
        spread: np.ndarray = dsymv(self._scale, after._matrix, phi, lower=1)  # P phi
        variance = float(phi @ spread)
        gain = np.zeros_like(phi)
        if variance > 0:  # only rounding can make it negative: there is nothing left to learn here
            total = self.gamma + variance
            share = -1 / (total * self._scale)
            gain = spread / total
            updates.append(partial(dsyr, share, spread, lower=1, a=after._matrix, overwrite_a=1))
        if self.discount < 1:
            updates += after._drift()
        return gain, after, updates

    def block(self, phi: np.ndarray) -> _Block | None:
        """Returns what n samples (n, m) do together; None if rounding could reach the ridge."""
        n = len(phi)
        a = self.discount
        after = shallow(self)
        if phi.shape[1] > len(self._matrix):
            after._grow(phi.shape[1])
        P = after.covariance
        t = np.arange(n + 1)
        fall = np.repeat(a ** t[:, None], phi.shape[1], axis=1)
        fall[:, 0] = 1  # the constant is a random walk
        # what the noise adds by time t to the variance of a weight, and of the constant
        noise = 1 - a ** (2 * t)
        walk = (1 - a * a) * t
        kept = phi * fall[:n]
        end = fall[n]
        features = phi[:, 1:]
        reached = kept @ P
        earlier = np.minimum(t[:n, None], t[:n])
        K = reached @ kept.T + walk[earlier]
        if a < 1:
            K += a ** np.abs(t[:n, None] - t[:n]) * noise[earlier] * (features @ features.T)
        if not K.diagonal().max() <= LARGEST_VARIANCE * self.gamma:
            return None
        K[np.diag_indices(n)] += self.gamma
        gain = reached * end  # the covariance of what is observed with the weights at the end
        gain[:, 0] += walk[:n]
        gain[:, 1:] += (a ** (n - t[:n]) * noise[:n])[:, None] * features
        root = np.linalg.cholesky(K)
        gain = solve_triangular(root, gain, lower=True)
        left = end[:, None] * P * end - gain.T @ gain
        left[np.diag_indices(len(left))] += [walk[n], *[noise[n]] * (len(left) - 1)]
        after._matrix = np.asfortranarray(left)
        after._scale = 1.0
        return _Block(kept, root, gain, end, after)

    def _grow(self, features: int) -> None:
        """Appends features that were 0 for all samples so far."""
        known = len(self._matrix)
        grown = np.eye(features, order="F") / self._scale
        grown[:known, :known] = self._matrix
        self._matrix = grown

    def _drift(self) -> list[Update]:
        """P <- a^2 P + (1 - a^2) I, except for the constant, for which a = 1."""
        a = self.discount
        matrix = self._matrix
        constant = matrix[:1, 0]
        others = matrix[1:, 0]
        diagonal = matrix.ravel(order="K")[:: len(matrix) + 1]
        self._scale *= a * a
        updates: list[Update] = [
            partial(np.divide, constant, a * a, constant),
            partial(np.divide, others, a, others),
            partial(np.add, diagonal, (1 - a * a) / self._scale, diagonal),
        ]
        if self._scale < LEAST_SCALE:
            updates.append(partial(np.multiply, matrix, self._scale, matrix))
            self._scale = 1.0
        return updates


@contextmanager
def one_thread() -> Iterator[None]:
    """Makes BLAS use one thread.

    Otherwise BLAS splits even small matrices between threads that spin while they wait for each
    other: with two threads on a busy machine, a sample takes a hundred times as long.
    """
    blas = _blas()
    if all((each.get_num_threads() or 1) == 1 for each in blas.lib_controllers):
        yield  # setting the limit takes longer than reading it
    else:
        with blas.limit(limits=1):
            yield


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")
