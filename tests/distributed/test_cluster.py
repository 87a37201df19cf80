import asyncio
import logging
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import suppress
from unittest import mock

import dask
import psutil
import pytest
from distributed import Client, LocalCluster

import retarget as rt
from retarget.distributed import cluster, connect
from retarget.errors import ClusterError, InvalidInputError

VERSION = rt.__version__
BUSY = """
import signal
import time
from retarget.distributed import connect

def work(x):
    print("working", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    with connect("local:2") as client:
        client.submit(work, 1).result()
"""


def process_state():
    import torch

    ports = [
        each.laddr.ip for each in psutil.Process().net_connections() if each.status == "LISTEN"
    ]
    return os.getpid(), os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads(), set(ports)


@pytest.mark.slow
def test_local_workers_are_processes_of_one_thread(capfd):
    states, limits = [], set()

    def fail():  # an error ends the context, too; a port in use would be a warning
        with connect("local:2", memory_limit="950MB") as client, connect("local:1"):
            states.extend(client.run(process_state).values())
            limits.update(w["memory_limit"] for w in client.scheduler_info()["workers"].values())
            assert client.scheduler.address.startswith("tcp://127.0.0.1:")
            assert process_state()[3] == {"127.0.0.1"}
            client.submit(divmod, 1, 0).result()

    with pytest.raises(ZeroDivisionError):
        fail()
    pids = {pid for pid, *_ in states}
    assert len(pids - {os.getpid()}) == 2
    assert all(state[1:] == ("1", 1, {"127.0.0.1"}) for state in states)
    assert limits == {950_000_000}
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_local_worker_is_started_anew():
    """Dask gives up a worker that is not there at one moment, some time after it was lost."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10ms"}),
        connect("local:1") as c,
    ):
        for _ in range(2):
            ((address, pid),) = c.run(os.getpid).items()
            os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + 60
            while set(c.nthreads()) <= {address} and time.monotonic() < end:
                time.sleep(0.1)
            assert len(c.nthreads()) == 1


@pytest.mark.slow
def test_ctrl_c_ends_busy_workers_quietly(tmp_path):
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as in a terminal, every process of it gets the signal
    )
    try:
        assert process.stdout.readline() == "working\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert errors.count("Traceback") == 1  # that of the script itself
        assert errors.strip().endswith("KeyboardInterrupt")
        assert "Dask Worker" not in errors
        with suppress(ProcessLookupError):  # none of the group is left
            for _ in range(600):  # multiprocessing's own tracker sees the script's end by itself
                os.killpg(process.pid, 0)
                time.sleep(0.1)
            pytest.fail("processes are left")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_refused():
    for address, limit, message in (
        *((wrong, None, "expected 'local:N'") for wrong in ("local:0", "local:two", "http://a:1")),
        ("local:1", "much", "memory_limit is 'much'; expected bytes"),
        ("tcp://a:1", "1GB", "memory_limit='1GB' was given with tcp://a:1"),
    ):
        with pytest.raises(InvalidInputError, match=message), connect(address, memory_limit=limit):
            pass


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tls://127.0.0.1:1"])
def test_no_scheduler_there(monkeypatch, address):
    monkeypatch.setattr(cluster, "TIMEOUT", 0.2)
    with (
        pytest.raises(ClusterError, match=f"no Dask scheduler answers at {address}"),
        connect(address),
    ):
        pass
    assert "scheduler" not in dask.config.config
    assert dask.delayed(sum)([1, 2]).compute() == 3


def running_cluster(workers):
    options = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    return LocalCluster(n_workers=workers, silence_logs=logging.CRITICAL, **options)


@pytest.fixture(scope="module")
def running():
    with running_cluster(1) as started:
        yield started.scheduler_address


@pytest.mark.slow  # a busy machine takes Dask's ten seconds
def test_a_running_scheduler_goes_on_running(running):
    for _ in range(2):
        with connect(running) as client:
            assert client.submit(sum, [1, 2]).result() == 3


def require_refused(address, message):
    with pytest.raises(ClusterError, match=message), connect(address):
        pass


def test_workers_of_another_version_or_without_retarget(running):
    with mock.patch.object(rt, "__version__", "0.0.7"):
        require_refused(running, rf"has retarget {VERSION}, .* retarget 0.0.7; install")
    with mock.patch.object(platform, "python_version_tuple", return_value=("3", "9", "1")):
        require_refused(running, "has Python .* has Python 3.9")
    with Client(running) as client:
        client.run(lambda: sys.modules.update(retarget=None))
        require_refused(running, "has no retarget, but this process has retarget")
        client.run(lambda: sys.modules.pop("retarget"))


def test_a_scheduler_without_workers():
    with running_cluster(0) as empty:
        require_refused(empty.scheduler_address, "has no workers; start some")


def test_a_slow_start_is_waited_for(monkeypatch):
    """Dask's own gives up after 10 s, with an AssertionError."""
    run = asyncio.run

    def slowly(main):
        time.sleep(0.3)
        run(main)

    never = mock.Mock(side_effect=AssertionError("Dask starts a loop of its own"))
    monkeypatch.setattr("distributed.utils._CollectErrorThread", never)
    monkeypatch.setattr(cluster, "TIMEOUT", 0.2)
    monkeypatch.setattr(cluster.asyncio, "run", slowly)
    cluster._event_loop.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "LONGEST_START", 0.05)
        with pytest.raises(ClusterError, match=r"within 0.05 s"):
            connect("tcp://127.0.0.1:1").__enter__()
    with pytest.raises(ClusterError, match="no Dask scheduler answers"):
        connect("tcp://127.0.0.1:1").__enter__()
