"""`retarget reproduce`: a figure, runs that fail, are planned only, or are stopped."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import retarget as rt
from retarget.cli import reproduce
from retarget.lab.experiment import families
from retarget.lab.reader import experiment_names, parse_changes
from retarget.lab.runs.run import run_experiment
from retarget.progress import display
from support import command_line, made_runs
from support.made_runs import TEXT, calls, made


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes an experiment of one's own, and gives what calls the command on it."""
    made_runs.install(monkeypatch)

    def write(*lines):
        path = tmp_path / "mine.toml"
        path.write_text(TEXT.format(folder=tmp_path) + "\n".join(lines))
        return ("reproduce", path, "--out", tmp_path / "results")

    return write


def test_a_figure_from_the_command(command, tmp_path):
    arguments = ("reproduce", "fig1", "fig1", "--seed", 7, "--out", tmp_path, "-j", 0)
    code, shown = command(*arguments)
    assert code == 0
    assert shown.count("Runs computed: 1, already done: 0") == 1
    assert (tmp_path / "fig1" / "fig1.png").is_file()
    assert "Runs computed: 0, already done: 1" in command(*arguments)[1]


def test_all_means_every_figure(command, monkeypatch, tmp_path):
    names = []
    monkeypatch.setattr(reproduce, "_reproduce", lambda e, *_: names.append(e.name) or 0)
    assert command("reproduce", "all", "--out", tmp_path)[0] == 0
    assert names == experiment_names()
    assert len(names) > 5


def test_installed_as_a_command():
    command = Path(sys.executable).parent / "retarget"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"retarget {rt.__version__}"


def test_failed_runs_are_listed(command, monkeypatch, tmp_path, mine):
    monkeypatch.setattr(reproduce, "SHOWN_FAILURES", 1)
    arguments = mine('behavior = "raises"', "[grid]", "lr = [0.1, 0.2, 0.3]")
    code, shown = command(*arguments, "-j", 0)
    assert code == 1
    assert "Runs computed: 6, already done: 0, failed: 3" in shown
    assert "Nothing is drawn, since runs are missing." in shown
    assert "seed 1, lr 0.1: ValueError: no [red]luck[/red] at all and 2 more" in shown
    assert "`retarget runs show KEY` shows the details" in shown
    assert not (tmp_path / "results" / "mine").exists()


@pytest.mark.parametrize("part", ["draw", "summarize"])
def test_a_failed_drawing_keeps_the_table(command, part, monkeypatch, tmp_path, mine):
    arguments, folder = (*mine(), "-j", 0), tmp_path / "results" / "mine"
    assert command(*arguments)[0] == 0  # leaves a figure
    table = (folder / "mine.parquet").read_bytes()
    (folder / "mine.parquet").unlink()

    def fail(table):
        raise ValueError("no [red]luck[/red]\nat all")

    monkeypatch.setitem(families(), "made", replace(made_runs.FAMILY, **{part: fail}))
    code, shown = command(*arguments)
    assert code == 1
    word = "drawn" if part == "draw" else "summarized"
    assert f"could not be {word}: ValueError: no [red]luck[/red] at all" in shown
    assert "Traceback" not in shown
    assert "Runs computed: 0, already done: 3" in shown
    assert (folder / "mine.parquet").read_bytes() == table
    record, drawn = json.loads((folder / "run.json").read_text()), part != "draw"
    assert record["runs"]["found finished"] == 3
    assert ("not drawn" in record) is not drawn
    assert (folder / "mine.png").exists() is (folder / "mine.pdf").exists() is drawn
    if not drawn:
        assert "in fail" in record["not drawn"]["trace"]


