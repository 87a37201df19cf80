"""Runs in other processes and on a cluster: that they behave, and what happens when they do not."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future

import dask
import pytest

from retarget.distributed.cluster import connect
from retarget.errors import InvalidInputError
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
def processes():
    executor = Processes(2)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def client():
    # fewer deaths than by default, since a new worker takes seconds
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), connect("local:2") as own:
        yield own


def behaving(folder, behaviour):
    return made(folder, f'behaviour = "{behaviour}"')


def processes_of(folder):
    return {int(line.split()[1]) for line in (folder / "calls").read_text().splitlines()}


def test_processes_give_what_this_process_gives(tmp_path, processes):
    experiment = behaving(tmp_path, "warns")
    here = run_experiment(experiment, tmp_path / "here")
    there = run_experiment(experiment, tmp_path / "there", executor=processes)
    assert there.table.equals(here.table)
    assert (there.computed, there.failed) == (3, [])
    assert calls(tmp_path) == {0: 2, 1: 2, 2: 2}
    assert len(processes_of(tmp_path) - {os.getpid()}) == 2
    noted = [record.warnings for record in RunStore(tmp_path / "there").records()]
    assert sorted(noted) == [[], [], ["mind the gap"]]


@pytest.mark.slow
def test_a_cluster_gives_what_this_process_gives(tmp_path, client):
    experiment = made(tmp_path, "[grid]", "lr = [0.1, 0.3]")
    here = run_experiment(experiment, tmp_path / "here")
    executor = Cluster(client)
    assert executor.capacity == 2
    there = run_experiment(experiment, tmp_path / "there", executor=executor)
    assert there.table.equals(here.table)
    assert calls(tmp_path) == {0: 4, 1: 4, 2: 4}


DIED, LATE = "its process was killed, or crashed, 2 times", "it took longer than its limit of "
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("where", "behaviour", "limits", "reason", "begun"),
    [
        ("processes", "raises", {}, r"ValueError: no \[red\]luck\[/red\] at all", 1),
        ("cluster", "raises", {}, r"ValueError: no \[red\]luck\[/red\] at all", 1),
        pytest.param("processes", "dies", {}, DIED, 2, marks=SLOW),
        pytest.param("cluster", "dies", {}, "the workers that computed it died", 2, marks=SLOW),
        pytest.param("processes", "hangs", {"time_limit": 4.0}, f"{LATE}4 s", 1, marks=SLOW),
        # it is stopped at a step of Python: between two naps
        pytest.param("cluster", "waits", {"time_limit": 0.5}, f".*: {LATE}0.5 s", 1, marks=SLOW),
        pytest.param(
            "processes", "eats", {"memory_limit": 1_500_000_000}, ".* limit of 1.50 GB", 1,
            marks=SLOW,
        ),
    ],
)  # fmt: skip
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
    ((run, record),) = outcome.failed
    assert run.config.seed == 1
    assert (outcome.table, outcome.files) == (None, [])
    assert (outcome.computed, outcome.reused) == (2, 0)  # those of the others are kept
    assert re.match(reason, record.reason)
    assert calls(tmp_path)[1] == begun
    if behaviour == "raises":
        assert "misbehave" in record.trace


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", "cluster"])
def test_a_run_whose_process_is_killed_once(tmp_path, request, where):
    cluster = where == "cluster"
    executor = Cluster(request.getfixturevalue("client")) if cluster else Processes(2)
    outcome = run_experiment(behaving(tmp_path, "dies once"), tmp_path, executor=executor)
    executor.close()
    assert outcome.failed == []
    assert (tmp_path / "died").exists()
    counted = calls(tmp_path)
    assert counted[1] == 2
    # of a cluster, a result that its worker had not handed over yet is computed again
    assert {counted[0], counted[2]} <= ({1, 2} if cluster else {1})


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
    monkeypatch.setattr("pathlib.Path.exists", lambda path: False)
    with pytest.raises(InvalidInputError, match="a limit of memory needs /proc"):
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


def test_a_worker_with_other_code(tmp_path, client, monkeypatch):
    experiment = made(tmp_path)
    monkeypatch.setattr("retarget.experiments.runs.store.current_code", lambda: ("other", {}))
    outcome = run_experiment(experiment, tmp_path, executor=Cluster(client))
    assert len(outcome.failed) == 3
    assert "RuntimeError: this worker has other code than" in outcome.failed[0][1].reason
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
