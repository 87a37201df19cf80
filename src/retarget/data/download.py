"""Downloads of data sets: from any of their mirrors, never too large, whole or not at all."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from retarget.data.files import DataFile, DataSet, FileState, StoredFile, check_file
from retarget.errors import DownloadError, missing_extra
from retarget.storage import atomic_file

try:
    import pooch
    import requests
except ImportError as error:
    raise missing_extra("downloads need pooch and requests", error, "figures") from error

CHUNK = 1 << 16
Progress = Callable[[DataFile, int], None]


def get(data_set: DataSet, folder: Path, progress: Progress | None = None) -> list[DataFile]:
    """Downloads what is not in the folder with the right checksum.

    Args:
        data_set: What to get.
        folder: Where to; it is created. A file there with a wrong checksum is replaced.
        progress: Called with a file and how many of its bytes have arrived.

    Returns:
        The files that were downloaded; none if everything was there.

    Raises:
        DownloadError: No mirror gave a file; no part of it is left behind.
    """
    needed = [f for f in data_set.files if check_file(f, folder).state is not FileState.OK]
    for file in needed:
        _download(file, folder, progress or _no_progress)
    return needed


def _no_progress(file: DataFile, received: int) -> None:
    """Shows nothing."""


def _download(file: DataFile, folder: Path, progress: Progress) -> None:
    failures = []
    for address in file.mirrors:
        try:
            with atomic_file(folder / file.download.name) as temporary:
                _receive(address, file, temporary, progress)
            return
        # Errors of the network or the mirror only: with a full disk the next would fail as well.
        except (requests.RequestException, _RefusedError) as error:
            failures.append(f"{address}: {error}")
    tried = "".join(f"\n  {failure}" for failure in failures)
    raise DownloadError(
        f"{file.download.name} could not be downloaded, and nothing of it was kept; "
        f"if you have it from elsewhere, put it in {folder}. Tried:{tried}"
    )


def _receive(address: str, file: DataFile, target: Path, progress: Progress) -> None:
    with target.open("wb") as opened:
        received = _CheckedFile(opened, file.download, lambda count: progress(file, count))
        fetch = pooch.HTTPDownloader(
            chunk_size=CHUNK,
            # The checksum is of the file as it lies there, so nothing may pack it for the way.
            headers={"Accept-Encoding": "identity"},
            hooks={"response": received.expect},
        )
        try:
            fetch(address, received, None)
        finally:
            received.close_connections()
        received.finish()


class _RefusedError(Exception):
    """What a mirror sends is not the file."""


class _CheckedFile:
    """A file to write to that takes no more than it should and checks what it took.

    Args:
        file: Where the bytes go.
        wanted: What they must be in the end.
        progress: Called with the number of bytes so far.
    """

    def __init__(
        self, file: IO[bytes], wanted: StoredFile, progress: Callable[[int], None]
    ) -> None:
        self._file = file
        self._wanted = wanted
        self._progress = progress
        self._received = 0
        self._digests = {kind: hashlib.new(kind) for kind in wanted.checksums}
        self._responses: list[requests.Response] = []

    def expect(self, response: requests.Response, *_: Any, **__: Any) -> None:
        """Called by requests before anything is read: refuses an answer of the wrong length."""
        self._responses.append(response)
        # requests would read all of a redirection's own text, however long
        if response.is_redirect and len(response.raw.read(CHUNK + 1)) > CHUNK:
            raise _RefusedError(f"redirects with more than {CHUNK} bytes of text")
        announced = response.headers.get("Content-Length")
        # Only of the file itself: redirections and errors have texts of their own length.
        if response.status_code != requests.codes.ok or announced is None:
            return
        if announced != str(self._wanted.size):
            raise _RefusedError(f"announces {announced} bytes, expected {self._wanted.size}")

    def write(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        self._received += len(chunk)
        if self._received > self._wanted.size:
            raise _RefusedError(f"sends more than the expected {self._wanted.size} bytes")
        for digest in self._digests.values():
            digest.update(chunk)
        self._file.write(chunk)
        self._progress(self._received)

    def flush(self) -> None:
        """Does nothing: pooch asks for it after every chunk, closing the file is enough."""

    def close_connections(self) -> None:
        """An answer that was refused half-way would keep its connection open."""
        for response in self._responses:
            response.close()

    def finish(self) -> None:
        """Refuses what is not the wanted file."""
        if self._received != self._wanted.size:
            raise _RefusedError(
                f"sent {self._received} bytes, expected {self._wanted.size}; interrupted?"
            )
        for kind, expected in self._wanted.checksums.items():
            found = self._digests[kind].hexdigest()
            if found != expected:
                raise _RefusedError(f"sent a file of {kind} {found}, expected {expected}")
