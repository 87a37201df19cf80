"""Learners for river: ridge regression that is exact at every sample, and corrected targets.

Needs the extra: `pip install ".[river]"`.
"""

import copy
import functools
import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from retarget.engine.losses import nearest_distributions
from retarget.errors import InvalidInputError, InvalidTypeError, missing_extra, own_constructor
from retarget.integrations.river_named import NamedFeatures
from retarget.integrations.river_ridge import SequentialRidge
from retarget.kernels import Features, Linear
from retarget.learners import SGD, described_river
from retarget.streaming.corrector import TargetCorrector

try:
    from river import base, compose, linear_model, optim
    from river.utils import dataframe
except ImportError as error:
    raise missing_extra("retarget.integrations.river needs river", error, "river") from error

__all__ = ["StreamingRidgeClassifier", "StreamingRidgeRegressor", "TargetCorrectionRegressor"]

Sample = dict[Hashable, Any]


class RidgeOnNames(base.Estimator):
    """Shared by regressor and classifier: options, features by name, and the learner."""

    def __init__(
        self,
        kernel: Any = "linear",
        gamma: float = 0.1,
        discount: float = 1.0,
        features: int = 256,
        max_features: int = 1024,
        seed: int = 0,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.discount = discount
        self.features = features
        self.max_features = max_features
        self.seed = seed
        self._named = NamedFeatures(kernel, features, max_features, seed)
        self._learner = SequentialRidge(gamma, discount)
        self._places: dict[Hashable, int] = {}  # the output of each class, for a classifier

    def learn_many(self, X: Any, y: Any) -> None:
        """Learns the rows of a frame in their order: the same as one by one, but faster."""
        frame = dataframe.into_frame(X)
        given = dataframe.into_series(y)
        if len(frame) != len(given):
            raise InvalidInputError(
                f"X has {len(frame)} rows and y has {len(given)}; expected the same number of rows"
            )
        if not len(frame):
            return
        targets, places = self._targets(given.to_list())
        phi = self._named.meet_rows(list(frame.columns), _numbers(frame))
        self._learner.learn_many(phi, targets)
        self._places = places

    def _targets(self, given: list[Any]) -> tuple[np.ndarray, dict[Hashable, int]]:
        """Returns targets (n, c), and the output of each class if there are any."""
        return np.array([[_as_target(each)] for each in given]), self._places

    def _outputs_of(self, frame: Any) -> np.ndarray:
        """Returns outputs (n, c) for the rows of a wrapped frame."""
        phi = self._named.rows(list(frame.columns), _numbers(frame))
        return self._learner.predict(phi)


@own_constructor
class StreamingRidgeRegressor(RidgeOnNames, base.MiniBatchRegressor):
    r"""Ridge regression that is exact after every sample.

    After every sample the model is the ridge solution on all samples so far, in whatever order they
    came. Only if you give a discount below 1 do older samples count less.

    Use it like `linear_model.LinearRegression`, after a `preprocessing.StandardScaler`; there is no
    learning rate to set. With m features, a sample costs $2 m^2$ multiplications, and $m^2$ numbers
    are kept.

    Args:
        kernel: `"linear"` for a linear model; `"rbf"`, `"laplace"`, `"matern32"` or `"matern52"`
            for random features of this kernel, whose width is the usual one for the number of
            features in the first sample; or the kernel, such as `rt.RBF(width)`, to choose the
            width.
        gamma: Ridge, above 0.
        discount: Correlation of the weights between samples, above 0 and at most 1: with 1 nothing
            is forgotten, with 0.99 about the last 100 samples count.
        features: Number of random features.
        max_features: The maximum number of named features; more raise an error.
        seed: Seed of the random features.

    Examples:
        >>> from retarget.integrations.river import StreamingRidgeRegressor
        >>> model = StreamingRidgeRegressor(gamma=1e-6)
        >>> for size in range(5):
        ...     model.learn_one({"size": size}, 30 + 2 * size)
        >>> round(model.predict_one({"size": 10}), 2)
        50.0
    """

    def learn_one(self, x: Sample, y: float) -> None:
        """Learns a sample; new features are appended."""
        target = np.array([_as_target(y)])
        self._learner.learn(self._named.meet(x), target)

    def predict_one(self, x: Sample) -> float:
        """Returns the prediction; 0 if nothing has been learned yet."""
        if not self._learner.samples:
            return 0.0
        return float(self._learner.predict(self._named(x))[0])

    def predict_many(self, X: Any) -> Any:
        """Returns a series of predictions, in the library of X."""
        frame = dataframe.into_frame(X)
        known = self._learner.samples
        values = self._outputs_of(frame)[:, 0] if known else np.zeros(len(frame))
        return dataframe.to_native_series(values, name=None, like=frame)


@own_constructor
class StreamingRidgeClassifier(RidgeOnNames, base.MiniBatchClassifier):
    r"""Classification by ridge regression on one-hot targets, exact after every sample.

    It predicts the class with the largest output. Probabilities are the distribution nearest to the
    outputs; they rank the classes, but are not calibrated. A class may first appear at any time:
    its target was 0 for all earlier samples.

    Arguments and costs are those of `StreamingRidgeRegressor`.

    Examples:
        >>> from retarget.integrations.river import StreamingRidgeClassifier
        >>> model = StreamingRidgeClassifier(gamma=0.1)
        >>> for degrees, feeling in [(0, "cold"), (20, "mild"), (2, "cold"), (18, "mild")]:
        ...     model.learn_one({"degrees": degrees}, feeling)
        >>> model.predict_one({"degrees": 21}), sorted(model.predict_proba_one({"degrees": 21}))
        ('mild', ['cold', 'mild'])
    """

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Sample, y: Hashable) -> None:
        """Learns a sample; new classes and features are appended."""
        targets, places = self._targets([y])
        self._learner.learn(self._named.meet(x), targets[0])
        self._places = places

    def _targets(self, given: list[Any]) -> tuple[np.ndarray, dict[Hashable, int]]:
        known = self._places
        new = [each for each in dict.fromkeys(given) if each not in known]
        places = known | dict(zip(new, range(len(known), len(known) + len(new)), strict=True))
        targets = np.zeros((len(given), len(places)))
        targets[np.arange(len(given)), [places[each] for each in given]] = 1.0
        return targets, places

    def predict_proba_one(self, x: Sample, **kwargs: Any) -> dict[Hashable, float]:
        """Returns the probability of each class so far."""
        if not self._places:
            return {}
        outputs = self._learner.predict(self._named(x))
        return dict(
            zip(self._places, nearest_distributions(outputs[None])[0].tolist(), strict=True)
        )

    def predict_proba_many(self, X: Any) -> Any:
        """Returns a frame of probabilities, one column for each class so far."""
        frame = dataframe.into_frame(X)
        columns: dict[Hashable, Any] = {}
        if self._places:
            rows = nearest_distributions(self._outputs_of(frame))
            columns = dict(zip(self._places, rows.T, strict=True))
        return dataframe.to_native_frame(columns, like=frame)

    def predict_many(self, X: Any) -> Any:
        """Returns a series of labels; an empty one if nothing has been learned yet."""
        frame = dataframe.into_frame(X)
        labels: list[Hashable] = []
        if self._places:
            known = list(self._places)
            labels = [known[place] for place in self._outputs_of(frame).argmax(axis=1)]
        return dataframe.to_native_series(labels, name=None, like=frame[: len(labels)])


