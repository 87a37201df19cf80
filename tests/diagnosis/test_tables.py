import io
import json
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

import retarget as rt
from retarget.diagnosis.report.export import as_json, corrected_table, most_distorted, shift_table
from retarget.diagnosis.report.terminal import terminal_parts
from retarget.diagnosis.result import Approximation, Estimate
from support.hand_made_diagnosis import a_stream, diagnosis_of, standing_in


def test_the_table_of_shifts_is_in_the_users_units():
    stream = a_stream()
    table = shift_table(diagnosis_of(stream))
    assert table.columns == [
        *("row", "time", "group"),
        *("true:price", "effective:price", "shift:price", "error:price"),
        *("true:<b>size", "effective:<b>size", "shift:<b>size", "error:<b>size"),
        *("shift_size", "changed", "density"),
    ]
    assert table["row"].to_list() == [5, 4, 3, 2, 1, 0]
    assert table["group"][0] == "=1+1"
    np.testing.assert_allclose(table["true:price"], stream.Y[:, 0] * 2 + 10, atol=1e-12)
    np.testing.assert_allclose(table["shift:price"], 2.0 * np.arange(6), atol=1e-12)
    np.testing.assert_allclose(table["shift:<b>size"], 0.5 * np.arange(6), atol=1e-12)
    np.testing.assert_allclose(
        table["effective:<b>size"] - table["true:<b>size"], table["shift:<b>size"], atol=1e-12
    )
    np.testing.assert_allclose(table["error:<b>size"], [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], atol=1e-12)
    np.testing.assert_allclose(table["shift_size"], np.sqrt(2) * np.arange(6), atol=1e-12)
    assert table["changed"].to_list() == [False, True] * 3


def test_classes_have_names_in_the_table():
    stream = a_stream(kind="classification", groups=None, times=None)
    diagnosis = replace(diagnosis_of(stream), effective=stream.Y[:, ::-1] * 3)
    table = shift_table(diagnosis)
    assert table.columns[:3] == ["row", "true_class", "effective_class"]
    assert table["true_class"].to_list() == ["cat", "[bold]dog"] * 3
    assert table["effective_class"].to_list() == ["[bold]dog", "cat"] * 3


def test_corrected_targets_are_in_the_users_units():
    stream = a_stream()
    table = corrected_table(diagnosis_of(stream))
    price = stream.Y[:, 0] * 2 + 10
    numbers = np.array([0.0, 2, 4, 6, 8, 10])
    np.testing.assert_allclose(table["true:price"], price, atol=1e-12)
    np.testing.assert_allclose(table["corrected:price"], price - 2 * numbers, atol=1e-12)
    np.testing.assert_allclose(table["iterative:price"], price + 4 * numbers, atol=1e-12)
    assert table.columns[:3] == ["row", "time", "group"]


def test_what_was_not_computed_is_null():
    diagnosis = diagnosis_of(a_stream())
    without = replace(diagnosis, iterative=np.full((6, 2), np.nan))
    assert corrected_table(without)["iterative:price"].null_count() == 6


