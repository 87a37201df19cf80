"""The forgetting curve of the learner that the verdict is about: which one, and in one line."""

import numpy as np
from numpy.typing import NDArray

from retarget.diagnosis.answers import Forgetting
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.words.numbers import multiple, multiples, typed

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = ".:-=+*#@"  # where a terminal has no other letters than ASCII
PLACES = 20  # of the curve in one line
NOT_MEASURED = "Forgetting was not measured"


def shown_forgetting(diagnosis: Diagnosis) -> Forgetting | None:
    """Returns what the user's model forgot, if there is one, else what the online learner forgot.

    None if that is not known.
    """
    model = diagnosis.model
    return diagnosis.forgetting if model is None else model.forgetting


def why_no_curve(diagnosis: Diagnosis) -> str:
    """Says why there is no forgetting curve; empty if there is one."""
    forgetting = shown_forgetting(diagnosis)
    model = diagnosis.model
    if forgetting is not None:
        if len(forgetting.curve):
            return ""
        return (
            f"There are too few rows for a curve. Over all of them, the error is "
            f"{multiple(forgetting.value)} times ({multiples(forgetting.increase)}) what it was "
            "when they came."
        )
    if model is not None and model.logged:
        return (
            f"{NOT_MEASURED}: that needs the predictions just before each row was learned, and "
            "those at the end of the stream."
        )
    if diagnosis.answer("whole") is None:
        asked = spelled("evaluation", "both")
        return f"{NOT_MEASURED}: no rows of the whole stream are held out. Use {asked}."
    if diagnosis.diverged or model is not None:
        return f"{NOT_MEASURED}: predictions for held-out rows are not finite numbers."
    return f"{NOT_MEASURED}: too few held-out rows can be asked about again later."


def times_at_first(forgetting: Forgetting) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns ages, from 0 on, and how many times the error is what it was when the rows came."""
    ages = np.concatenate([[0.0], forgetting.curve["age"].to_numpy()])
    times = np.concatenate([[1.0], 1 + forgetting.curve["value"].to_numpy()])
    return ages, times


def sparkline(values: NDArray[np.float64], plain: bool = False) -> str:
    """Draws values from 0 up as a line of blocks, or of ASCII letters.

    Examples:
        >>> sparkline(np.array([1.0, 2.0, 4.0, 8.0]))
        '▁▂▄█'
        >>> sparkline(np.array([1.0, 1.0, 0.2]), plain=True)
        '@@:'
    """
    blocks = PLAIN_BLOCKS if plain else BLOCKS
    heights = np.ceil(len(blocks) * values / values.max()).astype(int) - 1
    return "".join(blocks[height] for height in heights.clip(0, len(blocks) - 1))


def curve_in_text(diagnosis: Diagnosis, plain: bool = False) -> str:
    """Returns the forgetting curve as two lines of text, or the reason why there is none.

    Its blocks are evenly spaced in rows, from the time when the rows came on.
    """
    forgetting = shown_forgetting(diagnosis)
    why = why_no_curve(diagnosis)
    if forgetting is None or why:
        return typed(why)
    ages, times = times_at_first(forgetting)
    blocks = sparkline(np.interp(np.linspace(0, ages[-1], PLACES), ages, times), plain)
    most, last = (multiple(value - 1) for value in (times.max(), times[-1]))
    text = (
        f"Error on the same rows, from when they came to {ages[-1]:,.0f} rows later:\n"
        f"{blocks}  1 at first, at most {most}, at last {last} times"
    )
    return typed(text)


def half_life_words(forgetting: Forgetting) -> str:
    """Returns when the error has doubled, if it has."""
    if forgetting.half_life is None:
        return ""
    rows = max(1, round(forgetting.half_life))
    return f"doubled after {rows:,} row{'s' * (rows > 1)}"
