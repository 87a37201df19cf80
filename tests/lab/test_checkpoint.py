"""A run that is interrupted goes on from its checkpoint, and ends as if nothing had happened."""

import contextlib
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import lab
from retarget.errors import (
    DamagedFileWarning,
    InvalidInputError,
    InvalidTypeError,
    TrainingDivergedError,
)
from retarget.state_files import read_state, write_state
from support.lab_problems import CORRECTED, LEARNERS, METHODS, conv_net, led, mlp, stream, weights


class Interrupted(BaseException):
    """As Ctrl-C would: nobody catches it."""


def interrupt_after(monkeypatch, writes):
    """Interrupts whatever run comes next right after its n-th checkpoint."""
    written = 0

    def write(path, values, tensors):
        nonlocal written
        write_state(path, values, tensors)
        written += 1
        if written == writes:
            raise Interrupted

    monkeypatch.setattr("retarget.lab.checkpoint.write_state", write)


def train(make, checkpoint=None, learner="momentum", network=mlp, members=2, **options):
    """A run from its very beginning, as a new process would call it."""
    networks = [network(m) for m in range(members)]
    torch.manual_seed(3)
    sizes, shape = options.pop("sizes", (8, 6)), (2, 4, 4) if network is conv_net else (5,)
    streams = [stream(m, sizes, shape) for m in range(members)]
    streams = options.pop("streams", streams)
    learners = options.pop("learners", LEARNERS[learner])
    options = {"epochs": 2, "reshuffle": True, "evaluate_every": 4} | options
    history = lab.train(networks, streams, learners, make()[0], checkpoint=checkpoint, **options)
    return history, networks


def assert_same_run(one, other):
    """To the last bit."""
    for name, values in vars(one[0]).items():
        np.testing.assert_array_equal(values, getattr(other[0], name), err_msg=name)
    for network, same in zip(one[1], other[1], strict=True):
        for name, values in network.state_dict().items():
            assert torch.equal(values, same.state_dict()[name]), name


def net_with(layer):
    """A function that makes a network with this layer, which draws or counts by itself."""

    def make(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 9), layer(), nn.ReLU(), nn.Linear(9, 3)).double()

    return make


class Weariness(lab.Method):
    """Pulls the weights to zero, more with each step."""

    def on_start(self, run):
        self._steps = 0

    def penalty(self, run, batch):
        weights = run.ensemble.parameters.values()
        return 0.01 * self._steps * sum(w.square().flatten(1).sum(1) for w in weights)

    def on_batch_end(self, run, batch):
        self._steps += 1


