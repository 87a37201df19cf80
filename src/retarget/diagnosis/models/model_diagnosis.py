"""Diagnoses a user's own model from all of its runs."""

import math
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from retarget.diagnosis.answers import (
    DIVERGED,
    UNKNOWN,
    Estimate,
    Forgetting,
    ModelScore,
    ModelWay,
    Question,
)
from retarget.diagnosis.measure.compare import Predictions, Ruler, rulers
from retarget.diagnosis.measure.forgetting import Remembered, measured_forgetting
from retarget.diagnosis.measure.groups import partition
from retarget.diagnosis.measure.holdout import Split, as_tensors
from retarget.diagnosis.measure.intervals import (
    Batches,
    Mean,
    estimate,
    gap_closed,
    mean_over_runs,
    ratio,
)
from retarget.diagnosis.measure.recall import Pairs, late_moments
from retarget.diagnosis.metrics import SQUARED
from retarget.diagnosis.models.adapters import ModelFailedError, OnlineModel
from retarget.diagnosis.models.correction import ModelCorrection, best_correction
from retarget.diagnosis.models.equivalent import (
    NoDescriptionError,
    describe,
    open_description,
    predicted_movement,
)
from retarget.diagnosis.models.opening import open_model, what_it_needs
from retarget.diagnosis.models.runs import (
    EPOCHS,
    NONE_HELD_OUT,
    ORDERS,
    HeldOut,
    Passage,
    batch_model,
    movement_by_group,
    pass_as_it_came,
    pass_in_order,
    progressive_batch,
    rows_for_orders,
)
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.result import ModelDiagnosis
from retarget.diagnosis.stream import Stream
from retarget.engine.response import fades_start
from retarget.engine.stream_kernel import Advance
from retarget.errors import ModelRunError, RetargetError
from retarget.progress import PatientBar

# What a model predicts for the rows of each question; empty if it failed.
Answers = dict[Question, Predictions]


