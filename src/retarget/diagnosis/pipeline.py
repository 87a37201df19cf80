"""Diagnoses a table, arrays or a stream: `retarget.diagnose`."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from retarget.diagnosis.measure.approximation import (
    Nystroem,
    Opened,
    measure_approximation,
    open_kernel,
)
from retarget.diagnosis.measure.baselines import baseline_errors
from retarget.diagnosis.measure.choose import (
    attempt_changes,
    choose_block,
    choose_gamma,
    choose_kernel,
    choose_rate,
    largest_rate,
    learn_all,
    non_normality,
)
from retarget.diagnosis.measure.compare import (
    Errors,
    Split,
    as_split,
    as_tensors,
    compare,
    group_shift,
    held_out,
    held_out_errors,
    partition,
    prediction_errors,
    progressive_errors,
    split,
)
from retarget.diagnosis.models.model_diagnosis import diagnose_model
from retarget.diagnosis.models.prediction_log import from_predictions
from retarget.diagnosis.options import Options
from retarget.diagnosis.result import Diagnosis, Evaluation, Mode, Stability
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.tables.frames import assembled, assembled_test
from retarget.diagnosis.tables.prepare import class_text, prepare, target_kind
from retarget.diagnosis.tables.roles import Impute, Kind, Roles, Rows, order_rows, order_test_rows
from retarget.errors import InvalidInputError, NotPositiveDefiniteError, PrecisionWarning
from retarget.import_path import imported_network
from retarget.kernels import EmpiricalNTK, Kernel
from retarget.learners import SGD, Reduction
from retarget.progress import PatientBar
from retarget.settings import considerate_threads
from retarget.text import listed

PASSES = 24  # estimated passes over the rows, for the progress bar
FEWEST_TO_JUDGE = 10  # rows: among fewer, a missing class means nothing
Chosen = TypeVar("Chosen", Options, Roles)


def diagnose(
    X: Any,
    Y: Any,
    *,
    kernel: str | Kernel = "rbf",
    width: float | None = None,
    learner: SGD | None = None,
    lr: float | Literal["auto"] = "auto",
    batch_size: int = 1,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    reduction: Reduction = "sum",
    gamma: float | Literal["auto"] = "auto",
    groups: Any = None,
    times: Any = None,
    test: Any = None,
    evaluation: Evaluation | None = None,
    test_share: float = 0.2,
    reference: str = "all",
    intercept: bool = False,
    group_as_feature: bool = False,
    column: Sequence[str] = (),
    drop: Sequence[str] = (),
    kind: Kind = "auto",
    impute: Impute = "error",
    standardise: bool = True,
    allow_leak: bool = False,
    block_size: int | None = None,
    ridge: float | None = None,
    mode: Mode | Literal["auto"] = "auto",
    features: int | None = None,
    memory: int | None = None,
    seed: int = 0,
    model: Any = None,
    model_options: Mapping[str, Any] | None = None,
    predictions: Any = None,
    predictions_after: Any = None,
) -> Diagnosis:
    """Finds what an online learner has really learned from a stream, and what would help.

    Use it if you have the rows that a learner was trained on, in order, and want to know which
    targets it shifted. River's progressive validation measures the error; this explains it, by
    comparison with a batch model of the same kernel (scikit-learn's `KernelRidge`). The exact
    method needs memory in proportion to the square of the number of rows; if that exceeds
    `memory`, features approximate the kernel.

    Args:
        X: The features, with rows in the order in which they were learned: an array (n, d), a
            pandas or Polars frame, or a dict of columns.
        Y: The targets: an array (n,) or (n, c), or names of columns of X.
        kernel: "rbf", "linear", anything that `retarget.as_kernel` accepts, or
            "package.module:factory" for the tangent kernel of the network that it returns.
        width: Width of the RBF kernel; None uses the median distance between rows.
        learner: The online learner, instead of the next six options.
        lr: Its learning rate; "auto" picks the stable rate with the smallest error on each row
            before it is learned.
        batch_size: Rows in one step of the learner.
        momentum: Momentum, as in `retarget.SGD` (so are the next three options).
        nesterov: Whether to use Nesterov momentum.
        weight_decay: Weight decay.
        reduction: Whether the loss is the "sum" or the "mean" over a mini-batch.
        gamma: The offline learner's ridge; "auto" minimises the leave-one-out error.
        groups: Each row's group: (n,), or the name of a column of X.
        times: Values to sort the rows by: (n,), or the name of a column of X; None keeps the order.
        test: Rows to measure errors on: (X, Y), or a frame if Y names columns.
        evaluation: Which rows errors are measured on: the "last" ones of the stream, "random" ones
            (the same share of every class), each row before it is learned ("progressive"), or the
            "test" set. None uses the test set if there is one, else the last rows, or random ones
            if the last rows hold classes that were never learned.
        test_share: The share of the stream to hold out, at the end or at random.
        reference: The batch model to compare the online learner with: trained on "all" rows, on
            the last N ("window:N"), or with older rows counting less ("discount:0.999"). If the
            stream drifts, one of the latter two is the fair comparison.
        intercept: Whether to add a constant feature to the linear kernel, as scikit-learn's
            linear models do.
        group_as_feature: Whether to use the group as a feature as well.
        column: The only columns of X to use as features; empty for all of them.
        drop: Columns of X to leave out.
        kind: "regression" or "classification"; "auto" decides by the targets.
        impute: What to replace missing numbers by ("mean", "median" or "zero"), or "error".
        standardise: Whether to scale numbers to mean 0 and standard deviation 1 first.
        allow_leak: Whether to accept features that give the target away.
        block_size: Rows that the iterative correction corrects together, a multiple of
            `batch_size`; None uses about 64.
        ridge: Ridge of the iterative correction's blocks; None tries a few values and keeps the
            one whose learner ends nearest to the offline learner.
        mode: "exact", "features" (an approximation of the kernel), or "auto": exact if it fits in
            `memory`.
        features: Number of features; None uses as many as a minute or two allows.
        memory: Bytes that the exact method may use; None: half of the free memory, at most 4 GB.
        seed: Seed for everything random.
        model: Your own model, which is run as well (docs/models.md): an object with
            `partial_fit`/`predict` or `learn_one`/`predict_one`, a torch module (or a tuple of
            module, optimiser and loss), a class or function that returns one of these, or
            "package.module:factory". It is copied, never changed.
        model_options: Keyword arguments for the class or function.
        predictions: Instead of a model, its logged predictions for each row just before the row
            was learned: (n,), or names of columns of X, one for each target.
        predictions_after: Its logged predictions for each row at the end of the stream.

    Raises:
        InvalidInputError: The data cannot be learned from; the message says why and what to do.
    """
    asked = locals()
    options = chosen(Options, asked)
    if learner is not None:
        options = options.with_learner(learner)
    beside = {"group": groups, "time": times}
    beside |= {"predictions": predictions, "predictions_after": predictions_after}
    table, target, named = assembled(X, Y, beside)
    roles = chosen(Roles, {**asked, **named, "target": target})
    test_table = None if test is None else assembled_test(test, X, Y, target)
    return diagnose_table(table, roles, test_table, options)


def chosen(kind: type[Chosen], asked: Mapping[str, Any]) -> Chosen:
    """Creates options or roles from the arguments that have the names of their fields."""
    names = [field.name for field in fields(kind)]
    return kind(**{name: asked[name] for name in names if name in asked})


def diagnose_table(
    table: pl.DataFrame, roles: Roles, test: pl.DataFrame | None, options: Options
) -> Diagnosis:
    """Diagnoses a table with the given column roles; a test set has the same columns."""
    if options.model is not None and roles.logged:
        raise InvalidInputError(
            "a model and a log of predictions are both given; give one of them: a model is run, "
            "and needs no log"
        )
    rows = order_rows(table, roles)
    if roles.logged and options.evaluation is None and test is None:
        options = replace(options, evaluation="progressive")  # the log covers all rows
    evaluation, held, notes = hold_out(rows, test, options)
    order = np.argsort(held, kind="stable")  # the rows to learn from come first
    rows = replace(rows, table=rows.table[order], numbers=rows.numbers[order])
    # the preparation must learn nothing from held-out rows: no mean, no category
    learned = len(rows) - int(held.sum())
    stream, preparation = prepare(rows, learned)
    test_stream = stream.part(slice(learned, None)) if learned < len(rows) else None
    stream = stream.part(slice(0, learned))
    if test is not None:
        test_stream = preparation.apply(order_test_rows(test, roles))
        notes = [f"Test set: {note}" for note in test_stream.notes if note not in stream.notes]
    stream = replace(stream, notes=(*stream.notes, *notes))
    if isinstance(options.kernel, str) and ":" in options.kernel:
        options = replace(options, kernel=network_kernel(options.kernel, stream.X.shape[1]))
    diagnosis = diagnose_split(as_split(stream, test_stream, evaluation), options)
    if not roles.logged:
        return diagnosis
    before, after = (
        rows.table[:learned].select(columns).to_numpy() if columns else None
        for columns in (roles.predictions, roles.predictions_after)
    )
    return replace(diagnosis, model=from_predictions(stream, before, after, seed=options.seed))


def hold_out(
    rows: Rows, test: object, options: Options
) -> tuple[Evaluation, NDArray[np.bool_], list[str]]:
    """Returns how learners are compared, which rows are held out, and a note if it is unusual."""
    evaluation, classes = options.evaluation_with(test), None
    if target_kind(rows) == "classification":
        classes = class_text(rows.table[rows.roles.target[0]]).to_numpy()
    held = held_out(len(rows), evaluation, options, classes)
    if classes is None or evaluation != "last" or len(rows) < FEWEST_TO_JUDGE:
        return evaluation, held, []
    new = sorted(set(classes[held]) - set(classes[~held]))
    if not new or options.evaluation is not None:
        return evaluation, held, []
    note = (
        f"The last rows hold classes that would never have been learned ({listed(new)}): random "
        "rows of every class are held out instead (--evaluation last holds out the last ones)."
    )
    return "random", held_out(len(rows), "random", options, classes), [note]


def network_kernel(path: str, features: int) -> EmpiricalNTK:
    """Returns the empirical NTK, in float64, of the network that "package.module:factory" makes."""
    network = imported_network(path, "network").double().eval()
    try:
        with torch.no_grad():
            network(torch.zeros(2, features, dtype=torch.float64))
    except Exception as error:  # the user's own code may raise anything
        raise InvalidInputError(
            f"the network {path!r} does not accept rows of {features} features, which is how many "
            f"the table's columns give: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    return EmpiricalNTK(network)


def diagnose_stream(
    stream: Stream,
    test: Stream | None = None,
    options: Options | None = None,
    *,
    progress: bool | None = None,
) -> Diagnosis:
    """Runs the offline, online and corrected learners over a stream and compares them.

    `retarget.diagnose` prepares a table or arrays and calls this. Use it for a stream of numbers
    that is ready to be learned from.

    Args:
        stream: The rows, in the order in which they were learned.
        test: Rows to compare the learners on; if given, no row of the stream is held out.
        options: The learner and the method; None chooses everything automatically.
        progress: Whether to show a progress bar; None shows it on a terminal only.

    Examples:
        A drifting stream: the online learner has forgotten where it started.

        >>> import numpy as np
        >>> from retarget.diagnosis.stream import Stream
        >>> x = np.linspace(-2, 2, 200)[:, None]
        >>> y = np.sin(2 * x)
        >>> names, one = ("x",), np.ones(1)
        >>> stream = Stream(x, y, "regression", ("y",), 0 * one, one, names, np.arange(200))
        >>> found = diagnose_stream(stream, stream, Options(width=0.7, lr=0.5))
        >>> bool(found.score("online").error.low > found.score("offline").error.high)
        True
    """
    options = options or Options()
    return diagnose_split(split(stream, test, options), options, progress=progress)


def diagnose_split(parted: Split, options: Options, *, progress: bool | None = None) -> Diagnosis:
    """Diagnoses a stream from which the rows to compare the learners on are already held out."""
    X, Y = as_tensors(parted.stream)
    kernel, words = choose_kernel(options, X)
    with (
        considerate_threads(),
        PatientBar("diagnosing", PASSES * len(X), progress) as bar,
        _noting_precision() as doubts,
    ):
        model = None
        if options.model is not None:  # first: if it cannot be run, that is reported at once
            model = diagnose_model(parted, options, progress=progress)
        opened = open_kernel(kernel, X, Y, options, bar.advance)
        found = run_learners(opened, parted, options, words)
    return replace(found, model=model, failures=(*found.failures, *doubts))


@torch.no_grad()
def run_learners(opened: Opened, parted: Split, options: Options, words: str) -> Diagnosis:
    """Chooses the options left open, runs every learner over the stream and compares them."""
    kernel, stream, progressive = opened.kernel, parted.stream, parted.test is None
    scales = stream.target_scales
    gamma = choose_gamma(options, kernel, scales)
    limit = largest_rate(kernel, options.learner)
    lr = choose_rate(options, kernel, limit, scales, progressive)
    learner = replace(options.learner, lr=lr.value)
    block_size = choose_block(options, len(stream))

    learned = learn_all(kernel, learner, gamma, block_size, options.ridge, limit, progressive)
    shift = learned.effective - kernel.Y
    groups = group_shift(kernel, stream, partition(stream), learned.dual, shift, learner.batch_size)
    learned.changed = attempt_changes(kernel, learner, lr, options.seed, progressive)

    true_kernel, unseen = None, ()
    if parted.test is None:
        errors = progressive_errors(kernel, learned, gamma.value, learner.batch_size)
    else:
        errors = held_out_errors(kernel, parted.test, learned)
        true_kernel = _true_kernel(opened, parted.test, stream, options)
        if stream.kind == "classification":
            new = (parted.test.Y.sum(axis=0) > 0) & (stream.Y.sum(axis=0) == 0)
            unseen = tuple(np.array(stream.target_names, dtype=object)[new])
    baselines = baseline_errors(kernel, parted, options)
    comparison = compare(errors, baselines, parted, options, true_kernel)
    approximation = measure_approximation(opened, learner, gamma.value)
    if approximation is not None:
        approximation = replace(approximation, reference=comparison.true_kernel)
    effective, before = learned.effective.numpy(), learned.online.errors
    said = effective - gamma.value * learned.dual.numpy()  # Y^e = (gamma I + K) C
    return Diagnosis(
        stream=stream,
        test_rows=comparison.rows,
        evaluation=parted.evaluation,
        mode="exact" if approximation is None else "features",
        kernel=words,
        learner=learner,
        block_size=block_size,
        lr=lr,
        gamma=gamma,
        scores=comparison.scores,
        baselines=comparison.baselines,
        reference=options.reference,
        excess=comparison.excess,
        gap_closed=comparison.gap_closed,
        accuracy_gap=comparison.accuracy_gap,
        effective=effective,
        corrected=learned.corrected.numpy(),
        iterative=learned.iterative.numpy(),
        prequential=np.full_like(effective, np.nan) if before is None else before.numpy(),
        density=kernel.density().numpy(),
        hindsight=float(np.square((stream.Y - said) * scales).mean()),
        changed=changed_rows(stream, effective),
        groups=groups,
        stability=Stability(limit, non_normality(kernel, learner, options.seed)),
        approximation=approximation,
        ridge=learned.ridge,
        aim=learned.aim,
        trials=comparison.trials,
        failures=tuple(learned.failures),
        unseen=unseen,
    )


def _true_kernel(opened: Opened, test: Stream, stream: Stream, options: Options) -> Errors | None:
    """Returns held-out errors of an offline learner with the true kernel on a sample of rows."""
    if opened.sample is None or not isinstance(opened.features, Nystroem):
        return None
    gamma = choose_gamma(options, opened.sample, stream.target_scales)
    try:
        offline = opened.sample.offline(gamma.value)
    except NotPositiveDefiniteError:
        return None
    return prediction_errors(opened.sample, test, [offline.coefficients])[0]


def changed_rows(stream: Stream, effective: np.ndarray) -> np.ndarray:
    """Returns (n,) whether the class changed, or a number moved to the other side of the mean."""
    known = np.isfinite(effective).all(axis=1)
    if stream.kind == "classification":
        other = effective.argmax(axis=1) != stream.Y.argmax(axis=1)
    else:
        other = (effective * stream.Y < 0).any(axis=1)
    return np.asarray(known & other)


@contextmanager
def _noting_precision() -> Iterator[list[str]]:
    """Collects precision warnings as sentences; other warnings are issued again."""
    doubts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield doubts
    for warning in caught:
        if issubclass(warning.category, PrecisionWarning):
            text = str(warning.message)
            doubts.append(f"{text[0].upper()}{text[1:]}.")
        else:
            place = warning.filename, warning.lineno
            warnings.warn_explicit(warning.message, warning.category, *place)
    doubts[:] = dict.fromkeys(doubts)
