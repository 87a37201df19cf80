"""Turns samples into the rows that a learner adds up, a bounded number of them at a time."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import as_tensor
from retarget.errors import InvalidInputError
from retarget.form import Form
from retarget.kernels.feature_maps import FeatureMap
from retarget.samples import as_samples, count, leaves, take
from retarget.streaming.intake import require_unchanged
from retarget.streaming.ridge.kept import KeptRows
from retarget.streaming.ridge.moments import LARGEST_NUMBER, Moments
from retarget.streaming.ridge.views import Views

# How many numbers of a portion's features are in memory at a time.
PORTION = {"cpu": 1 << 24}
PORTION_ELSEWHERE = 1 << 28


class Portion(NamedTuple):
    """Some samples to learn or forget: features, targets minus the start, weights (None for 1)."""

    features: Tensor
    targets: Tensor
    weights: Tensor | None
    network_outputs: int | None


class RidgeState(NamedTuple):
    """All that changes as a learner learns.

    It is replaced as a whole, so that an interrupt or another thread never finds half of a change.
    """

    moments: Moments | None = None
    form: Form = Form()  # of the targets; predictions are in the library of X
    inputs: int | None = None  # numbers in a sample
    # of the network whose tangents are learned: their random combinations depend on it
    network_outputs: int | None = None
    kept: KeptRows = KeptRows(0)

    @property
    def outputs(self) -> int:
        """Number of targets; 0 before the first sample."""
        return 0 if self.moments is None else self.moments.outputs


class SampleRows:
    """The features of every view of samples, and the values that learning starts from.

    Args:
        features: The map from samples to features.
        views: The views of a sample; each is a row.
    """

    def __init__(self, features: FeatureMap, views: Views) -> None:
        self._map = features
        self._views = views

    def learned(
        self, X: Any, targets: Tensor, weights: Any, learned: RidgeState
    ) -> Iterator[Portion]:
        """Yields features, targets minus the start, and weights, for samples to learn or forget."""
        if count(X) != len(targets):
            raise InvalidInputError(
                f"X has {count(X)} rows and Y has {len(targets)}; expected the same number of rows"
            )
        outputs = targets.shape[1]
        require_unchanged("the number of outputs of Y", outputs, learned.outputs or outputs)
        chosen = _as_weights(weights, len(targets))
        stop = 0
        for seen, network_outputs in self._seen(X, learned, outputs):
            rows = slice(stop, stop + len(seen[0][0]))
            true = targets[rows].double()
            features = torch.cat([each for each, _ in seen])
            residual = torch.cat([true - start.to(true) for _, start in seen])
            _require_moderate("the features of X", features)
            _require_moderate("Y", true)
            _require_moderate("Y minus the network's own outputs", residual)
            some = None if chosen is None else chosen[rows].repeat(len(seen))
            yield Portion(features, residual, some, network_outputs)
            stop = rows.stop

    def means(self, X: Any, learned: RidgeState) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields features and starting values, the means over views: predictions are linear."""
        for seen, _ in self._seen(X, learned, learned.outputs):
            features, starts = zip(*seen, strict=True)
            yield sum(features) / len(seen), sum(starts) / len(seen)

    def _seen(
        self, X: Any, learned: RidgeState, outputs: int
    ) -> Iterator[tuple[list[tuple[Tensor, Tensor]], int | None]]:
        """Yields what the views of a few samples give, and the number of the network's outputs.

        That is features, and starting values (n, c) or (1, c), for each view.
        """
        width = None
        rows = 1  # the first sample shows how many features there are
        first = 0
        network_outputs = learned.network_outputs
        if learned.moments is not None:
            width = learned.moments.features
            rows = self._at_a_time(width, learned.moments.mean.device)
        if count(X):
            as_samples("X", X)  # checked as a whole, so that an error names the caller's row
            self._views.require_fit(X)
            if self._map.any_inputs and learned.inputs is not None:
                what = "the number of values in a sample of X"
                require_unchanged(what, sample_size(X), learned.inputs)
        while first < count(X):
            with torch.no_grad():
                portion = take(X, slice(first, first + rows))
                mapped = [
                    self._map.with_start(each, first) for each in self._views.of(portion, first)
                ]
            seen = []
            for features, start in mapped:
                width = width or features.shape[1]
                require_unchanged("the number of features of X", features.shape[1], width)
                if start is not None:
                    network_outputs = network_outputs or start.shape[1]
                    what = "the number of outputs of the network for X"
                    require_unchanged(what, start.shape[1], network_outputs)
                if start is None or start.shape[1] != outputs:  # learning starts from zero
                    start = features.new_zeros(1, outputs)
                seen.append((features, start))
            yield seen, network_outputs
            first += len(features)
            rows = self._at_a_time(features.shape[1], features.device)

    def _at_a_time(self, features: int, device: torch.device) -> int:
        numbers = PORTION.get(device.type, PORTION_ELSEWHERE)
        return max(1, numbers // (features * len(self._views)))


def _as_weights(weights: Any, count: int) -> Tensor | None:
    """Returns the weights (count,) in float64, or None if all are 1."""
    if weights is None:
        return None
    given = as_tensor("weights", weights).double()
    if given.ndim == 0:
        given = given.expand(count)
    if given.shape != (count,):
        raise InvalidInputError(
            f"weights has shape {tuple(given.shape)}; expected ({count},), or one number"
        )
    wrong = ~((given >= 1 / LARGEST_NUMBER) & (given <= LARGEST_NUMBER))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(
            f"weights holds {float(given[row])} in row {row}, which is not above 0, or is too "
            "large; leave out samples that should not count"
        )
    return given


def _require_moderate(name: str, values: Tensor) -> None:
    """Raises if products of these numbers would overflow, which would spoil the sums for good."""
    least, most = values.aminmax()
    if not (float(least) >= -LARGEST_NUMBER and float(most) <= LARGEST_NUMBER):
        raise InvalidInputError(
            f"{name} range from {float(least):.3g} to {float(most):.3g}; expected at most "
            f"{LARGEST_NUMBER:g} in size, so scale them"
        )


def sample_size(X: Any) -> int:
    """Returns how many numbers a sample has."""
    return sum(math.prod(np.shape(leaf)[1:]) for leaf in leaves(X))
