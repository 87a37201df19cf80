"""A diagnosis of a stream longer than memory that was interrupted, and goes on."""

import hashlib
import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer
from filelock import FileLock, Timeout

from retarget.errors import InvalidInputError
from retarget.storage import atomic_file

if TYPE_CHECKING:
    from retarget.diagnosis.tables.portions import RowSource
    from retarget.row_files import RowFiles

PREFIX = "interrupted-"
LOCK = "lock"
STAMP = "stream.json"


class Continued:
    """The folder with the numbers of a long stream, and with the states of the work on it.

    It is deleted at the end. It stays if the work is interrupted after some of it was saved, by
    Ctrl-C, a kill or an error such as a full disk; the same command then goes on with it.

    Args:
        place: The folder in which it is made.
        asked: All that decides the result, except what the stream holds.
    """

    def __init__(self, place: Path, asked: str) -> None:
        self._folder = place / f"{PREFIX}{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
        self._lock = FileLock(self._folder / LOCK, blocking=False, is_singleton=False)
        self._files: RowFiles | None = None

    def __enter__(self) -> Self:
        return self

    def files(self, source: "RowSource") -> "RowFiles":
        """Makes or opens the folder, for a stream that is too long for memory.

        Raises:
            InvalidInputError: The stream has changed since the interruption, or another process
                is at work on it.
        """
        from retarget.row_files import RowFiles

        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise InvalidInputError(
                f"another process is computing the same in {self._folder}; wait for it, or choose "
                "another --out"
            ) from None
        stamp = json.dumps(source.stamp())
        about = self._folder / STAMP
        files = RowFiles(self._folder)
        if not files.journal.continues:
            for path in self._folder.iterdir():
                if path.suffix == ".rows":  # of a process that had nothing to go on with
                    path.unlink()
            with atomic_file(about) as temporary:
                temporary.write_text(stamp, encoding="utf-8")
        elif about.read_text(encoding="utf-8") != stamp:
            raise InvalidInputError(
                "the stream has changed since its diagnosis was interrupted, which cannot go on; "
                f"delete the folder {self._folder} to begin again"
            )
        else:
            typer.echo(f"Going on with what was interrupted, from {self._folder}", err=True)
        self._files = files
        return files

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        if self._files is None:
            return
        if kind is None or not self._files.journal.saved:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            typer.echo(
                f"Interrupted. The same command goes on from {self._folder}; if you will not give "
                "it again, delete this folder.",
                err=True,
            )
