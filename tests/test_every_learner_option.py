"""Every option of `rt.SGD` arrives everywhere: a new one that is ignored somewhere fails here."""

import dataclasses
import inspect

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.cli.load_stream import diagnosis_options
from retarget.cli.stream_options import StreamOptions
from retarget.diagnosis.report.terminal import everything
from retarget.engine.followers import Online, follow
from retarget.engine.primal import FeatureRows, PrimalLearner
from retarget.engine.stream import SampleStream
from retarget.errors import InvalidInputError
from retarget.lab.steps import Optimizer
from support import made_diagnosis as made
from support.problems import assert_same

# A value of each option that is not its default; "with" is what it needs.
VALUES = {
    "lr": {"lr": 0.07},
    "batch_size": {"batch_size": 3, "with": {"reduction": "sum"}},
    "momentum": {"momentum": 0.6},
    "nesterov": {"nesterov": True, "with": {"momentum": 0.6}},
    "weight_decay": {"weight_decay": 0.2},
    "reduction": {"reduction": "mean", "with": {"batch_size": 3, "reduction": "sum"}},
}
# For an option that torch.optim.SGD has not: a function from the learner and its parameters to an
# optimizer with a `step` of its own.
OPTIMIZERS = {}
# An option that estimators or the command do not offer belongs here, with the reason.
NOT_IN_ESTIMATORS: set[str] = set()
NOT_ON_THE_COMMAND_LINE: set[str] = set()


def given(option):
    """The options of a learner that has this one, and of one that has its default."""
    values = dict(VALUES[option])
    needed = {"lr": 0.05} | values.pop("with", {})
    return needed | values, needed


@pytest.fixture
def problem():
    rng = np.random.default_rng(11)
    X = torch.from_numpy(rng.normal(size=(14, 3)))
    return X, torch.from_numpy(rng.normal(size=(14, 2)))


def test_every_option_is_here():
    assert {each.name for each in dataclasses.fields(rt.SGD)} == set(VALUES)


def steps(learner, X, Y, take_step):
    """The weights after one pass of a loop in which `take_step` gets the weights' gradient."""
    w = torch.zeros(3, 2, dtype=torch.float64)
    for first in range(0, len(X), learner.batch_size):
        rows = slice(first, first + learner.batch_size)
        gradient = X[rows].T @ (X[rows] @ w - Y[rows])
        if learner.reduction == "mean":
            gradient = gradient / len(X[rows])
        w = take_step(w, gradient)
    return w


@pytest.mark.parametrize("option", VALUES)
def test_in_a_loop_and_in_theory(option, problem):
    """torch's steps, the lab's, and both forms of the engine: the same weights."""
    X, Y = problem
    changed, plain = given(option)
    learner = rt.SGD(**changed)
    parameter = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    optimizer = OPTIMIZERS.get(option, rt.SGD.to_torch)(learner, [parameter])

    def of_torch(w, gradient):
        parameter.grad = gradient
        optimizer.step()
        return parameter.detach()

    end = steps(learner, X, Y, of_torch)

    stacked = torch.zeros(2, 3, 2, dtype=torch.float64)  # two members, of which one is another
    of_members = Optimizer([learner, rt.SGD(0.01, momentum=0.3)], [stacked])
    if learner.nesterov:  # members have it in common
        of_members = Optimizer([learner, learner], [stacked])

    def of_lab(w, gradient):
        of_members.step([gradient.expand(2, 3, 2)])
        return stacked[0]

    assert_same(steps(learner, X, Y, of_lab), end, 1e-12)

    dual = X.T @ rt.online_coefficients(X @ X.T, Y, learner)
    assert_same(dual, end, 1e-12)
    primal = Online(PrimalLearner(learner))
    stream = SampleStream(lambda rows: FeatureRows(X[rows]), Y)
    follow(stream.windows(learner.batch_size), [primal])
    assert_same(primal.learner.coefficients, end, 1e-12)
    other = X.T @ rt.online_coefficients(X @ X.T, Y, rt.SGD(**plain))
    assert np.abs((dual - other).numpy()).max() > 1e-3


def test_what_torch_does_not_have(monkeypatch):
    """Such an option is an error where an optimizer of torch is made, and is not left out."""
    learner = rt.SGD(0.1)
    weights = [torch.zeros(2, requires_grad=True)]
    monkeypatch.setattr(rt.SGD, "quasi", 1.0, raising=False)
    monkeypatch.setattr(rt.SGD, "to_dict", lambda self: {"lr": 0.1, "quasi": 0.4})
    with pytest.raises(InvalidInputError, match="quasi is 0.4"):
        learner.to_torch(weights)
    monkeypatch.setattr(rt.SGD, "to_dict", lambda self: {"lr": 0.1, "quasi": 1.0})
    assert learner.to_torch(weights).param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("option", VALUES)
def test_in_saved_states(option, problem, tmp_path):
    X, Y = problem
    learner = rt.SGD(**given(option)[0])
    tracker = rt.ShiftTracker(rt.RBF(2.0), learner, gamma=0.3)
    tracker.update(X[:6], Y[:6])
    tracker.save(tmp_path / "state")
    again = rt.ShiftTracker.load(tmp_path / "state")
    again.update(X[6:], Y[6:])
    assert again.learner == learner
    whole = rt.effective_targets(rt.RBF(2.0)(X), Y, learner, 0.3)
    assert_same(again.effective_targets, whole, 1e-10)


@pytest.mark.parametrize("option", VALUES)
def test_in_the_words_of_a_report(option):
    changed, plain = (rt.SGD(**options) for options in given(option))
    shown = [
        everything(dataclasses.replace(diagnosis, learner=learner))
        for diagnosis, learner in ((made.regression(), changed), (made.regression(), plain))
    ]
    if option != "lr":  # the report shows the rate that was chosen
        assert shown[0] != shown[1]


@pytest.mark.parametrize("option", sorted(set(VALUES) - NOT_IN_ESTIMATORS))
def test_in_estimators(option, problem):
    X, Y = problem
    changed = given(option)[0]
    fitted = rt.OnlineKernelRegressor("rbf", **changed).fit(X.numpy(), Y.numpy())
    assert fitted.learner_ == rt.SGD(**changed)
    assert option in inspect.signature(rt.OnlineKernelClassifier).parameters


@pytest.mark.parametrize("option", sorted(set(VALUES) - NOT_ON_THE_COMMAND_LINE))
def test_on_the_command_line(option):
    changed = given(option)[0]
    typed = changed | {"lr": str(changed["lr"])}
    assert diagnosis_options(StreamOptions(**typed)).learner == rt.SGD(**changed)
