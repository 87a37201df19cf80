"""Learners for river: ridge regression that is exact at every sample, and corrected targets.

Needs the extra: `pip install "retarget[river]"`.
"""

import copy
import functools
import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from retarget.errors import InvalidInputError, InvalidTypeError, missing_extra
from retarget.kernels import Features, Linear
from retarget.learners import SGD
from retarget.streaming.adaptive import AdaptiveRidge, Choice
from retarget.streaming.corrector import TargetCorrector
from retarget.streaming.named import NamedFeatures

try:
    from river import base, compose, linear_model, optim
    from river.utils import dataframe
except ImportError as error:
    raise missing_extra("retarget.integrations.river needs river", error, "river") from error

__all__ = ["StreamingRidge", "StreamingRidgeClassifier", "TargetCorrection"]

# What river.linear_model calls no clipping at all.
NO_CLIPPING = 1e12
Sample = dict[Hashable, Any]


class RidgeOnNames(base.Estimator):
    """What regressor and classifier share: options, features by name, the learner."""

    def __init__(
        self,
        features: Any = "linear",
        gamma: Choice = "auto",
        discount: Choice = "auto",
        memory: int = 256,
        max_features: int = 1024,
        seed: int = 0,
    ) -> None:
        self.features, self.gamma, self.discount = features, gamma, discount
        self.memory, self.max_features, self.seed = memory, max_features, seed
        self._named = NamedFeatures(features, memory, max_features, seed)
        self._learner = AdaptiveRidge(gamma, discount)

    @property
    def chosen(self) -> dict[str, float]:
        """The ridge and the discount in use."""
        return {"gamma": self._learner.gamma, "discount": self._learner.discount}

    def learn_many(self, X: Any, y: Any) -> None:
        """Learns the rows of a frame one after the other, in their order."""
        for x, target in _rows(X, y):
            self.learn_one(x, target)

    def _outputs_of(self, frame: Any) -> np.ndarray:
        """(n, c) outputs for the rows of a wrapped frame."""
        phi = self._named.rows(list(frame.columns), dataframe.to_numpy(frame))
        return self._learner.predict(phi)


class StreamingRidge(RidgeOnNames, base.MiniBatchRegressor):
    r"""Ridge regression that is exact after every sample, and may follow a drift.

    After every sample the model is the ridge solution on all samples so far (with discount 1), or
    on a past that is discounted with time. Ridge and discount are chosen as the stream goes: all
    pairs run side by side, each predicts every sample before learning it, and the pair with the
    smallest recent squared error makes the predictions.

    Use it like `linear_model.LinearRegression`, after a `preprocessing.StandardScaler`: there is no
    learning rate to set. With m features it costs $2 m^2$ multiplications a sample, and keeps
    $m^2$ numbers, for each pair of ridge and discount (three, if nothing is given).

    Args:
        features: `"linear"` for a linear model. `"rbf"` for one of the Gaussian kernel, by random
            features of a width that is the root of the number of features in the first sample;
            `rt.RBF(width)` to choose it.
        gamma: Ridge, above 0; several to choose from; or `"auto"` for 1 and 0.1.
        discount: How alike the weights are from one sample to the next, above 0 and at most 1: 1
            if nothing drifts, 0.99 to remember about 100 samples. Several to choose from; or
            `"auto"` for 1 and 0.99.
        memory: Number of random features.
        max_features: The most features by name that a stream may have: more are an error.
        seed: Seed of the random features.

    Example:
        >>> from retarget.integrations.river import StreamingRidge
        >>> model = StreamingRidge(gamma=1e-6)
        >>> for size in range(5):
        ...     model.learn_one({"size": size}, 30 + 2 * size)
        >>> round(model.predict_one({"size": 10}), 2)
        50.0
    """

    def learn_one(self, x: Sample, y: float) -> None:
        """Learns a sample; features that are new are appended."""
        target = np.array([_as_target(y)])
        self._learner.learn(self._named.meet(x), target)

    def predict_one(self, x: Sample) -> float:
        """The prediction; 0 before anything was learned."""
        if not self._learner.samples:
            return 0.0
        return float(self._learner.predict(self._named(x))[0])

    def predict_many(self, X: Any) -> Any:
        """A series of predictions, in the library of X."""
        frame = dataframe.into_frame(X)
        known = self._learner.samples
        values = self._outputs_of(frame)[:, 0] if known else np.zeros(len(frame))
        return dataframe.to_native_series(values, name=None, like=frame)


