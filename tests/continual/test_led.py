"""A network led by a tangent learner inside the lab, against a plain loop around the corrector."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import continual as lab
from support.lab_problems import LEARNERS, conv_net, mlp, stream, weights
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
