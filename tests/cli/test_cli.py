import subprocess
import sys
from pathlib import Path

import pytest

import retarget as rt
from retarget.experiments.reader import experiment_names
from support.command_line import run


def test_version(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version") == (0, f"retarget {rt.__version__}")


def test_help_lists_every_figure(monkeypatch, capsys):
    code, shown = run(monkeypatch, capsys, "reproduce", "--help")
    assert code == 0
    for word in ("fig1", "fig4", "digits", "all", "--seed", "--out", "--fresh"):
        assert word in shown


def test_no_arguments_show_the_help(monkeypatch, capsys):
    code, shown = run(monkeypatch, capsys)
    assert code == 2
    assert "reproduce" in shown


def test_a_figure_from_the_command(monkeypatch, capsys, tmp_path):
    arguments = ("reproduce", "fig1", "fig1", "--seed", 7, "--out", tmp_path)
    code, shown = run(monkeypatch, capsys, *arguments)
    assert code == 0
    assert shown.count("Runs computed: 1, found finished: 0") == 1
    assert (tmp_path / "fig1" / "fig1.png").is_file()
    code, shown = run(monkeypatch, capsys, *arguments)
    assert "Runs computed: 0, found finished: 1" in shown
    code, shown = run(monkeypatch, capsys, *arguments, "--fresh")
    assert "Runs computed: 1, found finished: 0" in shown


def test_all_means_every_figure(monkeypatch, capsys, tmp_path):
    names = []
    monkeypatch.setattr(
        "retarget.cli.reproduce._reproduce", lambda e, *_: names.append(e.name) or 0
    )
    assert run(monkeypatch, capsys, "reproduce", "all", "--out", tmp_path)[0] == 0
    assert names == experiment_names()
    assert len(names) > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "fig9"), "Error: there is no experiment 'fig9'; did you mean"),
        (("reproduce", "fig1", "fgi4"), "Error: there is no experiment 'fgi4'"),
        (("reproduce",), "Missing argument 'FIGURE'"),
        (("reproduce", "fig1", "--seed", "x"), "Invalid value for '--seed'"),
        (("reproduce", "fig1", "--seed", "-1"), "greater than or equal to 0"),
        (("repoduce", "fig1"), "No such command 'repoduce'"),
    ],
)
def test_wrong_use_is_explained_with_exit_code_2(monkeypatch, capsys, arguments, message):
    code, shown = run(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in shown
    assert "Traceback" not in shown


def test_a_results_folder_that_is_a_file(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, shown = run(monkeypatch, capsys, "reproduce", "fig1", "--out", tmp_path / "file")
    assert code == 2
    assert "Error:" in shown
    assert "Traceback" not in shown


def test_installed_as_a_command():
    command = Path(sys.executable).parent / "retarget"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"retarget {rt.__version__}"
