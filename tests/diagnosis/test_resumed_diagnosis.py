"""A diagnosis of a stream in files that is interrupted goes on with the same bits."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from diagnosis.test_long_streams import portions_of_few_rows, table_of  # noqa: F401
from filelock import FileLock

import retarget.journal
from retarget import arrays
from retarget.diagnosis.measure import choose_correction
from retarget.engine import stream_kernel
from retarget.engine.stream_kernel import StreamKernel

ASKED = ("--target", "y", "--time", "at", "--group", "user", "--features", "40")
FILES = ("diagnosis.json", "shift.parquet", "corrected.parquet")


@pytest.fixture
def stream(tmp_path):
    """Rows that are not in the order of their times, and are sorted on the disk."""
    path = tmp_path / "long.parquet"
    table_of().sample(fraction=1.0, shuffle=True, seed=3).write_parquet(path)
    return path


@pytest.fixture(autouse=True)
def many_windows(monkeypatch):
    """Every pass takes several windows; the correction is chosen in memory, and no page drawn."""
    monkeypatch.setattr(choose_correction, "CHOOSING_FEATURE_ROWS", 300)
    monkeypatch.setattr("retarget.diagnosis.report.page.report_html", lambda *_, **__: "")
    monkeypatch.setitem(arrays.PANEL_ROWS, "cpu", 100)
    monkeypatch.setattr(stream_kernel, "SHORT_WINDOW", 50)
    monkeypatch.setattr(stream_kernel, "MOST_ROWS_AT_ONCE", 200)


@pytest.fixture
def saves_often(monkeypatch):
    """The clock of a journal, which counts how often it is asked: every few windows are saved."""
    clock = itertools.count()
    monkeypatch.setattr(retarget.journal, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(retarget.journal, "QUIET_SECONDS", 3)
    monkeypatch.setattr(retarget.journal, "SECONDS_BETWEEN_SAVES", 5)


@pytest.fixture
def interrupted(monkeypatch):
    """Has Ctrl-C pressed after so many windows; returns how many there were."""
    original = StreamKernel._done
    windows = SimpleNamespace(done=0, stop=None)

    def done(kernel, rows):
        if kernel.files is not None:
            windows.done += 1
            if windows.done == windows.stop:
                raise KeyboardInterrupt
        original(kernel, rows)

    monkeypatch.setattr(StreamKernel, "_done", done)

    def press(after):
        windows.done = 0
        windows.stop = after
        return windows

    return press


def results(folder):
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def kept(folder):
    return list(folder.glob("**/interrupted-*"))


OPTIONS = {
    "single rows": ("--evaluation", "both"),
    "batches with momentum": (
        *("--batch-size", "4", "--reduction", "mean", "--momentum", "0.5", "--lr", "0.05"),
        *("--gamma", "0.3", "--ridge", "0.1", "--evaluation", "next"),
    ),
    "a rate that diverges": ("--lr", "1e30", "--gamma", "0.3", "--block-size", "8"),
    "a rate": ("--lr", "0.1", "--kernel", "affine", "--block-size", "8", "--evaluation", "both"),
}


@pytest.mark.parametrize(
    "options",
    [
        # one of them is enough for `make test`
        pytest.param(options, marks=() if name == "a rate" else pytest.mark.slow)
        for name, options in OPTIONS.items()
    ],
    ids=OPTIONS,
)
def test_the_same_bits_after_any_window(
    tmp_path, stream, command, saves_often, interrupted, monkeypatch, options
):
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    windows = interrupted(None)
    code, text = command("diagnose", stream, *ASKED, *options, "--out", "out")
    assert code == 0, text
    total = windows.done
    expected = results(tmp_path / "whole" / "out")
    assert len(expected) == len(FILES)
    assert not kept(tmp_path)
    for number, after in enumerate(range(2, total, total // 6)):
        place = tmp_path / str(number)
        place.mkdir()
        monkeypatch.chdir(place)
        interrupted(after)
        code, text = command("diagnose", stream, *ASKED, *options, "--out", "out")
        assert code != 0
        assert not results(place / "out")
        went_on = bool(kept(place))
        assert ("The same command goes on" in text) == went_on
        assert went_on or after < 30
        done = interrupted(None)
        code, text = command("diagnose", stream, *ASKED, *options, "--out", "out")
        assert code == 0, text
        assert ("Going on" in text) == went_on
        # what is short is done again, such as the mean of k(x, x)
        assert done.done < total if went_on else done.done == total
        assert results(place / "out") == expected
        assert not kept(place)


def test_interrupted_again_and_again(
    tmp_path, stream, command, saves_often, interrupted, monkeypatch
):
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    windows = interrupted(None)
    assert command("diagnose", stream, *ASKED, "--out", "out")[0] == 0
    total = windows.done
    (tmp_path / "often").mkdir()
    monkeypatch.chdir(tmp_path / "often")
    runs = 0
    code = None
    while code != 0:
        interrupted(total // 5)
        code, _ = command("diagnose", stream, *ASKED, "--out", "out")
        runs += 1
        assert runs < 9
    assert runs > 4
    assert results(tmp_path / "often" / "out") == results(tmp_path / "whole" / "out")


def test_corrected_targets(tmp_path, stream, command, saves_often, interrupted):
    options = (*ASKED, "--gamma", "0.3", "--lr", "0.1")
    windows = interrupted(None)
    code, text = command("correct", stream, *options, "--out", tmp_path / "whole.csv")
    assert code == 0, text
    interrupted(windows.done // 2)
    assert command("correct", stream, *options, "--out", tmp_path / "half.csv")[0] != 0
    assert len(kept(tmp_path)) == 1
    interrupted(None)
    code, text = command("correct", stream, *options, "--out", tmp_path / "half.csv")
    assert code == 0, text
    assert "Going on" in text
    assert (tmp_path / "half.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not kept(tmp_path)


class TestWhatGoesOn:
    @pytest.fixture
    def half(self, tmp_path, stream, command, saves_often, interrupted):
        """A diagnosis that was interrupted."""
        interrupted(60)
        code, _ = command("diagnose", stream, *ASKED, "--out", tmp_path / "out")
        assert code != 0
        interrupted(None)
        return kept(tmp_path / "out")

    def test_a_changed_file_is_refused(self, tmp_path, stream, command, half):
        table_of(seed=1).write_parquet(stream)
        code, text = command("diagnose", stream, *ASKED, "--out", tmp_path / "out")
        assert code == 2
        assert "the stream has changed" in text
        assert half[0].name in text
        assert kept(tmp_path / "out") == half

    def test_other_arguments_begin_anew(self, tmp_path, stream, command, half):
        asked = (*ASKED, "--seed", "1")
        code, text = command("diagnose", stream, *asked, "--out", tmp_path / "out")
        assert code == 0, text
        assert "Going on" not in text
        assert kept(tmp_path / "out") == half

    def test_a_late_error_leaves_it(self, tmp_path, stream, command, half, monkeypatch):
        def fails(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr("retarget.cli.diagnose.write_all", fails)
            code, text = command("diagnose", stream, *ASKED, "--out", tmp_path / "out")
        assert code == 1
        assert "No space left" in text
        assert "delete this folder" in text
        assert kept(tmp_path / "out") == half
        code, text = command("diagnose", stream, *ASKED, "--out", tmp_path / "out")
        assert code == 0, text
        assert not kept(tmp_path / "out")

    def test_another_process_is_at_work(self, tmp_path, stream, command, half):
        with FileLock(half[0] / "lock", is_singleton=False):
            code, text = command("diagnose", stream, *ASKED, "--out", tmp_path / "out")
        assert code == 2
        assert "another process" in text
        assert kept(tmp_path / "out") == half


def test_little_work_is_not_kept(tmp_path, stream, command, interrupted):
    interrupted(60)
    code, text = command("diagnose", stream, *ASKED, "--out", tmp_path / "out")
    assert code != 0
    assert "goes on" not in text
    assert not kept(tmp_path)


KILLED = """
import sys
import retarget.journal
from retarget.cli import main
from retarget.diagnosis.tables import portions

portions.MOST_ROWS_HELD = 100
retarget.journal.QUIET_SECONDS = retarget.journal.SECONDS_BETWEEN_SAVES = 0.05
main()
"""


@pytest.mark.slow
def test_a_killed_process_goes_on(tmp_path):
    table_of(20_000).write_parquet(tmp_path / "long.parquet")
    asked = ("diagnose", str(tmp_path / "long.parquet"), *ASKED, "--out", "out")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def start(place):
        (tmp_path / place).mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-c", KILLED, *asked],
            cwd=tmp_path / place,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    process = start("whole")
    process.communicate()
    assert process.returncode == 0
    kills = 0
    for states in (3, 12, 25):
        process = start("killed")
        while process.poll() is None and not any(
            len(list(folder.glob("*.state"))) >= states for folder in kept(tmp_path / "killed")
        ):
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills >= 2
    process = start("killed")
    assert "Going on" in process.communicate()[1]
    assert process.returncode == 0
    assert results(tmp_path / "killed" / "out") == results(tmp_path / "whole" / "out")
    assert not kept(tmp_path)
