import json

import numpy as np
import pytest

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError


def test_a_description_survives_json_and_cannot_be_changed():
    learner = rt.SGD(lr=np.array([0.3, 0.1]), batch_size=np.int64(4), momentum=0.9, nesterov=True)
    again = rt.SGD(**json.loads(json.dumps(learner.to_dict())))
    assert again == learner
    assert hash(again) == hash(learner)
    with pytest.raises(AttributeError):
        learner.lr = 0.2


def test_steps_rates_and_memory():
    learner = rt.SGD(lr=0.5, batch_size=3, reduction="mean")
    assert [learner.steps(n) for n in (0, 1, 3, 4, 9)] == [0, 1, 1, 2, 3]
    np.testing.assert_array_equal(learner.rates(7), [0.5, 0.5, 0.5])
    assert learner.rate(1000) == 0.5
    schedule = rt.SGD(lr=[0.3, 0.2, 0.1], batch_size=3)
    np.testing.assert_array_equal(schedule.rates(7), [0.3, 0.2, 0.1])
    assert schedule.rate(2) == 0.1
    with pytest.raises(InvalidInputError, match="ends after 3 steps, but .* step 4"):
        schedule.rate(3)
    having = learner, rt.SGD(lr=0.1, momentum=0.1), rt.SGD(lr=0.1, weight_decay=0.1)
    assert [each.has_memory for each in having] == [False, True, True]


INFINITE, MISSING = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", 0.0, "lr is 0.0; expected a positive, finite rate"),
        ("lr", -1, "lr is -1.0"),
        ("lr", MISSING, "lr is nan"),
        ("lr", [0.1, INFINITE], "lr at step 1 is inf"),
        ("lr", [], "the lr schedule is empty"),
        ("batch_size", 0, "batch_size is 0; expected 1 or more"),
        ("momentum", 1.0, "momentum is 1.0; expected 0 <= momentum < 1"),
        ("momentum", -0.1, "momentum is -0.1"),
        ("weight_decay", -0.1, "weight_decay is -0.1; expected 0 or more"),
        ("weight_decay", MISSING, "weight_decay is nan"),
        ("nesterov", True, "nesterov=True needs a momentum above 0"),
        ("reduction", "none", "'none'; expected 'sum' or 'mean'"),
    ],
)
def test_what_has_no_meaning(name, value, message):
    with pytest.raises(InvalidInputError, match=message):
        rt.SGD(**({"lr": 0.1} | {name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", "fast"), ("lr", True), ("lr", None), ("batch_size", 2.0), ("batch_size", True)],
)
def test_what_is_no_number(name, value):
    with pytest.raises(InvalidTypeError, match=f"{name} is {value!r}; expected a .*number"):
        rt.SGD(**({"lr": 0.1} | {name: value}))
