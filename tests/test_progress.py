import io

import pytest
from rich.console import Console

from retarget import progress
from retarget.progress import PatientBar, display


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80)


def lines(shown):
    return [(task.description, task.completed, task.total) for task in shown.tasks]


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", -1.0)


@pytest.mark.usefixtures("hurry")
def test_work_within_work_is_a_line():
    with display(terminal(), transient=True) as shown:
        shown.add_task("runs", total=2)
        with PatientBar("training", 10) as outer:
            outer.advance(3)
            with PatientBar("kernel", 5) as inner:
                inner.advance(4)
                assert lines(shown) == [("runs", 0, 2), ("training", 3, 10), ("kernel", 4, 5)]
            outer.advance(2)
            assert lines(shown) == [("runs", 0, 2), ("training", 5, 10)]
        assert lines(shown) == [("runs", 0, 2)]


@pytest.mark.usefixtures("hurry")
def test_bars_join_a_display(capsys):
    with PatientBar("training", 10, shown=True) as outer:
        outer.advance(1)
        with PatientBar("kernel", 5, shown=True) as inner:
            inner.advance(4)
            assert [[task.description for task in each.tasks] for each in progress._displays] == [
                ["training", "kernel"]
            ]
    assert progress._displays == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("quick", [True, False])
def test_quick_or_unasked_work_is_silent(quick, monkeypatch):
    if not quick:
        monkeypatch.setattr(progress, "PATIENCE", -1.0)
    console = terminal() if quick else Console(file=io.StringIO())
    with PatientBar("counting", 2) as bar:
        bar.advance(2)
        assert progress._displays == []
    with display(console, True) as shown, PatientBar("counting", 2) as bar:
        bar.advance(2)
        assert lines(shown) == []


@pytest.mark.usefixtures("hurry")
def test_an_error_leaves_no_display_behind():
    def interrupted(bar):
        bar.advance(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), PatientBar("dividing", 2, shown=True) as bar:
        interrupted(bar)
    assert progress._displays == []


def test_a_command_without_a_terminal(monkeypatch, capsys):
    times = iter([0.0, 2.0, 2.0, 11.0, 11.0, 11.0, 15.0, 15.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    progress.in_lines()
    with PatientBar("diagnosing", 40) as bar:
        for _ in range(3):
            bar.advance(10)
    assert capsys.readouterr().err == "diagnosing: about 50% after 11 s\n"


def test_python_without_a_terminal(monkeypatch, capsys):
    now = iter([0.0, 59.0, 59.0, 100.0, 100.0, 110.0, 110.0, 900.0, 900.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with PatientBar("correcting", 40) as bar:
        bar.advance(5)
        assert capsys.readouterr().err == ""
        bar.advance(5)
        bar.advance(5)
        bar.advance(5)
    assert capsys.readouterr().err == (
        "correcting: about 25% after 100 s, about 5 minutes left\n"
        "correcting: about 50% after 900 s, about 15 minutes left\n"
    )


def test_steps_of_an_earlier_process_say_nothing_about_the_time(monkeypatch, capsys):
    now = iter([0.0, 1.0, 0.0, 100.0, 100.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with PatientBar("correcting", 40, shown=None, unit="rows") as bar:
        bar.advance(20, earlier=True)
        monkeypatch.setattr(progress.time, "monotonic", lambda: 100.0)
        bar.advance(10)
    assert capsys.readouterr().err == (
        "correcting: about 75% after 100 s, about 100 s left, 0 rows a second\n"
    )


@pytest.mark.parametrize("how", ["not shown", "silenced"])
def test_unshown_work_writes_no_line(how, monkeypatch, capsys):
    monkeypatch.setattr(progress.time, "monotonic", iter(range(0, 10_000, 60)).__next__)
    monkeypatch.setattr(progress, "_silent", how == "silenced")
    with PatientBar("diagnosing", 40, shown=False if how == "not shown" else None) as bar:
        bar.advance(30)
    assert capsys.readouterr().err == ""
