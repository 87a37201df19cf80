import numpy as np
import pytest

from retarget.explore.picture import draw, python_code
from retarget.explore.state import State, toy_opening


def run(state):
    names = {}
    exec(compile(python_code(state), "<copied>", "exec"), names)
    return names


@pytest.mark.parametrize("start", [0.0, 2.25, -1e-7])
@pytest.mark.parametrize("seen", [40, 13, 1])
def test_the_copied_python_gives_the_numbers_of_the_page(start, seen):
    changes = {"start": start, "seen": seen, "order": "random", "seed": 3, "lr": 0.1 + 0.2}
    changes |= {"batch_size": 2, "block_size": 6, "momentum": 0.3, "gamma": 1 / 3}
    state = toy_opening().state.model_copy(update=changes)
    names, picture = run(state), draw(state)
    pairs = {f"{name}_targets": picture.targets[name] for name in ("corrected", "iterative")}
    pairs |= picture.curves | {"effective": picture.targets["effective"], "query": picture.grid}
    for name, expected in pairs.items():
        np.testing.assert_allclose(names[name], expected, rtol=0, atol=1e-10, err_msg=name)
    assert len(pairs) == 8
    pairs = {f"{name}_discrepancy": value for name, value in picture.discrepancies.items()}
    for name, expected in pairs.items():
        assert names[name] == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert len(pairs) == 3


@pytest.mark.parametrize("seen", [40, 13, 1])
def test_the_copied_python_gives_the_terms_of_the_page(seen):
    changes = {"start": 0.5, "seen": seen, "batch_size": 2, "block_size": 6}
    state = toy_opening().state.model_copy(update=changes)
    names, terms = run(state), draw(state).terms
    for name, expected in (
        ("modulation", terms.modulation),
        ("online_move", terms.online),
        ("offline_move", terms.offline),
    ):
        np.testing.assert_allclose(names[name], expected, rtol=0, atol=1e-10)
    assert names["block"].rows.start == terms.first


def test_one_point_and_nothing_seen():
    state = State(x=[1.0], y=[2.0], low=0, high=2, width=1.0, seen=0)
    assert run(state)["seen"] == 1
