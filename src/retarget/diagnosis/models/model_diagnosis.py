"""Diagnoses a user's own model from all of its runs."""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from retarget.diagnosis.answers import Estimate, ModelScore, ModelWay
from retarget.diagnosis.measure.compare import (
    UNKNOWN,
    Bootstrap,
    Split,
    any_of,
    as_tensors,
    estimate,
    gap_closed,
    partition,
    ratio,
    right_classes,
    score,
    squared_errors,
)
from retarget.diagnosis.models.adapters import Advance, ModelFailedError, OnlineModel
from retarget.diagnosis.models.equivalent import (
    NoDescriptionError,
    describe,
    open_description,
    predicted_movement,
)
from retarget.diagnosis.models.opening import open_model
from retarget.diagnosis.models.runs import (
    EPOCHS,
    ORDERS,
    Correction,
    Passage,
    batch_model,
    movement_by_group,
    order_rows,
    pass_as_it_came,
    pass_in_order,
    progressive_batch,
    try_correction,
)
from retarget.diagnosis.options import Options
from retarget.diagnosis.result import ModelDiagnosis
from retarget.diagnosis.stream import Stream
from retarget.errors import RetargetError
from retarget.progress import PatientBar

DIVERGED = 1e6  # standard deviations of the targets
T = TypeVar("T")


