"""What can be downloaded: files, sizes, checksums, mirrors. A new data set is added here."""

from dataclasses import dataclass
from pathlib import Path

from retarget.errors import InvalidInputError
from retarget.text import did_you_mean


@dataclass(frozen=True)
class StoredFile:
    """A file as it must lie in the folder.

    Attributes:
        name: Its path in the folder of the data.
        size: Its length in bytes.
        sha256: Its checksum, in hexadecimal digits.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, as it is downloaded, and what is as good.

    Attributes:
        download: The file that the mirrors have.
        mirrors: Addresses of that file, in the order in which they are tried.
        alternatives: Other forms of the same data, such as what was in the download: each the files
            that together do as well.
    """

    download: StoredFile
    mirrors: tuple[str, ...]
    alternatives: tuple[tuple[StoredFile, ...], ...] = ()

    @property
    def forms(self) -> tuple[tuple[StoredFile, ...], ...]:
        """All forms that it can have, in the order in which they are looked for."""
        return ((self.download,), *self.alternatives)

    def present(self, folder: Path) -> tuple[StoredFile, ...]:
        """The first form of which all files lie in the folder; nothing if there is none."""
        return next((form for form in self.forms if not _absent(form, folder)), ())

    def lacking(self, folder: Path) -> tuple[str, ...]:
        """What it takes to complete it: the rest of a form that lies there in part, else all."""
        for form in self.forms:
            absent = _absent(form, folder)
            if len(absent) < len(form):
                return absent
        return (self.download.name,)


@dataclass(frozen=True)
class DataSet:
    """A data set that can be downloaded.

    Attributes:
        name: As the command knows it.
        description: One line for people.
        files: Everything that its loader reads.
    """

    name: str
    description: str
    files: tuple[DataFile, ...]

    @property
    def download_size(self) -> int:
        """Bytes to download."""
        return sum(file.download.size for file in self.files)


def _absent(form: tuple[StoredFile, ...], folder: Path) -> tuple[str, ...]:
    return tuple(stored.name for stored in form if not (folder / stored.name).is_file())


MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def _gzipped(name: str, size: int, sha256: str, unpacked_size: int, unpacked: str) -> DataFile:
    return DataFile(
        download=StoredFile(f"{name}.gz", size, sha256),
        mirrors=tuple(f"{mirror}{name}.gz" for mirror in MNIST_MIRRORS),
        alternatives=((StoredFile(name, unpacked_size, unpacked),),),
    )


MNIST = DataSet(
    name="mnist",
    description="70,000 handwritten digits, 28 x 28 pixels, 10 classes",
    files=(
        _gzipped(
            "train-images-idx3-ubyte",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _gzipped(
            "train-labels-idx1-ubyte",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        _gzipped(
            "t10k-images-idx3-ubyte",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        _gzipped(
            "t10k-labels-idx1-ubyte",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

CIFAR10_MIRRORS = (
    "https://www.cs.toronto.edu/~kriz/",
    "https://dataset.bj.bcebos.com/cifar/",
)


def _batches(folder: str, suffix: str, *files: tuple[int, str]) -> tuple[StoredFile, ...]:
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
    description="60,000 colour photographs, 32 x 32 pixels, 10 classes",
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

DATA_SETS = {data_set.name: data_set for data_set in (MNIST, CIFAR10, RESNET18)}


def find_data_set(name: str) -> DataSet:
    """A data set by name.

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
