"""Coverage-guided fuzzing of the readers that are our own: `make fuzz`, or one target by hand.

    python tests/faults/fuzz_readers.py idx -max_total_time=60

Any bytes must give a value or an error of ours; everything else is a finding, and its input is kept
beside the corpus. Needs atheris, which `make fuzz` installs.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["retarget.lab.data", "retarget.diagnosis", "retarget.streaming"]
):
    from retarget.archives import open_zip, read_members
    from retarget.diagnosis.tables.parquet_sizes import ParquetSizes
    from retarget.diagnosis.tables.read import read_table
    from retarget.errors import RetargetError
    from retarget.lab.data.backbones import read_torch_file
    from retarget.lab.data.cifar10 import parse_batch
    from retarget.lab.data.core50 import decode
    from retarget.lab.data.mnist import read_idx
    from retarget.lab.reader import parse_experiment
    from retarget.streaming.corrector import TargetCorrector
    from support import formats

MOST = 1 << 16
# memory, where there is any: the file is written anew for every input
FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


def _file(suffix: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = FOLDER / f"fuzzed{suffix}"

    def target(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return target


def _zip(path: Path) -> object:
    with open_zip(path) as files:
        return [files.read(name, MOST) for name in files.names]


def _text(content: bytes) -> object:
    return parse_experiment("fuzzed", content.decode("utf-8", "replace")).runs()


# Each with the formats whose valid files it starts from.
TARGETS: dict[str, tuple[Callable[[bytes], object], list[str]]] = {
    "idx": (_file("", read_idx), ["idx, labels", "idx.gz"]),
    "torch": (_file(".pth", read_torch_file), ["weights pth", "weights pth, old"]),
    "binary batch": (lambda content: parse_batch(content, "a.bin", "fuzzed"), ["cifar10 binary"]),
    "tar": (
        _file("", lambda path: list(read_members(path, formats.BINARY_NAMES, MOST))),
        ["cifar10 tar.gz"],
    ),
    "zip": (_file("", _zip), ["npz", "npz, packed"]),
    "picture": (lambda content: decode(content, "fuzzed"), ["core50 png", "core50 jpeg"]),
    "npy": (_file(".npy", read_table), ["npy"]),
    "npz": (_file(".npz", read_table), ["npz", "npz, packed"]),
    "csv": (_file(".csv", read_table), ["csv"]),
    "csv.gz": (_file(".csv.gz", read_table), ["csv.gz"]),
    "parquet": (_file(".parquet", read_table), ["parquet", "parquet, zstd"]),
    "parquet sizes": (
        _file(".parquet", lambda path: ParquetSizes(path).loaded(["a", "y"])),
        ["parquet"],
    ),
    "state": (_file("", TargetCorrector.load), ["corrector state"]),
    "experiment": (_text, ["experiment toml"]),
}


def main() -> None:
    name, *options = sys.argv[1:]
    target, seeds = TARGETS[name]
    corpus = Path(tempfile.mkdtemp(prefix=f"corpus {name} "))
    for seed in seeds:
        folder = corpus.with_name(f"{corpus.name} made") / formats.FOLDER_NAME / seed
        folder.mkdir(parents=True)
        path = formats.FORMATS[seed].make(folder)
        (corpus / seed).write_bytes(path.read_bytes())

    def one_input(content: bytes) -> None:
        try:
            target(content)
        except (RetargetError, OSError):
            return

    atheris.Setup(
        [sys.argv[0], str(corpus), "-timeout=20", "-rss_limit_mb=4096", *options], one_input
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
