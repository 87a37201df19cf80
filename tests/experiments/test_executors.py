"""Runs in other processes and on a cluster: that they behave, and what happens when they do not."""

import os
import signal
import subprocess
import sys
import time

import dask
import pytest

import retarget as rt
from retarget.distributed.cluster import connect
from retarget.experiments.runs.executors import Cluster, Processes, _Slot
from retarget.experiments.runs.run import run_experiment
from retarget.experiments.runs.store import RunStore
from support import made_runs
from support.made_runs import calls, made


@pytest.fixture(autouse=True)
def known(monkeypatch):
    made_runs.install(monkeypatch)
    monkeypatch.setattr("retarget.experiments.runs.schedule.ATTEMPTS", 2)


@pytest.fixture(scope="module")
def processes():
    executor = Processes(2)
    yield executor
    executor.close()


def behaving(folder, behaviour):
    return made(folder, f'behaviour = "{behaviour}"')


def failure_of(outcome):
    ((run, record),) = outcome.failed
    assert run.config.seed == 1
    assert outcome.table is None
    assert outcome.files == []
    assert (outcome.computed, outcome.reused) == (2, 0)  # those of the others are kept
    return record


def test_processes_give_what_this_process_gives(tmp_path, processes):
    experiment = behaving(tmp_path, "warns")
    here = run_experiment(experiment, tmp_path / "here")
    there = run_experiment(experiment, tmp_path / "there", executor=processes)
    assert there.table.equals(here.table)
    assert (there.computed, there.failed) == (3, [])
    assert calls(tmp_path) == {0: 2, 1: 2, 2: 2}
    pids = {line.split()[1] for line in (tmp_path / "calls").read_text().splitlines()}
    assert len(pids - {str(os.getpid())}) == 2
    noted = [record.warnings for record in RunStore(tmp_path / "there").records()]
    assert sorted(noted) == [[], [], ["mind the gap"]]


def test_a_run_that_raises(tmp_path, processes):
    record = failure_of(run_experiment(behaving(tmp_path, "raises"), tmp_path, executor=processes))
    assert record.reason == "ValueError: no [red]luck[/red] at all"
    assert "misbehave" in record.trace


@pytest.mark.slow
def test_a_run_that_kills_its_process_is_tried_again_but_not_for_ever(tmp_path, processes):
    record = failure_of(run_experiment(behaving(tmp_path, "dies"), tmp_path, executor=processes))
    assert record.reason == "its process was killed, or crashed, 2 times"
    assert record.attempts == 2
    assert calls(tmp_path) == {0: 1, 1: 2, 2: 1}  # the others were not begun again


@pytest.mark.slow
def test_a_run_whose_process_is_killed_once(tmp_path, processes):
    outcome = run_experiment(behaving(tmp_path, "dies once"), tmp_path, executor=processes)
    assert outcome.failed == []
    assert calls(tmp_path) == {0: 1, 1: 2, 2: 1}
    attempts = [record.attempts for record in RunStore(tmp_path).records()]
    assert sorted(attempts) == [1, 1, 2]


@pytest.mark.slow
def test_a_process_killed_while_it_has_nothing_to_do(tmp_path):
    executor = Processes(1)
    try:
        run_experiment(made(tmp_path), tmp_path, executor=executor)
        idle = int((tmp_path / "calls").read_text().split()[-1])
        os.kill(idle, signal.SIGKILL)
        wait_until(lambda: not alive(idle))
        time.sleep(0.2)  # its engine has noticed
        outcome = run_experiment(made(tmp_path), tmp_path, executor=executor, fresh=True)
    finally:
        executor.close()
    assert (outcome.computed, outcome.failed) == (3, [])
    assert all(record.attempts <= 2 for record in RunStore(tmp_path).records())


@pytest.mark.slow
def test_a_run_that_takes_too_long(tmp_path):
    executor = Processes(2, time_limit=4.0)
    try:
        record = failure_of(
            run_experiment(behaving(tmp_path, "hangs"), tmp_path, executor=executor)
        )
    finally:
        executor.close()
    assert record.reason == "it took longer than its limit of 4 s"
    assert 4 < record.seconds < 60
    assert record.attempts == 1


@pytest.mark.slow
def test_a_run_that_takes_too_much_memory(tmp_path):
    executor = Processes(1, memory_limit=1_500_000_000)
    try:
        record = failure_of(run_experiment(behaving(tmp_path, "eats"), tmp_path, executor=executor))
    finally:
        executor.close()
    assert record.reason.startswith("its process took ")
    assert record.reason.endswith(" GB, more than its limit of 1.50 GB")


