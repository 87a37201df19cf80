"""TangentLearner is ridge regression on the network's own gradients, sketched."""

import copy
import json
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.state_files import read_state, write_state
from support.lab_problems import Tied, conv_net, mlp
from support.oracles import ridge as oracle
from support.oracles.empirical_ntk import gram
from support.problems import assert_same


def random_stream(n=30, shape=(5,), c=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, *shape))
    flat = X.reshape(n, -1)
    Y = np.tanh(flat @ rng.normal(size=(flat.shape[1], c))) + 0.1 * rng.normal(size=(n, c))
    return X, Y, rng.normal(size=(5, *shape))


def gradients(network, X, signs, names):
    """(n, q, p) the gradients of combinations of the outputs, by jacrev, one sample at a time."""
    values = {name: value.detach() for name, value in network.named_parameters()}
    chosen = {name: values[name] for name in names}

    def combined(parameters, x):
        outputs = functional_call(network, {**values, **parameters}, (x[None],))
        return outputs.flatten() @ signs

    found = vmap(jacrev(combined), in_dims=(None, 0))(chosen, torch.from_numpy(X))
    return torch.cat([found[name].flatten(2) for name in names], 2)


def signs_of(learner, c):
    """The combinations, from the description: signs over the root of the number of outputs."""
    random = torch.Generator().manual_seed(learner.seed)
    signs = 2 * torch.randint(0, 2, (c, learner.combinations), generator=random) - 1
    return (signs / c**0.5).double()


def literal(learner, network, X, Y, queries, gamma, names=None):
    """The formula: features are the sketch of the gradients, found out from unit gradients.

    The sketch is linear and the same for every sample. So it is the least squares solution between
    gradients and features of many random samples.
    """
    names = names or [name for name, _ in network.named_parameters()]
    probe = np.random.default_rng(5).normal(size=(400, *X.shape[1:]))
    start = [network(torch.from_numpy(each)).detach().numpy() for each in (X, queries)]
    signs = signs_of(learner, start[0].shape[1])
    J, *others = (gradients(network, each, signs, names).flatten(1) for each in (probe, X, queries))
    S = torch.linalg.lstsq(J, learner._map(probe), driver="gelsd").solution
    assert_same(J @ S, learner._map(probe), 1e-8)
    phi, phi_queries = ((each @ S).numpy() for each in others)
    if start[0].shape[1] != Y.shape[1]:
        start = [np.zeros((1, Y.shape[1]))] * 2
    return start[1] + oracle.predictions(phi, Y - start[0], phi_queries, gamma)


# --- the formula


@pytest.mark.parametrize(
    ("make", "shape", "outputs", "combinations"),
    [
        (mlp, (5,), 3, 2),
        (mlp, (5,), 4, 1),
        (conv_net, (2, 4, 4), 3, 1),
        (conv_net, (2, 4, 4), 4, 2),
    ],
)  # of as many outputs as the network, or others
def test_it_is_the_ridge_solution_on_sketched_gradients(make, shape, outputs, combinations):
    network = make(0)
    X, Y, queries = random_stream(shape=shape, c=outputs)
    learner = rt.TangentLearner(network, 0.3, 40, combinations=combinations, seed=2)
    for rows in (slice(20, 30), slice(0, 1), slice(1, 20)):
        learner.learn(X[rows], Y[rows])
    expected = literal(learner, network, X, Y, queries, 0.3)
    assert_same(learner.predict(queries), expected, 1e-7)