class TargetCorrectionRegressor(base.Wrapper, base.Regressor):
    """Trains a linear model on corrected targets, so that it learns what offline training would.

    It collects samples until a block is full, corrects their targets together
    (`rt.TargetCorrector`), and then the model learns them in order with `learn_one`. Until then the
    model predicts without them; at the end of a stream, `flush` closes a block that is not full.
    After a block, the model's predictions for its samples are those of ridge regression on the
    whole stream so far.

    It is exact for `linear_model.LinearRegression` with `optim.SGD` at a constant rate, the squared
    loss and no penalty, with or without an intercept, whether or not it has learned before. Put
    transformers before this wrapper in a pipeline, not inside it. Other models raise an error,
    unless you describe the model yourself by a ready-made corrector, which is approximate.

    Args:
        model: The model to train; it is copied.
        corrector: A function that makes an `rt.TargetCorrector` from a kernel and an `rt.SGD`,
            which are derived from the model: `functools.partial(rt.TargetCorrector, gamma=1.0,
            block_size=16)`, with `features=` for bounded memory. Or, for another model whose kernel
            and rate you know approximately, an `rt.TargetCorrector`.
        max_features: The maximum number of named features; `features=` must not be smaller (with an
            intercept, at least one larger).

    Attributes:
        shift: Root mean square of the corrected minus the true targets so far.
        largest_target: The largest absolute value of a corrected target so far.

    Examples:
        Two samples that have nothing in common. With the ridge 1, ridge regression predicts half
        of each target, and so does the model once their block is full:

        >>> import functools, retarget as rt
        >>> from river import linear_model, optim
        >>> from retarget.integrations.river import TargetCorrectionRegressor
        >>> model = TargetCorrectionRegressor(
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
        self._start = copy.deepcopy(model)  # gives the starting values at every sample
        self._corrector = _corrector_of(model, corrector)
        self._named = NamedFeatures("linear", most=max_features)
        self._waiting: list[tuple[Sample, float]] = []
        self._samples = 0
        self._squares = 0.0
        self.largest_target = 0.0

    @property
    def _wrapped_model(self) -> Any:
        return self._model

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        # river's test data are not standardized: a date in days has the square 5e11
        yield {
            "model": linear_model.LinearRegression(optim.SGD(1e-13)),
            "corrector": functools.partial(
                TargetCorrector, gamma=1e6, block_size=4, features=65, ridge=1e6
            ),
        }

    @property
    def waiting(self) -> int:
        """Number of samples that the model has not learned yet because their block is not full."""
        return len(self._waiting)

    @property
    def shift(self) -> float:
        """Root mean square of the corrected minus the true targets; NaN before the first block."""
        return math.sqrt(self._squares / self._samples) if self._samples else math.nan

    def learn_one(self, x: Sample, y: float, **kwargs: Any) -> None:
        """Adds a sample; when its block is full, the model learns the block."""
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
        """Returns the model's prediction, without the samples of the open block."""
        prediction: float = self._model.predict_one(x, **kwargs)
        return prediction

    def flush(self) -> None:
        """Closes the open block before it is full; the stream may continue."""
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
        if not len(targets):  # the block is closed before it is full
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
    new = corrector(*_described(model))
    if not isinstance(new, TargetCorrector):
        raise InvalidTypeError(
            f"corrector returned {new!r:.80}; expected an rt.TargetCorrector, as from "
            "functools.partial(rt.TargetCorrector, gamma=1.0, block_size=16)"
        )
    return new


