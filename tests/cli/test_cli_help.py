"""What the commands say about themselves."""

import pytest

from retarget.cli import COMMANDS, loaded
from retarget.errors import install_line
from retarget.lab.figures import mnist
from retarget.lab.reader import experiment_names, load_experiment
from retarget.text import duration

PARTS = ["data list", "data get", "data check"] + [
    f"runs {name}" for name in ("list", "show", "clean", "export")
]


@pytest.mark.parametrize("name", ["", *COMMANDS, *PARTS])
@pytest.mark.parametrize("columns", [80, 120])
def test_options_are_whole_and_flags_without_type(command, name, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, shown = command(*name.split(), "--help")
    assert code == 0
    assert "<bool>" not in shown
    assert "…" not in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_paragraphs_can_fill_the_width(name):
    paragraphs = loaded(name).help.split("\n\n")
    assert paragraphs[0] == COMMANDS[name][1]
    assert not any("\n" in paragraph for paragraph in paragraphs)


def test_choices_that_are_long_are_in_the_text(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = " ".join(command("reproduce", "--help")[1].replace("│", "").split())
    assert "--data" in shown
    assert "One of: core50, standin." in shown


def test_without_a_figure_they_are_listed(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, shown = command("reproduce")
    assert code == 0
    assert set(experiment_names()) <= set(shown.split())
    assert "CORe50 or stand-in" in shown
    assert "6 min on a GPU" in shown


def test_fig2_without_numba_says_what_would_help(command, monkeypatch, tmp_path):
    monkeypatch.setattr(mnist, "find_spec", lambda name: None)
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    shown = command("reproduce", "fig2", "--quick", "--out", tmp_path)[1]
    runs = load_experiment("fig2").small().runs()
    images = [run.train + run.test for run in runs]
    pairs = sum(number * (number + 1) / 2 for number in images)
    assert f"The kernels of {len(runs)} runs take about {duration(pairs / 1000)} of" in shown
    assert f"seconds: {install_line('ntk')}" in shown