def diagnose_model(
    parted: Split, options: Options, *, progress: bool | None = None
) -> ModelDiagnosis:
    """Trains the user's model on the stream in every way, and compares the results.

    `retarget.diagnosis.models.adapters` describes what the model is given. In a progressive
    evaluation each way is scored by its predictions for rows that it has not learned yet: random
    orders by the errors before each step of the shuffled stream; the batch model by models of the
    rows so far (see `progressive_batch`); corrected targets before each block. `progress` shows a
    progress bar (None: on a terminal only).
    """
    model = open_model(parted.stream, options)
    rows = len(parted.stream) * (2 + ORDERS + EPOCHS // 4)
    with PatientBar("running your model", rows, progress) as bar:
        return _Diagnosing(model, parted, options, bar.advance).whole()


class _Theory(NamedTuple):
    """What describes the model, what that predicts, and the corrected targets computed from it."""

    words: str
    movement: np.ndarray | None = None
    correction: Correction | None = None


class _Diagnosing:
    """The runs of one model. If one fails, that is noted and the others are still run."""

    def __init__(
        self, model: OnlineModel, parted: Split, options: Options, advance: Advance
    ) -> None:
        self._model, self._stream, self._test = model, parted.stream, parted.test
        self._options, self._seed, self._advance = options, options.seed, advance
        self._groups = partition(self._stream)
        self._truth = self._stream.Y if self._test is None else self._test.Y
        self._unknown = np.full(self._truth.shape, math.nan)
        self._bootstrap = Bootstrap(len(self._truth), self._seed)
        self._failures: list[str] = []

    def whole(self) -> ModelDiagnosis:
        """Carries out all runs, one after another."""
        stream, model, seed = self._stream, self._model, self._seed
        nothing = np.full(stream.Y.shape, math.nan)
        failed = Passage(nothing, nothing, nothing, ((len(stream), nothing),), model)
        passage = self._attempt(
            "Over the stream as it came",
            lambda: pass_as_it_came(model, stream, self._groups, seed, self._advance),
            failed,
        )
        if passage is failed:
            came, theory = self._unknown, _Theory("No kernel was sought: the model failed.")
        else:
            came, theory = self._as_it_came(passage), self._theory(passage)
        batch = self._attempt("As a batch model", lambda: self._batch(passage), self._unknown)
        movement, correction = theory.movement, theory.correction
        corrected = self._corrected(correction)
        order, orders, shuffled = self._orders(came)
        shift = passage.end - passage.after
        targets = None if correction is None else correction.targets
        return ModelDiagnosis(
            name=model.name,
            scores=(
                self._score("as it came", came),
                shuffled,
                self._score("batch", batch),
                self._score("corrected", corrected),
            ),
            order=order,
            orders=orders,
            before=passage.before,
            after=passage.after,
            end=passage.end,
            groups=movement_by_group(
                stream, self._groups, passage.after, passage.moments, model.batch_size
            ),
            description=theory.words,
            theory=movement,
            agreement=None if movement is None else agreement(shift, movement),
            corrected=targets,
            corrected_size=math.nan if targets is None else stream.farthest(targets),
            closed=gap_closed(*(self._means(said) for said in (batch, came, corrected))),
            prequential=mean_error(stream, passage.before, seed),
            remembered=mean_error(stream, passage.end, seed),
            failures=tuple(self._failures),
        )

    def _attempt(self, what: str, run: Callable[[], T], otherwise: T) -> T:
        """Returns the result of a run; if the model fails, notes that and returns `otherwise`."""
        try:
            return run()
        except ModelFailedError as error:
            self._failures.append(f"{what}, {error}.")
            return otherwise

    def _on_test(self, model: OnlineModel, test: Stream) -> np.ndarray:
        said = "On the rows held out"
        return self._attempt(said, lambda: model.predict(test.X), self._unknown)

    def _as_it_came(self, passage: Passage) -> np.ndarray:
        """Returns the predictions, or NaN if it diverged, since comparing would be pointless."""
        came = passage.before
        if self._test is not None:
            came = self._on_test(passage.model, self._test)
        parts = (passage.before, passage.end, came)
        farthest = max(self._stream.farthest(part) for part in parts)
        if farthest < DIVERGED:
            return came
        self._failures.append(
            f"Over the stream as it came, {self._model.name} diverges: its predictions reach "
            f"{farthest:.0e} standard deviations of the targets."
        )
        return self._unknown

    def _batch(self, passage: Passage) -> np.ndarray:
        rows = self._model, self._stream.X, self._stream.Y
        if self._test is None:
            return progressive_batch(*rows, passage.before, self._seed, self._advance)
        return self._on_test(batch_model(*rows, self._seed, self._advance), self._test)

    def _corrected(self, correction: Correction | None) -> np.ndarray:
        if correction is None or correction.model is None:
            return self._unknown
        if self._test is not None:
            return self._on_test(correction.model, self._test)
        before = correction.before_blocks
        return self._unknown if before is None else before

    def _orders(self, came: np.ndarray) -> tuple[Estimate, tuple[float, ...], ModelScore]:
        """Returns the cost of the order, the error of each random order, and their score."""
        stream, truth, bootstrap = self._stream, self._truth, self._bootstrap
        chosen = order_rows(self._model, len(stream), self._test is None)
        thinned, X, Y = len(chosen) < len(stream), stream.X[chosen], stream.Y[chosen]
        rng = np.random.default_rng(self._seed)
        tries = [rng.permutation(len(chosen)) for _ in range(ORDERS)]
        if thinned:
            self._failures.append(
                f"Random orders were tried on {len(chosen):,} rows, evenly spaced over the "
                f"stream's {len(stream):,}, and compared with the same rows as they came."
            )
            tries.insert(0, np.arange(len(chosen)))
            if self._test is None:
                truth, bootstrap = Y, Bootstrap(len(Y), self._seed)
        made, failed = [], []
        for order in tries:
            try:
                made.append(self._shuffled(X, Y, order))
            except ModelFailedError as error:
                failed.append(str(error))
        if failed:
            self._failures.append(
                f"{len(failed)} of {len(tries)} random orders failed, so the cost of the order is "
                f"unknown: {failed[0]}."
            )
            return UNKNOWN, (), self._score("random order", self._unknown)
        base = made.pop(0) if thinned else came
        squares = [squared_errors(truth - predicted, stream) for predicted in made]
        drawn = any_of([bootstrap.means(each) for each in squares], self._seed)
        relative = ratio(drawn, bootstrap.means(squared_errors(truth - base, stream)))
        accuracy = None
        if stream.kind == "classification":
            shares = [bootstrap.means(right_classes(predicted, truth)) for predicted in made]
            accuracy = estimate(any_of(shares, self._seed))
        score = ModelScore("random order", estimate(drawn), accuracy)
        return relative, tuple(float(each.mean()) for each in squares), score

    def _shuffled(self, X: np.ndarray, Y: np.ndarray, order: np.ndarray) -> np.ndarray:
        every = self._model.batch_size if self._test is None else None
        model, predicted = pass_in_order(self._model, X, Y, order, self._seed, self._advance, every)
        if predicted is not None:
            return predicted
        assert self._test is not None
        return model.predict(self._test.X)

    def _theory(self, passage: Passage) -> _Theory:
        X, Y = as_tensors(self._stream)
        try:
            description = describe(self._model, X)
            start = description.start(X)
            kernel = open_description(description, X, Y - start)
            movement = predicted_movement(description, kernel, start)
        except NoDescriptionError as error:
            return _Theory(str(error))
        except RetargetError as error:  # a network without a tangent kernel, or too many rows
            return _Theory(f"No kernel was used: {error}.")
        learner, correction = description.learner, None
        failure = "There are no corrected targets: they overflow."
        if movement is None:
            failure = "The kernel machine that describes the model diverges."
        elif learner.weight_decay and bool(start.any()):
            failure = (
                "There are no corrected targets: weight decay fades the function that the model "
                "starts from, and no targets can compensate for that."
            )
        else:
            error_now = float(np.square(passage.end - self._stream.Y).mean())
            wanted = error_now, self._test is None, self._advance
            rows = start, self._stream, self._options
            try:
                correction = try_correction(self._model, learner, kernel, *rows, *wanted)
            except RetargetError as error:
                failure = f"There are no corrected targets: {error}."
        self._failures += [failure] if correction is None else correction.failures
        return _Theory(description.words, movement, correction)

    def _means(self, predicted: np.ndarray) -> np.ndarray:
        return self._bootstrap.means(squared_errors(self._truth - predicted, self._stream))

    def _score(self, way: ModelWay, predicted: np.ndarray) -> ModelScore:
        errors = self._truth - predicted
        return ModelScore(way, *score(errors, self._truth, self._stream, self._bootstrap))


def mean_error(stream: Stream, predicted: np.ndarray, seed: int) -> Estimate:
    """Returns the error on the stream's own rows, in the user's units."""
    squares = squared_errors(stream.Y - predicted, stream)
    return estimate(Bootstrap(len(stream), seed).means(squares))


def agreement(shift: np.ndarray, theory: np.ndarray) -> float:
    """Returns 1 - |shift - theory| / |theory|, in root mean squares.

    Examples:
        >>> agreement(np.array([[1.0], [2.0]]), np.array([[1.0], [2.0]]))
        1.0
    """
    size, gap = np.linalg.norm(theory), np.linalg.norm(shift - theory)
    if not size:
        return 1.0 if not gap else -math.inf
    return float(1 - gap / size)
