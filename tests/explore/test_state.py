import json

import pytest
from pydantic import ValidationError

from retarget.explore.state import State

GOOD = {"x": [0.0, 1.0], "y": [1, 2.5], "low": -1.0, "high": 2.0, "width": 0.5, "seen": 2}


def read(**changes):
    return State.model_validate_json(json.dumps(GOOD | changes))


def test_a_setting_is_read_from_json():
    state = read(order="by x", momentum=0.5)
    assert state.y == [1.0, 2.5]
    assert state.learner.momentum == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [0.0]}, "1 x for 2 y; expected as many"),
        ({"x": [], "y": []}, "at least 1 item"),
        ({"x": [0.0] * 501, "y": [0.0] * 501}, "at most 500 items"),
        ({"seen": 3}, "3 samples seen of 2; expected no more"),
        ({"seen": -1}, "greater than or equal to 0"),
        ({"seen": 1.5}, "valid integer"),
        ({"low": 2.0}, "expected low < high"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"y": [0.0, float("inf")]}, "y.1"),
        ({"y": [0.0, 1e300]}, "less than or equal to"),
        ({"gamma": -1.0}, "gamma"),
        ({"width": "1"}, "valid number"),
        ({"momentum": 1.0}, "momentum"),
        ({"batch_size": True}, "valid integer"),
        ({"order": "by luck"}, "'as given', 'reversed', 'by x' or 'random'"),
        ({"colour": "red"}, "Extra inputs are not permitted"),
    ],
)
def test_what_has_no_meaning_is_refused(changes, message):
    with pytest.raises(ValidationError) as refused:
        read(**changes)
    assert message in str(refused.value)
