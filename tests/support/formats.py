"""Every file format that retarget reads: a valid file, how it is read, what may come of damage.

A format is one entry of `FORMATS`. `notices` says that its checksums show every damage, so that
what is read is either right or an error. Without them, damage to the numbers themselves makes other
numbers: then `well_formed` says what a result must still be.
"""

import csv
import gzip
import io
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import save_file

import retarget as rt
from retarget.data.backbones import read_weights
from retarget.data.cache import cached_array
from retarget.data.cifar10 import load_cifar10
from retarget.data.core50 import load_core50
from retarget.data.mnist import load_mnist
from retarget.diagnosis.tables.read import read_table
from retarget.experiments.reader import parse_experiment
from retarget.experiments.runs.store import Identity, RunStore
from retarget.explore.state import State, toy_opening
from support.made_cifar10 import BINARY_NAMES, PYTHON_NAMES, write_made_cifar10
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
    if isinstance(found, torch.Tensor) and isinstance(right, torch.Tensor):
        return found.dtype == right.dtype and torch.equal(found, right)
    if is_dataclass(found):
        return type(found) is type(right) and all(
            same(getattr(found, f.name), getattr(right, f.name)) for f in fields(found)
        )
    if type(found) is not type(right):
        return False
    if isinstance(found, pl.DataFrame):
        return found.schema == right.schema and found.equals(right)
    if isinstance(found, np.ndarray):
        alike = found.shape == right.shape and found.dtype == right.dtype
        return alike and found.tobytes() == right.tobytes()
    if isinstance(found, dict):
        return found.keys() == right.keys() and all(same(found[key], right[key]) for key in found)
    return bool(found == right)


def same_form(path: Path, found: Any, right: Any) -> bool:
    """Arrays of the right names, shapes and types, whatever their numbers."""
    if isinstance(found, torch.Tensor | np.ndarray):
        return type(found) is type(right) and (found.shape, found.dtype) == (
            right.shape,
            right.dtype,
        )
    if isinstance(found, dict):
        return found.keys() == right.keys() and all(
            same_form(path, found[key], right[key]) for key in found
        )
    if is_dataclass(found):
        return all(
            same_form(path, getattr(found, f.name), getattr(right, f.name)) for f in fields(found)
        )
    return type(found) is type(right)


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
        text = table.write_csv(separator="\t" if ".tsv" in name else ",").encode()
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
                path.write_bytes(gzip.compress(text, mtime=0))
            case _:
                path.write_bytes(text)
        return path

    return make


def _as_python_reads_it(path: Path, found: pl.DataFrame, right: pl.DataFrame) -> bool:
    """As many rows and columns as Python's own reader finds."""
    # a carriage return alone ends a line for Python's reader only
    text = re.sub("\r(?!\n)", " ", path.read_bytes().decode("utf-8-sig"))
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    header, *rows = [
        row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row
    ]
    return found.width == len(header) and found.height == len(rows)


def _a_table(path: Path, found: pl.DataFrame, right: pl.DataFrame) -> bool:
    return found.height > 0 and found.width > 0 and all(s.len() == found.height for s in found)


