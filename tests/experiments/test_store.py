import json
import subprocess
import sys
from dataclasses import replace

import polars as pl
import pytest

import retarget as rt
from retarget.errors import DamagedFileWarning
from retarget.experiments.runs.store import Identity, RunStore

TABLE = pl.DataFrame({"a": [1.5, float("nan")], "b": [[1, 2], [3]]})
IDENTITY = Identity("module.Kind", {"seed": 3, "lr": 0.1}, {"file": "00"}, "11", {"torch": "2"})
ABOUT = {"family": "made", "experiment": "mine", "name": "seed 3", "seconds": 1.5}


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
    assert (record.status, record.rows, record.warnings, record.attempts) == ("done", 2, ["w"], 2)
    assert record.identity == {
        "kind": "module.Kind", "config": {"seed": 3, "lr": 0.1}, "data": {"file": "00"},
        "code": "11", "packages": {"torch": "2"},
    }  # fmt: skip
    assert [path.name for path in sorted((store.folder / key).iterdir())] == [
        "result.parquet",
        "run.json",
    ]


def test_other_identities_are_other_runs():
    keys = {
        replace(IDENTITY, **change).key
        for change in (
            {}, {"kind": "other"}, {"config": {"seed": 4, "lr": 0.1}}, {"data": {}}, {"code": ""},
            {"packages": {"torch": "3"}},
        )
    }  # fmt: skip
    assert len(keys) == 6
    assert replace(IDENTITY, config={"lr": 0.1, "seed": 3}).key == IDENTITY.key


def test_a_failure_is_no_result_and_gives_way_to_one(store):
    key = IDENTITY.key
    store.keep_failure(IDENTITY, "ValueError: x", trace="Traceback", **ABOUT)
    assert store.result(key) is None
    record = store.record(key)
    assert (record.status, record.reason, record.trace) == ("failed", "ValueError: x", "Traceback")
    store.keep(IDENTITY, TABLE, **ABOUT)
    assert store.record(key).reason is None
    assert store.result(key).equals(TABLE, null_equal=True)


def damage(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("name", ["result.parquet", "run.json"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "missing"])
def test_what_is_damaged_is_set_aside(store, name, how):
    store.keep(IDENTITY, TABLE, **ABOUT)
    folder = store.folder / IDENTITY.key
    damage(folder / name, how)
    if (name, how) == ("run.json", "missing"):  # as a run killed just before the end leaves it
        assert store.result(IDENTITY.key) is None
        return
    with pytest.warns(DamagedFileWarning, match=rf"run {IDENTITY.key} is damaged; .* set aside"):
        assert store.result(IDENTITY.key) is None
    assert not (folder / "run.json").exists()
    aside = {"run.json.damaged", "result.parquet.damaged"}
    if how == "missing":
        aside.remove(f"{name}.damaged")
    assert {path.name for path in folder.iterdir()} == aside
    store.keep(IDENTITY, TABLE, **ABOUT)
    assert store.result(IDENTITY.key).equals(TABLE, null_equal=True)


def test_a_record_of_another_run_does_not_count(store):
    store.keep(IDENTITY, TABLE, **ABOUT)
    other = store.folder / ("0" * 16)
    (store.folder / IDENTITY.key).rename(other)
    assert store.record(other.name) is None
    with pytest.warns(DamagedFileWarning):
        assert store.result(other.name) is None


def test_a_record_with_unknown_keys_is_not_ours(store):
    store.keep(IDENTITY, TABLE, **ABOUT)
    path = store.folder / IDENTITY.key / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"extra": 1}))
    assert store.record(IDENTITY.key) is None


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
    assert store.checkpoints(IDENTITY.key) == sorted([path, other])
    store.keep_failure(IDENTITY, "x", **ABOUT)
    assert path.exists()
    store.keep(IDENTITY, TABLE, **ABOUT)
    assert store.checkpoints(IDENTITY.key) == []


def test_a_key_by_its_beginning(store):
    store.keep(IDENTITY, TABLE, **ABOUT)
    second = replace(IDENTITY, code="22")
    store.keep(second, TABLE, **ABOUT)
    assert store.find(IDENTITY.key[:8]) == IDENTITY.key
    with pytest.raises(
        rt.errors.InvalidInputError, match="no run that begins with 'xyz' in .*runs; `ret"
    ):
        store.find("xyz")
    with pytest.raises(rt.errors.InvalidInputError, match="2 runs begin with ''"):
        store.find("")
