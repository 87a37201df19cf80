"""Feature vectors for samples that are dicts, whose keys may come and go."""

import hashlib
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels import Linear, as_kernel
from retarget.kernels.lookup import named_class
from retarget.kernels.stationary import Stationary
from retarget.scalars import as_count
from retarget.streaming.ridge.moments import LARGEST_NUMBER
from retarget.text import as_seed


class NamedFeatures:
    r"""Turns samples that are dicts of numbers into feature vectors.

    A missing name counts as 0. A new name appends a feature, which was 0 in all earlier samples,
    and does not change the others. Random features of a kernel such as the Gaussian, $\cos(\omega
    \cdot x)$ and $\sin(\omega \cdot x)$, take the frequencies for each name from a hash of the
    name, so the order of the names does not matter.

    Args:
        kernel: `"linear"` for the numbers themselves. `rt.RBF`, `rt.Laplace`, `rt.Matern32` or
            `rt.Matern52` for random features of it, together with the numbers divided by its width;
            `"rbf"`, for example, for one whose width is the usual one for the number of names in
            the first sample.
        features: Number of random features; rounded up to an even number.
        most: The maximum number of names.
        seed: Seed of the random features.

    Examples:
        >>> features = NamedFeatures("linear")
        >>> features.meet({"size": 3.0, "age": 7.0}), features.names
        (array([7., 3.]), ['age', 'size'])
        >>> features({"size": 4.0, "color": 9.0})
        array([0., 4.])
    """

    def __init__(
        self, kernel: Any = "linear", features: int = 256, most: int = 1024, seed: int = 0
    ) -> None:
        known = as_kernel(kernel) if named_class(kernel) is not None else kernel
        self._random = known if isinstance(known, Stationary) else None
        if self._random is None and type(known) is not Linear:
            raise InvalidInputError(
                f"kernel is {kernel!r:.80}; expected 'linear', or a kernel of the differences "
                "between samples or its name, such as rt.RBF or 'rbf'"
            )
        self.most = as_count("most", most)
        self.seed = as_seed("seed", seed)
        self._half = 0 if self._random is None else -(-as_count("features", features) // 2)
        self._width: float | None = None  # known with the first names
        self._places: dict[Hashable, int] = {}
        self._frequencies = np.zeros((0, self._half))
        # the last sample that was predicted, which is often the next one to be learned
        self._asked: tuple[dict[Hashable, Any], np.ndarray] | None = None

    @property
    def names(self) -> list[Hashable]:
        """All names so far, in the order of their features."""
        return list(self._places)

    def meet(self, sample: Mapping[Hashable, Any]) -> np.ndarray:
        """Returns the features (m,) of a sample, after adding a feature for each new name."""
        asked = self._asked
        if asked is not None and sample == asked[0]:
            return asked[1]
        return self.meet_rows(list(sample), _numbers(sample))

    def meet_rows(self, names: list[Hashable], values: np.ndarray) -> np.ndarray:
        """The same for samples (n, d) with these column names."""
        _require_moderate(names, values)
        new = set(names) - self._places.keys()
        if new:
            self._append(sorted(new, key=repr))
        return self._features(names, values)

    def __call__(self, sample: Mapping[Hashable, Any]) -> np.ndarray:
        """Returns the features (m,) of a sample, ignoring new names."""
        features = self.rows(list(sample), _numbers(sample))
        self._asked = (dict(sample), features) if sample.keys() <= self._places.keys() else None
        return features

    def rows(self, names: list[Hashable], values: np.ndarray) -> np.ndarray:
        """Returns features (n, m) of samples with these column names, or (m,) for one sample."""
        _require_moderate(names, values)
        return self._features(names, values)

    def _append(self, new: list[Hashable]) -> None:
        known = len(self._places)
        if known + len(new) > self.most:
            raise InvalidInputError(
                f"{new[0]!r:.50} would be one of {known + len(new):,} features; expected at most "
                f"{self.most:,}, as memory grows with their square: allow more, or hash the names"
            )
        if self._random is not None:
            if self._width is None:
                self._width = self._random.width_for(len(new))
            drawn = self._drawn(self._random, new) / self._width
            self._frequencies = np.concatenate([self._frequencies, drawn])
        self._places |= zip(new, range(known, known + len(new)), strict=True)
        self._asked = None

    def _drawn(self, kernel: Stationary, names: list[Hashable]) -> np.ndarray:
        """Returns frequencies (names, m) of the kernel of width 1."""
        each = [_normals(name, self._half, self.seed) for name in names]
        numbers = range(kernel.SHARED_NORMALS)  # drawn for names that no sample has
        common = [_normals(("all names", i), self._half, self.seed) for i in numbers]
        normals, shared = (
            torch.from_numpy(np.array(rows).reshape(len(rows), self._half))
            for rows in (each, common)
        )
        drawn: np.ndarray = kernel.frequencies(normals, shared).numpy()
        return drawn

    def _features(self, names: list[Hashable], values: np.ndarray) -> np.ndarray:
        known = len(self._places)
        half = self._half
        inputs = np.zeros((*values.shape[:-1], known + 1))
        # unknown names go to an extra column, which is dropped
        inputs[..., [self._places.get(name, known) for name in names]] = values
        inputs = inputs[..., :-1]
        if self._width is None:
            return inputs
        result = np.empty((*inputs.shape[:-1], 2 * half + known))
        angles = inputs @ self._frequencies
        np.cos(angles, out=result[..., :half])
        np.sin(angles, out=result[..., half : 2 * half])
        result[..., : 2 * half] *= math.sqrt(1 / half)
        np.divide(inputs, self._width, out=result[..., 2 * half :])
        return result


def _numbers(sample: Mapping[Hashable, Any]) -> np.ndarray:
    """Returns the values (d,) of a sample."""
    try:
        return np.fromiter(sample.values(), np.float64, len(sample))
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"the sample {dict(sample)!r:.80} has a value that is not a number ({error}); expected "
            "numbers: encode words first"
        ) from error


def _require_moderate(names: Iterable[Hashable], values: np.ndarray) -> None:
    """Raises if a number is not finite, or products would overflow."""
    if not np.vdot(values, values) <= LARGEST_NUMBER**2:
        raise InvalidInputError(
            f"a value of {', '.join(map(repr, names)):.80} is not finite, or is larger than "
            f"{LARGEST_NUMBER:g}; expected finite numbers: fill in missing ones first"
        )


def _normals(name: Hashable, count: int, seed: int) -> np.ndarray:
    """Returns standard normal numbers (count,) that depend only on the name and the seed."""
    digest = hashlib.sha256(f"{seed} {type(name).__name__} {name!r}".encode()).digest()
    return np.random.default_rng(list(digest)).standard_normal(count)
