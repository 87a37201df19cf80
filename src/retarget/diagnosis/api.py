"""The diagnosis of a table or of arrays: `retarget.diagnose`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from retarget.diagnosis.measure.compare import as_split, held_out
from retarget.diagnosis.options import Options
from retarget.diagnosis.result import Diagnosis, Evaluation, Mode
from retarget.diagnosis.tables.frames import assembled, assembled_test
from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.roles import (
    Impute,
    Kind,
    Roles,
    Rows,
    order_rows,
    order_test_rows,
)
from retarget.diagnosis.tables.targets import class_text, target_kind
from retarget.errors import InvalidInputError
from retarget.import_path import imported_network
from retarget.kernels import EmpiricalNTK, Kernel
from retarget.learners import SGD, Reduction
from retarget.text import listed

FEWEST_TO_JUDGE = 10  # rows: in fewer, a class that is missing means nothing


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
    """What an online learner has made of a stream, and what would have helped.

    Use it when you have the rows that a learner was trained on, in order, and want to know which
    targets it shifted. River's progressive validation tells how large the error is; this tells
    where it comes from, next to a batch model of the same kernel (scikit-learn's `KernelRidge`).
    The exact method takes memory in proportion to the square of the number of rows; beyond
    `memory`, features are used instead of the kernel.

    Args:
        X: The features, rows in the order in which they were learned: an array (n, d), or a frame
            of pandas or Polars, or a dict of columns.
        Y: The targets: an array (n,) or (n, c), or names of columns of X.
        kernel: "rbf", "linear", whatever `retarget.as_kernel` takes, or "package.module:factory"
            for the tangent kernel of that network.
        width: Width of the RBF kernel; None takes the median distance between rows.
        learner: The online learner, instead of the six options that follow.
        lr: Its learning rate; "auto" takes the stable one with the least error before learning.
        batch_size: Rows in one step of the learner.
        momentum: As in `retarget.SGD`, like the three options that follow.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: Weight decay.
        reduction: Whether the loss is the "sum" or the "mean" over a mini-batch.
        gamma: The offline learner's ridge; "auto" takes the least leave-one-out error.
        groups: Each row's group: (n,), or the name of a column of X.
        times: What orders the rows: (n,), or the name of a column of X; None: they are in order.
        test: Rows to measure errors on: (X, Y), or one frame where Y names columns.
        evaluation: Which rows errors are measured on: the "last" ones of the stream, "random" ones
            (the same share of every class), each row before it is learned ("progressive"), or the
            "test" set. None is the test set if there is one, else the last rows, or random ones
            where the last rows hold classes that were never learned.
        test_share: The share of the stream that is held out, last or at random.
        reference: The batch model that the online learner is compared with: of "all" rows, of the
            last N ("window:N"), or with older rows counting less ("discount:0.999"). Under drift
            one of the latter is the fair one.
        intercept: Whether the linear kernel has a constant feature as well, as scikit-learn's
            linear models do.
        group_as_feature: Whether the group is used as a feature as well.
        column: The only columns of X to use as features; none for all of them.
        drop: Columns of X to leave out.
        kind: "regression" or "classification"; "auto" decides by the targets.
        impute: What is used instead of missing numbers: "error", "mean", "median" or "zero".
        standardise: Whether numbers are brought to mean 0 and standard deviation 1 first.
        allow_leak: Whether a feature may give the target away.
        block_size: Rows that the iterative correction corrects together, a multiple of
            `batch_size`; None takes about 64.
        ridge: Ridge of the iterative correction's blocks; None tries a few, and takes what
            ends nearest to the offline learner.
        mode: "exact"; "features", which are used instead of the kernel; or "auto", exact where
            `memory` allows.
        features: Number of features; None takes as many as there is time for.
        memory: Bytes that the exact method may use; None is half of what is free, at most 4 GB.
        seed: Seed for everything random.
        model: Your own model, to be run as well (docs/models.md): an object with
            `partial_fit`/`predict` or `learn_one`/`predict_one`, a torch module (or a tuple of
            module, optimiser and loss), a class or function that makes one of these, or
            "package.module:factory". It is copied, never changed.
        model_options: Keyword arguments for the class or function.
        predictions: Instead of a model, a log of what it said of each row just before it learned
            it: (n,), or names of columns of X, one for each target.
        predictions_after: The same of what it says of each row at the end.

    Raises:
        InvalidInputError: The data cannot be learned from; the message says why and what to do.
    """
    options = Options(
        kernel=kernel,
        width=width,
        lr=lr,
        batch_size=batch_size,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        reduction=reduction,
        evaluation=evaluation,
        test_share=test_share,
        reference=reference,
        intercept=intercept,
        gamma=gamma,
        block_size=block_size,
        ridge=ridge,
        mode=mode,
        features=features,
        memory=memory,
        seed=seed,
        model=model,
        model_options=model_options,
    )
    if learner is not None:
        options = options.with_learner(learner)
    if model is not None and (predictions is not None or predictions_after is not None):
        raise InvalidInputError(
            "a model and a log of predictions are given; expected one of them: the model is run"
        )
    beside = {"group": groups, "time": times}
    beside |= {"predictions": predictions, "predictions_after": predictions_after}
    table, target, named = assembled(X, Y, beside)
    roles = Roles(
        target=target,
        time=named["time"],
        group=named["group"],
        predictions=named["predictions"] or (),
        predictions_after=named["predictions_after"] or (),
        group_as_feature=group_as_feature,
        column=column,
        drop=drop,
        kind=kind,
        impute=impute,
        standardise=standardise,
        allow_leak=allow_leak,
    )
    test_table = None if test is None else assembled_test(test, X, Y, target)
    return diagnose_table(table, roles, test_table, options)


def diagnose_table(
    table: pl.DataFrame, roles: Roles, test: pl.DataFrame | None, options: Options
) -> Diagnosis:
    """The same, of a table whose columns have roles.

    Args:
        table: The rows, in the order in which they were learned (or with a time that orders them).
        roles: What its columns are for.
        test: Rows to measure errors on, with the same columns; None for none.
        options: The learner and the method.
    """
    from retarget.diagnosis.pipeline import diagnose_split

    rows = order_rows(table, roles)
    if roles.logged and options.evaluation is None and test is None:
        options = replace(options, evaluation="progressive")  # the log is of all rows
    evaluation, held, notes = hold_out(rows, test, options)
    order = np.argsort(held, kind="stable")  # the rows to learn from come first
    rows = replace(rows, table=rows.table[order], numbers=rows.numbers[order])
    # of rows that are held out, nothing may be known: no mean, no category
    learned = len(rows) - int(held.sum())
    stream, preparation = prepare(rows, learned)
    stream = replace(stream, notes=(*stream.notes, *notes))
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
    from retarget.diagnosis.models.prediction_log import from_predictions

    said, later = (
        rows.table[:learned].select(columns).to_numpy() if columns else None
        for columns in (roles.predictions, roles.predictions_after)
    )
    return replace(diagnosis, model=from_predictions(stream, said, later, seed=options.seed))


def hold_out(
    rows: Rows, test: object, options: Options
) -> tuple[Evaluation, NDArray[np.bool_], list[str]]:
    """How learners are compared, which rows are held out for it, and what there is to say."""
    evaluation, target = options.evaluation_with(test), rows.roles.target
    classes = None
    if target_kind(rows, []) == "classification":
        classes = class_text(rows.table[target[0]]).to_numpy()
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
    """The empirical NTK of the network that "package.module:factory" makes, in float64.

    Args:
        path: The import path of the factory.
        features: How many numbers a row has.

    Raises:
        InvalidInputError: There is no such network, or it does not take rows of this length.
        InvalidTypeError: It is not a network.
    """
    network = imported_network(path, "network").double().eval()
    try:
        with torch.no_grad():
            network(torch.zeros(2, features, dtype=torch.float64))
    except Exception as error:  # the user's own code: any kind
        raise InvalidInputError(
            f"the network {path!r} does not take rows of {features} features, which is what the "
            f"table's columns make: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    return EmpiricalNTK(network)