def _described(model: Any) -> tuple[Linear | Features, SGD]:
    """Returns the exact kernel and steps of a model.

    The intercept is the weight of a constant feature.
    """
    if isinstance(model, compose.Pipeline):
        raise InvalidTypeError(
            "model is a pipeline; put its transformers before TargetCorrectionRegressor instead: "
            "StandardScaler() | TargetCorrectionRegressor(LinearRegression(), ...)"
        )
    instead = (
        "; expected a linear_model.LinearRegression with optim.SGD at a constant rate, "
        "losses.Squared and no penalty (for an approximate correction of another model, give an "
        "rt.TargetCorrector with a kernel and an rt.SGD that approximate it)"
    )
    try:
        steps = described_river(model)
    except InvalidTypeError as error:
        raise InvalidTypeError(f"{error}{instead}") from error
    except InvalidInputError as error:
        raise InvalidInputError(f"no correction of the model is exact: {error}{instead}") from error
    if model.l2 != 0:  # river shrinks only the weights of the features that a sample has
        raise InvalidInputError(
            f"no correction of the model is exact: it has an l2 penalty{instead}"
        )
    if steps.constant == 0:
        return Linear(), steps.learner
    return Features(functools.partial(_with_constant, steps.constant)), steps.learner


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


def _numbers(frame: Any) -> np.ndarray:
    """Returns the values (n, d) of a wrapped frame."""
    try:
        values: np.ndarray = dataframe.to_numpy(frame)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"X has a value that is not a number ({error}); expected numbers: encode words first"
        ) from error
    return values
