"""What the options of `retarget diagnose` and `retarget correct` mean: tables, roles, a learner."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from retarget.data.digits import digits_stream
from retarget.diagnosis.api import Options
from retarget.diagnosis.result import Evaluation
from retarget.diagnosis.tables.checks import MOST_COLUMNS_SHOWN
from retarget.diagnosis.tables.read import read_table
from retarget.diagnosis.tables.roles import Roles
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.text import amount_of_memory, auto_or_number, listed

EVALUATIONS: dict[str, Evaluation] = {"last": "last part", "progressive": "progressive"}
MODES = ("auto", "exact", "features")
KERNELS = ("rbf", "linear")
ROLES = tuple(field.name for field in fields(Roles) if field.name != "target")
LEARNER = ("batch_size", "momentum", "nesterov", "weight_decay", "reduction")
METHOD = ("block_size", "ridge", "mode", "features", "seed")
# Pixels are numbers between 0 and 1 already; most of them vary little, which scaling would undo.
DIGITS_ROLES = Roles(target=("digit",), group="digit", standardise=False)


def load_tables(asked: Mapping[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame | None, Roles]:
    """The stream, the test set if there is one, and what their columns are for.

    Args:
        asked: The options by name; without a `file`, the embedded digits are the stream.
    """
    file, test, target = (asked.get(name) for name in ("file", "test", "target"))
    choices = {name: asked[name] for name in ROLES}
    for name in ("column", "drop"):
        choices[name] = tuple(choices[name] or ())
    if file is None:
        if target or test or Roles(("digit",), **choices) != Roles(("digit",)):
            raise InvalidInputError(
                "there are options on columns or a test set, and no FILE that has them; name the "
                "file of the stream first"
            )
        return *digits_tables(asked["seed"]), DIGITS_ROLES
    if not target:
        raise InvalidInputError(
            f"no target is named; name the column of {file} to be learned (--target), one of: "
            f"{listed(read_table(file).columns, MOST_COLUMNS_SHOWN)}"
        )
    roles = Roles(tuple(target), **choices)
    table = read_table(file, roles.loaded, roles.drop)
    roles = replace(roles, drop=())  # they were not loaded
    roles.require_in(table.columns)
    if test is None:
        return table, None, roles
    return table, read_table(test, table.columns, require_all=False), roles


def digits_tables(seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A stream of handwritten digits, class by class, and a test set.

    Example:
        >>> stream, test = digits_tables(seed=0)
        >>> len(stream), len(test), stream["digit"][0], stream["digit"][-1]
        (1348, 449, '0', '9')
    """
    digits = digits_stream(seed)
    return (
        _digits_table(digits.x_train, digits.labels_train),
        _digits_table(digits.x_test, digits.labels_test),
    )


def _digits_table(images: np.ndarray, labels: np.ndarray) -> pl.DataFrame:
    pixels = {f"pixel{number}": column for number, column in enumerate(images.T)}
    return pl.DataFrame({**pixels, "digit": [str(label) for label in labels]})


def computation(asked: Mapping[str, Any]) -> Options:
    """Learner and method; what is wrong with them is said before any file is read."""
    rate = auto_or_number("--lr", asked["lr"])
    described = {name: asked[name] for name in LEARNER}
    # made only to be checked: the rate may not be known yet
    SGD(1.0 if rate == "auto" else rate, **described)
    if asked["mode"] not in MODES:
        raise InvalidInputError(f"--mode is {asked['mode']!r}; expected one of {', '.join(MODES)}")
    width, memory = auto_or_number("--width", asked["width"]), asked["memory"]
    method = {name: asked[name] for name in METHOD}
    return cast(
        Options,
        {
            "lr": rate,
            **described,
            "width": None if width == "auto" else width,
            "memory": None if memory is None else amount_of_memory("--memory", memory),
            **method,
        },
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
