"""Diagnoses a table, arrays or a stream: `retarget.diagnose`."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from retarget.diagnosis.answers import AlternativeModel, Estimate, Evaluation, HoldOut
from retarget.diagnosis.measure.along import errors_along
from retarget.diagnosis.measure.alternatives import tried_alternatives
from retarget.diagnosis.measure.approximation import (
    Opened,
    measure_approximation,
    open_kernel,
    relative_difference,
)
from retarget.diagnosis.measure.baselines import baseline_predictions
from retarget.diagnosis.measure.choose import (
    choose_block,
    choose_gamma,
    choose_kernel,
    choose_rate,
)
from retarget.diagnosis.measure.compare import (
    compare,
    held_out_predictions,
    predictions,
    progressive_predictions,
    rulers,
)
from retarget.diagnosis.measure.groups import group_shift, partition
from retarget.diagnosis.measure.holdout import Split, as_tensors, held_out, split_at
from retarget.diagnosis.measure.intervals import ratio
from retarget.diagnosis.measure.learn import (
    LearnedStream,
    attempt_changes,
    learn_all,
    other_learners,
)
from retarget.diagnosis.measure.stability import largest_rate, non_normality
from retarget.diagnosis.measure.whole import WholeStream, ask_about_whole, first_fold
from retarget.diagnosis.models.model_diagnosis import diagnose_model
from retarget.diagnosis.models.prediction_log import from_predictions
from retarget.diagnosis.options import Auto, DiagnosisOptions, learner_options
from retarget.diagnosis.result import Diagnosis, KernelUsed, Stability
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.tables.frames import assembled, assembled_test
from retarget.diagnosis.tables.prepare import class_text, prepare, target_kind
from retarget.diagnosis.tables.roles import Impute, Roles, order_rows, order_test_rows
from retarget.diagnosis.words.numbers import sentence
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    NotPositiveDefiniteError,
    PrecisionWarning,
)
from retarget.import_path import USER_ERRORS, called, imported, reason
from retarget.kernels import EmpiricalNTK, Kernel
from retarget.kernels.lookup import named_class
from retarget.learners import SGD
from retarget.progress import PatientBar
from retarget.settings import in_plain_torch
from retarget.text import listed
from retarget.theory.stream_kernel import StreamKernel

PASSES = 24  # estimated passes over the rows, for the progress bar


def diagnose(
    X: Any,
    Y: Any,
    *,
    model: Any = None,
    learner: SGD | None = None,
    lr: float | Auto = "auto",
    kernel: str | Kernel = "rbf",
    width: float | Auto = "auto",
    group: Any = None,
    time: Any = None,
    lags: int = 0,
    impute: Impute = "error",
    standardize: bool = True,
    allow_leak: bool = False,
    test: Any = None,
    evaluation: Evaluation = "both",
    test_share: float = 0.1,
    hold_out: HoldOut = "rows",
    metric: Any = "auto",
    aim: str = "all",
    gamma: float | Auto = "auto",
    block_size: int | Auto = "auto",
    ridge: float | Auto = "auto",
    features: int | Auto | None = "auto",
    max_memory: float | str = "auto",
    seed: int = 0,
) -> Diagnosis:
    """Finds what an online learner has really learned from a stream, and what would help.

    Use it if you have the rows that a learner was trained on, in order, and want to know which
    targets it shifted. River's progressive validation measures the error; this explains it, by
    comparison with a batch model of the same kernel (scikit-learn's `KernelRidge`). The exact
    method needs memory in proportion to the square of the number of rows; if that exceeds
    `max_memory`, features approximate the kernel.

    Args:
        X: The features, with rows in the order in which they were learned: an array (n, d), a
            pandas, Polars or pyarrow table, or a dict of columns. Every column is a feature, except
            those named below. Rows are matched by position, so pandas objects with different
            indices are an error.
        Y: The targets: an array (n,) or (n, c), or names of columns of X. Text, booleans and few
            different whole numbers are classes, anything else numbers: give 0, 1, 2 as floats if
            they are numbers, and as text if they are classes.
        model: **The learner.** Your own model, which is run as well (docs/models.md): an object
            with `partial_fit`/`predict` or `learn_one`/`predict_one`, a torch module (or a tuple of
            module, optimizer and loss), a class or function that returns one of these, or
            "package.module:factory". It is copied, never changed. If you have only a log of its
            predictions: a dict of those for each row just before the row was learned ("before"),
            at the end of the stream ("after"), or both, as (n,) values or names of columns of X.
        learner: The online learner, if you know its rate.
        lr: The rate of a learner of single rows; "auto" picks the stable rate with the smallest
            error on each row before it is learned.
        kernel: "rbf", "laplace", "matern32", "matern52", "linear", "affine" (linear with an
            intercept, as scikit-learn's linear models have), the name of a kernel of your own,
            anything that `retarget.as_kernel` accepts, or "package.module:factory" for the kernel
            that it returns, or for the tangent kernel of the network that it returns.
        width: Width of a kernel that has one; "auto" uses the median distance between rows.
        group: **The rows.** Each row's group: (n,), or the name of a column of X, which is then not
            a feature.
        time: Values to sort the rows by: (n,), or the name of a column of X; None keeps the order.
        lags: How many previous values of each target to use as features: those of earlier rows, in
            the order of `time`, within each group. The first rows have none and are left out.
        impute: What to replace missing numbers by ("mean", "median" or "zero"), or "error".
        standardize: Whether to scale numbers to mean 0 and standard deviation 1 first.
        allow_leak: Whether to accept features that give the target away.
        test: **The comparison.** Rows to measure errors on: (X, Y), or a frame if Y names columns.
        evaluation: Which rows the learners are asked about. "both" holds out rows from the "whole"
            stream (what does it still know?) and its last rows, the "next" ones (how well does it
            predict what comes next?); either can be asked alone. "progressive" scores each row
            before it is learned, "test" uses the test set (the default if there is one).
        test_share: The share of the stream to hold out for each question, a tenth; from 150 rows
            on, at least 30 rows are held out.
        hold_out: "rows", or "group" to hold out all rows of some groups: for people, devices or
            shops, if new ones will come. The ridge is then chosen on groups as well.
        metric: What learners are compared by: "squared" or "absolute" error; for classes
            "log-loss", "accuracy" or "balanced-accuracy". "auto" is the squared error, and for
            classes the accuracy where it tells them apart. For your own, a function of the true and
            the predicted targets, both (m, c), that returns a loss of at least 0 for each row, or
            its name as "package.module:function" (docs/diagnosis.md).
        aim: The batch model to compare the online learner with: trained on "all" rows, on the last
            N ("window:N"), or with older rows counting less ("discount:0.999"). If the stream
            drifts, one of the latter two is the fair comparison.
        gamma: **The method.** The batch model's ridge; "auto" minimizes the leave-one-out error.
        block_size: Rows that the iterative correction corrects together, a multiple of the
            learner's batch size; "auto" uses about 64, at most a tenth of the rows.
        ridge: Ridge of the iterative correction's blocks; "auto" tries a few values and keeps the
            one whose learner ends closest to the batch model.
        features: How many features approximate the kernel; None uses the exact kernel. "auto" uses
            the exact kernel if that fits in `max_memory` and the stream has at most 12,000 rows,
            otherwise as many features as a minute or two allows.
        max_memory: What the exact method may use, as bytes or "4GB"; "auto" is half of the free
            memory, at most 4 GB.
        seed: Seed for everything random.

    Raises:
        InvalidInputError: The data cannot be learned from; the message says why and what to do.
    """
    log = _prediction_log(model)
    learner, choose_lr = learner_options(learner, lr)
    options = DiagnosisOptions(
        learner=learner,
        choose_lr=choose_lr,
        kernel=kernel,
        width=width,
        model=None if isinstance(model, dict) else model,
        evaluation=evaluation,
        test_share=test_share,
        hold_out=hold_out,
        metric=metric,
        aim=aim,
        gamma=gamma,
        block_size=block_size,
        ridge=ridge,
        features=features,
        max_memory=max_memory,
        seed=seed,
    )
    table, target, column = assembled(X, Y, {"group": group, "time": time, **log})
    roles = Roles(
        target,
        time=column["time"],
        group=column["group"],
        impute=impute,
        standardize=standardize,
        allow_leak=allow_leak,
        predictions=column["predictions"],
        predictions_after=column["predictions_after"],
        lags=lags,
    )
    test_table = None if test is None else assembled_test(test, X, Y, target)
    return diagnose_table(table, roles, test_table, options)


def _prediction_log(model: Any) -> dict[str, Any]:
    """Returns the logged predictions by their role, if these are given instead of a model."""
    log = model if isinstance(model, dict) else {}
    if unknown := log.keys() - {"before", "after"}:
        raise InvalidInputError(
            f"model is a dict with {listed(sorted(map(str, unknown)))}; expected a log of "
            "predictions: 'before' each row was learned, 'after' the stream, or both"
        )
    return {"predictions": log.get("before"), "predictions_after": log.get("after")}


def diagnose_table(
    table: pl.DataFrame, roles: Roles, test: pl.DataFrame | None, options: DiagnosisOptions
) -> Diagnosis:
    """Diagnoses a table with the given column roles; a test set has the same columns."""
    if options.model is not None and roles.logged:
        raise InvalidInputError(
            "a model and a log of predictions are both given; give one of them: a model is run, "
            "and needs no log"
        )
    rows = order_rows(table, roles)
    if roles.logged and options.evaluation == "both" and test is None:
        options = replace(options, evaluation="progressive")  # the log covers all rows
    classes = None
    if target_kind(rows) == "classification":
        classes = class_text(rows.table[roles.target[0]]).to_numpy()
    groups = rows.as_text(roles.group) if options.hold_out == "group" else None
    held = held_out(len(rows), options.evaluation_with(test), options, classes, groups)
    learned = np.setdiff1d(np.arange(len(rows)), held.not_learned)
    # the preparation must learn nothing from held-out rows (no mean, no category), so the rows to
    # learn from come first, and are put back in their places afterwards
    order = np.concatenate([learned, held.not_learned])
    sorted_rows = replace(rows, table=rows.table[order], numbers=rows.numbers[order])
    stream, preparation = prepare(sorted_rows, len(learned))
    stream = stream.part(np.argsort(order))
    test_stream = None
    if test is not None:
        test_stream = preparation.apply(order_test_rows(test, roles))
        notes = (f"Test set: {note}" for note in test_stream.notes if note not in stream.notes)
        stream = replace(stream, notes=(*stream.notes, *notes))
    if isinstance(options.kernel, str) and ":" in options.kernel:
        options = replace(options, kernel=imported_kernel(options.kernel, stream.X.shape[1]))
    parted = split_at(stream, held, test_stream, options)
    diagnosis = diagnose_split(parted, options)
    if not roles.logged:
        return diagnosis
    before, after = (
        rows.table[learned].select(columns).to_numpy() if columns else None
        for columns in (roles.predictions, roles.predictions_after)
    )
    logged = from_predictions(parted.stream, before, after, options)
    return replace(diagnosis, model=logged)


def imported_kernel(path: str, features: int) -> Kernel | type[Kernel]:
    """Returns the kernel, or the class of kernels, that "package.module:factory" is or makes.

    If it makes a network, that is its empirical NTK, in float64.
    """
    made = imported(path, "kernel")
    if not isinstance(made, Kernel) and named_class(made) is None:
        made = called(made, path, "kernel")
    if isinstance(made, Kernel) or named_class(made) is not None:
        return made  # type: ignore[no-any-return]  # by `named_class`
    if not isinstance(made, nn.Module):
        raise InvalidTypeError(
            f"{path!r} returned a {type(made).__name__}; expected a torch.nn.Module, whose tangent "
            "kernel is used, or a kernel (rt.kernels.Kernel)"
        )
    network = made.double().eval()
    try:
        with torch.no_grad():
            network(torch.zeros(2, features, dtype=torch.float64, device="cpu"))
    except USER_ERRORS as error:
        raise InvalidInputError(
            f"the network {path!r} does not accept rows of {features} features, which is how many "
            f"the table's columns give: {reason(error)}"
        ) from error
    return EmpiricalNTK(network)


def diagnose_split(parted: Split, options: DiagnosisOptions) -> Diagnosis:
    """Diagnoses a stream from which the rows to compare the learners on are already held out."""
    kernel, used = choose_kernel(options, as_tensors(parted.stream)[0])
    with (
        PatientBar("diagnosing", PASSES * len(parted.stream)) as bar,
        _noting_precision() as doubts,
    ):
        model = None
        if options.model is not None:  # first: if it cannot be run, that is reported at once
            model = diagnose_model(parted, options)
        opened = open_kernel(kernel, parted, options, bar.advance)
        found = run_learners(opened, parted, options, used)
    return replace(found, model=model, failures=(*found.failures, *doubts))


@in_plain_torch
def run_learners(
    opened: Opened, parted: Split, options: DiagnosisOptions, used: KernelUsed
) -> Diagnosis:
    """Chooses the options left open, runs every learner over the stream and compares them."""
    kernel, stream, progressive = opened.kernel, parted.stream, parted.progressive
    scales = stream.target_scales
    gamma = choose_gamma(options, kernel, scales, stream.groups if parted.whole_groups else None)
    limit = largest_rate(kernel, options.learner)
    lr = choose_rate(options, kernel, limit, scales, progressive)
    learner = replace(options.learner, lr=lr.value)
    block_size = choose_block(options.block_size, learner.batch_size, len(stream))

    fold = first_fold(opened, parted)
    learned = learn_all(kernel, learner, gamma, block_size, options.ridge, limit, fold, progressive)
    shift = learned.effective - kernel.Y
    groups = group_shift(kernel, stream, partition(stream), learned.dual, shift, learner.batch_size)
    others = other_learners(len(kernel), learner, lr)
    learned.changed = attempt_changes(
        kernel, learner, others, options.seed, learned.answers, progressive
    )

    answers = []
    whole: WholeStream | None = None
    for ruler in rulers(parted, options):
        first = learned.answers
        if ruler.question == "whole" and first is not None:
            whole = ask_about_whole(
                opened, parted, options, learned, first, learner, others, gamma.value, block_size
            )
            answers.append(whole.answer)
            continue
        asked = parted.asked.get(ruler.question)
        if asked is None:
            said = progressive_predictions(kernel, learned, gamma.value, learner.batch_size)
        else:
            said = held_out_predictions(kernel, asked, learned)
        simple = baseline_predictions(kernel, parted, ruler.question, options)
        answers.append(compare(said, simple, ruler, parted, options))
    approximation = measure_approximation(opened, learner, gamma.value)
    batch = learned.coefficients.get("offline")
    alternatives: tuple[AlternativeModel, ...] = ()
    if batch is not None:
        alternatives = tried_alternatives(kernel, batch, gamma.value, answers, parted, options)
    if approximation is not None and batch is not None:
        true = _true_kernel(opened, parted, options, batch)
        approximation = replace(approximation, true_kernel=true)
    effective, before = learned.effective.numpy(), learned.online.errors
    end = effective - gamma.value * learned.dual.numpy()  # Y^e = (gamma I + K) C
    online = np.full_like(effective, np.nan) if before is None else before.numpy()
    along, drift = errors_along(kernel, stream, gamma.value, online, stream.Y - end, options)
    return Diagnosis(
        stream=stream,
        answers=tuple(answers),
        metric=options.metric,
        mode="exact" if approximation is None else "features",
        kernel=used,
        learner=learner,
        block_size=block_size,
        lr=lr,
        gamma=gamma,
        aim=options.aim,
        effective=effective,
        corrected=learned.corrected.numpy(),
        iterative=learned.iterative.numpy(),
        prequential=online,
        density=kernel.density().numpy(),
        hindsight=float(stream.squared(stream.Y - end).mean()),
        changed=changed_rows(stream, effective),
        forgetting=None if whole is None else whole.forgetting,
        order_cost=None if whole is None else whole.order_cost,
        one_pass_cost=None if whole is None else whole.one_pass_cost,
        along=along,
        drift=drift,
        groups=groups,
        stability=Stability(limit, non_normality(kernel, learner, options.seed)),
        approximation=approximation,
        iterative_ridge=learned.iterative_ridge,
        iterative_gamma=learned.iterative_gamma,
        exactness=_exactness(kernel, learned),
        alternatives=alternatives,
        failures=tuple(learned.failures),
    )


def _true_kernel(
    opened: Opened, parted: Split, options: DiagnosisOptions, batch: Tensor
) -> Estimate | None:
    """Returns how far a batch model with the true kernel, on a sample of rows, is above ours.

    Both are asked about the first set of held-out rows; `batch` are our model's coefficients.
    """
    sample = opened.sample
    if sample is None or opened.features is None or opened.features.exact or not parted.asked:
        return None
    ruler = next(rulers(parted, options))
    gamma = choose_gamma(options, sample, parted.stream.target_scales)
    try:
        true = sample.offline(gamma.value).coefficients
    except NotPositiveDefiniteError:
        return None
    models = ((sample, true), (opened.kernel, batch))
    said = [predictions(kernel, ruler.truth, [end])[0] for kernel, end in models]
    return ratio(ruler.mean(said[0]), ruler.mean(said[1]))


def _exactness(kernel: StreamKernel, learned: LearnedStream) -> float:
    """Returns how far the exactly corrected learner ends from the batch model, relative to it.

    Both predict the rows of the stream; without rounding they would agree.
    """
    ends = [learned.coefficients.get(name) for name in ("offline", "corrected")]
    batch, corrected = ends
    if batch is None or corrected is None:
        return math.nan
    said = kernel.values(torch.cat([batch, corrected], dim=1)).chunk(2, dim=1)
    return relative_difference(said[1], said[0])


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
            doubts.append(sentence(f"{warning.message}."))
        else:
            place = warning.filename, warning.lineno
            warnings.warn_explicit(warning.message, warning.category, *place)
    doubts[:] = dict.fromkeys(doubts)
