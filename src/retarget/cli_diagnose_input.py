"""What the options of `retarget diagnose` and `retarget correct` mean: tables, roles, a learner."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import polars as pl

from retarget.diagnosis.api import Options
from retarget.diagnosis.column_names import listed
from retarget.diagnosis.digits import DIGITS_ROLES, digits_tables
from retarget.diagnosis.reading import read_table
from retarget.diagnosis.result import Evaluation
from retarget.diagnosis.roles import Roles
from retarget.errors import InvalidInputError
from retarget.learners import SGD, Reduction
from retarget.option_values import amount_of_memory, auto_or_number

EVALUATIONS: dict[str, Evaluation] = {"last": "last part", "progressive": "progressive"}
MODES = ("auto", "exact", "features")
KERNELS = ("rbf", "linear")


def load_tables(
    file: Path | None,
    test: Path | None,
    target: Sequence[str],
    choices: Mapping[str, object],
    columns: Sequence[str],
    seed: int,
) -> tuple[pl.DataFrame, pl.DataFrame | None, Roles]:
    """The stream, the test set if there is one, and what their columns are for.

    Args:
        file: The stream; None for the embedded digits.
        test: The test set.
        target: The target columns.
        choices: The other fields of `Roles`.
        columns: The only features to load; none given: all.
        seed: Draws the digits' order and test set.
    """
    if file is None:
        asked = Roles(target=("digit",), **choices)  # type: ignore[arg-type]
        if target or columns or test or asked != Roles(target=("digit",)):
            raise InvalidInputError(
                "there are options on columns or a test set, and no FILE that has them; name the "
                "file of the stream first"
            )
        stream, held_out = digits_tables(seed)
        return stream, held_out, DIGITS_ROLES
    if not target:
        names = listed(read_table(file).columns)
        raise InvalidInputError(
            f"no target is named; name the column of {file} to be learned (--target), one of: "
            f"{names}"
        )
    roles = Roles(target=tuple(target), **choices)  # type: ignore[arg-type]
    used = [name for name in (roles.time, roles.group) if name is not None]
    wanted = [*columns, *roles.target, *used] if columns else None
    table = read_table(file, wanted, roles.drop)
    roles = replace(roles, drop=())  # they were not loaded
    if test is None:
        return table, None, roles
    roles.require_in(table.columns)
    return table, read_table(test, table.columns, require_all=False), roles


def computation(
    *,
    lr: str,
    batch_size: int,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    reduction: str,
    width: str,
    block_size: int | None,
    ridge: float | None,
    mode: str,
    features: int | None,
    memory: str | None,
    seed: int,
) -> Options:
    """Learner and method; what is wrong with them is said before any file is read."""
    rate = auto_or_number("--lr", lr)
    # made only to be checked: the rate may not be known yet
    SGD(
        1.0 if rate == "auto" else rate,
        batch_size,
        momentum,
        nesterov,
        weight_decay,
        cast(Reduction, reduction),
    )
    if mode not in MODES:
        raise InvalidInputError(f"--mode is {mode!r}; expected one of {', '.join(MODES)}")
    chosen_width = auto_or_number("--width", width)
    return Options(
        lr=rate,
        batch_size=batch_size,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        reduction=cast(Reduction, reduction),
        width=None if chosen_width == "auto" else chosen_width,
        block_size=block_size,
        ridge=ridge,
        mode=cast(Literal["auto", "exact", "features"], mode),
        features=features,
        memory=None if memory is None else amount_of_memory(memory),
        seed=seed,
    )


def require_kernel(kernel: str) -> None:
    """Refuses what is neither the name of a kernel nor the import path of a network."""
    if kernel not in KERNELS and ":" not in kernel:
        raise InvalidInputError(
            f"--kernel is {kernel!r}; expected {', '.join(KERNELS)}, or package.module:factory"
        )


def chosen_evaluation(evaluation: str | None, test: Path | None) -> Evaluation | None:
    """The evaluation that was asked for; None if there was none."""
    if evaluation is None:
        return None
    if evaluation not in EVALUATIONS:
        raise InvalidInputError(
            f"--evaluation is {evaluation!r}; expected {' or '.join(EVALUATIONS)} (or a --test "
            "file)"
        )
    if test is not None:
        raise InvalidInputError(
            f"--evaluation {evaluation} and --test {test} are given; expected one of them"
        )
    return EVALUATIONS[evaluation]
