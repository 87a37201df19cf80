"""Models as users have them: of river's interface, of torch, and ones that fail."""

import numpy as np
import torch
from torch import nn

from retarget.diagnosis.models.opening import open_model
from support.diagnosis_options import options_for


def opened(model, stream, **options):
    """The model as the diagnosis runs it."""
    return open_model(stream, options_for(model=model, **options))


def quietly(rows):
    """No progress."""


class OneByOne:
    """River's interface: linear regression by SGD on the squared error, with an intercept."""

    def __init__(self, lr=0.02):
        self.lr, self.weights, self.intercept = lr, {}, 0.0

    def clone(self):
        return type(self)(self.lr)

    def predict_one(self, x):
        return self.intercept + sum(self.weights.get(name, 0.0) * x[name] for name in x)

    def learn_one(self, x, y):
        step = 2 * self.lr * (y - self.predict_one(x))
        self.intercept += step
        for name, value in x.items():
            self.weights[name] = self.weights.get(name, 0.0) + step * value


class NearestMeans:
    """River's interface of a classifier: the share of each class by the distance to its mean."""

    def __init__(self, multiclass=True):
        self._multiclass, self.sums, self.counts = multiclass, {}, {}

    def clone(self):
        return type(self)(self._multiclass)

    def learn_one(self, x, y):
        self.sums[y] = self.sums.get(y, 0.0) + np.array(list(x.values()))
        self.counts[y] = self.counts.get(y, 0) + 1

    def shares(self, x):
        row = np.array(list(x.values()))
        near = {
            y: np.exp(-np.square(row - total / self.counts[y]).sum())
            for y, total in self.sums.items()
        }
        return {y: float(value / (sum(near.values()) or 1.0)) for y, value in near.items()}

    def predict_proba_one(self, x):
        return self.shares(x)

    def predict_one(self, x):
        shares = self.shares(x)
        return max(shares, key=shares.get) if shares else None


class LabelsOnly(NearestMeans):
    def predict_proba_one(self, x):
        raise NotImplementedError


class RunningMean:
    """`partial_fit` without scikit-learn: the mean of the targets; notes what it was given."""

    def __init__(self):
        self.seen, self.total = [], 0.0

    def partial_fit(self, X, y):
        self.seen.append((np.array(X), np.array(y)))
        self.total += y.sum()

    def predict(self, X):
        return np.full(len(X), self.total / sum(len(y) for _, y in self.seen))


class FailsLater(RunningMean):
    """Raises at some row, or predicts NaN from there on."""

    def __init__(self, row, nan=False):
        super().__init__()
        self.row, self.nan = row, nan

    def partial_fit(self, X, y):
        super().partial_fit(X, y)
        if len(self.seen) >= self.row and not self.nan:
            raise RuntimeError("out of order")

    def predict(self, X):
        return super().predict(X) * (np.nan if self.nan and len(self.seen) >= self.row else 1.0)


def network(inputs, outputs=1, hidden=None, seed=0, bias=True):
    """A module in double precision: linear, or with one hidden layer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if hidden is None:
            return nn.Linear(inputs, outputs, bias=bias).double()
        layers = nn.Linear(inputs, hidden, bias=bias), nn.ReLU(), nn.Linear(hidden, outputs)
        return nn.Sequential(*layers).double()
