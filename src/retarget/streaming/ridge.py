"""Ridge regression on a stream, exact after every sample, without keeping the samples."""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import FLOATS, as_non_negative, as_targets, as_tensor, give_back
from retarget.errors import InvalidInputError
from retarget.kernels.feature_maps import DEFAULT_MEMORY, alike, as_count, feature_map
from retarget.samples import as_samples, count, leaves, library_of, take
from retarget.state_files import explained, read_state, write_state
from retarget.streaming.intake import require_unchanged
from retarget.streaming.turns import Turn, in_turn
from retarget.theory.moments import LARGEST_NUMBER, Moments, RidgeSolution
from retarget.theory.processes import sums_of_all

# How many numbers of a portion's features are in memory at a time.
PORTION = {"cpu": 1 << 24}
PORTION_ELSEWHERE = 1 << 28
# Features, targets, and weights (None for 1 each) of some samples.
Portion = tuple[Tensor, Tensor, Tensor | None]


class Prepared(NamedTuple):
    """Features of samples, made by `StreamingRidge.prepare`."""

    like: Any  # an empty array in the library that predictions are returned in
    parts: list[tuple[Tensor, Tensor]]  # features and starting values, a few samples each


class Learned(NamedTuple):
    """All that changes as a learner learns.

    It is replaced as a whole, so that an interrupt or another thread never finds half of a change.
    """

    moments: Moments | None = None
    flat: bool = False  # whether the targets had one axis
    dtype: torch.dtype | None = None  # of the predictions
    inputs: int | None = None  # numbers in a sample

    @property
    def outputs(self) -> int:
        """Number of targets; 0 before the first sample."""
        return 0 if self.moments is None else self.moments.outputs


