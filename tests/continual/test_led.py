"""A network led by a tangent learner inside the lab, against a plain loop around the corrector."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import continual as lab
from retarget.errors import InvalidInputError
from support.lab_problems import LEARNERS, conv_net, copies, mlp, stream, weights
from support.problems import assert_same

# the networks are small, and far from their linearisation
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LinearisationWarning")
OPTIONS = {"gamma": 0.4, "memory": 40, "block_size": 8, "damping": 0.6}


def lead_by_hand(network, given, learner, seed, epochs=1, **options):
    """Block by block, with torch.optim.SGD."""
    features = int(np.random.default_rng(seed).integers(2**31))
    corrector = rt.NetworkCorrector(network, learner, seed=features, **options)
    optimiser = torch.optim.SGD(network.parameters(), lr=learner.lr)
    for span in given.train.spans():
        X = given.train.inputs[given.train.rows[span]]
        Y = nn.functional.one_hot(given.train.labels[span], given.classes).double()
        for _ in range(epochs):
            block, size = options["block_size"], learner.batch_size
            for x, y in zip(X.split(block), Y.split(block), strict=True):
                z = corrector.correct(x, y)
                for inputs, targets in zip(x.split(size), z.split(size), strict=True):
                    losses = (network(inputs) - targets).square().sum(1) / 2
                    optimiser.zero_grad()
                    (losses.mean() if learner.reduction == "mean" else losses.sum()).backward()
                    optimiser.step()
    return corrector


@pytest.mark.parametrize("learner", ["mean", "sum", "one at a time"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_led_equals_a_plain_loop_around_the_corrector(learner, epochs):
    """Tasks that neither a block nor a mini-batch divides."""
    given, network = stream(2, sizes=(13, 21)), mlp(1)
    plain, before = copy.deepcopy(network), weights(network).clone()
    history = lab.train(
        network, given, LEARNERS[learner], lab.Led(**OPTIONS), epochs=epochs, reshuffle=True,
        seeds=[5],
    )  # fmt: skip
    corrector = lead_by_hand(plain, given, LEARNERS[learner], 5, epochs, **OPTIONS)
    assert (weights(network) - before).abs().max() > 1e-3
    assert_same(weights(network), weights(plain))
    assert history.kept_bytes == corrector.nbytes
    answers = plain(given.test.inputs[given.test.rows]).argmax(1)
    assert history.final_accuracy[0] == pytest.approx(
        float((answers == given.test.labels).double().mean())
    )


def test_led_by_a_learner_that_chooses_its_ridge_with_convolutions():
    given, network = stream(3, sizes=(7, 10), shape=(2, 4, 4)), conv_net(1)
    plain = copy.deepcopy(network)
    options = OPTIONS | {"gamma": "auto", "block_size": 4}
    lab.train(network, given, LEARNERS["mean"], lab.Led(**options), seeds=[2])
    lead_by_hand(plain, given, LEARNERS["mean"], 2, **options)
    assert_same(weights(network), weights(plain))


def test_members_at_once_equal_one_by_one():
    given = [stream(seed, sizes=(13, 10)) for seed in (6, 7, 8)]
    learners = [rt.SGD(lr, 4, reduction="mean") for lr in (0.05, 0.011, 0.03)]
    networks, seeds = [mlp(seed) for seed in (4, 5, 6)], (8, 9, 8)
    alone = copies(networks)
    together = lab.train(networks, given, learners, lab.Led(**OPTIONS), seeds=seeds)
    for m in range(3):
        history = lab.train(alone[m], given[m], learners[m], lab.Led(**OPTIONS), seeds=[seeds[m]])
        assert_same(weights(networks[m]), weights(alone[m]))
        assert_same(together.accuracy[:, m], history.accuracy[:, 0], 1e-12)
        assert_same(together.loss[1:, m], history.loss[1:, 0])
    assert (weights(networks[0]) - weights(networks[1])).abs().max() > 0.01


def test_used_again_nothing_of_an_earlier_run_is_left_in_it():
    method, first, second = lab.Led(**OPTIONS), mlp(1), mlp(1)
    lab.train(mlp(8), stream(5), LEARNERS["mean"], method)
    lab.train(first, stream(2), LEARNERS["mean"], method)
    lab.train(second, stream(2), LEARNERS["mean"], lab.Led(**OPTIONS))
    assert torch.equal(weights(first), weights(second))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -1.0}, "gamma is -1.0"),
        ({"gamma": "most"}, "gamma is 'most'"),
        ({"memory": 0}, "memory is 0; expected 1 or more"),
        ({"memory": None}, "memory is None; expected"),
        ({"block_size": 0}, "block_size is 0; expected a positive multiple"),
        ({"damping": 0.0}, "damping is 0.0; expected a positive"),
        ({"damping": float("nan")}, "damping is nan; expected a positive"),
    ],
)
def test_options_without_a_meaning(options, message):
    with pytest.raises(rt.RetargetError, match=message):
        lab.Led(**(OPTIONS | options))


def test_learners_that_do_not_fit():
    with pytest.raises(InvalidInputError, match="closed loop is for plain SGD"):
        lab.train(mlp(1), stream(2), LEARNERS["momentum"], lab.Led(**OPTIONS))
    with pytest.raises(InvalidInputError, match="block_size is 6; .* batch_size, 4"):
        lab.train(mlp(1), stream(2), LEARNERS["mean"], lab.Led(block_size=6))
