"""A clock that goes backwards, or stands in another year: no result depends on it."""

import itertools
import os
import time

import numpy as np
import pytest

import retarget as rt
from retarget import progress
from retarget.lab.data.cache import cached_array
from retarget.lab.data.fetch import DataSet, check_file, get
from retarget.progress import PatientBar
from support.made_mnist import made_file
from support.mirror import Answer

pytestmark = pytest.mark.faults
FAR = 4e9  # seconds: the year 2096


def turn_back(monkeypatch):
    """From now on every look at the clock shows an earlier time, by an hour."""
    hours = itertools.count()

    def earlier():
        return FAR - 3600.0 * next(hours)

    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, earlier)
        monkeypatch.setattr(time, f"{name}_ns", lambda: int(earlier() * 1e9))


def test_a_diagnosis_is_the_same(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    before = rt.diagnose(X, y)
    turn_back(monkeypatch)
    after = rt.diagnose(X, y)
    assert after.table().equals(before.table())
    assert after.summary == before.summary
    after.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_progress_that_was_shown_goes_on(monkeypatch, capsys):
    times = iter([0.0, 5.0, *np.linspace(4.0, -1e6, 2000)])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with PatientBar("counting", 50, shown=True) as bar:
        for _ in range(50):
            bar.advance(1)
    assert "50/50" in capsys.readouterr().err


def test_downloads_and_caches_go_by_content(monkeypatch, mirror, tmp_path):
    turn_back(monkeypatch)
    mirror.answers["/one"] = Answer(b"official")
    data_set = DataSet("made", "made", (made_file("one", b"official", [f"{mirror.address}/one"]),))
    calls = []
    for moment in (0.0, FAR):
        get(data_set, tmp_path)
        cached_array(tmp_path, "a", ["made"], lambda: calls.append(1) or np.arange(3.0))
        for path in tmp_path.iterdir():
            os.utime(path, (moment, moment))
    assert (len(calls), mirror.asked) == (1, ["/one"])
    (tmp_path / "one").write_bytes(b"official"[::-1])
    os.utime(tmp_path / "one", (FAR, FAR))
    assert check_file(data_set.files[0], tmp_path)[0] == "wrong checksum"
