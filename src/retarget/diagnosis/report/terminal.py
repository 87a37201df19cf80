"""A diagnosis on the terminal: as text, and as tables."""

import math

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from retarget.diagnosis.report.export import most_distorted
from retarget.diagnosis.report.words import tested_on
from retarget.diagnosis.result import Diagnosis, Estimate, LearnerName
from retarget.text import printable

LEARNERS: dict[LearnerName, str] = {
    "offline": "offline",
    "online": "online",
    "corrected": "exactly corrected",
    "iterative": "iteratively corrected",
}
MOST_TARGETS = 3
LONGEST_CELL = 40


def summary_text(diagnosis: Diagnosis) -> str:
    """The verdict and the scores, a line each."""
    verdict = diagnosis.verdict
    lines = [verdict.headline, ""]
    for score in diagnosis.scores:
        accuracy = "" if score.accuracy is None else f", accuracy {estimate(score.accuracy)}"
        lines.append(f"{LEARNERS[score.learner]}: error {estimate(score.error)}{accuracy}")
    lines += [f"gap closed, {name}: {_percent(gap)}" for name, gap in diagnosis.gap_closed.items()]
    lines += ["", *verdict.findings]
    if verdict.recommendations:
        lines += ["", "What to do:", *(f"- {advice}" for advice in verdict.recommendations)]
    return "\n".join(lines)


def terminal_parts(diagnosis: Diagnosis) -> list[RenderableType]:
    """What the command shows. Everything out of the user's table is plain text, never markup."""
    verdict, stream = diagnosis.verdict, diagnosis.stream
    notes = [Text(printable(f"Note: {note}"), style="dim") for note in stream.notes]
    headline = Text(printable(verdict.headline), style="bold")
    lines = [*verdict.findings, *(f"- {advice}" for advice in verdict.recommendations)]
    return [
        *notes,
        _scores(diagnosis),
        _distorted(diagnosis),
        headline,
        *(Text(printable(line)) for line in lines),
    ]


def estimate(number: Estimate) -> str:
    """A number with its range; a dash for one that was not computed, or of what diverged."""
    return _with_range(number, ".3g")


def _percent(number: Estimate) -> str:
    return _with_range(number, ".0%")


def _with_range(number: Estimate, form: str) -> str:
    if not math.isfinite(number.value):
        return "-"
    if not (math.isfinite(number.low) and math.isfinite(number.high)):
        return format(number.value, form)
    return f"{number.value:{form}} ({number.low:{form}} to {number.high:{form}})"


def _scores(diagnosis: Diagnosis) -> Table:
    classes = diagnosis.stream.kind == "classification"
    table = Table(
        "learner",
        Column("squared error", justify="right"),
        *([Column("accuracy", justify="right")] if classes else []),
        Column("gap closed", justify="right"),
        title=(
            f"Tested on {tested_on(diagnosis)}; "
            f"rate {diagnosis.lr.value:.4g}, gamma {diagnosis.gamma.value:.4g}"
        ),
        caption="with 95% ranges",
    )
    for score in diagnosis.scores:
        gap = diagnosis.gap_closed.get(score.learner)
        accuracy = "" if score.accuracy is None else estimate(score.accuracy)
        cells = [LEARNERS[score.learner], estimate(score.error)]
        cells += [accuracy] if classes else []
        table.add_row(*cells, "" if gap is None else _percent(gap))
    return table


def _distorted(diagnosis: Diagnosis) -> Table:
    rows = most_distorted(diagnosis)
    names: list[str] = [name for name in ("row", "time", "group") if name in rows.columns]
    if diagnosis.stream.kind == "classification":
        names += ["true_class", "effective_class"]
    else:
        targets = diagnosis.stream.target_names[:MOST_TARGETS]
        names += [f"{part}:{target}" for target in targets for part in ("true", "effective")]
    names.append("shift_size")
    table = Table(
        *(Column(Text(_cell(name)), justify="right") for name in names),
        title=f"The {len(rows)} most distorted rows of {len(diagnosis.stream):,}",
    )
    for row in rows.select(names).iter_rows():
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = printable(str(value))
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