@pytest.mark.parametrize("combinations", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_features_are_the_tangent_kernel_on_average(combinations):
    """E<phi, phi'> over the seeds is the mean over the outputs of the gradients' products."""
    network = mlp(0)
    X, _, _ = random_stream(n=6)
    exact = gram(network, torch.from_numpy(X), torch.from_numpy(X)).numpy()
    grams = []
    for seed in range(80):
        learner = rt.TangentLearner(network, 1.0, 64, combinations=combinations, seed=seed)
        phi = learner._map(X)
        assert phi.shape == (6, 64)
        grams.append((phi @ phi.mT).numpy())
    spread = np.std(grams, axis=0) / np.sqrt(len(grams))
    assert (np.abs(np.mean(grams, axis=0) - exact) < 4.5 * spread + 1e-12).all()
    assert spread.max() < 0.15 * exact.max()


def test_the_sketch_is_that_of_the_kernel():
    network = mlp(0, classes=1)  # one output: the only combination is plus or minus itself
    X, _, _ = random_stream()
    learner = rt.TangentLearner(network, 1.0, 16, seed=3)
    held = nn.Sequential(OrderedDict(network=network))  # names decide about the projection
    features = rt.EmpiricalNTK(held, sketch=16, seed=3).features(X)
    assert_same(learner._map(X), features * float(signs_of(learner, 1)), 1e-14)


def test_a_linear_network_is_linear_regression():
    """All tangents are the inputs themselves."""
    X, Y, queries = random_stream(shape=(4,), c=1)
    network = nn.Linear(4, 1, bias=False).double()
    # every number in a bucket of its own: the sketch is a permutation with signs
    learner = rt.TangentLearner(network, 0.7, 4).learn(X, Y)
    with torch.no_grad():
        start = [network(torch.from_numpy(each)).numpy() for each in (X, queries)]
    expected = start[1] + oracle.predictions(X, Y - start[0], queries, 0.7)
    assert_same(learner.predict(queries), expected)


def test_verbs_are_those_of_streaming_ridge():
    X, Y, queries = random_stream()
    learner = rt.TangentLearner(mlp(0), 0.3, 24)
    parts = [learner.empty().learn(X[rows], Y[rows]) for rows in (slice(0, 12), slice(12, 30))]
    learner.merge(parts[0]).merge(parts[1].discount(0.25))
    weights = np.where(np.arange(30) < 12, 1.0, 0.25)
    assert_same(learner.predict(queries), learner.empty().learn(X, Y, weights).predict(queries))
    learner.forget(X[12:], Y[12:], weights[12:])
    assert_same(learner.predict(queries), parts[0].predict(queries), 1e-8)
    assert rt.TangentLearner(mlp(0), features=24).learn(X, Y).gamma_ > 0
    for network, seed in ((mlp(1), 0), (mlp(0), 1)):
        with pytest.raises(InvalidInputError, match="other has .*; expected"):
            learner.merge(rt.TangentLearner(network, 0.3, 24, seed=seed))


# --- which parameters


@pytest.mark.parametrize(
    ("params", "frozen", "names"),
    [
        ("0.weight", True, ["0.weight"]),
        ("2", False, ["2.weight", "2.bias"]),
        ("*.bias", True, ["0.bias", "2.bias"]),
        (["0.bias", "2.w*"], False, ["0.bias", "2.weight"]),
        (lambda name: name.endswith("weight"), True, ["0.weight", "2.weight"]),
        (None, True, ["2.weight", "2.bias"]),
    ],
    ids=["name", "layer", "pattern", "several", "predicate", "those that are trained"],
)
def test_some_parameters(params, frozen, names):
    network = mlp(0)
    network[0].requires_grad_(not frozen)
    X, Y, queries = random_stream()
    learner = rt.TangentLearner(network, 0.2, 16, params=params).learn(X, Y)
    expected = literal(learner, network, X, Y, queries, 0.2, names)
    assert_same(learner.predict(queries), expected, 1e-7)
    assert network[0].weight.requires_grad is not frozen


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"params": "3"}, InvalidInputError, "params has '3', which matches no"),
        ({"params": lambda name: False}, InvalidInputError, "selects no"),
        ({"features": 0}, InvalidInputError, "features is 0; expected 1 or more"),
        ({"combinations": 1.5}, InvalidTypeError, "combinations is 1.5; exp"),
        ({"gamma": -1}, InvalidInputError, "gamma is -1"),
        ({"module": 3}, InvalidTypeError, "module is 3; expected a torch.nn"),
        (
            {"module": mlp(0).requires_grad_(False)},
            InvalidInputError,
            "no trained parameters",
        ),
    ],
)
def test_what_is_refused(options, error, match):
    with pytest.raises(error, match=match):
        rt.TangentLearner(**{"module": mlp(0)} | options)


