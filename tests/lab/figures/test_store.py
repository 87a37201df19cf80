"""What makes a run the same run, and how its result is kept and found again."""

import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import retarget as rt
from retarget.errors import DamagedFileWarning, MissingDataError
from retarget.lab.experiment import families, reads_nothing
from retarget.lab.figures.core50 import Core50Run
from retarget.lab.figures.pretrained import STAND_IN_BACKBONE
from retarget.lab.reader import load_experiment
from retarget.lab.runs import store as store_module
from retarget.lab.runs.store import (
    COMPUTING,
    PACKAGE,
    Identity,
    RunStore,
    current_code,
    identities_of,
    source_hash,
)
from support.made_runs import identity_of

FAMILIES = families()
EXAMPLES = {
    "cifar curves": "fig3a", "core50 curves": "fig3b", "digits": "digits", "mnist curves": "fig2",
    "mnist sweeps": "fig5", "toy curves": "fig4", "toy shift": "fig1",
}  # fmt: skip


def example(family):
    fitting = {"backbone": "support.core50_backbone:made", "frames_per_session": 1}
    return load_experiment(EXAMPLES[family]).where_it_fits(**fitting).runs()[0]


def key(config, family):
    return identity_of(config, FAMILIES[family]).key


@pytest.mark.parametrize("family", EXAMPLES)
def test_every_parameter_counts(family):
    """What determines the key is below; here, that each parameter is part of it."""
    config = example(family)
    found = identity_of(config, replace(FAMILIES[family], data=reads_nothing))
    assert found.config == config.model_dump(mode="json")
    assert set(found.config) == set(FAMILIES[family].config.model_fields)
    assert found.kind.endswith(type(config).__qualname__)


TEXTS = st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(), max_size=3)


@given(one=st.tuples(st.text(), TEXTS, TEXTS, st.text(), TEXTS), two=st.integers(0, 4))
def test_the_key_is_of_all_parts(one, two):
    first = Identity(*one)
    assert Identity(*one).key == first.key
    backwards = [dict(reversed(p.items())) if isinstance(p, dict) else p for p in one]
    assert Identity(*backwards).key == first.key
    changed = list(one)
    changed[two] = changed[two] | {"more": "1"} if isinstance(one[two], dict) else one[two] + "x"
    if changed[two] != one[two]:
        assert Identity(*changed).key != first.key


# Data


def test_files_count_by_content(made_data, tmp_path, monkeypatch):
    """Which files, and that each counts: see tests/lab/data/test_cache.py."""
    counts = {"mnist curves": 4, "mnist sweeps": 4, "cifar curves": 6}
    first = {family: identity_of(example(family), FAMILIES[family]) for family in counts}
    assert {family: len(found.data) for family, found in first.items()} == counts
    copied = shutil.copytree(made_data, tmp_path / "data")
    monkeypatch.setenv("RETARGET_DATA", str(copied))
    for family, found in first.items():
        assert identity_of(example(family), FAMILIES[family]) == found
        path = copied / next(iter(found.data)).partition("/")[2]
        content = path.read_bytes()
        path.write_bytes(content[::-1])
        assert key(example(family), family) != found.key
        path.write_bytes(content)
    path.unlink()
    with pytest.raises(MissingDataError, match=f"{path.name} not found in"):
        identity_of(example(family), FAMILIES[family])


def core50_run(**changes):
    known = {"seed": 0, "data": "core50", "frames_per_session": 1, "method": "vanilla", "lr": 0.1}
    return Core50Run(**known | {"backbone": "support.core50_backbone:made"} | changes)


def test_a_backbone_counts_by_content_and_name(made_data, tmp_path, monkeypatch):
    family, data = FAMILIES["core50 curves"], shutil.copytree(made_data, tmp_path / "data")
    save_file({"x": torch.ones(2)}, data / STAND_IN_BACKBONE)
    monkeypatch.setenv("RETARGET_DATA", str(data))
    paths = [tmp_path / folder / "w.safetensors" for folder in ("one", "two")]
    for path in paths:
        path.parent.mkdir()
        shutil.copy(data / STAND_IN_BACKBONE, path)
    one, two = (identity_of(core50_run(backbone=str(path)), family) for path in paths)
    assert one == two
    assert one.config["backbone"] == "w.safetensors"
    assert str(tmp_path) not in str(one)
    save_file({"x": torch.zeros(2)}, paths[1])
    assert identity_of(core50_run(backbone=str(paths[1])), family).data != one.data
    own = identity_of(core50_run(data="standin", backbone=None), family)
    assert own.data["backbone"] == one.data["backbone"]
    assert set(own.data) == set(one.data) == {"backbone", "core50/core50_128x128.zip"}
    assert own.data != one.data
    paths[1].unlink()
    with pytest.raises(MissingDataError, match="there is no file"):
        identity_of(core50_run(backbone=str(paths[1])), family)
    with pytest.raises(MissingDataError, match="resnet18-f37072fd.pth not found"):
        identity_of(core50_run(backbone=None), family)


# Code and packages


@pytest.fixture
def code_changes():
    """The code of a process counts as it was at first; here it is looked at again."""
    current_code.cache_clear()
    yield current_code.cache_clear
    current_code.cache_clear()


