"""NaN and infinity in the middle of a stream: refused by row, and the stream goes on without."""

import numpy as np
import pytest

import retarget as rt
from retarget.networks.corrector import NetworkCorrector
from support.lab_problems import mlp

pytestmark = pytest.mark.faults

BAD = [np.nan, np.inf, -np.inf]
PARTS = [slice(0, 7), slice(7, 16), slice(16, 30)]
LEARNER = rt.SGD(0.2, batch_size=2, momentum=0.5, reduction="sum")


def stream(seed=3, n=30):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)), rng.normal(size=(n, 2))


KERNEL = rt.RBF(1.4)
STREAMING = {
    "corrector": lambda: rt.TargetCorrector(KERNEL, LEARNER, 0.6, block_size=4, ridge=0.2),
    "network": lambda: NetworkCorrector(mlp(1, 4, 2), LEARNER, 2.0, 4),
    "shift": lambda: rt.ShiftTracker(KERNEL, LEARNER, gamma=0.6),
    "correction": lambda: rt.CorrectionTracker(KERNEL, LEARNER, gamma=0.6),
    "estimator": lambda: rt.OnlineKernelRegressor(width=1.4, lr=0.2, gamma=0.6),
    "estimator, exact": lambda: rt.OnlineKernelRegressor(lr=0.2, gamma=0.6, correction="exact"),
    "estimator, iterative": lambda: rt.OnlineKernelRegressor(gamma=0.6, correction="iterative"),
}


def feed(thing, X, Y):
    """What it gives for a portion, or after it."""
    if isinstance(thing, rt.OnlineKernelRegressor):
        return thing.partial_fit(X, Y).predict(X)
    if isinstance(thing, rt.TargetCorrector | NetworkCorrector):
        return thing.correct(X, Y)
    thing.update(X, Y)
    shift = isinstance(thing, rt.ShiftTracker)
    return thing.effective_targets if shift else thing.corrected_targets


@pytest.mark.parametrize("place", ["X", "Y"])
@pytest.mark.parametrize("kind", STREAMING)
def test_bad_portions_leave_no_trace(kind, place):
    X, Y = stream()
    one, other = STREAMING[kind](), STREAMING[kind]()
    parts = [slice(0, 8), slice(8, 16), slice(16, 24)] if kind == "network" else PARTS
    for rows, value in zip(parts, BAD, strict=True):
        bad = {"X": X[rows].copy(), "Y": Y[rows].copy()}
        bad[place][3, 1] = value
        # counted over the whole stream, but for networks; estimators have scikit-learn's words
        row = "" if kind == "network" else f"{rows.start + 3};"
        told = f"[AXY] holds {value} in row {row}|Input [Xy] contains (NaN|infinity)"
        with pytest.raises(ValueError, match=told):
            feed(one, bad["X"], bad["Y"])
        np.testing.assert_array_equal(feed(one, X[rows], Y[rows]), feed(other, X[rows], Y[rows]))
