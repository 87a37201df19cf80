"""Exact or features, by memory; feature maps against their kernels; what they change."""

import math

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.diagnosis.measure import approximation
from retarget.diagnosis.measure.approximation import Opened, choose_features
from retarget.diagnosis.measure.holdout import Split, split
from retarget.engine.stream_kernel import DenseKernel, FeatureKernel
from retarget.errors import StreamTooLargeError
from retarget.kernels.feature_maps import feature_map, nystroem_map
from support.diagnosis_options import options_for
from support.diagnosis_streams import as_stream, drifting
from support.problems import assert_same

X = torch.from_numpy(drifting(40, dimensions=3).X)
Y = torch.from_numpy(drifting(40, dimensions=3).Y)


def opened(kernel=None, rows=X, targets=Y, **asked):
    kernel, parted = kernel or rt.RBF(1.0), Split(as_stream(rows.numpy(), targets.numpy()), {})
    return approximation.open_kernel(kernel, parted, options_for(**asked), lambda _: None)


def test_the_mode_is_exact_if_memory_allows(monkeypatch):
    needed = approximation.exact_memory(40, 3, 1)
    assert isinstance(opened(max_memory=needed).kernel, DenseKernel)
    beyond = opened(max_memory=needed - 1, features="auto")
    assert isinstance(beyond.kernel, FeatureKernel)
    assert not beyond.features.exact
    found = beyond.features(X).shape[1], beyond.needed, beyond.limit
    assert found == (40, needed, needed - 1)
    assert isinstance(opened(features=8).kernel, FeatureKernel)
    monkeypatch.setattr(approximation, "MOST_EXACT_ROWS", 30)  # more only if asked for
    assert isinstance(opened().kernel, FeatureKernel)
    assert isinstance(opened(features=None).kernel, DenseKernel)
    monkeypatch.setattr(approximation, "WINDOW_ROWS", 8)
    with pytest.raises(StreamTooLargeError, match=r"40 rows needs 0.0 GB.*use"):
        opened(features=None, max_memory="1kB")
    with pytest.raises(StreamTooLargeError, match=r"use a smaller batch_size"):
        opened(features=8, max_memory=1000, batch_size=9)


def test_memory_and_features_by_default(monkeypatch):
    for free, limit in ((10**10, 4 * 10**9), (10**9, 5 * 10**8), (None, 4 * 10**9)):
        monkeypatch.setattr(approximation, "free_memory", lambda _, free=free: free)
        assert approximation.memory_limit("auto") == limit
    assert approximation.memory_limit(1e6) == 1_000_000
    counts = [approximation.feature_count("auto", n) for n in (10**4, 10**5, 10**6, 10**9)]
    assert counts == [1536, 1024, 256, 128]
    expected = 12 * 10**8 + 8 * 10_000 * (20 + 48 + 1024) + 32 * 2000**2
    assert approximation.exact_memory(10_000, 20, 1) == expected


def test_feature_maps_give_their_kernels():
    kernel = rt.as_kernel(lambda A, B: torch.exp(-torch.cdist(A, B)))
    features = nystroem_map(kernel, torch.cat([X[:10], X[:3]]))
    assert features(X).shape[1] == 10  # copies of landmarks add nothing
    Phi = features(X)
    assert_same(Phi[:10] @ Phi.mT, kernel(X[:10], X), 1e-8)
    everywhere = choose_features(kernel, X, 40, 0)(X)  # all rows are landmarks
    assert_same(everywhere @ everywhere.mT, kernel(X), 1e-8)
    # kernels with features of their own keep them
    linear = choose_features(rt.Linear(), X, 2, 0)
    assert linear.exact
    assert (linear(X) == X).all()
    own = rt.Features(lambda x: torch.cat([x, x**2], dim=1))
    mapped = choose_features(own, X, 6, 0)
    assert mapped.exact
    assert_same(mapped(X) @ mapped(X).mT, own(X))
    assert not choose_features(own, X, 5, 0).exact  # more features than wanted
    wide = nystroem_map(own, X)
    assert_same(wide(X) @ wide(X).mT, own(X), 1e-8)


