"""Compares corrections that follow different batch learners, on streams that drift.

python examples/drift.py             a sine curve that shifts
python examples/drift.py trump       river's TrumpApproval: pip install ".[river]"
"""

import sys

import numpy as np

import retarget as rt
from retarget.errors import require_extra

AIMS = ["all", "window:60", "discount:0.97"]


def shifting_curve(n=600):
    """A sine curve that shifts by half a period while it is sampled at random."""
    rng = np.random.default_rng(3)
    x, angle = rng.uniform(-1, 1, size=(n, 1)), np.linspace(0, np.pi, n)
    return x, np.sin(4 * x[:, 0] + angle) + 0.1 * rng.normal(size=n), rt.RBF(0.5)


def trump_approval():
    """The date and five polls a day, standardized; the approval rating minus its first value."""
    require_extra("this stream", "river", "river")
    from river import datasets

    rows = list(datasets.TrumpApproval())
    X, Y = np.array([[*x.values()] for x, _ in rows], dtype=float), np.array([y for _, y in rows])
    X = (X - X.mean(0)) / X.std(0)
    distances = np.sqrt(((X[:, None] - X) ** 2).sum(-1))[np.triu_indices(len(X), 1)]
    return X, Y - Y[0], rt.RBF(float(np.median(distances)))


def running_error(X, Y, kernel, learner, aim=None):
    """Mean absolute error on each sample before it is learned."""
    Z = Y
    if aim is not None:
        corrector = rt.TargetCorrector(kernel, learner, gamma=0.1, block_size=1, aim=aim)
        Z = corrector.correct(X, Y)
    predictions = Z - rt.prequential_errors(kernel(X), Z, learner)
    return np.abs(Y - predictions).mean()


X, Y, kernel = trump_approval() if sys.argv[1:] == ["trump"] else shifting_curve()
for lr in (0.05, 0.2, 1.0):
    print(f"not corrected, lr = {lr}: {running_error(X, Y, kernel, rt.SGD(lr)):.3f}")
for aim in AIMS:
    print(f"corrected, aim {aim}, any lr: {running_error(X, Y, kernel, rt.SGD(0.2), aim):.3f}")
