"""Reads dates that are written as text; all dates of a column have one format."""

import numpy as np
import polars as pl

from retarget.errors import InvalidInputError
from retarget.text import shown

MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
MONTHS = {
    text: f"{number:02}"
    for number, name in enumerate(MONTH_NAMES, start=1)
    for text in (name, name[:3])
}
YEAR = "(?P<year>[0-9]{4})"
# Left and right are day and month, or month and day: that differs by country.
MONTH, DAY, LEFT, RIGHT, HOUR = (
    f"(?P<{part}>[0-9]{{1,2}})" for part in ("month", "day", "left", "right", "hour")
)
NAMED = rf"(?P<month>{'|'.join(MONTHS)})\.?"
MINUTE = "(?P<minute>[0-9]{2})"
SECOND = r"(?P<second>[0-9]{2})(?P<fraction>\.[0-9]+)?"
TIME = f"(?:t|,? +){HOUR}:{MINUTE}(?::{SECOND})?"
ZONE = " ?(?P<zone>z|[+-][0-9]{2}(?::?[0-9]{2})?)"
BETWEEN = ("-", "/", r"\.")
DATES = (
    *(f"{YEAR}{sign}{MONTH}{sign}{DAY}" for sign in BETWEEN),
    *(f"{LEFT}{sign}{RIGHT}{sign}{YEAR}" for sign in BETWEEN),
    f"{YEAR}-{MONTH}",
    f"{YEAR}/{MONTH}",
    f"{NAMED} {DAY},? {YEAR}",
    rf"{DAY}\.?[ -]{NAMED}[ -]{YEAR}",
    f"{NAMED}[ -]{YEAR}",
)
# A time is optional within a format. A time zone is not: without one, a moment is another moment.
PATTERNS = tuple(
    f"(?i)^{date}{rest}$" for date in DATES for rest in (f"(?:{TIME})?", f"{TIME}{ZONE}")
)
ISO = f"(?i)^{DATES[0]}(?:{TIME}(?:{ZONE})?)?$"
MICROSECOND_DIGITS = 6  # of a fraction of a second
ADVICE = "write all dates of the column as 2000-01-31"


def is_date(column: pl.Series) -> pl.Series:
    """Whether each text looks like a date in a format that is read."""
    text = column.str.strip_chars()
    matches = text.str.contains(PATTERNS[0])
    for pattern in PATTERNS[1:]:
        matches |= text.str.contains(pattern)
    return matches


def date_pattern(column: pl.Series, numbers: np.ndarray) -> str | None:
    """Returns the format of a column of dates as a pattern; None if some text is not a date.

    `numbers` are the rows' numbers, for errors: if formats are mixed, or if nothing in the column
    tells whether the day or the month comes first.
    """
    numbers = numbers[column.is_not_null().to_numpy()]
    text = column.drop_nulls().str.strip_chars()
    pattern = next((p for p in PATTERNS if text.head(1).str.contains(p).any()), None)
    if pattern is None:
        return None
    same = text.str.contains(pattern)
    if same.all():
        return _day_and_month(text, pattern, numbers)
    if not is_date(text.filter(~same)).all():
        return None
    place = int(same.arg_min() or 0)
    raise InvalidInputError(
        f"the column {shown(column.name)} holds dates in different formats: "
        f"{shown(text[0])} in row {numbers[0]:,} and {shown(text[place])} in row "
        f"{numbers[place]:,}; {ADVICE}"
    )


def _day_and_month(text: pl.Series, pattern: str, numbers: np.ndarray) -> str:
    """Finds out by numbers above 12 whether 03/04/2000 is in March or in April."""
    if "<left>" not in pattern:
        return pattern
    parts = text.str.extract_groups(pattern).struct.unnest()
    left, right = ((parts[side].cast(pl.Int64) > 12) for side in ("left", "right"))
    name = shown(text.name)
    if left.any() and right.any():
        day = int(left.arg_max() or 0)
        month = int(right.arg_max() or 0)
        raise InvalidInputError(
            f"the column {name} holds dates in different formats: {shown(text[day])} in row "
            f"{numbers[day]:,} has the day first, {shown(text[month])} in row {numbers[month]:,} "
            f"the month; {ADVICE}"
        )
    if not (left.any() or right.any()):
        raise InvalidInputError(
            f"the column {name} holds dates such as {shown(text[0])} (row {numbers[0]:,}), and no "
            f"number above 12 tells whether the day or the month comes first; {ADVICE}"
        )
    first, last = ("day", "month") if left.any() else ("month", "day")
    return pattern.replace("<left>", f"<{first}>").replace("<right>", f"<{last}>")


def parsed_dates(column: pl.Series, pattern: str) -> pl.Series:
    """Parses dates of one format, in UTC unless a zone is given; null for what is not a date.

    Digits beyond microseconds are cut off.
    """
    parts = column.str.strip_chars().str.extract_groups(pattern).struct.unnest()

    def part(name: str, default: str) -> pl.Expr:
        column = pl.col(name) if name in parts.columns else pl.lit(None, pl.String)
        return column.fill_null(default).str.to_lowercase()

    zone = part("zone", "z").str.replace("z", "+00").str.replace(":", "").str.pad_end(5, "0")
    text = pl.format(
        "{}-{}-{}T{}:{}:{}{}{}",
        pl.col("year"),
        part("month", "").replace(MONTHS).str.zfill(2),
        part("day", "1").str.zfill(2),
        part("hour", "0").str.zfill(2),
        part("minute", "0").str.zfill(2),
        part("second", "0").str.zfill(2),
        part("fraction", ".0").str.slice(0, 1 + MICROSECOND_DIGITS),
        zone,
    )
    moments = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", strict=False, time_zone="UTC")
    return parts.select(moments.alias(column.name)).to_series()


def exact_moments(column: pl.Series, pattern: str) -> pl.Series:
    """Parses dates as whole numbers of 10^-18 seconds, so that no digit decides for another row."""
    microseconds = parsed_dates(column, pattern).to_physical().alias("microseconds")
    parts = column.str.strip_chars().str.extract_groups(pattern).struct.unnest()
    if "fraction" not in parts.columns:
        return microseconds.alias(column.name)
    digits = parts["fraction"].fill_null("").str.slice(1 + MICROSECOND_DIGITS).str.slice(0, 12)
    table = pl.DataFrame({"microseconds": microseconds, "rest": digits.str.pad_end(12, "0")})
    unit = pl.lit(10**12).cast(pl.Int128)
    exact = pl.col("microseconds").cast(pl.Int128) * unit + pl.col("rest").cast(pl.Int128)
    return table.select(exact.alias(column.name)).to_series()