class StreamingRidge:
    r"""Ridge regression that learns sample by sample and is exact at all times.

    Its predictions are always those of the ridge solution on everything it has learned,

    $$W = \Big(\gamma I + \sum_i \phi_i \phi_i^\top\Big)^{-1} \sum_i \phi_i y_i^\top,$$

    in whatever order and portions the samples came. It keeps sums over the samples, not the
    samples: two learners are merged by adding their sums, and a sample is forgotten by subtracting
    its part, as if it had never been learned, up to rounding of the largest sums. (The features of
    a few samples wait to be added: fewer than 64, or than a quarter of the number of features.)

    Use it if an online learner forgets early samples, and you have features on which a linear model
    does well. It gives the same numbers as scikit-learn's `Ridge` on all data at once, and is
    recursive least squares that can also forget and merge. With m features it keeps about $m^2/2$
    float64 numbers and costs $O(m^2)$ a sample, and $O(m^3)$ for the first prediction after
    learning (about eight times that with `gamma="auto"`).

    Several threads may use one learner: they learn one after the other, and each prediction is that
    of everything learned by some moment. A call that fails or is interrupted (Ctrl-C) changes
    nothing.

    Args:
        features: A function from samples (n, ...) to features (n, m); a `torch.nn.Module`, whose
            outputs are the features (it is copied and frozen); `rt.Linear()` for the samples
            themselves; `rt.Features`; `rt.RBF`, approximated by random Fourier features; or
            `rt.EmpiricalNTK`, approximated by a random sketch.
        gamma: Ridge, 0 or more; `"auto"` chooses it by generalized cross-validation, from the sums
            alone, at the first prediction after a change.
        memory: Number of features for `rt.RBF` and `rt.EmpiricalNTK`.
        intercept: Whether to add a constant that is not penalized, as scikit-learn does.
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
        self._turn = Turn()
        self._become(Learned())

    def _become(self, learned: Learned) -> None:
        """Adopts a change by one assignment."""
        self._learned = learned
        # what the newest solution was computed from, and the solution
        self._solution: tuple[Learned, RidgeSolution] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(gamma={self.gamma!r}, samples={self.samples:,})"

    @property
    def samples(self) -> int:
        """Number of samples learned, minus those forgotten."""
        moments = self._learned.moments
        return 0 if moments is None else moments.count

    @property
    def gamma_(self) -> float:
        """The ridge in use: as given, or chosen by cross-validation."""
        return self._solved().gamma

    @property
    def nbytes(self) -> int:
        """Bytes of the sums, which do not grow with the length of the stream."""
        moments = self._learned.moments
        return 0 if moments is None else moments.nbytes

    def empty(self) -> Self:
        """Returns a learner with the same features and options that has learned nothing.

        Use it for a part of the stream, for example in another process: `merge` joins the parts.
        """
        twin = self.fork()
        twin._become(Learned())
        return twin

    @property
    def learned(self) -> Learned:
        """All that it has learned: sums over the samples, and the form of the targets."""
        return self._learned

    def holding(self, learned: Learned) -> Self:
        """Returns a learner with the same features that has learned this, and nothing else."""
        twin = self.empty()
        twin._become(learned)
        return twin

    def fork(self) -> Self:
        """Returns an independent copy that continues from here; it copies no sums."""
        fork = copy.copy(self)
        fork._turn = Turn()
        return fork

    @in_turn
    def learn(self, X: Any, Y: Any, weights: Any = None) -> Self:
        """Learns any number of samples; a call that fails changes nothing.

        Args:
            X: (n, ...) samples.
            Y: (n,) or (n, c) real targets; one-hot, for classes.
            weights: How much each sample counts, above 0: (n,) or one number; None for 1.
        """
        targets, before = as_targets("Y", Y), self._learned
        moments = None if before.moments is None else before.moments.copy()
        for portion in self._checked_portions(X, targets, weights):
            moments = self._no_sums(portion) if moments is None else moments
            moments.add(*portion)
        if moments is not None and len(targets):
            flat = np.ndim(Y) == 1 if before.moments is None else before.flat
            dtype = torch.promote_types(before.dtype or targets.dtype, targets.dtype)
            self._become(Learned(moments, flat, dtype, sample_size(X)))
        return self

    @in_turn
    def forget(self, X: Any, Y: Any, weights: Any = None) -> Self:
        """Forgets samples, as if they had never been learned, up to rounding of the largest sums.

        What is left has the rounding errors of the sums before. If they show in the solution, the
        next prediction issues a `PrecisionWarning` with the number of digits that are left.

        Args:
            X: (n, ...) samples that were learned.
            Y: The targets that they were learned with.
            weights: Their present weights, if `weights` were given or `discount` was called since.

        Raises:
            InvalidInputError: The samples cannot have been learned (the sums do not reveal every
                such mistake), or no sample would be left.
        """
        before = self._learned
        if before.moments is None:
            raise InvalidInputError("nothing has been learned yet; call learn(X, Y) before forget")
        sums = None
        for portion in self._checked_portions(X, as_targets("Y", Y), weights):
            sums = self._no_sums(portion) if sums is None else sums
            sums.add(*portion)
        if sums is not None:
            self._become(before._replace(moments=before.moments.without(sums)))
        return self

    @in_turn
    def merge(self, other: Self) -> Self:
        """Adds everything that another learner has learned to this one.

        Args:
            other: A learner with the same features (see `empty`); it is not changed.
        """
        if type(other) is not type(self):
            found, expected = type(other).__name__, type(self).__name__
            raise InvalidInputError(f"other is a {found}; expected a {expected}")
        one, two = self._learned, other._learned
        both = one.moments is not None and two.moments is not None
        mine, theirs = self._kind(one, sized=both), other._kind(two, sized=both)
        if mine != theirs:
            raise InvalidInputError(f"other has {theirs}; expected {mine}, as this learner has")
        if not alike(self._map.source, other._map.source):
            raise InvalidInputError(
                "other has another feature function, or a network with other weights; expected "
                "the features of this learner: make other with empty()"
            )
        if two.moments is None:
            return self
        if one.moments is None:
            self._become(two)
        else:
            moments = one.moments.copy()
            moments.join(two.moments)
            dtype = torch.promote_types(one.dtype or torch.float64, two.dtype or torch.float64)
            self._become(one._replace(moments=moments, dtype=dtype))
        return self

    @in_turn
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
        found = sums_of_all(*self._learned, add)
        if found is not None:
            self._become(Learned(*found))
        return self

    @in_turn
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
        before = self._learned
        if before.moments is not None and number < 1:
            moments = before.moments.copy()
            moments.scale(number)
            self._become(before._replace(moments=moments))
        return self

    def prepare(self, X: Any) -> "Prepared":
        """Computes the features of samples that will be passed to `predict` many times.

        Use it if features are expensive and you predict the same samples, such as a test set,
        after every portion of a stream. The result keeps all features in memory.
        """
        learned = self._learned
        parts = list(self._portions(X, learned, learned.outputs))
        return Prepared(library_of(take(X, slice(0, 0))), parts)

    @torch.no_grad()
    def predict(self, X: Any) -> Any:
        """Returns predictions, in the library of X and with the axes of Y.

        Args:
            X: (n, ...) samples, or the result of `prepare`.
        """
        learned = self._learned
        weights, intercept, _ = self._solved(learned)
        outputs = learned.outputs
        parts = X.parts if isinstance(X, Prepared) else self._portions(X, learned, outputs)
        like = X.like if isinstance(X, Prepared) else library_of(X)
        if isinstance(X, Prepared):
            _require_fitting(X.parts, weights)
        predicted = [
            features.to(weights) @ weights + intercept + start.to(weights)
            for features, start in parts
        ]
        result = torch.cat([weights.new_empty(0, outputs), *predicted])
        if isinstance(like, Tensor):
            result = result.to(like.device)
        return give_back(result[:, 0] if learned.flat else result, like, learned.dtype)

    def save(self, path: str | Path) -> None:
        """Saves the sums to one file; an older file is replaced only when the new one is complete.

        The file does not contain a feature map that is a function; loading it runs no code.
        """
        write_state(Path(path), *self.to_state())

    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns what `save` writes: plain values, and the sums by name."""
        moments, flat, dtype, inputs = self._learned
        values: dict[str, Any] = {
            "class": type(self).__name__,
            "features": self._map.description,
            "options": {name: getattr(self, name) for name in self.OPTIONS},
            "flat": flat,
            "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            "inputs": inputs,
        }
        if moments is None:
            return values, {}
        numbers, sums = moments.to_state()
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
        if values["dtype"] is None:
            return loaded
        learned = Learned(
            Moments.from_state(values, tensors, loaded.intercept),
            bool(values["flat"]),
            getattr(torch, values["dtype"]),
            None if values["inputs"] is None else int(values["inputs"]),
        )
        if learned.dtype not in FLOATS:
            raise InvalidInputError(f"dtype is {learned.dtype}")
        if learned.flat and learned.outputs > 1:
            raise InvalidInputError(f"flat is true, but there are {learned.outputs} outputs")
        loaded._become(learned)
        return loaded

    def _checked_portions(self, X: Any, targets: Tensor, weights: Any) -> Iterator[Portion]:
        """Yields features, targets minus the start, and weights, a few samples at a time."""
        if count(X) != len(targets):
            raise InvalidInputError(
                f"X has {count(X)} rows and Y has {len(targets)}; expected the same number of rows"
            )
        outputs, learned = targets.shape[1], self._learned
        require_unchanged("the number of outputs of Y", outputs, learned.outputs or outputs)
        chosen, stop = _as_weights(weights, len(targets)), 0
        for features, start in self._portions(X, learned, outputs):
            rows = slice(stop, stop + len(features))
            residual = targets[rows].double()
            residual = residual - start.to(residual)
            _require_moderate("the features of X", features)
            _require_moderate("Y", residual)
            yield features, residual, None if chosen is None else chosen[rows]
            stop = rows.stop

    def _no_sums(self, portion: Portion) -> Moments:
        """Returns empty sums for such samples."""
        features, targets, _ = portion
        device = torch.device("cpu") if features.device.type == "mps" else features.device
        return Moments(features.shape[1], targets.shape[1], self.intercept, device)

    def _portions(self, X: Any, learned: Learned, outputs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields features, and starting values (n, c) or (1, c), a few samples at a time."""
        rows, first, width = 1, 0, None  # the first sample shows how many features there are
        if learned.moments is not None:
            width = learned.moments.features
            rows = _portion_rows(width, learned.moments.mean.device)
        if count(X):
            as_samples("X", X)  # checked as a whole, so that an error names the caller's row
            if self._map.any_inputs and learned.inputs is not None:
                what = "the number of values in a sample of X"
                require_unchanged(what, sample_size(X), learned.inputs)
        while first < count(X):
            with torch.no_grad():
                part = take(X, slice(first, first + rows))
                features, start = self._features_and_start(part, first)
            require_unchanged(
                "the number of features of X", features.shape[1], width or features.shape[1]
            )
            if start is None or start.shape[1] != outputs:  # learning starts from zero
                start = features.new_zeros(1, outputs)
            yield features, start
            first, width = first + len(features), features.shape[1]
            rows = _portion_rows(width, features.device)

    def _features_and_start(self, part: Any, first_row: int) -> tuple[Tensor, Tensor | None]:
        """Returns features (n, m) and starting values (n, c); None if learning starts at zero.

        Errors count the rows of this part from `first_row`.
        """
        return self._map(part, first_row), None

    def _solved(self, learned: Learned | None = None) -> RidgeSolution:
        learned = self._learned if learned is None else learned
        if learned.moments is None:
            raise InvalidInputError("nothing has been learned yet; call learn(X, Y) first")
        known = self._solution
        if known is not None and known[0] is learned:
            return known[1]
        gamma = learned.moments.best_gamma() if self.gamma == "auto" else self.gamma
        solution = learned.moments.solve(gamma)
        self._solution = learned, solution
        return solution

    def _kind(self, learned: Learned, sized: bool) -> dict[str, Any]:
        """Returns what must agree to merge two learners; sizes only if both have learned."""
        kind: dict[str, Any] = {"features": self._map.description, "intercept": self.intercept}
        if sized and learned.moments is not None:
            kind |= {"feature count": learned.moments.features, "outputs": learned.outputs}
            if self._map.any_inputs:
                kind["numbers in a sample"] = learned.inputs
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