class SavedWeariness(Weariness):
    def state_dict(self, run):
        return {"half": torch.tensor(self._steps // 2), "rest": {"of it": self._steps % 2}}

    def load_state_dict(self, run, state):
        self._steps = 2 * int(state["half"]) + state["rest"]["of it"]


def several():
    sketched = partial(rt.EmpiricalNTK, sketch=9)
    corrected = lab.Corrected(3.0, 8, refresh="never", kernel=sketched)
    return [corrected, lab.DER(4, 3), lab.EWC([0.5, 2.0]), lab.CumulativeReplay(2)], []


TWO_RATES = [rt.SGD(0.1, 2, momentum=mu, reduction="sum") for mu in (0.0, 0.6)]
# A method, how often it is saved, and the rest: at the start, after each of two epochs, and at the
# end of each of two tasks. Some replay passes after each task; some train in one task only.
RUNS = {
    "tangent": (lambda: (lab.Tangent(features=24), []), 4, {}),
    "last layer": (lambda: (lab.LastLayer(first_epochs=2), []), 5, {}),
    "joint": (lambda: (lab.Joint(3), []), 6, {}),
    "led": (led(features=24), 7, {"learner": "mean"}),  # the closed loop needs plain SGD
    "several": (several, 1 + 3 * (2 + 2 + 1), {"sizes": (8, 4, 6)}),
    "corrected": (CORRECTED["DER, corrected"], 7, {"reshuffle": False}),
    "convolutions": (METHODS["DER++"], 7, {"learner": "decay", "network": conv_net, "members": 3}),
    "one's own": (lambda: ([SavedWeariness(), SavedWeariness()], []), 7, {}),
    "every epoch": (CORRECTED["every epoch"], 7, {"learner": "nesterov and decay", "members": 1}),
    # orders come from those before
    "one at a time": (METHODS["plain"], 9, {"learner": "one at a time", "epochs": 3}),
    "two rates": (
        METHODS["plain"],
        5,
        {"learners": TWO_RATES, "epochs": 1, "evaluate_every": None},
    ),
    # what the network itself draws and counts
    "dropout": (METHODS["DER++"], 7, {"network": net_with(partial(nn.Dropout, 0.4))}),
    "norm": (
        METHODS["DER++"],
        7,
        {"network": net_with(partial(nn.BatchNorm1d, 9, momentum=0.3)), "members": 1},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_interrupted_at_every_boundary_in_turn(name, tmp_path, monkeypatch):
    make, saves, options = RUNS[name]
    path, interruptions, resumed = tmp_path / "run.safetensors", -1, None
    while resumed is None:
        interruptions += 1
        with monkeypatch.context() as patch, contextlib.suppress(Interrupted):
            interrupt_after(patch, 1)
            resumed = train(make, path, **options)
    after = torch.get_rng_state()
    assert_same_run(resumed, train(make, **options))
    assert torch.equal(torch.get_rng_state(), after)
    assert interruptions == saves
    assert list(tmp_path.iterdir()) == [path]


def test_a_finished_run_is_there_at_once(tmp_path, monkeypatch):
    path, make = tmp_path / "new folder" / "run.safetensors", CORRECTED["DER, corrected"]
    expected = train(make, path)

    def never(*args):
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr("retarget.lab.training.Run.pass_over", never)
    monkeypatch.setattr("retarget.lab.training.Run.evaluate", never)
    monkeypatch.setattr("retarget.lab.checkpoint.write_state", never)
    assert_same_run(train(make, str(path)), expected)


# A file that is no checkpoint of this run


@pytest.fixture(scope="module")
def half_done(tmp_path_factory):
    """The bytes of a checkpoint after three of its seven writes."""
    path = tmp_path_factory.mktemp("half done") / "run.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, 3)
        with pytest.raises(Interrupted):
            train(METHODS["DER"], path)
    return path.read_bytes()


@pytest.fixture
def interrupted(half_done, tmp_path):
    path = tmp_path / "run.safetensors"
    path.write_bytes(half_done)
    return path


def network(change):
    return {"network": lambda m: changed(mlp(m), change)}


def streams(change):
    return {"streams": [stream(0, (8, 6)), changed(stream(1, (8, 6)), change)]}


def changed(thing, change):
    with torch.no_grad():
        change(thing)
    return thing


def nudge(tensor):
    tensor.flatten()[2] += 1e-15


def reverse(tensor):
    tensor.copy_(tensor.flip(0))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"epochs": 3}, r"epochs \(2 then, 3 now\)"),
        ({"reshuffle": False}, r"reshuffle \(true then, false now\)"),
        ({"evaluate_every": None}, r"evaluate_every \(4 then, null now\)"),
        ({"seeds": [0, 2]}, "seeds"),
        ({"learner": "mean"}, "learners"),
        ({"make": lambda: (lab.DER(5, 3, alpha=0.71), [])}, "methods"),
        (network(lambda n: n.__setitem__(1, nn.ReLU())), "network"),
        (network(lambda n: nudge(n[0].bias)), "initial weights"),
        (network(lambda n: n[0].bias.requires_grad_(False)), "trained parameters"),
        (streams(lambda s: reverse(s.train.labels)), "training samples"),
        (streams(lambda s: reverse(s.train.rows)), "training samples"),
        (streams(lambda s: nudge(s.train.inputs)), "training samples"),
        (streams(lambda s: nudge(s.test.inputs)), "test samples"),
        ({"sizes": (9, 5)}, r"tasks \(\[8, 6\] then, \[9, 5\] now\), training samples"),
    ],
)
def test_the_checkpoint_of_another_run(changes, what, interrupted):
    before = interrupted.read_bytes()
    message = rf"another run; these differ: {what}( \(.* now\))?; delete it"
    with pytest.raises(InvalidInputError, match=message):
        train(**{"make": METHODS["DER"], "checkpoint": interrupted} | changes)
    assert interrupted.read_bytes() == before


