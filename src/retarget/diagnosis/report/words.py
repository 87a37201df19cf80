"""Numbers and names in the report, as people read them."""

import html
import math
import re

from retarget.diagnosis.result import Estimate

SUPERSCRIPTS = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)
MINUS = "\u2212"
# Control characters, those that turn the direction of writing, and halves of characters.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def number(value: float, digits: int = 3) -> str:
    """A number to a few significant digits; fewer if that is all there is to it.

    Example:
        >>> [number(x) for x in (0.12345, 0.3602, 0.5, 12345.6, float("nan"))]
        ['0.123', '0.360', '0.5', '12,300', 'not defined']
    """
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "infinite" if value > 0 else f"{MINUS}infinite"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -4 <= power < 7:
        rounded = float(f"{mantissa}e{exponent}")
        text = f"{rounded:,.{max(digits - 1 - power, 0)}f}"
        if rounded == value and "." in text:
            text = text.rstrip("0").rstrip(".")
    else:
        text = f"{mantissa} \u00d7 10{str(power).translate(SUPERSCRIPTS)}"
    return text.replace("-", MINUS)


def defined(value: float, why_not: str) -> str:
    """A number; where there is none, the reason."""
    return f"not defined: {why_not}" if math.isnan(value) else number(value)


def count(value: int) -> str:
    """A whole number, with its thousands set apart."""
    return f"{value:,}"


def percent(share: float) -> str:
    """A share as a percentage, to a digit after the point below 10% and near 100%."""
    if not math.isfinite(share):
        return number(share)
    places = 1 if 0 < abs(share) < 0.0995 or 0.99 < share < 1 else 0
    return f"{100 * share:,.{places}f}%".replace("-", MINUS)


def memory(size: float) -> str:
    """Bytes as MB, GB or TB."""
    for unit in ("MB", "GB"):
        size /= 1000 if unit == "GB" else 1e6
        if size < 1000:
            return f"{number(size)} {unit}"
    return f"{number(size / 1000)} TB"


def interval(estimate: Estimate, share: bool = False) -> str:
    """The range in which an estimate lies, in words."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return "no interval"
    write = percent if share else number
    return f"{write(estimate.low)} to {write(estimate.high)}"


def name(text: str, longest: int = 60) -> str:
    """A name from the user's file on one line: nothing unseen in it, and not too long.

    The middle is left out of a long one: names often differ at their ends only.

    Example:
        >>> name("measurement station 12", longest=12)
        'measur…on 12'
    """
    seen = " ".join(UNSEEN.sub("\ufffd", text).split()) or "(empty)"
    if len(seen) <= longest:
        return seen
    head = longest // 2
    return f"{seen[:head]}\u2026{seen[head + 1 - longest :]}"


def chart_text(text: str, longest: int = 24) -> str:
    """A name as a chart's text, which Plotly shows as it is.

    Plotly reads tags, entities and, between dollar signs, formulas: all of them are escaped.
    """
    return html.escape(name(text, longest), quote=False).replace("$", "&#36;")
