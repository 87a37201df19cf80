"""Diagnoses a table, arrays or a stream: `retarget.diagnose`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl

from retarget.diagnosis.answers import Evaluation, HoldOut
from retarget.diagnosis.measuring import diagnose_split, with_own_kernel
from retarget.diagnosis.models.prediction_log import from_predictions
from retarget.diagnosis.options import Auto, DiagnosisOptions, learner_options
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.splitting import split_source, split_table
from retarget.diagnosis.tables.frames import assembled, assembled_test
from retarget.diagnosis.tables.portions import RowSource, source_of
from retarget.diagnosis.tables.roles import Impute, Roles
from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.kernels import Kernel
from retarget.learners import SGD
from retarget.row_files import RowFiles
from retarget.text import listed


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
            indices are an error. A `polars.LazyFrame`, a Dask collection, a pyarrow data set, or a
            function that returns an iterable of tables is read in portions, and may be longer than
            the memory allows (docs/diagnosis.md); Y, group and time are then names of its columns.
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
    in_memory = isinstance(X, pl.LazyFrame) and not isinstance(Y, str | list | tuple)
    source = None if in_memory else source_of(X)
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
    beside = {"group": group, "time": time, **log}
    if source is None:
        table, target, column = assembled(X, Y, beside)
    else:
        target, column = _named(source, Y, beside, test)
    roles = Roles(
        target,
        time=column["time"],
        group=column["group"],
        impute=impute,
        standardize=standardize,
        allow_leak=allow_leak,
        predictions=column["predictions"] or (),
        predictions_after=column["predictions_after"] or (),
        lags=lags,
    )
    if source is not None:
        return diagnose_source(source, source.columns, roles, options)
    test_table = None if test is None else assembled_test(test, X, Y, target)
    return diagnose_table(table, roles, test_table, options)


def _named(
    source: RowSource, Y: Any, beside: dict[str, Any], test: Any
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the names of the columns of rows that are read in portions, which must be names."""
    target = (Y,) if isinstance(Y, str) else tuple(Y) if isinstance(Y, list | tuple) else ()
    for what, given in [("Y", target or Y), *beside.items()]:
        names = given if isinstance(given, list | tuple) else (given,)
        if given is not None and not all(isinstance(name, str) for name in names):
            raise InvalidTypeError(
                f"{what} is {a_type(given)}, and X is read in portions; expected names of columns "
                f"of X, such as {source.columns[-1]!r}"
            )
    if test is not None:
        raise InvalidInputError(
            "a test set is given, and X is read in portions; its own rows are held out: leave test "
            "out, or collect X first"
        )
    return target, beside


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
    if roles.logged and options.evaluation == "both" and test is None:
        options = replace(options, evaluation="progressive")  # the log covers all rows
    parted, before, after = split_table(table, roles, test, options)
    options = with_own_kernel(options, parted.stream.X.shape[1])
    diagnosis = diagnose_split(parted, options)
    if not roles.logged:
        return diagnosis
    return replace(diagnosis, model=from_predictions(parted.stream, before, after, options))


def diagnose_source(
    source: RowSource,
    names: list[str],
    roles: Roles,
    options: DiagnosisOptions,
    scored: bool = True,
    files_for: Callable[[RowSource], RowFiles] | None = None,
) -> Diagnosis:
    """Diagnoses rows that are read in portions; a table that is short enough, in memory.

    If the learners need not be `scored`, no row of a long table is held out. `files_for` returns
    where its numbers are kept; without it, they are deleted with the diagnosis.
    """
    roles.require_in(names)
    table = source.held(names)
    if table is not None:
        diagnosis = diagnose_table(table, roles, None, options)
        notes = (*source.notes, *diagnosis.stream.notes)
        return replace(diagnosis, stream=replace(diagnosis.stream, notes=notes))
    files = RowFiles() if files_for is None else files_for(source)
    parted = split_source(source, names, roles, options, files, scored)
    options = with_own_kernel(options, parted.stream.X.shape[1])
    return diagnose_split(parted, options)
