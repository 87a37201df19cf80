"""Sums over samples: their ridge solution, its cross-validation, and what sums allow."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retarget.errors import InvalidInputError, NotPositiveDefiniteError, PrecisionWarning
from retarget.streaming.ridge import search, triangle
from retarget.streaming.ridge.moments import Moments
from retarget.streaming.ridge.processes import require_same_everywhere
from retarget.streaming.ridge.solution import ridge_problem, solve
from support.oracles import ridge as oracle
from support.problems import assert_same

both = pytest.mark.parametrize("intercept", [False, True])


def random_rows(n=23, m=5, c=2, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, m)) * rng.uniform(0.2, 3, size=m) + offset
    targets = features @ rng.normal(size=(m, c)) + 0.3 * rng.normal(size=(n, c)) + 1.5
    return features, targets, rng.uniform(0.2, 3.0, size=n)


def tensors(*arrays):
    return [None if each is None else torch.from_numpy(np.asarray(each)) for each in arrays]


def summed(features, targets, weights=None, intercept=False):
    sums = Moments(features.shape[1], targets.shape[1], intercept)
    sums.add(*tensors(features, targets, weights))
    return sums


def score_of(sums, gamma):
    return search.exact_scores(ridge_problem(sums)).score(gamma)


def assert_alike(one, other, tolerance=1e-10):
    assert one.count == other.count
    assert one.weight == pytest.approx(other.weight, rel=1e-12)
    assert one.squared_weight == pytest.approx(other.squared_weight, rel=1e-12)
    assert_same(one.scatter, other.scatter, tolerance)
    for name in ("mean", "target_mean", "cross", "power"):
        assert_same(getattr(one, name), getattr(other, name), tolerance)


@st.composite
def problems(draw):
    n, m, c = draw(st.integers(1, 30)), draw(st.integers(1, 8)), draw(st.integers(1, 3))
    offset = draw(st.sampled_from([0.0, 20.0]))
    features, targets, weights = random_rows(n, m, c, draw(st.integers(0, 999)), offset)
    return features, targets, weights if draw(st.booleans()) else None, draw(st.booleans())


@given(problem=problems(), gamma=st.floats(0.01, 50), data=st.data())
def test_order_and_portions_do_not_matter(problem, gamma, data):
    features, targets, weights, intercept = problem
    order = np.array(data.draw(st.permutations(range(len(features)))))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(features)), max_size=4)))
    sums = Moments(features.shape[1], targets.shape[1], intercept)
    for rows in np.split(order, cuts):  # some of them empty
        sums.add(*tensors(*(None if a is None else a[rows] for a in (features, targets, weights))))
    solution = solve(sums, gamma)
    W, b = oracle.ridge(features, targets, gamma, weights, intercept)
    assert_same(solution.weights, W)
    assert_same(solution.intercept, b)
    assert solution.gamma == gamma
    assert sums.count == len(features)
    assert solve(sums, "auto").gamma == pytest.approx(
        solve(summed(*problem), "auto").gamma, rel=1e-12
    )


@given(problem=problems(), gamma=st.floats(0.1, 50))
def test_cross_validation_is_that_of_the_hat_matrix(problem, gamma):
    features, targets, weights, intercept = problem
    found = score_of(summed(*problem), gamma)
    n = len(features)
    w = np.ones(n) if weights is None else weights
    if w.sum() ** 2 / (w**2).sum() < 1.5:  # nothing is left of one sample once it is learned
        return
    expected = oracle.cross_validation(features, targets, gamma, weights, intercept)
    if math.isinf(found):  # more is spent than weighted samples are worth
        assert weights is not None
        return
    assert found == pytest.approx(expected, rel=1e-6)


@both
def test_no_ridge_is_better(intercept):
    for seed in range(8):
        features, targets, weights = random_rows(40, 30, 2, seed)
        targets += 5 * np.random.default_rng(seed).normal(size=targets.shape)
        sums = summed(features, targets, weights, intercept)
        best = solve(sums, "auto").gamma
        score = oracle.cross_validation(features, targets, best, weights, intercept)
        assert score_of(sums, best) == pytest.approx(score, rel=1e-8)
        for factor in (10**-0.5, 10**0.5):
            other = oracle.cross_validation(features, targets, factor * best, weights, intercept)
            assert other > score * (1 - 2e-3)


def test_the_best_ridge_without_noise():
    features, _, _ = random_rows(60, 30)
    targets = features @ np.ones((30, 1))
    sums = summed(features, targets)
    best = solve(sums, "auto").gamma
    assert_same(solve(sums, best).weights, np.ones((30, 1)), 1e-3)
    # far below it the residual is lost to rounding: the score claims no more than it knows
    known = 1e-12 * (targets**2).sum() / 60 / (1 - 30 / 60) ** 2
    assert score_of(sums, 1e-10) == pytest.approx(known, rel=1e-6)
    assert 0.99 * known <= score_of(sums, best) < 10 * known


@pytest.mark.parametrize("spread", [0.5, 0.25])  # one power of ten, and two
def test_bumps_of_the_score_are_passed(spread):
    """Smooth functions, fewer samples than features: the score by the dual, which loses nothing."""
    X = np.random.default_rng(0).uniform(-1, 1, size=(10, 1))
    angles = X @ np.random.default_rng(1).normal(size=(1, 32)) * spread
    features = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(32)
    targets = np.sin(3 * X)
    K = features @ features.T

    def score(gamma):
        inverse = np.linalg.inv(K + gamma * np.eye(10))
        return 10 * ((inverse @ targets) ** 2).sum() / np.trace(inverse) ** 2

    scores = {gamma: score(gamma) for gamma in 10.0 ** np.arange(-6, 3)}
    values = list(scores.values())
    best = solve(summed(features, targets), "auto").gamma
    for gamma, value in scores.items():
        assert score_of(summed(features, targets), gamma) == pytest.approx(value, rel=1e-3)
    assert score(best) <= 1.01 * min(values)
    assert any(a < b > c for a, b, c in zip(values, values[1:], values[2:], strict=False))


def test_a_ridge_is_found_for_anything():
    zeros, ones = np.zeros((3, 2)), np.ones((3, 1))
    assert solve(summed(zeros, ones), "auto").gamma == 1.0
    assert solve(summed(np.ones((1, 2)), ones[:1], intercept=True), "auto").gamma == 1.0
    assert 0 < solve(summed(1e-30 * random_rows()[0], random_rows()[1]), "auto").gamma < 1e-40
    assert 1e20 < solve(summed(1e20 * random_rows()[0], random_rows()[1]), "auto").gamma < math.inf
    assert solve(summed(random_rows()[0], 0 * random_rows()[1]), "auto").gamma > 0
    assert score_of(summed(np.ones((1, 2)), ones[:1], intercept=True), 1.0) == math.inf


@both
@pytest.mark.parametrize("samples", [1, 30, 60])
def test_few_samples_of_many_features(samples, intercept, monkeypatch):
    monkeypatch.setattr(search, "EXACT_FEATURES", 20)
    features, targets, weights = random_rows(samples, 130, 3)
    sums = summed(features, targets, weights, intercept)
    chosen = solve(sums, "auto")
    for gamma in (0.3, chosen.gamma):
        solution = solve(sums, gamma)
        W, b = oracle.ridge(features, targets, gamma, weights, intercept)
        assert_same(solution.weights, W)
        assert_same(solution.intercept, b)
    monkeypatch.setattr(search, "EXACT_FEATURES", 130)
    again = solve(sums, "auto")
    assert again.gamma == pytest.approx(chosen.gamma, rel=1e-12)
    assert_same(again.weights, chosen.weights)
    with pytest.raises(NotPositiveDefiniteError, match="gamma = 0 is too small"):
        solve(sums, 0.0)


@both
@pytest.mark.parametrize("samples", [300, 600, 2500])  # fewer than features, more, many
@pytest.mark.parametrize("decay", [0.5, 2.0, 4.0])
def test_an_estimated_spectrum_chooses_nearly_the_best_ridge(
    samples, decay, intercept, monkeypatch
):
    monkeypatch.setattr(search, "EXACT_FEATURES", 20)
    monkeypatch.setattr(search, "FEW_ROWS", 0)
    rng = np.random.default_rng(samples)
    features = rng.normal(size=(samples, 400)) * np.arange(1, 401) ** -decay + 0.3
    targets = features @ rng.normal(size=(400, 2)) + 0.1 * rng.normal(size=(samples, 2))
    phi, y, *_ = oracle.centered(features, targets, None, intercept)
    U, s, _ = np.linalg.svd(phi, full_matrices=False)

    def score(gamma):
        shrunk = s**2 / (s**2 + gamma)
        residual = ((y - U @ (shrunk[:, None] * (U.T @ y))) ** 2).sum()
        return residual / (1 - (shrunk.sum() + intercept) / samples) ** 2

    chosen = solve(summed(features, targets, None, intercept), "auto")
    assert score(chosen.gamma) < 1.02 * min(score(10.0**k) for k in np.arange(-6, 4, 0.5))
    W = chosen.weights.numpy()
    assert_same(phi.T @ (phi @ W) + chosen.gamma * W, phi.T @ y)


@pytest.mark.parametrize("samples", [257, 300, 400])
def test_ridge_with_fewer_samples_than_features(samples, monkeypatch):
    """Nearly all of them are spent: the score divides by what is left, which the error can hide."""
    monkeypatch.setattr(search, "FEW_ROWS", 0)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(samples, 512)) / np.sqrt(np.arange(1, 513))
        targets = features @ rng.normal(size=(512, 10))
        targets += (0.1 if seed else 1.0) * rng.normal(size=targets.shape)
        sums = summed(features, targets)
        best = min(score_of(sums, 10.0**power) for power in np.arange(-8, 3, 0.5))
        assert score_of(sums, solve(sums, "auto").gamma) < 1.2 * best


@both
@pytest.mark.parametrize("views", [1, 2])
def test_estimated_scores_near_a_ridge(views, intercept, monkeypatch):
    """With the same random vectors for the trace, so that they differ by the Krylov space alone."""
    for name, value in (("EXACT_FEATURES", 20), ("PROBES", 16), ("FEW_PROBES", 16)):
        monkeypatch.setattr(search, name, value)
    rng = np.random.default_rng(views)
    shape = (900, 300)
    sample, spread = rng.normal(size=shape), np.arange(1, 301) ** -1.5
    rows = np.vstack([(sample + view * rng.normal(size=shape)) * spread for view in range(views)])
    targets = np.tile(sample * spread @ rng.normal(size=(300, 2)), (views, 1))
    targets += 0.3 * rng.normal(size=targets.shape)
    sums = Moments(300, 2, intercept, views=views)
    sums.add(*tensors(rows, targets))
    for center in (0.1, 1.0, 10.0):
        problem = ridge_problem(sums)
        solved = search.Inverse(problem.C).solved(problem.B, center)
        near = search.scores_near(problem, center, *solved)
        for gamma in center * 10.0 ** np.array([-0.5, 0, 0.5]):
            exact = score_of(sums, gamma)
            assert near.score(gamma) == pytest.approx(exact, rel=0.01 if views == 1 else 2e-3)


def test_an_intercept_far_from_the_origin():
    features, targets, _ = random_rows(offset=0.0)
    far = summed(features + 1e6, targets + 1e6, intercept=True)
    near = summed(features, targets, intercept=True)
    assert_same(far.scatter, near.scatter, 1e-8)
    assert_same(solve(far, 0.3).weights, solve(near, 0.3).weights, 1e-8)


@both
@pytest.mark.parametrize("columns", [1, 3, 1024])
@pytest.mark.parametrize("waiting", [1, 3, 64])
def test_the_triangle_is_kept_in_blocks(intercept, columns, waiting, monkeypatch):
    monkeypatch.setitem(triangle.COLUMNS, "cpu", columns)
    monkeypatch.setattr(triangle, "WAITING_ROWS", waiting)
    features, targets, weights = random_rows()
    sums = Moments(5, 2, intercept)
    for row in range(len(features)):
        sums.add(*tensors(features[row : row + 1], targets[row : row + 1], weights[row : row + 1]))
        rows = sum(len(each) for each in sums.triangle.waiting)
        assert rows < waiting
    phi = oracle.centered(features, targets, weights, intercept)[0]
    C = phi.T @ np.diag(weights) @ phi
    assert_same(sums.scatter, C)
    assert_same(sums.triangle.diagonal(), np.diag(C))
    W, _ = oracle.ridge(features, targets, 0.7, weights, intercept)
    assert_same(solve(sums, 0.7).weights, W)
    assert not sums.triangle.waiting
    if columns == 1:
        assert sum(block.numel() for block in sums.triangle.blocks) == 5 * 6 / 2
    left = sums.without(summed(features[:3], targets[:3], weights[:3], intercept))
    assert_alike(left, summed(features[3:], targets[3:], weights[3:], intercept))


@given(problem=problems(), cut=st.floats(0, 1))
def test_joined_and_without(problem, cut):
    features, targets, weights, intercept = problem
    k = int(cut * len(features))
    parts = [
        summed(features[rows], targets[rows], None if weights is None else weights[rows], intercept)
        for rows in (slice(0, k), slice(k, None))
    ]
    whole, union = summed(*problem), parts[0].copy()
    union.join(parts[1])
    assert_alike(union, whole)
    if 0 < k < len(features):
        assert_alike(union.without(parts[0]), parts[1], 1e-9)
        assert_alike(union.without(parts[1]), parts[0], 1e-9)


@both
def test_joined_sums_have_the_rounding_of_the_larger(intercept):
    """Something was subtracted from one of them, or from each, whichever is joined to which."""
    features, targets, weights = random_rows(offset=1.0)
    large = summed(9 * features, 70 * targets, weights, intercept)
    small = summed(features, targets, None, intercept)
    pieces = [(9 * features[:5], 70 * targets[:5], weights[:5]), (features[:4], targets[:4])]
    large_left, small_left = (
        sums.without(summed(*piece, intercept=intercept))
        for sums, piece in zip((large, small), pieces, strict=True)
    )
    for one, other, peak in (
        (large_left, small, large),
        (small, large_left, large),
        (large_left, small_left, large),
        (small_left, large_left, large),
        (small_left, large, small),
    ):
        union = one.copy()
        union.join(other)
        assert union.peak_scatter == pytest.approx(float(peak.scatter.diagonal().max()), rel=1e-12)
        assert union.peak_power == pytest.approx(float(peak.power.max()), rel=1e-12)
        union.scale(0.25)
        assert union.peak_scatter == pytest.approx(
            float(peak.scatter.diagonal().max()) / 4, rel=1e-12
        )
        assert union.peak_power == pytest.approx(float(peak.power.max()) / 4, rel=1e-12)
        again = union.without(summed(features[9:11], targets[9:11], [0.25, 0.25], intercept))
        assert again.peak_power == max(union.peak_power, float(union.power.max()))


@both
def test_scaled_and_wider_sums(intercept):
    features, targets, weights = random_rows(c=3)
    targets[:9, 2] = 0
    sums = summed(features[:9], targets[:9, :2], weights[:9], intercept)
    sums.rearrange([0, 1, None])
    sums.scale(0.3)
    sums.add(*tensors(features[9:], targets[9:], weights[9:]))
    scaled = np.where(np.arange(len(weights)) < 9, 0.3, 1.0) * weights
    assert_alike(sums, summed(features, targets, scaled, intercept))
    with pytest.raises(InvalidInputError, match="would together count as 6.9.*e-9[0-9] samples"):
        summed(features, targets).scale(3e-92)


@both
def test_copies_and_what_is_left_share_nothing(intercept):
    features, targets, weights = random_rows()
    sums = summed(features, targets, weights, intercept)
    before = sums.copy()
    left = sums.without(summed(features[:2], targets[:2], weights[:2], intercept))
    for other in (sums.copy(), left):
        other.add(*tensors(features, targets))
        other.scale(0.5)
    assert_alike(sums, before, 0)


@both
def test_what_cannot_have_been_learned_is_not_forgotten(intercept):
    features, targets, _ = random_rows()
    sums = summed(features, targets, intercept=intercept)
    for wrong in (
        (50 * features[:2], targets[:2]),
        (features[:2], 500 * targets[:2]),
        (features[:2], targets[:2], np.full(2, 9.0)),
        (features[:8], targets[:8] + 20),
    ):
        with pytest.raises(InvalidInputError, match="that were not learned"):
            sums.without(summed(*wrong, intercept=intercept))
    sums.scale(0.5)
    with pytest.raises(InvalidInputError, match="not learned"):  # they count half by now
        sums.without(summed(features[:1], targets[:1], np.ones(1), intercept))
    assert sums.without(summed(features[:1], targets[:1], [0.5], intercept)).count == 22
    for times in (1, 2):
        more = summed(np.tile(features, (times, 1)), np.tile(targets, (times, 1)))
        with pytest.raises(InvalidInputError, match="expected some to remain: start a new"):
            summed(features, targets).without(more)
    zeros, ones = np.zeros((3, 2)), np.ones((3, 1))
    left = summed(zeros, ones).without(summed(zeros[:1], ones[:1]))
    assert_same(solve(left, 1.0).weights, np.zeros((2, 1)))


NEARLY = np.random.default_rng(3).integers(-3, 4, size=(400, 3)) * 2.0**-52  # a few last digits
EQUAL = {
    "targets": lambda X, Y: (X, 0 * Y + 7.1),
    "one target of two": lambda X, Y: (X, Y * [0, 1] + 7.1),
    "samples": lambda X, Y: (0 * X + [0.3, -7e5, 2e-3], Y),
    "samples and targets": lambda X, Y: (0 * X + 0.3, 0 * Y - 1e4),
    "targets up to rounding": lambda X, Y: (X, 7.1 * (1 + NEARLY[: len(Y), :2])),
    "samples up to rounding": lambda X, Y: (0.3 * (1 + NEARLY[: len(X)]), Y),
}


@pytest.mark.parametrize("kind", EQUAL)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("n", "left"), [(5, 2), (40, 25), (400, 2)])
def test_equal_targets_or_samples_can_be_forgotten(kind, seed, n, left):
    """All that is left about their mean is rounding, which differs from portion to portion."""
    rng = np.random.default_rng(seed)
    size, offset = 10.0 ** rng.integers(-3, 4), 10.0 ** rng.integers(-3, 4)
    X, Y = size * rng.normal(size=(n, 3)) + offset, rng.normal(size=(n, 2)) + offset
    X, Y = EQUAL[kind](X, Y)
    sums = Moments(3, 2, intercept=True)
    for rows in np.array_split(np.arange(n), rng.integers(1, 5)):
        sums.add(*tensors(X[rows], Y[rows]))
    order = rng.permutation(n)
    for rows in np.array_split(order[left:], rng.integers(1, 3)):
        sums = sums.without(summed(X[rows], Y[rows], intercept=True))
    assert sums.count == left
    kept, gamma = order[:left], 0.1 * (size**2 if kind in ("targets", "one target of two") else 1)
    weights, intercept, _ = solve(sums, gamma)
    expected = solve(summed(X[kept], Y[kept], intercept=True), gamma)
    scale = np.abs(Y).max()
    found = torch.from_numpy(X[kept]) @ weights + intercept
    wanted = torch.from_numpy(X[kept]) @ expected.weights + expected.intercept
    assert_same(found / scale, wanted / scale, 1e-6)
    restored = Moments.from_state(*sums.to_state(), intercept=True)
    assert restored.peak_weight == sums.peak_weight == pytest.approx(n, rel=1e-9)


def test_peaks_in_present_weights():
    """The rounding of a mean of 23 samples stays when they count less, and when others join."""
    features, targets, _ = random_rows()
    left = summed(features, targets, intercept=True)
    left = left.without(summed(features[3:], targets[3:], intercept=True))
    assert left.peak_weight == 23
    left.scale(0.25)
    assert left.peak_weight == 5.75
    sums = summed(features, targets, intercept=True)
    sums.join(left)
    assert sums.peak_weight == 5.75


@pytest.mark.parametrize("kind", [kind for kind in EQUAL if kind != "one target of two"])
def test_others_than_the_equal_ones_were_not_learned(kind):
    rng = np.random.default_rng(0)
    X, Y = EQUAL[kind](rng.normal(size=(40, 3)), rng.normal(size=(40, 2)))
    sums = summed(X, Y, intercept=True)
    off = 1e-9 * np.abs(Y if "target" in kind else X).max()
    wrong = (X[:5], Y[:5] + off) if "target" in kind else (X[:5] + off, Y[:5])
    with pytest.raises(InvalidInputError, match="that were not learned"):
        sums.without(summed(*wrong, intercept=True))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_features_computed_again(intercept, offset, sign):
    """Those of a float32 network depend on what it computes beside them; here, at their worst."""
    rng = np.random.default_rng(2)
    phi, Y = rng.normal(size=(12, 30)) + offset, rng.normal(size=(12, 2)) + offset
    features, targets = torch.from_numpy(phi).float(), torch.from_numpy(Y)
    sums = Moments(30, 2, intercept)
    sums.add(features, targets)
    center = features[4:].mean(0) if intercept else 0 * features[0]
    others = torch.linalg.pinv(features[4:] - center) @ (features[4:] - center)
    outward = features[:4] - center  # where the samples that are left have nothing
    outward = torch.nn.functional.normalize(outward - outward @ others, dim=1)
    most = sums.feature_rounding * features[:4].norm(dim=1, keepdim=True)
    again, much_off = Moments(30, 2, intercept), Moments(30, 2, intercept)
    again.add(features[:4] + 0.9 * sign * most * outward, targets[:4])
    left = sums.without(again)
    kept = summed_left(features[4:], targets[4:], intercept, 1.0)
    assert_same(solve(left, 1.0).weights, kept, 1e-2)
    much_off.add(features[:4] + 400 * most * outward, targets[:4])
    with pytest.raises(InvalidInputError, match="that were not learned"):
        sums.without(much_off)


def test_what_many_add_to_the_mean():
    features = torch.randn(3, generator=torch.Generator().manual_seed(0)).expand(101, 3)
    targets = torch.zeros(101, 1)
    sums, again, much_off = (Moments(3, 1, intercept=True) for _ in range(3))
    sums.add(features, targets)
    most = sums.feature_rounding * features[0].norm() * torch.tensor([1.0, 0, 0])
    again.add(features[1:] + 0.9 * most, targets[1:])
    assert sums.without(again).count == 1
    much_off.add(features[1:] + 9 * most, targets[1:])
    with pytest.raises(InvalidInputError, match="that were not learned"):
        sums.without(much_off)


@pytest.mark.parametrize("intercept", [False, True])
def test_so_may_their_products_with_targets(intercept):
    """A large target that goes, and small ones, met exactly, that stay."""
    rng = np.random.default_rng(2)
    features = torch.from_numpy(rng.normal(size=(9, 30))).float()
    targets = torch.from_numpy(rng.normal(size=(9, 1)))
    targets[0] = 1e3
    sums = Moments(30, 1, intercept)
    sums.add(features, targets)
    along = torch.nn.functional.normalize(summed_left(features[1:], targets[1:], intercept).mT)
    most = sums.feature_rounding * features[:1].norm()
    again, much_off = Moments(30, 1, intercept), Moments(30, 1, intercept)
    again.add((features[:1] - 0.9 * most * along).float(), targets[:1])
    sums.without(again)
    much_off.add((features[:1] - 9 * most * along).float(), targets[:1])
    with pytest.raises(InvalidInputError, match="that were not learned"):
        sums.without(much_off)


def summed_left(features, targets, intercept, gamma=1e-3):
    sums = Moments(30, targets.shape[1], intercept)
    sums.add(features, targets)
    return solve(sums, gamma).weights


def test_what_rounding_leaves_below_zero_is_reported():
    sums = summed(np.array([[1e-5]]), np.array([[1.0]]))
    sums.peak_scatter, sums.peak_power = 1e6, 1e6
    sums.triangle = sums.triangle.plus_product(torch.ones(1).double(), -2e-10)
    with pytest.warns(PrecisionWarning, match="expect [0-9.]+ correct digits"):
        solve(sums, 1e-6)
    with pytest.raises(NotPositiveDefiniteError, match="dependent, and gamma = 1e-11"):
        solve(sums, 1e-11)


def test_dependent_features_without_a_ridge():
    features, targets, _ = random_rows(n=30)
    features[:, 4] = features[:, 0]
    with pytest.raises(NotPositiveDefiniteError, match="linearly dependent, and gamma = 0") as told:
        solve(summed(features, targets), 0.0)
    W = solve(summed(features, targets), told.value.jitter).weights
    assert_same(W[4], W[0], 1e-3)
    independent = np.delete(features, 4, axis=1)
    assert_same(
        solve(summed(independent, targets), 0.0).weights, oracle.ridge(independent, targets, 0)[0]
    )


def test_the_search_passes_bad_ridges():
    """One large feature says nothing; the small ones say all, a hundred times below the start."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(6000, 20)) * np.array([2000.0] + [1.0] * 19)
    targets = features[:, 1:2] + 0.01 * rng.normal(size=(6000, 1))
    sums = summed(features, targets)
    start = float(np.square(features).sum(0).mean())
    scores = [score_of(sums, start / 10.0**k) for k in range(3)]
    assert scores[1] > 0.999 * scores[0] > 0.999 * scores[2]
    assert score_of(sums, solve(sums, "auto").gamma) < 0.01 * scores[0]


class Gathered:
    """Two processes, of which the other has sent these numbers; it keeps those sent here."""

    def __init__(self, other=()):
        self.other, self.own = list(other), []

    def gather(self, numbers):
        self.own = numbers
        return [numbers, self.other or numbers]


def test_descriptions_that_differ_between_processes():
    first = Gathered()
    require_same_everywhere({"kind": "the same", "number": "0"}, first)
    match = "of the 2 processes have different number; expected the same in every process"
    for number in range(1, 1000):
        with pytest.raises(InvalidInputError, match=match):
            require_same_everywhere(
                {"kind": "the same", "number": str(number)}, Gathered(first.own)
            )
