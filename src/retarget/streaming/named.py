"""Features of samples whose numbers have names, which come and go."""

import hashlib
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels.feature_maps import as_count
from retarget.kernels.simple import RBF
from retarget.theory.moments import LARGEST_NUMBER


class NamedFeatures:
    r"""Vectors of features from samples that are dicts of numbers.

    A name that a sample does not have counts as 0, and so does one that no sample had before: a
    new name appends a feature, and changes none of those that are there. Random features of the
    Gaussian kernel, $\cos(\omega \cdot x)$ and $\sin(\omega \cdot x)$, have frequencies for each
    name that come from the name itself, so that the order of names does not matter.

    Args:
        features: `"linear"` for the numbers themselves. An `rt.RBF` for random features of it, and
            beside them the numbers, divided by its width; `"rbf"` for one whose width is the root
            of the number of names in the first sample.
        memory: Number of random features; one more than that if it is odd.
        most: The most names that there may be.
        seed: Seed of the random features.

    Example:
        >>> features = NamedFeatures("linear")
        >>> features.meet({"size": 3.0, "age": 7.0}), features.names
        (array([7., 3.]), ['age', 'size'])
        >>> features({"size": 4.0, "colour": 9.0})
        array([0., 4.])
    """

    def __init__(
        self, features: Any = "linear", memory: int = 256, most: int = 1024, seed: int = 0
    ) -> None:
        if not (isinstance(features, RBF) or features in ("linear", "rbf")):
            raise InvalidInputError(f"features is {features!r}; expected 'linear', 'rbf' or rt.RBF")
        self.most, self.seed = as_count("most", most), int(seed)
        self._half = 0 if features == "linear" else -(-as_count("memory", memory) // 2)
        self._width = features.width if isinstance(features, RBF) else None
        self._scaled = features != "linear"
        self._places: dict[Hashable, int] = {}
        self._frequencies = np.zeros((0, self._half))
        # the sample that was asked for last, which is often the next to be learned
        self._asked: tuple[dict[Hashable, Any], np.ndarray] | None = None

    @property
    def names(self) -> list[Hashable]:
        """The names so far, in the order of their features."""
        return list(self._places)

    def meet(self, sample: Mapping[Hashable, Any]) -> np.ndarray:
        """(m,) the features of a sample, for whose new names features are appended."""
        if self._asked is not None and sample == self._asked[0]:
            return self._asked[1]
        values = _numbers(sample)
        _require_moderate(sample, values)
        new = sample.keys() - self._places.keys()
        if new:
            self._append(sorted(new, key=repr))
        return self._features(list(sample), values)

    def __call__(self, sample: Mapping[Hashable, Any]) -> np.ndarray:
        """(m,) the features of a sample, whose new names are left out."""
        features = self.rows(list(sample), _numbers(sample))
        self._asked = (dict(sample), features) if sample.keys() <= self._places.keys() else None
        return features

    def rows(self, names: list[Hashable], values: np.ndarray) -> np.ndarray:
        """(n, m) features of samples whose columns have these names, or (m,) of one sample."""
        _require_moderate(names, values)
        return self._features(names, values)

    def _append(self, new: list[Hashable]) -> None:
        known = len(self._places)
        if known + len(new) > self.most:
            raise InvalidInputError(
                f"{new[0]!r:.50} would be one of {known + len(new):,} features; expected at most "
                f"{self.most:,}: allow more, or hash their names"
            )
        if self._width is None:
            self._width = math.sqrt(len(new)) if self._scaled else 1.0
        drawn = [_frequencies(name, self._half, self.seed) for name in new]
        scaled = np.array(drawn).reshape(len(new), self._half) * (math.sqrt(2) / self._width)
        self._frequencies = np.concatenate([self._frequencies, scaled])
        self._places |= zip(new, range(known, known + len(new)), strict=True)
        self._asked = None

    def _features(self, names: list[Hashable], values: np.ndarray) -> np.ndarray:
        known, half = len(self._places), self._half
        inputs = np.zeros((*values.shape[:-1], known + 1))
        # unknown names go to one place more, which is dropped
        inputs[..., [self._places.get(name, known) for name in names]] = values
        inputs = inputs[..., :-1]
        if not self._scaled or self._width is None:
            return inputs
        result = np.empty((*inputs.shape[:-1], 2 * half + known))
        angles = inputs @ self._frequencies
        np.cos(angles, out=result[..., :half])
        np.sin(angles, out=result[..., half : 2 * half])
        result[..., : 2 * half] *= math.sqrt(1 / half)
        np.divide(inputs, self._width, out=result[..., 2 * half :])
        return result


def _numbers(sample: Mapping[Hashable, Any]) -> np.ndarray:
    """(d,) the values of a sample."""
    try:
        return np.fromiter(sample.values(), np.float64, len(sample))
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"the sample {dict(sample)!r:.80} has a value that is not a number ({error}); expected "
            "numbers: encode words first"
        ) from error


def _require_moderate(names: Iterable[Hashable], values: np.ndarray) -> None:
    """Refuses numbers that are not finite, or whose products would overflow."""
    if not np.vdot(values, values) <= LARGEST_NUMBER**2:
        raise InvalidInputError(
            f"a value of {', '.join(map(repr, names)):.80} is not finite, or beyond "
            f"{LARGEST_NUMBER:g}; expected finite numbers: fill in missing ones first"
        )


def _frequencies(name: Hashable, count: int, seed: int) -> np.ndarray:
    """(count,) standard normal numbers that depend on the name and the seed alone."""
    digest = hashlib.sha256(f"{seed} {type(name).__name__} {name!r}".encode()).digest()
    return np.random.default_rng(list(digest)).standard_normal(count)
