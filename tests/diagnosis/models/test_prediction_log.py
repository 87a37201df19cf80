"""A log of predictions instead of a model."""

import math
from dataclasses import replace

import numpy as np
import pytest

from retarget.diagnosis.answers import UNKNOWN
from retarget.diagnosis.models.prediction_log import from_predictions
from retarget.errors import InvalidInputError
from support.diagnosis_options import options_for
from support.diagnosis_streams import classes, drifting

STREAM = replace(
    drifting(50, outputs=2),
    target_means=np.array([100.0, -3.0]),
    target_scales=np.array([5.0, 0.1]),
    groups=np.array(["a"] * 30 + ["b"] * 20),
    group_column="g",
)
rng = np.random.default_rng(0)
BEFORE, END = STREAM.Y + 0.3 * rng.normal(size=(2, *STREAM.Y.shape))


def test_both_are_logged_in_the_users_units():
    found = from_predictions(
        STREAM, STREAM.in_units(BEFORE), STREAM.in_units(END), options_for(seed=2)
    )
    np.testing.assert_allclose(found.before, BEFORE, atol=1e-12)
    np.testing.assert_allclose(found.shift, END - BEFORE, atol=1e-12)
    expected = [
        np.square((part - STREAM.Y) * STREAM.target_scales).mean() for part in (BEFORE, END)
    ]
    assert found.prequential.value == pytest.approx(expected[0])
    assert found.remembered.value == pytest.approx(expected[1])
    (came,) = found.scores
    assert came == found.score("as it came", "progressive")
    assert came.error == found.prequential
    assert came.change == (0, 0, 0)
    assert found.questions == ("progressive",)
    assert (found.closed["progressive"], found.orders) == (UNKNOWN, {"progressive": ()})
    # each later row has the same share in what moved: of a row of "b", only later ones of "b"
    np.testing.assert_allclose(found.groups.size[1, 0], 0, atol=1e-12)
    moved = np.linalg.norm(END - BEFORE, axis=1)
    np.testing.assert_allclose(found.groups.size[1, 1], moved[30:49].sum() / 20)
    share = 20 / (49 - np.arange(30))
    np.testing.assert_allclose(found.groups.size[0, 1], (moved[:30] * share).mean())


def test_one_of_them():
    found = from_predictions(STREAM, STREAM.in_units(BEFORE))
    assert np.isnan(found.shift).all()
    known = [math.isfinite(part.value) for part in (found.prequential, found.remembered)]
    assert known == [True, False]
    found = from_predictions(STREAM, predictions_after=STREAM.in_units(END))
    known = [math.isfinite(part.value) for part in (found.prequential, found.remembered)]
    assert known == [False, True]
    assert math.isnan(found.score("as it came", "progressive").error.value)


def test_the_metric_is_that_of_the_options():
    found = from_predictions(
        STREAM, STREAM.in_units(BEFORE), options=options_for(metric="absolute")
    )
    expected = np.abs((BEFORE - STREAM.Y) * STREAM.target_scales).mean()
    assert found.scores[0].loss.value == pytest.approx(expected)
    assert found.scores[0].error.value == found.prequential.value != found.scores[0].loss.value
    whole = options_for(hold_out="group")  # two groups: much less is known
    widths = [
        score.error.high - score.error.low
        for score in (
            from_predictions(STREAM, STREAM.in_units(BEFORE), options=one).scores[0]
            for one in (options_for(), whole)
        )
    ]
    assert widths[0] != widths[1]


def test_classes_by_name():
    stream = classes(30)
    labels = [stream.target_names[k] for k in stream.Y.argmax(1)]
    before = labels.copy()
    before[3:9] = ["y2"] * 6
    found = from_predictions(stream, before, labels)
    assert found.scores[0].accuracy.value == pytest.approx(24 / 30)
    assert found.prequential.value == pytest.approx(2 * 6 / 30 / 3)
    assert found.remembered.value == 0
    np.testing.assert_array_equal(found.end, stream.Y)
    assert from_predictions(stream, predictions_after=labels).scores[0].accuracy is not None
    with pytest.raises(InvalidInputError, match="does not have .*cat"):
        from_predictions(stream, ["y0", "cat"] * 15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there are no predictions; give predictions, or predictions_after"),
        ((BEFORE[:9],), r"predictions has shape \(9, 2\); expected 50 rows of 2 columns"),
        ((None, BEFORE[:, 0]), r"predictions_after has shape \(50,\); expected 50 rows"),
        ((np.full((50, 2), np.nan),), "predictions is missing or not finite in 50 rows"),
        ((np.full((50, 2), "x"),), "predictions holds something that is not a number"),
    ],
)
def test_what_is_not_a_log_of_this_stream(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        from_predictions(STREAM, *arguments)
