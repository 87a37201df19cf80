"""What the terminal shows of an experiment that is being computed."""

import time

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from retarget.experiments.scheduling import Progress

SHOWN = 8  # runs that are being computed, each with a line; the others are counted


def progress_table(progress: Progress) -> RenderableType:
    """How many runs are done, running, failed and left, how long it may take, and which run."""
    all_runs, done, failed = len(progress.runs), len(progress.done), len(progress.failed)
    running, elsewhere = len(progress.running), len(progress.elsewhere)
    left = all_runs - done - failed - running - elsewhere
    table = Table(box=None, padding=(0, 2, 0, 0))
    counts = {"done": done, "running": running, "elsewhere": elsewhere, "failed": failed}
    counts = {name: count for name, count in counts.items() if count or name != "elsewhere"}
    for name in (*counts, "left", "time left"):
        table.add_column(name, justify="right")
    numbers = [
        Text(str(n), "bold red" if name == "failed" and n else "") for name, n in counts.items()
    ]
    table.add_row(*numbers, str(left), duration(progress.seconds_left()))
    shown = [_running(progress, key) for key in list(progress.running)[:SHOWN]]
    if running > SHOWN:
        shown.append(Text(f"  and {running - SHOWN} more", "dim"))
    bar = Table.grid()  # a bar alone ends no line
    bar.add_row(ProgressBar(all_runs, done + failed, width=60))
    return Group(bar, table, *shown)


def duration(seconds: float | None) -> str:
    """A time for people.

    Example:
        >>> [duration(seconds) for seconds in (0.21, 7.2, 201, 10861, None)]
        ['0.2 s', '7 s', '3 min 21 s', '3 h 1 min', 'unknown']
    """
    if seconds is None:
        return "unknown"
    if seconds < 3:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _running(progress: Progress, key: str) -> RenderableType:
    gone = duration(time.monotonic() - progress.running[key])
    usual = progress.estimator.seconds(progress.identities[key])
    of = f" of about {duration(usual)}" if usual is not None else ""
    return Text(f"  {progress.runs[key].name}: {gone}{of}", "dim")
