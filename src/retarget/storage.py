"""Files that are either whole or not there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"  # how the name of a file begins that is being written


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what was written there takes its place at the end.

    A reader sees the old file or the new one, never a part. If the body fails, the old one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers such as Matplotlib choose the format by it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PARTIAL, suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Makes the new name last through a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
