"""What the command shows: a first screen of 28 lines, and with `--verbose` everything else."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from retarget.diagnosis.report import report_tables as tables
from retarget.diagnosis.report.comparison import Compared
from retarget.diagnosis.report.curve import BLOCKS, curve_in_text
from retarget.diagnosis.report.scores import learner_scores, score_table
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.names import listed_names
from retarget.diagnosis.words.numbers import typed
from retarget.diagnosis.words.setting import definitions, tested_on
from retarget.text import printable

WIDTH = 80
LINES = 28  # of the first screen; the command adds a line or two of its own
MOST_ADVICE = 3


@dataclass(frozen=True)
class Screen:
    """Writes text and tables for a terminal, with the letters that it has.

    Attributes:
        width: Letters in a line.
        encoding: Of the terminal, as Python names it.
    """

    width: int = WIDTH
    encoding: str = "utf-8"

    @property
    def plain(self) -> bool:
        """Whether there are no blocks to draw a curve with."""
        return BLOCKS.encode(self.encoding, "replace").decode(self.encoding) != BLOCKS

    def text(self, text: str, style: str = "") -> Text:
        """Returns text that is never taken as markup or as a command of the terminal."""
        lines = "\n".join(printable(line) for line in typed(text).split("\n"))
        return Text(lines.encode(self.encoding, "replace").decode(self.encoding), style=style)

    def item(self, text: str) -> Table:
        """Returns an item of a list."""
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row("-", self.text(text))
        return line

    def table(self, table: tables.ReportTable, title: str = "", caption: str = "") -> Table:
        """Returns a table of the report, with each note in brackets."""
        shown = Table(*self._columns(table), title=self.text(title or table.label), caption=caption)
        return self._filled(shown, table)

    def small_table(self, table: tables.ReportTable) -> Table:
        """Returns a table of the report without a frame."""
        shown = Table(*self._columns(table), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        return self._filled(shown, table)

    def _columns(self, table: tables.ReportTable) -> list[Column]:
        first, *others = (self.text(header) for header in table.columns)
        return [Column(first), *(Column(header, justify="right") for header in others)]

    def _filled(self, shown: Table, table: tables.ReportTable) -> Table:
        for row in table.rows:
            cells = (f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in row)
            style = "dim" if row[0].mark == "baseline" else ""
            shown.add_row(*(self.text(cell) for cell in cells), style=style)
        return shown

    def console(self) -> Console:
        """Returns a console that prints into memory."""
        return Console(file=io.StringIO(), width=self.width, color_system=None, emoji=False)

    def height(self, part: RenderableType) -> int:
        """Returns how many lines a part takes."""
        return len(self.console().render_lines(part, pad=False))


def first_screen(
    diagnosis: Diagnosis, screen: Screen | None = None, lines: int = LINES
) -> list[RenderableType]:
    """Returns headline, advice, scores and the forgetting curve, in so many lines.

    Of the advice there are the first three pieces, or as many of them as there is room for.
    """
    screen = screen or Screen()
    verdict = diagnosis.verdict
    headline = screen.text(verdict.headline, style="bold")
    scores: list[RenderableType] = [
        screen.small_table(tables.first_table(diagnosis)),
        screen.text(tables.first_caption(diagnosis), style="dim"),
    ]
    curve = screen.text(curve_in_text(diagnosis, screen.plain))
    room = lines - sum(screen.height(part) for part in (headline, *scores, curve))
    pieces = [screen.item(text) for text in verdict.recommendations]
    advice: list[RenderableType] = []
    for piece in pieces[:MOST_ADVICE]:
        needed = screen.height(piece)
        last = len(advice) + 1 == len(pieces)
        if not advice or needed + (not last) <= room:
            advice.append(piece)
            room -= needed
    if left_out := len(pieces) - len(advice):
        advice.append(screen.item(f"{left_out} more in the report"))
        room -= 1
    blocks: list[list[RenderableType]] = [[headline], advice, scores, [curve]]
    parts: list[RenderableType] = []
    for block in blocks:
        if parts and block and room > 0:
            parts.append(Text(""))
            room -= 1
        parts += block
    return parts


def everything(
    diagnosis: Diagnosis, compared: Sequence[Compared] = (), screen: Screen | None = None
) -> list[RenderableType]:
    """Returns what `--verbose` shows: all advice, tables, findings, notes and definitions."""
    screen = screen or Screen()
    verdict = diagnosis.verdict
    stream = diagnosis.stream
    scores = [score_table(diagnosis)]
    if diagnosis.model is not None:
        scores.append(learner_scores(diagnosis))
    caption = f"with 95% intervals; tested on {tested_on(diagnosis)}"
    parts: list[RenderableType] = [
        screen.text(verdict.headline, style="bold"),
        *(screen.item(advice) for advice in verdict.recommendations),
        screen.text(curve_in_text(diagnosis, screen.plain)),
        *(
            screen.table(tables.as_text(one), f"{one.label}: {one.measure.words}", caption)
            for one in scores
        ),
    ]
    more = [
        tables.cost_table(diagnosis),
        tables.recall_table(diagnosis),
        tables.compared_table(compared) if compared else None,
    ]
    parts += [screen.table(one) for one in more if one is not None]
    if each := tables.target_table(diagnosis):
        parts.append(screen.table(each, f"{each.label}, in its own squared units"))
    if shifted := tables.shifted_table(diagnosis):
        parts.append(screen.table(shifted, f"{shifted.label} of {stream.length:,} learned"))
    return [
        *parts,
        screen.text(f"Features used: {listed_names(stream.feature_names)}.", style="dim"),
        screen.text("What was found:", style="bold"),
        *(screen.item(finding) for finding in verdict.findings),
        *(screen.text(f"Note: {note}", style="dim") for note in stream.notes),
        screen.text("Words:", style="bold"),
        *(screen.item(f"{word}: {meaning}") for word, meaning in definitions(diagnosis)),
    ]


def as_text(parts: Sequence[RenderableType], screen: Screen | None = None) -> str:
    """Returns parts of the screen as lines of text."""
    screen = screen or Screen()
    console = screen.console()
    for part in parts:
        console.print(part)
    file = console.file
    lines = file.getvalue().splitlines() if isinstance(file, io.StringIO) else []
    return "\n".join(line.rstrip() for line in lines).rstrip()
