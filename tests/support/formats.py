"""Every file format that retarget reads: a valid file, how it is read, what may come of damage.

A format is one entry of `FORMATS`. `notices` says that its checksums show every damage, so that
what is read is either right or an error. Without them, damage to the numbers themselves makes other
numbers: then `well_formed` says what a result must still be.
"""

import csv
import gzip
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import save_file

import retarget as rt
from retarget.diagnosis.tables.read import read_table
from retarget.lab.data.backbones import read_weights
from retarget.lab.data.cache import cached_array
from retarget.lab.data.cifar10 import CIFAR10_BINARY_ARCHIVE, load_cifar10
from retarget.lab.data.core50 import load_core50
from retarget.lab.data.mnist import load_mnist
from retarget.lab.reader import parse_experiment
from retarget.lab.runs.store import Identity, RunStore
from support.made_cifar10 import BINARY_NAMES, write_made_cifar10
from support.made_core50 import made_frames, picture, write_made_core50
from support.made_mnist import NAMES, write_made_mnist

ROWS = 60


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        make: Writes a valid file (and what belongs to it) into a folder; gives the one to damage.
        read: What retarget makes of it.
        notices: Whether no damage can give another result than the right one.
        made_again: Whether a damaged one is computed anew, without an error.
        well_formed: Whether a result that differs is still of the right form; asked with the
            damaged file, the result and the right one.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    notices: bool = False
    made_again: bool = False
    well_formed: Callable[[Path, Any, Any], bool] = lambda path, found, right: True


def same(found: Any, right: Any) -> bool:
    """Whether two results are equal: values, types and shapes, missing ones included."""
    if type(found) is not type(right):
        return False
    if is_dataclass(found):
        found, right = vars(found), vars(right)
    if isinstance(found, dict):
        return found.keys() == right.keys() and all(same(found[key], right[key]) for key in found)
    if isinstance(found, torch.Tensor):
        return found.dtype == right.dtype and torch.equal(found, right)
    if isinstance(found, pl.DataFrame):
        return found.schema == right.schema and found.equals(right)
    if isinstance(found, np.ndarray):
        alike = found.shape == right.shape and found.dtype == right.dtype
        return alike and found.tobytes() == right.tobytes()
    return bool(found == right)


def same_form(path: Path, found: Any, right: Any) -> bool:
    """Arrays of the right shapes and types, whatever their numbers."""

    def forms(data: Any) -> dict[str, Any]:
        return {name: (array.shape, array.dtype) for name, array in vars(data).items()}

    return forms(found) == forms(right)


def made_table() -> pl.DataFrame:
    """A stream with numbers, whole numbers, text and something missing."""
    rng = np.random.default_rng(5)
    return pl.DataFrame(
        {
            "a": rng.normal(size=ROWS).round(3),
            "count": rng.integers(0, 99, ROWS),
            "who": [f"user {k % 7}" if k % 9 else None for k in range(ROWS)],
            "y": rng.normal(size=ROWS).round(3),
        }
    )


