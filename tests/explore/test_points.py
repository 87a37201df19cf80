from pathlib import Path

import numpy as np
import polars as pl
import pytest

from retarget.data.toy import toy_curve
from retarget.errors import InvalidInputError
from retarget.experiments.reader import load_experiment
from retarget.explore.state import FIG_1_SEED, file_opening, toy_opening


def test_the_page_opens_with_the_setting_of_fig_1():
    state, experiment, toy = toy_opening().state, load_experiment("fig1"), toy_curve(FIG_1_SEED)
    assert list(experiment.seeds) == [FIG_1_SEED]
    assert (state.lr, state.gamma) == (experiment.parameters["lr"], experiment.parameters["gamma"])
    np.testing.assert_allclose(state.x, toy.x_train, atol=5e-4)
    np.testing.assert_allclose(state.y, toy.y_train, atol=5e-4)
    assert state.width**2 == pytest.approx(0.1)


def write(tmp_path, **columns):
    path = tmp_path / "stream.csv"
    pl.DataFrame(columns).write_csv(path)
    return path


def test_a_file_in_its_own_units_and_order(tmp_path):
    path = write(tmp_path, when=[30, 10, 20, 70], heat=[1002.0, 1001.0, 1003.5, 1000.0], name="a")
    opening = file_opening(path, "when", "heat")
    state = opening.state
    assert (opening.title, opening.x_name, opening.y_name) == ("stream.csv", "when", "heat")
    assert state.x == [30.0, 10.0, 20.0, 70.0]
    assert state.y == [1002.0, 1001.0, 1003.5, 1000.0]
    assert (state.low, state.high, state.seen) == (7.0, 73.0, 4)
    assert state.width == 30.0  # the median of 10, 10, 20, 40, 50, 60
    assert state.start == 1002.0  # the mean, 1001.6, to four digits


def test_points_at_one_place(tmp_path):
    state = file_opening(write(tmp_path, x=[3, 3], y=[1, 2]), "x", "y").state
    assert (state.low, state.high, state.width) == (2.0, 4.0, 1.0)


@pytest.mark.parametrize(
    ("columns", "x", "y", "message"),
    [
        ({"a": [1], "b": [2]}, None, "b", "has the columns 'a', 'b'; say which two are drawn"),
        ({"a": [1], "b": [2]}, "a", None, "say which two are drawn: --x COL --target COL"),
        ({"a": [1], "b": [2]}, "c", "b", "has no column 'c'; expected one of 'a', 'b'"),
        ({"a": ["u"], "b": [2]}, "a", "b", "the column 'a' of stream.csv holds String; expected"),
        ({"a": [1, 2], "b": [None, 2.5]}, "a", "b", "1 of the 2 values of 'b' are missing.*row 0"),
        (
            {"a": [1.0, 1e13], "b": [1, 2]},
            "a",
            "b",
            "1 of the 2 values of 'a'.*beyond 1e.12.*row 1",
        ),
        ({"a": range(501), "b": range(501)}, "a", "b", "has 501 rows; the page shows 1 to 500"),
        ({"a": [], "b": []}, "a", "b", "has 0 rows; the page shows 1 to 500"),
    ],
)
def test_what_cannot_be_drawn_is_explained(monkeypatch, columns, x, y, message):
    table = pl.DataFrame(columns)
    monkeypatch.setattr("retarget.explore.state.read_table", lambda path: table)
    with pytest.raises(InvalidInputError, match=message):
        file_opening(Path("stream.csv"), x, y)