def _mnist(packed: bool, number: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_made_mnist(folder, packed, train=5, test=2)
        return folder / (NAMES[number] if packed else NAMES[number].removesuffix(".gz"))

    return make


def _cifar10(form: str, name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_made_cifar10(folder, form, images=2)
        return folder / name

    return make


def _core50(form: str, name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_made_core50(folder, form, FRAMES)
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


def _stream(n: int = 23) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(size=(n, 3)), rng.normal(size=(n, 2))


def _corrector() -> Any:
    return rt.TargetCorrector(rt.RBF(1.3), rt.SGD(0.2), gamma=0.7, block_size=5, ridge=0.1)


def _tracker() -> Any:
    return rt.ShiftTracker(rt.RBF(1.3), rt.SGD(0.2), gamma=0.7)


def _ridge() -> Any:
    return rt.StreamingRidge(rt.RBF(1.3), memory=12)


def _saved(made: Callable[[], Any], feed: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        streaming = made()
        getattr(streaming, feed)(*_stream())
        streaming.save(folder / "state.safetensors")
        return folder / "state.safetensors"

    return make


def _goes_on(kind: Any, then: Callable[[Any], Any]) -> Callable[[Path], Any]:
    """Not the file's content only: a state must also be able to go on."""
    return lambda path: then(kind.load(path))


def _corrected(corrector: Any) -> dict[str, np.ndarray]:
    X, Y = _stream(9)
    return {"block": corrector.correct(X, Y), "rest": corrector.flush()}


def _tracked(tracker: Any) -> dict[str, np.ndarray]:
    tracker.update(*_stream(9))
    return {"effective": tracker.effective_targets}


def _predicted(path: Path) -> dict[str, np.ndarray]:
    X, Y = _stream(9)
    return {"ridge": rt.StreamingRidge.load(path, rt.RBF(1.3)).learn(X, Y).predict(X)}


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


def _cached(compute: Callable[[], np.ndarray]) -> Callable[[Path], np.ndarray]:
    return lambda folder: cached_array(folder, "features", ["made"], compute)


def _make_cached(folder: Path) -> Path:
    _cached(lambda: _stream()[0])(folder)
    return next(folder.glob("*.safetensors"))


RUN = Identity("made.Run", {"seed": 3}, {}, "code", {})


def _run(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        _keep_run(RunStore(folder))
        return RunStore(folder).folder / RUN.key / name

    return make


def _keep_run(store: RunStore) -> None:
    about = {"experiment": "made", "name": "seed 3", "seconds": 1.0}
    store.keep(RUN, made_table(), **about)


def _read_run(path: Path) -> pl.DataFrame | None:
    store = RunStore(path.parents[2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.errors.DamagedFileWarning)
        if store.result(RUN.key) is None:
            _keep_run(store)  # made again
    return store.result(RUN.key)


def _experiment(folder: Path) -> Path:
    text = Path(rt.__file__).parent / "experiments" / "configs" / "fig1.toml"
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


def _setting(folder: Path) -> Path:
    path = folder / "setting.json"
    path.write_text(json.dumps(toy_opening().state.model_dump()))
    return path


def _read_setting(path: Path) -> Any:
    try:
        return State.model_validate_json(path.read_bytes())
    except ValueError as error:  # what the server answers with
        raise rt.errors.InvalidInputError(f"{path}: {error}") from error


FRAMES = made_frames()
FOLDER_NAME = "data set"
FRAME_FILE = f"core50_128x128/{next(iter(FRAMES))}"
PYTHON_ARCHIVE, BINARY_ARCHIVE = "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"


def _read_mnist(path: Path) -> Any:
    return load_mnist(path.parent)


def _read_cifar10(path: Path) -> Any:
    return load_cifar10(path.parents[1] if path.parent.name.startswith("cifar") else path.parent)


def _labels_in_range(path: Path, found: Any, right: Any) -> bool:
    fine = found.train_images.shape[1:] == (3, 32, 32) and found.train_images.dtype == np.uint8
    aligned = len(found.train_images) == len(found.train_labels)
    return fine and aligned and set(found.train_labels) <= set(range(10))


FORMATS: dict[str, Format] = {
    "csv": Format(_table("t.csv"), read_table, well_formed=_as_python_reads_it),
    "tsv": Format(_table("t.tsv"), read_table, well_formed=_as_python_reads_it),
    "csv.gz": Format(_table("t.csv.gz"), read_table, notices=True),
    "parquet": Format(_table("t.parquet"), read_table, well_formed=_a_table),
    "parquet, zstd": Format(_table("zstd.parquet"), read_table, well_formed=_a_table),
    "npy": Format(_table("t.npy"), read_table, well_formed=_a_table),
    "npz": Format(_table("t.npz"), read_table, notices=True),
    "npz, packed": Format(_table("packed.npz"), read_table, notices=True),
    "idx, images": Format(_mnist(False, 0), _read_mnist, well_formed=same_form),
    "idx, labels": Format(_mnist(False, 1), _read_mnist, well_formed=same_form),
    "idx.gz": Format(_mnist(True, 0), _read_mnist, notices=True),
    "cifar10 python": Format(
        _cifar10("python", PYTHON_NAMES[0]), _read_cifar10, well_formed=_labels_in_range
    ),
    "cifar10 binary": Format(
        _cifar10("binary", BINARY_NAMES[0]), _read_cifar10, well_formed=_labels_in_range
    ),
    "cifar10 python tar.gz": Format(
        _cifar10("python archive", PYTHON_ARCHIVE), _read_cifar10, notices=True
    ),
    "core50 zip": Format(_core50("zip", "core50_128x128.zip"), _read_core50, notices=True),
    "core50 png": Format(_core50("folder", FRAME_FILE), _read_core50, notices=True),
    "core50 jpeg": Format(_core50_jpeg, _read_core50, well_formed=same_form),
    "weights safetensors": Format(_weights("w.safetensors"), read_weights),
    "weights pth": Format(_weights("w.pth"), read_weights, notices=True),
    "weights pth, old": Format(_weights("old.pth"), read_weights),
    "corrector state": Format(
        _saved(_corrector, "correct"), _goes_on(rt.TargetCorrector, _corrected), notices=True
    ),
    "ridge state": Format(_saved(_ridge, "learn"), _predicted, notices=True),
    "tracker state": Format(
        _saved(_tracker, "update"), _goes_on(rt.ShiftTracker, _tracked), notices=True
    ),
    "cached array": Format(
        _make_cached,
        lambda path: _cached(lambda: _stream()[0])(path.parent),
        notices=True,
        made_again=True,
    ),
    "run result": Format(_run("result.parquet"), _read_run, notices=True, made_again=True),
    "run record": Format(_run("run.json"), _read_run, notices=True, made_again=True),
    "experiment toml": Format(_experiment, _read_experiment),
    "explore setting": Format(_setting, _read_setting),
}
