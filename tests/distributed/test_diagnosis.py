"""A stream that Dask's workers read: diagnosed as in one process, even if a worker dies."""

import os
import signal

import dask
import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget import distributed as rd
from retarget.diagnosis.tables import portions

OPTIONS = {"features": 32, "gamma": 0.3, "max_memory": 1000, "evaluation": "next"}


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """Six files, which are too long together to be held."""
    monkeypatch.setattr(portions, "MOST_ROWS_HELD", 100)
    random = np.random.default_rng(0)
    written = []
    for number in range(6):
        X = random.normal(size=(200, 3))
        columns = {f"x{place}": column for place, column in enumerate(X.T)}
        path = tmp_path / f"{number}.parquet"
        pl.DataFrame(columns | {"y": np.sin(X[:, 0]) + number / 5}).write_parquet(path)
        written.append(path)
    return written


def assert_the_same(got, expected):
    for name in ("effective", "corrected", "iterative", "prequential"):
        assert np.allclose(getattr(got, name), getattr(expected, name), rtol=1e-9, atol=1e-9), name
    assert [score.error.value for score in got.scores] == pytest.approx(
        [score.error.value for score in expected.scores], rel=1e-9
    )


class Collection:
    """What is used of a Dask frame, which needs pandas and pyarrow."""

    def __init__(self, parts):
        self.npartitions = len(parts)
        self._parts = parts

    def get_partition(self, place):
        return self._parts[place]


def test_partitions_are_read_in_order(paths):
    parts = [dask.delayed(pl.read_parquet)(path) for path in paths]
    expected = rt.diagnose(pl.scan_parquet(paths), "y", **OPTIONS)
    with dask.config.set(scheduler="synchronous"):
        got = rt.diagnose(Collection(parts), "y", **OPTIONS)
    assert_the_same(got, expected)


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_nothing(paths):
    expected = rt.diagnose(pl.scan_parquet(paths), "y", **OPTIONS)
    opened = []

    with rd.connect("local:2", memory_limit="1GB") as client:

        def tables():
            opened.append(len(opened))
            for number, path in enumerate(paths):
                if opened[-1] == 2 and number == 3:
                    pid = next(iter(client.run(os.getpid).values()))
                    os.kill(pid, signal.SIGKILL)
                yield dask.delayed(pl.read_parquet)(path).compute()

        got = rt.diagnose(tables, "y", **OPTIONS)
    assert len(opened) >= 3
    assert_the_same(got, expected)
