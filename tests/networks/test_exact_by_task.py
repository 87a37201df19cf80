"""The exact correction task by task: networks that are really trained end where it says."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError, PrecisionWarning
from retarget.state_files import read_state, write_state
from support.corrected_training import pass_over, sgd
from support.problems import assert_same
from support.streaming_objects import CE

SIZES = 24, 30, 17  # the last task ends with a mini-batch that is not full
LEARNERS = {
    "plain": rt.SGD(0.04),
    "mean": rt.SGD(0.3, batch_size=4, reduction="mean"),
    "momentum": rt.SGD(0.1, batch_size=5, momentum=0.6, reduction="mean"),
    "nesterov, decay": rt.SGD(
        0.1, batch_size=4, momentum=0.9, nesterov=True, weight_decay=0.02, reduction="mean"
    ),
    "schedule": rt.SGD(0.3 / (1 + np.arange(20.0)), batch_size=4, reduction="mean"),
}


def stream(features, outputs, loss, dtype=torch.float64, seed=0):
    rng, n = np.random.default_rng(seed), sum(SIZES)
    X = torch.tensor(rng.normal(size=(n, features)) / np.sqrt(features)).to(dtype)
    if loss == "squared":
        return X, torch.tensor(rng.normal(size=(n, outputs))).to(dtype)
    if outputs == 1:
        return X, (X[:, :1] > 0).to(dtype)
    return X, torch.eye(outputs, dtype=dtype)[X[:, :outputs].argmax(1)]


def linear(features, outputs, dtype=torch.float64):
    network = nn.Linear(features, outputs, bias=False, dtype=dtype)
    nn.init.zeros_(network.weight)
    return network


def without_errors(network, optimizer, learner, steps, n):
    """(features, outputs) the weights after n samples without errors: momentum, decay go on."""
    twin = copy.deepcopy(network)
    other = sgd(twin, learner)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(steps, steps + learner.steps(n)):
        other.param_groups[0]["lr"] = learner.rate(step)
        twin.weight.grad = torch.zeros_like(twin.weight)
        other.step()
    return twin.weight.detach().mT.clone()


def offline(X, Y, gamma, loss):
    """(features, outputs) the weights of ridge or logistic regression."""
    if loss == "squared":
        return torch.linalg.solve(gamma * torch.eye(X.shape[1]).to(X) + X.mT @ X, X.mT @ Y)
    return X.mT @ rt.offline_coefficients(X @ X.mT, Y, gamma, loss=loss)


def by_task(features, outputs, learner, loss, gamma=0.7, dtype=torch.float64):
    """After each task: the network's weights, the nearest that it could reach, the offline ones."""
    X, Y = stream(features, outputs, loss, dtype)
    network = linear(features, outputs, dtype)
    optimizer, steps, stop = sgd(network, learner), 0, 0
    corrector = rt.NetworkCorrector(network, learner, gamma, 20, kind="exact", loss=loss)
    for size in SIZES:
        task, stop = slice(stop, stop + size), stop + size
        f = without_errors(network, optimizer, learner, steps, size).double()
        Z = corrector.correct(X[task], Y[task])
        steps = pass_over(network, X[task], Z, learner, loss, steps, optimizer)
        wanted = offline(X[:stop].double(), Y[:stop].double(), gamma, loss)
        directions = torch.linalg.svd(X[task].double(), full_matrices=False)[2]
        nearest = f + directions.mT @ directions @ (wanted - f)
        yield network.weight.detach().mT, nearest, wanted
    if not learner.momentum:
        corrector.correct(X[:1], Y[:1])
        assert corrector.linearization_error < 1e-4
    assert corrector.samples == sum(SIZES) + (not learner.momentum)


@pytest.mark.parametrize(("loss", "outputs"), [("squared", 2), (CE, 1), (CE, 3)])
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
def test_a_task_that_spans_the_features_ends_at_the_offline_learner(name, loss, outputs):
    for found, _, wanted in by_task(6, outputs, LEARNERS[name], loss):
        assert_same(found, wanted)


@pytest.mark.parametrize(("loss", "outputs"), [("squared", 2), (CE, 3)])
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
def test_elsewhere_it_ends_as_near_as_the_tasks_rows_can_reach(name, loss, outputs):
    gaps = []
    for found, nearest, wanted in by_task(60, outputs, LEARNERS[name], loss):
        assert_same(found, nearest)
        gaps.append(float((found - wanted).norm()))
    assert gaps[0] < 1e-10
    assert min(gaps[1:]) > 1e-3  # 30 rows do not span 60 features


def test_a_network_in_single_precision():
    for found, _, wanted in by_task(6, 2, LEARNERS["mean"], "squared", dtype=torch.float32):
        torch.testing.assert_close(found, wanted.float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_task_whose_kernel_has_no_clear_rank(dtype):
    """Powers of one number: what single precision loses of them matters, and is said once."""
    x = torch.tensor(np.random.default_rng(0).uniform(-1, 1, 60))[:, None]
    X, Y = (x ** torch.arange(14)).to(dtype), torch.sin(5 * x).to(dtype)
    corrector = rt.NetworkCorrector(linear(14, 1, dtype), rt.SGD(0.01), 0.01, 20, kind="exact")
    corrector.correct(X[:20], Y[:20])
    for rows in ("20 to 39", "40 to 59"):
        task = slice(corrector.samples, corrector.samples + 20)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            corrector.correct(X[task], Y[task])
        told = [str(each.message) for each in told if each.category is PrecisionWarning]
        expected = [] if dtype == torch.float64 else [f"the kernel of samples {rows} is nearly"]
        assert [each[:40] for each in told] == [each[:40] for each in expected]
        assert all("use a network in float64, or kind='iterative' with a ridge" in t for t in told)


def test_saved_between_tasks_it_remembers_where_they_ended(tmp_path):
    (X, Y), path = stream(6, 2, "squared"), tmp_path / "state"
    corrector, network = None, linear(6, 2)
    targets = []
    for stop in np.cumsum(SIZES):
        task = slice(0 if corrector is None else corrector.samples, stop)
        corrector = corrector or rt.NetworkCorrector(
            network, LEARNERS["plain"], 0.7, 20, kind="exact"
        )
        targets.append(corrector.correct(X[task], Y[task]))
        corrector.save(path)
        corrector = rt.NetworkCorrector.load(path, network)
    whole = rt.NetworkCorrector(network, LEARNERS["plain"], 0.7, 20, kind="exact")
    assert_same(targets[0], whole.correct(X[:24], Y[:24]))
    assert_same(
        targets[0], rt.corrected_targets(X[:24] @ X[:24].mT, Y[:24], LEARNERS["plain"], 0.7)
    )
    assert_same(targets[1], whole.correct(X[24:54], Y[24:54]))
    resumed = rt.NetworkCorrector(network, LEARNERS["plain"], 0.7, 20, kind="exact")
    resumed.resume([(X[:24], Y[:24]), (X[24:54], Y[24:54])], targets[1])
    assert_same(targets[2], resumed.correct(X[54:], Y[54:]))
    values, tensors = read_state(path)
    for sizes, message in (
        ([24, 30], "the tasks have 54 samples, but there are 71"),
        ([24, 47], r"corrected has shape \(17, 2\); expected \(47, 2\)"),
        ([71, 0], "sizes is 0; expected 1 or more"),
        ([54.0, 17], "sizes is 54.0; expected a whole number"),
    ):
        write_state(path, values | {"state": {"sizes": sizes}}, tensors)
        with pytest.raises(InvalidInputError, match=message):
            rt.NetworkCorrector.load(path, network)
