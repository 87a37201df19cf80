"""Ridge regression on a stream, exact after every sample, without keeping the samples."""

import copy
import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import as_targets
from retarget.errors import InvalidInputError
from retarget.form import Form
from retarget.kernels.feature_maps import DEFAULT_FEATURES, feature_map, fingerprint
from retarget.locks import Lock
from retarget.scalars import as_count, as_non_negative
from retarget.settings import in_plain_torch
from retarget.state_files import explained, read_state, write_state
from retarget.streaming.ridge.answers import RidgeAnswers
from retarget.streaming.ridge.kept import KeptRows
from retarget.streaming.ridge.moments import Moments
from retarget.streaming.ridge.processes import Processes, sums_of_all
from retarget.streaming.ridge.rows import Portion, RidgeState, SampleRows, sample_size
from retarget.streaming.ridge.views import View, Views
from retarget.streaming.turns import in_turn
from retarget.text import as_seed

Precision = Literal["float64", "float32"]


class StreamingRidge(RidgeAnswers):
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
    float64 numbers and costs $O(m^2)$ per sample, and $O(m^3)$ for the first prediction after
    learning (about eight times that with `gamma="auto"`).

    Several threads may use one learner: they learn one after the other, and each prediction is that
    of everything learned by some moment. A call that fails or is interrupted (Ctrl-C) changes
    nothing.

    Args:
        kernel: What maps samples to features: a function from samples (n, ...) to features (n, m);
            a `torch.nn.Module`, whose outputs are the features (it is copied and frozen);
            `rt.Linear()` or `"linear"` for the samples themselves; `rt.Features`; `rt.RBF`,
            approximated by random Fourier features, or `"rbf"`, whose width is the root of the
            number of values in a sample; or `rt.EmpiricalNTK`, approximated by a random sketch.
        gamma: Ridge, 0 or more; `"auto"` chooses it by generalized cross-validation, from the sums
            alone, at the first prediction after a change.
        features: Number of features for `rt.RBF` and `rt.EmpiricalNTK`; others have their own.
        intercept: Whether to add a constant that is not penalized, as scikit-learn does.
        views: Functions of a batch of samples that do not change what a sample means, such as its
            mirror image; None among them is the sample itself: `views=[None, flip]`. Every view of
            a sample is learned as a row of its own, and a prediction is the mean over the views.
            Cross-validation leaves out all rows of a sample together. None for the sample alone.
        precision: `"float64"` or `"float32"`, the type in which the sum over $\phi \phi^\top$ is
            kept. `"float32"` halves the memory; it costs digits in `forget`, and ridges below
            about $10^{-5}$ of the largest entry of the sum.
        seed: Seed of the random features.
        calibration: Number of learned samples, at most, whose features and targets are kept, which
            `left_out` needs. 0, the default, keeps none. They are a random sample of those learned;
            a sample that is forgotten is deleted from them as well.

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

    OPTIONS: ClassVar[tuple[str, ...]] = (
        *("gamma", "features", "intercept", "precision", "seed", "calibration"),
    )
    calibration = 0

    def __init__(
        self,
        kernel: Any,
        gamma: float | Literal["auto"] = "auto",
        features: int = DEFAULT_FEATURES,
        *,
        intercept: bool = False,
        views: Sequence[View] | None = None,
        precision: Precision = "float64",
        seed: int = 0,
        calibration: int = 0,
    ) -> None:
        self.gamma = as_ridge(gamma)
        self.features = as_count("features", features)
        self.seed = as_seed("seed", seed)
        self.intercept = bool(intercept)
        self.precision = precision
        self._views = Views(views)
        if precision not in get_args(Precision):
            raise InvalidInputError(f"precision is {precision!r}; expected 'float64' or 'float32'")
        self.calibration = 0 if calibration == 0 else as_count("calibration", calibration)
        if self.calibration and len(self._views) > 1:
            raise InvalidInputError(
                f"calibration is {calibration} with {len(self._views)} views; expected 0, or the "
                "sample alone: leaving out one row of several does not leave out the sample"
            )
        self._map = feature_map(kernel, self.features, self.seed)
        self._rows = SampleRows(self._map, self._views)
        self._turn = Lock()
        self._become(self._nothing)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: not the factor, which is as large as the sums and follows from them."""
        return vars(self) | {"_spread": None}

    @property
    def _nothing(self) -> RidgeState:
        return RidgeState(kept=KeptRows(self.calibration))

    def _become(self, learned: RidgeState) -> None:
        """Adopts a change by one assignment."""
        self.learned = learned
        self._solution = None
        self._spread = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(gamma={self.gamma!r}, samples={self.samples:,})"

    @property
    def samples(self) -> int:
        """Number of samples learned, minus those forgotten."""
        moments = self.learned.moments
        return 0 if moments is None else moments.count

    @property
    def views(self) -> tuple[View, ...]:
        """The views of a sample that are learned; None is the sample itself."""
        return self._views.functions

    @property
    def nbytes(self) -> int:
        """Bytes of the sums and the kept rows, which are bounded however long the stream is."""
        moments = self.learned.moments
        return 0 if moments is None else moments.nbytes + self.learned.kept.nbytes

    def empty(self) -> Self:
        """Returns a learner with the same features and options that has learned nothing.

        Use it for a part of the stream, for example in another process: `merge` joins the parts.
        """
        return self.with_learned(self._nothing)

    def fork(self) -> Self:
        """Returns an independent copy that continues from here; it copies no sums."""
        return self.with_learned(self.learned)

    def widened(self, outputs: int) -> Self:
        """Returns a fork with this many outputs: the new ones had target 0 for all samples.

        Raises:
            InvalidInputError: There are more outputs already; or learning starts from a network's
                outputs, of which there are not as many.
        """
        learned = self.learned
        if learned.moments is None:
            return self.fork()
        if as_count("outputs", outputs) < learned.outputs:
            raise InvalidInputError(f"outputs={outputs}; expected {learned.outputs} or more")
        if outputs > learned.outputs and learned.network_outputs in (learned.outputs, outputs):
            raise InvalidInputError(
                f"cannot widen {learned.outputs} outputs to {outputs}: learning starts from the "
                f"network's {learned.network_outputs} outputs if there are as many targets, and "
                "from zero otherwise; make a network with an output for every class that may come"
            )
        known = range(learned.outputs)
        return self.rearranged([*known, *[None] * (outputs - len(known))])

    @in_plain_torch
    def rearranged(self, columns: Sequence[int | None]) -> Self:
        """Returns a fork with other outputs: some of the present ones, in any order, and new ones.

        Args:
            columns: For each output, which of the present ones it is; None for a new one, whose
                target was 0 for all samples. With an output that is left out go the kept samples
                that had another target than 0 there.

        Raises:
            InvalidInputError: Learning starts from a network's outputs, which would no longer be
                those of the same targets.
        """
        learned = self.learned
        if learned.moments is None:
            return self.fork()
        known = learned.outputs
        same = list(columns) == list(range(known))
        if not same and learned.network_outputs in (known, len(columns)):
            change = "widen" if len(columns) > known else "rearrange"
            raise InvalidInputError(
                f"cannot {change} {known} outputs to {len(columns)}: learning starts from the "
                f"network's {learned.network_outputs} outputs if there are as many targets, and "
                "from zero otherwise; make a network with an output for every class that may come"
            )
        moments = learned.moments.copy()
        moments.rearrange(columns)
        kept = learned.kept.rearranged(columns)
        return self.with_learned(learned._replace(moments=moments, kept=kept))

    def with_learned(self, learned: RidgeState) -> Self:
        """Returns a learner with the same features and options that has learned just this."""
        twin = copy.copy(self)
        twin._turn = Lock()
        if learned is not self.learned:
            twin._become(learned)
        return twin

    @in_turn
    @in_plain_torch
    def learn(self, X: Any, Y: Any, weights: Any = None, *, repeats: bool = False) -> Self:
        """Learns any number of samples; a call that fails changes nothing.

        Args:
            X: (n, ...) samples.
            Y: (n,) or (n, c) real targets; one-hot, for classes.
            weights: How much each sample counts, above 0: (n,) or one number; None for 1.
            repeats: Whether a weight of 2 means that the sample was seen twice, as in scikit-learn,
                and not that it is more certain than others. `gamma="auto"` depends on it.
        """
        targets = as_targets("Y", Y)
        before = self.learned
        moments = None if before.moments is None else before.moments.copy()
        network_outputs = before.network_outputs
        kept = before.kept
        for portion in self._rows.learned(X, targets, weights, before):
            moments = self._no_sums_for(portion) if moments is None else moments
            kept = kept.plus(*portion[:3], repeats=repeats, before=moments.count)
            moments.add(portion.features, portion.targets, portion.weights)
            network_outputs = portion.network_outputs
        if moments is not None and len(targets):
            if repeats:
                moments.squared_weight = moments.weight
            form = Form(flat=np.ndim(Y) == 1) if before.moments is None else before.form
            form = form.wider(targets.dtype)
            self._become(RidgeState(moments, form, sample_size(X), network_outputs, kept))
        return self

    def forget(self, X: Any, Y: Any, weights: Any = None, *, repeats: bool = False) -> Self:
        """Forgets samples, as if they had never been learned, up to rounding of the largest sums.

        What is left has the rounding errors of the sums before. If they show in the solution, the
        next prediction issues a `PrecisionWarning` with the number of digits that are left.

        Args:
            X: (n, ...) samples that were learned.
            Y: The targets that they were learned with.
            weights: Their present weights, if `weights` were given or `discount` was called since.
            repeats: As they were learned.

        Raises:
            InvalidInputError: The samples cannot have been learned (the sums do not reveal every
                such mistake), or no sample would be left.
        """
        return self.forget_batches([(X, Y, weights)], repeats=repeats)

    @in_turn
    @in_plain_torch
    def forget_batches(
        self, batches: Iterable[tuple[Any, Any, Any]], *, repeats: bool = False
    ) -> Self:
        """Forgets samples that do not fit into one array, such as texts of several lengths.

        Args:
            batches: Samples, targets and weights (None for 1), as `forget` takes them. All of them
                are forgotten, or none if that fails.
            repeats: As they were learned.
        """
        before = self.learned
        if before.moments is None:
            raise InvalidInputError("nothing has been learned yet; call learn(X, Y) before forget")
        sums = None
        kept = before.kept
        for X, Y, weights in batches:
            for portion in self._rows.learned(X, as_targets("Y", Y), weights, before):
                sums = self._no_sums_for(portion) if sums is None else sums
                sums.add(portion.features, portion.targets, portion.weights)
                kept = kept.without(portion.features, portion.targets)
        if sums is not None:
            if repeats:
                sums.squared_weight = sums.weight
            moments = before.moments.without(sums, repeats)
            self._become(before._replace(moments=moments, kept=kept))
        return self

    @in_turn
    @in_plain_torch
    def merge(self, other: Self) -> Self:
        """Adds everything that another learner has learned to this one.

        Args:
            other: A learner with the same features (see `empty`); it is not changed.
        """
        if type(other) is not type(self):
            kind = type(other).__name__
            expected = type(self).__name__
            raise InvalidInputError(f"other is a {kind}; expected a {expected}")
        one = self.learned
        two = other.learned
        both = one.moments is not None and two.moments is not None
        mine = self._kind(one, sized=both)
        theirs = other._kind(two, sized=both)
        if mine != theirs:
            raise InvalidInputError(f"other has {theirs}; expected {mine}, as this learner has")
        if fingerprint(self._views.functions) != fingerprint(other._views.functions):
            raise InvalidInputError(
                "other has different views; expected those of this learner: make other with "
                "empty(), and let views be functions of a module if other came from another process"
            )
        if fingerprint(self._map.source) != fingerprint(other._map.source):
            raise InvalidInputError(
                "other has a different feature function, or a network with different weights; "
                "expected the features of this learner: make other with empty(), and let the "
                "function be one of a module if other came from another process"
            )
        if two.moments is None:
            return self
        if one.moments is None:
            self._become(two)
        else:
            moments = one.moments.copy()
            moments.join(two.moments)
            form = one.form.wider(two.form.dtype)
            kept = one.kept.joined(two.kept)
            self._become(one._replace(moments=moments, form=form, kept=kept))
        return self

    @in_turn
    @in_plain_torch
    def all_merge(self, group: Any = None) -> Self:
        """Merges the learners of all processes of `torch.distributed`: each then knows everything.

        Every process starts empty, learns its own part of the stream, and calls this once. To
        continue, keep the result in one process and start empty in the others: otherwise the
        result would count once for each process. If the learners cannot be merged (because of
        another network, seed or number of features, say), all of them raise the same error, and
        nothing changes.

        Args:
            group: The processes that take part, as `torch.distributed.new_group` gives them; None
                for all. Each of them must call this.
        """
        processes = Processes(group)
        if self.calibration:
            raise InvalidInputError(
                f"calibration is {self.calibration}, and all_merge adds up sums, not kept rows; "
                "expected calibration=0, or join the learners of several processes with merge"
            )
        learned = self.learned
        if not self._map.any_inputs:  # then samples may differ in size
            learned = learned._replace(inputs=None)
        device = torch.device("cpu") if learned.moments is None else learned.moments.mean.device
        empty = partial(self._no_sums, device)
        self._become(sums_of_all(learned, empty, self._described(), processes))
        return self

    @in_turn
    @in_plain_torch
    def discount(self, factor: float) -> Self:
        """Reduces the weight of everything learned so far, for targets that drift.

        Args:
            factor: Above 0 and at most 1. If you call this once per sample, it is the forgetting
                factor of recursive least squares, with a memory of about 1 / (1 - factor) samples.

        Raises:
            InvalidInputError: The factor is out of range, or almost nothing would be left.
        """
        number = as_non_negative("factor", factor)
        if not 0 < number <= 1:
            raise InvalidInputError(f"factor is {factor!r}; expected above 0 and at most 1")
        before = self.learned
        if before.moments is not None and number < 1:
            moments = before.moments.copy()
            moments.scale(number)
            self._become(before._replace(moments=moments, kept=before.kept.scaled(number)))
        return self

    def save(self, path: str | Path) -> None:
        """Saves the sums to one file; an older file is replaced only when the new one is complete.

        The file does not contain a feature map that is a function; loading it runs no code.
        """
        write_state(Path(path), *self.to_state())

    @in_plain_torch
    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns what `save` writes: plain values, and the sums by name."""
        moments, form, inputs, network_outputs, kept = self.learned
        values: dict[str, Any] = {
            "class": type(self).__name__,
            "kernel": self._map.description,
            "views": self._views.names,
            "options": {name: getattr(self, name) for name in self.OPTIONS},
            "form": form.state_dict(),
            "inputs": inputs,
            "network_outputs": network_outputs,
        }
        if moments is None:
            return values, {}
        numbers, sums = moments.to_state()
        kept_values, rows = kept.to_state(moments.outputs)
        return values | numbers | kept_values, sums | rows

    @classmethod
    @in_plain_torch
    def load(
        cls,
        path: str | Path,
        kernel: Any,
        device: str | torch.device = "cpu",
        *,
        views: Sequence[View] | None = None,
    ) -> Self:
        """Loads a file written by `save`.

        Args:
            path: The file.
            kernel: The same as in the constructor: a file cannot contain a function.
            device: The device of the features; the sums are loaded there.
            views: The same as in the constructor; they are compared by their names.
        """
        values, tensors = read_state(Path(path), device, cls.__name__)
        with explained(path, cls.__name__):
            return cls.from_state(values, tensors, kernel, views)

    @classmethod
    @in_plain_torch
    def from_state(
        cls,
        values: dict[str, Any],
        tensors: dict[str, Tensor],
        kernel: Any,
        views: Sequence[View] | None = None,
    ) -> Self:
        """Makes a learner from the result of `to_state`; kernel and views are as in `load`."""
        loaded = cls(kernel, **values["options"], views=views)
        if values["views"] != loaded._views.names:
            raise InvalidInputError(
                f"it was saved with the views {values['views']}, not {loaded._views.names}; pass "
                "views= as in the constructor"
            )
        saved = values["kernel"]
        described = loaded._map.description
        if saved != described:
            raise InvalidInputError(f"it was saved with the kernel {saved}, not {described}")
        form = Form.from_state(values["form"])
        if form.dtype is None:
            return loaded
        moments = Moments.from_state(
            values, tensors, loaded.intercept, len(loaded._views), loaded._dtype
        )
        sizes = moments.features, moments.outputs
        learned = RidgeState(
            moments,
            form,
            None if values["inputs"] is None else int(values["inputs"]),
            None if values["network_outputs"] is None else int(values["network_outputs"]),
            KeptRows.from_state(values, tensors, loaded.calibration, *sizes),
        )
        if form.flat and learned.outputs > 1:
            raise InvalidInputError(f"flat is true, but there are {learned.outputs} outputs")
        loaded._become(learned)
        return loaded

    def _no_sums_for(self, portion: Portion) -> Moments:
        """Returns empty sums for such samples."""
        device = portion.features.device
        device = torch.device("cpu") if device.type == "mps" else device
        return self._no_sums(device, portion.features.shape[1], portion.targets.shape[1])

    def _no_sums(self, device: torch.device, features: int, outputs: int) -> Moments:
        views = len(self._views)
        return Moments(
            features, outputs, self.intercept, device, views=views, precision=self._dtype
        )

    @property
    def _dtype(self) -> torch.dtype:
        """In which the sum over features is kept."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def _kind(self, learned: RidgeState, sized: bool) -> dict[str, Any]:
        """Returns what must agree to merge two learners; sizes only if both have learned."""
        kind: dict[str, Any] = {
            "kernel": self._map.description,
            "views": self._views.names,
            "intercept": self.intercept,
            "precision": self.precision,
            "calibration": self.calibration,
        }
        if sized and learned.moments is not None:
            kind |= {"features": learned.moments.features, "outputs": learned.outputs}
            if self._map.any_inputs:
                kind["numbers in a sample"] = learned.inputs
            if learned.network_outputs is not None:
                kind["outputs of the network"] = learned.network_outputs
        return kind

    def _described(self) -> dict[str, str]:
        """Returns the same for all processes whose learners can be merged, if they learned."""
        kind = self._kind(self.learned, sized=False)
        sources = {"features": self._map.source, "views": self._views.functions}
        texts = {"class": type(self).__name__, "features": json.dumps(kind.pop("kernel"))}
        texts |= {name: json.dumps(value) for name, value in kind.items()}
        return texts | {
            name: f"{texts[name]} {fingerprint(each)}" for name, each in sources.items()
        }


def as_ridge(gamma: Any) -> float | Literal["auto"]:
    """Checks a ridge: a number, or "auto" for cross-validation."""
    return "auto" if isinstance(gamma, str) and gamma == "auto" else as_non_negative("gamma", gamma)