def test_outputs_that_are_huge_are_refused():
    module = mlp(0)
    module[2].bias.data.fill_(1e200)  # gradients are as before, outputs are not
    with pytest.raises(
        InvalidInputError,
        match=r"Y minus the network's own outputs range from .*; expected at most 1e\+90",
    ):
        rt.TangentLearner(module, 0.3, 16).learn(*random_stream()[:2])


# --- the network is left alone


def test_a_network_in_training_is_left_alone():
    norm = nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh()
    network = nn.Sequential(nn.Linear(5, 6), *norm, nn.Linear(6, 3)).double()
    with torch.no_grad():
        network(torch.randn(20, 5).double())  # running means that are not the first ones
    before = copy.deepcopy(network.state_dict())
    X, Y, queries = random_stream()
    learner = rt.TangentLearner(network, 0.3, 24).learn(X, Y)
    found = learner.predict(queries)
    assert network.training
    assert all(value.grad is None for value in network.parameters())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    settled = copy.deepcopy(network).eval()
    assert_same(found, literal(learner, settled, X, Y, queries, 0.3), 1e-6)
    with torch.no_grad():
        network[0].weight += 1  # whatever is trained afterwards
    assert_same(learner.learn(X[:0], Y[:0]).predict(queries), found, 0)


# --- the same everywhere

SCRIPT = """
import numpy as np, torch, retarget as rt
network = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
with torch.no_grad():
    for value in network.parameters():
        value.copy_(torch.arange(value.numel()).reshape(value.shape).cos())
X = np.sin(np.arange(80.0)).reshape(20, 4)
learner = rt.TangentLearner(network.double(), 0.3, 16, combinations=2, seed=7)
found = learner.learn(X, X[:, :3] ** 2).predict(X[:4] + 1).ravel().tolist()
"""
EVERYWHERE = [
    -0.304232676046,
    -0.273020059933,
    0.533382406822,
    1.305747865331,
    0.538835699868,
    1.162376814858,
    1.599805059738,
    1.691394808084,
    -0.131376738087,
    -1.303640407629,
    -0.298419015146,
    0.464359801340,
]


def test_a_seed_on_every_machine():
    """As written down once; and one by one as in a batch."""
    here: dict = {}
    exec(SCRIPT, here)
    assert_same(here["found"], EVERYWHERE, 1e-9)
    one_by_one = [here["learner"].predict(each[None])[0] for each in here["X"][:4] + 1]
    assert_same(np.ravel(one_by_one), EVERYWHERE, 1e-9)


