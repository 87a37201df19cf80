"""Reads files from folders, .tar.gz and zip archives, without unpacking anything to disk.

The size is limited, because a small archive can unpack to a thousand times its size.
"""

import gzip
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from retarget.errors import InvalidInputError

CHUNK = 1 << 20  # bytes of a tar archive read at a time

# Compressions allowed in a zip archive; others may unpack without a limit.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 0x1
LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # precedes each file's name and content
# Up to 24 bytes of checksum and sizes may follow a file's content; any file is longer.
LARGEST_GAP = LOCAL_HEADER.size


def read_file(path: Path, largest: int) -> bytes:
    """Reads a regular file of at most `largest` bytes."""
    if not path.is_file():  # reading a pipe could block
        raise InvalidInputError(f"{path} is not a regular file; expected one")
    with path.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise InvalidInputError(f"{path} is too large; expected at most {largest} bytes")
    return content


def read_members(path: Path, names: Collection[str], largest: int) -> Iterator[tuple[str, bytes]]:
    """Yields the contents of the named files of a .tar.gz archive, in the order of the archive.

    The archive is read once, completely, so that its checksum is verified. Other regular files and
    folders are skipped. No named file may have more than `largest` bytes, which limits the whole
    archive as well. An archive is refused if it is damaged, too large or lacks these files, or if
    it holds what no data set does: links, or names that lead out of the folder.
    """
    missing = set(names)
    try:
        with path.open("rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
            stream = _BoundedStream(unpacked, path, len(missing) * largest + CHUNK)
            readable = cast(IO[bytes], stream)  # tarfile only reads from it
            # As a stream ("r|"), so that a header cannot make the reader go back.
            with tarfile.open(fileobj=readable, mode="r|", bufsize=CHUNK) as archive:
                for member in archive:
                    content = _content(archive, member, path, largest, member.name in names)
                    if content is not None:
                        if member.name not in missing:
                            raise InvalidInputError(f"{path} holds {member.name} twice")
                        missing.remove(member.name)
                        yield member.name, content
            while stream.read(CHUNK):  # gzip verifies its checksum at the end
                pass
    except InvalidInputError:
        raise
    except EOFError as error:
        raise InvalidInputError(f"{path} is cut short: its gzip data end too early") from error
    # Damaged tar headers may hold invalid numbers, or endless headers for headers.
    except (gzip.BadGzipFile, zlib.error, tarfile.TarError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} is damaged, or not a .tar.gz archive: {error}") from error
    if missing:
        raise InvalidInputError(
            f"{path} is cut short, or another archive: it does not have "
            f"{', '.join(sorted(missing))}"
        )


class _BoundedStream:
    """Unpacks gzip up to a limit: a small file can unpack to a thousand times its size."""

    def __init__(self, stream: gzip.GzipFile, path: Path, limit: int) -> None:
        self._stream = stream
        self._path = path
        self._limit = self._left = limit

    def read(self, count: int) -> bytes:
        content = self._stream.read(min(count, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise InvalidInputError(
                f"{self._path} unpacks to more than {self._limit} bytes; "
                "it is damaged, or not the archive that its name says"
            )
        return content


def _content(
    archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, largest: int, wanted: bool
) -> bytes | None:
    is_file = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    _require_harmless(path, member.name, is_file or member.isdir())
    if not wanted or not is_file:
        return None
    if not 0 <= member.size <= largest:
        raise InvalidInputError(
            f"{path} holds {member.name} of {member.size} bytes; expected at most {largest}"
        )
    file = archive.extractfile(member)
    assert file is not None  # it is a regular file
    return file.read()


def _require_harmless(path: Path, name: str, plain: bool) -> None:
    if name.startswith("/") or ":" in name or "\\" in name or ".." in name.split("/"):
        raise InvalidInputError(
            f"{path} holds {name!r}, which points outside its folder; no official archive does "
            "that, so nothing was read"
        )
    if not plain:
        raise InvalidInputError(
            f"{path} holds {name!r}, which is a link or another special file; expected regular "
            "files"
        )


class ZipFiles:
    """The files of an open zip archive; `names` lists them in order, without folders."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            if not entry.filename:
                raise InvalidInputError(f"{path} is damaged: it holds a file without a name")
            # The upper half is the file mode if the archive was made on Unix, else 0.
            kind = stat.S_IFMT(entry.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            _require_harmless(path, entry.filename, plain)
            if entry.filename in self._entries:
                raise InvalidInputError(f"{path} holds {entry.filename!r} twice")
            if not entry.is_dir():
                self._entries[entry.filename] = entry
        self.names = list(self._entries)

    def size(self, name: str) -> int:
        """Returns the unpacked size of a file, according to the directory."""
        return self._entries[name].file_size

    def read(self, name: str, largest: int) -> bytes:
        """Returns the content of a file of at most `largest` bytes."""
        size = self.size(name)
        if size > largest:
            raise InvalidInputError(
                f"{self.path} holds {name} of {size} bytes; expected at most {largest}"
            )
        with self.open(name) as file:
            return file.read(size)

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file as a stream, which verifies its CRC at the end."""
        entry = self._entries[name]
        if entry.flag_bits & ENCRYPTED or entry.compress_type not in COMPRESSIONS:
            raise InvalidInputError(
                f"{self.path} holds {name} encrypted, or with an unsupported compression; "
                "expected it stored or deflated"
            )
        with _zip_damage_explained(self.path, name), self._archive.open(entry) as file:
            yield file


@contextmanager
def open_zip(path: Path) -> Iterator[ZipFiles]:
    """Opens an archive and reads its directory.

    It is refused if it is damaged, holds a file that its directory does not list, or holds what no
    data set does: links, names that lead out of the folder, or a file twice.
    """
    with path.open("rb") as file:
        with _zip_damage_explained(path):
            archive = zipfile.ZipFile(file)
            _require_all_listed(path, file, archive)
        with archive:
            yield ZipFiles(path, archive)


def _require_all_listed(path: Path, file: IO[bytes], archive: zipfile.ZipFile) -> None:
    """Refuses an archive that lacks a file in its directory, which leaves a gap between the others.

    One wrong length in the directory makes zipfile skip the entries after it.
    """
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    starts = [*(entry.header_offset for entry in entries), archive.start_dir]
    ends = [_end_of(entry, start, file) for entry, start in zip(entries, starts[1:], strict=True)]
    for end, start in zip([0, *ends], starts, strict=True):
        if start - end > LARGEST_GAP:
            raise InvalidInputError(
                f"{path} is damaged: its directory lists no file between the bytes {end} and "
                f"{start}, but there must be one"
            )


def _end_of(entry: zipfile.ZipInfo, following: int, file: IO[bytes]) -> int:
    """Returns where a file's content ends; reads its header only if there may be a gap."""
    length = len(entry.orig_filename)
    if following - entry.header_offset - length - entry.compress_size > 2 * LOCAL_HEADER.size:
        file.seek(entry.header_offset)
        *_, name, more = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        length = name + more
    return entry.header_offset + LOCAL_HEADER.size + length + entry.compress_size


@contextmanager
def _zip_damage_explained(path: Path, name: str = "") -> Iterator[None]:
    """Turns zipfile's errors about damage into one that names the archive and the file."""
    try:
        yield
    except InvalidInputError:
        raise
    # zipfile raises a dozen kinds of errors for damaged headers, and so does zlib.
    except Exception as error:
        of_file = f": its file {name} cannot be read" if name else ""
        raise InvalidInputError(
            f"{path} is cut short, damaged, or not a zip archive{of_file} "
            f"({type(error).__name__}: {error})"
        ) from error