def test_features_in_single_precision():
    chosen = choose_features(rt.RBF(1.5), X, 12, 0)
    anew = FeatureKernel(chosen, X, Y, room=4 * 40 * 12 - 1)
    kept = FeatureKernel(chosen, X, Y, room=4 * 40 * 12)
    rounded = chosen(X).float().double()
    order = torch.from_numpy(np.random.default_rng(0).permutation(40))
    some = slice(3, 9)
    assert (anew.panel(some).features == chosen(X[some])).all()
    assert (kept.panel(some).features == rounded[some]).all()
    assert (kept.panel(some, order).features == rounded[order[some]]).all()
    for rows in (order[:7], some):  # a part has the features that are kept
        part = kept.part(rows)
        assert (part.panel(slice(2, 5)).features == rounded[rows][2:5]).all()
        assert_same(
            part.values(part.offline(0.3).coefficients),
            kept.dense(rows).values(kept.dense(rows).offline(0.3).dual),
        )
    # the kernel is that of the rounded features, consistently
    exact = DenseKernel(lambda _: rounded @ rounded.mT, X, Y)
    assert_same(kept.density(), exact.density())
    assert_same(kept.values(kept.offline(0.3).coefficients), exact.values(exact.offline(0.3).dual))
    linear = opened(rt.Linear(), features=8).kernel
    assert (linear.panel(some).features == X[some]).all()  # exact features stay exact


def test_the_approximation_is_measured_over_the_stream(monkeypatch):
    monkeypatch.setattr(approximation, "SAMPLE_ROWS", 5)
    rows = torch.arange(1.0, 10.0, dtype=torch.float64)[:, None]
    given = opened(rt.Linear(), rows, rows.clone(), features=8)
    features = feature_map(rt.Features(lambda x: 1.1 * x))
    learner = rt.SGD(lr=0.01)
    made = Opened(given.kernel, 10, 5, features, given.sample)
    found = approximation.measure_approximation(made, learner, 0.5)
    Y = np.array([[1.0], [3], [5], [7], [9]])
    one, other = (rt.effective_targets(M, Y, learner, 0.5) - Y for M in (Y @ Y.T, 1.21 * Y @ Y.T))
    assert (found.sample, found.exact_memory, found.memory_limit) == (5, 10, 5)
    assert found.kernel_error == pytest.approx(0.21)
    assert found.shift_error == pytest.approx(np.linalg.norm(other - one) / np.linalg.norm(one))
    assert math.isnan(approximation.relative_difference(rows * math.nan, rows))
    assert approximation.relative_difference(rows, 0 * rows) == pytest.approx(float(rows.norm()))


@pytest.mark.parametrize("asked", [{"features": None}, {"features": 20}])
def test_the_kernel_of_every_fold(asked):
    stream, options = drifting(80, dimensions=3), options_for(test_share=0.2, **asked)
    parted = split(stream, None, options)
    assert len(parted.folds) == 4
    found = approximation.open_kernel(rt.RBF(1.0), parted, options, lambda _: None)
    assert len(found.whole) == len(parted.past) == 64
    for number in range(4):
        learned = parted.past.part(parted.learned_in(number))
        part = found.whole.part(torch.from_numpy(parted.learned_in(number)))
        assert (part.X.numpy() == learned.X).all()
        assert (part.Y.numpy() == learned.Y).all()
        anew = found.kernel.of(part.X, part.Y)
        queries = torch.from_numpy(stream.X[:3])
        assert_same(part.query(queries), anew.query(queries), 1e-12)
        values = part.values(part.offline(0.3).coefficients)
        assert_same(values, anew.values(anew.offline(0.3).coefficients), 1e-9)
        if number == 0:  # that of the first fold may keep its features in single precision
            first = found.kernel.values(found.kernel.offline(0.3).coefficients)
            assert_same(values, first, 1e-5)
    alone = split(stream, None, options_for(evaluation="next", **asked))
    assert approximation.open_kernel(rt.RBF(1.0), alone, options, lambda _: None).whole is None