class Options(lab.Method):
    def __init__(self, value):
        self.value, self._kept = value, random.random()


def kernel_of(module):
    return rt.EmpiricalNTK(module)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": (1, [2, "a"])}, {"a": (1, [2, "b"])}),
        (None, np.float32(2)),
        (range(3), range(4)),
        (np.array(["a"], dtype=object), np.array(["b"], dtype=object)),
        (torch.zeros(3), torch.zeros(4)),
        (rt.EmpiricalNTK, kernel_of),
        (partial(rt.EmpiricalNTK, sketch=3), partial(rt.EmpiricalNTK, sketch=4)),
        (mlp(0), conv_net(0)[0]),
        (lab.Led(gamma=1.0).options, lab.Led(gamma=2.0).options),
    ],
)
def test_options_have_no_underscore(one, other, tmp_path):
    options = {"members": 1, "checkpoint": tmp_path / "run", "sizes": (2,), "epochs": 1}
    for _ in range(2):
        train(lambda: (Options(one), []), **options)
    with pytest.raises(InvalidInputError, match="these differ: methods"):
        train(lambda: (Options(other), []), **options)


def test_files_that_are_no_checkpoints(interrupted, tmp_path):
    with pytest.raises(InvalidInputError, match="which is not a file"):
        train(METHODS["plain"], tmp_path)
    values, tensors = read_state(interrupted)
    write_state(interrupted, values, tensors | {"loss": tensors.pop("method 0.held")})
    with pytest.raises(InvalidInputError, match="training run of this version"):
        train(METHODS["DER"], interrupted)
    rt.ShiftTracker(rt.RBF(1.0), rt.SGD(0.1), 1.0).save(interrupted)
    with pytest.raises(InvalidInputError, match="holds a ShiftTracker"):
        train(METHODS["plain"], interrupted)


def test_a_damaged_checkpoint_is_made_again(interrupted):
    damaged = interrupted.read_bytes()[:-1] + b"a"
    interrupted.write_bytes(damaged)
    with pytest.warns(DamagedFileWarning) as caught:
        assert_same_run(train(METHODS["DER"], interrupted), train(METHODS["DER"]))
    assert [warning.filename for warning in caught] == [__file__]  # whoever called train
    assert interrupted.with_name("run.safetensors.damaged").read_bytes() == damaged
    read_state(interrupted)  # made again


def test_a_run_that_diverges_does_so_again(tmp_path):
    for _ in range(2):
        network = mlp(0)
        before = weights(network).clone()
        with pytest.raises(TrainingDivergedError, match="of member 0 is not finite .* of task 1"):
            lab.train(
                network,
                stream(0, sizes=(4, 40)),
                rt.SGD(1e20, 4, reduction="sum"),
                checkpoint=tmp_path / "run",
            )
        assert torch.equal(weights(network), before)
    assert read_state(tmp_path / "run")[0]["state"]["seen"] == 4


def test_a_method_must_say_what_it_keeps(tmp_path):
    class Counting(lab.ER):
        def on_batch_end(self, run, batch):
            super().on_batch_end(run, batch)

    class Nothing(Counting):
        def state_dict(self, run):
            return super().state_dict(run)

    class Odd(SavedWeariness):
        def state_dict(self, run):
            return {"numbers": np.arange(3)}

    path = tmp_path / "run"
    for method, hooks in (
        (Weariness(), {"on_start", "on_batch_end"}),
        (Counting(3), {"on_batch_end"}),
    ):
        with pytest.raises(InvalidInputError) as caught:
            train(lambda method=method: (method, []), path)
        named = str(caught.value).split(" and no state_dict of its own")[0].split(" has ")[1]
        assert set(named.split(", ")) == hooks
    message = "state_dict of Odd gives 'numbers' as ndarray; expected a tensor, or a value"
    with pytest.raises(InvalidTypeError, match=message):
        train(lambda: (Odd(), []), path)
    assert not path.exists()
    train(lambda: (Nothing(3), []), path)