class StreamingRidgeClassifier(RidgeOnNames, base.MiniBatchClassifier):
    r"""Classification by ridge regression on one-hot targets, exact after every sample.

    The class with the largest output is predicted. Probabilities are the distribution that is
    nearest to the outputs; they order the classes, and are not calibrated. A class may appear at
    any time: for all samples before, its target was 0.

    Arguments, costs and the choice of ridge and discount are those of `StreamingRidge`.

    Args:
        features: `"linear"`, `"rbf"` or `rt.RBF(width)`.
        gamma: Ridge, or several to choose from, or `"auto"`.
        discount: Discount, or several to choose from, or `"auto"`.
        memory: Number of random features.
        max_features: The most features by name that a stream may have.
        seed: Seed of the random features.

    Example:
        >>> from retarget.integrations.river import StreamingRidgeClassifier
        >>> model = StreamingRidgeClassifier(gamma=0.1)
        >>> for degrees, feeling in [(0, "cold"), (20, "mild"), (2, "cold"), (18, "mild")]:
        ...     model.learn_one({"degrees": degrees}, feeling)
        >>> model.predict_one({"degrees": 21}), sorted(model.predict_proba_one({"degrees": 21}))
        ('mild', ['cold', 'mild'])
    """

    def __init__(
        self,
        features: Any = "linear",
        gamma: Choice = "auto",
        discount: Choice = "auto",
        memory: int = 256,
        max_features: int = 1024,
        seed: int = 0,
    ) -> None:
        super().__init__(features, gamma, discount, memory, max_features, seed)
        self._places: dict[Hashable, int] = {}  # of the classes among the outputs

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Sample, y: Hashable) -> None:
        """Learns a sample; classes and features that are new are appended."""
        place = self._places.get(y, len(self._places))
        target = np.zeros(max(place + 1, len(self._places)))
        target[place] = 1.0
        self._learner.learn(self._named.meet(x), target)
        self._places.setdefault(y, place)

    def predict_proba_one(self, x: Sample, **kwargs: Any) -> dict[Hashable, float]:
        """The probability of each class so far."""
        if not self._places:
            return {}
        outputs = self._learner.predict(self._named(x))
        return dict(zip(self._places, _nearest_distribution(outputs.tolist()), strict=True))

    def predict_proba_many(self, X: Any) -> Any:
        """A frame of probabilities, one column for each class so far."""
        frame = dataframe.into_frame(X)
        columns: dict[Hashable, Any] = {}
        if self._places:
            rows = [_nearest_distribution(row) for row in self._outputs_of(frame).tolist()]
            columns = dict(zip(self._places, np.array(rows).T, strict=True))
        return dataframe.to_native_frame(columns, like=frame)

    def predict_many(self, X: Any) -> Any:
        """A series of labels; an empty one before anything was learned."""
        frame = dataframe.into_frame(X)
        labels: list[Hashable] = []
        if self._places:
            known = list(self._places)
            labels = [known[place] for place in self._outputs_of(frame).argmax(axis=1)]
        return dataframe.to_native_series(labels, name=None, like=frame[: len(labels)])


