"""Methods that solve least squares after a first session, against the same done by hand."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import lab
from retarget.errors import InvalidInputError
from support.lab_problems import LEARNERS, conv_net, mlp, stream, weights
from support.oracles import lab as oracle
from support.problems import assert_same

LEARNER = LEARNERS["mean"]


def descend(network, problem, orders):
    """Plain training."""
    loop = oracle.Loop(network, oracle.samples(problem.train), problem.targets(), LEARNER, 0)
    for order in orders:
        for batch in loop.batches(order):
            loop.descend(loop.loss(network(loop.X[batch]), loop.Y[batch]))
    return network


def first_session(network, problem, epochs):
    return descend(network, problem, [np.arange(problem.train.sizes[0])] * epochs)


def doubled(X):
    return 2 * X


def right(answers, problem):
    """Which test samples are answered rightly."""
    return float((answers.argmax(1) == problem.test.labels).double().mean())


@pytest.mark.parametrize("epochs", [0, 1, 3])
@pytest.mark.parametrize("make", [mlp, lambda seed: conv_net(seed)])
def test_tangent_after_the_first_session(make, epochs):
    shape = (5,) if make is mlp else (2, 4, 4)
    problem = stream(sizes=(13, 10, 9), shape=shape, test=40)
    network = make(3)
    method = lab.Tangent(gamma=0.3, features=64, first_epochs=epochs, combinations=2)
    trained = copy.deepcopy(network)
    history = lab.train(trained, problem, LEARNER, method, epochs=2)
    plain = first_session(network, problem, epochs)
    assert_same(weights(trained), weights(plain), 1e-12)
    learner = rt.TangentLearner(plain, 0.3, 64, combinations=2, seed=method._seeds[0])
    for task, accuracy in enumerate(history.accuracy[1:, 0]):
        span = problem.train.spans()[task]
        learner.learn(oracle.samples(problem.train)[span], problem.targets()[span])
        predicted = learner.predict(oracle.samples(problem.test))
        assert accuracy == pytest.approx(right(predicted, problem))
    assert list(history.task) == [0, 1, 2, 3]
    assert list(history.samples) == [0, 26, 46, 64]
    assert history.kept_bytes == learner.nbytes


@pytest.mark.parametrize(("random_features", "views"), [(0, [None]), (30, [None, doubled])])
def test_last_layer_is_ridge_regression(random_features, views):
    problem, network = stream(test=40), mlp(1)
    method = lab.LastLayer(0.2, random_features, first_epochs=2, views=views)
    history = lab.train(copy.deepcopy(network), problem, LEARNER, method)
    plain = first_session(network, problem, 2)

    def features(X):
        hidden = plain[1](plain[0](X)).detach()
        if not random_features:
            return hidden
        drawn = torch.Generator().manual_seed(method._seeds[0])
        projection = torch.randn((7, random_features), generator=drawn) / 7**0.5
        return (hidden @ projection.double()).relu()

    X, tested = oracle.samples(problem.train), oracle.samples(problem.test)
    X, Y = torch.cat([X, 2 * X][: len(views)]), problem.targets().repeat(len(views), 1)
    phi, mean = features(X), features(X).mean(0)
    C = (phi - mean).T @ (phi - mean) + 0.2 * torch.eye(phi.shape[1]).double()
    W = torch.linalg.solve(C, (phi - mean).T @ (Y - Y.mean(0)))
    seen = torch.stack([features(tested), features(2 * tested)][: len(views)]).mean(0)
    answers = (seen - mean) @ W + Y.mean(0)
    assert_same(method._learners[0].predict(tested), answers)
    assert history.final_accuracy[0] == pytest.approx(right(answers, problem))


def test_joint_trains_on_everything_at_the_end():
    problem, network = stream(), mlp(2)
    trained = copy.deepcopy(network)
    history = lab.train(trained, problem, LEARNER, lab.Joint(2), seeds=[11])
    assert history.accuracy[1, 0] == history.accuracy[0, 0]  # nothing is learned on the way
    random = np.random.default_rng(11)
    descend(network, problem, [random.permutation(26) for _ in range(2)])
    assert_same(weights(trained), weights(network))


def test_what_a_method_keeps_in_bytes():
    sample, target, problem = 5 * 8, 3 * 8, stream()
    samples, parameters = 26, 5 * 7 + 7 + 7 * 3 + 3
    kept = {
        lab.Vanilla(): 0,
        lab.EWC(1.0): 2 * 8 * parameters,
        lab.CumulativeReplay(): samples * (sample + target),
        lab.Joint(): samples * (sample + target),
        lab.ER(4): 4 * (sample + target),
        lab.DER(4): 4 * (sample + target),
        lab.DER(4, beta=1.0): 4 * (sample + 2 * target),
        lab.Corrected(3.0, 8): samples * (sample + target),
        lab.Tangent(features=16): 8 * (16 * 16 + 16 * 3 + 16 + 3 + 3),
        lab.Led(features=16): 8 * (16 * 16 + 16 * 3 + 16 + 3 + 3),
        lab.LastLayer(): 8 * (7 * 7 + 7 * 3 + 7 + 3 + 3),
    }
    for method, expected in kept.items():
        history = lab.train(mlp(0), problem, LEARNER, method)
        assert history.kept_bytes == expected, method.name


def test_a_network_without_a_linear_layer():
    network = nn.Sequential(nn.Conv1d(5, 3, 1), nn.Flatten()).double()
    problem = lab.TaskStream.from_tasks(
        *[[(torch.randn(6, 5, 1).double(), torch.arange(6) % 3)]] * 2, 3
    )
    with pytest.raises(InvalidInputError, match="no Linear layer"):
        lab.train(network, problem, LEARNER, lab.LastLayer())
