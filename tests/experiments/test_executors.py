"""Runs in other processes and on a cluster: that they behave, and what happens when they do not."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import Mock

import dask
import distributed
import pytest

from retarget.distributed.cluster import connect
from retarget.errors import InvalidInputError
from retarget.experiments.reader import parse_changes
from retarget.experiments.runs.compute import Task, compute_task
from retarget.experiments.runs.executors import Cluster, Processes, _Slot
from retarget.experiments.runs.run import run_experiment
from retarget.experiments.runs.store import RunStore
from support import made_runs
from support.made_runs import calls, made


@pytest.fixture(autouse=True)
def known(monkeypatch):
    made_runs.install(monkeypatch)
    monkeypatch.setattr("retarget.experiments.runs.run.ATTEMPTS", 2)


@pytest.fixture(scope="module")
def client():
    # fewer deaths than by default, since a new worker takes seconds
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), connect("local:2") as own:
        yield own


def behaving(folder, behaviour):
    return made(folder, f'behaviour = "{behaviour}"')


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
        if where == "cluster":
            options = {"processes": False, "n_workers": 1, "threads_per_worker": 2}
            options["dashboard_address"] = None
            executor = Cluster(stack.enter_context(distributed.Client(**options)))
            assert executor.capacity == 2
        else:
            executor = Processes(1)  # a second one would take seconds to start
        stack.callback(executor.close)
        there = run_experiment(experiment, tmp_path / "there", executor=executor)
        last = bad.changed(parse_changes([], [0, 2, 1]))  # no new process is needed after it
        failed = run_experiment(last, tmp_path, executor=executor)
    assert there.table.equals(here.table)
    assert (there.computed, there.failed) == (3, [])
    assert calls(tmp_path) == {0: 2, 1: 2, 2: 2}
    assert "misbehave" in require_one_failure(failed, UNLUCKY).trace
    assert calls(tmp_path / "bad") == {0: 1, 1: 1, 2: 1}
    if where == "processes":
        assert len(processes_of(tmp_path) - {os.getpid()}) == 1
        noted = [record.warnings for record in RunStore(tmp_path / "there").records()]
        assert sorted(noted) == [[], [], ["mind the gap"]]


DIED, LATE = "its process was killed, or crashed, 2 times", "it took longer than its limit of "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "behaviour", "limits", "reason", "begun"),
    [
        ("processes", "dies", {}, DIED, 2),
        ("cluster", "dies", {}, "the workers that computed it died", 2),
        ("processes", "hangs", {"time_limit": 4.0}, f"{LATE}4 s", 1),
        # it is stopped at a step of Python: between two naps
        ("cluster", "waits", {"time_limit": 0.5}, f".*: {LATE}0.5 s", 1),
        ("processes", "eats", {"memory_limit": 1_500_000_000}, ".* limit of 1.50 GB", 1),
    ],
)
def test_a_run_that_fails_costs_no_other(
    tmp_path, request, where, behaviour, limits, reason, begun
):
    if where == "cluster":
        executor = Cluster(request.getfixturevalue("client"), **limits)
    else:
        executor = Processes(2, **limits)
    try:
        outcome = run_experiment(behaving(tmp_path, behaviour), tmp_path, executor=executor)
    finally:
        executor.close()
    require_one_failure(outcome, reason)
    assert calls(tmp_path)[1] == begun


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", "cluster"])
def test_a_run_whose_process_is_killed_once(tmp_path, request, where):
    cluster, experiment = where == "cluster", behaving(tmp_path, "dies once")
    executor = Cluster(request.getfixturevalue("client")) if cluster else Processes(2)
    outcome = run_experiment(experiment, tmp_path, executor=executor)
    executor.close()
    assert outcome.failed == []
    assert (tmp_path / "died").exists()
    counted = calls(tmp_path)
    assert counted[1] == 2
    # of a cluster, a result that its worker had not handed over yet is computed again
    assert {counted[0], counted[2]} <= ({1, 2} if cluster else {1})
    here = run_experiment(experiment, tmp_path / "here")
    assert outcome.table.equals(here.table)


@pytest.mark.slow
def test_a_process_killed_while_it_has_nothing_to_do(tmp_path):
    executor = Processes(1)
    try:
        run_experiment(made(tmp_path), tmp_path, executor=executor)
        (idle,) = processes_of(tmp_path)
        os.kill(idle, signal.SIGKILL)
        wait_until(lambda: not alive(idle))
        time.sleep(0.2)  # its engine has noticed
        outcome = run_experiment(made(tmp_path), tmp_path, executor=executor, fresh=True)
    finally:
        executor.close()
    assert (outcome.computed, outcome.failed) == (3, [])
    assert all(record.attempts <= 2 for record in RunStore(tmp_path).records())


def test_limits_count_from_when_the_process_is_there(monkeypatch):
    slot = _Slot(executor=None, pid=Future(), future=Future())
    assert Processes(1, time_limit=1e-9)._ending(slot) is None
    slot.pid.set_result(os.getpid())
    assert Processes(1)._ending(slot) is None
    late = Processes(1, time_limit=1e-9)._ending(slot)
    assert late.reason.startswith(f"{LATE}1e-09 s")
    large = Processes(1, memory_limit=10**6)._ending(slot)
    assert large.reason.endswith(" GB, more than its limit of 0.00 GB")
    processes, idle = Processes(1), _Slot(executor=Mock(), pid=Future())
    processes._slots.append(idle)
    assert processes.ended(0) == []
    processes.close()
    idle.executor.shutdown.assert_called_once_with(wait=True, kill_workers=True)
    monkeypatch.setattr("pathlib.Path.exists", lambda path: False)
    with pytest.raises(InvalidInputError, match="a memory limit needs /proc"):
        Processes(1, memory_limit=10**9)


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
        sent = Task(made_runs.FAMILY, (config,), (replace(identity, **{part: other}),), tmp_path)
        ending = compute_task(sent, elsewhere=True)
        assert f"RuntimeError: this worker has other {part} than" in ending.reason
    assert calls(tmp_path) == {}


COORDINATOR = """
import sys
from pathlib import Path
from support import made_runs
from retarget.experiments.experiment import families
from retarget.experiments.runs.executors import Processes
from retarget.experiments.runs.run import run_experiment

if __name__ == "__main__":
    families()["made"] = made_runs.FAMILY
    waits = made_runs.made(sys.argv[1], 'behaviour = "waits"')
    run_experiment(waits, Path(sys.argv[1]), executor=Processes(1))
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
