import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems,
    streams,
)


@given(stream=streams, gamma=gammas, panel=panel_sizes, every=st.integers(1, 9))
def test_offline_curve_is_one_solve_a_prefix(stream, gamma, panel, every):
    stops = list(range(1, len(stream) + 1, every))
    with panels_of(panel):
        curve = rt.offline_learning_curve(stream.K, stream.Y, stream.K_query, gamma, stops)
    assert curve.shape == (len(stops), *stream.K_query.shape[:1], stream.Y.shape[1])
    for t, got in zip(stops, curve, strict=True):
        expected = literal.f_off(stream.Y[:t], stream.K[:t, :t], stream.K_query[:, :t].T, gamma)
        assert_same(got, expected)


@given(problem=problems(), panel=panel_sizes, every=st.integers(1, 4))
def test_online_curve_is_torch_optim_sgd_on_the_way(problem, panel, every):
    stream, learner = problem
    run = train(stream.features, stream.Y, learner)
    stops = list(range(learner.batch_size, len(stream), every * learner.batch_size))
    stops.append(len(stream))
    with panels_of(panel):
        curve = rt.online_learning_curve(stream.K, stream.Y, stream.K_query, learner, stops)
    for t, got in zip(stops, curve, strict=True):
        assert_same(got, stream.queries @ run.history[learner.steps(t) - 1])


def test_flat_targets_and_torch():
    stream = make_stream(8, 1, seed=0)
    K, Y, query = (torch.tensor(part) for part in (stream.K, stream.Y[:, 0], stream.K_query))
    offline = rt.offline_learning_curve(K, Y, query, 0.5, [3, 8])
    online = rt.online_learning_curve(K, Y, query, rt.SGD(lr=0.5), [3, 8])
    assert isinstance(offline, torch.Tensor)
    assert offline.shape == online.shape == (2, 5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"stops": []}, InvalidInputError, r"stops are \[\]; expected increasing"),
        ({"stops": [2, 2]}, InvalidInputError, "expected increasing lengths from 1 to 6"),
        ({"stops": [0, 4]}, InvalidInputError, "expected increasing"),
        ({"stops": [2, 8]}, InvalidInputError, "expected increasing"),
        ({"stops": [3, 6]}, InvalidInputError, "the stop at 3 is inside a mini-batch of 2"),
        ({"K_query": np.ones((2, 5))}, InvalidInputError, r"K_query has shape \(2, 5\); exp"),
        ({"K_query": np.ones((2, 6), int)}, InvalidTypeError, "K_query has dtype int64"),
        ({"K_query": np.full((2, 6), np.nan)}, InvalidInputError, "K_query holds nan"),
    ],
)
def test_refused(change, error, message):
    stream = make_stream(6, 1, seed=0)
    arguments = {"K_query": stream.K_query, "stops": [2, 6]} | change
    with pytest.raises(error, match=message):
        rt.online_learning_curve(
            stream.K, stream.Y, learner=rt.SGD(lr=0.1, batch_size=2), **arguments
        )
