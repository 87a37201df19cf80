"""Data sets that can be downloaded: a catalog, where their files are, and checks of these.

A file is downloaded from the first mirror that works. A download that is larger than expected is
stopped, and files are written atomically. To add a data set, extend the catalog below.
"""

import hashlib
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from retarget.errors import DownloadError, InvalidInputError, MissingDataError, missing_extra
from retarget.storage import atomic_file, user_path
from retarget.text import did_you_mean

FOLDER_VARIABLE = "RETARGET_DATA"
CHUNK = 1 << 16  # bytes of a download read at a time
PATIENCE = 30  # seconds without data before giving up


@dataclass(frozen=True)
class StoredFile:
    """A file in the data folder, with its size in bytes and its SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, the addresses to download it from, and files to use instead.

    Attributes:
        alternatives: Other forms of the same data, such as the unpacked download; each is a set of
            files that together replace it.
    """

    download: StoredFile
    mirrors: tuple[str, ...]
    alternatives: tuple[tuple[StoredFile, ...], ...] = ()

    @property
    def forms(self) -> tuple[tuple[StoredFile, ...], ...]:
        """All forms that it can have, in order of preference."""
        return ((self.download,), *self.alternatives)

    def present(self, folder: Path) -> tuple[StoredFile, ...]:
        """Returns the first form whose files are all in the folder; empty if there is none."""
        return next((form for form in self.forms if not _absent(form, folder)), ())

    def lacking(self, folder: Path) -> tuple[str, ...]:
        """Returns the missing files: the rest of a partial form, else the download."""
        absent = [_absent(form, folder) for form in self.forms]
        started = (a for a, form in zip(absent, self.forms, strict=True) if len(a) < len(form))
        return next(started, (self.download.name,))


@dataclass(frozen=True)
class DataSet:
    """A data set that can be downloaded: its name in commands, its description, its files."""

    name: str
    description: str
    files: tuple[DataFile, ...]

    @property
    def download_size(self) -> int:
        """The number of bytes to download."""
        return sum(file.download.size for file in self.files)


FileState = Literal["ok", "missing", "wrong checksum", "unreadable"]
Progress = Callable[[DataFile, int], None]
SizeAndSum = tuple[int, str]


def _absent(form: tuple[StoredFile, ...], folder: Path) -> tuple[str, ...]:
    return tuple(stored.name for stored in form if not (folder / stored.name).is_file())


MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def _gzipped(name: str, packed: SizeAndSum, unpacked: SizeAndSum) -> DataFile:
    return DataFile(
        download=StoredFile(f"{name}.gz", *packed),
        mirrors=tuple(f"{mirror}{name}.gz" for mirror in MNIST_MIRRORS),
        alternatives=((StoredFile(name, *unpacked),),),
    )


