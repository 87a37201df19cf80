"""The first screen as Markdown, for a pull request."""

import re

from retarget.diagnosis.report import report_tables as tables
from retarget.diagnosis.report.curve import curve_in_text
from retarget.diagnosis.report.terminal import MOST_ADVICE
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.numbers import typed
from retarget.text import printable

# What begins something in Markdown within a line, and links without brackets.
MARKUP = re.compile(r"[\\`*_\[\]<>|~&#$^]|:(?=//)|(?<=www)\.", re.IGNORECASE)
# GitHub looks for these after the Markdown is read: people, issues, emoji.
LOOKED_FOR = re.compile(r"@(?=\w)|#(?=\d)|:(?=[\w+-]+:)")
INVISIBLE = "\u200b"


def escaped(text: str) -> str:
    r"""Returns text that Markdown shows as it is, on one line, and in which GitHub links nothing.

    Examples:
        >>> print(escaped("a|b_c <b>"))
        a\|b\_c \<b\>
    """
    separated = LOOKED_FOR.sub(lambda match: match[0] + INVISIBLE, printable(typed(text)))
    return MARKUP.sub(r"\\\g<0>", separated).replace(r"\$", "<span>$</span>")


def summary_markdown(diagnosis: Diagnosis) -> str:
    """Returns headline, advice, scores and the forgetting curve as Markdown."""
    verdict = diagnosis.verdict
    advice = verdict.recommendations[:MOST_ADVICE]
    lines = [f"### {escaped(verdict.headline)}", ""]
    lines += [f"{place}. {escaped(text)}" for place, text in enumerate(advice, 1)]
    if left_out := len(verdict.recommendations) - len(advice):
        lines += ["", f"{left_out} more in the report."]
    lines += ["", *_table(tables.first_table(diagnosis)), ""]
    curve = " ".join(curve_in_text(diagnosis).split())
    lines += [escaped(tables.first_caption(diagnosis)), "", escaped(curve)]
    return "\n".join([*lines, ""])


def _table(table: tables.ReportTable) -> list[str]:
    """Returns the lines of a table; columns of numbers are aligned to the right."""
    rows = [
        [f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in row]
        for row in table.rows
    ]
    written = [
        f"| {' | '.join(escaped(text) for text in texts)} |" for texts in (table.columns, *rows)
    ]
    written.insert(1, f"| --- |{' ---: |' * (len(table.columns) - 1)}")
    return written
