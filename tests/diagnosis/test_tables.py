"""A diagnosis as tables, as JSON and on the terminal."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

import retarget as rt
from retarget.diagnosis.answers import UNKNOWN
from retarget.diagnosis.report.export import (
    as_json,
    corrected_table,
    most_distorted,
    shift_table,
)
from retarget.diagnosis.report.terminal import Screen, everything
from retarget.diagnosis.result import Approximation, Stability
from support.real_diagnosis import classification, regression, weather


def test_shifts_in_the_users_units():
    diagnosis = regression()
    stream, table = diagnosis.stream, shift_table(diagnosis)
    assert table.columns == [
        *("row", "time", "group"),
        *("true:temperature", "effective:temperature", "shift:temperature", "error:temperature"),
        *("true:humidity", "effective:humidity", "shift:humidity", "error:humidity"),
        *("shift_size", "changed", "density"),
    ]
    assert table["row"].to_list() == list(range(200, 40, -1))
    assert table["group"].to_list() == stream.groups.tolist()
    for k, target in enumerate(stream.target_names):
        mean, scale = stream.target_means[k], stream.target_scales[k]
        expected = {
            "true": stream.Y[:, k] * scale + mean,
            "effective": diagnosis.effective[:, k] * scale + mean,
            "shift": (diagnosis.effective - stream.Y)[:, k] * scale,
            "error": diagnosis.prequential[:, k] * scale,
        }
        for part, values in expected.items():
            np.testing.assert_allclose(table[f"{part}:{target}"], values, rtol=1e-12)
    size = np.sqrt(((diagnosis.effective - stream.Y) ** 2).sum(axis=1))
    np.testing.assert_allclose(table["shift_size"], size, rtol=1e-12)
    assert table["changed"].to_list() == diagnosis.changed.tolist()
    first = most_distorted(diagnosis, count=3)["row"].to_list()
    assert first == table["row"].to_numpy()[np.argsort(-size)[:3]].tolist()
    assert len(most_distorted(diagnosis)) == 10
    diagnosis = classification()  # classes have names
    table = shift_table(diagnosis)
    assert table.columns[:4] == ["row", "group", "true_class", "effective_class"]
    assert table["true_class"].to_list() == diagnosis.stream.groups.tolist()
    effective = [f"class {k}" for k in diagnosis.effective.argmax(axis=1)]
    assert table["effective_class"].to_list() == effective


def test_rows_have_the_same_number_everywhere():
    diagnosis = regression()
    file = weather(200, [""] * 200)  # the latest day first
    for table in (shift_table(diagnosis), corrected_table(diagnosis)):
        np.testing.assert_allclose(
            table["true:humidity"], file["humidity"].to_numpy()[table["row"].to_numpy() - 1]
        )
    ten = most_distorted(diagnosis)["row"].to_list()
    assert [row["row"] for row in as_json(diagnosis)["most_distorted"]] == ten
    for row in ten:
        assert f"│ {row} │" in shown(diagnosis)


def test_corrected_targets_in_the_users_units():
    diagnosis = regression()
    stream = diagnosis.stream
    table = corrected_table(diagnosis)
    assert table.columns[:3] == ["row", "time", "group"]
    for part, targets in (
        ("true", stream.Y),
        ("corrected", diagnosis.corrected),
        ("iterative", diagnosis.iterative),
    ):
        expected = targets[:, 1] * stream.target_scales[1] + stream.target_means[1]
        np.testing.assert_allclose(table[f"{part}:humidity"], expected, rtol=1e-12)
    without = replace(diagnosis, iterative=np.full_like(stream.Y, np.nan))
    assert corrected_table(without)["iterative:humidity"].null_count() == len(stream)


CORRECTED = ("corrected", "iterative")


@pytest.mark.parametrize("real", [regression, classification])
def test_json_has_no_nan(real):
    real = real()
    diagnosis = replace(
        real,
        approximation=Approximation(64, "nystroem", 10**10, 10**9, 100, 0.1, np.nan, 0.2),
        stability=Stability(np.inf, np.nan),
        answers=(replace(real.answers[0], gap_closed=dict.fromkeys(CORRECTED, UNKNOWN)),),
    )
    found = json.loads(json.dumps(as_json(diagnosis), allow_nan=False))
    assert found["rows"] == len(real.stream)
    (answer,) = found["answers"]
    assert answer["scores"][1]["error"] == real.scores[1].error._asdict()
    assert (answer["scores"][1]["accuracy"] is None) == (real.stream.kind == "regression")
    assert answer["gap_closed"]["iterative"] == {"value": None, "low": None, "high": None}
    assert found["stability"] == {"largest_lr": None, "non_normality": None}
    assert found["approximation"]["shift_error"] is None
    assert found["lr"]["tried"] == real.lr.tried.to_dicts()
    assert found["groups"]["pull"] == real.groups.pull.tolist()
    assert found["shift"]["rows_changed"] == real.changed.sum()
    assert found["shift"]["largest_size"] == pytest.approx(real.shift_size.max())


def shown(diagnosis, compared=()):
    """What `--verbose` prints."""
    console = Console(file=io.StringIO(), width=160, emoji=False)
    for part in everything(diagnosis, compared, Screen(width=160)):
        console.print(part)
    return " ".join(console.file.getvalue().split())  # a title is wrapped to its table


def test_verbose_shows_scores_rows_and_verdict():
    diagnosis = regression()
    text, error = shown(diagnosis), diagnosis.score("online").error
    for words in (
        "tested on its last 40 rows (the next ones), which no learner has seen",
        "Features used: season, age, wind.",
        *("Online, iteratively corrected", f"{error.value:,.0f}"[:-1], "Effective target"),
        *("The most overwritten rows of 160", "Note: Sorted the rows by 'day'"),
        *(diagnosis.verdict.headline, f"- {diagnosis.verdict.recommendations[0]}"),
    ):
        assert words in text
    # what is not known is said to be so
    (answer,) = diagnosis.answers
    scores = (*answer.scores[:3], replace(answer.scores[3], error=UNKNOWN, loss=UNKNOWN))
    lost = replace(answer, scores=scores, gap_closed=dict.fromkeys(CORRECTED, UNKNOWN))
    text = shown(replace(diagnosis, answers=(lost,)))
    assert "nan" not in text
    assert re.search(r"iteratively corrected │ not defined", text)


def test_cells_are_no_markup_on_the_terminal():
    hostile = ["[red]x[/red]", ":rocket:", "\x1b[31mred", "two\nlines", "x" * 500, "[/]"]
    real = classification()
    times = np.array((hostile * 50)[: len(real.stream)], dtype=object)
    failures = ("[red]\x1b[2J",)
    stream = replace(real.stream, times=times, target_names=("[bold]dog", *"abc"))
    size = np.zeros_like(real.effective)
    size[:6] = 9  # these are the most distorted rows
    text = shown(replace(real, stream=stream, failures=failures, effective=stream.Y + size))
    for words in (
        "[red]x[/red]",
        ":rocket:",
        "\ufffd[31mred",
        "two\ufffdlines",
        "x…x",
        "[/]",
        "[red]·[2J",
        "[bold]dog",
    ):
        assert words in text
    assert "\x1b" not in text
    assert "share of rows whose class is right" in text


def test_a_diagnosis_shows_and_saves_itself(tmp_path):
    diagnosis = classification()
    assert isinstance(diagnosis, rt.Diagnosis)
    summary = " ".join(diagnosis.summary.split())
    assert summary.startswith(diagnosis.verdict.headline)
    assert re.search(r"Online model \d+% \(\d", summary)
    assert diagnosis.table().equals(shift_table(diagnosis))
    diagnosis.to_parquet(str(tmp_path / "new" / "shift.parquet"))
    assert pl.read_parquet(tmp_path / "new" / "shift.parquet").equals(diagnosis.table())
    diagnosis.to_html(tmp_path / "report.html", command="retarget diagnose it")
    assert "retarget diagnose it" in (tmp_path / "report.html").read_text("utf-8")
