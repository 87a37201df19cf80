"""Frames and columns of pandas, whose labels say nothing about the place of a row.

`make integration-river` runs these tests with pandas 2.2, which slices by label where the labels
are floats; `make test` runs them with a newer one, which does not.
"""

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.samples import take
from support.problems import assert_same

# no test is about how large targets are
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")

pd = pytest.importorskip("pandas")
rng = np.random.default_rng(0)
ROWS = 40
INPUTS = rng.normal(size=(ROWS, 3))
TARGETS = rng.normal(size=(ROWS, 2))
CLASSES = np.array(["low", "high"])[(INPUTS[:, 0] > 0).astype(int)]
TIMES = rng.permutation(ROWS) / 2
INDICES = {
    "floats": pd.Index(TIMES),
    "rising floats": pd.Index(np.arange(ROWS) / 4),
    "a float twice": pd.Index([*TIMES[:-1], TIMES[0]]),
    "integers": pd.Index(rng.permutation(ROWS)),
    "texts": pd.Index([f"row {time}" for time in TIMES]),
    "dates": pd.date_range("2026-01-01", periods=ROWS)[::-1],
}
LEARNER = rt.SGD(0.05, 4, reduction="sum")


def part(values, rows):
    """Some rows, taken by the user."""
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, values):
        return self.layers(values)


def core(X, Y, _):
    K = np.asarray(X) @ np.asarray(X).T
    if hasattr(X, "index"):
        K = pd.DataFrame(K, index=X.index)
    yield rt.effective_targets(K, Y, LEARNER, 0.1)
    yield rt.corrected_targets(K, Y, LEARNER, 0.1)


def kernels(X, *_):
    yield rt.RBF(1.0)(X, X)
    yield rt.EmpiricalNTK(network())(X, X)
    yield rt.EmpiricalNTK(network()).diag(X)
    yield rt.as_kernel("laplacian").diag(X)


def trackers(X, Y, _):
    for kind in (rt.ShiftTracker, rt.CorrectionTracker):
        tracker = kind(rt.RBF(1.0), LEARNER, 0.1)
        tracker.update(X, Y)
        yield tracker.effective_targets if kind is rt.ShiftTracker else tracker.corrected_targets


def blocks(X, Y, _):
    yield rt.TargetCorrector(rt.RBF(1.0), LEARNER, 0.1, block_size=8).correct(X, Y)
    yield rt.TargetCorrector(rt.RBF(1.0), LEARNER, 0.1, 8, features=20).correct(X, Y)


def ridge(X, Y, _):
    learner = rt.StreamingRidge("rbf", features=20)
    yield learner.learn(X, Y, weights=abs(X.sum(axis=1))).predict(X)


def forgetting(X, Y, _):
    learner = rt.StreamingRidge("linear", gamma=0.1).learn(X, Y)
    learner.forget(part(X, slice(5, 11)), part(Y, slice(5, 11)))
    yield learner.predict(X)
    yield learner.predict(learner.prepare(X))


def views(X, Y, _):
    learner = rt.StreamingRidge("linear", gamma=0.1, views=[None, lambda x: -x])
    yield learner.learn(X, Y).predict(X)


def tangent(X, Y, _):
    yield rt.TangentLearner(network(), gamma=0.1, features=30).learn(X, Y).predict(X)


def samples_by_name(X, Y, _):
    learner = rt.TangentLearner(Named(), gamma=0.1, features=30)
    yield learner.learn({"values": X}, Y).predict({"values": X})


def network_targets(X, Y, _):
    yield rt.NetworkCorrector(network(), LEARNER, 0.1, block_size=8).correct(X, Y)
    yield rt.NetworkCorrector(network(), LEARNER, "auto", block_size=8).correct(X, Y)


def closed_loop(X, Y, _):
    corrector = rt.ClosedLoopCorrector(network(), LEARNER, 0.1, block_size=4, features=20, replay=0)
    for first in (0, 4, 8):
        rows = slice(first, first + 4)
        yield corrector.correct(part(X, rows), part(Y, rows))


def regressors(X, Y, _):
    model = rt.StreamingRidgeRegressor().fit(X, Y, sample_weight=abs(X.sum(axis=1)))
    yield model.predict(X)
    online = rt.OnlineKernelRegressor(batch_size=4, reduction="sum", correction="iterative")
    yield online.fit(X, Y).partial_fit(X, Y).predict(X)


def classifiers(X, _, classes):
    yield rt.StreamingRidgeClassifier(gamma=0.1).fit(X, classes).decision_function(X)
    online = rt.OnlineKernelClassifier(batch_size=4, reduction="sum")
    yield online.fit(X, classes).decision_function(X)


def diagnosis(X, Y, classes):
    y = Y[0] if hasattr(Y, "iloc") else Y[:, 0]
    options = {"lr": 0.1, "gamma": 1.0, "ridge": 0.1, "kernel": "affine"}
    yield rt.diagnose(X, y, group=classes, test=(X, y), **options).effective


def test_rows_in_an_index_array():
    """Samples of one kind or of several; pandas would take the places as names of columns."""
    frame, rows = pd.DataFrame(INPUTS, index=TIMES), np.array([7, 3, 3])
    np.testing.assert_array_equal(take(frame, rows), INPUTS[rows])
    named = take({"values": frame, "classes": pd.Series(CLASSES, index=TIMES)}, rows)
    np.testing.assert_array_equal(named["values"], INPUTS[rows])
    np.testing.assert_array_equal(named["classes"], CLASSES[rows])


USES = [
    *(core, kernels, trackers, blocks, ridge, forgetting, views, tangent, samples_by_name),
    *(network_targets, closed_loop, regressors, classifiers, diagnosis),
]


@pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_rows_are_taken_by_position(use, index):
    labels = INDICES[index]
    X = pd.DataFrame(INPUTS, index=labels, columns=["a", "b", "c"])
    Y, classes = pd.DataFrame(TARGETS, index=labels), pd.Series(CLASSES, index=labels)
    expected = list(use(INPUTS, TARGETS, CLASSES))
    assert len(expected)
    for one, other in zip(use(X, Y, classes), expected, strict=True):
        assert_same(one, other)
