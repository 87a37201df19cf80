"""Files out of a zip archive, read in place: nothing is unpacked to the disk, nor too much."""

import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from retarget.data.archive import leads_out
from retarget.errors import InvalidInputError

# Others may unpack without a limit, however little of them is asked for.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 0x1
# The end of the directory, and its larger form, which stands before it where numbers are too big.
END, END_MARK = struct.Struct("<4s4H2LH"), b"PK\5\6"
LARGE_END, LARGE_END_MARK = struct.Struct("<4sQ2H2L4Q"), b"PK\6\6"
LOCATOR_SIZE = 20  # of what stands between the two
LARGEST_SHORT = 0xFFFF
LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # stands before each file's name and content
# Up to 24 bytes of checksum and sizes may follow a file's content; another file takes more.
LARGEST_GAP = LOCAL_HEADER.size


class ZipFiles:
    """The files of an open archive.

    Attributes:
        path: The archive, for messages.
        names: Its files, without folders, in its order.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            self._require_harmless(entry)
            if entry.filename in self._entries:
                raise InvalidInputError(f"{path} holds {entry.filename!r} twice")
            if not entry.is_dir():
                self._entries[entry.filename] = entry
        self.names = list(self._entries)

    def size(self, name: str) -> int:
        """How long a file is, unpacked, as the directory says."""
        return self._entries[name].file_size

    def read(self, name: str, largest: int) -> bytes:
        """The content of a file, of which no more than `largest` bytes are accepted."""
        size = self.size(name)
        if size > largest:
            raise InvalidInputError(
                f"{self.path} holds {name} of {size} bytes; expected at most {largest}"
            )
        with self.open(name) as file:
            return file.read(size)

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A file as a stream: the reader limits what it takes; at the end its CRC is compared."""
        entry = self._entries[name]
        if entry.flag_bits & ENCRYPTED or entry.compress_type not in COMPRESSIONS:
            raise InvalidInputError(
                f"{self.path} holds {name} encrypted, or compressed in a way that is not read "
                "here; expected it stored or deflated"
            )
        with damage_explained(self.path, name), self._archive.open(entry) as file:
            yield file

    def _require_harmless(self, entry: zipfile.ZipInfo) -> None:
        name = entry.filename
        if not name:
            raise InvalidInputError(f"{self.path} is damaged: it holds a file without a name")
        if leads_out(name):
            raise InvalidInputError(
                f"{self.path} holds {name!r}, which leads out of its folder; no official archive "
                "does, and nothing of it was read"
            )
        # The upper half holds the mode of Unix, where the archive was made on one; else it is 0.
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise InvalidInputError(
                f"{self.path} holds {name!r} as a link or as something else than a plain file"
            )


@contextmanager
def open_zip(path: Path) -> Iterator[ZipFiles]:
    """Opens an archive and reads its directory.

    Raises:
        InvalidInputError: It is damaged, no zip archive, holds a file that its directory does not
            list, or holds what no data set does: links, names that lead out of the folder, a file
            twice.
    """
    with path.open("rb") as file:
        with damage_explained(path):
            archive = zipfile.ZipFile(file)
            _require_all_listed(path, file, archive)
        with archive:
            yield ZipFiles(path, archive)


def _require_all_listed(path: Path, file: IO[bytes], archive: zipfile.ZipFile) -> None:
    """Refuses an archive in which a file is lost: zipfile lists what it finds, and counts nothing.

    One wrong length in the directory makes it skip the entries that follow.
    """
    announced, listed = _announced(file, len(archive.comment)), len(archive.infolist())
    if announced != listed:
        raise InvalidInputError(
            f"{path} is damaged: its directory announces {announced} files, and lists {listed}"
        )
    end = 0
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    starts = [*(entry.header_offset for entry in entries), archive.start_dir]
    for entry, start, following in zip(entries, starts[:-1], starts[1:], strict=True):
        _require_no_gap(path, end, start)
        end = start + LOCAL_HEADER.size + len(entry.orig_filename) + entry.compress_size
        if following - end > LARGEST_GAP:  # else there is no need to read its header
            file.seek(start)
            *_, name, more = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
            end = start + LOCAL_HEADER.size + name + more + entry.compress_size
    _require_no_gap(path, end, archive.start_dir)


def _require_no_gap(path: Path, end: int, start: int) -> None:
    if start - end > LARGEST_GAP:
        raise InvalidInputError(
            f"{path} is damaged: its directory lists nothing between the bytes {end} and {start}, "
            "where a file must have been"
        )


def _announced(file: IO[bytes], comment: int) -> int:
    """How many files the end of the directory says there are."""
    file.seek(-END.size - comment, 2)
    place = file.tell()
    mark, _, _, _, count, *_ = END.unpack(file.read(END.size))
    if mark != END_MARK:
        raise zipfile.BadZipFile("bytes follow its end")
    large = place - LOCATOR_SIZE - LARGE_END.size
    if count == LARGEST_SHORT and large >= 0:
        file.seek(large)
        found = LARGE_END.unpack(file.read(LARGE_END.size))
        if found[0] == LARGE_END_MARK:
            count = found[7]
    return int(count)


@contextmanager
def damage_explained(path: Path, name: str = "") -> Iterator[None]:
    """Turns what zipfile says of damage into an error that names the archive, and the file."""
    try:
        yield
    except InvalidInputError:
        raise
    # zipfile raises a dozen kinds of errors for damaged headers, and so does zlib.
    except Exception as error:
        of_file = f": its file {name} cannot be read" if name else ""
        raise InvalidInputError(
            f"{path} is cut short, damaged, or no zip archive{of_file} "
            f"({type(error).__name__}: {error})"
        ) from error
