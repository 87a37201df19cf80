"""A progress bar that appears only when the work turns out to take a while."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

PATIENCE = 1.0  # seconds
EVERY = 10.0  # seconds between two lines of a command, where there is no terminal
UNASKED = 60.0  # seconds between two lines of any other program there
# A terminal can show one display at a time: nested work adds a line to it.
_displays: list[Progress] = []
_silent = False
_in_lines = False


@contextmanager
def display(console: Console, transient: bool) -> Iterator[Progress]:
    """Shows progress bars with the time left; a transient display disappears at the end."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=transient) as shown:
        _displays.append(shown)
        try:
            yield shown
        finally:
            _displays.remove(shown)


def silence() -> None:
    """Switches off progress bars in this process; use it in workers that share a terminal."""
    global _silent
    _silent = True


def in_lines() -> None:
    """Makes bars write a line every ten seconds, not every minute, where there is no terminal.

    For commands.
    """
    global _in_lines
    _in_lines = True


class PatientBar:
    """A progress bar on standard error with the time left, shown after a second of work.

    Inside other work that shows its progress, it becomes a line of that display. With `shown=None`
    it appears only on a terminal. Elsewhere a line is written after every minute of work, with an
    estimate of the time left (`in_lines`: after every ten seconds). With a `unit` the line says how
    many of them a second are done; without a total, how many so far.

    Examples:
        >>> with PatientBar("counting", 3, shown=False) as bar:
        ...     bar.advance(3)
    """

    def __init__(
        self, what: str, total: int | None, shown: bool | None = None, unit: str | None = None
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._shown = shown
        self._done = 0
        self._earlier = 0
        self._start = self._spoke = time.monotonic()
        self._bar: Progress | None = None
        self._own = ExitStack()
        self._joined = False
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None and self._joined:
            self._bar.remove_task(self._task)
        self._own.close()

    def advance(self, steps: int, earlier: bool = False) -> None:
        """Reports that this many more steps are done, perhaps by an `earlier` process.

        Those say nothing about how long the steps of this one take.
        """
        self._done += steps
        self._earlier += steps if earlier else 0
        if self._bar is None and time.monotonic() - self._start > PATIENCE and self._wanted():
            self._joined = bool(_displays)
            if not _displays:
                self._own.enter_context(display(Console(stderr=True), transient=False))
            self._bar = _displays[-1]
            self._task = self._bar.add_task(self._what, total=self._total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif self._shown is not False and not _silent:
            self._say()

    def _say(self) -> None:
        """Writes a line, if it is time."""
        now = time.monotonic()
        if now - self._spoke < (EVERY if _in_lines else UNASKED):
            return
        self._spoke = now
        spent = now - self._start
        own = self._done - self._earlier
        if self._total is None:
            line = f"{self._what}: {self._done:,} after {spent:.0f} s"
        else:
            share = min(self._done / self._total, 0.99)
            line = f"{self._what}: about {share:.0%} after {spent:.0f} s"
            if own > 0 and spent >= UNASKED:
                left = spent * (1 - share) * self._total / own
                line += f", {_duration(left)} left"
        if self._unit is not None:
            line += f", {own / spent:,.0f} {self._unit} a second"
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def _wanted(self) -> bool:
        if _silent:
            return False
        if self._shown is not None:
            return self._shown
        return _displays[-1].console.is_terminal if _displays else sys.stderr.isatty()


def _duration(seconds: float) -> str:
    """A time in words."""
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} minutes"
