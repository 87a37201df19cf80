"""On real worker processes: the same numbers, also when workers die."""

import gc
import os
import signal
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import futures_of

import retarget as rt
from problems import assert_same
from retarget import distributed as rd
from retarget.distributed.factor import TiledFactor
from retarget.errors import ClusterError, NotPositiveDefiniteError

N, TILE, GAMMA = 230, 48, 0.7
LEARNER = rt.SGD(lr=0.2, batch_size=16, momentum=0.5, reduction="mean")
KERNEL = rt.RBF(width=2.0)


@pytest.fixture(scope="module")
def stream():
    rng = np.random.default_rng(8)
    return rng.normal(size=(N, 3)), rng.normal(size=(N, 2))


@pytest.fixture(scope="module")
def client():
    # A task may meet one death of its worker here, not three: the tests wait less.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        rd.connect("local:2", memory_limit="1GB") as connected,
    ):
        yield connected


def expected(stream):
    X, Y = stream
    return rt.iterative_targets(KERNEL(X), Y, LEARNER, GAMMA, 48)


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


class PlaceNoting(rt.kernels.Kernel):
    """A kernel whose every value is the number of the process that computed it."""

    def _gram(self, A, B):
        return A.new_full((len(A), len(B)), float(os.getpid()))

    def _diag(self, A):
        return A.new_ones(len(A))


def test_the_kernel_is_computed_by_the_workers(client, stream):
    K = rd.gram(PlaceNoting(), stream[0], TILE).compute()
    assert set(K.flat) <= {float(pid) for pid in client.run(os.getpid).values()}


def test_nothing_stays_behind(client, stream):
    X, Y = stream

    def wanted(dask_scheduler):
        return {str(key) for key, task in dask_scheduler.tasks.items() if task.who_wants}

    K = rd.gram(KERNEL, X, TILE)
    before = client.run_on_scheduler(wanted)
    rd.corrected_targets(K, Y, LEARNER, GAMMA)
    gc.collect()
    assert client.run_on_scheduler(wanted) <= before


def test_errors_of_the_numbers_come_through(client, stream):
    X, Y = stream
    K = rd.gram(rt.Linear(), X, TILE) - 10.0
    with pytest.raises(NotPositiveDefiniteError, match="from row 0 on"):
        rd.offline_coefficients(K, Y, GAMMA)


def test_a_worker_killed_between_two_columns(client, stream, monkeypatch):
    """Tiles of L are lost, and computed again."""
    X, Y = stream
    lost = []

    def take(self, j, kept, wanted):
        original(self, j, kept, wanted)
        if j == 2:
            tiles = [future for tile in self._tiles.values() for future in futures_of(tile)]
            only = [workers[0] for workers in client.who_has(tiles).values() if len(workers) == 1]
            worker = max(only, key=only.count)
            lost.append(only.count(worker))
            os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)

    original = TiledFactor.take
    monkeypatch.setattr(TiledFactor, "take", take)
    got = rd.iterative_targets(rd.gram(KERNEL, X, TILE), Y, LEARNER, GAMMA, 48)
    assert lost[0] > 0
    assert_same(got, expected(stream))


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


def test_a_worker_killed_in_the_middle_of_a_task(client, stream, tmp_path, capfd):
    X, Y = stream
    K = rd.gram(Deadly(tmp_path), X, TILE)
    (tmp_path / "once").touch()
    got = rd.iterative_targets(K, Y, LEARNER, GAMMA, 48)
    assert not any(tmp_path.iterdir())
    assert_same(got, expected(stream))
    assert capfd.readouterr() == ("", "")


def test_workers_that_always_die_are_given_up(client, stream, tmp_path, capfd):
    X, Y = stream
    K = rd.gram(Deadly(tmp_path), X, TILE)
    for name in "abcdefgh":
        (tmp_path / name).touch()
    with pytest.raises(ClusterError, match="workers died again and again in the middle of"):
        rd.offline_coefficients(K, Y, GAMMA)
    assert capfd.readouterr() == ("", "")


def test_samples_that_the_cluster_no_longer_has(client, stream):
    X, Y = stream
    K = rd.gram(KERNEL, X, TILE)
    client.cancel(futures_of(K), force=True)
    with pytest.raises(ClusterError, match="results on the cluster were lost"):
        rd.offline_coefficients(K, Y, GAMMA)
