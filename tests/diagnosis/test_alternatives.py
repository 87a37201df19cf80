"""Other batch models, where the batch model is worse than the simplest predictor."""

import numpy as np
import pytest

import retarget as rt
from retarget.diagnosis.measure.holdout import split
from retarget.diagnosis.measure.intervals import Batches, ratio
from retarget.diagnosis.measuring import diagnose_split
from support.diagnosis_options import options_for
from support.diagnosis_streams import as_stream


def flexible(rows=200, metric="squared", kernel=None, **more):
    """A line with much noise, and a batch model that learns the noise by heart."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    stream = as_stream(X, 0.8 * X[:, :1] + 1.5 + rng.normal(size=(rows, 1)), scales=[3.0])
    kernel = kernel or rt.RBF(0.15)
    options = options_for(lr=0.1, kernel=kernel, gamma=1e-3, metric=metric, **more)
    parted = split(stream, None, options)
    return parted, diagnose_split(parted, options)


@pytest.mark.parametrize("metric", ["squared", "absolute"])
def test_alternatives_are_tried_on_bad_rows(metric):
    parted, found = flexible(metric=metric)
    bad = [one.question for one in found.answers if one.baselines[0].batch.low > 0]
    assert bad[0] == "whole"
    asked = [(one.kind, one.question) for one in found.alternatives]
    assert asked == [(kind, question) for kind in ("smoother", "linear") for question in bad]
    X, y = parted.stream.X, parted.stream.Y
    K = rt.RBF(0.15)(X)
    A = np.column_stack([X, np.ones(len(X))])
    for one in found.alternatives:
        rows = parted.asked[one.question]
        if one.kind == "smoother":
            assert one.gamma == pytest.approx(0.1)
            said = rt.RBF(0.15)(rows.X, X) @ rt.offline_coefficients(K, y, one.gamma)
        else:
            # given for the kernel, and so for its features
            weights = np.linalg.solve(A.T @ A + one.gamma * np.eye(4), A.T @ y)
            said = np.column_stack([rows.X, np.ones(len(rows))]) @ weights
        batch = rt.RBF(0.15)(rows.X, X) @ rt.offline_coefficients(K, y, 1e-3)
        constant = np.tile(y.mean(axis=0), (len(rows), 1))

        def mean(predicted, rows=rows):
            gap = 3 * (rows.Y - predicted)[:, 0]
            batches = Batches.consecutive(np.arange(len(rows)))
            return batches.mean(np.abs(gap) if metric == "absolute" else gap**2)

        assert one.effect == pytest.approx(ratio(mean(said), mean(batch)), rel=1e-6)
        assert one.constant == pytest.approx(ratio(mean(said), mean(constant)), rel=1e-6)
    linear = [one for one in found.alternatives if one.kind == "linear"]
    assert all(one.effect.high < 0 for one in linear)
    assert 'a linear model, kernel="affine" (--kernel affine)' in " ".join(
        found.verdict.recommendations
    )


def test_when_no_alternative_is_tried():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(150, 2))
    assert rt.diagnose(X, X[:, 0] + 0.1 * rng.normal(size=150)).alternatives == ()
    _, found = flexible(evaluation="progressive")
    assert found.alternatives == ()
    # a linear model is not tried again
    kinds = {one.kind for one in flexible(rows=60, kernel="affine")[1].alternatives}
    assert "linear" not in kinds
