"""Paths that users write, and files that are either whole or not there."""

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"  # how the name of a file begins that is being written
# What can be wrong with a disk, whoever writes to it.
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
# How libraries in Rust (safetensors, Polars) tell it, as errors of their own.
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def user_path(written: str | Path) -> Path:
    """A path as users write it: `~` is their own folder, where it is somebody's.

    Example:
        >>> user_path("~nobody-of-this-name/a file").as_posix()
        '~nobody-of-this-name/a file'
    """
    try:
        return Path(written).expanduser()
    except RuntimeError:  # a name that begins so, and no user of that name
        return Path(written)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what was written there takes its place at the end.

    A reader sees the old file or the new one, never a part. If the body fails, the old one stays.

    Raises:
        OSError: The disk is full, or fails; it names the file, whichever library was writing.
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
    except Exception as error:
        code = _error_of_the_disk(error)
        if code is None:
            raise
        raise OSError(code, os.strerror(code), str(path)) from error
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


def _error_of_the_disk(error: Exception) -> int | None:
    told = SYSTEM_ERROR.search(str(error))
    code = getattr(error, "errno", None) or (int(told[1]) if told else None)
    return code if code in OF_THE_DISK else None
