"""The iterative correction: Prop. 4.2, the sweep theorem, Eq. 16 and 17, and singular blocks.

A block's kernel is singular where samples repeat or features are few. K is positive semi-definite,
so what such a block inherits and aims at lies in the range of K_nn; the function is unique, and of
the coefficients the ones of least norm are the limit of a small ridge.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget import arrays
from retarget.engine.settling import invert_blocks
from retarget.errors import (
    NotPositiveDefiniteError,
    PrecisionWarning,
    StreamTooLargeError,
)
from support.oracles import lab as lab_oracle
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    batches,
    each_loss,
    fewer_examples,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems_of,
    rates,
    reductions,
    ridges,
    streams,
)

# What the tests ask is exact, however large the targets of small gamma and rates are.
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
first_blocks = st.sampled_from(["corrected", "plain"])


@given(
    stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 4), blocks=st.integers(1, 12),
    ridge=ridges, parts=st.sampled_from(["both", "online", "offline"]), first=first_blocks,
    panel=panel_sizes,
)  # fmt: skip
def test_equals_proposition_4_2(stream, eta, gamma, batch, blocks, ridge, parts, first, panel):
    block, learner = batch * blocks, rt.SGD(lr=eta, batch_size=batch, reduction="sum")
    expected = literal.iterative(stream.Y, stream.K, eta, gamma, block, ridge, batch, parts, first)
    with panels_of(panel):
        got = rt.iterative_targets(
            stream.K, stream.Y, learner, gamma, block, ridge, parts=parts, first_block=first
        )
    assert_same(got, expected, 1e-10 * max(1.0, np.abs(expected).max()))


@each_loss
@fewer_examples
@given(
    data=st.data(), gamma=gammas, panel=panel_sizes, blocks=st.integers(1, 6), first=first_blocks
)
def test_sweep_theorem(loss, data, gamma, panel, blocks, first):
    """After each corrected block the online learner agrees on it with the offline learner so far.

    The online learner is torch.optim.SGD, with whatever momentum, decay and schedule. With momentum
    it is still moving then: what agrees is the function that it coasts to.
    """
    stream, learner, _ = data.draw(problems_of(loss))
    block = learner.batch_size * blocks
    with panels_of(panel):
        Z = rt.iterative_targets(
            stream.K, stream.Y, learner, gamma, block, first_block=first, loss=loss
        )
    stops = [*range(block, len(stream), block), len(stream)]
    ends = [learner.steps(stop) - 1 for stop in stops]
    run = train(stream.features, Z, learner, coast_after=ends, loss=loss)
    scale = max(1.0, np.abs(Z).max())
    for stop, weights in zip(stops, run.coasted, strict=True):
        seen, rows = slice(0, stop), slice((stop - 1) // block * block, stop)
        if first == "plain" and rows.start == 0:
            assert_same(Z[rows], stream.Y[rows])
            continue
        if loss == "squared":
            K_seen = stream.K[seen, seen]
            offline = literal.f_off(stream.Y[seen], K_seen, stream.K[seen, rows], gamma)
        else:
            A = rt.offline_coefficients(stream.K[seen, seen], stream.Y[seen], gamma, loss=loss)
            offline = stream.K[rows, seen] @ A
        assert_same(stream.features[rows] @ weights, offline, 1e-9 * scale)


@fewer_examples
@given(stream=streams, gamma=gammas, block=st.integers(1, 9), ridge=ridges)
def test_neither_rate_nor_momentum_enters_the_function_learned(stream, gamma, block, ridge):
    functions = []
    for learner in (rt.SGD(lr=0.05), rt.SGD(lr=0.7), rt.SGD(lr=0.04, momentum=0.9)):
        Z = rt.iterative_targets(stream.K, stream.Y, learner, gamma, block, ridge)
        run = train(stream.features, Z, learner, coast_after=[len(stream) - 1])
        functions.append(stream.queries @ run.coasted[-1])
    scale = max(1.0, np.abs(Z).max())
    assert_same(functions[1], functions[0], 1e-9 * scale)
    assert_same(functions[2], functions[0], 1e-9 * scale)


@each_loss
@fewer_examples
@given(data=st.data(), gamma=gammas)
def test_one_block_for_all_is_the_exact_correction(loss, data, gamma):
    stream, learner, _ = data.draw(problems_of(loss, memory=False))
    size = learner.steps(len(stream)) * learner.batch_size
    Z = rt.iterative_targets(stream.K, stream.Y, learner, gamma, size, loss=loss)
    exact = rt.corrected_targets(stream.K, stream.Y, learner, gamma, loss=loss)
    assert_same(Z, exact, 1e-9 * max(1.0, np.abs(exact).max()))


def test_a_start_only_moves_the_targets():
    stream = make_stream(23, 2, seed=8)
    initial, learner = np.cos(stream.Y), rt.SGD(lr=0.4, batch_size=2, reduction="sum")
    Z = rt.iterative_targets(stream.K, stream.Y, learner, 0.6, 4, initial=initial)
    residual = rt.iterative_targets(stream.K, stream.Y - initial, learner, 0.6, 4)
    assert_same(Z, residual + initial)


def test_the_ridge_for_repeated_samples():
    stream = make_stream(8, 1, seed=0)
    twice = np.repeat(np.arange(8), 2)
    K, Y, learner = stream.K[np.ix_(twice, twice)] - 1e-9 * np.eye(16), stream.Y[twice], rt.SGD(0.1)
    with pytest.raises(NotPositiveDefiniteError, match="block of samples 0 to 3") as caught:
        rt.iterative_targets(K, Y, learner, 1.0, 4)
    assert caught.value.deficit == pytest.approx(1e-9, rel=1e-4)
    with pytest.warns(PrecisionWarning):
        Z = rt.iterative_targets(K, Y, learner, 1.0, 4, ridge=caught.value.jitter)
    assert np.isfinite(Z).all()
    with pytest.raises(NotPositiveDefiniteError):
        rt.iterative_targets(K, Y, learner, 1.0, 4, ridge=0.9 * caught.value.jitter)


@pytest.mark.parametrize(
    ("learner", "options", "rate_matters", "agrees"),
    [
        ({}, {}, False, True),
        ({}, {"ridge": 0.3}, False, False),
        ({"batch_size": 2, "reduction": "sum"}, {}, False, True),
        ({}, {"first_block": "plain"}, True, True),  # after every block but the first
        ({}, {"parts": "online"}, None, False),
        ({}, {"parts": "offline"}, True, False),
        ({"weight_decay": 0.3}, {}, True, True),
        ({"momentum": 0.5}, {}, False, False),  # where it coasts to agrees
    ],
    ids=str,
)
def test_where_rate_and_newest_block_matter(learner, options, rate_matters, agrees):
    stream, functions = make_stream(24, 2, seed=5), []
    for lr in (0.05, 0.2):
        sgd = rt.SGD(lr=lr, **learner)
        Z = rt.iterative_targets(stream.K, stream.Y, sgd, 0.6, 4, **options)
        functions.append(stream.K @ rt.online_coefficients(stream.K, Z, sgd))
        for stop in (8, 16, 24):
            seen, block = slice(0, stop), slice(stop - 4, stop)
            K = stream.K[seen, seen]
            online = rt.online_coefficients(K, Z[seen], sgd)
            offline = rt.offline_coefficients(K, stream.Y[seen], 0.6)
            gap = np.abs(K[block] @ (online - offline)).max()
            assert gap < 1e-10 if agrees else gap > 1e-3
    gap = np.abs(functions[0] - functions[1]).max()
    if rate_matters is not None:
        assert gap > 1e-3 if rate_matters else gap < 1e-10


@given(stream=streams, gamma=gammas, block=st.integers(1, 40), panel=panel_sizes)
def test_distilled_targets_are_offline_predictions(stream, gamma, block, panel):
    with panels_of(panel):
        got = rt.distilled_targets(stream.K, stream.Y, gamma, block)
    assert_same(got, lab_oracle.offline_predictions(stream.K, stream.Y, gamma, block))


@given(
    stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 4), blocks=st.integers(1, 6),
    ridge=ridges, panel=panel_sizes,
)  # fmt: skip
def test_terms_are_equations_15_and_17(stream, eta, gamma, batch, blocks, ridge, panel):
    """Any other targets of the last block are worse, which is what the formula is for."""
    block, n = batch * blocks, len(stream)
    learner = rt.SGD(lr=eta, batch_size=batch, reduction="sum")
    with panels_of(panel):
        terms = rt.correction_terms(stream.K, learner, gamma, block, ridge)
    assert [term.rows for term in terms] == [
        slice(i, min(i + block, n)) for i in range(0, n, block)
    ]
    for term in terms:
        past = slice(0, term.rows.start)
        C_on, C_off = literal.correction_terms(stream.K, past, term.rows, eta, gamma, ridge, batch)
        assert_same(term.online, C_on.T)
        assert_same(term.offline, C_off.T)
        assert_same(term.modulation, np.eye(len(C_on)) + C_on.T)
    Z = rt.iterative_targets(stream.K, stream.Y, learner, gamma, block, ridge)
    rng = np.random.default_rng(0)
    least = literal.block_loss(Z, stream.Y, stream.K, eta, gamma, ridge, batch)
    for _ in range(3):
        other = Z.copy()
        other[term.rows] += rng.normal(size=other[term.rows].shape)
        assert literal.block_loss(other, stream.Y, stream.K, eta, gamma, ridge, batch) > least


@st.composite
def plain_problems(draw):
    """A stream, any SGD without a memory (schedules too), and a block of whole mini-batches."""
    stream, batch = draw(streams), draw(batches)
    lr = draw(rates)
    if draw(st.booleans()):
        lr = tuple(lr * draw(st.floats(0.3, 1.0)) for _ in range(-(-len(stream) // batch)))
    learner = rt.SGD(lr=lr, batch_size=batch, reduction=draw(reductions))
    return stream, learner, batch * draw(st.integers(1, 6))


def equation_16(stream, learner, gamma, terms):
    """The targets block by block: the online learner is torch.optim.SGD on those made so far."""
    Z, weights = np.zeros_like(stream.Y), np.zeros((stream.features.shape[1], stream.Y.shape[1]))
    for term in terms:
        p, n = slice(0, term.rows.start), term.rows
        on, off = stream.features[n] @ weights, np.zeros_like(stream.Y[n])
        if p.stop:
            off = literal.f_off(stream.Y[p], stream.K[p, p], stream.K[p, n], gamma)
        Z[n] = stream.Y[n] + term.online @ (stream.Y[n] - on) + term.offline @ (off - stream.Y[n])
        assert_same(
            Z[n] - on, term.modulation @ (stream.Y[n] - on) + term.offline @ (off - stream.Y[n])
        )
        lr = learner.lr
        lr = lr if isinstance(lr, float) else lr[learner.steps(n.start) : learner.steps(n.stop)]
        weights = train(stream.features[n], Z[n], replace(learner, lr=lr), start=weights).weights
    return Z


@given(problem=plain_problems(), gamma=gammas, ridge=ridges, panel=panel_sizes)
def test_equation_16_with_them_is_the_iterative_correction(problem, gamma, ridge, panel):
    stream, learner, block = problem
    with panels_of(panel):
        terms = rt.correction_terms(stream.K, learner, gamma, block, ridge)
    expected = rt.iterative_targets(stream.K, stream.Y, learner, gamma, block, ridge)
    scale = max(1.0, np.abs(expected).max())
    assert_same(equation_16(stream, learner, gamma, terms), expected, 1e-10 * scale)


def test_the_terms_of_a_singular_block():
    """Samples that repeat: the targets rebuilt from the terms still settle the learner exactly."""
    base = make_stream(6, 2, seed=1)
    twice = np.repeat(np.arange(6), 2)
    features, Y = base.features[twice], base.Y[twice] + np.arange(12)[:, None]
    K = features @ features.T
    stream = replace(base, features=features, K=(K + K.T) / 2, Y=Y)
    learner, gamma, block = rt.SGD(lr=0.3), 0.7, 4
    terms = rt.correction_terms(stream.K, learner, gamma, block)
    Z = equation_16(stream, learner, gamma, terms)
    for term in terms:
        n, seen = term.rows, slice(0, term.rows.stop)
        K_nn = stream.K[n, n]
        W = (np.eye(block) / 0.3 + np.tril(K_nn, -1)) @ np.linalg.pinv(K_nn, rcond=1e-12)
        assert_same(term.modulation, W)
        weights = train(features[seen], Z[seen], learner).weights
        offline = literal.f_off(Y[seen], stream.K[seen, seen], stream.K[seen, n], gamma)
        assert_same(features[n] @ weights, offline)


@pytest.mark.parametrize("seed", range(4))
def test_pivots_just_around_zero(seed):
    """Three features for a block of eight: rounding decides how far a Cholesky factor gets."""
    features = np.random.default_rng(seed).normal(size=(8, 3))
    K = features @ features.T
    (term,) = rt.correction_terms((K + K.T) / 2, rt.SGD(lr=0.1), gamma=0.5, block_size=8)
    W = (np.eye(8) / 0.1 + np.tril(K, -1)) @ np.linalg.pinv(K, rcond=1e-12)
    assert_same(term.modulation, W)


def test_terms_of_no_kernel():
    K = np.diag([1.0, 1.0, 1.0, -0.25])
    said = r"block of samples 2 to 3 .* -0.25 with ridge = 0,"
    with pytest.raises(NotPositiveDefiniteError, match=said) as caught:
        rt.correction_terms(K, rt.SGD(lr=0.1), gamma=1.0, block_size=2)
    assert caught.value.deficit == pytest.approx(0.25)
    with pytest.warns(PrecisionWarning):
        rt.correction_terms(K, rt.SGD(lr=0.1), 1.0, 2, ridge=caught.value.jitter)
    # few digits are said too
    K = np.array([[1.0, 1 - 1e-5], [1 - 1e-5, 1.0]], dtype=np.float32)
    with pytest.warns(PrecisionWarning, match="the kernel of a block") as warned:
        rt.correction_terms(K, rt.SGD(lr=0.5), 1.0, 2)
    assert warned[0].filename == __file__  # the caller's line, not one of ours


def test_the_terms_library_and_dtype(monkeypatch):
    K, learner = make_stream(9, 1, seed=3).K, rt.SGD(lr=0.2, batch_size=2, reduction="sum")
    expected = rt.correction_terms(K, learner, 0.7, 4)
    for matrix, kind, digits in (
        (K.astype(np.float16), np.ndarray, 100 * np.finfo(np.float16).eps),
        (K.astype(np.float32), np.ndarray, 100 * np.finfo(np.float32).eps),
        (torch.tensor(K, requires_grad=True), torch.Tensor, 1e-14),
    ):
        got = rt.correction_terms(matrix, learner, 0.7, 4)
        for one, other in zip(got, expected, strict=True):
            for name in ("online", "offline", "modulation"):
                assert isinstance(vars(one)[name], kind)
                assert vars(one)[name].dtype == matrix.dtype
                assert_same(vars(one)[name], vars(other)[name], digits)
    needed = 8 * (9 * 9 / 2 + 3 * 9 * 2)
    monkeypatch.setattr(arrays, "free_memory", lambda device: needed - 1)
    with pytest.raises(StreamTooLargeError, match="the terms of 9 samples in blocks of 2"):
        rt.correction_terms(K, rt.SGD(lr=0.1), 1.0, 2)
    monkeypatch.setattr(arrays, "free_memory", lambda device: needed)
    rt.correction_terms(K, rt.SGD(lr=0.1), 1.0, 2)


def least_norm_sweep(K, Y, eta, gamma, b, batch):
    """The sweep typed literally, with a pseudo-inverse: A_n = K_nn^+ (F_n - K_np A_p)."""
    A, Z = np.zeros_like(Y), np.zeros_like(Y)
    for start in range(0, len(K), b):
        n, seen = slice(start, min(start + b, len(K))), slice(0, min(start + b, len(K)))
        off = np.linalg.solve(gamma * np.eye(seen.stop) + K[seen, seen], Y[seen])
        F, f = K[n, seen] @ off, K[n, :start] @ A[:start]
        A[n] = np.linalg.pinv(K[n, n], rcond=1e-12, hermitian=True) @ (F - f)
        Z[n] = f + A[n] / eta + literal.upper(K[n, n], batch).T @ A[n]
    return Z


@given(
    seed=st.integers(0, 999), d=st.integers(1, 4), n=st.integers(1, 35), blocks=st.integers(1, 6),
    batch=st.integers(1, 3), eta=st.floats(0.02, 0.2), gamma=st.floats(0.1, 3.0),
)  # fmt: skip
def test_fewer_features_than_samples_in_a_block(seed, d, n, blocks, batch, eta, gamma):
    rng, b = np.random.default_rng(seed), batch * blocks
    X, Y = rng.uniform(-1, 1, size=(n, d)) + np.eye(n, d), rng.normal(size=(n, 2))
    K, learner = X @ X.T, rt.SGD(lr=eta / batch, batch_size=batch, reduction="sum")
    Z = rt.iterative_targets(K, Y, learner, gamma, b)
    expected = least_norm_sweep(K, Y, learner.lr, gamma, b, batch)
    smallest = min(
        np.linalg.svd(X[s : s + b], compute_uv=False)[: min(d, n - s, b)].min()
        for s in range(0, n, b)
    )
    assert_same(Z, expected, 1e-10 * max(1.0, np.abs(expected).max()) / min(1, smallest) ** 2)
    corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, b)
    streamed = np.concatenate([corrector.correct(X, Y), corrector.flush()])
    assert_same(streamed, Z, 1e-10 * max(1.0, np.abs(Z).max()) / min(1, smallest) ** 2)


@pytest.mark.parametrize(
    "learner",
    [
        rt.SGD(lr=0.1),
        rt.SGD(lr=0.1, batch_size=2, reduction="mean"),
        rt.SGD(lr=0.05, momentum=0.6),
        rt.SGD(lr=0.05, momentum=0.4, nesterov=True, weight_decay=0.2),
    ],
    ids=str,
)
def test_repeats_within_a_block(learner):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(12, 4))
    X = X[[0, 1, 1, 0, 2, 3, 2, 2, 4, 4, 4, 4, 5, 6, 7, 5]]
    Y = rng.normal(size=16)
    K = rt.RBF(1.5)(X)
    Z = rt.iterative_targets(K, Y, learner, 0.5, 4)
    gaps = [
        np.abs(rt.iterative_targets(K, Y, learner, 0.5, 4, ridge=ridge) - Z).max()
        for ridge in (1e-4, 1e-6)
    ]
    assert gaps[1] < 1e-3 * np.abs(Z).max()
    assert gaps[1] < 0.05 * gaps[0]  # in proportion to the ridge: this is where it goes


@pytest.mark.parametrize("parts", ["online", "offline"])
def test_half_a_correction_has_no_limit(parts):
    """Its aim is Y itself, which two samples that are the same need not share."""
    K = np.ones((4, 4)) - 1e-12 * np.eye(4)
    with pytest.raises(NotPositiveDefiniteError, match=r"block of samples 0 to 1.*ridge = "):
        rt.iterative_targets(K, np.arange(4.0), rt.SGD(0.1), 1.0, 2, parts=parts)


def test_a_block_of_zeros_learns_nothing():
    Z = rt.iterative_targets(np.diag([0.0, 0, 1, 1]), np.ones(4), rt.SGD(0.5), 1.0, 2)
    np.testing.assert_allclose(Z, [0, 0, 1, 1], atol=1e-12)


@given(stream=streams, gamma=gammas, cut=st.integers(1, 33))
def test_causal(stream, gamma, cut):
    """The future does not change the targets of complete blocks."""
    block, learner = 3, rt.SGD(lr=0.3)
    whole = rt.iterative_targets(stream.K, stream.Y, learner, gamma, block)
    cut = min(cut, len(stream))
    part = rt.iterative_targets(stream.K[:cut, :cut], stream.Y[:cut], learner, gamma, block)
    complete = cut - cut % block
    assert_same(part[:complete], whole[:complete])


def test_many_samples_over_many_panels():
    stream = make_stream(520, 2, seed=2)
    learner = rt.SGD(lr=0.3, batch_size=4, reduction="sum")
    Z = rt.iterative_targets(stream.K, stream.Y, learner, 0.9, 20, ridge=0.1)
    assert_same(Z, literal.iterative(stream.Y, stream.K, 0.3, 0.9, 20, 0.1, batch=4))


@given(stream=streams, gamma=gammas, block=st.integers(1, 6))
def test_distilled_targets_are_what_a_corrected_learner_reaches(stream, gamma, block):
    """The function of the iterative targets on the last block, by the closed form of Eq. 6."""
    Z = rt.iterative_targets(stream.K, stream.Y, rt.SGD(0.4), gamma, block)
    start = (len(stream) - 1) // block * block
    reached = literal.f_on(Z, stream.K, stream.K[:, start:], 0.4)
    F = rt.distilled_targets(stream.K, stream.Y, gamma, block)
    assert_same(F[start:], reached, 1e-9 * max(1.0, np.abs(Z).max()))


@given(stream=streams, eta=rates, gamma=gammas)
def test_the_rate_for_single_samples(stream, eta, gamma):
    """I + C_on is 1 / (eta k(x, x)): rate times modulation is the step that leaves no error."""
    for term in rt.correction_terms(stream.K, rt.SGD(lr=eta), gamma, block_size=1):
        own = stream.K[term.rows, term.rows]
        assert_same(eta * term.modulation * own, np.ones((1, 1)))


@pytest.mark.parametrize("singular", [(), (1, 4), (0, 1, 2, 3, 4)], ids=str)
def test_blocks_in_turn_solve_the_block_triangular_system(singular):
    rng, count, size = np.random.default_rng(8), 5, 3
    grams = []
    for block in range(count):
        X = rng.normal(size=(size, 4))
        X[2] = X[0] if block in singular else X[2]
        grams.append(X @ X.T)
        grams[-1][2, 2] *= 1 + 1e-15  # some of them have a Cholesky factor, of rounding alone
    coupling, rhs = rng.normal(size=(15, 15)), rng.normal(size=(15, 2))
    expected = np.zeros((15, 2))
    for block, gram in enumerate(grams):
        rows = slice(size * block, size * (block + 1))
        rest = rhs[rows] - coupling[rows, : rows.start] @ expected[: rows.start]
        expected[rows] = np.linalg.pinv(gram, rcond=1e-12, hermitian=True) @ rest
    inverses = invert_blocks(torch.tensor(np.stack(grams)), 0.0, 0, in_range=True)
    assert tuple([] if inverses.singular is None else inverses.singular.tolist()) == singular
    before = torch.tensor(coupling)
    got = inverses.solve_in_turn(before, torch.tensor(rhs))
    assert_same(got, expected, 1e-10 * np.abs(expected).max())
    assert_same(before, coupling, 0)  # it may be the caller's own kernel
    alone = inverses.solve(torch.tensor(rhs))[:size]
    assert_same(alone, expected[:size], 1e-10 * np.abs(expected).max())
