"""Names and cells that try to be markup, scripts or commands: they stay text, wherever they go."""

import json
import re
from html.parser import HTMLParser

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


def written(path, classes):
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=60) for name in HOSTILE[:6]}
    columns |= {"who " + HOSTILE[6]: [HOSTILE[k % len(HOSTILE)] for k in range(60)]}
    target = [HOSTILE[k % 4] for k in range(60)] if classes else rng.normal(size=60)
    pl.DataFrame(columns | {HOSTILE[7] + HOSTILE[0]: target}).write_csv(path)
    return ["--target", HOSTILE[7] + HOSTILE[0], "--group", "who " + HOSTILE[6]]


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self._in = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self._in = tag

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        self.texts.append((self._in, data))


@pytest.mark.parametrize("classes", [True, False])
def test_a_report_and_a_terminal_show_them_as_text(command, monkeypatch, tmp_path, classes):
    monkeypatch.chdir(tmp_path)
    roles = written("t.csv", classes)
    code, shown = command(
        "diagnose", "t.csv", *roles, "--lr", "0.1", "--gamma", "1",
        "--out", "out",
    )  # fmt: skip
    assert code == 0, shown
    assert not UNSEEN.search(shown)
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert page.tags.count("script") == 3  # the charts' data, Plotly, and ours
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not [v for name, v in page.attributes if name in ("href", "src") and "javascript" in v]
    data = next(text for tag, text in page.texts if tag == "script")
    charts = json.dumps(json.loads(data), ensure_ascii=False)
    assert not UNSEEN.search(charts)
    assert "<script" not in charts  # Plotly, too, is given it as text
    body = "".join(text for tag, text in page.texts if tag not in ("script", "style"))
    assert not UNSEEN.search(body)
    assert "<script>window.hacked=1" in body
    assert r"--target '\u202eesrever" in body  # in the command, spelled out


def test_a_formula_stays_as_it_is_in_what_is_written(command, monkeypatch, tmp_path):
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


def test_an_error_that_quotes_a_name_is_one_line(command, monkeypatch, tmp_path):
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
