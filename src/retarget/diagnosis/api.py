"""The diagnosis of a table or of arrays: `retarget.diagnose`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, cast

import polars as pl
import torch

from retarget.diagnosis.measure.compare import held_out_rows
from retarget.diagnosis.result import Diagnosis, Evaluation
from retarget.diagnosis.tables.frames import assembled, assembled_test
from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.roles import Impute, Kind, Roles, order_rows, order_test_rows
from retarget.errors import InvalidInputError
from retarget.import_path import imported_network
from retarget.kernels import EmpiricalNTK, Kernel
from retarget.learners import SGD, Reduction


class Options(TypedDict, total=False):
    """What `diagnose_stream` may be told of the learner and the computation."""

    width: float | None
    lr: float | Literal["auto"]
    batch_size: int
    momentum: float
    nesterov: bool
    weight_decay: float
    reduction: Reduction
    block_size: int | None
    ridge: float | None
    mode: Literal["auto", "exact", "features"]
    features: int | None
    memory: int | None
    seed: int


def diagnose(
    X: Any,
    Y: Any,
    *,
    kernel: str | Kernel = "rbf",
    learner: SGD | None = None,
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
    **options: Unpack[Options],
) -> Diagnosis:
    """What an online learner has made of a stream, and what would have helped.

    Args:
        X: The features, rows in the order in which they were learned: an array (n, d), or a frame
            of pandas or Polars, or a dict of columns.
        Y: The targets: an array (n,) or (n, c), or names of columns of X.
        kernel: "rbf", "linear", a kernel, or "package.module:factory" for that network's.
        learner: The online learner; None chooses a rate, for mini-batches, momentum and so on as
            in `options`.
        gamma: The offline learner's ridge; "auto" chooses it.
        groups: Each row's group: (n,), or the name of a column of X.
        times: What orders the rows: (n,), or the name of a column of X; None: they are in order.
        test: Rows to measure errors on: (X, Y), or one frame where Y names columns.
        evaluation: "last part" of the stream, "progressive", or "test set"; None is the test set if
            there is one, else the last part.
        test_share: The share of the stream that is its last part.
        group_as_feature: Whether the group is used as a feature as well.
        column: The only columns of X to use as features; none for all of them.
        drop: Columns of X to leave out.
        kind: "regression" or "classification"; "auto" decides by the targets.
        impute: What is used instead of missing numbers: "error", "mean", "median" or "zero".
        standardise: Whether numbers are brought to mean 0 and standard deviation 1 first.
        allow_leak: Whether a feature may give the target away.
        options: `width`, `lr`, `batch_size`, `momentum`, `nesterov`, `weight_decay`, `reduction`,
            `block_size`, `ridge`, `mode`, `features`, `memory`, `seed`: see `diagnose_stream`.

    Raises:
        InvalidInputError: The data cannot be learned from; the message says why and what to do.
    """
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
    if learner is not None:
        options = _with_learner(options, learner)
    return diagnose_table(
        table,
        roles,
        test=None if test is None else assembled_test(test, X, Y, target),
        evaluation=evaluation,
        test_share=test_share,
        kernel=kernel,
        gamma=gamma,
        **options,
    )


def diagnose_table(
    table: pl.DataFrame,
    roles: Roles,
    *,
    test: pl.DataFrame | None = None,
    evaluation: Evaluation | None = None,
    test_share: float = 0.2,
    kernel: str | Kernel = "rbf",
    gamma: float | Literal["auto"] = "auto",
    **options: Unpack[Options],
) -> Diagnosis:
    """The same, of a table whose columns have roles.

    Args:
        table: The rows, in the order in which they were learned (or with a time that orders them).
        roles: What its columns are for.
        test: Rows to measure errors on, with the same columns.
        evaluation: As for `diagnose`.
        test_share: As for `diagnose`, like all that follow.
        kernel: See there.
        gamma: See there.
        options: See there.
    """
    from retarget.diagnosis.pipeline import diagnose_stream

    evaluation = _evaluation(evaluation, test)
    rows = order_rows(table, roles)
    held_out = held_out_rows(len(rows), test_share) if evaluation == "last part" else 0
    # of rows that are held out, nothing may be known: no mean, no category
    stream, preparation = prepare(rows, len(rows) - held_out)
    test_stream = None
    if test is not None:
        test_stream = preparation.apply(order_test_rows(test, roles))
        notes = [f"Test set: {note}" for note in test_stream.notes if note not in stream.notes]
        stream = replace(stream, notes=(*stream.notes, *notes))
    if isinstance(kernel, str) and ":" in kernel:
        kernel = network_kernel(kernel, stream.X.shape[1])
    return diagnose_stream(
        stream,
        test_stream,
        evaluation=evaluation,
        test_share=test_share,
        kernel=kernel,
        gamma=gamma,
        **options,
    )


def _with_learner(options: Options, learner: SGD) -> Options:
    described = learner.to_dict()
    repeated = sorted(set(described) & set(options))
    if repeated:
        raise InvalidInputError(
            f"{', '.join(repeated)} given beside a learner, which says that itself; give one"
        )
    if not isinstance(learner.lr, float):
        raise InvalidInputError(
            f"the learner has a schedule of {len(learner.lr)} rates; expected one rate: a stream "
            "is diagnosed at one"
        )
    return cast(Options, {**options, **described})


def _evaluation(evaluation: Evaluation | None, test: pl.DataFrame | None) -> Evaluation:
    if evaluation is None:
        return "last part" if test is None else "test set"
    if (evaluation == "test set") != (test is not None):
        raise InvalidInputError(
            f"the evaluation is {evaluation!r} and there is "
            f"{'no' if test is None else 'a'} test set; give a test set for 'test set', and for it "
            "only"
        )
    return evaluation


def network_kernel(path: str, features: int) -> EmpiricalNTK:
    """The empirical NTK of the network that "package.module:factory" makes, in float64.

    Args:
        path: The import path of the factory.
        features: How many numbers a row has.

    Raises:
        InvalidInputError: There is no such network, or it does not take rows of this length.
        InvalidTypeError: It is no network.
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
