import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import PrecisionWarning
from retarget.explore.picture import draw, python_code
from retarget.explore.state import State
from support.oracles import literal


def make_state(n=17, **changes):
    rng = np.random.default_rng(n)
    x, y = rng.uniform(-1, 3, n), rng.normal(1, 2, n)
    settings = {"x": x.tolist(), "y": y.tolist(), "low": -1.5, "high": 3.5, "width": 0.8}
    settings |= {"order": "random", "seed": 5, "lr": 0.3, "gamma": 0.7, "start": 0.4, "seen": n}
    settings |= {"block_size": 6, "block_ridge": 0.2}
    return State(**(settings | changes))


def problem(state):
    """Stream order, rest of the targets (n, 1), Gram matrix, kernel of the grid (n, m): by hand."""
    order = state.stream()
    x, y = np.array(state.x)[order], np.array(state.y)[order]
    grid = np.linspace(state.low, state.high, 201)
    K = np.exp(-((x[:, None] - x[None, :]) ** 2) / state.width**2)
    k = np.exp(-((x[:, None] - grid[None, :]) ** 2) / state.width**2)
    return order, (y - state.start)[:, None], K, k


def close(got, expected):
    np.testing.assert_allclose(got, np.ravel(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("seen", "batch"), [(17, 1), (11, 1), (17, 3), (10, 3), (1, 1)])
def test_curves_and_targets_are_the_papers(seen, batch):
    state = make_state(seen=seen, batch_size=batch)
    picture = draw(state)
    order, Y, K, k = problem(state)
    eta, gamma, start = state.lr, state.gamma, state.start
    p = slice(0, seen)
    corrected = literal.corrected(Y, K, eta, gamma, batch)
    iterative = literal.iterative(Y, K, eta, gamma, 6, ridge=0.2, batch=batch)
    assert picture.stream.tolist() == order.tolist()
    close(picture.targets["effective"], literal.effective(Y[p], K[p, p], eta, gamma, batch) + start)
    close(picture.targets["corrected"], corrected + start)
    close(picture.targets["iterative"], iterative + start)
    close(picture.curves["offline"], literal.f_off(Y[p], K[p, p], k[p], gamma) + start)
    for name, Z in {"online": Y, "corrected": corrected, "iterative": iterative}.items():
        curve = literal.f_on(Z[p], K[p, p], k[p], eta, batch) + start
        close(picture.curves[name], curve)
        distance = np.sqrt(np.mean((np.ravel(curve) - picture.curves["offline"]) ** 2))
        assert picture.distances[name] == pytest.approx(distance, abs=1e-10)
        half_square = literal.block_loss(Z[p], Y[p], K[p, p], eta, gamma, 0.0, batch)
        assert picture.discrepancies[name] ** 2 / 2 == pytest.approx(half_square, abs=1e-10)
    assert picture.problems == {}


@pytest.mark.parametrize(("seen", "first"), [(17, 12), (13, 12), (12, 6), (1, 0)])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_terms_are_those_of_the_newest_samples_block(seen, first, batch):
    state = make_state(seen=seen, batch_size=batch)
    _, Y, K, _ = problem(state)
    p, n = slice(0, first), slice(first, min(first + 6, 17))
    C_on, C_off = literal.correction_terms(K, p, n, 0.3, 0.7, 0.2, batch)
    Z = literal.iterative(Y, K, 0.3, 0.7, 6, ridge=0.2, batch=batch)
    f_on = f_off = np.zeros_like(Y[n])
    if first:
        f_on = literal.f_on(Z[p], K[p, p], K[p, n], 0.3, batch)
        f_off = literal.f_off(Y[p], K[p, p], K[p, n], 0.7)
    terms = draw(state).terms
    assert terms.first == first
    close(terms.modulation, 1 + C_on.diagonal())
    close(terms.online, C_on.T @ (Y[n] - f_on))
    close(terms.offline, C_off.T @ (f_off - Y[n]))


def test_the_step_before_and_what_was_predicted_for_samples_not_seen():
    picture = draw(make_state(seen=9))
    close(picture.targets["before"], draw(make_state(seen=8)).targets["effective"])
    assert len(picture.targets["effective"]) == 9
    for t in (0, 3, 8):
        earlier = make_state(seen=t)
        _, Y, K, _ = problem(earlier)
        p = slice(0, t)
        f = literal.f_on(Y[p], K[p, p], K[p, [t]], 0.3).item() if t else 0.0
        assert picture.predicted[t] == pytest.approx(f + 0.4, abs=1e-10)


def test_nothing_seen_is_the_starting_function():
    picture = draw(make_state(seen=0))
    for curve in picture.curves.values():
        assert set(curve) == {0.4}
    assert len(picture.targets["effective"]) == len(picture.targets["before"]) == 0
    assert picture.predicted is picture.terms is None
    assert picture.discrepancies == {"online": 0.0, "corrected": 0.0, "iterative": 0.0}


def test_orders():
    x = [5.0, 1.0, 1.0, -2.0]
    expected = {"as given": [0, 1, 2, 3], "reversed": [3, 2, 1, 0], "by x": [3, 1, 2, 0]}
    for order, stream in expected.items():
        state = State(x=x, y=x, low=-3, high=6, width=1.0, seen=4, order=order)
        assert draw(state).stream.tolist() == stream
    orders = [tuple(make_state(seed=seed).stream()) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(17))


def test_what_cannot_be_computed_is_explained_and_the_rest_is_drawn():
    for lr in (40.0, 1e12):
        picture = draw(make_state(n=60, lr=lr))
        assert set(picture.curves) == {"offline"}
        assert (picture.discrepancies, picture.predicted) == ({}, None)
        assert "diverged" in picture.problems["online"]
        assert "diverged" in picture.problems["effective"]
        assert picture.largest_lr == pytest.approx(2.0)  # k(x, x) = 1
    picture = draw(make_state(batch_size=4, block_size=6))
    assert picture.terms is None
    assert "multiple of the learner's batch_size" in picture.problems["iterative"]
    assert set(picture.curves) == {"offline", "online", "corrected"}


def test_few_digits_are_said():
    """With a ridge near nothing, targets of a nearly singular block have no digit that is right."""
    x, y = np.linspace(0, 1, 12), np.tile([1.0, -1.0], 6)
    with pytest.warns(PrecisionWarning) as warned:
        rt.iterative_targets(rt.RBF(10.0)(x), y, rt.SGD(0.5), 0.1, 12, 1e-15)
    settings = {"width": 10.0, "gamma": 0.1, "block_size": 12, "block_ridge": 1e-15}
    state = State(x=x.tolist(), y=y.tolist(), low=0, high=1, seen=12, **settings)
    assert draw(state).problems["iterative"] == str(warned[0].message)


@given(
    values=st.lists(st.tuples(st.floats(-2, 2), st.floats(-1e3, 1e3)), min_size=1, max_size=12),
    lr=st.floats(1e-12, 1e12),
    batch=st.integers(1, 5),
    momentum=st.floats(0, 0.999),
    share=st.floats(0, 1),
)
def test_every_setting_can_be_written_as_json(values, lr, batch, momentum, share):
    x, y = (list(column) for column in zip(*values, strict=True))
    settings = {"lr": lr, "batch_size": batch, "block_size": 2 * batch, "momentum": momentum}
    state = State(
        x=x, y=y, low=-3, high=3, width=0.5, seen=int(share * len(x)), order="by x", **settings
    )
    picture = asdict(draw(state))
    json.dumps(picture, allow_nan=False, default=np.ndarray.tolist)
    assert set(picture["curves"]) | set(picture["problems"]) >= {"offline", "online", "corrected"}


def run(state):
    names = {}
    exec(compile(python_code(state), "<copied>", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("start", "seen", "momentum"), [(0.0, 17, 0.0), (2.25, 8, 0.0), (-1e-7, 1, 0.0), (2.25, 8, 0.3)]
)
def test_the_copied_python_gives_the_numbers_of_the_page(start, seen, momentum):
    changes = {"start": start, "seen": seen, "lr": 0.1 + 0.2, "gamma": 1 / 3, "batch_size": 2}
    state = make_state(momentum=momentum, **changes)
    names, picture = run(state), draw(state)
    pairs = {f"{name}_targets": picture.targets[name] for name in ("corrected", "iterative")}
    pairs |= picture.curves | {"effective": picture.targets["effective"], "query": picture.grid}
    pairs |= {f"{name}_discrepancy": value for name, value in picture.discrepancies.items()}
    assert len(pairs) == 8 + 3
    assert (picture.terms is None) == bool(momentum)
    if terms := picture.terms:
        pairs |= {"modulation": terms.modulation, "online_move": terms.online}
        pairs |= {"offline_move": terms.offline}
        assert names["block"].rows.start == terms.first
    for name, expected in pairs.items():
        np.testing.assert_allclose(names[name], expected, rtol=0, atol=1e-10, err_msg=name)


def test_the_python_of_nothing_seen_is_for_the_first_sample():
    assert run(State(x=[1.0], y=[2.0], low=0, high=2, width=1.0, seen=0))["seen"] == 1
