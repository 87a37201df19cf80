"""A diagnosis on the terminal: as text, and as tables."""

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from retarget.diagnosis.report.export import most_distorted
from retarget.diagnosis.report.words import tested_on, typed, with_interval
from retarget.diagnosis.result import Diagnosis
from retarget.labels import LABELS
from retarget.text import printable

MOST_TARGETS = 3
LONGEST_CELL = 40


def summary_text(diagnosis: Diagnosis) -> str:
    """The verdict and the scores, a line each."""
    verdict = diagnosis.verdict
    lines = [verdict.headline, ""]
    for score in diagnosis.scores:
        accuracy = "" if score.accuracy is None else f", accuracy {with_interval(score.accuracy)}"
        lines.append(f"{LABELS[score.learner]}: error {with_interval(score.error)}{accuracy}")
    lines += [
        f"gap closed, {name}: {with_interval(gap, share=True)}"
        for name, gap in diagnosis.gap_closed.items()
    ]
    lines += ["", *verdict.findings]
    if verdict.recommendations:
        lines += ["", "What to do:", *(f"- {advice}" for advice in verdict.recommendations)]
    return typed("\n".join(lines))


def terminal_parts(diagnosis: Diagnosis) -> list[RenderableType]:
    """What the command shows. Everything out of the user's table is plain text, never markup."""
    verdict = diagnosis.verdict
    lines = [*verdict.findings, *(f"- {advice}" for advice in verdict.recommendations)]
    return [
        *(_text(f"Note: {note}", style="dim") for note in diagnosis.stream.notes),
        _scores(diagnosis),
        _distorted(diagnosis),
        _text(verdict.headline, style="bold"),
        *(_text(line) for line in lines),
    ]


def _text(text: str, style: str = "") -> Text:
    return Text(printable(typed(text)), style=style)


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
        cells = [LABELS[score.learner], with_interval(score.error)]
        cells += [] if score.accuracy is None else [with_interval(score.accuracy)]
        cells += [] if gap is None else [with_interval(gap, share=True)]
        table.add_row(*(typed(cell) for cell in cells))
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