class TargetCorrection(base.Wrapper, base.Regressor):
    """Trains a linear model on corrected targets, so that it learns what offline training would.

    Samples are collected until a block is full. Its targets are then corrected together
    (`rt.TargetCorrector`), and the model learns them in their order with `learn_one`. Until then
    they wait: predictions are those of the model without them, and `flush` closes a block that is
    not full, at the end of a stream. After a block, the model's predictions for its samples are
    those of ridge regression on the whole stream so far.

    It is exact for `linear_model.LinearRegression` with `optim.SGD` at a constant rate, the squared
    loss and no penalty, with or without an intercept, whether or not it has learned before. Put
    transformers before this wrapper in a pipeline, not inside it. Other models are refused, unless
    you describe the model yourself, as a corrector that is ready; that is approximate.

    Args:
        model: The model that is trained; it is copied.
        corrector: A function from a kernel and an `rt.SGD`, which are read off the model, to an
            `rt.TargetCorrector`: `functools.partial(rt.TargetCorrector, gamma=1.0, block_size=16)`,
            with `memory=` for bounded memory. Or an `rt.TargetCorrector` that is ready, for a
            model that is not known here, whose kernel and rate you know approximately.
        max_features: The most features by name that a stream may have; `memory=` must not be less
            (one more, with an intercept).

    Attributes:
        shift: Root mean square of the corrected targets minus the true ones, so far.
        largest_target: The size of the largest corrected target so far.

    Example:
        Two samples that have nothing in common. With the ridge 1, ridge regression predicts half
        of each target, and so does the model once their block is full:

        >>> import functools, retarget as rt
        >>> from river import linear_model, optim
        >>> from retarget.integrations.river import TargetCorrection
        >>> model = TargetCorrection(
        ...     linear_model.LinearRegression(optim.SGD(0.1), intercept_lr=0.0),
        ...     functools.partial(rt.TargetCorrector, gamma=1.0, block_size=2),
        ... )
        >>> model.learn_one({"a": 1.0}, 6.0)
        >>> model.waiting, model.predict_one({"a": 1.0})
        (1, 0.0)
        >>> model.learn_one({"b": 1.0}, 4.0)
        >>> model.waiting, round(model.predict_one({"a": 1.0}), 6)
        (0, 3.0)
    """

    def __init__(
        self,
        model: base.Regressor,
        corrector: Callable[..., TargetCorrector] | TargetCorrector,
        max_features: int = 64,
    ) -> None:
        self.model = model
        self.corrector = corrector
        self.max_features = max_features
        self._model = copy.deepcopy(model)
        self._start = copy.deepcopy(model)  # what learning starts from, at every sample
        self._corrector = _corrector_of(model, corrector)
        self._named = NamedFeatures("linear", most=max_features)
        self._waiting: list[tuple[Sample, float]] = []
        self._samples, self._squares, self.largest_target = 0, 0.0, 0.0

    @property
    def _wrapped_model(self) -> Any:
        return self._model

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        # river's data are not standardised: a date counts days, and has the square 5e11
        yield {
            "model": linear_model.LinearRegression(optim.SGD(1e-13)),
            "corrector": functools.partial(
                TargetCorrector, gamma=1e6, block_size=4, memory=65, ridge=1e6
            ),
        }

    @property
    def waiting(self) -> int:
        """Samples that the model has not learned yet, as their block is not full."""
        return len(self._waiting)

    @property
    def shift(self) -> float:
        """Root mean square of the corrected minus the true targets; NaN before a block."""
        return math.sqrt(self._squares / self._samples) if self._samples else math.nan

    def learn_one(self, x: Sample, y: float, **kwargs: Any) -> None:
        """Takes a sample in; with the last one of a block, the model learns the block."""
        if kwargs:
            raise InvalidTypeError(
                f"learn_one got {', '.join(kwargs)}; expected x and y alone, as corrected targets "
                "are for samples that count once each"
            )
        sample = (dict(x), _as_target(y))
        self._named.meet(x)
        block = [*self._waiting, sample]
        if len(block) == self._corrector.block_size:
            self._learn_block(block)
            block = []
        self._waiting = block

    def predict_one(self, x: Sample, **kwargs: Any) -> float:
        """The model's prediction, without the samples that wait."""
        prediction: float = self._model.predict_one(x, **kwargs)
        return prediction

    def flush(self) -> None:
        """Closes the open block, shorter than the others; the stream may continue."""
        if self._waiting:
            self._learn_block(self._waiting)
            self._waiting = []

    def _learn_block(self, block: list[tuple[Sample, float]]) -> None:
        X = np.zeros((len(block), self.max_features))
        for row, (x, _) in zip(X, block, strict=True):
            features = self._named(x)
            row[: len(features)] = features
        Y = np.array([y for _, y in block])
        start = np.array([self._start.predict_one(x) for x, _ in block])
        targets = self._corrector.correct(X, Y, initial=start)
        if not len(targets):  # a block that is closed before it is full
            targets = self._corrector.flush()
        for (x, _), target in zip(block, targets.tolist(), strict=True):
            self._model.learn_one(x, target)
        self._samples += len(Y)
        self._squares += float(np.square(targets - Y).sum())
        self.largest_target = max(self.largest_target, float(np.abs(targets).max()))


