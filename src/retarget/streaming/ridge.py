"""Ridge regression on a stream, exact after every sample, without keeping the samples."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import FLOATS, as_non_negative, as_targets, as_tensor, give_back
from retarget.errors import InvalidInputError
from retarget.kernels.feature_maps import DEFAULT_MEMORY, as_count, feature_map
from retarget.samples import count, leaves, library_of, take
from retarget.state_files import explained, read_state, write_state
from retarget.streaming.intake import require_unchanged
from retarget.theory.moments import LARGEST_NUMBER, SUMS, Moments, RidgeSolution, sums_of_all

# How many numbers of a portion's features are in memory at a time.
PORTION = {"cpu": 1 << 24}
PORTION_ELSEWHERE = 1 << 28
# Features, targets, and weights (None for 1 each) of some samples.
Portion = tuple[Tensor, Tensor, Tensor | None]


class Prepared(NamedTuple):
    """Features of samples, made by `StreamingRidge.prepare`."""

    like: Any  # an empty array in the library that predictions are returned in
    parts: list[tuple[Tensor, Tensor]]  # features and starting values, a few samples each


class StreamingRidge:
    r"""Ridge regression that learns sample by sample and is exact at all times.

    Its predictions are always those of the ridge solution on everything it has learned,

    $$W = \Big(\gamma I + \sum_i \phi_i \phi_i^\top\Big)^{-1} \sum_i \phi_i y_i^\top,$$

    in whatever order and portions the samples came. It keeps sums over the samples, not the
    samples: two learners are merged by adding their sums, and a sample is forgotten exactly by
    subtracting its part.

    Use it if an online learner forgets early samples, and you have features on which a linear model
    does well. It gives the same numbers as scikit-learn's `Ridge` on all data at once, and is
    recursive least squares that can also forget and merge. With m features it keeps $m^2$ float64
    numbers and costs $O(m^2)$ a sample, and $O(m^3)$ for the first prediction after learning
    (about eight times that with `gamma="auto"`).

    Args:
        features: A function from samples (n, ...) to features (n, m); a `torch.nn.Module`, whose
            outputs are the features (it is copied and frozen); `rt.Linear()` for the samples
            themselves; `rt.Features`; `rt.RBF`, approximated by random Fourier features; or
            `rt.EmpiricalNTK`, approximated by a random sketch.
        gamma: Ridge, 0 or more; `"auto"` chooses it by generalised cross-validation, from the sums
            alone, at the first prediction after a change.
        memory: Number of features for `rt.RBF` and `rt.EmpiricalNTK`.
        intercept: Whether to add a constant that is not penalised, as scikit-learn does.
        seed: Seed of the random features.

    Examples:
        It learns two portions in the wrong order, and forgets one sample again:

        >>> import numpy as np, retarget as rt
        >>> X, Y = np.array([[1.0], [2.0], [9.0]]), np.array([1.0, 2.0, 0.0])
        >>> learner = rt.StreamingRidge(rt.Linear(), gamma=5.0)
        >>> learner.learn(X[1:], Y[1:]).learn(X[:1], Y[:1]).forget(X[2:], Y[2:]).samples
        2
        >>> learner.predict(np.array([[10.0]]))  # (1 + 4) / (5 + 1 + 4) a unit
        array([5.])
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("gamma", "memory", "intercept", "seed")

    def __init__(
        self,
        features: Any,
        gamma: float | Literal["auto"] = "auto",
        *,
        memory: int = DEFAULT_MEMORY,
        intercept: bool = False,
        seed: int = 0,
    ) -> None:
        self.gamma: float | Literal["auto"] = as_ridge(gamma)
        self.memory, self.seed = as_count("memory", memory), int(seed)
        self.intercept = bool(intercept)
        self._map = feature_map(features, self.memory, self.seed)
        self._forget_all()

    def _forget_all(self) -> None:
        self._moments: Moments | None = None
        self._solution: RidgeSolution | None = None
        self._flat = False
        self._dtype: torch.dtype | None = None
        self._inputs: int | None = None  # numbers in a sample

    def __repr__(self) -> str:
        return f"{type(self).__name__}(gamma={self.gamma!r}, samples={self.samples:,})"

    @property
    def samples(self) -> int:
        """Number of samples learned, minus those forgotten."""
        return 0 if self._moments is None else self._moments.count

    @property
    def gamma_(self) -> float:
        """The ridge in use: as given, or chosen by cross-validation."""
        return self._solved().gamma

    @property
    def nbytes(self) -> int:
        """Bytes kept for the stream, which do not grow with its length."""
        if self._moments is None:
            return 0
        return sum(getattr(self._moments, name).nbytes for name in SUMS)

    def empty(self) -> Self:
        """Returns a learner with the same features and options that has learned nothing.

        Use it for a part of the stream, for example in another process: `merge` joins the parts.
        """
        twin = copy.copy(self)
        twin._forget_all()
        return twin

    def fork(self) -> Self:
        """Returns a copy that continues from here, to try out a few more samples.

        Without an intercept it copies nothing of size m x m: the sums are shared until you call
        `settle` on the fork, after which this learner must not be used.
        """
        fork = copy.copy(self)
        fork._moments = None if self._moments is None else self._moments.fork()
        return fork

    def settle(self) -> None:
        """Makes this fork the owner of the sums that it shares."""
        if self._moments is not None:
            self._moments.settle()

    def learn(self, X: Any, Y: Any, weights: Any = None) -> Self:
        """Learns any number of samples; a call that fails changes nothing.

        Args:
            X: (n, ...) samples.
            Y: (n,) or (n, c) real targets; one-hot, for classes.
            weights: How much each sample counts, above 0: (n,) or one number; None for 1.
        """
        targets = as_targets("Y", Y)
        portions = self._checked_portions(X, targets, weights)
        first = next(portions, None)
        if first is None:
            return self
        if self._moments is not None and len(first[0]) == len(targets):
            self._moments.add(*first)  # that is all, and it is checked: nothing can fail now
        else:
            new = self._summed(first, portions)
            if self._moments is None:
                self._moments, self._flat = new, np.ndim(Y) == 1
            else:
                self._moments.join(new)
        self._dtype = torch.promote_types(self._dtype or targets.dtype, targets.dtype)
        self._solution, self._inputs = None, sample_size(X)
        return self

    def forget(self, X: Any, Y: Any, weights: Any = None) -> Self:
        """Forgets samples, as if they had never been learned.

        Args:
            X: (n, ...) samples that were learned.
            Y: The targets that they were learned with.
            weights: Their present weights, if `weights` were given or `discount` was called since.

        Raises:
            InvalidInputError: The samples cannot have been learned (the sums do not reveal every
                such mistake), or no sample would be left.
        """
        if self._moments is None:
            raise InvalidInputError("nothing has been learned yet; call learn(X, Y) before forget")
        portions = self._checked_portions(X, as_targets("Y", Y), weights)
        first = next(portions, None)
        if first is not None:
            self._moments = self._moments.without(self._summed(first, portions))
            self._solution = None
        return self

    def merge(self, other: Self) -> Self:
        """Adds everything that another learner has learned to this one.

        Args:
            other: A learner with the same features; it is not changed.
        """
        if type(other) is not type(self):
            found, expected = type(other).__name__, type(self).__name__
            raise InvalidInputError(f"other is a {found}; expected a {expected}")
        both = self._moments is not None and other._moments is not None
        mine, theirs = self._kind(sized=both), other._kind(sized=both)
        if mine != theirs:
            raise InvalidInputError(f"other has {theirs}; expected {mine}, as this learner has")
        if other._moments is None:
            return self
        if self._moments is None:
            self._moments = other._moments.copy()
            self._flat, self._dtype, self._inputs = other._flat, other._dtype, other._inputs
        else:
            self._moments.join(other._moments)
            self._dtype = torch.promote_types(self._known_dtype(), other._known_dtype())
        self._solution = None
        return self

    def all_reduce(self, add: Callable[[Tensor], Any]) -> Self:
        """Adds up the learners of several processes: each process then knows everything.

        Every process starts empty, learns its own part of the stream, and calls this once. To
        continue, keep the result in one process and start empty in the others: otherwise the
        result would count once for each process. If the processes do not match (in features or
        outputs), all of them raise the same error, and nothing changes.

        Args:
            add: A function that replaces a float64 tensor, in place, by its sum over all processes,
                such as `torch.distributed.all_reduce`. Every process calls it five times, in the
                same order.
        """
        found = sums_of_all(self._moments, self._flat, self._dtype, self._inputs, add)
        if found is not None:
            self._moments, self._flat, self._dtype, self._inputs = found
            self._solution = None
        return self

    def discount(self, factor: float) -> Self:
        """Reduces the weight of everything learned so far, for targets that drift.

        Args:
            factor: Above 0 and at most 1. If you call this once a sample, it is the forgetting
                factor of recursive least squares, with a memory of about 1 / (1 - factor) samples.

        Raises:
            InvalidInputError: The factor is out of range, or almost nothing would be left.
        """
        number = as_non_negative("factor", factor)
        if not 0 < number <= 1:
            raise InvalidInputError(f"factor is {factor!r}; expected above 0 and at most 1")
        if self._moments is not None and number < 1:
            self._moments.scale(number)
            self._solution = None
        return self

    def prepare(self, X: Any) -> "Prepared":
        """Computes the features of samples that will be passed to `predict` many times.

        Use it if features are expensive and you predict the same samples, such as a test set,
        after every portion of a stream. The result keeps all features in memory.
        """
        return Prepared(library_of(take(X, slice(0, 0))), list(self._portions(X, self._outputs)))

    @torch.no_grad()
    def predict(self, X: Any) -> Any:
        """Returns predictions, in the library of X and with the axes of Y.

        Args:
            X: (n, ...) samples, or the result of `prepare`.
        """
        weights, intercept, _ = self._solved()
        parts = X.parts if isinstance(X, Prepared) else self._portions(X, self._outputs)
        like = X.like if isinstance(X, Prepared) else library_of(X)
        if isinstance(X, Prepared):
            _require_fitting(X.parts, weights)
        predicted = [
            features.to(weights) @ weights + intercept + start.to(weights)
            for features, start in parts
        ]
        result = torch.cat([weights.new_empty(0, self._outputs), *predicted])
        if isinstance(like, Tensor):
            result = result.to(like.device)
        return give_back(result[:, 0] if self._flat else result, like, self._dtype)

    def save(self, path: str | Path) -> None:
        """Saves the sums to one file; an older file is replaced only when the new one is complete.

        The file does not contain a feature map that is a function; loading it runs no code.
        """
        write_state(Path(path), *self.to_state())

    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns what `save` writes: plain values, and the sums by name (not copies)."""
        values: dict[str, Any] = {
            "class": type(self).__name__,
            "features": self._map.description,
            "options": {name: getattr(self, name) for name in self.OPTIONS},
            "flat": self._flat,
            "dtype": None if self._dtype is None else str(self._dtype).removeprefix("torch."),
            "inputs": self._inputs,
        }
        if self._moments is None:
            return values, {}
        numbers, sums = self._moments.to_state()
        return values | numbers, sums

    @classmethod
    def load(cls, path: str | Path, features: Any, device: str | torch.device = "cpu") -> Self:
        """Loads a file written by `save`.

        Args:
            path: The file.
            features: The features, as in the constructor: a file cannot contain a function.
            device: The device of the features; the sums are loaded there.
        """
        values, tensors = read_state(Path(path), device, cls.__name__)
        with explained(path, cls.__name__):
            return cls.from_state(values, tensors, features)

    @classmethod
    def from_state(cls, values: dict[str, Any], tensors: dict[str, Tensor], features: Any) -> Self:
        """Makes a learner from the result of `to_state`; the features are as in `load`."""
        loaded = cls(features, **values["options"])
        saved, found = values["features"], loaded._map.description
        if saved != found:
            raise InvalidInputError(f"it was saved with the features {saved}, not {found}")
        loaded._flat = bool(values["flat"])
        if values["dtype"] is not None:
            loaded._dtype = getattr(torch, values["dtype"])
            loaded._moments = Moments.from_state(values, tensors, loaded.intercept)
            loaded._inputs = None if values["inputs"] is None else int(values["inputs"])
            if loaded._dtype not in FLOATS:
                raise InvalidInputError(f"dtype is {loaded._dtype}")
            if loaded._flat and loaded._outputs > 1:
                raise InvalidInputError(f"flat is true, but there are {loaded._outputs} outputs")
        return loaded

    def _checked_portions(self, X: Any, targets: Tensor, weights: Any) -> Iterator[Portion]:
        """Yields features, targets minus the start, and weights, a few samples at a time."""
        if count(X) != len(targets):
            raise InvalidInputError(
                f"X has {count(X)} rows and Y has {len(targets)}; expected the same number of rows"
            )
        outputs = targets.shape[1]
        require_unchanged("the number of outputs of Y", outputs, self._outputs or outputs)
        chosen, stop = _as_weights(weights, len(targets)), 0
        for features, start in self._portions(X, outputs):
            rows = slice(stop, stop + len(features))
            residual = targets[rows].double()
            residual = residual - start.to(residual)
            _require_moderate("the features of X", features)
            _require_moderate("Y", residual)
            yield features, residual, None if chosen is None else chosen[rows]
            stop = rows.stop

    def _summed(self, first: Portion, others: Iterator[Portion]) -> Moments:
        """Returns the sums over these samples alone."""
        features, targets, _ = first
        device = torch.device("cpu") if features.device.type == "mps" else features.device
        sums = Moments(features.shape[1], targets.shape[1], self.intercept, device)
        for portion in itertools.chain([first], others):
            sums.add(*portion)
        return sums

    def _portions(self, X: Any, outputs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields features, and starting values (n, c) or (1, c), a few samples at a time."""
        rows, first, width = 1, 0, None  # the first sample shows how many features there are
        if self._moments is not None:
            width = self._moments.features
            rows = _portion_rows(width, self._moments.mean.device)
        if self._map.any_inputs and self._inputs is not None and count(X):
            require_unchanged("the number of values in a sample of X", sample_size(X), self._inputs)
        while first < count(X):
            with torch.no_grad():
                features, start = self._features_and_start(take(X, slice(first, first + rows)))
            require_unchanged(
                "the number of features of X", features.shape[1], width or features.shape[1]
            )
            if start is None or start.shape[1] != outputs:  # learning starts from zero
                start = features.new_zeros(1, outputs)
            yield features, start
            first, width = first + len(features), features.shape[1]
            rows = _portion_rows(width, features.device)

    def _features_and_start(self, part: Any) -> tuple[Tensor, Tensor | None]:
        """Returns features (n, m) and starting values (n, c); None if learning starts at zero."""
        return self._map(part), None

    def _solved(self) -> RidgeSolution:
        if self._moments is None:
            raise InvalidInputError("nothing has been learned yet; call learn(X, Y) first")
        if self._solution is None:
            gamma = self._moments.best_gamma() if self.gamma == "auto" else self.gamma
            self._solution = self._moments.solve(gamma)
        return self._solution

    @property
    def _outputs(self) -> int:
        return 0 if self._moments is None else self._moments.outputs

    def _known_dtype(self) -> torch.dtype:
        return self._dtype or torch.float64

    def _kind(self, sized: bool) -> dict[str, Any]:
        """Returns what must agree to merge two learners; sizes only if both have learned."""
        kind: dict[str, Any] = {"features": self._map.description, "intercept": self.intercept}
        if sized and self._moments is not None:
            kind |= {"feature count": self._moments.features, "outputs": self._outputs}
            if self._map.any_inputs:
                kind["numbers in a sample"] = self._inputs
        return kind


