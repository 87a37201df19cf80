"""What `retarget diagnose` and `retarget correct` were asked for: stream, learner, model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import retarget
from retarget.cli.continued import Continued
from retarget.cli.sensors import sensors_table
from retarget.cli.stream_options import StreamOptions
from retarget.errors import InvalidInputError
from retarget.storage import user_path
from retarget.text import auto_or_number, listed

if TYPE_CHECKING:
    import polars as pl

    from retarget.diagnosis.options import DiagnosisOptions
    from retarget.diagnosis.result import Diagnosis
    from retarget.diagnosis.tables.portions import RowSource
    from retarget.diagnosis.tables.roles import Roles

DIGITS = ("digit",)  # the target of the embedded digits


def diagnosis_options(asked: StreamOptions, **more: Any) -> "DiagnosisOptions":
    """Returns what the options say about learner and method, with `more` of a command's own."""
    from retarget.diagnosis.options import OPEN_RATE, DiagnosisOptions
    from retarget.kernels.lookup import kernel_names
    from retarget.learners import NOT_SAID, SGD

    if asked.batch_size > 1 and asked.reduction is None:
        raise InvalidInputError(
            f"--batch-size is {asked.batch_size}, and --reduction was not given; expected "
            "--reduction mean if the loss of a step is the mean over its mini-batch, as PyTorch's "
            "losses are by default, or --reduction sum, as in the paper"
        )
    names = kernel_names()
    if asked.kernel not in names and ":" not in asked.kernel:
        raise InvalidInputError(
            f"--kernel is {asked.kernel!r}; expected {', '.join(names)}, or package.module:factory"
        )
    rate = auto_or_number("--lr", asked.lr)
    features = asked.features
    return DiagnosisOptions(
        learner=SGD(
            lr=OPEN_RATE if isinstance(rate, str) else rate,
            batch_size=asked.batch_size,
            momentum=asked.momentum,
            nesterov=asked.nesterov,
            weight_decay=asked.weight_decay,
            reduction=asked.reduction or NOT_SAID,
        ),
        choose_lr=rate == "auto",
        kernel=asked.kernel,
        width=auto_or_number("--width", asked.width),
        model=asked.model,
        model_options=model_arguments(asked.model_options),
        gamma=auto_or_number("--gamma", asked.gamma),
        block_size=auto_or_number("--block-size", asked.block_size),
        ridge=auto_or_number("--ridge", asked.ridge),
        features=None if features == "none" else auto_or_number("--features", features),
        max_memory=asked.max_memory,
        seed=asked.seed,
        **more,
    )


@contextmanager
def diagnosed(
    asked: StreamOptions,
    options: "DiagnosisOptions",
    test: Path | None = None,
    example: str | None = None,
    place: Path = Path(),
    scored: bool = True,
) -> "Iterator[Diagnosis]":
    """Reads the stream and diagnoses it; without a file, the example or the digits.

    A folder, a pattern, or a file too long for memory is read in portions; then `place` is the
    folder for its numbers, and no row is held out if the learners need not be `scored`. They are
    deleted when the block ends; if it is interrupted, the same command goes on with them.
    """
    from retarget.diagnosis.pipeline import diagnose_source, diagnose_table
    from retarget.diagnosis.tables.roles import chosen_columns

    source = long_source(asked)
    if source is None:
        table, test_table, roles = load_stream(asked, test, example)
        yield diagnose_table(table, roles, test_table, options)
        return
    if test is not None:
        raise InvalidInputError(
            f"--test names a file, and {asked.file} is read in portions; its own rows are held "
            "out: leave --test out, or give the rows of a shorter period in one file"
        )
    roles = roles_of(asked, source.columns)
    column = asked.column or []
    drop = asked.drop or []
    wanted = wanted_columns(roles, column, drop)
    names = chosen_columns(source.columns, wanted, drop, require_all=True)
    with Continued(place, _described(asked, options, scored)) as continued:
        yield diagnose_source(source, names, roles, options, scored, continued.files)


def _described(asked: StreamOptions, options: "DiagnosisOptions", scored: bool) -> str:
    """Returns all that decides what is learned from a stream, and by which versions.

    The metric is not part of it: it is applied to what was learned.
    """
    import numpy as np
    import torch

    file = None if asked.file is None else user_path(asked.file).resolve()
    versions = retarget.__version__, np.__version__, torch.__version__
    more = options.evaluation, options.test_share, options.hold_out, options.aim, scored
    return repr((versions, replace(asked, file=file), more))


def long_source(asked: StreamOptions) -> "RowSource | None":
    """Returns the rows of a folder, a pattern or a long file; None for others."""
    from retarget.diagnosis.tables.portions import Files, files_named, may_be_long

    if asked.file is None:
        return None
    written = user_path(asked.file)
    paths = files_named(written)
    if paths is None and may_be_long(written):
        paths = [written]
    return None if paths is None else Files(paths)


