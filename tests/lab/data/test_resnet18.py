import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from golden.resnet18_problem import (
    CLASSES,
    INPUTS,
    PHOTOGRAPHS,
    PREPARED_SIZE,
    drawn,
    drawn_weights,
    photograph,
)

from retarget.lab.data.backbones import ResNet18
from retarget.lab.data.features import prepared

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "resnet18.json").read_text())


@pytest.fixture(scope="module")
def network():
    network = ResNet18(CLASSES).double().eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    weights = {name: torch.from_numpy(w) for name, w in drawn_weights(shapes).items()}
    network.load_state_dict(weights)
    return network


def test_names_and_shapes_of_torchvision(network):
    ours = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    assert list(ours.items()) == list(GOLDEN["shapes"].items())


@pytest.mark.parametrize("name", INPUTS)
@torch.no_grad()
def test_features_and_scores_are_those_of_torchvision(network, name):
    images = torch.from_numpy(drawn(name, INPUTS[name]))
    expected = GOLDEN["outputs"][name]
    scores, features = network(images).numpy(), network.features(images).numpy()
    np.testing.assert_allclose(features, expected["features"], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(scores, expected["scores"], rtol=1e-10)
    single = copy.deepcopy(network).float().features(images.float()).numpy()
    assert np.abs(single - features).max() < 1e-5 * features.max()


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_images_are_prepared_as_by_torchvision(name):
    found = prepared(torch.from_numpy(photograph(name)), PREPARED_SIZE).numpy()
    np.testing.assert_allclose(found, GOLDEN["prepared"][name], atol=1e-6)


def test_new_weights_are_those_of_he():
    weights = []
    for _ in range(2):
        torch.manual_seed(3)
        weights.append(ResNet18(2).layer2[1].conv2.weight.detach())
    assert torch.equal(*weights)
    fan_out = 128 * 3 * 3
    assert weights[0].std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)
