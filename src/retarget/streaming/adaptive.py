"""Ridge regression one sample at a time, with ridge and discount chosen on the way."""

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

import numpy as np

from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.streaming.drift import DriftingWeights, one_thread

# What there is to choose from where one of the two is left open, and where both are: with drift
# the smaller ridge, which lets the weights follow.
GAMMAS = (1.0, 0.1)
DISCOUNTS = (1.0, 0.99)
PAIRS = ((1.0, 1.0), (0.1, 1.0), (0.1, 0.99))
# What a squared error counts one sample later, when ridges and discounts are compared.
FORGET = 0.99
# One number, several to choose from, or the usual ones.
Choice = float | Sequence[float] | Literal["auto"]


class AdaptiveRidge:
    r"""Several ridge regressions beside each other; the best one of late makes the predictions.

    There is one for each pair of a ridge and a discount. Each is a ridge regression on the samples
    so far, in which samples at distance $|t - s|$ are by the factor `discount`$^{|t - s|}$ less
    alike (see `streaming/drift.py`); with the discount 1 it is `rt.StreamingRidge`, but for the
    constant, which is penalised ten thousand times less than the other weights. They are compared
    by their squared errors on each sample before they learned it, of which the last hundred count
    most: so no choice is made with what was not known yet.

    Use it for predictions after every sample, where `rt.StreamingRidge` would solve a system each
    time. With m features a sample costs $2 m^2$ multiplications for each pair, and each keeps
    $m^2$ numbers. Features and outputs that come later were 0 until then, which is exact.

    Args:
        gamma: Ridge, above 0, or several; `"auto"` for 1 and 0.1.
        discount: Above 0 and at most 1, or several; `"auto"` for 1 and 0.99. If both are left open,
            the ridge 1 is not tried with the discount 0.99: three pairs instead of four.

    Example:
        >>> import numpy as np
        >>> learner = AdaptiveRidge(gamma=1e-6)
        >>> for x in (0.0, 1.0, 2.0, 3.0):
        ...     learner.learn(np.array([x]), np.array([5 + 2 * x]))
        >>> learner.predict(np.array([10.0])).round(2), learner.discount
        (array([25.]), 1.0)
    """

    def __init__(self, gamma: Choice = "auto", discount: Choice = "auto") -> None:
        gammas = as_choices("gamma", gamma, GAMMAS)
        discounts = as_choices("discount", discount, DISCOUNTS)
        both_open = isinstance(gamma, str) and isinstance(discount, str)
        pairs = PAIRS if both_open else tuple(product(gammas, discounts))
        self._weights = np.zeros((len(pairs), 0, 1))  # (k, outputs, features)
        self._covariances = [DriftingWeights(1, *pair) for pair in pairs]
        self._errors = np.zeros(len(self._covariances))
        self.samples = 0

    @property
    def gamma(self) -> float:
        """The ridge in use."""
        return self._covariances[self._best].gamma

    @property
    def discount(self) -> float:
        """The discount in use."""
        return self._covariances[self._best].discount

    def learn(self, phi: np.ndarray, target: np.ndarray) -> None:
        """Learns the next sample.

        Args:
            phi: (m,) its features: those so far, and perhaps more.
            target: (c,) its targets, likewise.
        """
        self._grow(len(target), 1 + len(phi))
        phi = _with_constant(phi)
        k, outputs, features = self._weights.shape
        predicted = self._weights.reshape(-1, features) @ phi  # one product of a matrix
        errors = target - predicted.reshape(k, outputs)
        self._errors *= FORGET
        self._errors += np.square(errors).sum(axis=1)
        with one_thread():
            gains = np.array([each.gain(phi) for each in self._covariances])
        self._weights += errors[:, :, None] * gains[:, None, :]
        for place, each in enumerate(self._covariances):
            if each.discount < 1:  # all weights but that of the constant fall
                self._weights[place, :, 1:] *= each.discount
        self.samples += 1

    def predict(self, phi: np.ndarray) -> np.ndarray:
        """(c,) outputs for the next sample, or (n, c) of n samples.

        Args:
            phi: (m,) or (n, m) features: those so far, and perhaps more, which count as 0.
        """
        weights = self._weights[self._best]
        known = weights.shape[1] - 1
        outputs: np.ndarray = phi[..., :known] @ weights[:, 1:].T + weights[:, 0]
        return outputs

    @property
    def _best(self) -> int:
        return int(self._errors.argmin())

    def _grow(self, outputs: int, features: int) -> None:
        k, known_outputs, known_features = self._weights.shape
        if outputs < known_outputs or features < known_features:
            raise InvalidInputError(
                f"the sample has {features - 1} features and {outputs} targets; expected at least "
                f"those so far, {known_features - 1} and {known_outputs}"
            )
        if (outputs, features) == (known_outputs, known_features):
            return
        grown = np.zeros((k, outputs, features))
        grown[:, :known_outputs, :known_features] = self._weights
        self._weights = grown
        if features > known_features:
            for each in self._covariances:
                each.grow(features)


def as_choices(name: str, value: Any, usual: tuple[float, ...]) -> tuple[float, ...]:
    """What there is to choose from, not yet checked for numbers that are impossible."""
    if isinstance(value, str):
        if value != "auto":
            raise InvalidInputError(f"{name} is {value!r}; expected 'auto', a number, or several")
        return usual
    several = value if isinstance(value, Sequence | np.ndarray) else (value,)
    if not len(several):
        raise InvalidInputError(f"{name} is empty; expected a number, or several")
    if any(isinstance(each, bool) or not isinstance(each, float | int) for each in several):
        raise InvalidTypeError(f"{name} is {value!r}; expected 'auto', a number, or several")
    return tuple(float(each) for each in several)


def _with_constant(phi: np.ndarray) -> np.ndarray:
    result = np.empty(1 + len(phi))
    result[0], result[1:] = 1.0, phi
    return result