def test_the_most_distorted_rows_come_first():
    assert most_distorted(diagnosis_of(a_stream()), count=3)["row"].to_list() == [0, 1, 2]
    assert len(most_distorted(diagnosis_of(a_stream(rows=30)))) == 10


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_json_has_no_nan(kind):
    diagnosis = replace(
        diagnosis_of(a_stream(kind=kind)),
        approximation=Approximation(64, "nystroem", 10**10, 10**9, 100, 0.1, np.nan, 0.2),
    )
    found = json.loads(json.dumps(as_json(diagnosis), allow_nan=False))
    assert found["rows"] == 6
    assert found["learner"]["batch_size"] == 2
    assert found["scores"][1]["error"] == {"value": 2.0, "low": 1.5, "high": 2.5}
    assert (found["scores"][1]["accuracy"] is None) == (kind == "regression")
    assert found["gap_closed"]["iterative"] == {"value": 0.5, "low": 0.4, "high": None}
    assert found["stability"] == {"largest_lr": None, "non_normality": None}
    assert found["approximation"]["shift_error"] is None
    assert found["approximation"]["features"] == 64
    assert found["lr"]["tried"] == [{"value": 0.1, "score": 0.5}, {"value": 1.0, "score": None}]
    assert found["groups"]["names"] == ["=1+1", ":rocket: [red]x"]
    assert found["groups"]["pull"] == [[-1.0, -1.0], [-1.0, -1.0]]
    assert found["shift"]["rows_changed"] == 3
    assert found["shift"]["largest_size"] == pytest.approx(5 * np.sqrt(2))
    assert len(found["most_distorted"]) == 6
    assert found["verdict"]["recommendations"] == ["Correct the targets."]


def shown(diagnosis):
    console = Console(file=io.StringIO(), width=120, emoji=False)
    for part in terminal_parts(diagnosis):
        console.print(part)
    return console.file.getvalue()


def test_the_terminal_shows_scores_rows_and_verdict():
    text = shown(diagnosis_of(a_stream(rows=30)))
    for words in (
        "Tested on the last 4 rows of the stream, which no learner has seen; rate 0.25, gamma 0.5",
        "iteratively corrected",
        "4 (3.5 to 4.5)",
        "100% (90% to 110%)",
        "The 10 most distorted rows of 30",
        "true:<b>size",
        "It forgot.",
        "- Correct the targets.",
        "Note: Left out",
    ):
        assert words in " ".join(text.split())  # a title is wrapped to the width of its table


def test_what_is_not_known_is_a_dash():
    diagnosis = diagnosis_of(a_stream(rows=3))
    unknown = Estimate(np.nan, np.nan, np.nan)
    scores = (*diagnosis.scores[:3], replace(diagnosis.scores[3], error=unknown))
    text = shown(replace(diagnosis, scores=scores, gap_closed={"corrected": unknown}))
    assert "nan" not in text
    assert len(re.findall(r" - [│\n]", text)) == 2
    assert "50% │" in shown(diagnosis)  # without a range


def test_cells_are_no_markup_on_the_terminal():
    hostile = ["[red]x[/red]", ":rocket:", "\x1b[31mred", "two\nlines", "x" * 500, "[/]"]
    stream = a_stream(kind="classification", groups=np.array(hostile, dtype=object))
    diagnosis = diagnosis_of(stream)
    text = shown(replace(diagnosis, verdict=replace(diagnosis.verdict, headline="[red]\x1b[2J")))
    for words in ("[red]x[/red]", ":rocket:", "·[31mred", "two·lines", "x…", "[/]", "[red]·[2J"):
        assert words in text
    assert "\x1b" not in text
    assert "accuracy" in text
    assert "[bold]dog" in text


def test_a_diagnosis_shows_and_saves_itself(tmp_path, monkeypatch):
    stand = standing_in(monkeypatch)
    diagnosis = diagnosis_of(a_stream(kind="classification"))
    assert isinstance(diagnosis, rt.Diagnosis)
    assert diagnosis.summary.splitlines()[0] == "It forgot."
    assert "\nonline: error 2 (1.5 to 2.5), accuracy 0.75 (0.5 to 1)\n" in diagnosis.summary
    assert "gap closed, corrected: 100% (90% to 110%)" in diagnosis.summary
    assert diagnosis.table().equals(shift_table(diagnosis))
    diagnosis.to_parquet(str(tmp_path / "new" / "shift.parquet"))
    assert pl.read_parquet(tmp_path / "new" / "shift.parquet").equals(diagnosis.table())
    diagnosis.to_html(tmp_path / "report.html", command="retarget diagnose")
    assert (tmp_path / "report.html").read_text() == "<!doctype html>"
    assert stand.command == "retarget diagnose"
