"""`retarget runs`: what is in a folder of results."""

import polars as pl
import pytest
import typer

from retarget.lab.runs.run import run_experiment
from retarget.lab.runs.store import RunStore
from support import made_runs
from support.made_runs import made, records


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Two runs done, one failed, by "mine"; three done by "other"; one begun."""
    made_runs.install(monkeypatch)
    out = tmp_path / "results"
    run_experiment(made(tmp_path, 'behavior = "raises"'), out)
    run_experiment(made(tmp_path, "lr = 0.7", name="other"), out)
    begun = RunStore(out).checkpoint("f" * 16)
    begun.parent.mkdir()
    begun.touch()
    return out


def keys(out, status, experiment="mine"):
    return [
        record.key
        for record in records(out)
        if (record.status, record.experiment) == (status, experiment)
    ]


def test_a_list_of_all(command, monkeypatch, results):
    code, shown = command("runs", "list", "--out", results)
    assert code == 0
    for key in RunStore(results):
        assert key in shown
    assert "7 runs in" in shown
    assert ": 5 done, 1 interrupted, 1 failed" in shown
    code, shown = command("runs", "list", "--out", results, "--experiment", "mine")
    assert ": 2 done, 1 failed" in shown
    damaged = RunStore(results).folder / keys(results, "done")[0] / "result.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    _, shown = command("runs", "list", "--out", results)
    assert ": 4 done, 1 interrupted, 1 failed, 1 damaged" in shown
    assert damaged.exists()  # to look at it changes nothing
    monkeypatch.setattr("retarget.lab.runs.store.current_code", lambda: ("other code", {}))
    _, shown = command("runs", "list", "--out", results)
    assert ": 1 interrupted, 1 failed, 4 outdated, 1 damaged" in shown

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RunStore, "lock", refuse)  # a folder that may only be looked at
    assert command("runs", "list", "--out", results) == (0, shown)


def test_all_about_a_run(command, results):
    (failed,) = keys(results, "failed")
    code, shown = command("runs", "show", failed[:10], "--out", results)
    assert code == 0
    for text in (f"{failed}: failed", "mine: seed 1", "behavior: raises", "lr: 0.1", "Traceback"):
        assert text in shown
    assert "reason: ValueError: no [red]luck[/red] at all" in shown
    done = keys(results, "done", "other")[0]
    _, shown = command("runs", "show", done, "--out", results)
    assert "shape: (4, 2)" in shown
    _, shown = command("runs", "show", "ffff", "--out", results)
    assert shown == f"{'f' * 16}: interrupted"


def test_cleaning(command, monkeypatch, results):
    def refuse(text, abort):
        assert "these 1 runs" in text
        raise typer.Abort

    arguments = ("runs", "clean", "--out", results)
    (failed,) = keys(results, "failed")
    _, shown = command(*arguments, "--dry-run")
    assert shown == f"{failed} failed, mine: seed 1 1 runs would be deleted."
    monkeypatch.setattr(typer, "confirm", refuse)
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


def test_export(command, results, tmp_path):
    store = RunStore(results)
    for path, read in (
        (tmp_path / "all.parquet", pl.read_parquet),
        (tmp_path / "all.csv", pl.read_csv),
    ):
        code, shown = command("runs", "export", path, "--out", results)
        assert (code, shown) == (0, f"20 rows of 5 runs in {path}")
        table = read(path)
        assert table.columns == [
            *("run", "experiment", "seed", "folder", "behavior", "lr", "step", "value")
        ]
        for key in keys(results, "done"):
            part, result = table.filter(run=key), store.result(key)
            assert part["value"].to_list() == pytest.approx(result["value"].to_list())
            assert part["seed"].unique().to_list() == [store.record(key).identity.config["seed"]]
    code, shown = command("runs", "export", path, "--out", results, "--experiment", "other")
    assert "12 rows of 3 runs" in shown


def test_wrong_use(command, results, tmp_path):
    for arguments, code, message in (
        (("list", "--out", tmp_path), 2, "there are no runs in"),
        (("show", "xyz"), 2, "no run that begins with 'xyz'"),
        (("show", ""), 2, "7 runs begin with ''"),
        (("list", "--experiment", "his"), 2, "to experiment 'his'; known: mine, other"),
        (("export", tmp_path / "a.xls"), 2, "expected .parquet or .csv"),
        (("clean", "--all", "-y"), 0, "7 runs deleted"),
        (("export", tmp_path / "a.csv"), 2, "there is nothing to export"),
    ):
        place = () if "--out" in arguments else ("--out", results)
        found, shown = command("runs", *arguments, *place)
        assert found == code
        assert message in shown
