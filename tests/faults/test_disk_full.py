"""A disk that is full: one clear error, no part of a file under its name, the old file whole."""

import errno
import json

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.data.cache import cached_array
from retarget.data.fetch import DataSet, get
from retarget.experiments.experiment import Family, families, one_by_one
from retarget.experiments.runs.run import run_experiment
from retarget.storage import atomic_file
from support import made_runs
from support.made_mnist import made_file
from support.mirror import Answer

pytestmark = pytest.mark.faults

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(150, 20)), rng.normal(size=150)
OLD = b"the old file"


@pytest.fixture(scope="module")
def diagnosis():
    return rt.diagnose(rng.normal(size=(600, 2)), rng.normal(size=(600, 5)), lr=0.1, gamma=1.0)


def saved(path):
    corrector = rt.TargetCorrector(rt.RBF(1.0), rt.SGD(0.1), gamma=1.0, block_size=10)
    corrector.correct(X, Y)
    corrector.save(path)


def as_json(path):
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(X.tolist()))


WRITERS = {
    "a corrector": lambda path, diagnosis: saved(path),
    "JSON": lambda path, diagnosis: as_json(path),
    "a report": lambda path, diagnosis: diagnosis.to_html(path),
    "a table": lambda path, diagnosis: diagnosis.to_parquet(path),
}


@pytest.mark.parametrize("what", WRITERS)
def test_the_old_file_stays_and_the_error_names_it(small_disk, diagnosis, what):
    path = small_disk / "file.out"
    path.write_bytes(OLD)
    with pytest.raises(OSError, match=r"No space left on device: .*file\.out'") as raised:
        WRITERS[what](path, diagnosis)
    assert raised.value.errno == errno.ENOSPC
    assert path.read_bytes() == OLD
    assert [found.name for found in small_disk.iterdir()] == ["file.out"]


def test_a_cached_array(small_disk):
    with pytest.raises(OSError, match="No space left on device: .*safetensors"):
        cached_array(small_disk, "a", ["made"], lambda: np.zeros((100, 100)))
    assert {path.suffix for path in small_disk.iterdir()} <= {".lock"}


def test_a_download(small_disk, mirror):
    content = rng.bytes(200_000)
    mirror.answers["/one"] = Answer(content)
    data_set = DataSet("made", "made", (made_file("one", content, [f"{mirror.address}/one"]),))
    with pytest.raises(OSError, match="No space left on device: .*one'"):
        get(data_set, small_disk)
    assert mirror.asked == ["/one"]  # another mirror would not help
    assert not list(small_disk.iterdir())


@pytest.mark.parametrize("which", ["diagnose", "correct"])
def test_the_command_says_it_in_one_line(command, monkeypatch, small_disk, tmp_path, which):
    monkeypatch.chdir(tmp_path)
    wide = {f"f{k}": rng.normal(size=400) for k in range(2)} | {
        f"y{k}": rng.normal(size=400) for k in range(12)
    }
    pl.DataFrame(wide).write_parquet("t.parquet")
    old = {
        name: small_disk / name for name in ("report.html", "shift.parquet", "corrected.parquet")
    }
    for path in old.values():
        path.write_bytes(OLD)
    targets = [part for k in range(12) for part in ("--target", f"y{k}")]
    code, shown = command(
        which, "t.parquet", *targets, "--lr", "0.1", "--gamma", "1",
        "--out", small_disk,
    )  # fmt: skip
    assert code == 1
    assert shown.startswith("Error: [Errno 28] No space left on device:")
    assert "Traceback" not in shown
    assert {path.read_bytes() for path in old.values()} == {OLD}
    assert {path.name for path in small_disk.iterdir()} == set(old)


def many_rows(config):
    numbers = np.random.default_rng(config.seed).normal(size=5_000)
    return pl.DataFrame({"value": numbers, "pair": [[1.0, 2.0]] * len(numbers)})


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    family = Family(made_runs.MadeRun, one_by_one(many_rows), made_runs.draw, lambda table: [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(families(), "made", family)
        run_experiment(made_runs.made(folder), folder)
    return folder


@pytest.mark.parametrize("old", [None, OLD])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_export_of_runs(command, small_disk, results, suffix, old):
    path = small_disk / f"all.{suffix}"
    if old is not None:
        path.write_bytes(old)
    code, shown = command("runs", "export", path, "--out", results)
    assert shown == f"Error: [Errno 28] No space left on device: '{path}'"
    assert code == 1
    assert [found.read_bytes() for found in small_disk.iterdir()] == ([] if old is None else [old])