def _require_fitting(parts: list[tuple[Tensor, Tensor]], weights: Tensor) -> None:
    """Rejects features that were prepared before learning, or for another learner."""
    for features, start in parts:
        found = features.shape[1], start.shape[1]
        if found != tuple(weights.shape):
            raise InvalidInputError(
                f"X was prepared with {found[0]} features for {found[1]} outputs, but the learner "
                f"has {weights.shape[0]} and {weights.shape[1]}; call prepare again, after learn"
            )


def as_ridge(gamma: Any) -> float | Literal["auto"]:
    """Checks a ridge: a number, or "auto" for cross-validation."""
    return "auto" if isinstance(gamma, str) and gamma == "auto" else as_non_negative("gamma", gamma)


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
    if not bool(((given >= 1 / LARGEST_NUMBER) & (given <= LARGEST_NUMBER)).all()):
        raise InvalidInputError(
            "weights contains a number that is not above 0, or is too large; leave out samples "
            "that should not count"
        )
    return given


def _require_moderate(name: str, values: Tensor) -> None:
    """Raises if products of these numbers would overflow, which would spoil the sums for good."""
    least, most = values.aminmax() if values.numel() else (values.new_zeros(()),) * 2
    if not (float(least) >= -LARGEST_NUMBER and float(most) <= LARGEST_NUMBER):
        raise InvalidInputError(
            f"{name} range from {float(least):.3g} to {float(most):.3g}; expected at most "
            f"{LARGEST_NUMBER:g} in size, so scale them"
        )


def sample_size(X: Any) -> int:
    """Returns how many numbers a sample has."""
    return sum(math.prod(np.shape(leaf)[1:]) for leaf in leaves(X))


def _portion_rows(features: int, device: torch.device) -> int:
    return max(1, PORTION.get(device.type, PORTION_ELSEWHERE) // features)
