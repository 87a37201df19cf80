"""A method of one's own: its gradients, its name, its options, and what identifies its runs."""

import copy
import importlib
import sys

import pytest
import torch
from pydantic import ValidationError

import retarget as rt
from retarget import lab
from retarget.errors import InvalidInputError
from retarget.lab.methods import Method, code_of_method, recipe_named, recipes
from support.lab_problems import mlp, stream, weights
from support.own_methods import Clipped, FromTheRun, Halved
from support.problems import assert_same

pytest.importorskip("matplotlib", reason="needs the extra [figures]")

from retarget.lab.figures.cifar10 import CifarRun
from retarget.lab.figures.training import methods_of

OWN = "support.own_methods"


def run(**changes):
    known = {
        "seed": 0, "protocol": "domain pairs", "per_class": 4, "test_per_class": 3,
        "method": "vanilla", "lr": 0.01, "capacity": 6,
    }  # fmt: skip
    return CifarRun(**(known | changes))


def trained_by_hand(network, given, learner, change):
    """Plain SGD of torch in order, with gradients changed in place before each step."""
    inputs, targets = given.train.inputs[given.train.rows], given.targets()
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=learner.lr,
        momentum=learner.momentum,
        nesterov=learner.nesterov,
        weight_decay=learner.weight_decay,
    )
    start = 0
    for size in given.train.sizes:
        rows = range(start, start + size)
        for first in range(start, start + size, learner.batch_size):
            batch = rows[first - start : first - start + learner.batch_size]
            optimizer.zero_grad()
            error = network(inputs[batch]) - targets[batch]
            (0.5 * error.square().sum(1).mean()).backward()
            change(network)
            optimizer.step()
        start += size


def halve(network):
    for name, parameter in network.named_parameters():
        if "bias" not in name:
            parameter.grad /= 2


@pytest.mark.parametrize(
    "learner",
    [
        rt.SGD(0.3, 3, reduction="mean"),
        rt.SGD(0.2, 5, 0.8, nesterov=True, weight_decay=0.01, reduction="mean"),
    ],
)
def test_changed_gradients_are_what_the_step_takes(learner):
    longest = 0.4

    def clip_and_halve(network):
        gradients = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        length = gradients.norm()
        if length > longest:
            for parameter in network.parameters():
                parameter.grad *= longest / length
        halve(network)

    networks, streams = [mlp(1), mlp(4)], [stream(2), stream(7)]
    expected = copy.deepcopy(networks)
    plain = copy.deepcopy(networks)
    methods = [Clipped(longest), Halved()]
    lab.train(networks, streams, learner, methods, reshuffle=False)
    lab.train(plain, streams, learner, reshuffle=False)
    for found, by_hand, without, given in zip(networks, expected, plain, streams, strict=True):
        trained_by_hand(by_hand, given, learner, clip_and_halve)
        assert_same(weights(found), weights(by_hand))
        assert (weights(found) - weights(without)).abs().max() > 1e-2


def test_methods_change_gradients_in_their_order():
    learner = rt.SGD(0.3, 4, reduction="mean")
    network = mlp(1)
    expected = copy.deepcopy(network)
    lab.train(network, stream(2), learner, [Halved(), Halved()])
    trained_by_hand(expected, stream(2), learner, lambda net: (halve(net), halve(net)))
    assert_same(weights(network), weights(expected))


# By name


def test_every_method_of_the_package_has_a_name():
    made = {type(each) for name in recipes() for each in recipe_named(name)([run()])}
    public = {kind for kind in _subclasses(Method) if _is_ours(kind)}
    assert made == public
    assert len(made) >= 10


def _subclasses(kind):
    return {kind, *(under for each in kind.__subclasses__() for under in _subclasses(each))}


def _is_ours(kind):
    inside = kind.__module__.startswith("retarget.lab.methods")
    return inside and kind is not Method and not kind.__name__.startswith("_")


def test_a_name_works_once_it_is_imported():
    class Renamed(Clipped, name="clipped, for this test"):
        pass

    recipes.cache_clear()
    try:
        (method,) = methods_of([run(method="clipped, for this test", options={"longest": 2.0})])
        assert type(method) is Renamed
        assert method.longest == 2.0
    finally:
        del recipes()["clipped, for this test"]
        lab.methods._RECIPES.pop("clipped, for this test")
        recipes.cache_clear()


def test_parameters_and_options_reach_the_constructor():
    (method,) = methods_of([run(method=f"{OWN}:FromTheRun", options={"factor": 3.0})])
    assert isinstance(method, FromTheRun)
    assert (method.capacity, method.factor) == (6, 3.0)
    (er,) = methods_of([run(method="er", options={"batch_size": 7})])
    assert (er.capacity, er.batch_size) == (6, 7)
    (plus,) = methods_of([run(method="der++", options={"alpha": 0.5})])
    assert (plus.alpha, plus.beta) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "derr"}, "did you mean 'der'"),
        ({"method": "os:getcwd"}, "'os:getcwd' is no method"),
        ({"method": f"{OWN}:no_class"}, "is no method"),
        ({"method": f"{OWN}:Missing"}, "cannot be imported"),
        ({"method": f"{OWN}:Broken"}, "KeyError"),
        ({"method": "er", "options": {"size": 3}}, "ER has no option 'size'.*capacity"),
        ({"method": "vanilla", "options": {"size": 3}}, "Vanilla has no option 'size'.*none"),
        ({"method": "er", "options": {"capacity": 0}}, "capacity is 0"),
    ],
)
def test_a_refused_method_and_the_file(changes, message):
    with pytest.raises((ValidationError, InvalidInputError), match=message):
        run(**changes)


def test_edited_methods_are_computed_again(tmp_path, monkeypatch):
    source = "from retarget.lab import Method\nclass Mine(Method):\n    '''{}'''\n"
    file = tmp_path / "a_method_of_mine.py"
    file.write_text(source.format("first"))
    monkeypatch.syspath_prepend(tmp_path)
    mine = run(method="a_method_of_mine:Mine")
    before = mine.identifying()
    assert before == mine.identifying()
    assert before["method_code"] == code_of_method("a_method_of_mine:Mine")
    file.write_text(source.format("second"))
    assert mine.identifying()["method_code"] != before["method_code"]
    assert "method_code" not in run().identifying()
    sys.modules.pop("a_method_of_mine")
    importlib.invalidate_caches()