@pytest.mark.slow
def test_the_sketch_of_another_process(environment):
    here: dict = {}
    exec(SCRIPT, here)
    done = subprocess.run(
        [sys.executable, "-c", f"{SCRIPT}\nassert torch.get_num_threads() == 2\nprint(found)"],
        capture_output=True,
        text=True,
        check=False,
        # an earlier test's libraries may have left other limits in the environment
        env=environment | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert_same(json.loads(done.stdout), here["found"], 1e-11)
    assert np.abs(here["found"]).max() > 0.1


def test_loaded_predicts_the_same_and_goes_on(tmp_path):
    (X, Y, queries), network = random_stream(), Tied(0)
    learner = rt.TangentLearner(network, features=20, combinations=2, params="*.weight", seed=3)
    learner.learn(X[:20], Y[:20]).save(tmp_path / "state")
    other = Tied(9)  # of the same form: its weights come from the file
    loaded = rt.TangentLearner.load(tmp_path / "state", other)
    np.testing.assert_array_equal(loaded.predict(queries), learner.predict(queries))
    for each in (learner, loaded):
        each.learn(X[20:], Y[20:])
    np.testing.assert_array_equal(loaded.predict(queries), learner.predict(queries))
    assert not torch.equal(other.first.weight, network.first.weight)
    learner.empty().save(tmp_path / "empty")
    empty = rt.TangentLearner.load(tmp_path / "empty", other)
    assert_same(empty.learn(X, Y).predict(queries), learner.predict(queries), 1e-9)


def test_files_of_other_networks_are_refused(tmp_path):
    X, Y, _ = random_stream()
    path = tmp_path / "state"
    rt.TangentLearner(mlp(0), 0.3, 16).learn(X, Y).save(path)
    with pytest.raises(InvalidInputError, match="(?s)TangentLearner .*size mismatch"):
        rt.TangentLearner.load(path, mlp(0, classes=4))
    values, tensors = read_state(path)
    tensors["network.0.weight"][0, 0] += 1
    write_state(path, values, tensors)
    with pytest.raises(InvalidInputError, match="weights differ from those"):
        rt.TangentLearner.load(path, mlp(0))


@pytest.mark.parametrize("wrong", [None, 0, -3, 1.5, "three"])
def test_files_without_the_number_of_outputs(wrong, tmp_path):
    X, Y, queries = random_stream()
    path = tmp_path / "state"
    learner = rt.TangentLearner(mlp(0, classes=4), 0.3, 16).learn(X, Y)
    learner.save(path)
    values, tensors = read_state(path)
    assert values["network_outputs"] == 4
    write_state(path, values | {"network_outputs": wrong}, tensors)
    with pytest.raises(InvalidInputError, match="is not a state of a TangentLearner"):
        rt.TangentLearner.load(path, mlp(0, classes=4))
    write_state(path, values | {"network_outputs": 5}, tensors)
    loaded = rt.TangentLearner.load(path, mlp(0, classes=4))
    with pytest.raises(InvalidInputError, match="for X is 4; expected 5"):
        loaded.predict(queries)


def test_the_default_type_of_torch_changes_nothing():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    X, Y = torch.randn(12, 3).double(), torch.randn(12, 3).double()
    found = []
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            thing = rt.TangentLearner(module, 1e-3, features=20, combinations=2).learn(X, Y)
            found.append(thing.predict(X))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(*found)


class Square(nn.Linear):
    def forward(self, x):
        return super().forward(x) ** 2


def test_different_networks_and_a_bad_row():
    torch.manual_seed(0)
    first, last = nn.Linear(3, 5), nn.Linear(5, 2)
    X, Y = torch.randn(12, 3).double(), torch.randn(12, 2).double()
    one, other = (
        rt.TangentLearner(nn.Sequential(first, act, last).double(), 0.1, features=8).learn(X, Y)
        for act in (nn.Tanh(), nn.ReLU())
    )
    with pytest.raises(InvalidInputError, match="a different feature function"):
        one.merge(other)
    assert one.merge(one.empty().learn(X, Y)).samples == 24
    X[7] = 1e200  # finite, but not what the network makes of it
    with pytest.raises(InvalidInputError, match="feature map's result holds .* in row 7;"):
        rt.TangentLearner(Square(3, 2).double(), 0.1, features=8).learn(X, Y)


@pytest.mark.parametrize("outputs", [3, 7], ids=["classifier", "feature extractor"])
def test_class_labels_are_one_hot_rows(outputs, tmp_path):
    network, (X, _, _) = mlp(1, classes=outputs), random_stream(8)
    numbers = np.array([2, 0, 1, 2, 2, 1, 0, 1])
    names = ["ant", "bee", "cat"]
    text = [names[number] for number in numbers]
    wanted = rt.TangentLearner(network, 1.0, 32).learn(X, np.eye(3)[numbers]).predict(X)
    cases = [(text, {"classes": names}), (numbers, {"classes": range(3)})]
    cases += [(numbers, {}), (torch.from_numpy(numbers), {})] if outputs == 3 else []
    for labels, options in cases:
        learner = rt.TangentLearner(network, 1.0, 32, **options).learn(X, labels)
        assert_same(learner.predict(X), wanted)
        learner.save(tmp_path / "state")
        again = rt.TangentLearner.load(tmp_path / "state", network)
        again.learn(X[:2], labels[:2]).forget(X[:2], labels[:2])
        assert_same(again.predict(X), wanted)
    with pytest.raises(InvalidInputError, match="such as 'cat', .* classes="):
        rt.TangentLearner(network, 1.0, 32).learn(X, text)
