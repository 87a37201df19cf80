"""Which runs are computed, when and by whom, and what is written of them."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.image
import polars as pl
import pytest
from matplotlib import pyplot as plt
from rich.console import Console

import retarget as rt
from retarget.cli.reproduce import progress_table
from retarget.errors import DamagedFileWarning
from retarget.experiments.experiment import families
from retarget.experiments.figures import digits
from retarget.experiments.reader import parse_changes, parse_experiment
from retarget.experiments.runs.compute import Computed, Lost
from retarget.experiments.runs.executors import ThisProcess
from retarget.experiments.runs.run import Estimator, Schedule, run_experiment
from retarget.experiments.runs.store import Identity, RunStore, State
from support import made_runs
from support.made_runs import SMALL_DIGITS, calls, made


@pytest.fixture(autouse=True)
def known(monkeypatch):
    made_runs.install(monkeypatch)


def test_everything_is_written_and_found_again(tmp_path, monkeypatch):
    """The demonstration with digits, which shows the effect."""
    small, seen = parse_experiment("small", SMALL_DIGITS).changed(parse_changes([], [3])), []
    monkeypatch.setattr("sys.argv", ["/usr/bin/retarget", "x"])
    open_figures = plt.get_fignums()
    outcome = run_experiment(
        small, tmp_path, watch=lambda plan: seen.append((len(plan.done), len(plan.runs)))
    )
    assert (outcome.computed, outcome.reused, outcome.failed) == (2, 0, [])
    assert plt.get_fignums() == open_figures
    assert seen == [(0, 2), (1, 2), (2, 2)]
    names = ["small.parquet", "small.png", "small.pdf", "run.json"]
    assert outcome.files == [tmp_path / "small" / name for name in names]
    assert pl.read_parquet(outcome.files[0]).equals(outcome.table)
    assert matplotlib.image.imread(outcome.files[1]).std() > 0.01
    assert outcome.files[2].read_bytes().startswith(b"%PDF")
    record = json.loads(outcome.files[3].read_text())
    assert (record["command"], record["experiment"]["seeds"]) == ("retarget x", [3])
    keys = record["runs"].pop("keys")
    assert record["runs"] == {"all": 2, "computed": 2, "found finished": 0}
    assert sorted(keys) == sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert record["versions"]["retarget"] == rt.__version__

    final = {
        (row["learner"], row["lr"]): row["mean"]
        for row in digits.final_accuracies(outcome.table).iter_rows(named=True)
    }
    assert final["offline", 0.1] > 0.95
    assert final["corrected", 0.1] == final["corrected", 0.001] == final["offline", 0.1]
    assert final["iterative", 0.1] == pytest.approx(final["iterative", 0.001], abs=0.01)
    assert final["iterative", 0.1] > final["online", 0.001] + 0.1 > final["online", 0.1]
    assert digits.summarise(outcome.table)[0].row_count == 4


def test_what_is_done_is_not_done_again_and_a_change_redoes_what_it_touches(tmp_path):
    def run(*lines, **name):
        outcome = run_experiment(made(tmp_path, *lines, **name), tmp_path)
        return outcome.table, (outcome.computed, outcome.reused)

    first, counts = run("[grid]", "lr = [0.1, 0.2]")
    again, counts_again = run("[grid]", "lr = [0.1, 0.2]")
    assert (counts, counts_again) == ((6, 0), (0, 6))
    assert again.equals(first)
    assert calls(tmp_path) == {0: 2, 1: 2, 2: 2}
    key = next(iter(RunStore(tmp_path)))
    (tmp_path / "runs" / key / "result.parquet").write_bytes(b"PAR1")
    with pytest.warns(DamagedFileWarning, match=key):
        again, counts = run("[grid]", "lr = [0.1, 0.2]")
    assert counts == (1, 5)
    assert again.equals(first)
    assert run("[grid]", "lr = [0.2, 0.3]")[1] == (3, 3)
    assert run("lr = 0.1", name="other")[1] == (0, 3)  # another experiment's runs are found too


def test_failed_runs_are_tried_again(tmp_path, monkeypatch):
    experiment = made(tmp_path, 'behaviour = "raises"')
    assert len(run_experiment(experiment, tmp_path).failed) == 1
    monkeypatch.setattr(made_runs, "misbehave", lambda config: None)
    again = run_experiment(experiment, tmp_path)
    assert (again.computed, again.reused, again.failed) == (1, 2, [])
    assert calls(tmp_path) == {0: 1, 1: 2, 2: 1}


def noting(note):
    """Computes here, and notes something about each task just before."""
    executor = ThisProcess()
    start = executor.start
    executor.start = lambda task: (note(task), start(task))
    return executor


def test_fresh_means_all_again_and_from_the_beginning(tmp_path):
    experiment, store, seen = made(tmp_path), RunStore(tmp_path), []
    run_experiment(experiment, tmp_path)
    store.checkpoint(next(iter(store))).touch()
    executor = noting(lambda task: seen.append(store.checkpoint(task.keys[0]).exists()))
    Schedule(experiment, store, fresh=True).carry_out(executor)
    assert calls(tmp_path) == {0: 2, 1: 2, 2: 2}
    assert seen == [False] * 3  # the checkpoint of an earlier time is gone


def test_runs_together_are_one_task(tmp_path, monkeypatch):
    experiment, groups = made(tmp_path, "[grid]", "lr = [0.1, 0.2]"), []
    at_once = replace(made_runs.FAMILY, together=lambda config: str(config.lr))
    monkeypatch.setitem(families(), "made", at_once)
    executor = noting(lambda task: groups.append([config.seed for config in task.configs]))
    Schedule(experiment, RunStore(tmp_path)).carry_out(executor)
    assert groups == [[0, 1, 2], [0, 1, 2]]
    assert run_experiment(experiment, tmp_path).reused == 6
    run_experiment(experiment, tmp_path, executor=Losing(0), fresh=True)
    # a task of three took 6 seconds
    assert {record.seconds for record in RunStore(tmp_path).records()} == {2.0}


class Losing:
    """Loses every task at first; keeps what it was given."""

    capacity = 1

    def __init__(self, times):
        self.times, self.started, self.closed = times, [], 0

    def start(self, task):
        self.started.append(task)

    def ended(self, seconds):
        task = self.started[-1]
        if self.started.count(task) <= self.times:
            return [(task, Lost("gone"))]
        tables = [pl.DataFrame({"step": [0], "value": [1.0]}) for _ in task.configs]
        return [(task, Computed(tables, 6.0, []))]

    def close(self):
        self.closed += 1


def test_what_is_lost_is_tried_three_times(tmp_path):
    executor = Losing(2)
    assert run_experiment(made(tmp_path), tmp_path, executor=executor).computed == 3
    assert len(executor.started) == 9
    executor = Losing(3)
    outcome = run_experiment(made(tmp_path), tmp_path, executor=executor, fresh=True)
    assert [record.reason for _, record in outcome.failed] == ["gone, 3 times"] * 3
    assert (len(executor.started), executor.closed) == (9, 0)


def test_a_run_is_locked_while_it_is_computed_and_no_longer(tmp_path, monkeypatch):
    """Also if an error of ours stops everything."""
    taken, lock, held = [], RunStore.lock, []
    monkeypatch.setattr(RunStore, "lock", lambda *a: taken.append(lock(*a)) or taken[-1])
    Schedule(made(tmp_path), RunStore(tmp_path)).carry_out(
        ThisProcess(), lambda progress: held.append([each.is_locked for each in taken])
    )
    assert held == [[True], [False, True], [False, False, True], [False] * 3]
    executor = Losing(0)
    executor.ended = lambda seconds: [][1]
    with pytest.raises(IndexError):
        Schedule(made(tmp_path), RunStore(tmp_path), fresh=True).carry_out(executor)
    assert executor.closed == 1
    assert (len(taken), any(each.is_locked for each in taken)) == (4, False)


@pytest.mark.parametrize("finishes", [True, False])
def test_a_run_of_another_process_is_waited_for(tmp_path, finishes):
    """And computed, if that has given it up."""
    experiment, seen = made(tmp_path), []
    store, other = RunStore(tmp_path), RunStore(tmp_path / "other")
    schedule = Schedule(experiment, store)
    key = schedule.keys[1]
    lock = store.lock(key)
    assert store.state(key) == State.RUNNING

    def watch(progress):
        seen.append(set(progress.elsewhere))
        if len(progress.done) == 2 and lock.is_locked:  # the others are done: now it ends
            if finishes:
                run_experiment(experiment, tmp_path / "other")
                for name in ("result.parquet", "run.json"):
                    (other.folder / key / name).rename(store.folder / key / name)
            lock.release()

    schedule.carry_out(ThisProcess(), watch)
    assert {key} in seen
    assert schedule.elsewhere == set()
    assert len(schedule.done) == 3
    assert schedule.found == ({key} if finishes else set())
    assert calls(tmp_path) == ({0: 2, 1: 1, 2: 2} if finishes else {0: 1, 1: 1, 2: 1})


def test_estimates_come_from_the_runs_most_alike(tmp_path):
    run_experiment(made(tmp_path, "[grid]", "lr = [0.1, 0.2]"), tmp_path)
    records = [
        record.model_copy(update={"seconds": 10.0 * config["lr"] + config["seed"]})
        for record in RunStore(tmp_path).records()
        for config in [record.identity.config]
    ]
    estimator, kind = Estimator(records), records[0].identity.kind

    def seconds(kind, **config):
        about = {"folder": str(tmp_path), "behaviour": "good"}
        return estimator.seconds(Identity(kind, config | about, {}, "", {}))

    assert seconds(kind, seed=0, lr=0.1) == 2.0  # whatever the seed
    assert seconds(kind, seed=9, lr=0.2) == 3.0
    assert seconds(kind, seed=9, lr=0.7) == 2.5
    assert seconds("other", seed=9, lr=0.1) is None
    failed = records[0].model_copy(update={"status": "failed", "seconds": 99.0})
    estimator.learn(failed)
    assert seconds(kind, seed=9, lr=0.1) == 2.0
    for _ in range(4):  # what was worked out before is no longer so
        estimator.learn(failed.model_copy(update={"status": "done"}))
    assert seconds(kind, seed=9, lr=failed.identity.config["lr"]) == 99.0


def test_the_table_of_the_progress(tmp_path, monkeypatch):
    def shown():
        console = Console(width=100, file=io.StringIO())
        console.print(progress_table(schedule))
        return console.file.getvalue()

    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    many = made(tmp_path).changed(parse_changes([], range(20)))
    schedule = Schedule(many, RunStore(tmp_path))
    schedule.capacity, keys = 10, schedule.keys
    assert "0 0 0 20 unknown" in " ".join(shown().split())
    one = schedule.identities[keys[0]]
    schedule.estimator.learn(SimpleNamespace(status="done", identity=one, seconds=30.0))
    schedule.done, schedule.failed = dict.fromkeys(keys[:2]), {keys[2]: None}
    schedule.running = dict.fromkeys(keys[3:13], 90.0)
    schedule.elsewhere = {keys[13]}
    bar, *lines = shown().splitlines()
    assert set(bar.strip()) <= set("━╸╺")
    text = " ".join(" ".join(lines).split())
    assert "done running elsewhere failed left time left 2 10 1 1 6 41 s" in text
    assert "seed 3: 10 s of about 30 s" in text
    assert "and 2 more" in text
