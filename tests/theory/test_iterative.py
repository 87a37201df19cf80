"""The iterative correction: Prop. 4.2 in its literal form, and the sweep theorem."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import NotPositiveDefiniteError, PrecisionWarning
from support.oracles import continual as continual_oracle
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    each_loss,
    fewer_examples,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems_of,
    rates,
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
    block, learner = batch * blocks, rt.SGD(lr=eta, batch_size=batch)
    expected = literal.iterative(stream.Y, stream.K, eta, gamma, block, ridge, batch, parts, first)
    with panels_of(panel):
        got = rt.iterative_targets(
            stream.K, stream.Y, learner, gamma, block, ridge, parts=parts, first_block=first
        )
    assert_same(got, expected, 1e-10 * max(1.0, np.abs(expected).max()))


@given(stream=streams, eta=rates, gamma=gammas, block=st.integers(1, 7), ridge=ridges)
def test_the_last_block_minimises_equation_15(stream, eta, gamma, block, ridge):
    """Not the formula but what it is for: any other targets of the last block are worse."""
    Z = rt.iterative_targets(stream.K, stream.Y, rt.SGD(lr=eta), gamma, block, ridge)
    last = slice((len(stream) - 1) // block * block, None)
    least = literal.block_loss(Z, stream.Y, stream.K, eta, gamma, ridge)
    rng = np.random.default_rng(0)
    for _ in range(3):
        other = Z.copy()
        other[last] += rng.normal(size=other[last].shape)
        assert literal.block_loss(other, stream.Y, stream.K, eta, gamma, ridge) > least


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
@given(data=st.data(), gamma=gammas)
def test_one_block_for_all_is_the_exact_correction(loss, data, gamma):
    stream, learner, _ = data.draw(problems_of(loss, memory=False))
    size = learner.steps(len(stream)) * learner.batch_size
    Z = rt.iterative_targets(stream.K, stream.Y, learner, gamma, size, loss=loss)
    exact = rt.corrected_targets(stream.K, stream.Y, learner, gamma, loss=loss)
    assert_same(Z, exact, 1e-9 * max(1.0, np.abs(exact).max()))


def test_a_start_that_is_not_zero_only_moves_the_targets():
    stream = make_stream(23, 2, seed=8)
    initial, learner = np.cos(stream.Y), rt.SGD(lr=0.4, batch_size=2)
    Z = rt.iterative_targets(stream.K, stream.Y, learner, 0.6, 4, initial=initial)
    residual = rt.iterative_targets(stream.K, stream.Y - initial, learner, 0.6, 4)
    assert_same(Z, residual + initial)


def test_many_samples_over_many_panels():
    stream = make_stream(520, 2, seed=2)
    learner = rt.SGD(lr=0.3, batch_size=4)
    Z = rt.iterative_targets(stream.K, stream.Y, learner, 0.9, 20, ridge=0.1)
    assert_same(Z, literal.iterative(stream.Y, stream.K, 0.3, 0.9, 20, 0.1, batch=4))


def test_repeated_samples_in_a_block_need_the_ridge_that_the_error_names():
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
        ({"batch_size": 2}, {}, False, True),
        ({}, {"first_block": "plain"}, True, True),  # after every block but the first
        ({}, {"parts": "online"}, None, False),
        ({}, {"parts": "offline"}, True, False),
        ({"weight_decay": 0.3}, {}, True, True),
        ({"momentum": 0.5}, {}, False, False),  # where it coasts to agrees
    ],
    ids=str,
)
def test_when_the_rate_matters_and_when_the_newest_block_is_as_offline(
    learner, options, rate_matters, agrees
):
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
def test_distilled_targets_are_the_offline_predictions_block_by_block(stream, gamma, block, panel):
    with panels_of(panel):
        got = rt.distilled_targets(stream.K, stream.Y, gamma, block)
    assert_same(got, continual_oracle.offline_predictions(stream.K, stream.Y, gamma, block))
