"""Files out of a .tar.gz archive, read in place: nothing is unpacked to the disk, nor too much."""

import gzip
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from retarget.errors import InvalidInputError

CHUNK = 1 << 20


def read_members(path: Path, names: Collection[str], largest: int) -> Iterator[tuple[str, bytes]]:
    """The contents of the named files, in the order in which the archive has them.

    The archive is read once, from its start to its end, where its checksum is compared. Other plain
    files and folders in it are passed over.

    Args:
        path: A gzipped tar archive.
        names: The files in it that are wanted.
        largest: Length in bytes that none of them may exceed; it limits the whole archive, too.

    Raises:
        InvalidInputError: The archive is damaged, too large, does not have these files, or holds
            what no data set does: links, names that lead out of the folder.
    """
    missing = set(names)
    with path.open("rb") as file, _damage_explained(path), gzip.GzipFile(fileobj=file) as unpacked:
        stream = _BoundedStream(unpacked, path, len(missing) * largest + CHUNK)
        readable = cast(IO[bytes], stream)  # all that tarfile does is to read
        # As a stream ("r|"): a header cannot send the reader back to what it has seen.
        with tarfile.open(fileobj=readable, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                _require_harmless(member, path)
                if member.name in names:
                    content = _content(archive, member, path, largest)
                    if member.name not in missing:
                        raise InvalidInputError(f"{path} holds {member.name} twice")
                    missing.remove(member.name)
                    yield member.name, content
        stream.read_on_to_the_end()
    if missing:
        raise InvalidInputError(
            f"{path} is cut short or another archive: {', '.join(sorted(missing))} is not in it"
        )


def leads_out(name: str) -> bool:
    """Whether a name in an archive could mean a place outside of the folder that it is unpacked to.

    Example:
        >>> [leads_out(name) for name in ("a/b..c", "a/../b", "/a", "C:a")]
        [False, True, True, True]
    """
    return name.startswith("/") or ":" in name or "\\" in name or ".." in name.split("/")


class _BoundedStream:
    """What gzip unpacks, up to a limit: a small file can unpack to a thousand times its size."""

    def __init__(self, stream: gzip.GzipFile, path: Path, limit: int) -> None:
        self._stream = stream
        self._path = path
        self._limit = limit
        self._left = limit

    def read(self, count: int) -> bytes:
        found = self._stream.read(min(count, self._left + 1))
        self._left -= len(found)
        if self._left < 0:
            raise InvalidInputError(
                f"{self._path} unpacks to more than {self._limit} bytes; "
                "it is damaged, or not the archive that it is named after"
            )
        return found

    def read_on_to_the_end(self) -> None:
        """Where gzip compares its checksum."""
        while self.read(CHUNK):
            pass


def _require_harmless(member: tarfile.TarInfo, path: Path) -> None:
    name = member.name
    if leads_out(name):
        raise InvalidInputError(
            f"{path} holds {name!r}, which leads out of its folder; no official archive does"
        )
    if not (member.isreg() or member.isdir()):
        raise InvalidInputError(
            f"{path} holds {name!r} as a link or as something else than a plain file"
        )


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, largest: int) -> bytes:
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise InvalidInputError(f"{path} holds {member.name} as something else than a plain file")
    if not 0 <= member.size <= largest:
        raise InvalidInputError(
            f"{path} holds {member.name} of {member.size} bytes; expected at most {largest}"
        )
    file = archive.extractfile(member)
    assert file is not None  # it is a plain file
    return file.read()


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Turns what gzip and tarfile say of damage into an error that names the archive."""
    try:
        yield
    except InvalidInputError:
        raise
    except EOFError as error:
        raise InvalidInputError(f"{path} is cut short: its gzip data end too early") from error
    # tarfile's headers may hold numbers that are none, and headers for headers without end.
    except (
        gzip.BadGzipFile,
        zlib.error,
        tarfile.TarError,
        ValueError,
        RecursionError,
    ) as error:
        raise InvalidInputError(f"{path} is damaged, or no .tar.gz archive: {error}") from error
