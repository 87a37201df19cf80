"""The lab on a CUDA device: steps that are recorded and replayed are the same steps."""

import copy
import gc

import numpy as np
import pytest
import torch
from torch import nn

from retarget import lab
from retarget.errors import InvalidInputError, TrainingDivergedError
from retarget.lab.methods.ewc import fisher_diagonal
from retarget.state_files import write_state
from support.lab_problems import (
    LEARNERS,
    METHODS,
    conv_net,
    corrected,
    mlp,
    samples,
    stream,
    weights,
)
from support.problems import assert_same

pytest.importorskip("matplotlib", reason="needs the extra [figures]")
from retarget.lab.figures.cifar10 import cifar_net

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

EVERY = METHODS | {
    "corrected": corrected(ridge=1.0),
    "corrected every epoch": corrected(ridge=1.0, refresh="epoch"),
    "DER, corrected": lambda: ([lab.Corrected(3.0, 8, ridge=1.0), lab.DER(5, 3, beta=0.5)], []),
}


@pytest.fixture(autouse=True)
def no_tf32():
    saved = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = saved


def trained(make, device, record, networks, given, learners, **options):
    networks = [copy.deepcopy(network).to(device) for network in networks]
    history = lab.train(
        networks, given, learners, make()[0], epochs=2, reshuffle=True, evaluate_every=104,
        record=record, **options,
    )  # fmt: skip
    return [weights(network).cpu() for network in networks], history


@pytest.mark.parametrize("learner", ["mean", "nesterov and decay"])
@pytest.mark.parametrize("method", EVERY)
@pytest.mark.parametrize("members", [1, 3])
def test_recorded_unrecorded_and_the_cpu_are_one(method, learner, members):
    """Passes of more than 50 steps, which are recorded; the last mini-batch is not full."""
    given = [stream(m, sizes=(220, 222)) for m in range(members)]
    networks = [mlp(m) for m in range(members)]
    setting = (networks, given, LEARNERS[learner])
    cpu, expected = trained(EVERY[method], "cpu", True, *setting)
    for record in (True, False):
        got, history = trained(EVERY[method], "cuda", record, *setting)
        for one, other in zip(got, cpu, strict=True):
            assert_same(one, other, 1e-8)
        np.testing.assert_array_equal(history.samples, expected.samples)
        assert_same(history.loss[1:], expected.loss[1:], 1e-8)
        assert_same(history.task_accuracy, expected.task_accuracy, 0.02)


@pytest.mark.parametrize("method", ["vanilla", "EWC", "DER++"])
def test_conv_nets_in_float32(method):
    given = []
    for m in range(3):
        X, y = samples(np.random.default_rng(m), 230, (2, 4, 4))
        given.append(
            lab.TaskStream.from_tasks([(X[:215].float(), y[:215]), (X[215:].float(), y[215:])])
        )
    networks = [conv_net(m).float() for m in range(3)]
    setting = (networks, given, LEARNERS["mean"])
    cpu, _ = trained(EVERY[method], "cpu", True, *setting)
    for record in (True, False):
        got, _ = trained(EVERY[method], "cuda", record, *setting)
        for one, other in zip(got, cpu, strict=True):
            assert_same(one, other, 2e-3)


def test_the_fisher_information_of_the_papers_network():
    network = cifar_net(2, 0)
    X, Y = torch.randn(20, 3, 32, 32), torch.eye(2)[torch.arange(20) % 2]
    expected = fisher_diagonal(network, X, Y)
    got = fisher_diagonal(network.cuda(), X.cuda(), Y.cuda())
    for name, values in expected.items():
        assert_same(got[name].cpu(), values, 1e-4 * float(values.max()))


@pytest.mark.parametrize("record", [True, False])
def test_the_first_bad_step_is_named(record):
    given, networks = stream(0, sizes=(1300,)), [mlp(m) for m in range(2)]

    class Late(lab.Method):
        capturable = True

        def targets(self, run, batch):
            late = (batch.step == 260).to(batch.targets.dtype)
            harm = torch.stack([late * 0, late])[:, :, None]
            return batch.targets / (1 - harm)

    for network in networks:
        network.cuda()
    with pytest.raises(TrainingDivergedError, match="at step 260 of epoch 0") as caught:
        lab.train(networks, given, LEARNERS["mean"], Late(), record=record)
    assert caught.value.members == (1,)


