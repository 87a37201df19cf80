"""`retarget runs`: what is in a folder of results."""

import polars as pl
import pytest

from retarget.experiments.runs.run import run_experiment
from retarget.experiments.runs.store import RunStore
from support import made_runs
from support.made_runs import made


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Two runs done, one failed, by "mine"; three done by "other"; one begun."""
    made_runs.install(monkeypatch)
    out = tmp_path / "results"
    run_experiment(made(tmp_path, 'behaviour = "raises"'), out)
    run_experiment(made(tmp_path, "lr = 0.7", name="other"), out)
    begun = RunStore(out).checkpoint("f" * 16)
    begun.parent.mkdir()
    begun.touch()
    return out


def keys(out, status, experiment="mine"):
    return [
        record.key
        for record in RunStore(out).records()
        if (record.status, record.experiment) == (status, experiment)
    ]


def test_a_list_of_all(command, results):
    code, shown = command("runs", "list", "--out", results)
    assert code == 0
    for key in RunStore(results):
        assert key in shown
    assert "7 runs in" in shown
    assert ": 5 done, 1 interrupted, 1 failed" in shown
    code, shown = command("runs", "list", "--out", results, "--experiment", "mine")
    assert ": 2 done, 1 failed" in shown


def test_outdated_and_damaged_runs(command, monkeypatch, results):
    damaged = RunStore(results).folder / keys(results, "done")[0] / "result.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    _, shown = command("runs", "list", "--out", results)
    assert ": 4 done, 1 interrupted, 1 failed, 1 damaged" in shown
    assert damaged.exists()  # to look at it changes nothing
    monkeypatch.setattr("retarget.experiments.runs.store.current_code", lambda: ("other code", {}))
    _, shown = command("runs", "list", "--out", results)
    assert ": 1 interrupted, 1 failed, 4 outdated, 1 damaged" in shown


def test_a_folder_that_may_only_be_looked_at(command, monkeypatch, results):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RunStore, "lock", refuse)
    code, shown = command("runs", "list", "--out", results)
    assert code == 0
    assert ": 5 done, 1 interrupted, 1 failed" in shown


def test_all_about_a_run(command, results, tmp_path):
    (failed,) = keys(results, "failed")
    code, shown = command("runs", "show", failed[:10], "--out", results)
    assert code == 0
    for text in (f"{failed}: failed", "mine: seed 1", "behaviour: raises", "lr: 0.1", "Traceback"):
        assert text in shown
    assert "reason: ValueError: no [red]luck[/red] at all" in shown
    done = keys(results, "done", "other")[0]
    _, shown = command("runs", "show", done, "--out", results)
    assert "shape: (4, 2)" in shown
    assert "attempts: 1" in shown
    _, shown = command("runs", "show", "ffff", "--out", results)
    assert shown == f"{'f' * 16}: interrupted"


def test_cleaning(command, monkeypatch, results):
    arguments = ("runs", "clean", "--out", results)
    (failed,) = keys(results, "failed")
    _, shown = command(*arguments, "--dry-run")
    assert shown == f"{failed} failed, mine: seed 1 1 runs would be deleted."
    monkeypatch.setattr("typer.confirm", lambda text, abort: abort_if(text, "these 1 runs"))
    assert command(*arguments)[0] == 1
    assert len(list(RunStore(results))) == 7
    _, shown = command(*arguments, "--yes")
    assert "1 runs deleted." in shown
    assert len(list(RunStore(results))) == 6
    _, shown = command(*arguments, "--yes")
    assert shown == "There is nothing to clean."
    _, shown = command(*arguments, "--interrupted", "--yes")
    assert "1 runs deleted." in shown
    lock = RunStore(results).lock(keys(results, "done")[0])
    _, shown = command(*arguments, "--all", "--experiment", "mine", "--yes")
    assert "1 runs deleted." in shown
    assert "is being computed by another process, and was kept." in shown
    lock.release()
    command(*arguments, "--all", "-y")
    assert list(RunStore(results)) == []


def abort_if(text, expected):
    import typer

    assert expected in text
    raise typer.Abort


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_export(command, results, tmp_path, suffix):
    path = tmp_path / f"all{suffix}"
    code, shown = command("runs", "export", path, "--out", results)
    assert code == 0
    assert shown == f"20 rows of 5 runs in {path}"
    table = pl.read_parquet(path) if suffix == ".parquet" else pl.read_csv(path)
    assert table.columns == [
        "run", "experiment", "seed", "folder", "behaviour", "lr", "step", "value",
    ]  # fmt: skip
    store = RunStore(results)
    for key in keys(results, "done"):
        part = table.filter(run=key)
        assert part["value"].to_list() == pytest.approx(store.result(key)["value"].to_list())
        assert part["seed"].unique().to_list() == [store.record(key).identity["config"]["seed"]]
    code, shown = command("runs", "export", path, "--out", results, "--experiment", "other")
    assert "12 rows of 3 runs" in shown


def test_wrong_use(command, results, tmp_path):
    def fails(*arguments):
        code, shown = command("runs", *arguments)
        assert code == 2
        return shown

    assert "there are no runs in" in fails("list", "--out", tmp_path)
    assert "no run that begins with 'xyz'" in fails("show", "xyz", "--out", results)
    assert "7 runs begin with ''" in fails("show", "", "--out", results)
    assert "no run here belongs to experiment 'his'; known: mine, other" in fails(
        "list", "--out", results, "--experiment", "his"
    )
    assert "expected .parquet or .csv" in fails("export", tmp_path / "a.xls", "--out", results)
    command("runs", "clean", "--all", "-y", "--out", results)
    assert "there is nothing to export" in fails("export", tmp_path / "a.csv", "--out", results)
