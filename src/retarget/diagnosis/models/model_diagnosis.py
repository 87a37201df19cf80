"""What a user's own model made of the stream, from all of its runs."""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

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
from retarget.diagnosis.models.correction import Correction, try_correction
from retarget.diagnosis.models.equivalent import (
    Description,
    NoDescriptionError,
    describe,
    open_description,
    predicted_movement,
)
from retarget.diagnosis.models.opening import open_model
from retarget.diagnosis.models.runs import (
    EPOCHS,
    ORDERS,
    Passage,
    batch_model,
    movement_by_group,
    order_rows,
    pass_as_it_came,
    pass_in_order,
    progressive_batch,
)
from retarget.diagnosis.options import Options
from retarget.diagnosis.result import Estimate, ModelDiagnosis, ModelScore, ModelWay
from retarget.diagnosis.stream import Stream
from retarget.errors import RetargetError
from retarget.progress import PatientBar
from retarget.theory.stream_kernel import StreamKernel

DIVERGED = 1e6  # standard deviations of the targets
FAILED_ORDERS = "{} of {} random orders failed, and what the order costs is not known: {}."


def diagnose_model(
    parted: Split, options: Options, *, progress: bool | None = None
) -> ModelDiagnosis:
    """Runs the user's model over the stream in every way, and compares.

    What the model is given is said in `retarget.diagnosis.models.adapters`. In a progressive
    evaluation every way is judged by what it predicts for rows that it has not learned yet: random
    orders by the error before learning of the shuffled stream, over all rows; the batch model by
    models of the rows so far (see `progressive_batch`); corrected targets before each block.

    Args:
        parted: The stream, and the rows held out.
        options: The model, its options, and the seed.
        progress: Whether to show a progress bar; None shows it on a terminal only.

    Raises:
        InvalidInputError: The model cannot be made, or fails on its first rows.
        InvalidTypeError: It is not a model.
    """
    model = open_model(parted.stream, options)
    rows = len(parted.stream) * (2 + ORDERS + EPOCHS // 4)
    with PatientBar("running your model", rows, progress) as bar:
        return _Diagnosing(model, parted, options, bar.advance).whole()


@dataclass(frozen=True)
class _Theory:
    """What describes the model, what it predicts, and the corrected targets that it led to."""

    words: str
    movement: np.ndarray | None = None
    correction: Correction | None = None


class _Diagnosing:
    """The runs of one model, and what is known of them; what fails is noted, and the rest goes on.

    Args:
        model: The model.
        parted: The stream, and the rows held out.
        options: As the user gave them.
        advance: Called with the number of rows after each step.
    """

    def __init__(
        self, model: OnlineModel, parted: Split, options: Options, advance: Advance
    ) -> None:
        self._model, self._stream, self._test = model, parted.stream, parted.test
        self._options, self._seed, self._advance = options, options.seed, advance
        self._groups = partition(self._stream)
        self._truth = self._stream.Y if self._test is None else self._test.Y
        self._bootstrap = Bootstrap(len(self._truth), self._seed)
        self._failures: list[str] = []

    def whole(self) -> ModelDiagnosis:
        """All runs, one after another."""
        stream, nothing = self._stream, np.full(self._stream.Y.shape, math.nan)
        passage = self._passage()
        if passage is None:
            passage = Passage(nothing, nothing, nothing, (), self._model)
            came, theory = self._unknown(), _Theory("It was not looked for: the model failed.")
        else:
            came = passage.before if self._test is None else self._on_test(passage.model)
            came = self._unless_diverged(came, passage)
            theory = self._theory(passage)
        batch = self._batch(passage)
        corrected = self._corrected(theory.correction)
        squares = {
            name: squared_errors(self._truth - predicted, stream)
            for name, predicted in (("came", came), ("batch", batch), ("corrected", corrected))
        }
        order, orders, shuffled = self._orders(came)
        movement = theory.movement
        return ModelDiagnosis(
            name=self._model.name,
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
                stream,
                self._groups,
                passage.after,
                passage.moments or ((len(stream), passage.end),),
                self._model.batch_size,
            ),
            description=theory.words,
            theory=movement,
            agreement=None
            if movement is None
            else agreement(passage.end - passage.after, movement),
            corrected=None if theory.correction is None else theory.correction.targets,
            corrected_size=(
                math.nan
                if theory.correction is None
                else stream.farthest(theory.correction.targets)
            ),
            closed=gap_closed(
                *(self._bootstrap.means(squares[way]) for way in ("batch", "came", "corrected"))
            ),
            prequential=mean_error(stream, passage.before, self._seed),
            remembered=mean_error(stream, passage.end, self._seed),
            failures=tuple(self._failures),
        )

    def _passage(self) -> Passage | None:
        try:
            return pass_as_it_came(
                self._model, self._stream, self._groups, self._seed, self._advance
            )
        except ModelFailedError as error:
            self._failures.append(f"Over the stream as it came, {error}.")
            return None

    def _unless_diverged(self, came: np.ndarray, passage: Passage) -> np.ndarray:
        """The predictions, or NaN where a comparison with them would say nothing."""
        parts = (passage.before, passage.end, came)
        farthest = max(self._stream.farthest(part) for part in parts)
        if farthest < DIVERGED:
            return came
        self._failures.append(
            f"Over the stream as it came, {self._model.name} diverges: its predictions reach "
            f"{farthest:.0e} standard deviations of the targets."
        )
        return self._unknown()

    def _unknown(self) -> np.ndarray:
        return np.full(self._truth.shape, math.nan)

    def _on_test(self, model: OnlineModel) -> np.ndarray:
        """Predictions for the rows held out; NaN where the model fails on them."""
        if self._test is None:
            return self._unknown()
        try:
            return model.predict(self._test.X)
        except ModelFailedError as error:
            self._failures.append(f"On the rows held out, {error}.")
            return self._unknown()

    def _batch(self, passage: Passage) -> np.ndarray:
        X, Y, seed = self._stream.X, self._stream.Y, self._seed
        try:
            if self._test is None:
                before = passage.before
                return progressive_batch(self._model, X, Y, before, seed, self._advance)
            return self._on_test(batch_model(self._model, X, Y, seed, self._advance))
        except ModelFailedError as error:
            self._failures.append(f"As a batch model, {error}.")
            return self._unknown()

    def _orders(self, came: np.ndarray) -> tuple[Estimate, tuple[float, ...], ModelScore]:
        """What the order costs, the error of each order, and their score."""
        chosen = order_rows(self._model, len(self._stream), self._test is None)
        thinned, truth, bootstrap = len(chosen) < len(self._stream), self._truth, self._bootstrap
        X, Y = self._stream.X[chosen], self._stream.Y[chosen]
        rng = np.random.default_rng(self._seed)
        tries = [rng.permutation(len(chosen)) for _ in range(ORDERS)]
        if thinned:
            self._failures.append(
                f"Random orders were tried on {len(chosen):,} rows, evenly spaced over the "
                f"stream's {len(self._stream):,}, and compared with the same rows as they came."
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
            self._failures.append(FAILED_ORDERS.format(len(failed), len(tries), failed[0]))
            return UNKNOWN, (), self._score("random order", self._unknown())
        base = made.pop(0) if thinned else came
        stream = self._stream
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
        except RetargetError as error:  # a network that has no tangent kernel, or too many rows
            return _Theory(f"A kernel was left out: {error}.")
        if movement is None:
            self._failures.append("The kernel machine that describes the model diverges.")
            return _Theory(description.words)
        correction = None
        if description.learner.weight_decay and bool(start.any()):
            self._failures.append(
                "Corrected targets were left out: weight decay fades the function that the model "
                "starts from, and no targets make up for that."
            )
        else:
            correction = self._correction(description, kernel, start, passage)
        return _Theory(description.words, movement, correction)

    def _correction(
        self, description: Description, kernel: StreamKernel, start: Tensor, passage: Passage
    ) -> Correction | None:
        try:
            found = try_correction(
                self._model,
                description,
                kernel,
                start,
                self._stream,
                self._options,
                plain_error=float(np.square(passage.end - self._stream.Y).mean()),
                before_blocks=self._test is None,
                advance=self._advance,
            )
        except RetargetError as error:
            self._failures.append(f"There are no corrected targets: {error}.")
            return None
        if found is None:
            self._failures.append("There are no corrected targets: they grow beyond numbers.")
            return None
        self._failures += found.failures
        return found

    def _corrected(self, correction: Correction | None) -> np.ndarray:
        if correction is None or correction.model is None:
            return self._unknown()
        if self._test is None:
            before = correction.before_blocks
            return self._unknown() if before is None else before
        return self._on_test(correction.model)

    def _score(self, way: ModelWay, predicted: np.ndarray) -> ModelScore:
        errors = self._truth - predicted
        return ModelScore(way, *score(errors, self._truth, self._stream, self._bootstrap))


def mean_error(stream: Stream, predicted: np.ndarray, seed: int) -> Estimate:
    """Error on the stream's own rows, in the user's units."""
    squares = squared_errors(stream.Y - predicted, stream)
    return estimate(Bootstrap(len(stream), seed).means(squares))


def agreement(shift: np.ndarray, theory: np.ndarray) -> float:
    """1 - |shift - theory| / |theory|, in root mean squares.

    Examples:
        >>> agreement(np.array([[1.0], [2.0]]), np.array([[1.0], [2.0]]))
        1.0
    """
    size, gap = np.linalg.norm(theory), np.linalg.norm(shift - theory)
    if not size:
        return 1.0 if not gap else -math.inf
    return float(1 - gap / size)
