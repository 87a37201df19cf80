"""Files out of a zip archive, read in place: nothing is unpacked to the disk, nor too much."""

import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from retarget.errors import InvalidInputError

# Others may unpack without a limit, however little of them is asked for.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 0x1


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

    def read(self, name: str, largest: int) -> bytes:
        """The content of a file, of which no more than `largest` bytes are accepted."""
        size = self._entries[name].file_size
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
        if name.startswith("/") or ":" in name or "\\" in name or ".." in name.split("/"):
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
        InvalidInputError: It is damaged, no zip archive, or holds what no data set does: links,
            names that lead out of the folder, a file twice.
    """
    with path.open("rb") as file:
        with damage_explained(path):
            archive = zipfile.ZipFile(file)
        with archive:
            yield ZipFiles(path, archive)


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
