"""What a point means in the numbers of a file that may have decimal commas: 1.234 or 1,234?

A comma is then always before decimals. A point is between thousands if it can be and something says
so: 1.234.567, or a decimal comma in the same column, or elsewhere if no column has decimal points.
"""

from typing import Literal, get_args

import numpy as np
import polars as pl

from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.tables.roles import parsed_numbers
from retarget.errors import InvalidInputError
from retarget.text import shown

Thousands = Literal["auto", "point", "none"]
SEVERAL = r"\..*\."
GROUPED = r"^[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]+)?$"
# How points are used in a column
BEFORE_DECIMALS = "before decimals"
BETWEEN_THOUSANDS = "between thousands"
EITHER = "either"


def require_thousands(thousands: str) -> None:
    """Rejects an unknown choice."""
    if thousands not in get_args(Thousands):
        expected = ", ".join(get_args(Thousands))
        raise InvalidInputError(
            f"{spelled('thousands')} is {thousands!r}; expected one of {expected}"
        )


def may_be_grouped(column: pl.Series) -> bool:
    """Whether numbers that were read with decimal points may have been written as 1.234."""
    if column.dtype != pl.Float64:
        return False
    values = column.drop_nulls().to_numpy()
    thousandths = 1000 * values[np.isfinite(values)]
    return bool(np.isclose(thousandths, np.round(thousandths), rtol=1e-9, atol=1e-6).all())


def with_decimal_commas(
    table: pl.DataFrame, thousands: Thousands, wanted: list[str]
) -> pl.DataFrame:
    """Turns columns of text into numbers where all cells are numbers, with commas before decimals.

    Columns whose points may stand between thousands must be text; other numbers show that the file
    has decimal points. An error names a column of the `wanted` ones that can be read in both ways.
    """
    texts = {name: table[name].str.strip_chars() for name in _texts(table)}
    points = {name: _points(text) for name, text in texts.items()}
    decimals = any(table[name].dtype == pl.Float64 for name in table.columns)
    decimals = decimals or BEFORE_DECIMALS in points.values()
    commas = any(
        text.str.contains(",", literal=True).any() and _numbers(text, False) is not None
        for text in texts.values()
    )
    for name, text in texts.items():
        use = points[name]
        if thousands != "auto" and use in (EITHER, BETWEEN_THOUSANDS):
            use = BETWEEN_THOUSANDS if thousands == "point" else BEFORE_DECIMALS
        if use == EITHER and commas != decimals:
            use = BETWEEN_THOUSANDS if commas else BEFORE_DECIMALS
        if use == EITHER and name in wanted:
            raise _two_readings(name, text)
        numbers = _numbers(text, use == BETWEEN_THOUSANDS)
        if numbers is not None:
            table = table.with_columns(numbers.alias(name))
    return table


def _texts(table: pl.DataFrame) -> list[str]:
    return [name for name, dtype in table.schema.items() if dtype == pl.String]


def _points(text: pl.Series) -> str | None:
    """How points are used in a column of numbers; None if it has none, or other cells."""
    pointed = text.drop_nulls().filter(text.drop_nulls().str.contains(".", literal=True))
    if not len(pointed):
        return None
    if not pointed.str.contains(GROUPED).all():
        return None if _numbers(text, False) is None else BEFORE_DECIMALS
    if _numbers(text, True) is None:
        return None
    commas = text.str.contains(",", literal=True).any()
    return BETWEEN_THOUSANDS if commas or pointed.str.contains(SEVERAL).any() else EITHER


def _numbers(text: pl.Series, grouped: bool) -> pl.Series | None:
    """The column as numbers, with points between thousands or not; None if some cell is none."""
    plain = text.str.replace_all(".", "", literal=True) if grouped else text
    numbers = parsed_numbers(plain.str.replace(",", ".", literal=True))
    return numbers if numbers.null_count() == text.null_count() else None


def _two_readings(name: str, text: pl.Series) -> InvalidInputError:
    pointed = text.str.contains(".", literal=True)
    first = text.filter(pointed)[0]
    others = text.filter(text.is_not_null() & (text != first))
    whole = others.filter(~others.str.contains(".", literal=True))
    second = [shown(each) for each in (*whole[:1], *others[:1])][:1]
    beside = f" and {second[0]}" if second else ""
    return InvalidInputError(
        f"the column {shown(name)} holds {shown(first)}{beside}: {first} may be a number with "
        f"decimals, or {first.replace('.', '')}; say which with {spelled('thousands', 'none')} or "
        f"{spelled('thousands', 'point')}"
    )
