"""The diagnosis of a table or of arrays: `retarget.diagnose`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import polars as pl
import torch

from retarget.diagnosis.measure.compare import held_out_rows
from retarget.diagnosis.options import Options
from retarget.diagnosis.result import Diagnosis, Evaluation, Mode
from retarget.diagnosis.tables.frames import assembled, assembled_test
from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.roles import Impute, Kind, Roles, order_rows, order_test_rows
from retarget.errors import InvalidInputError
from retarget.import_path import imported_network
from retarget.kernels import EmpiricalNTK, Kernel
from retarget.learners import SGD, Reduction


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
        evaluation: "last part" of the stream, "progressive" (on each row before it is learned), or
            "test set"; None is the test set if there is one, else the last part.
        test_share: The share of the stream that is its last part.
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
    table, target, group, time = assembled(X, Y, groups, times)
    roles = Roles(
        target=target,
        time=time,
        group=group,
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
    from retarget.diagnosis.pipeline import diagnose_stream

    rows = order_rows(table, roles)
    held_out = 0
    if options.evaluation_with(test) == "last part":
        held_out = held_out_rows(len(rows), options.test_share)
    # of rows that are held out, nothing may be known: no mean, no category
    stream, preparation = prepare(rows, len(rows) - held_out)
    test_stream = None
    if test is not None:
        test_stream = preparation.apply(order_test_rows(test, roles))
        notes = [f"Test set: {note}" for note in test_stream.notes if note not in stream.notes]
        stream = replace(stream, notes=(*stream.notes, *notes))
    if isinstance(options.kernel, str) and ":" in options.kernel:
        options = replace(options, kernel=network_kernel(options.kernel, stream.X.shape[1]))
    return diagnose_stream(stream, test_stream, options)


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
