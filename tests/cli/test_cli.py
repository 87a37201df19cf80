import subprocess
import sys
from pathlib import Path

import pytest

import retarget as rt
from retarget.experiments.reader import experiment_names


def test_a_figure_from_the_command(command, tmp_path):
    arguments = ("reproduce", "fig1", "fig1", "--seed", 7, "--out", tmp_path)
    code, shown = command(*arguments)
    assert code == 0
    assert shown.count("Runs computed: 1, found finished: 0") == 1
    assert (tmp_path / "fig1" / "fig1.png").is_file()
    code, shown = command(*arguments)
    assert "Runs computed: 0, found finished: 1" in shown
    code, shown = command(*arguments, "--fresh")
    assert "Runs computed: 1, found finished: 0" in shown


def test_all_means_every_figure(command, monkeypatch, tmp_path):
    names = []
    monkeypatch.setattr(
        "retarget.cli.reproduce._reproduce", lambda e, *_: names.append(e.name) or 0
    )
    assert command("reproduce", "all", "--out", tmp_path)[0] == 0
    assert names == experiment_names()
    assert len(names) > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "fig9"), "Error: there is no experiment 'fig9'; did you mean"),
        (("reproduce", "fig1", "fgi4"), "Error: there is no experiment 'fgi4'"),
        (("reproduce",), "Missing argument 'FIGURE'"),
        (("reproduce", "fig1", "--seed", "x"), "Invalid value for '--seed'"),
        (("reproduce", "fig1", "--seed", "-1"), "--seed"),
        (("repoduce", "fig1"), "No such command 'repoduce'"),
    ],
)
def test_wrong_use_is_explained_with_exit_code_2(command, arguments, message):
    code, shown = command(*arguments)
    assert code == 2
    assert message in shown
    assert "Traceback" not in shown


def test_installed_as_a_command():
    command = Path(sys.executable).parent / "retarget"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"retarget {rt.__version__}"