def _table(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path, table, rng = folder / name, made_table(), np.random.default_rng(6)
        match path.suffix:
            case ".parquet":
                table.write_parquet(path, compression="zstd" if "zstd" in name else "uncompressed")
            case ".npy":
                np.save(path, rng.normal(size=(ROWS, 3)))
            case ".npz":
                save = np.savez_compressed if "packed" in name else np.savez
                words = np.array([f"user {k % 7}" for k in range(ROWS)])
                save(path, X=rng.normal(size=(ROWS, 2)), y=rng.normal(size=ROWS), who=words)
            case ".gz":
                path.write_bytes(gzip.compress(table.write_csv().encode(), mtime=0))
            case _:
                table.write_csv(path)
        return path

    return make


def _as_python_reads_it(path: Path, found: pl.DataFrame, right: pl.DataFrame) -> bool:
    """As many rows and columns as Python's own reader finds."""
    # a carriage return alone ends a line for Python's reader only
    text = re.sub("\r(?!\n)", " ", path.read_bytes().decode("utf-8-sig"))
    header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    return found.width == len(header) and found.height == len(rows)


def _a_table(path: Path, found: pl.DataFrame, right: pl.DataFrame) -> bool:
    return found.height > 0 and found.width > 0 and all(s.len() == found.height for s in found)


def _made(
    name: str, write: Callable[..., Any], *given: Any, **sizes: int
) -> Callable[[Path], Path]:
    """Writes the files of a data set, of which the named one is damaged."""

    def make(folder: Path) -> Path:
        write(folder, *given, **sizes)
        return folder / name

    return make


def _core50_jpeg(folder: Path) -> Path:
    for name, pixels in made_frames(size=(16, 16)).items():
        path = folder / "core50_128x128" / name.replace(".png", ".jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(pixels, "JPEG"))
    return path


def _read_core50(path: Path) -> Any:
    folder = path
    while folder.name != FOLDER_NAME:
        folder = folder.parent
    return load_core50(folder, 3, (3,), partial=True, progress=False)


def _stream(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(size=(n, 3)), rng.normal(size=(n, 2))


def _make_state(folder: Path) -> Path:
    corrector = rt.TargetCorrector(rt.RBF(1.3), rt.SGD(0.2), gamma=0.7, block_size=5, ridge=0.1)
    corrector.correct(*_stream(23))
    corrector.save(folder / "state.safetensors")
    return folder / "state.safetensors"


def _read_state(path: Path) -> dict[str, np.ndarray]:
    """Not the file's content only: a state must also be able to go on."""
    corrector = rt.TargetCorrector.load(path)
    return {"block": corrector.correct(*_stream(9)), "rest": corrector.flush()}


def _weights(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        torch.manual_seed(3)
        tensors = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4)).state_dict()
        path = folder / name
        if path.suffix == ".safetensors":
            save_file(tensors, path)
        else:
            torch.save(tensors, path, _use_new_zipfile_serialization="old" not in name)
        return path

    return make


def _read_cached(path: Path) -> np.ndarray:
    return cached_array(path.parent, "features", ["made"], lambda: _stream(23)[0])


def _make_cached(folder: Path) -> Path:
    _read_cached(folder / "any")
    return next(folder.glob("*.safetensors"))


RUN = Identity("made.Run", {"seed": 3}, {}, "code", {})


def _run(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        store = RunStore(folder)
        store.keep(RUN, made_table(), experiment="made", name="seed 3", seconds=1.0)
        return store.folder / RUN.key / name

    return make


def _read_run(path: Path) -> pl.DataFrame | None:
    store = RunStore(path.parents[2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.errors.DamagedFileWarning)
        if store.result(RUN.key) is None:
            _run(path.name)(path.parents[2])  # made again
    return store.result(RUN.key)


def _experiment(folder: Path) -> Path:
    text = Path(rt.__file__).parent / "lab" / "configs" / "fig1.toml"
    path = folder / "made_experiment.toml"
    path.write_bytes(text.read_bytes())
    return path


def _read_experiment(path: Path) -> Any:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise rt.errors.InvalidInputError(f"{path} is not UTF-8") from error
    experiment = parse_experiment(path.stem, text)
    experiment.runs()
    return experiment


FRAMES = made_frames()
FOLDER_NAME = "data set"
FRAME_FILE = f"core50_128x128/{next(iter(FRAMES))}"


def _read_mnist(path: Path) -> Any:
    return load_mnist(path.parent)


def _read_cifar10(path: Path) -> Any:
    return load_cifar10(path.parents[1] if path.parent.name.startswith("cifar") else path.parent)


def _labels_in_range(path: Path, found: Any, right: Any) -> bool:
    fine = found.train_images.shape[1:] == (3, 32, 32) and found.train_images.dtype == np.uint8
    aligned = len(found.train_images) == len(found.train_labels)
    return fine and aligned and set(found.train_labels) <= set(range(10))


def _classifier_network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Linear(3, 4).double()


def _make_classifier(folder: Path) -> Path:
    X, _ = _stream(20)
    labels = [("a", 1) if k % 3 else "b" for k in range(20)]
    model = rt.TangentClassifier(_classifier_network(), gamma=0.5, features=8, calibration=9)
    model.fit(X, labels).save(folder / "classifier.safetensors")
    return folder / "classifier.safetensors"


def _read_classifier(path: Path) -> dict[str, np.ndarray]:
    model = rt.TangentClassifier.load(path, _classifier_network())
    model.partial_fit(_stream(9)[0], ["new"] * 9)
    labels = np.array([repr(label) for label in model.classes_])
    return {"labels": labels, "probabilities": model.predict_proba(_stream(7)[0])}


FORMATS: dict[str, Format] = {
    "csv": Format(_table("t.csv"), read_table, well_formed=_as_python_reads_it),
    "csv.gz": Format(_table("t.csv.gz"), read_table, notices=True),
    "parquet": Format(_table("t.parquet"), read_table, well_formed=_a_table),
    "parquet, zstd": Format(_table("zstd.parquet"), read_table, well_formed=_a_table),
    "npy": Format(_table("t.npy"), read_table, well_formed=_a_table),
    "npz": Format(_table("t.npz"), read_table, notices=True),
    "npz, packed": Format(_table("packed.npz"), read_table, notices=True),
    "idx, labels": Format(
        _made(NAMES[1].removesuffix(".gz"), write_made_mnist, False),
        _read_mnist,
        well_formed=same_form,
    ),
    "idx.gz": Format(_made(NAMES[0], write_made_mnist), _read_mnist, notices=True),
    "cifar10 binary": Format(
        _made(BINARY_NAMES[0], write_made_cifar10, "binary", images=2),
        _read_cifar10,
        well_formed=_labels_in_range,
    ),
    "cifar10 tar.gz": Format(
        _made(CIFAR10_BINARY_ARCHIVE.name, write_made_cifar10, "binary archive", images=2),
        _read_cifar10,
        notices=True,
    ),
    "core50 zip": Format(
        _made("core50_128x128.zip", write_made_core50, "zip", FRAMES), _read_core50, notices=True
    ),
    "core50 png": Format(
        _made(FRAME_FILE, write_made_core50, "folder", FRAMES), _read_core50, notices=True
    ),
    "core50 jpeg": Format(_core50_jpeg, _read_core50, well_formed=same_form),
    "weights safetensors": Format(_weights("w.safetensors"), read_weights),
    "weights pth": Format(_weights("w.pth"), read_weights, notices=True),
    "weights pth, old": Format(_weights("old.pth"), read_weights),
    "corrector state": Format(_make_state, _read_state, notices=True),
    "classifier state": Format(_make_classifier, _read_classifier, notices=True),
    "cached array": Format(_make_cached, _read_cached, notices=True, made_again=True),
    "run result": Format(_run("result.parquet"), _read_run, notices=True, made_again=True),
    "run record": Format(_run("run.json"), _read_run, notices=True, made_again=True),
    "experiment toml": Format(_experiment, _read_experiment),
}
