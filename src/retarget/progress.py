"""A progress bar that appears only when the work turns out to take a while."""

import sys
import time
from types import TracebackType

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


class PatientBar:
    """A progress bar on standard error with the time left, shown after a second's work.

    Args:
        what: What is being done, in a word or two.
        total: Steps in all.
        shown: Whether to show it; None shows it on a terminal only.

    Example:
        >>> with PatientBar("counting", 3, shown=False) as bar:
        ...     bar.advance(3)
    """

    def __init__(self, what: str, total: int, shown: bool | None = None) -> None:
        self._what, self._total = what, total
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._done = 0
        self._start = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> "PatientBar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, steps: int) -> None:
        """Notes that so many more steps are done."""
        self._done += steps
        if not self._shown:
            return
        if self._bar is None and time.monotonic() - self._start > PATIENCE:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