def roles_of(asked: StreamOptions, columns: list[str] | None = None) -> "Roles":
    """Returns what the columns are used for; `columns` are those of rows read in portions."""
    from retarget.diagnosis.tables.roles import Roles

    return Roles(
        targets_of(asked.file, asked.target, columns),
        time=asked.time,
        group=asked.group,
        kind=asked.kind,
        impute=asked.impute,
        standardize=asked.standardize,
        group_as_feature=asked.group_as_feature,
        allow_leak=asked.allow_leak,
        predictions=asked.predictions or (),
        predictions_after=asked.predictions_after or (),
        lags=asked.lags,
    )


def load_stream(
    asked: StreamOptions, test: Path | None = None, example: str | None = None
) -> "tuple[pl.DataFrame, pl.DataFrame | None, Roles]":
    """Returns the stream, the test set, and the roles; without a file, of the example or digits."""
    from retarget.diagnosis.tables.read import read_table
    from retarget.diagnosis.tables.roles import Roles

    roles = roles_of(asked)
    column = asked.column or []
    drop = asked.drop or []
    if asked.file is None:
        of_file = test or column or drop or asked.thousands != "auto"
        if of_file or roles != Roles(DIGITS):
            raise InvalidInputError(
                "options for columns or a test set need a FILE; give the file of the stream as well"
            )
        table, roles = digits_table(asked.seed) if example is None else sensors_table()
        return table, None, roles
    wanted = wanted_columns(roles, column, drop)
    thousands = asked.thousands
    table = read_table(asked.file, wanted, drop, thousands=thousands)
    roles.require_in(table.columns)
    if test is None:
        return table, None, roles
    others = read_table(test, table.columns, require_all=False, thousands=thousands)
    return table, others, roles


def wanted_columns(roles: "Roles", column: list[str], drop: list[str]) -> list[str] | None:
    """Returns the columns to load from a file; None for all of them."""
    beside = [name for name in (roles.time, roles.group, *roles.logged) if name is not None]
    if dropped := {*roles.target, *beside, *column}.intersection(drop):
        raise InvalidInputError(
            f"{dropped.pop()!r} is dropped and also used as target, time, group or feature; drop "
            "it or use it"
        )
    if both := {*roles.target, roles.time}.intersection(column):
        raise InvalidInputError(
            f"{both.pop()!r} is chosen as a feature (--column) and used as target or time; choose "
            "one"
        )
    if roles.group in column and not roles.group_as_feature:
        raise InvalidInputError(
            f"{roles.group!r} is chosen as a feature (--column) and is the group, which is not "
            "used as a feature without --group-as-feature"
        )
    return [*column, *roles.target, *beside] if column else None


def targets_of(
    file: Path | None, target: list[str] | None, columns: list[str] | None = None
) -> tuple[str, ...]:
    """Returns the columns to be learned; the error lists those of the file."""
    from retarget.diagnosis.tables.read import read_table
    from retarget.diagnosis.tables.roles import MOST_COLUMNS_SHOWN

    if file is not None and not target:
        names = read_table(file, thousands="none").columns if columns is None else columns
        raise InvalidInputError(
            f"no target is named; name the column of {file} to be learned (--target), one of: "
            f"{listed(names, MOST_COLUMNS_SHOWN)}"
        )
    return tuple(target or DIGITS)


def model_arguments(given: list[str] | None) -> dict[str, Any] | None:
    """Parses NAME=VALUE arguments: numbers, true and null as in JSON, anything else as text.

    Examples:
        >>> model_arguments(["eta0=0.1", "penalty=null", "loss=squared_error"])
        {'eta0': 0.1, 'penalty': None, 'loss': 'squared_error'}
    """
    if not given:
        return None
    arguments: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidInputError(f"--model-options is {text!r}; expected NAME=VALUE")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


def digits_table(seed: int) -> "tuple[pl.DataFrame, Roles]":
    """Returns a stream of handwritten digits, class by class, and the columns' roles.

    Examples:
        >>> stream, _ = digits_table(seed=0)
        >>> len(stream), stream["digit"][0], stream["digit"][-1]
        (1797, '0', '9')
    """
    import numpy as np
    import polars as pl

    from retarget.diagnosis.tables.roles import Roles
    from retarget.lab.data.digits import digits_stream

    digits = digits_stream(seed)
    images = np.vstack([digits.x_train, digits.x_test])
    labels = np.append(digits.labels_train, digits.labels_test)
    order = np.argsort(labels, kind="stable")
    pixels = {f"pixel{number}": column for number, column in enumerate(images[order].T)}
    table = pl.DataFrame(pixels | {"digit": [str(label) for label in labels[order]]})
    # Pixels are in [0, 1] already; scaling would inflate those that hardly vary.
    return table, Roles(target=("digit",), group="digit", standardize=False)
