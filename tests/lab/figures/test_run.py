"""Which runs are computed, when and by whom, and what is written of them."""

import json
import threading
from dataclasses import replace

import matplotlib.image
import polars as pl
import pytest
from matplotlib import pyplot as plt
from PIL import Image

import retarget as rt
from retarget.errors import DamagedFileWarning
from retarget.lab.experiment import families
from retarget.lab.figures import digits
from retarget.lab.reader import parse_changes, parse_experiment
from retarget.lab.runs.executors import compute_here
from retarget.lab.runs.run import Schedule, run_experiment
from retarget.lab.runs.store import RunStore
from support import made_runs
from support.made_runs import SMALL_DIGITS, calls, made, records


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
    with Image.open(outcome.files[1]) as picture:
        assert picture.info["dpi"] == pytest.approx((200, 200), abs=0.1)
    document = outcome.files[2].read_bytes()
    assert document.startswith(b"%PDF")
    assert b"/Type3" not in document  # fonts that journals refuse
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
    assert digits.summarize(outcome.table)[0].row_count == 4


def test_done_runs_and_changes(tmp_path):
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
    experiment = made(tmp_path, 'behavior = "raises"')
    assert len(run_experiment(experiment, tmp_path).failed) == 1
    monkeypatch.setattr(made_runs, "misbehave", lambda config: None)
    again = run_experiment(experiment, tmp_path)
    assert (again.computed, again.reused, again.failed) == (1, 2, [])
    assert calls(tmp_path) == {0: 1, 1: 2, 2: 1}


def noting(note):
    """Computes here, and notes something about each task just before."""
    return lambda tasks: compute_here(note(task) or task for task in tasks)


def test_fresh_means_all_again_and_from_the_beginning(tmp_path):
    experiment, store, seen = made(tmp_path), RunStore(tmp_path), []
    run_experiment(experiment, tmp_path)
    store.checkpoint(next(iter(store))).touch()
    executor = noting(lambda task: seen.append(store.checkpoint(task.identities[0].key).exists()))
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

    def slow(tasks):
        for task, ending in compute_here(tasks):
            yield task, replace(ending, seconds=6.0)

    run_experiment(experiment, tmp_path, executor=slow, fresh=True)
    assert {record.seconds for record in records(tmp_path)} == {2.0}


def test_a_run_is_locked_while_computed(tmp_path, monkeypatch):
    """Also if an error of ours stops everything: then the executor stops first."""
    taken, lock, held = [], RunStore.lock, []
    monkeypatch.setattr(RunStore, "lock", lambda *a: taken.append(lock(*a)) or taken[-1])
    note = noting(lambda task: held.append([each.is_locked for each in taken]))
    Schedule(made(tmp_path), RunStore(tmp_path)).carry_out(note)
    assert held == [[True], [False, True], [False, False, True]]
    assert not taken[-1].is_locked

    def broken(tasks):
        task = next(tasks)
        try:
            yield task, None  # which is no ending
        finally:
            held.append(taken[-1].is_locked)

    with pytest.raises(AttributeError):
        Schedule(made(tmp_path), RunStore(tmp_path), fresh=True).carry_out(broken)
    assert held[-1] is True
    assert (len(taken), taken[-1].is_locked) == (4, False)


def test_another_threads_lock_is_given_back(tmp_path):
    """Joblib takes tasks in a thread of its own."""
    taken, store = [], RunStore(tmp_path)
    thread = threading.Thread(target=lambda: taken.append(store.lock("key")))
    thread.start()
    thread.join()
    assert store.state("key") == "running"
    taken[0].release()
    assert store.state("key") == "interrupted"


@pytest.mark.parametrize("finishes", [True, False])
def test_a_run_of_another_process_is_waited_for(tmp_path, finishes):
    """And computed, if that has given it up."""
    experiment = made(tmp_path)
    store, other = RunStore(tmp_path), RunStore(tmp_path / "other")
    schedule = Schedule(experiment, store)
    key = schedule.keys[1]
    lock = store.lock(key)
    assert store.state(key) == "running"

    def watch(progress):
        if len(progress.done) == 2 and lock.is_locked:  # the others are done: now it ends
            if finishes:
                run_experiment(experiment, tmp_path / "other")
                for name in ("result.parquet", "run.json"):
                    (other.folder / key / name).rename(store.folder / key / name)
            lock.release()

    schedule.carry_out(compute_here, watch)
    assert len(schedule.done) == 3
    assert schedule.reused == ({key} if finishes else set())
    assert calls(tmp_path) == ({0: 2, 1: 1, 2: 2} if finishes else {0: 1, 1: 1, 2: 1})


@pytest.mark.parametrize(("seeds", "counted"), [([3], "1 seed"), ([3, 4], "2 seeds")])
def test_the_picture_of_a_small_version_says_so(seeds, counted, tmp_path):
    text = SMALL_DIGITS + '\n[quick]\nnote = "too small to show the effect"\n'
    whole = parse_experiment("small", text)
    small = whole.small().changed(parse_changes([], seeds))
    assert small.note == f"quick: {counted}; too small to show the effect"
    by_cases = SMALL_DIGITS + "[cases.few]\nquick = { parameters = { block_size = 5 } }\n"
    small_case = parse_experiment("small", by_cases).small().changed(parse_changes([], seeds))
    assert small_case.note == f"quick: {counted}"
    # without a small version it is the whole one, and nothing is said
    assert parse_experiment("small", SMALL_DIGITS).small().note == ""
    assert whole.note == ""
    sizes = {}
    for name, experiment in (("small", small), ("whole", whole.changed(parse_changes([], [3])))):
        run_experiment(experiment, tmp_path / name)
        with Image.open(tmp_path / name / "small" / "small.png") as picture:
            sizes[name] = picture.size
    assert sizes["small"][1] != sizes["whole"][1]  # it has a line more
    page = (tmp_path / "small" / "small" / "small.pdf").read_bytes()
    assert page.startswith(b"%PDF")
