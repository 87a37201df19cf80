"""Ridge regression on a stream, exact at every moment, with nothing of the stream kept."""

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

# Numbers of a portion's features that are held at a time.
PORTION = {"cpu": 1 << 24}
PORTION_ELSEWHERE = 1 << 28
# Features, targets, and weights (None for 1 each) of some samples.
Portion = tuple[Tensor, Tensor, Tensor | None]


class Prepared(NamedTuple):
    """Features of samples, made by `StreamingRidge.prepare`."""

    like: Any  # no samples, in the library that predictions are given in
    parts: list[tuple[Tensor, Tensor]]  # features and where learning starts, a few samples each


class StreamingRidge:
    r"""Ridge regression that learns sample by sample and is never behind.

    At every moment its predictions are the ridge solution on everything it has learned,

    $$W = \Big(\gamma I + \sum_i \phi_i \phi_i^\top\Big)^{-1} \sum_i \phi_i y_i^\top,$$

    in whatever order and portions it came. It keeps sums over the samples, not the samples: two
    learners merge by adding theirs, and a sample is forgotten exactly by subtracting its own.

    Use it if an online learner forgets what came early, and you have features that a linear model
    does well on. It is recursive least squares, with the verbs that sums allow; scikit-learn's
    `Ridge` on all data at once gives the same numbers. With m features it keeps $m^2$ numbers of
    float64 and costs $O(m^2)$ a sample, and $O(m^3)$ for the first prediction after something was
    learned (with `gamma="auto"` about eight times that).

    Args:
        features: A function from samples (n, ...) to features (n, m); a `torch.nn.Module`, whose
            outputs are the features (it is copied and frozen); `rt.Linear()` for the samples
            themselves; `rt.Features`; `rt.RBF`, by random Fourier features; or `rt.EmpiricalNTK`,
            by its sketch.
        gamma: Ridge, 0 or more; `"auto"` chooses it by generalised cross-validation, from the sums
            alone, at the first prediction after a change.
        memory: Number of features of `rt.RBF` and `rt.EmpiricalNTK`.
        intercept: Whether to add a constant that is not penalised, as scikit-learn does.
        seed: Seed of the random features.

    Examples:
        Learned in two portions, in the wrong order, and one sample taken back:

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
        """Samples learned, less those forgotten."""
        return 0 if self._moments is None else self._moments.count

    @property
    def gamma_(self) -> float:
        """The ridge in use: as given, or as cross-validation chose it."""
        return self._solved().gamma

    @property
    def nbytes(self) -> int:
        """Bytes that are kept of the stream, however long it is."""
        if self._moments is None:
            return 0
        return sum(getattr(self._moments, name).nbytes for name in SUMS)

    def empty(self) -> Self:
        """Returns a learner with the same features and options that has learned nothing.

        Use it for a part of the stream, perhaps in another process: `merge` joins the parts.
        """
        twin = copy.copy(self)
        twin._forget_all()
        return twin

    def fork(self) -> Self:
        """Returns a learner that goes on from here, to see where a few more samples would lead.

        Without an intercept it copies nothing of size m x m: the sums are shared until the fork's
        `settle`, after which this learner must not be used any more.
        """
        fork = copy.copy(self)
        fork._moments = None if self._moments is None else self._moments.fork()
        return fork

    def settle(self) -> None:
        """Makes a fork the owner of the sums that it shares."""
        if self._moments is not None:
            self._moments.settle()

    def learn(self, X: Any, Y: Any, weights: Any = None) -> Self:
        """Learns any number of samples, each counted once. A call that fails changes nothing.

        Args:
            X: (n, ...) samples.
            Y: (n,) or (n, c) real targets; one-hot, for classes.
            weights: (n,) or one number: how much each sample counts, above 0; None for 1.
        """
        targets = as_targets("Y", Y)
        portions = self._checked_portions(X, targets, weights)
        first = next(portions, None)
        if first is None:
            return self
        if self._moments is not None and len(first[0]) == len(targets):
            self._moments.add(*first)  # all there is, and checked: nothing can fail any more
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
        """Takes samples back, as if they had never been learned.

        Args:
            X: (n, ...) samples that were learned.
            Y: Their targets, as they were learned.
            weights: What they count by now, if `weights` were given or `discount` was called since.

        Raises:
            InvalidInputError: They cannot have been learned (not every such mistake can be seen in
                the sums), or nothing would be left.
        """
        if self._moments is None:
            raise InvalidInputError("nothing has been learned yet that could be forgotten")
        portions = self._checked_portions(X, as_targets("Y", Y), weights)
        first = next(portions, None)
        if first is not None:
            self._moments = self._moments.without(self._summed(first, portions))
            self._solution = None
        return self

    def merge(self, other: Self) -> Self:
        """Adds what another learner has learned, as if this one had learned it too.

        Args:
            other: One with the same features; it stays as it is.
        """
        if type(other) is not type(self):
            found, expected = type(other).__name__, type(self).__name__
            raise InvalidInputError(f"other is a {found}; expected a {expected}")
        both = self._moments is not None and other._moments is not None
        mine, theirs = self._kind(sized=both), other._kind(sized=both)
        if mine != theirs:
            raise InvalidInputError(f"other has {theirs}; expected the same as here, {mine}")
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
        """Adds up the learners of several processes: each then has learned everything.

        Every process learns its own part of the stream, beginning empty, and calls this once. To
        go on, let one process keep the result and the others begin empty again: what all of them
        know would be counted once for each. If processes cannot agree (other features, other
        outputs), all of them raise the same error, and nothing is changed.

        Args:
            add: Replaces a tensor of float64, in place, by its sum over all processes, such as
                `torch.distributed.all_reduce`. It is called five times, in the same order
                everywhere.
        """
        found = sums_of_all(self._moments, self._flat, self._dtype, self._inputs, add)
        if found is not None:
            self._moments, self._flat, self._dtype, self._inputs = found
            self._solution = None
        return self

    def discount(self, factor: float) -> Self:
        """Makes everything learned so far count less, for targets that drift.

        Args:
            factor: Above 0, at most 1. Called once a sample, it is the forgetting factor of
                recursive least squares: the past is remembered for about 1 / (1 - factor) samples.

        Raises:
            InvalidInputError: The factor is another number, or next to nothing would be left.
        """
        number = as_non_negative("factor", factor)
        if not 0 < number <= 1:
            raise InvalidInputError(f"factor is {factor!r}; expected above 0, at most 1")
        if self._moments is not None and number < 1:
            self._moments.scale(number)
            self._solution = None
        return self

    def prepare(self, X: Any) -> "Prepared":
        """Computes the features of samples that `predict` will be asked for again and again.

        It pays if features are expensive and the same samples, such as a test set, are predicted
        after every portion of a stream.
        """
        return Prepared(library_of(take(X, slice(0, 0))), list(self._portions(X, self._outputs)))

    @torch.no_grad()
    def predict(self, X: Any) -> Any:
        """The ridge solution's predictions, in the library of X and with the axes of Y.

        Args:
            X: (n, ...) samples, or the result of `prepare`.
        """
        weights, intercept, _ = self._solved()
        parts = X.parts if isinstance(X, Prepared) else self._portions(X, self._outputs)
        like = X.like if isinstance(X, Prepared) else library_of(X)
        predicted = [
            features.to(weights) @ weights + intercept + start.to(weights)
            for features, start in parts
        ]
        result = torch.cat([weights.new_empty(0, self._outputs), *predicted])
        if isinstance(like, Tensor):
            result = result.to(like.device)
        return give_back(result[:, 0] if self._flat else result, like, self._dtype)

    def save(self, path: str | Path) -> None:
        """Writes the sums to one file, which replaces an older one only when complete.

        A feature map that is a function of yours is not in it; loading the file runs no code.
        """
        write_state(Path(path), *self.to_state())

    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `save` writes: plain values, and the sums themselves by name, not copies of them."""
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
        """Loads what `save` wrote.

        Args:
            path: The file.
            features: The features, as in the constructor: a file cannot hold a function.
            device: The device of the features, to which the sums go.
        """
        values, tensors = read_state(Path(path), device, cls.__name__)
        with explained(path, cls.__name__):
            return cls.from_state(values, tensors, features)

    @classmethod
    def from_state(cls, values: dict[str, Any], tensors: dict[str, Tensor], features: Any) -> Self:
        """The learner whose `to_state` gave these; the features are as in `load`."""
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
                raise InvalidInputError(f"flat, with {loaded._outputs} outputs")
        return loaded

    def _checked_portions(self, X: Any, targets: Tensor, weights: Any) -> Iterator[Portion]:
        """Features, targets less the start, and weights, a few samples at a time."""
        if count(X) != len(targets):
            raise InvalidInputError(f"X has {count(X)} rows and Y {len(targets)}; expected as many")
        outputs = targets.shape[1]
        require_unchanged("outputs of Y", outputs, self._outputs or outputs)
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
        """The sums of these samples alone."""
        features, targets, _ = first
        device = torch.device("cpu") if features.device.type == "mps" else features.device
        sums = Moments(features.shape[1], targets.shape[1], self.intercept, device)
        for portion in itertools.chain([first], others):
            sums.add(*portion)
        return sums

    def _portions(self, X: Any, outputs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Features, and (n, c) or (1, c) where learning starts, a few samples at a time."""
        rows, first, width = 1, 0, None  # one sample tells how many features there are
        if self._moments is not None:
            width = self._moments.features
            rows = _portion_rows(width, self._moments.mean.device)
        if self._map.any_inputs and self._inputs is not None and count(X):
            require_unchanged("numbers in a sample of X", sample_size(X), self._inputs)
        while first < count(X):
            with torch.no_grad():
                features, start = self._features_and_start(take(X, slice(first, first + rows)))
            require_unchanged("features of X", features.shape[1], width or features.shape[1])
            if start is None or start.shape[1] != outputs:  # it starts from zero
                start = features.new_zeros(1, outputs)
            yield features, start
            first, width = first + len(features), features.shape[1]
            rows = _portion_rows(width, features.device)

    def _features_and_start(self, part: Any) -> tuple[Tensor, Tensor | None]:
        """(n, m) features, and (n, c) the function that learning starts from; None for zero."""
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
        """What two learners must share to be merged; the sizes if both have learned."""
        kind: dict[str, Any] = {"features": self._map.description, "intercept": self.intercept}
        if sized and self._moments is not None:
            kind |= {"feature count": self._moments.features, "outputs": self._outputs}
            if self._map.any_inputs:
                kind["numbers in a sample"] = self._inputs
        return kind


def as_ridge(gamma: Any) -> float | Literal["auto"]:
    """A ridge, or the word that leaves the choice to cross-validation."""
    return "auto" if isinstance(gamma, str) and gamma == "auto" else as_non_negative("gamma", gamma)


def _as_weights(weights: Any, count: int) -> Tensor | None:
    """(count,) weights in float64, or None if all are 1."""
    if weights is None:
        return None
    given = as_tensor("weights", weights).double()
    if given.ndim == 0:
        given = given.expand(count)
    if given.shape != (count,):
        raise InvalidInputError(f"weights has shape {tuple(given.shape)}; expected ({count},)")
    if not bool(((given >= 1 / LARGEST_NUMBER) & (given <= LARGEST_NUMBER)).all()):
        raise InvalidInputError("weights holds a number not above 0, or too large; leave it out")
    return given


def _require_moderate(name: str, values: Tensor) -> None:
    """Refuses numbers whose products would overflow: the sums could not be repaired."""
    least, most = values.aminmax() if values.numel() else (values.new_zeros(()),) * 2
    if not (float(least) >= -LARGEST_NUMBER and float(most) <= LARGEST_NUMBER):
        raise InvalidInputError(
            f"{name} go from {float(least):.3g} to {float(most):.3g}; expected at most "
            f"{LARGEST_NUMBER:g}: scale them"
        )


def sample_size(X: Any) -> int:
    """Numbers in one of these samples."""
    return sum(math.prod(np.shape(leaf)[1:]) for leaf in leaves(X))


def _portion_rows(features: int, device: torch.device) -> int:
    return max(1, PORTION.get(device.type, PORTION_ELSEWHERE) // features)