def test_the_versions_of_what_computes_count(monkeypatch, code_changes):
    config = example("digits")
    first = identity_of(config, FAMILIES["digits"])
    assert set(first.packages) == {"retarget", *COMPUTING}
    assert first.packages["retarget"] == rt.__version__
    assert first.packages["numpy"] == np.__version__
    # a build for CUDA says so in the module only
    assert first.packages["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    for package in COMPUTING:
        for other in (first.packages[package] + "1", None):  # None: it is not installed
            changed = dict(first.packages) | {package: other}
            monkeypatch.setattr(store_module, "_version", changed.get)
            code_changes()
            known = {name: version for name, version in changed.items() if version}
            assert identity_of(config, FAMILIES["digits"]).packages == known
    monkeypatch.undo()
    monkeypatch.setattr(rt, "__version__", "0.1.0.dev1")
    monkeypatch.setattr(store_module, "source_hash", lambda: "other")
    code_changes()
    found = identity_of(config, FAMILIES["digits"])
    assert (found.code, found.packages["retarget"]) == ("other", "0.1.0.dev1")
    monkeypatch.setattr(store_module, "source_hash", lambda: "another")
    assert identity_of(config, FAMILIES["digits"]) == found  # once in a process


def test_the_source_counts_byte_by_byte(tmp_path):
    copied = tmp_path / "elsewhere"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__", "static"))
    own = source_hash()
    assert source_hash(copied) == own
    (copied / "theory" / "__pycache__").mkdir()
    (copied / "theory" / "__pycache__" / "shift.cpython-311.pyc").write_bytes(b"compiled")
    assert source_hash(copied) == own
    files = sorted(copied.rglob("*.py"), key=lambda path: path.stat().st_size)
    for path in [*files[::20], files[-1]]:  # from the smallest to the largest
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b" ")
        changed = source_hash(copied)
        path.write_bytes(content)
        assert changed != own, path
    (copied / "engine" / "losses.py").rename(copied / "engine" / "moved.py")
    moved = source_hash(copied)
    (copied / "engine" / "moved.py").unlink()
    assert len({own, moved, source_hash(copied)}) == 3


def test_what_runs_read_is_looked_at_once():
    """A plan may have 100,000 runs, and each look takes milliseconds."""
    looked = []

    def data(data, frames_per_session):
        looked.append((data, frames_per_session))
        return {data: str(frames_per_session)}

    family = replace(FAMILIES["core50 curves"], data=data)
    configs = [core50_run(seed=seed, frames_per_session=n) for seed in range(3) for n in (1, 2)]
    found = identities_of(configs, family)
    assert looked == [("core50", 1), ("core50", 2)]
    assert [one.data["core50"] for one in found] == ["1", "2"] * 3
    assert found == [identity_of(config, family) for config in configs]


# The store

TABLE = pl.DataFrame({"a": [1.5, float("nan")], "b": [[1, 2], [3]]})
IDENTITY = Identity("module.Kind", {"seed": 3, "lr": 0.1}, {"file": "00"}, "11", {"torch": "2"})
ABOUT = {"experiment": "mine", "name": "seed 3", "seconds": 1.5}


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "results")


def test_a_failure_gives_way_to_a_result(store):
    key = IDENTITY.key
    checkpoint = store.checkpoint(key)
    assert (store.result(key), store.record(key), list(store)) == (None, None, [])
    store.keep_failure(IDENTITY, "ValueError: x", trace="Traceback", **ABOUT)
    assert store.result(key) is None
    record = store.record(key)
    assert (record.status, record.reason, record.trace) == ("failed", "ValueError: x", "Traceback")
    for path in (checkpoint, checkpoint.with_stem("checkpoint-0123")):
        path.touch()
    store.keep_failure(IDENTITY, "ValueError: x", **ABOUT)
    assert checkpoint.exists()
    record = store.keep(IDENTITY, TABLE, warnings=["w"], **ABOUT)
    assert store.result(key).equals(TABLE, null_equal=True)
    assert RunStore(store.folder.parent).record(key) == record
    assert list(store) == [key]
    assert (record.status, record.reason, record.warnings) == ("done", None, ["w"])
    assert record.identity == IDENTITY
    names = [path.name for path in sorted((store.folder / key).iterdir())]
    assert names == ["result.parquet", "run.json"]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("result.parquet", lambda content: content[:-9]),
        ("result.parquet", None),  # missing
        ("run.json", lambda content: b""),
        ("run.json", lambda content: content.replace(b'"key": "', b'"key": "0')),
        ("run.json", lambda content: content.replace(b'"key"', b'"extra": 1, "key"')),
        ("run.json", lambda content: content.replace(b'"code"', b'"cope"')),
        ("run.json", lambda content: content.replace(b'"seed": 3', b'"seed": 4')),
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
        "from retarget.lab.runs.store import RunStore\n"
        "print(RunStore(Path(sys.argv[1])).lock(sys.argv[2]) is None)"
    )
    command = [sys.executable, "-c", code, str(store.folder.parent), key]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    lock.release()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
    assert store.remove(key)
    assert list(store) == []
