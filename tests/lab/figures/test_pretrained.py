"""A pretrained network that learns new classes (Fig. 7 E), on made images."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from retarget import TangentLearner, lab
from retarget.errors import MissingDataError
from retarget.lab.data.cifar10 import load_cifar10
from retarget.lab.data.features import prepared
from retarget.lab.figures import pretrained
from retarget.lab.figures.networks import final_accuracies
from retarget.lab.figures.training import methods_of, train_networks, trained_together
from retarget.lab.reader import load_experiment, parse_changes
from retarget.lab.runs.run import run_experiment
from support.core50_backbone import made
from support.lab_problems import weights
from support.problems import assert_same

BACKBONE = "support.core50_backbone:made"


def run(**changes):
    known = {
        "seed": 3, "protocol": "class incremental", "per_class": 4, "test_per_class": 2,
        "backbone": BACKBONE, "image_size": 4, "batch_size": 6, "method": "tangent", "lr": 0.02,
        "first_epochs": 0, "features": 16, "momentum": 0.5,
    }  # fmt: skip
    return pretrained.PretrainedRun(**(known | changes))


@pytest.mark.usefixtures("not_saved")
def test_every_case_is_computed(tmp_path):
    small = load_experiment("fig7e").small().where_it_fits(backbone=BACKBONE)
    sizes = ["image_size=4", "per_class=8", "test_per_class=3"]
    table = run_experiment(small.changed(parse_changes(sizes)), tmp_path).table
    assert set(table["case"]) == set(small.cases)
    found = {case: final_accuracies(table.filter(case=case))[0] for case in small.cases}
    assert found["fine-tuned task by task"] <= 0.3  # it knows little besides the last two classes
    assert found["last layer"] > 0.5
    assert found["tangent"] > 0.5
    assert table["data"].unique().to_list() == [f"CIFAR-10 at 4 pixels, {BACKBONE}"]


def test_pictures_as_networks_for_imagenet_see_them(made_data):
    setup = run(image_size=96, backbone="support.core50_backbone:pooled").setup()
    pictures = torch.from_numpy(load_cifar10(made_data).train_images[:5])
    seen = setup.network.resize(setup.stream.train.inputs[:5])
    torch.testing.assert_close(seen, prepared(pictures, 96), rtol=0, atol=2e-5)
    assert setup.stream.train.sample_bytes == 3072
    assert setup.stream.train.sizes == (8,) * 5


def test_an_untrained_network_starts_from_zero():
    image = torch.randn(5, 3, 4, 4)
    network = pretrained.WholeNetwork(made(), image[:1], 4, 7, seed=2)
    gradients = []
    for trained in (True, False):
        network.trained = trained
        scores = network(image)
        assert bool(scores.any()) == trained
        gradients.append(
            torch.autograd.grad(scores.square().sum() + scores.sum(), network.top.weight)
        )
    network.trained = True
    expected = torch.autograd.grad(network(image).sum(), network.top.weight)
    assert torch.equal(gradients[1][0], expected[0])


def descend(network, images, targets, orders, config):
    """Plain training, by torch's own optimizer."""
    optimizer = torch.optim.SGD(network.parameters(), config.lr, config.momentum)
    for order in orders:
        for start in range(0, len(order), config.batch_size):
            batch = order[start : start + config.batch_size]
            loss = 0.5 * (targets[batch] - network(images[batch])).square().sum() / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("tuned_on", ["labels", "residuals"])
