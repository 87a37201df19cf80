"""Which rows are held out, and what is refused."""

import numpy as np
import pytest

import retarget as rt
from retarget.diagnosis.measure.compare import part, split
from support.diagnosis_streams import as_stream, classes, drifting


def test_the_last_part_is_held_out():
    stream = classes(50)
    parted = split(stream, None, "last part", 0.3)
    assert (len(parted.stream), len(parted.test)) == (35, 15)
    assert parted.test.rows.tolist() == list(range(35, 50))
    assert parted.test.groups.tolist() == stream.groups[35:].tolist()
    assert (np.vstack([parted.stream.X, parted.test.X]) == stream.X).all()
    assert len(split(drifting(3), None, "last part", 0.9).stream) == 2
    assert len(split(drifting(3), None, "last part", 0.01).test) == 1


def test_a_given_test_set_is_used_whatever_the_default():
    stream, test = drifting(10), drifting(4, seed=1)
    for evaluation in ("last part", "test set"):
        parted = split(stream, test, evaluation, 0.2)
        assert parted.stream is stream
        assert parted.test is test
        assert parted.evaluation == "test set"
    assert split(stream, None, "progressive", 0.2).test is None


def test_part_keeps_times():
    stream = drifting(4)
    timed = as_stream(stream.X, stream.Y)
    object.__setattr__(timed, "times", np.array(["a", "b", "c", "d"]))
    assert part(timed, slice(1, 3)).times.tolist() == ["b", "c"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"evaluation": "never"}, r"evaluation is 'never'; expected one of"),
        ({"evaluation": "test set"}, r"no test rows were given"),
        ({"evaluation": "progressive", "test": drifting(5)}, r"'progressive', which uses none"),
        ({"test_share": 1.0}, r"test_share is 1.0; expected a share between 0 and 1"),
        ({"stream": drifting(2)}, r"there are 2 rows; expected at least 3 to learn from and hold"),
        ({"stream": drifting(3), "test": drifting(5, 2)}, r"2 features and 2 targets, the stream"),
        ({"stream": as_stream(np.ones((3, 1)), np.ones((2, 1)))}, r"Y of shape \(2, 1\)"),
        ({"stream": as_stream(np.ones((3, 0)), np.ones((3, 1)))}, r"X of shape \(3, 0\)"),
        ({"stream": as_stream(np.array([[0.0], [np.nan], [1.0]]), np.ones((3, 1)))},
         r"not a finite number in row 1 of X"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(change, match):
    asked = {"stream": drifting(9), "test": None, "evaluation": "last part", "test_share": 0.2}
    with pytest.raises(rt.errors.InvalidInputError, match=match):
        split(**(asked | change))
