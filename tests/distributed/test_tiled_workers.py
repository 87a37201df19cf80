"""On real worker processes: the same numbers, also when workers die."""

import gc
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import futures_of

import retarget as rt
from retarget import distributed as rd
from retarget.distributed import cluster
from retarget.distributed.tiles import TiledFactor
from retarget.errors import ClusterError, NotPositiveDefiniteError
from support.problems import assert_same

N, TILE, GAMMA = 230, 48, 0.7
LEARNER = rt.SGD(lr=0.2, batch_size=16, momentum=0.5, reduction="mean")
KERNEL = rt.RBF(width=2.0)


@pytest.fixture(scope="module")
def stream():
    rng = np.random.default_rng(8)
    # ten features: the blocks are well conditioned, so that 1e-10 is far above the rounding
    return rng.normal(size=(N, 10)), rng.normal(size=(N, 2))


class PlaceNoting(rt.kernels.Kernel):
    """A kernel whose every value is the number of the process that computed it."""

    def _gram(self, A, B):
        return A.new_full((len(A), len(B)), float(os.getpid()))

    def _diag(self, A):
        return A.new_ones(len(A))


def test_a_worker_passes_errors_on(stream):
    def wanted(dask_scheduler):
        return {str(key) for key, task in dask_scheduler.tasks.items() if task.who_wants}

    X, Y = stream
    with rd.connect("local:1", memory_limit="1GB") as client:
        K = rd.gram(PlaceNoting(), X[:9], 5).compute()
        assert set(K.flat) == {float(pid) for pid in client.run(os.getpid).values()}
        K = rd.gram(KERNEL, X, TILE)
        before = client.run_on_scheduler(wanted)
        got = rd.corrected_targets(K, Y, LEARNER, GAMMA)
        assert_same(got, rt.corrected_targets(KERNEL(X), Y, LEARNER, GAMMA))
        gc.collect()
        assert client.run_on_scheduler(wanted) <= before
        with pytest.raises(NotPositiveDefiniteError, match="from row 0 on"):
            rd.offline_coefficients(K - 100.0, Y, GAMMA)


@pytest.fixture(scope="module")
def client():
    # A task may meet one death of its worker here, not three: the tests wait less.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        rd.connect("local:2", memory_limit="1GB") as connected,
    ):
        yield connected


def assert_corrected(kernel, stream):
    """The cluster corrects the stream as it is corrected in memory."""
    X, Y = stream
    got = rd.iterative_targets(rd.gram(kernel, X, TILE), Y, LEARNER, GAMMA, 48)
    assert_same(got, rt.iterative_targets(KERNEL(X), Y, LEARNER, GAMMA, 48))


@pytest.mark.slow
def test_every_function(client, stream):
    X, Y = stream
    K, full = rd.gram(KERNEL, X, TILE), KERNEL(X)
    for name, arguments in {
        "offline_coefficients": (GAMMA,),
        "online_coefficients": (LEARNER,),
        "effective_targets": (LEARNER, GAMMA),
        "corrected_targets": (LEARNER, GAMMA),
        "iterative_targets": (LEARNER, GAMMA, 32),  # not a divisor of the tiles
    }.items():
        got = getattr(rd, name)(K, Y, *arguments)
        assert_same(got, getattr(rt, name)(full, Y, *arguments))


@pytest.mark.slow
def test_a_worker_killed_between_two_columns(client, stream, monkeypatch):
    """Tiles of L are lost, and computed again."""
    lost = []

    def collect(self, j, kept, wanted):
        original(self, j, kept, wanted)
        if j == 2:
            tiles = [future for tile in self._tiles.values() for future in futures_of(tile)]
            only = [workers[0] for workers in client.who_has(tiles).values() if len(workers) == 1]
            worker = max(only, key=only.count)
            lost.append(only.count(worker))
            os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)

    original = TiledFactor.collect
    monkeypatch.setattr(TiledFactor, "collect", collect)
    assert_corrected(KERNEL, stream)
    assert lost[0] > 0


class Deadly(rt.RBF):
    """Kills its worker in the middle of a tile, as often as there are files to take away."""

    def __init__(self, folder):
        super().__init__(KERNEL.width)
        self.folder = folder

    def _gram(self, A, B):
        if len(A) > 1:  # not the one row that tells the precision
            for file in sorted(Path(self.folder).iterdir()):
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super()._gram(A, B)


@pytest.mark.slow
def test_a_killed_worker_and_workers_that_always_die(client, stream, tmp_path, capfd):
    (tmp_path / "once").touch()
    assert_corrected(Deadly(tmp_path), stream)
    assert not any(tmp_path.iterdir())
    for name in "abcdefgh":
        (tmp_path / name).touch()
    with pytest.raises(ClusterError, match="workers repeatedly died during"):
        rd.offline_coefficients(rd.gram(Deadly(tmp_path), stream[0], TILE), stream[1], GAMMA)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_samples_that_the_cluster_no_longer_has(client, stream):
    X, Y = stream
    K = rd.gram(KERNEL, X, TILE)
    client.cancel(futures_of(K), force=True)
    with pytest.raises(ClusterError, match="results on the cluster were lost"):
        rd.offline_coefficients(K, Y, GAMMA)


@pytest.mark.slow
@pytest.mark.parametrize("working_only", [False, True])
def test_workers_that_die_are_given_up(monkeypatch, stream, capfd, working_only):
    """Dask alone would wait for ever: no task fails if workers die before they have one."""
    monkeypatch.setattr(cluster, "LONGEST_WITHOUT_WORKERS", 5)
    over = threading.Event()

    def kill(client):  # as soon as workers begin, or as soon as they work
        end = time.monotonic() + 90
        while not over.wait(0.3):
            working = client.nthreads()
            for nanny in client.cluster.workers.values():
                if nanny.pid and (nanny.worker_address in working or not working_only):
                    with suppress(ProcessLookupError):
                        os.kill(nanny.pid, signal.SIGKILL)
            if time.monotonic() > end:  # nobody has given up: the test is to fail, not to hang
                client.close()
                return

    def work():
        while True:  # one of them may be done between two kills
            rd.effective_targets(K, stream[1], LEARNER, GAMMA)

    with rd.connect("local:2", memory_limit="1GB") as client:
        K = rd.gram(KERNEL, stream[0], TILE)
        thread = threading.Thread(target=kill, args=(client,))
        thread.start()
        with pytest.raises(ClusterError, match=r"no worker for 5 s|died \d+ times|repeatedly died"):
            work()
        over.set()
        thread.join()
    assert capfd.readouterr() == ("", "")


def test_workers_may_die_and_be_away(monkeypatch):
    with dask.config.set({"distributed.scheduler.allowed-failures": 2}):
        watch = cluster._DyingWorkers()
        for number in ("", *range(5)):
            watch.look({"a", f"b{number}"})  # 5 times another one is gone
        with pytest.raises(ClusterError, match="died 6 times .* 2 workers"):
            watch.look({"a"})
    seconds = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    watch = cluster._DyingWorkers()
    for there in (set(), {"a"}, set()):
        seconds[0] += 59
        watch.look(there)
    seconds[0] += 2
    with pytest.raises(ClusterError, match="no worker for 60 s"):
        watch.look(set())
