import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from retarget.data.toy import toy_curve
from retarget.errors import InvalidInputError
from retarget.experiments.reader import load_experiment
from retarget.explore.state import FIG_1_SEED, State, file_opening, toy_opening

GOOD = {"x": [0.0, 1.0], "y": [1, 2.5], "low": -1.0, "high": 2.0, "width": 0.5, "seen": 2}


def read(**changes):
    return State.model_validate_json(json.dumps(GOOD | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [0.0]}, "1 x for 2 y; expected the same"),
        ({"x": [], "y": []}, "at least 1 item"),
        ({"x": [0.0] * 501, "y": [0.0] * 501}, "at most 500 items"),
        ({"seen": 3}, "3 samples seen of 2; expected at most"),
        ({"low": 2.0}, "expected low < high"),
        ({"lr": float("nan")}, "lr"),
        ({"y": [0.0, 1e300]}, "less than or equal to"),
        ({"width": "1"}, "valid number"),
        ({"momentum": 1.0}, "momentum"),
        ({"order": "by luck"}, "'as given', 'reversed', 'by x' or 'random'"),
        ({"colour": "red"}, "Extra inputs are not permitted"),
    ],
)
def test_what_has_no_meaning_is_refused(changes, message):
    assert read(order="by x", momentum=0.5).learner.momentum == 0.5
    with pytest.raises(ValidationError) as refused:
        read(**changes)
    assert message in str(refused.value)


def test_the_page_opens_with_the_setting_of_fig_1():
    state, experiment, toy = toy_opening().state, load_experiment("fig1"), toy_curve(FIG_1_SEED)
    assert list(experiment.seeds) == [FIG_1_SEED]
    assert (state.lr, state.gamma) == (experiment.parameters["lr"], experiment.parameters["gamma"])
    np.testing.assert_allclose(state.x, toy.x_train, atol=5e-4)
    np.testing.assert_allclose(state.y, toy.y_train, atol=5e-4)
    assert state.width**2 == pytest.approx(0.1)


def test_a_file_in_its_own_units_and_order(tmp_path):
    path, x, y = tmp_path / "stream.csv", [30.0, 10.0, 20.0, 70.0], [1002.0, 1001.0, 1003.5, 1000.0]
    pl.DataFrame({"when": x, "heat": y, "name": "a"}).write_csv(path)
    opening = file_opening(path, "when", "heat")
    state = opening.state
    assert (opening.title, opening.x_name, opening.y_name) == ("stream.csv", "when", "heat")
    assert (state.x, state.y) == (x, y)
    assert (state.low, state.high, state.seen) == (7.0, 73.0, 4)
    assert state.width == 30.0  # the median of 10, 10, 20, 40, 50, 60
    assert state.start == 1002.0  # the mean, 1001.6, to four digits
    pl.DataFrame({"x": [3, 3], "y": [1, 2]}).write_csv(path)  # at one place
    state = file_opening(path, "x", "y").state
    assert (state.low, state.high, state.width) == (2.0, 4.0, 1.0)


AB = {"a": [1], "b": [2]}


@pytest.mark.parametrize(
    ("columns", "x", "message"),
    [
        (AB, None, "has the columns 'a', 'b'; choose two of them: --x COL --target COL"),
        (AB, "c", "has no column 'c'; it has 'a', 'b'"),
        (AB | {"a": ["u"]}, "a", "'a' of stream.csv holds String; expected"),
        ({"a": [1, 2], "b": [None, 2.5]}, "a", "1 of the 2 values of 'b' are missing.*row 0"),
        ({"a": [1.0, 1e13], "b": [1, 2]}, "a", "1 of the 2 values of 'a'.*beyond 1e.12.*row 1"),
        ({"a": range(501), "b": range(501)}, "a", "has 501 rows; the page shows 1 to 500"),
        ({"a": [], "b": []}, "a", "has 0 rows; the page shows 1 to 500"),
    ],
)
def test_what_cannot_be_drawn_is_explained(monkeypatch, columns, x, message):
    table = pl.DataFrame(columns)
    monkeypatch.setattr("retarget.explore.state.read_table", lambda path: table)
    with pytest.raises(InvalidInputError, match=message):
        file_opening(Path("stream.csv"), x, "b")