def _corrector_of(model: Any, corrector: Any) -> TargetCorrector:
    if isinstance(corrector, TargetCorrector):
        if len(corrector):
            raise InvalidInputError(
                f"the corrector has taken in {len(corrector)} samples; expected a new one"
            )
        return copy.deepcopy(corrector)
    if not callable(corrector):
        raise InvalidTypeError(
            f"corrector is {corrector!r:.80}; expected an rt.TargetCorrector, or a function from a "
            "kernel and an rt.SGD to one"
        )
    made = corrector(*_described(model))
    if not isinstance(made, TargetCorrector):
        raise InvalidTypeError(
            f"corrector returned {made!r:.80}; expected an rt.TargetCorrector, such as of "
            "functools.partial(rt.TargetCorrector, gamma=1.0, block_size=16)"
        )
    return made


def _described(model: Any) -> tuple[Linear | Features, SGD]:
    """The kernel and the steps of a model, exactly.

    Its squared loss has no factor 1/2, which doubles the rate. The intercept has a rate of its own,
    which makes it the weight of a feature that is the root of the rates' ratio.
    """
    if isinstance(model, compose.Pipeline):
        raise InvalidTypeError(
            "model is a pipeline; put its transformers before TargetCorrection instead: "
            "StandardScaler() | TargetCorrection(LinearRegression(), ...)"
        )
    instead = (
        "; expected a linear_model.LinearRegression with optim.SGD at a constant rate, "
        "losses.Squared and no penalty (for an approximate correction of another model, give an "
        "rt.TargetCorrector of the kernel and the rt.SGD that come near to it)"
    )
    if type(model) is not linear_model.LinearRegression:
        raise InvalidTypeError(f"model is a {type(model).__name__}{instead}")
    rates = model.optimizer.lr, model.intercept_lr
    reasons = {
        f"its optimizer is {type(model.optimizer).__name__}": type(model.optimizer) is optim.SGD,
        f"its loss is {type(model.loss).__name__}": type(model.loss) is optim.losses.Squared,
        "a rate changes with time": all(type(rate) is optim.schedulers.Constant for rate in rates),
        "it has a penalty (l1 or l2)": model.l1 == 0 and model.l2 == 0,
        f"it clips gradients at {model.clip_gradient:g}": model.clip_gradient >= NO_CLIPPING,
        f"its weights start from {type(model.initializer).__name__}": type(model.initializer)
        is optim.initializers.Zeros,
    }
    for reason, fits in reasons.items():
        if not fits:
            raise InvalidInputError(f"the model cannot be corrected exactly, as {reason}{instead}")
    rate, intercept_rate = (float(each.learning_rate) for each in rates)
    learner = SGD(lr=2 * rate)
    if intercept_rate == 0:
        return Linear(), learner
    constant = math.sqrt(intercept_rate / rate)
    return Features(functools.partial(_with_constant, constant)), learner


def _with_constant(constant: float, X: np.ndarray) -> np.ndarray:
    return np.hstack([X, np.full((len(X), 1), constant)])


def _as_target(y: Any) -> float:
    try:
        number = float(y)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"y is {y!r:.80}; expected a number") from error
    if not math.isfinite(number):
        raise InvalidInputError(f"y is {number}; expected a finite number")
    return number


def _nearest_distribution(outputs: list[float]) -> list[float]:
    """Numbers of at least 0 with the sum 1 that are nearest to these in the sum of squares.

    They are the positive parts of the outputs minus one number (Held, Wolfe and Crowder, 1974).
    """
    total, less = 0.0, 0.0
    for count, output in enumerate(sorted(outputs, reverse=True), start=1):
        total += output
        if output * count <= total - 1:
            break
        less = (total - 1) / count
    shares = [max(output - less, 0.0) for output in outputs]
    whole = sum(shares)  # 1, but for rounding
    return [share / whole for share in shares]


def _rows(X: Any, y: Any) -> Iterator[tuple[Sample, Any]]:
    """The rows of a frame as dicts, and their targets."""
    frame, targets = dataframe.into_frame(X), dataframe.into_series(y)
    if len(frame) != len(targets):
        raise InvalidInputError(
            f"X has {len(frame)} rows and y {len(targets)}; expected one of each for a sample"
        )
    values = dataframe.to_numpy(frame).tolist()
    for row, target in zip(values, targets.to_list(), strict=True):
        yield dict(zip(frame.columns, row, strict=True)), target