def diagnose_model(parted: Split, options: DiagnosisOptions) -> ModelDiagnosis:
    """Trains the user's model on the stream in every way, and compares the results.

    `retarget.diagnosis.models.adapters` describes what the model is given. In a progressive
    evaluation each way is scored by its predictions for rows that it has not learned yet: random
    orders by the errors before each step of the shuffled stream; the batch model by models of the
    rows so far (see `progressive_batch`); corrected targets before each block. What the model
    prints goes to standard error.

    Raises:
        InvalidInputError: The model cannot be made.
        ModelRunError: It fails over the stream as it came. A failure in another way of training is
            noted instead.
    """
    with redirect_stdout(sys.stderr):
        model = open_model(parted.stream, options)
        rows = len(parted.stream) * (6 + ORDERS + EPOCHS // 4)
        with PatientBar("running your model", rows) as bar:
            return _Diagnosing(model, parted, options, bar.advance).whole()


class _Trained(NamedTuple):
    """What the model says after one way of training, and what its scores are compared with.

    `runs` holds several runs for random orders; `as_it_came` is what the model says that learned
    the same rows as they came.
    """

    runs: list[Answers]
    as_it_came: Answers
    rulers: dict[Question, Ruler]


class _Theory(NamedTuple):
    """What describes the model, what that predicts, and the corrected targets computed from it."""

    words: str
    movement: np.ndarray | None = None
    correction: ModelCorrection | None = None


class _Diagnosing:
    """The runs of one model. If any but the first fails, that is noted and the others still run."""

    def __init__(
        self, model: OnlineModel, parted: Split, options: DiagnosisOptions, advance: Advance
    ) -> None:
        self._model = model
        self._parted = parted
        self._stream = parted.stream
        self._options = options
        self._seed = options.seed
        self._advance = advance
        self._rulers = {ruler.question: ruler for ruler in rulers(parted, options)}
        self._failures: list[str] = []

    def whole(self) -> ModelDiagnosis:
        """Carries out all runs, one after another."""
        stream = self._stream
        seed = self._seed
        groups = partition(self._stream)
        try:
            held_out = self._held_out()
            passage = pass_as_it_came(self._model, stream, groups, seed, self._advance, held_out)
            as_it_came = self._answers(passage.model, passage.before)
        except ModelFailedError as error:
            raise self._no_whole_pass(error) from error
        self._note_divergence(as_it_came)
        theory = self._theory()
        batch = self._attempt("As a batch model", lambda: self._batch(passage))
        corrected = self._attempt("On corrected targets", lambda: self._corrected(theory))
        ways: dict[ModelWay, _Trained] = {
            "as it came": _Trained([as_it_came], as_it_came, self._rulers),
            "random order": self._in_random_orders(as_it_came),
            "batch": _Trained([batch], as_it_came, self._rulers),
            "corrected": _Trained([corrected], as_it_came, self._rulers),
        }
        order_cost, one_pass_cost = self._costs(ways["random order"], batch)
        movement = theory.movement
        shift = passage.end - passage.after
        targets = None if theory.correction is None else theory.correction.targets
        return ModelDiagnosis(
            name=self._model.name,
            scores=tuple(
                self._score(way, trained, question)
                for question in self._rulers
                for way, trained in ways.items()
            ),
            orders={question: _losses(ways["random order"], question) for question in self._rulers},
            before=passage.before,
            after=passage.after,
            end=passage.end,
            groups=movement_by_group(
                stream, groups, passage.after, passage.moments, self._model.batch_size
            ),
            description=theory.words,
            theory=movement,
            agreement=None if movement is None else agreement(shift, movement),
            corrected=targets,
            corrected_size=math.nan if targets is None else stream.farthest(targets),
            closed={
                question: self._closed(ruler, as_it_came, batch, corrected)
                for question, ruler in self._rulers.items()
            },
            prequential=mean_error(stream, passage.before),
            remembered=mean_error(stream, passage.end),
            forgetting=self._forgetting(held_out, passage),
            order_cost=order_cost,
            one_pass_cost=one_pass_cost,
            failures=tuple(self._failures),
        )

    def _held_out(self) -> HeldOut:
        """Returns the rows of the whole stream to ask the model about, and their times."""
        past = self._parted.past
        if past is None:
            return NONE_HELD_OUT
        held_out_rows = self._parted.folds[0]
        return HeldOut(
            past.X[held_out_rows], np.searchsorted(self._parted.learned_in(0), held_out_rows)
        )

    def _forgetting(self, held_out: HeldOut, passage: Passage) -> Forgetting | None:
        """Returns how much the model forgot of the rows held out from the whole stream."""
        past = self._parted.past
        if past is None or not passage.later:
            return None
        held_out_rows = self._parted.folds[0]
        moments = np.array([moment for moment, _ in passage.later])
        pairs = Pairs.of(held_out.times, moments)
        number = np.searchsorted(moments, pairs.moment)
        predictions_later = np.array([predictions for _, predictions in passage.later])[
            number, pairs.place
        ]
        rows = held_out_rows[pairs.place]
        metric = self._options.metric
        late = moments[moments >= late_moments(len(self._stream)).min()]
        groups = past.groups if self._parted.whole_groups else None
        constant = np.tile(self._stream.Y.mean(axis=0), (len(rows), 1))
        return measured_forgetting(
            Remembered(
                rows=rows,
                ages=pairs.moment - held_out.times[pairs.place],
                late=np.isin(pairs.moment, late),
                first=metric.losses(passage.first, past.part(held_out_rows))[pairs.place],
                later=metric.losses(predictions_later, past.part(rows)),
                learned=len(self._stream),
                constant=metric.losses(constant, past.part(rows)),
                groups=None if groups is None else groups[rows],
                score=metric.score,
            )
        )

    def _costs(self, orders: _Trained, batch: Answers) -> tuple[Estimate | None, Estimate | None]:
        """Returns the cost of the order and that of a single pass, at the end of the stream.

        Both are measured on rows of the whole stream, as for the online learner of the diagnosis.
        """
        ruler = orders.rulers.get("whole")
        if ruler is None:
            return None, None
        runs = [ruler.mean(predictions["whole"]) for predictions in orders.runs if predictions]
        if not runs or self._diverged(ruler, orders.as_it_came["whole"]):
            return UNKNOWN, UNKNOWN
        mean = mean_over_runs(runs)
        order_cost = ratio(ruler.mean(orders.as_it_came["whole"]), mean)
        if not batch:
            return order_cost, UNKNOWN
        return order_cost, ratio(mean, ruler.mean(batch["whole"]))

    def _no_whole_pass(self, error: ModelFailedError) -> ModelRunError:
        learned = error.learned
        rows = len(self._stream)
        done = f"after it had learned {learned:,} of the stream's {rows:,} rows as they came"
        if learned < rows:
            done += f" (the next is row {self._stream.rows[learned]:,} of your data)"
        needs = what_it_needs(self._model, self._stream, min(learned, rows - 1))
        return ModelRunError(
            f"{error}, {done}; {needs}; train it on these rows yourself to see why: without one "
            "whole pass there is nothing to diagnose"
        )

    def _answers(self, model: OnlineModel, before: Predictions) -> Answers:
        """Returns what a model says about the rows of each question.

        In a progressive evaluation that is `before`, predictions for rows not learned yet.
        """
        if self._parted.progressive:
            return {"progressive": before}
        return {question: model.predict(rows.X) for question, rows in self._parted.asked.items()}

    def _attempt(self, what: str, run: Callable[[], Answers]) -> Answers:
        """Returns what a run says; if the model fails, notes that."""
        try:
            return run()
        except ModelFailedError as error:
            self._failures.append(f"{what}, {error}.")
            return {}

    def _batch(self, passage: Passage) -> Answers:
        rows = self._model, self._stream.X, self._stream.Y
        if self._parted.progressive:
            before = progressive_batch(*rows, passage.before, self._seed, self._advance)
            return {"progressive": before}
        return self._answers(batch_model(*rows, self._seed, self._advance), passage.before)

    def _corrected(self, theory: _Theory) -> Answers:
        correction = theory.correction
        if correction is None or correction.model is None:
            return {}
        return self._answers(correction.model, correction.before_blocks)

    def _in_random_orders(self, as_it_came: Answers) -> _Trained:
        """Trains the model in random orders; also on fewer rows as they came, if they are fewer."""
        n = len(self._stream)
        seed = self._seed
        progressive = self._parted.progressive
        rows = rows_for_orders(self._model, n, progressive)
        rng = np.random.default_rng(seed)
        measured = self._rulers
        tries = [rng.permutation(len(rows)) for _ in range(ORDERS)]
        stream = self._stream.part(rows)
        if len(rows) < n:
            tries.insert(0, np.arange(len(rows)))
            thinned = self._parted._replace(stream=stream)
            measured = {ruler.question: ruler for ruler in rulers(thinned, self._options)}
            self._failures.append(
                f"Random orders were tried on {len(rows):,} rows, evenly spaced over the "
                f"stream's {n:,}, and compared with the same rows as they came."
            )
        every = self._model.batch_size if progressive else None
        in_orders = []
        failed = []
        for order in tries:
            try:
                run = pass_in_order(
                    self._model, stream.X, stream.Y, order, seed, self._advance, every
                )
                in_orders.append(self._answers(*run))
            except ModelFailedError as error:
                failed.append(str(error))
        if failed:
            self._failures.append(
                f"{len(failed)} of {len(tries)} runs in random order failed, so the cost of the "
                f"order is unknown: {failed[0]}."
            )
            return _Trained([], as_it_came, self._rulers)
        if len(rows) < n:
            as_it_came = in_orders.pop(0)
        return _Trained(in_orders, as_it_came, measured)

    def _theory(self) -> _Theory:
        X, Y = as_tensors(self._stream)
        try:
            description = describe(self._model, X)
            machine = open_description(description, X, Y)
            movement = predicted_movement(machine)
        except NoDescriptionError as error:
            return _Theory(str(error))
        except RetargetError as error:  # a network without a tangent kernel, or too many rows
            return _Theory(f"No kernel was used: {error}.")
        correction = None
        failure = "There are no corrected targets: they overflow."
        if movement is None:
            failure = "The kernel machine that describes the model diverges."
        elif fades_start(machine.learner) and bool(machine.start.any()):
            failure = (
                "There are no corrected targets: weight decay fades the function that the model "
                "starts from, and no targets can compensate for that."
            )
        else:
            try:
                correction = best_correction(
                    self._model, machine, self._stream, self._options, self._advance
                )
            except RetargetError as error:
                failure = f"There are no corrected targets: {error}."
        self._failures += [failure] if correction is None else correction.failures
        return _Theory(description.words, movement, correction)

    def _diverged(self, ruler: Ruler, as_it_came: Predictions) -> bool:
        """Whether comparing with the model as it came is pointless: it is far worse than the mean.

        The same bound as for the online learner of the diagnosis, see `Diagnosis.diverged`.
        """
        return not ruler.error(as_it_came).value <= DIVERGED * self._stream.variance

    def _note_divergence(self, as_it_came: Answers) -> None:
        if any(
            self._diverged(ruler, as_it_came[question]) for question, ruler in self._rulers.items()
        ):
            self._failures.append(
                f"Over the stream as it came, {self._model.name} diverges: its error is more than "
                f"{DIVERGED:,.0f} times that of predicting the mean, so no change is compared with "
                "it. If it has a learning rate, lower that."
            )

    def _score(self, way: ModelWay, trained: _Trained, question: Question) -> ModelScore:
        """Returns the score of one way; the mean over its runs, if there are several."""
        ruler = trained.rulers[question]
        as_it_came = trained.as_it_came[question]
        runs = [predictions[question] for predictions in trained.runs if predictions]
        runs = runs or [np.full(as_it_came.shape, math.nan)]

        def over_runs(measure: Callable[[Predictions], Mean]) -> Mean:
            return mean_over_runs([measure(run) for run in runs])

        loss = over_runs(ruler.mean)
        classes = self._stream.kind == "classification"
        squared = replace(ruler, metric=SQUARED)
        constant = np.tile(self._stream.Y.mean(axis=0), (len(as_it_came), 1))
        recall = zip(*(ruler.recall(run) for run in runs), strict=True)
        return ModelScore(
            way,
            question,
            error=estimate(over_runs(squared.mean), lowest=0.0),
            accuracy=estimate(over_runs(ruler.right), 0.0, 1.0) if classes else None,
            loss=estimate(loss, lowest=0.0),
            change=UNKNOWN
            if self._diverged(ruler, as_it_came)
            else ratio(loss, ruler.mean(as_it_came)),
            constant=ratio(loss, ruler.mean(constant)),
            recall=tuple(estimate(mean_over_runs(list(each)), 0.0, 1.0) for each in recall),
            confusion=ruler.confusion(runs),
        )

    def _closed(
        self, ruler: Ruler, as_it_came: Answers, batch: Answers, corrected: Answers
    ) -> Estimate:
        """Returns the share of the gap closed; unknown if the batch fit stopped too early."""
        if not (batch and corrected) or self._diverged(ruler, as_it_came[ruler.question]):
            return UNKNOWN
        means = (
            ruler.mean(predictions[ruler.question])
            for predictions in (batch, as_it_came, corrected)
        )
        closed = gap_closed(*means)
        # clearly better than the batch fit, which therefore is not the best that could be had
        return UNKNOWN if closed.low > 1 else closed


def _losses(trained: _Trained, question: Question) -> tuple[float, ...]:
    """Returns the score of each run."""
    ruler = trained.rulers[question]
    return tuple(ruler.mean(predictions[question]).value for predictions in trained.runs)


def mean_error(stream: Stream, predicted: np.ndarray) -> Estimate:
    """Returns the squared error on the stream's own rows, in the user's units."""
    batches = Batches.consecutive(np.arange(len(stream)))
    return estimate(batches.mean(SQUARED.losses(predicted, stream)), lowest=0.0)


def agreement(shift: np.ndarray, theory: np.ndarray) -> float:
    """Returns 1 - |shift - theory| / |theory|, in root mean squares.

    Examples:
        >>> agreement(np.array([[1.0], [2.0]]), np.array([[1.0], [2.0]]))
        1.0
    """
    size = np.linalg.norm(theory)
    gap = np.linalg.norm(shift - theory)
    if not size:
        return 1.0 if not gap else -math.inf
    return float(1 - gap / size)
