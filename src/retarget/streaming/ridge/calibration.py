r"""Probabilities of classes, and what looks like nothing learned, from leave-one-out scores.

The outputs f of ridge regression on one-hot targets are no probabilities. Those of

    p_k = exp(f_k / T) / sum_j exp(f_j / T)

are, with the temperature T for which samples that were left out are most likely (Guo et al., 2017).
A sample is rejected if its score is lower than those of nearly all samples that were left out: at
most a share `reject` of samples like those learned is (conformal prediction).
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.scalars import as_positive
from retarget.streaming.ridge.spread import LeftOut

# Within these bounds the temperature is searched; outputs are about 0 to 1.
LEAST_TEMPERATURE = 1e-4
MOST_TEMPERATURE = 1e4
LEAST_SPREAD = 1e-300  # of a sample without any features, not to divide by zero


class Calibration(NamedTuple):
    """What samples that were left out say about the scores of others.

    Attributes:
        temperature: T.
        scores: (k,) scores of samples that were left out, in ascending order.
        times: (k,) how many samples each stands for.
    """

    temperature: float
    scores: Tensor
    times: Tensor

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Returns (n, c) probabilities of the classes."""
        return torch.softmax(outputs / self.temperature, 1)

    def looks_new(self, scores: Tensor, reject: float) -> Tensor:
        """Whether so few samples that were left out have a score as low, (n,)."""
        share = as_positive("reject", reject)
        if share >= 1:
            raise InvalidInputError(
                f"reject is {reject!r}; expected a share of the known samples above 0 and below 1"
            )
        samples = float(self.times.sum())
        if share * (samples + 1) < 1:
            raise InvalidInputError(
                f"{samples:g} samples are kept, too few to tell which score only {share:.3g} of "
                f"them have; expected at least {math.ceil(1 / share) - 1}: learn more, reject a "
                "larger share, or keep more with `calibration`"
            )
        below = torch.cat([self.times.new_zeros(1), self.times.cumsum(0)])
        as_low = below[torch.searchsorted(self.scores, scores, right=True)]
        return (1 + as_low) / (1 + samples) <= share


def calibrate(left_out: LeftOut) -> Calibration:
    """Finds the temperature, and sorts the scores; all on the CPU."""
    left_out = LeftOut(*(each.cpu() for each in left_out))
    order = score_of(left_out.predictions, left_out.spreads).sort()
    return Calibration(temperature_of(left_out), order.values, left_out.times[order.indices])


def score_of(outputs: Tensor, spreads: Tensor) -> Tensor:
    """Returns the largest output by its standard deviation (n,), up to a factor."""
    return outputs.amax(1) / spreads.clamp(min=LEAST_SPREAD).sqrt()


def temperature_of(left_out: LeftOut) -> float:
    """Returns the temperature for which the samples that were left out are most likely.

    A sample more than there are, spread evenly over the classes, keeps it above zero where all are
    recognized (Platt, 1999).
    """
    outputs = left_out.predictions
    weights = left_out.times / (left_out.times.sum() + 1)
    own = (left_out.targets * outputs).sum(1)
    even = outputs.mean(1)
    share = 1 - float(weights.sum())
    mean = weights / weights.sum()

    def loss(power: float) -> float:
        rate = math.exp(-power)
        partition = torch.logsumexp(outputs * rate, 1)
        right = (weights * (partition - rate * own)).sum()
        smooth = share * (mean * (partition - rate * even)).sum()
        return float(right + smooth)

    bounds = math.log(LEAST_TEMPERATURE), math.log(MOST_TEMPERATURE)
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(float(best.x))


def expected_calibration_error(
    probabilities: np.ndarray, right: np.ndarray, bins: int = 15
) -> float:
    """Returns the mean gap between the largest probability and how often it is right.

    Args:
        probabilities: (n, c) of the classes.
        right: (n,) whether the class with the largest probability is the true one.
        bins: Of equal width, within which both are averaged (Guo et al., 2017).
    """
    top = probabilities.max(axis=1)
    places = np.minimum((top * bins).astype(int), bins - 1)
    gaps = np.bincount(places, weights=top - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(top))
