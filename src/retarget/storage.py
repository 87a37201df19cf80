"""User-supplied paths, and files that are written completely or not at all."""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial-"  # prefix of the names of files that are being written
# what can be wrong with a disk
FULL_OR_FAILING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
DISK_ERRORS = (*FULL_OR_FAILING, errno.EROFS)
# how libraries in Rust (safetensors, Polars) report it
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def user_path(written: str | Path) -> Path:
    """Expands `~` in a path, if there is such a user.

    Examples:
        >>> user_path("~nobody-of-this-name/a file").as_posix()
        '~nobody-of-this-name/a file'
    """
    try:
        return Path(written).expanduser()
    except RuntimeError:  # a name that begins with ~, but there is no such user
        return Path(written)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`, and moves the file written there to `path` at the end.

    Readers see the old file or the new one, never a part. If the body fails, the old one stays.
    A new file gets the mode that `open` would give it; a replacement keeps the old file's mode and,
    if the system permits it, its owner and group. A link stays: the file that it points to is
    written. A full or failing disk raises an `OSError` that names the file, whichever library was
    writing; so does a path that is a folder, a pipe, a device or a link to itself.
    """
    old = _replaced(path)
    target = path
    while target.is_symlink():
        target = target.parent / target.readlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers such as Matplotlib choose the format by it.
    temporary = target.parent / f"{PARTIAL}{secrets.token_urlsafe(6)}{path.suffix}"
    # For a new file the system applies the umask, which cannot be read without setting it for all
    # threads. The replacement of a private file is private from the start.
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
    mode = (os.fstat(handle) if old is None else old).st_mode & 0o777
    os.close(handle)
    try:
        temporary.chmod(0o600)  # a umask may deny the owner write access
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if old is not None:
            _give_to_owner(temporary, old)
        temporary.chmod(mode)
        temporary.replace(target)
        _sync_folder(target.parent)
    except Exception as error:
        code = _disk_error(error)
        if code is None:
            raise
        raise OSError(code, os.strerror(code), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _replaced(path: Path) -> os.stat_result | None:
    """The status of the file at the path, following links; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(
            errno.EEXIST,
            "This is a pipe or a device; expected a regular file, or a new name",
            str(path),
        )
    return status


def _give_to_owner(path: Path, old: os.stat_result) -> None:
    """Gives a file the owner and the group of the file that it replaces, if permitted."""
    if os.name == "posix":
        for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
            with suppress(OSError):  # only root may give files away
                os.chown(path, owner, group)


def _sync_folder(folder: Path) -> None:
    """Makes the new name survive a power cut, if the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _disk_error(error: Exception) -> int | None:
    system_error = SYSTEM_ERROR.search(str(error))
    code = getattr(error, "errno", None) or (int(system_error[1]) if system_error else None)
    return code if code in DISK_ERRORS else None
