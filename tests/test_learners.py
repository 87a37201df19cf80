import json

import numpy as np
import pytest

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError


def test_a_description_survives_json():
    learner = rt.SGD(lr=np.array([0.3, 0.1]), batch_size=np.int64(4), momentum=0.9, nesterov=True)
    again = rt.SGD(**json.loads(json.dumps(learner.to_dict())))
    assert again == learner
    assert hash(again) == hash(learner)


def test_steps_and_rates():
    learner = rt.SGD(lr=0.5, batch_size=3)
    assert [learner.steps(n) for n in (0, 1, 3, 4, 9)] == [0, 1, 1, 2, 3]
    np.testing.assert_array_equal(learner.rates(7), [0.5, 0.5, 0.5])
    assert learner.rate(1000) == 0.5
    schedule = rt.SGD(lr=[0.3, 0.2, 0.1], batch_size=3)
    np.testing.assert_array_equal(schedule.rates(7), [0.3, 0.2, 0.1])
    assert schedule.rate(2) == 0.1


def test_a_schedule_that_ends_too_soon():
    learner = rt.SGD(lr=[0.3, 0.2])
    with pytest.raises(InvalidInputError, match="ends after 2 steps, but .* step 3"):
        learner.rate(2)


@pytest.mark.parametrize(
    ("learner", "memory"),
    [
        ({}, False),
        ({"batch_size": 7, "reduction": "mean"}, False),
        ({"momentum": 0.1}, True),
        ({"weight_decay": 0.1}, True),
    ],
)
def test_has_memory(learner, memory):
    assert rt.SGD(lr=0.1, **learner).has_memory is memory


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": 0.0}, InvalidInputError, "lr is 0.0; expected a positive, finite rate"),
        ({"lr": -1}, InvalidInputError, "lr is -1.0"),
        ({"lr": float("nan")}, InvalidInputError, "lr is nan"),
        ({"lr": [0.1, float("inf")]}, InvalidInputError, "lr at step 1 is inf"),
        ({"lr": []}, InvalidInputError, "the lr schedule is empty"),
        ({"batch_size": 0}, InvalidInputError, "batch_size is 0; expected 1 or more"),
        ({"momentum": 1.0}, InvalidInputError, "momentum is 1.0; expected 0 <= momentum < 1"),
        ({"momentum": -0.1}, InvalidInputError, "momentum is -0.1"),
        ({"weight_decay": -0.1}, InvalidInputError, "weight_decay is -0.1; expected 0 or more"),
        ({"weight_decay": float("nan")}, InvalidInputError, "weight_decay is nan"),
        ({"nesterov": True}, InvalidInputError, "nesterov=True needs a momentum above 0"),
        ({"reduction": "none"}, InvalidInputError, "'none'; expected 'sum' or 'mean'"),
        ({"lr": "fast"}, InvalidTypeError, "lr is 'fast'; expected a number"),
        ({"lr": True}, InvalidTypeError, "lr is True; expected a number"),
        ({"lr": None}, InvalidTypeError, "lr is None"),
        ({"batch_size": 2.0}, InvalidTypeError, "batch_size is 2.0; expected a whole number"),
        ({"batch_size": True}, InvalidTypeError, "batch_size is True"),
        ({"momentum": "heavy"}, InvalidTypeError, "momentum is 'heavy'"),
    ],
)
def test_what_has_no_meaning(options, error, message):
    with pytest.raises(error, match=message):
        rt.SGD(**({"lr": 0.1} | options))


def test_a_learner_cannot_be_changed():
    with pytest.raises(AttributeError):
        rt.SGD(lr=0.1).lr = 0.2