def test_limits_count_from_when_the_process_is_there(tmp_path):
    slot = _Slot(executor=None, note=tmp_path / "pid")
    assert Processes(1, time_limit=1e-9)._over_limit(slot) is None
    slot.note.write_text(str(os.getpid()))
    assert Processes(1)._over_limit(slot) is None
    late = Processes(1, time_limit=1e-9)._over_limit(slot)
    assert late.reason.startswith("it took longer than its limit of 1e-09 s")
    large = Processes(1, memory_limit=10**6)._over_limit(slot)
    assert large.reason.endswith(" GB, more than its limit of 0.00 GB")


def test_a_limit_of_memory_needs_proc(monkeypatch):
    monkeypatch.setattr("pathlib.Path.exists", lambda path: False)
    with pytest.raises(rt.errors.InvalidInputError, match="a limit of memory needs /proc"):
        Processes(1, memory_limit=10**9)


@pytest.mark.slow
def test_what_is_stopped_is_gone(tmp_path, processes):
    """Ctrl-C: the processes end at once, what is done is kept, and nothing is locked."""
    experiment = behaving(tmp_path, "waits")

    def stop(progress):
        if (tmp_path / "waiting").exists() and len(progress.done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path, executor=processes, watch=stop)
    pids = {int(line.split()[1]) for line in (tmp_path / "calls").read_text().splitlines()}
    assert not any(alive(pid) for pid in pids)
    (tmp_path / "go").touch()
    outcome = run_experiment(experiment, tmp_path)
    assert (outcome.computed, outcome.reused) == (1, 2)


@pytest.mark.slow
def test_ctrl_c_is_for_the_one_that_was_started(tmp_path, processes):
    """It reaches all processes of a terminal; those that compute leave it to the first one."""

    def interrupt(progress):
        if (tmp_path / "waiting").exists() and not (tmp_path / "go").exists():
            seed_1 = next(
                line
                for line in (tmp_path / "calls").read_text().splitlines()
                if line.startswith("1 ")
            )
            os.kill(int(seed_1.split()[1]), signal.SIGINT)
            (tmp_path / "go").touch()

    outcome = run_experiment(
        behaving(tmp_path, "waits"), tmp_path, executor=processes, watch=interrupt
    )
    assert outcome.failed == []
    assert calls(tmp_path) == {0: 1, 1: 1, 2: 1}


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


@pytest.fixture(scope="module")
def client():
    # fewer deaths than by default, since a new worker takes seconds
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), connect("local:2") as own:
        yield own


@pytest.mark.slow
def test_a_cluster_gives_what_this_process_gives(tmp_path, client):
    experiment = made(tmp_path, "[grid]", "lr = [0.1, 0.3]")
    here = run_experiment(experiment, tmp_path / "here")
    executor = Cluster(client)
    assert executor.capacity == 2
    there = run_experiment(experiment, tmp_path / "there", executor=executor)
    assert there.table.equals(here.table)
    assert calls(tmp_path) == {0: 4, 1: 4, 2: 4}


@pytest.mark.slow
def test_a_worker_killed_in_the_midst_costs_its_run_and_what_it_had_not_handed_over(
    tmp_path, client
):
    outcome = run_experiment(behaving(tmp_path, "dies once"), tmp_path, executor=Cluster(client))
    assert outcome.failed == []
    assert (tmp_path / "died").exists()
    counted = calls(tmp_path)
    assert counted[1] == 2
    # a result that its worker had not handed over yet is computed again
    assert {counted[0], counted[2]} <= {1, 2}


@pytest.mark.slow
def test_a_run_that_kills_worker_after_worker(tmp_path, client):
    record = failure_of(
        run_experiment(behaving(tmp_path, "dies"), tmp_path, executor=Cluster(client))
    )
    assert record.reason.startswith("the workers that computed it died, the last one ")
    assert calls(tmp_path)[1] == 2


def test_a_run_that_raises_on_a_cluster(tmp_path, client):
    executor = Cluster(client)
    record = failure_of(run_experiment(behaving(tmp_path, "raises"), tmp_path, executor=executor))
    assert record.reason == "ValueError: no [red]luck[/red] at all"


@pytest.mark.slow
def test_a_run_that_takes_too_long_on_a_cluster(tmp_path, client):
    """It is stopped at a step of Python: between two naps."""
    executor = Cluster(client, time_limit=0.5)
    record = failure_of(run_experiment(behaving(tmp_path, "waits"), tmp_path, executor=executor))
    assert record.reason == "TookTooLongError: it took longer than its limit of 0.5 s"


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
