"""Exact or features, by memory; and feature maps against their kernels."""

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.diagnosis.kernels.features import FeatureKernel, Nystroem, OwnFeatures, feature_map
from retarget.diagnosis.kernels.full import FullKernel, exact_memory
from retarget.diagnosis.measure import approximation
from retarget.diagnosis.measure.approximation import feature_count, memory_limit, open_kernel
from retarget.kernels import PrecomputedKernel
from support.diagnosis_streams import drifting
from support.problems import assert_same

X = torch.from_numpy(drifting(40, dimensions=3).X)
Y = torch.from_numpy(drifting(40, dimensions=3).Y)


def opened(kernel=None, **asked):
    options = {"mode": "auto", "features": None, "memory": None, "batch_size": 1, "seed": 0}
    kernel = rt.RBF(1.0) if kernel is None else kernel
    return open_kernel(kernel, X, Y, advance=lambda _: None, **(options | asked))


def test_the_mode_is_exact_where_memory_allows():
    needed = exact_memory(40, 3, 1)
    assert opened(memory=needed).kernel.mode == "exact"
    beyond = opened(memory=needed - 1, features=8)
    assert beyond.kernel.mode == "features"
    assert beyond.features.size == 8
    assert isinstance(beyond.features, Nystroem)
    assert beyond.memory == (needed, needed - 1)
    assert opened(mode="features").kernel.mode == "features"
    assert opened(mode="exact").features is None


def test_the_exact_method_takes_twelve_bytes_a_pair():
    assert exact_memory(10_000, 20, 1) == 12 * 10**8 + 8 * 10_000 * (20 + 48 + 1024) + 32 * 2000**2


def test_memory_and_features_by_default(monkeypatch):
    monkeypatch.setattr(approximation, "free_memory", lambda _: 10**10)
    assert memory_limit(None) == 4 * 10**9
    monkeypatch.setattr(approximation, "free_memory", lambda _: 10**9)
    assert memory_limit(None) == 5 * 10**8
    monkeypatch.setattr(approximation, "free_memory", lambda _: None)
    assert memory_limit(None) == 4 * 10**9
    assert memory_limit(1e6) == 1_000_000
    assert [feature_count(None, n) for n in (10**4, 10**5, 10**6, 10**9)] == [2048, 1024, 512, 128]


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        (
            {"mode": "fast"},
            rt.errors.InvalidInputError,
            r"mode is 'fast'; expected 'auto', 'exact'",
        ),
        (
            {"mode": "exact", "memory": 1000},
            rt.errors.StreamTooLargeError,
            r"40 rows needs 0.0 GB.*use",
        ),
        (
            {"mode": "features", "memory": 1000, "batch_size": 9},
            rt.errors.StreamTooLargeError,
            r"mini-batches of 9 rows need .*use a smaller batch_size",
        ),
        (
            {"memory": "much"},
            rt.errors.InvalidTypeError,
            r"memory is 'much'; expected a number of bytes",
        ),
        ({"memory": -1}, rt.errors.InvalidInputError, r"memory is -1; expected a positive number"),
        (
            {"mode": "features", "features": 1.5},
            rt.errors.InvalidTypeError,
            r"expected a whole number",
        ),
        (
            {"mode": "features", "features": 1},
            rt.errors.InvalidInputError,
            r"features is 1; expected 2",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(monkeypatch, asked, error, match):
    monkeypatch.setattr(approximation, "WINDOW_ROWS", 8)
    with pytest.raises(error, match=match):
        opened(**asked)


def test_nystroem_is_exact_on_its_landmarks_and_survives_copies():
    kernel = rt.as_kernel("laplacian")
    landmarks = torch.cat([X[:10], X[:3]])
    features = Nystroem(kernel, landmarks)
    assert features.size == 10
    Phi = features(X)
    assert_same(Phi[:10] @ Phi.mT, kernel(X[:10], X), 1e-8)
    everywhere = feature_map(kernel, X, 40, 0)(X)  # all rows are landmarks
    assert_same(everywhere @ everywhere.mT, kernel(X), 1e-8)


def test_kernels_with_features_of_their_own_keep_them():
    linear = feature_map(rt.Linear(), X, 2, 0)
    assert (linear.exact, linear.size) == (True, 3)
    assert (linear(X) == X).all()
    own = rt.Features(lambda x: torch.cat([x, x**2], dim=1))
    mapped = feature_map(own, X, 6, 0)
    assert isinstance(mapped, OwnFeatures)
    assert_same(mapped(X) @ mapped(X).mT, own(X))
    assert isinstance(feature_map(own, X, 5, 0), Nystroem)  # more features than wanted
    wide = Nystroem(own, X)
    assert_same(wide(X) @ wide(X).mT, own(X), 1e-8)


def test_features_are_kept_in_single_precision_where_there_is_room():
    chosen = feature_map(rt.RBF(1.5), X, 12, 0)
    anew = FeatureKernel(chosen, X, Y, lambda _: None, room=4 * 40 * 12 - 1)
    kept = FeatureKernel(chosen, X, Y, lambda _: None, room=4 * 40 * 12)
    rounded = chosen(X).float().double()
    order = torch.from_numpy(np.random.default_rng(0).permutation(40))
    some = slice(3, 9)
    assert (anew.rows(some).features == chosen(X[some])).all()
    assert (kept.rows(some).features == rounded[some]).all()
    assert (kept.rows(some, order).features == rounded[order[some]]).all()
    # the kernel is that of the rounded features, consistently
    exact = FullKernel(PrecomputedKernel(rounded @ rounded.mT), torch.arange(40), Y, lambda _: None)
    assert_same(kept.density(), exact.density())
    assert_same(kept.values(kept.offline(0.3).coefficients), exact.values(exact.offline(0.3).dual))
    linear = FeatureKernel(OwnFeatures(rt.Linear(), X), X, Y, lambda _: None, room=10**9)
    assert (linear.rows(some).features == X[some]).all()  # exact features stay exact
