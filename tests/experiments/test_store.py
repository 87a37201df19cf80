import subprocess
import sys

import polars as pl
import pytest

from retarget.errors import DamagedFileWarning
from retarget.experiments.runs.store import Identity, RunStore

TABLE = pl.DataFrame({"a": [1.5, float("nan")], "b": [[1, 2], [3]]})
IDENTITY = Identity("module.Kind", {"seed": 3, "lr": 0.1}, {"file": "00"}, "11", {"torch": "2"})
ABOUT = {"experiment": "mine", "name": "seed 3", "seconds": 1.5}


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "results")


def test_a_result_is_found_again(store):
    key = IDENTITY.key
    assert store.result(key) is None
    assert store.record(key) is None
    assert list(store) == []
    record = store.keep(IDENTITY, TABLE, warnings=["w"], attempts=2, **ABOUT)
    assert store.result(key).equals(TABLE, null_equal=True)
    assert RunStore(store.folder.parent).record(key) == record
    assert list(store) == [key]
    assert (record.status, record.warnings, record.attempts) == ("done", ["w"], 2)
    assert record.identity == {
        "kind": "module.Kind", "config": {"seed": 3, "lr": 0.1}, "data": {"file": "00"},
        "code": "11", "packages": {"torch": "2"},
    }  # fmt: skip
    assert [path.name for path in sorted((store.folder / key).iterdir())] == [
        "result.parquet",
        "run.json",
    ]


def test_a_failure_is_no_result_and_gives_way_to_one(store):
    key = IDENTITY.key
    store.keep_failure(IDENTITY, "ValueError: x", trace="Traceback", **ABOUT)
    assert store.result(key) is None
    record = store.record(key)
    assert (record.status, record.reason, record.trace) == ("failed", "ValueError: x", "Traceback")
    store.keep(IDENTITY, TABLE, **ABOUT)
    assert store.record(key).reason is None
    assert store.result(key).equals(TABLE, null_equal=True)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("result.parquet", lambda content: content[:-9]),
        ("result.parquet", None),  # missing
        ("run.json", lambda content: b""),
        ("run.json", lambda content: content.replace(b'"key": "', b'"key": "0')),
        ("run.json", lambda content: content.replace(b'"key"', b'"extra": 1, "key"')),
    ],
)
def test_what_is_damaged_is_set_aside(store, name, damage):
    store.keep(IDENTITY, TABLE, **ABOUT)
    folder = store.folder / IDENTITY.key
    path = folder / name
    if damage:
        path.write_bytes(damage(path.read_bytes()))
    else:
        path.unlink()
    with pytest.warns(DamagedFileWarning, match=rf"run {IDENTITY.key} is damaged; .* set aside"):
        assert store.result(IDENTITY.key) is None
    left = {"run.json.damaged"} | ({"result.parquet.damaged"} if damage else set())
    assert {found.name for found in folder.iterdir()} == left
    store.keep(IDENTITY, TABLE, **ABOUT)
    assert store.result(IDENTITY.key).equals(TABLE, null_equal=True)
    (folder / "run.json").unlink()  # as a run killed just before the end leaves it
    assert store.result(IDENTITY.key) is None


@pytest.mark.slow
def test_one_process_at_a_time_has_the_lock(store):
    key = IDENTITY.key
    lock = store.lock(key)
    assert store.lock(key) is None
    assert not store.remove(key)
    code = (
        "import sys; from pathlib import Path\n"
        "from retarget.experiments.runs.store import RunStore\n"
        "print(RunStore(Path(sys.argv[1])).lock(sys.argv[2]) is None)"
    )
    command = [sys.executable, "-c", code, str(store.folder.parent), key]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    lock.release()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
    assert store.remove(key)
    assert list(store) == []


def test_checkpoints_go_when_there_is_a_result(store):
    path = store.checkpoint(IDENTITY.key)
    path.parent.mkdir(parents=True)
    other = path.with_stem("checkpoint-0123")
    path.touch()
    other.touch()
    store.keep_failure(IDENTITY, "x", **ABOUT)
    assert path.exists()
    store.keep(IDENTITY, TABLE, **ABOUT)
    assert not list(path.parent.glob("checkpoint*"))
