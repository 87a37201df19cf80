"""Runs in other processes and on a cluster: that they behave, and what happens when they do not."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import dask
import distributed
import pytest

from retarget.distributed.cluster import connect
from retarget.lab.reader import parse_changes
from retarget.lab.runs.compute import RunGroup, compute_group
from retarget.lab.runs.executors import compute_in_processes, compute_on_cluster
from retarget.lab.runs.run import run_experiment
from retarget.lab.runs.store import RunStore
from support import made_runs
from support.made_runs import calls, made, records


@pytest.fixture(autouse=True)
def known(monkeypatch):
    made_runs.install(monkeypatch)


@pytest.fixture(scope="module")
def client():
    # fewer deaths than by default, since a new worker takes seconds
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), connect("local:2") as own:
        yield own


PROCESSES = partial(compute_in_processes, jobs=2)


def executor(request, where):
    if where == "processes":
        return PROCESSES
    return partial(compute_on_cluster, client=request.getfixturevalue("client"))


def behaving(folder, behavior):
    return made(folder, f'behavior = "{behavior}"')


def processes_of(folder):
    return {int(line.split()[1]) for line in (folder / "calls").read_text().splitlines()}


def require_one_failure(outcome, reason):
    """The second run has failed, the others are done and kept."""
    ((run, record),) = outcome.failed
    assert run.config.seed == 1
    assert (outcome.table, outcome.files, outcome.computed) == (None, [], 2)
    assert re.match(reason, record.reason)
    return record


UNLUCKY = r"ValueError: no \[red\]luck\[/red\] at all"


@pytest.mark.parametrize("where", ["processes", "cluster"])
def test_elsewhere_runs_are_as_they_are_here(tmp_path, where):
    """Also those that warn or fail. (The workers of this cluster are threads, which start soon.)"""
    (tmp_path / "bad").mkdir()
    experiment, bad = behaving(tmp_path, "warns"), behaving(tmp_path / "bad", "raises")
    here = run_experiment(experiment, tmp_path / "here")
    with ExitStack() as stack:
        executor = PROCESSES
        if where == "cluster":
            options = {"processes": False, "n_workers": 1, "threads_per_worker": 2}
            options["dashboard_address"] = None
            client = stack.enter_context(distributed.Client(**options))
            executor = partial(compute_on_cluster, client=client)
        there = run_experiment(experiment, tmp_path / "there", executor=executor)
        failed = run_experiment(bad, tmp_path, executor=executor)
    assert there.table.equals(here.table)
    assert (there.computed, there.failed) == (3, [])
    assert calls(tmp_path) == {0: 2, 1: 2, 2: 2}
    assert "misbehave" in require_one_failure(failed, UNLUCKY).trace
    assert calls(tmp_path / "bad") == {0: 1, 1: 1, 2: 1}
    if where == "processes":
        assert len(processes_of(tmp_path) - {os.getpid()}) in (1, 2)
        noted = [record.warnings for record in records(tmp_path / "there")]
        assert sorted(noted) == [[], [], ["mind the gap"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("processes", "its process was killed, or crashed, 2 times when it ran alone"),
        ("cluster", "the cluster gave no result: .* workers died"),
    ],
)
def test_a_run_that_crashes_costs_no_other(tmp_path, request, where, reason):
    experiment = behaving(tmp_path, "dies")
    outcome = run_experiment(experiment, tmp_path, executor=executor(request, where))
    require_one_failure(outcome, reason)
    assert calls(tmp_path)[1] == (3 if where == "processes" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", "cluster"])
def test_a_run_whose_process_is_killed_once(tmp_path, request, where):
    experiment = behaving(tmp_path, "dies once")
    outcome = run_experiment(experiment, tmp_path, executor=executor(request, where))
    assert outcome.failed == []
    assert (tmp_path / "died").exists()
    counted = calls(tmp_path)
    assert counted[1] == 2
    # what was computed beside it, or had not been handed over yet, is computed again
    assert {counted[0], counted[2]} <= {1, 2}
    here = run_experiment(experiment, tmp_path / "here")
    assert outcome.table.equals(here.table)


@pytest.mark.slow
def test_an_idle_process_is_killed(tmp_path):
    run_experiment(made(tmp_path), tmp_path, executor=PROCESSES)
    for idle in processes_of(tmp_path):
        os.kill(idle, signal.SIGKILL)
        wait_until(lambda idle=idle: not alive(idle))
    outcome = run_experiment(made(tmp_path), tmp_path, executor=PROCESSES, fresh=True)
    assert (outcome.computed, outcome.failed) == (3, [])


@pytest.mark.slow
def test_unwanted_processes_end(tmp_path):
    """Also if an error of ours stops everything."""

    def fail(schedule):
        if schedule.done:
            wait_until((tmp_path / "waiting").exists)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_experiment(behaving(tmp_path, "waits"), tmp_path, executor=PROCESSES, watch=fail)
    assert not any(alive(pid) for pid in processes_of(tmp_path))
    assert "running" not in {RunStore(tmp_path).state(key) for key in RunStore(tmp_path)}


@pytest.mark.slow
def test_a_run_that_the_cluster_has_cancelled(tmp_path, client, monkeypatch):
    sent, submit = [], client.submit

    def noted(*given, **options):
        sent.append(submit(*given, **options))
        return sent[-1]

    def cancel(schedule):
        if len(schedule.done) == 2:
            wait_until((tmp_path / "waiting").exists)
            client.cancel(sent, force=True)

    monkeypatch.setattr(client, "submit", noted)
    executor = partial(compute_on_cluster, client=client)
    waits = behaving(tmp_path, "waits")
    outcome = run_experiment(waits, tmp_path, executor=executor, watch=cancel)
    (tmp_path / "go").touch()
    require_one_failure(outcome, "the cluster gave no result: cancelled")


def test_workers_that_join_a_cluster_get_runs(tmp_path):
    """Here no run ends before three workers have one each."""
    sent, client = [], Mock()

    def submit(function, task, **options):
        sent.append(Mock(status="finished", result=lambda: function(task)))
        sent[-1].done = lambda: len(sent) == 3
        return sent[-1]

    client.submit, client.nthreads = submit, lambda: {"worker": 1 + len(sent)}
    executor = partial(compute_on_cluster, client=client)
    assert run_experiment(made(tmp_path), tmp_path, executor=executor).computed == 3


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never happened")


def test_a_worker_with_other_code_or_data(tmp_path):
    (config,) = made(tmp_path).changed(parse_changes([], [0])).runs()
    identity = made_runs.identity_of(config, made_runs.FAMILY)
    for part, other in (("code", "other"), ("data", {"x": "1"}), ("packages", {"torch": "0"})):
        sent = RunGroup(
            made_runs.FAMILY, (config,), (replace(identity, **{part: other}),), tmp_path
        )
        ending = compute_group(sent, elsewhere=True)
        assert f"RuntimeError: this worker has different {part} from" in ending.reason
    assert calls(tmp_path) == {}


COORDINATOR = """
import sys
from functools import partial
from pathlib import Path
from support import made_runs
from retarget.lab.experiment import families
from retarget.lab.runs.executors import compute_in_processes
from retarget.lab.runs.run import run_experiment

if __name__ == "__main__":
    families()["made"] = made_runs.FAMILY
    waits = made_runs.made(sys.argv[1], 'behavior = "waits"')
    run_experiment(waits, Path(sys.argv[1]), executor=partial(compute_in_processes, jobs=2))
"""


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path):
    """Also if that is killed, and cannot end them."""
    script = tmp_path / "coordinator.py"
    script.write_text(COORDINATOR)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    coordinator = subprocess.Popen([sys.executable, script, tmp_path], env=environment)
    try:
        wait_until((tmp_path / "waiting").exists)
        worker = int((tmp_path / "calls").read_text().split()[-1])
        assert alive(worker)
    finally:
        coordinator.kill()
        coordinator.wait()
    wait_until(lambda: not alive(worker))