class Abandoned:
    """A recorded step that only the garbage collector finds."""

    def __init__(self):
        self.graph, self.itself = torch.cuda.CUDAGraph(), self
        with torch.cuda.graph(self.graph):
            torch.zeros(3, device="cuda").add_(1)


class Littering(lab.Method):
    """Leaves recorded steps behind while one is being recorded, and the collector comes by."""

    capturable = True

    def __init__(self, litter):
        self.litter, self.recordings = litter, 0

    def targets(self, run, batch):
        if torch.cuda.is_current_stream_capturing():
            self.recordings += 1
            self.litter.clear()
            if gc.isenabled():
                gc.collect()
        return batch.targets


def test_old_graphs_do_not_spoil_a_recording():
    given = stream(0, sizes=(220, 222))
    method = Littering([])
    for litter in (0, 5):  # at first the libraries set themselves up
        method.litter.extend(Abandoned() for _ in range(litter))
        trained(lambda: ([method], []), "cuda", True, [mlp(0)], given, LEARNERS["mean"])
        assert gc.isenabled()
    assert method.recordings == 8  # two tasks of two epochs, twice


def test_methods_that_read_values_are_not_recorded():
    seen = []

    class Looking(lab.Method):
        def on_batch_end(self, run, batch):
            seen.append(int(batch.step))

    lab.train(mlp(0).cuda(), stream(0, sizes=(240,)), LEARNERS["mean"], Looking())
    assert seen == list(range(60))


@pytest.mark.parametrize("method", EVERY)
def test_an_interrupted_run_goes_on(method, tmp_path, monkeypatch):
    """Interrupted after every checkpoint; passes are recorded."""
    given = [stream(m, sizes=(220, 222)) for m in range(2)]
    setting = ("cuda", True, [mlp(m) for m in range(2)], given, LEARNERS["momentum"])
    expected, history = trained(EVERY[method], *setting)

    def write_and_stop(path, values, tensors):
        write_state(path, values, tensors)
        raise KeyboardInterrupt

    monkeypatch.setattr("retarget.lab.checkpoint.write_state", write_and_stop)
    interruptions, result = 0, None
    while result is None:
        try:
            result = trained(EVERY[method], *setting, checkpoint=tmp_path / "run")
        except KeyboardInterrupt:
            interruptions += 1
    got, again = result
    assert interruptions >= 1 + 2 * 3
    for one, other in zip(got, expected, strict=True):
        assert_same(one, other, 1e-10)
    np.testing.assert_array_equal(again.samples, history.samples)
    assert_same(again.loss[1:], history.loss[1:], 1e-10)


def test_random_numbers_on_the_device_go_on(tmp_path, monkeypatch):
    def train(checkpoint):
        torch.manual_seed(0)
        layers = nn.Linear(5, 9), nn.Dropout(0.4), nn.ReLU(), nn.Linear(9, 3)
        network = nn.Sequential(*layers).double().cuda()
        given = stream(0, sizes=(100, 60))
        lab.train(network, given, LEARNERS["mean"], epochs=2, checkpoint=checkpoint)
        return weights(network).cpu()

    expected, passes = train(None), lab.Run.pass_over

    def stop(run, *arguments):
        if run.task == 1:
            raise KeyboardInterrupt
        return passes(run, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("retarget.lab.training.Run.pass_over", stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run")
    assert_same(train(tmp_path / "run"), expected, 1e-10)


def test_a_checkpoint_from_the_other_device(tmp_path):
    lab.train(mlp(0).cuda(), stream(0), LEARNERS["mean"], checkpoint=tmp_path / "run")
    with pytest.raises(InvalidInputError, match='device \\("cuda" then, "cpu" now\\)'):
        lab.train(mlp(0), stream(0), LEARNERS["mean"], checkpoint=tmp_path / "run")
