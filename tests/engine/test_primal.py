"""The learner and the offline learner in feature space, against simulation and literal refits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.linalg import cholesky, solve

from retarget.engine.offline.all import RecursiveRidge
from retarget.engine.primal import FeatureRows, PrimalLearner
from retarget.errors import NotPositiveDefiniteError
from support.oracles import simulation
from support.problems import assert_same, gammas, make_stream, problems


@given(problem=problems())
def test_weights_and_errors_are_those_of_the_optimizer(problem):
    stream, learner = problem
    run = simulation.train(stream.features, stream.Y, learner)
    state, errors = PrimalLearner(learner), []
    stride = learner.batch_size * 3
    for start in range(0, len(stream), stride):
        rows = slice(start, start + stride)
        lesson = state.lesson(FeatureRows(torch.from_numpy(stream.features[rows])))
        errors.append(lesson.errors(torch.from_numpy(stream.Y[rows])))
        state.learn(lesson, errors[-1])
    assert_same(torch.cat(errors), run.errors)
    assert_same(state.coefficients, run.weights)
    assert len(state) == len(stream)


@given(problem=problems(), gamma=gammas)
def test_recursive_ridge_is_the_cholesky_factor(problem, gamma):
    stream, _ = problem
    L = cholesky(gamma * np.eye(len(stream)) + stream.K)
    beta = solve(L, stream.Y)
    Phi, Y = torch.from_numpy(stream.features), torch.from_numpy(stream.Y)
    ridge = RecursiveRidge(gamma)
    for start in range(0, len(stream), 4):
        rows = slice(start, start + 4)
        new = ridge.innovation(FeatureRows(Phi[rows]), Y[rows])
        assert_same(new.corner.tril(), L[rows, rows], 1e-8)
        assert_same(new.beta, beta[rows], 1e-8)


def test_the_gamma_that_would_do():
    stream = make_stream(5, 1, seed=0)
    Phi, Y = torch.from_numpy(stream.features) * 1e9, torch.from_numpy(stream.Y)
    ridge = RecursiveRidge(1e-9)
    ridge.innovation(FeatureRows(Phi), Y)
    with pytest.raises(NotPositiveDefiniteError, match=r"gamma = 1e-09.* would do"):
        ridge.innovation(FeatureRows(Phi), Y)