def test_tuning_is_joint_training(tuned_on):
    config = run(tuned_epochs=3, tuned_on=tuned_on)
    setup, plain = config.setup(), run().setup()
    train = plain.stream.train
    first = list(dict.fromkeys(train.labels.tolist()))[:5]
    assert first[:4] == [*dict.fromkeys(train.labels[:16].tolist())]  # of the first two tasks
    chosen = [i for i, label in enumerate(train.labels.tolist()) if label in first]
    images, labels = train.inputs[train.rows[chosen]], train.labels[chosen]
    assert len(chosen) == 5 * config.per_class
    targets = nn.functional.one_hot(labels, 10).float()
    if tuned_on == "residuals":
        known = TangentLearner(plain.network, features=config.features, seed=config.seed)
        left = targets - known.learn(images, targets).predict(images)
        assert 0.05 < left.square().mean() / targets.square().mean() < 0.95
        targets = left
    random = np.random.default_rng(config.seed)
    expected = copy.deepcopy(plain.network)
    expected.trained = True
    orders = [random.permutation(len(chosen)) for _ in range(3)]
    descend(expected, images, targets, orders, config)
    assert_same(weights(setup.network), weights(expected), 1e-5)
    assert not np.isclose(weights(setup.network), weights(plain.network)).all()
    assert torch.equal(setup.stream.train.rows, train.rows)  # the stream has all images, as before
    assert not setup.network(images).any()  # and least squares starts from zero


@pytest.mark.parametrize("batch_statistics", [True, False])
def test_statistics_of_batch_normalization(
    batch_statistics,
):
    config = run(
        method="vanilla",
        batch_size=8,
        backbone="support.core50_backbone:normalizing",
        batch_statistics=batch_statistics,
    )
    setup, plain = config.setup(), config.setup()
    assert setup.network.training == batch_statistics
    train = setup.stream.train
    lab.train(setup.network, setup.stream, config.learner, lab.Vanilla())
    images, order = train.inputs[train.rows], np.arange(len(train))
    descend(plain.network, images, setup.stream.targets(), [order], config)
    for name, values in plain.network.state_dict().items():
        torch.testing.assert_close(setup.network.state_dict()[name], values, rtol=1e-4, atol=1e-5)
    assert bool(setup.network.backbone[1].running_mean.any()) == batch_statistics


def test_views_of_a_picture():
    pictures = np.random.default_rng(0).normal(size=(2, 3, 8, 7))
    shown = {}
    for views, count in {"none": 1, "mirror": 2, "shifts": 4, "crops": 4}.items():
        functions = run(views=views).shown
        given = torch.from_numpy(pictures)
        shown[views] = [given.numpy() if f is None else f(given).numpy() for f in functions]
        assert len(shown[views]) == count
        assert all(each.shape == pictures.shape for each in shown[views])
        assert not any(np.array_equal(a, b) for a, b in pairwise(shown[views]))
        np.testing.assert_array_equal(shown[views][0], pictures)
        np.testing.assert_array_equal(shown[views][1:2], [pictures[..., ::-1]][: count - 1])
    padded = np.pad(pictures, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    np.testing.assert_array_equal(shown["shifts"][2], padded[..., :8, :7])
    np.testing.assert_array_equal(shown["shifts"][3], padded[..., 4:, 4:])
    corners = [each[..., [0, -1], [0, -1]] for each in shown["crops"][2:]]
    np.testing.assert_allclose(corners[0], pictures[..., [0, 3], [0, 2]])
    np.testing.assert_allclose(corners[1], pictures[..., [4, -1], [4, -1]])


@pytest.mark.parametrize("method", ["tangent", "last layer"])
def test_views_and_precision_reach_least_squares(method):
    (one,) = methods_of([run(method=method, views="shifts", precision="float32")])
    assert (len(one.views), one.precision) == (4, "float32")
    configs = [run(method=method, views=views) for views in ("none", "shifts")]
    kept = [next(train_networks([config]))[1]["kept_bytes"][0] for config in configs]
    assert kept[1] > kept[0]  # what the views of a picture share is kept too


def test_a_large_network_trains_alone():
    assert trained_together(run(device="cuda")) is None


def test_what_is_missing_and_to_do(tmp_path, monkeypatch):
    with pytest.raises(MissingDataError, match="stand-in: .* --backbone resnet18"):
        run(backbone=None).setup()
    with pytest.raises(MissingDataError, match="retarget data get resnet18"):  # which it advises
        run(backbone="resnet18").setup()
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match="retarget data get cifar10"):
        run().setup()
