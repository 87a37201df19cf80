"""Cross-entropy between blocks: how far off the offline learner may be, and no further."""

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.engine.offline import logistic
from support.problems import assert_same, make_class_stream, panels_of

CE = "cross-entropy"
N = 120  # more than are solved up to rounding

pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")


def sigma(logits):
    logits = torch.as_tensor(logits)
    p = torch.sigmoid(logits) if logits.shape[1] == 1 else torch.softmax(logits, 1)
    return p.numpy()


def stream_of(outputs, features=None, scale=2.0):
    """A stream of labels; with few features its kernel is singular."""
    stream = make_class_stream(N, outputs, seed=4, scale=scale, certain=True)
    if features is not None:
        X = scale * np.random.default_rng(2).normal(size=(N, features))
        stream.K = X @ X.T
    return stream


def followed(stream, gamma, block, start=None):
    """What the equation is off by after each block, and the predicted probabilities."""
    K, Y = torch.from_numpy(stream.K), torch.from_numpy(stream.Y)
    begun = torch.zeros_like(Y) if start is None else torch.from_numpy(start)
    fit = logistic.LogisticFit(gamma, Y.shape[1], lambda rows: K[rows, rows])
    left, predicted = [], []
    for first in range(0, N, block):
        rows, seen = slice(first, first + block), slice(0, first + block)
        F = fit.predictions(K[rows, seen], Y[rows], block, begun[rows])
        A = fit.coefficients
        left.append(gamma * A.numpy() + sigma(K[seen, seen] @ A + begun[seen]) - stream.Y[seen])
        predicted.append(sigma(F + begun[rows]))
        assert_same(fit.logits, K[seen, seen] @ A, 1e-9)
    return [np.abs(each).max() for each in left], np.concatenate(predicted)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    ("features", "gamma", "scale"), [(None, 0.5, 2.0), (None, 1e-3, 3.0), (4, 0.3, 2.0)]
)
def test_the_equation_holds_up_to_the_tolerance(outputs, features, gamma, scale):
    stream = stream_of(outputs, features, scale)
    left, predicted = followed(stream, gamma, 5)
    assert max(left) <= logistic.TOLERANCE
    assert max(left) > logistic.TOLERANCE / 100  # it is no solution up to rounding
    for first in range(70, N, 20):
        rows, seen = slice(first, first + 5), slice(0, first + 5)
        A = rt.offline_coefficients(stream.K[seen, seen], stream.Y[seen], gamma, loss=CE)
        exact = sigma(stream.K[rows, seen] @ A)
        assert np.abs(predicted[rows] - exact).max() < 2 * logistic.TOLERANCE


def test_exact_from_a_start():
    start = np.random.default_rng(1).normal(size=(N, 3))
    left, _ = followed(stream_of(3), 0.5, 10, start)
    assert max(left) <= logistic.TOLERANCE
    assert max(left[: logistic.EXACT_UP_TO // 10]) < 1e-12
    assert followed(stream_of(3), 0.5, N)[0][0] < 1e-12


@pytest.mark.parametrize("most", [0, 2])
def test_newtons_method_goes_on(most, monkeypatch):
    monkeypatch.setattr(logistic, "MOST_ITERATIONS", most)
    assert max(followed(stream_of(3), 0.05, 10)[0]) <= logistic.TOLERANCE


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("block", [4, 10])
def test_the_formula_with_a_small_tolerance(outputs, block, monkeypatch):
    """y = sigma(f) + a / eta, samples one at a time, with a ridge, from the start of the stream."""
    monkeypatch.setattr(logistic, "TOLERANCE", 1e-12)
    monkeypatch.setattr(logistic, "EXACT_UP_TO", 0)
    monkeypatch.setattr(logistic, "MOST_ITERATIONS", 400)
    monkeypatch.setattr(logistic.LogisticFit, "solve", first_block_only(logistic.LogisticFit.solve))
    stream, eta, gamma, ridge = stream_of(outputs, scale=3.0), 0.7, 0.1, 0.2
    with panels_of(16):
        Z = rt.iterative_targets(stream.K, stream.Y, rt.SGD(lr=eta), gamma, block, ridge, loss=CE)
    a, K = np.zeros_like(stream.Y), stream.K
    for first in range(0, N, block):
        rows, seen, past = slice(first, first + block), slice(0, first + block), slice(0, first)
        A = rt.offline_coefficients(K[seen, seen], stream.Y[seen], gamma, loss=CE)
        inherited = K[rows, past] @ a[past]
        own = K[rows, rows]
        a[rows] = np.linalg.solve(ridge * np.eye(len(own)) + own, K[rows, seen] @ A - inherited)
        f = inherited + np.tril(own, -1) @ a[rows]
        assert_same(Z[rows], sigma(f) + a[rows] / eta, 1e-9)


def first_block_only(solve):
    """The exact method, which fails the test if it is used for a later block."""

    def checked(fit, count=None, tolerance=0.0):
        assert tolerance == 0.0
        return solve(fit, count, tolerance)

    return checked


@pytest.mark.parametrize("portion", [7, 20, 64])
def test_portions_and_a_restart(portion, tmp_path):
    stream, learner = stream_of(3), rt.SGD(0.3, batch_size=2, reduction="mean")
    whole = rt.iterative_targets(stream.K, stream.Y, learner, 0.3, 4, 0.1, loss=CE)
    corrector = rt.TargetCorrector(rt.Linear(), learner, 0.3, 4, 0.1, loss=CE)
    parts = []
    for first in range(0, N, portion):
        rows = slice(first, first + portion)
        parts.append(corrector.correct(stream.features[rows], stream.Y[rows]))
        if first == 2 * portion:
            corrector.save(tmp_path / "state")
            corrector = rt.TargetCorrector.load(tmp_path / "state", rt.Linear())
    parts.append(corrector.flush())
    assert_same(np.concatenate(parts), whole)


def test_a_fork_keeps_its_origins_solution():
    stream, learner = stream_of(3), rt.SGD(0.3, batch_size=2, reduction="mean")
    one, other = (rt.TargetCorrector(rt.Linear(), learner, 0.3, 4, 0.1, loss=CE) for _ in range(2))
    half, rest = slice(0, 80), slice(80, N)
    for each in (one, other):
        each.correct(stream.features[half], stream.Y[half])
    one.fork().correct(stream.features[rest], stream.Y[rest][::-1].copy())
    assert_same(
        one.correct(stream.features[rest], stream.Y[rest]),
        other.correct(stream.features[rest], stream.Y[rest]),
        0,
    )


def equation(K, Y, gamma, start):
    """The equation of a kernel that is known, without a stream."""
    slope = 0.25 if Y.shape[1] == 1 else 1 / Y.shape[1]
    shifted = K + gamma / slope * torch.eye(len(K)).double()
    solve = torch.linalg.inv(shifted).matmul
    return logistic.Equation(gamma, slope, solve, Y, start)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("features", [3, 200])
def test_from_certain_and_wrong(outputs, features):
    """There slopes are almost zero, so that a step by the slope alone is far too long."""
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(40, features, generator=generator).double()
    Y = torch.eye(3).double()[torch.randint(0, 3, (40,), generator=generator)][:, :outputs]
    start = 12 * (1 - 2 * Y)
    K, nothing = X @ X.T / features, torch.zeros_like(Y)
    A, f = equation(K, Y, 0.05, start).approach(nothing, nothing, 1e-3)
    assert_same(f, K @ A)
    assert np.abs(0.05 * A.numpy() + sigma(f + start) - Y.numpy()).max() <= 1e-3
