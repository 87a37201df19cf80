"""Numbers, estimates and relative changes in words."""

import math

from retarget.diagnosis.answers import Estimate

SUPERSCRIPTS = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)
MINUS = "\u2212"
TYPED = {raised: plain for plain, raised in SUPERSCRIPTS.items()} | {ord(MINUS): "-"}
MANY = 1.0  # a relative change above this is given as a multiple, not in per cent
NEARLY_ALL = 0.9995  # of an error that is gone: in per cent it would be rounded to 100
MOST_TIMES = 1000.0  # beyond this a multiple says no more


def number(value: float, digits: int = 3) -> str:
    """Formats a number to a few significant digits, without trailing zeros if it is exact.

    Examples:
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


def percent(share: float) -> str:
    """Formats a share as a percentage, with one decimal below 10% and near 100%."""
    if math.isnan(share):
        return number(share)
    if share > MOST_TIMES:
        return f"more than {MOST_TIMES:,.0f} times"
    places = 1 if 0.0005 <= abs(share) < 0.0995 or 0.99 < share < 0.9995 else 0
    # + 0.0 avoids -0%
    return f"{round(100 * share, places) + 0.0:,.{places}f}%".replace("-", MINUS)


def sentence(text: str) -> str:
    """Returns the text with its first letter capitalized."""
    return f"{text[0].upper()}{text[1:]}"


def interval(estimate: Estimate, share: bool = False) -> str:
    """Words the interval of an estimate."""
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return "no interval"
    write = percent if share else number
    return f"{write(estimate.low)} to {write(estimate.high)}"


def with_interval(estimate: Estimate, share: bool = False) -> str:
    """Words an estimate with its interval; a dash if it is not a finite number.

    Examples:
        >>> with_interval(Estimate(0.84, 0.71, 0.92), share=True)
        '84% (71% to 92%)'
    """
    if not math.isfinite(estimate.value):
        return "-"
    return f"{(percent if share else number)(estimate.value)} ({interval(estimate, share)})"


def opposite(estimate: Estimate) -> Estimate:
    """Returns the negated estimate: of a decrease instead of an increase."""
    return Estimate(-estimate.value, -estimate.high, -estimate.low)


def change_words(
    effect: Estimate, less: str = "lower", more: str = "higher", times: str = "as high"
) -> str:
    """Words a relative change of the loss; one that is large, by how many times.

    Examples:
        >>> change_words(Estimate(-0.9998, -0.9999, -0.99))
        'more than 99.9% lower (at least 99%)'
    """
    if math.isnan(effect.value):
        return "not defined"
    if not (effect.low > 0 or effect.high < 0):
        return f"not clearly different ({interval(effect, share=True)})"
    if effect.value >= MANY:
        return f"{multiple(effect.value)} times {times} ({multiples(effect)})"
    if effect.value <= -NEARLY_ALL:  # "100% lower" would be no error at all
        at_least = f" (at least {percent(-effect.high)})" * (-effect.high < NEARLY_ALL)
        return f"more than 99.9% {less}{at_least}"
    seen, word = (opposite(effect), less) if effect.value < 0 else (effect, more)
    return f"{percent(seen.value)} {word} ({interval(seen, share=True)})"


def multiple(increase: float) -> str:
    """Words an increase as how many times it is.

    Examples:
        >>> [multiple(x) for x in (0.25, 1.3, 27.6, 5e9)]
        ['1.25', '2.3', '29', 'more than 1,000']
    """
    if increase > MOST_TIMES:
        return f"more than {MOST_TIMES:,.0f}"
    return number(1 + increase) if increase < 9 else f"{1 + increase:,.0f}"


def multiples(increase: Estimate) -> str:
    """Words the interval of an increase as multiples."""
    if math.isnan(increase.low) or math.isnan(increase.high):
        return "no interval"
    return f"{multiple(increase.low)} to {multiple(increase.high)}"


def typed(text: str) -> str:
    """Rewrites the numbers in a text with characters that every terminal can show.

    Examples:
        >>> typed(number(-1.5e-7))
        '-1.50e-7'
    """
    return text.replace(" \u00d7 10", "e").translate(TYPED)
