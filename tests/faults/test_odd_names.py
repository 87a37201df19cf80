"""Names and cells that try to be markup, scripts or commands: they stay text, wherever they go."""

import re

import numpy as np
import polars as pl
import pytest

pytestmark = pytest.mark.faults

HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><!--<script>",
    '"onload="alert(1)',
    "'><img src=x onerror=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "[red]markup[/red][link=http://x]",
    "\x1b[2J\x1b]0;title\x07",
    "\u202eesrever\u2066",
    "=cmd|' /C calc'!A0",
    "x" * 3000,
    ":rocket:",
    "two\nlines\tand\rmore",
]
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")


def test_formulas_are_written_as_they_are(command, monkeypatch, tmp_path):
    """A table of data is not for a spreadsheet to run, and is not changed: see SECURITY.md."""
    monkeypatch.chdir(tmp_path)
    table = pl.DataFrame(
        {"who": ["=1+1", "@x", "+1", "-1a"] * 10, "a": np.arange(40.0), "y": np.sin(np.arange(40))}
    )
    table.write_csv("t.csv")
    code, shown = command(
        "correct", "t.csv", "--target", "y", "--group", "who", "--lr", "0.1",
        "--gamma", "1", "--out", "out.csv",
    )  # fmt: skip
    assert code == 0, shown
    assert pl.read_csv("out.csv")["group"].to_list() == table["who"].to_list()


def test_an_error_with_a_name_is_one_line(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in HOSTILE:
        pl.DataFrame({name: [1.0, 2.0], "b": [1.0, 2.0]}).write_csv("t.csv")
        code, shown = command("diagnose", "t.csv", "--target", "nothing")
        assert code == 2
        assert not UNSEEN.search(shown)
        assert "there is no column 'nothing'" in shown
        assert len(shown) < 400


SPECIAL = ["*", "count", "row", "time", "y0", "len"]


@pytest.mark.parametrize(
    "name", ["$.*^", "group", "", *(pytest.param(name, marks=pytest.mark.slow) for name in SPECIAL)]
)
def test_a_name_that_means_something_elsewhere(command, monkeypatch, tmp_path, name):
    """To Polars, or in our own tables: here it is the name of a column."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    written, words, numbers = name or "column_2", list("abc") * 20, rng.normal(size=60)
    feature, target, group = ["--target", "y"], ["--target", written], ["--group", written]
    for values, roles in ((words, target), (words, feature + group), (numbers, feature)):
        table = pl.DataFrame({"a": rng.normal(size=60), name: values, "y": rng.normal(size=60)})
        table.write_csv("t.csv")
        code, shown = command("correct", "t.csv", *roles, "--lr", "0.1", "--gamma", "1")
        assert code == 0, shown