def test_titles_are_no_terminal_commands(monkeypatch, capfd, mine):
    arguments = mine('behavior = "raises"')
    path = arguments[1]
    path.write_text(path.read_text().replace('title = "made"', 'title = "[/x] \\u001b[31m"'))
    monkeypatch.setattr(made_runs, "REASON", "no \x1b]0;luck\x07")
    _, shown = command_line.run(monkeypatch, capfd, *arguments, "-j", 0)
    assert "[/x] ·[31m" in shown
    assert "no ·]0;luck·" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_dry_and_fresh_runs(command, monkeypatch, tmp_path, mine):
    monkeypatch.setattr(reproduce, "LOG_EVERY", -1.0)
    code, shown = command(*mine(), "--dry-run")
    assert code == 0
    assert "seed 0: to do" in shown
    assert "3 runs, 0 done, 3 to do." in shown
    assert calls(tmp_path) == {}
    code, shown = command(*mine(), "-j", 0)
    assert code == 0
    assert "Runs computed: 3, already done: 0" in shown
    for done in range(4):  # a log has a line now and then
        assert f"{done} of 3 runs done, 0 failed" in shown
    code, shown = command(*mine("[grid]", "lr = [0.1, 0.2]"), "--dry-run", "-j", 2)
    assert "seed 0, lr 0.1: done" in shown
    assert "seed 0, lr 0.2: to do" in shown
    assert "6 runs, 3 done, 3 to do." in shown
    code, shown = command(*mine(), "--dry-run")
    assert "3 runs, all done." in shown
    assert calls(tmp_path) == {0: 1, 1: 1, 2: 1}
    command(*mine(), "-j", 0, "--fresh")
    assert calls(tmp_path) == {0: 2, 1: 2, 2: 2}


def test_the_bar_counts_done_and_failed_runs(monkeypatch, tmp_path):
    made_runs.install(monkeypatch)
    monkeypatch.setattr(reproduce, "console", Console(file=io.StringIO(), force_terminal=True))
    run_experiment(made(tmp_path).changed(parse_changes([], [0])), tmp_path)
    seen = []
    with display(reproduce.console, transient=True) as bars:
        watch = reproduce._Watch(bars)

        def note(schedule):
            watch(schedule)
            (bar,) = bars.tasks
            seen.append((bar.description, bar.completed, bar.total))

        monkeypatch.setattr(made_runs, "misbehave", fail_with_seed_1)
        run_experiment(made(tmp_path), tmp_path, watch=note)
    failed = "runs, 1 failed"
    assert seen == [("runs", 1, 3), (failed, 2, 3), (failed, 3, 3)]
    assert bars.tasks[0].start_time is not None  # so that it can say how much time is left


def fail_with_seed_1(config):
    if config.seed == 1:
        raise ValueError


@pytest.mark.slow
@pytest.mark.parametrize("where", [("--cluster", "local:1"), ("--jobs", 2)])
def test_a_cluster_and_processes(command, tmp_path, mine, where):
    code, shown = command(*mine('behavior = "raises"'), *where)
    assert code == 1
    assert "Runs computed: 2, already done: 0, failed: 1" in shown
    assert str(os.getpid()) not in (tmp_path / "calls").read_text().split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig9",), "Error: there is no experiment 'fig9'; did you mean"),
        (("--seed", "x"), "Invalid value for '--seed'"),
        (("--seed", "-1"), "--seed"),
        (("--jobs", 2, "--cluster", "local:2"), "--jobs and --cluster were both given"),
        (("--cluster", "nowhere"), "the cluster is 'nowhere'; expected 'local:N'"),
        (("--jobs", -1), "Invalid value for '--jobs'"),
    ],
)
def test_wrong_use(command, tmp_path, mine, arguments, message):
    code, shown = command(*mine(), *arguments)
    assert code == 2
    assert message in shown
    assert "Traceback" not in shown
    assert calls(tmp_path) == {}


def test_no_such_command(command):
    code, shown = command("repoduce", "fig1")
    assert code == 2
    assert "No such command 'repoduce'" in shown


COMMAND = """
from support import made_runs
from retarget.cli import main
from retarget.lab.experiment import families

if __name__ == "__main__":
    families()["made"] = made_runs.FAMILY
    main()
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(tmp_path, mine):
    arguments = mine('behavior = "waits"')
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    command = subprocess.Popen(
        [sys.executable, script, *map(str, arguments), "-j", "2"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C reaches all processes of the group
    )
    runs = tmp_path / "results" / "runs"
    while not (tmp_path / "waiting").exists() or len(list(runs.glob("*/run.json"))) < 2:
        assert command.poll() is None
        time.sleep(0.05)
    os.killpg(command.pid, signal.SIGINT)
    shown, errors = command.communicate(timeout=60)
    assert command.returncode == 130
    assert errors == ""  # no process cries out
    assert f"Stopped. 2 runs are done and kept in {tmp_path}" in " ".join(shown.split())
    pids = {int(line.split()[1]) for line in (tmp_path / "calls").read_text().splitlines()}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