MNIST = DataSet(
    name="mnist",
    description="70,000 handwritten digits, 28 x 28 pixels, 10 classes",
    files=(
        _gzipped(
            "train-images-idx3-ubyte",
            (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ),
        _gzipped(
            "train-labels-idx1-ubyte",
            (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ),
        _gzipped(
            "t10k-images-idx3-ubyte",
            (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ),
        _gzipped(
            "t10k-labels-idx1-ubyte",
            (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            (10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
    ),
)

CIFAR10_MIRRORS = (
    "https://www.cs.toronto.edu/~kriz/",
    "https://dataset.bj.bcebos.com/cifar/",
)


def _batches(folder: str, suffix: str, *files: SizeAndSum) -> tuple[StoredFile, ...]:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return tuple(
        StoredFile(f"{folder}/{name}{suffix}", size, sha256)
        for name, (size, sha256) in zip(names, files, strict=True)
    )


CIFAR10_PYTHON_ARCHIVE = StoredFile(
    "cifar-10-python.tar.gz",
    170_498_071,
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
CIFAR10_PYTHON_FILES = _batches(
    "cifar-10-batches-py",
    "",
    (31_035_704, "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
    (31_035_320, "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
    (31_035_999, "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
    (31_035_696, "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
    (31_035_623, "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
    (31_035_526, "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
)
CIFAR10_BINARY_ARCHIVE = StoredFile(
    "cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR10_BINARY_FILES = _batches(
    "cifar-10-batches-bin",
    ".bin",
    (30_730_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    (30_730_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    (30_730_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    (30_730_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    (30_730_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    (30_730_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)

CIFAR10 = DataSet(
    name="cifar10",
    description="60,000 color photographs, 32 x 32 pixels, 10 classes",
    files=(
        DataFile(
            download=CIFAR10_PYTHON_ARCHIVE,
            mirrors=tuple(f"{mirror}{CIFAR10_PYTHON_ARCHIVE.name}" for mirror in CIFAR10_MIRRORS),
            alternatives=(CIFAR10_PYTHON_FILES, (CIFAR10_BINARY_ARCHIVE,), CIFAR10_BINARY_FILES),
        ),
    ),
)

RESNET18 = DataSet(
    name="resnet18",
    description="weights of ResNet-18 for ImageNet (IMAGENET1K_V1), 1000 classes",
    files=(
        DataFile(
            download=StoredFile(
                "resnet18-f37072fd.pth",
                46_830_571,
                "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
            ),
            mirrors=("https://download.pytorch.org/models/resnet18-f37072fd.pth",),
        ),
    ),
)


def _on_github(repository: str, commit: str, path: str) -> tuple[str, str]:
    """The addresses of a file in a public repository: GitHub's own, and jsDelivr's copy."""
    return (
        f"https://raw.githubusercontent.com/{repository}/{commit}/{path}",
        f"https://cdn.jsdelivr.net/gh/{repository}@{commit}/{path}",
    )


BANKING77_SOURCE = (
    "PolyAI-LDN/task-specific-datasets",
    "57ec275d8078af65b7731c2a98be812d844a6d6b",
)
CLINC150_SOURCE = ("clinc/oos-eval", "828f8093932c8fe6ca7936c3d2e52903b1c523de")

BANKING77 = DataSet(
    name="banking77",
    description="13,083 questions to a bank, 77 intents",
    files=(
        DataFile(
            download=StoredFile(
                "banking77_train.csv",
                839_073,
                "b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b",
            ),
            mirrors=_on_github(*BANKING77_SOURCE, "banking_data/train.csv"),
        ),
        DataFile(
            download=StoredFile(
                "banking77_test.csv",
                239_961,
                "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d",
            ),
            mirrors=_on_github(*BANKING77_SOURCE, "banking_data/test.csv"),
        ),
    ),
)

CLINC150 = DataSet(
    name="clinc150",
    description="22,500 requests to an assistant, 150 intents, and 1,200 outside all of them",
    files=(
        DataFile(
            download=StoredFile(
                "clinc150_full.json",
                2_495_390,
                "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
            ),
            mirrors=_on_github(*CLINC150_SOURCE, "data/data_full.json"),
            alternatives=(
                (
                    StoredFile(
                        "clinc150_full.json.gz",
                        283_624,
                        "16be8a47be23ffc2ee005e4b632bb1d3b204c76b749a268e62c5cd60b611d120",
                    ),
                ),
            ),
        ),
    ),
)

DATA_SETS = {
    data_set.name: data_set for data_set in (MNIST, CIFAR10, RESNET18, BANKING77, CLINC150)
}


def find_data_set(name: str) -> DataSet:
    """Returns a data set by its name in commands.

    Examples:
        >>> find_data_set("mnist").download_size
        11594722
    """
    if name in DATA_SETS:
        return DATA_SETS[name]
    near = did_you_mean(name.lower(), DATA_SETS)
    raise InvalidInputError(
        f"there is no data set {name!r}; "
        + (f"did you mean {near!r}? " if near else "")
        + f"known: {', '.join(DATA_SETS)}"
    )


def cache_folder() -> Path:
    """Returns the default folder for data, in the user's cache."""
    try:
        import platformdirs
    except ImportError as error:
        raise missing_extra("data sets need platformdirs", error, "figures") from error
    return Path(platformdirs.user_cache_dir("retarget"))


def data_folder(given: str | Path | None = None) -> Path:
    """Returns the data folder: the given one, else `RETARGET_DATA`, else the user's cache.

    Examples:
        >>> data_folder("my/data").as_posix()
        'my/data'
    """
    named = given or os.environ.get(FOLDER_VARIABLE)
    return user_path(named) if named else cache_folder()


def locate(
    data_set: DataSet, folder: str | Path | None = None, *, download: bool = False
) -> list[tuple[Path, ...]]:
    """Returns the paths of each `DataFile`: of the download, or of the form that exists instead.

    Raises:
        MissingDataError: Files are missing and `download` is False; it says how to get them.
        DownloadError: A file could not be downloaded from any mirror.
    """
    folder = data_folder(folder)
    absent = [file for file in data_set.files if not file.present(folder)]
    if absent and download:
        get(data_set, folder)
    elif absent:
        missing = ", ".join(name for file in absent for name in file.lacking(folder))
        raise MissingDataError(
            f"{data_set.name}: {missing} not found in {folder}; "
            f"get it with: {get_command(data_set, folder)} "
            f"(or name the folder that has it with {FOLDER_VARIABLE} or --data-dir)"
        )
    return [tuple(folder / part.name for part in file.present(folder)) for file in data_set.files]


def get_command(data_set: DataSet, folder: Path) -> str:
    """Returns the command that downloads the data set to the folder."""
    place = "" if folder == cache_folder() else f" --data-dir {shlex.quote(str(folder))}"
    return f"retarget data get {data_set.name}{place}"


def check_file(file: DataFile, folder: Path) -> tuple[FileState, str]:
    """Compares a file, or the form that exists instead, with the official checksums."""
    try:
        form = file.present(folder)
        problems = [problem for stored in form if (problem := _difference(stored, folder))]
    except OSError as error:
        return "unreadable", str(error)
    if problems:
        return "wrong checksum", "; ".join(problems)
    if form:
        return "ok", "" if file.download in form else f"as {Path(form[0].name).parts[0]}"
    path = folder / file.download.name
    lacking = file.lacking(folder)
    if path.exists():
        return "unreadable", f"{path} is not a file"
    whole = lacking == (file.download.name,)
    return "missing", "" if whole else f"of its parts, {', '.join(lacking)} not found"


def _difference(stored: StoredFile, folder: Path) -> str:
    """Returns how the file in the folder differs from the official one; empty if it does not."""
    path = folder / stored.name
    size = path.stat().st_size
    if size != stored.size:
        return f"{stored.name} has {size} bytes, expected {stored.size}"
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    if checksum != stored.sha256:
        return f"{stored.name} has sha256 {checksum[:12]}..., expected {stored.sha256[:12]}..."
    return ""


def get(
    data_set: DataSet, folder: Path, progress: Progress = lambda file, received: None
) -> list[DataFile]:
    """Downloads the files that are missing or have a wrong checksum, and returns them.

    `progress` is called with a file and the number of bytes received so far.

    Raises:
        DownloadError: A file could not be downloaded from any mirror; no part of it is kept.
    """
    needed = [file for file in data_set.files if check_file(file, folder)[0] != "ok"]
    for file in needed:
        _download(file, folder, progress)
    return needed


def _download(file: DataFile, folder: Path, progress: Progress) -> None:
    try:
        import requests
    except ImportError as error:
        raise missing_extra("downloads need requests", error, "figures") from error
    failures = ""
    for address in file.mirrors:
        try:
            with requests.Session() as session, atomic_file(folder / file.download.name) as target:
                _receive(session, address, file, target, progress)
            return
        # Only errors of the network or the mirror: a full disk would fail the next one too.
        except (requests.RequestException, _RefusedError) as error:
            failures += f"\n  {address}: {error}"
    raise DownloadError(
        f"{file.download.name} could not be downloaded, and no part of it was kept; "
        f"if you have it from elsewhere, put it in {folder}. Tried:{failures}"
    )


class _RefusedError(Exception):
    """A mirror sent something other than the file."""


def _receive(session: Any, address: str, file: DataFile, target: Path, progress: Progress) -> None:
    wanted = file.download
    digest = hashlib.sha256()
    received = 0
    # The checksum is of the file itself, so it must not be compressed for transfer.
    options = {"headers": {"Accept-Encoding": "identity"}, "hooks": {"response": _limit_redirect}}
    with (
        session.get(address, stream=True, timeout=PATIENCE, **options) as response,
        target.open("wb") as opened,
    ):
        response.raise_for_status()
        announced = response.headers.get("Content-Length", str(wanted.size))
        if announced != str(wanted.size):
            raise _RefusedError(f"announces {announced} bytes, expected {wanted.size}")
        for chunk in response.iter_content(CHUNK):
            received += len(chunk)
            if received > wanted.size:
                raise _RefusedError(f"sends more than the expected {wanted.size} bytes")
            digest.update(chunk)
            opened.write(chunk)
            progress(file, received)
    if received != wanted.size:
        raise _RefusedError(f"sent {received} bytes, expected {wanted.size}; interrupted?")
    if digest.hexdigest() != wanted.sha256:
        raise _RefusedError(f"sent a file of sha256 {digest.hexdigest()}, expected {wanted.sha256}")


def _limit_redirect(response: Any, *_: Any, **__: Any) -> None:
    """Limits the text of a redirect, all of which requests would read."""
    if response.is_redirect and len(response.raw.read(CHUNK + 1)) > CHUNK:
        response.close()
        raise _RefusedError(f"redirects with more than {CHUNK} bytes of text")
