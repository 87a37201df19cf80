"""A disk that is full: one clear error, no part of a file under its name, the old file whole."""

import errno
import json

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.lab.data.cache import cached_array
from retarget.lab.data.fetch import DataSet, get
from retarget.lab.runs.store import Identity, RunStore
from retarget.storage import atomic_file
from support.made_mnist import made_file
from support.mirror import Answer

pytestmark = pytest.mark.faults

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(150, 20)), rng.normal(size=150)
OLD = b"the old file"


@pytest.fixture(scope="module")
def diagnosis():
    return rt.diagnose(rng.normal(size=(600, 2)), rng.normal(size=(600, 5)), lr=0.1, gamma=1.0)


def as_json(path):
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(X.tolist()))


def test_the_old_file_stays(small_disk, diagnosis):
    corrector = rt.TargetCorrector(rt.RBF(1.0), rt.SGD(0.1), gamma=1.0, block_size=10)
    corrector.correct(X, Y)
    path = small_disk / "file.out"
    path.write_bytes(OLD)
    for write in (corrector.save, as_json, diagnosis.to_html, diagnosis.to_parquet):
        with pytest.raises(OSError, match=r"No space left on device: .*file\.out'") as raised:
            write(path)
        assert raised.value.errno == errno.ENOSPC
        assert path.read_bytes() == OLD
        assert [found.name for found in small_disk.iterdir()] == ["file.out"]


def test_a_download_and_a_cached_array(small_disk, mirror):
    content = rng.bytes(200_000)
    mirror.answers["/one"] = Answer(content)
    data_set = DataSet("made", "made", (made_file("one", content, [f"{mirror.address}/one"]),))
    with pytest.raises(OSError, match="No space left on device: .*one'"):
        get(data_set, small_disk)
    assert mirror.asked == ["/one"]  # another mirror would not help
    assert not list(small_disk.iterdir())
    with pytest.raises(OSError, match="No space left on device: .*safetensors"):
        cached_array(small_disk, "a", ["made"], lambda: np.zeros((100, 100)))
    assert {path.suffix for path in small_disk.iterdir()} <= {".lock"}


@pytest.mark.parametrize("which", ["diagnose", "correct"])
def test_the_command_says_it_in_one_line(command, monkeypatch, small_disk, tmp_path, which):
    monkeypatch.chdir(tmp_path)
    wide = {f"f{k}": rng.normal(size=400) for k in range(2)} | {
        f"y{k}": rng.normal(size=400) for k in range(12)
    }
    pl.DataFrame(wide).write_parquet("t.parquet")
    old = ("report.html", "shift.parquet", "corrected.parquet")
    for name in old:
        (small_disk / name).write_bytes(OLD)
    targets = [part for k in range(12) for part in ("--target", f"y{k}")]
    code, shown = command(
        which, "t.parquet", *targets, "--lr", "0.1", "--gamma", "1",
        "--out", small_disk,
    )  # fmt: skip
    assert code == 1
    assert shown.startswith("Error: [Errno 28] No space left on device:")
    assert "Traceback" not in shown
    assert {path.name: path.read_bytes() for path in small_disk.iterdir()} == dict.fromkeys(
        old, OLD
    )


def test_an_export_of_runs(command, small_disk, tmp_path):
    numbers = pl.DataFrame({"value": rng.normal(size=15_000), "pair": [[1.0, 2.0]] * 15_000})
    identity = Identity("made.Run", {"seed": 3}, {}, "code", {})
    RunStore(tmp_path).keep(identity, numbers, experiment="made", name="seed 3", seconds=1.0)
    for suffix in ("csv", "parquet"):
        path = small_disk / f"all.{suffix}"
        path.write_bytes(OLD)
        code, shown = command("runs", "export", path, "--out", tmp_path)
        assert shown == f"Error: [Errno 28] No space left on device: '{path}'"
        assert code == 1
        assert {found.read_bytes() for found in small_disk.iterdir()} == {OLD}
