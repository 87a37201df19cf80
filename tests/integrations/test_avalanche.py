"""The adapters of Avalanche against the same thing written as a plain loop."""

# ruff: noqa: E402 - what imports Avalanche comes after the operators that it misses

import io
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from support.corrected_training import Penalty, assert_same, by_hand, sgd
from support.torchvision_operators import declare_missing_operators

declare_missing_operators()
pytest.importorskip("avalanche.training")
pytest.importorskip("avalanche.benchmarks.classic")

import dill
from avalanche.benchmarks import benchmark_from_datasets, nc_benchmark
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.logging import TextLogger
from avalanche.models import IncrementalClassifier, SimpleMLP, as_multitask
from avalanche.training.plugins import (
    EvaluationPlugin,
    EWCPlugin,
    GDumbPlugin,
    LRSchedulerPlugin,
    LwFPlugin,
    ReplayPlugin,
)
from avalanche.training.supervised import Naive

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.integrations.avalanche import (
    SquaredError,
    TangentStrategy,
    TargetCorrectionPlugin,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning"),
    # what Avalanche says of itself
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:You are using plugins that are not compatible"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CLASSES, INPUTS = 4, 5


class Labeled(TensorDataset):
    """What nc_benchmark takes: samples, and `targets` beside them."""

    def __init__(self, X, y):
        super().__init__(X, y)
        self.targets = y.tolist()


def samples(seed, each):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(CLASSES).repeat_interleave(each)  # class by class, as nc_benchmark has them
    X = torch.randn(len(y), INPUTS, generator=generator, dtype=torch.float64)
    return X + 2 * torch.eye(CLASSES, INPUTS, dtype=torch.float64)[y], y


def joined(parts):
    return [torch.cat(part) for part in zip(*parts, strict=True)]


TRAIN, TEST = samples(0, 13), samples(1, 5)
HOT = functional.one_hot(TRAIN[1], CLASSES).double()
STREAMS = list(zip(TRAIN[0].split(26), HOT.split(26), strict=True))
INPUT = samples(2, 18)[0]
REAL = torch.stack([INPUT[:, 0].sin(), INPUT[:, 1] * INPUT[:, 2]], 1)
REAL_STREAMS = list(zip(INPUT.split(12), REAL.split(12), strict=True))


@pytest.fixture(scope="module")
def classes():
    """Four classes, two at a time."""
    return nc_benchmark(Labeled(*TRAIN), Labeled(*TEST), 2, task_labels=False, shuffle=False)


@pytest.fixture(scope="module")
def regression():
    """Two targets, in three experiences of 12 samples without any label, and three for tests."""
    parts = [AvalancheDataset([TensorDataset(*part)]) for part in REAL_STREAMS]
    return benchmark_from_datasets(train=parts[:3], test=parts[3:])


def network(outputs=CLASSES, hidden=16):
    torch.manual_seed(3)
    layers = nn.Linear(INPUTS, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    return nn.Sequential(*layers).double()


class Recorder(SupervisedPlugin):
    """Notes what the strategy trains on, and what it predicted then."""

    def __init__(self):
        super().__init__()
        self.inputs, self.right = [], []

    def before_forward(self, strategy, **kwargs):
        self.inputs.append(strategy.mb_x.clone())

    def before_backward(self, strategy, **kwargs):
        if strategy.mb_y.ndim == 1:
            self.right.append((strategy.mb_output.argmax(1) == strategy.mb_y).double())


def evaluator(*metrics, loggers=()):
    return EvaluationPlugin(*metrics, loggers=list(loggers))


def naive(model, plugins, *, kind=Naive, lr=0.05, batch=4, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    plain = {"optimizer": optimizer, "criterion": SquaredError(), "evaluator": evaluator()}
    options = plain | {"train_mb_size": batch, "eval_mb_size": 7, "plugins": plugins} | options
    return kind(model=model, **options)


def corrector(model, learner, **options):
    options = {"gamma": 3.0, "block_size": 2 * learner.batch_size, "ridge": 0.5} | options
    return rt.NetworkCorrector(model, learner, **options)


def closed_loop(model, learner, **options):
    options = {
        "gamma": 3.0,
        "features": 64,
        "replay": 0,
        "block_size": 2 * learner.batch_size,
    } | options
    return rt.ClosedLoopCorrector(model, learner, **options)


SGD4 = rt.SGD(0.05, batch_size=4, reduction="mean")


def assert_like_by_hand(model, streams=STREAMS, make=corrector, learner=SGD4, **how):
    """The model's weights are those of the plain loop, and have moved."""
    outputs = model[-1].out_features
    twin = network(outputs)
    by_hand(twin, make(twin, learner), streams, **how)
    assert_same(model, twin, start=network(outputs))
    return twin


def train_all(strategy, benchmark, **options):
    for experience in benchmark.train_stream:
        strategy.train(experience, shuffle=False, **options)


SHORT = rt.SGD(
    0.02, batch_size=3, momentum=0.5, weight_decay=0.1, reduction="sum"
)  # 26 samples: a last one of 2
CE = partial(corrector, loss="cross-entropy")
# The learner, what makes the corrector, options of the strategy.
LIKE_BY_HAND = {
    "evaluated in between": (SGD4, corrector, {"eval_every": 2, "peval_mode": "iteration"}),
    "ready": (SHORT, corrector, {}),
    "single samples": (rt.SGD(0.02, momentum=0.3, nesterov=True), corrector, {}),
    "closed": (SGD4, closed_loop, {}),
    "replay": (SGD4, partial(closed_loop, replay=9), {}),
    "cross-entropy": (SGD4, CE, {"criterion": nn.CrossEntropyLoss()}),
    "gamma chosen": (SGD4, partial(corrector, gamma="auto", ridge=0.0), {}),
}


@pytest.mark.parametrize("what", LIKE_BY_HAND)
def test_weights_are_those_of_a_plain_loop(classes, what):
    learner, make, others = LIKE_BY_HAND[what]
    model = network()
    given = {"optimizer": sgd(model, learner), "criterion": SquaredError(learner.reduction)}
    plugin = TargetCorrectionPlugin(make(model, learner) if what == "ready" else make)
    strategy = naive(model, [plugin], batch=learner.batch_size, **(given | others))
    train_all(strategy, classes, eval_streams=[classes.test_stream])
    block = 8 if what in ("closed", "replay") else 0
    assert_like_by_hand(model, STREAMS, make, learner, block=block)


@pytest.mark.parametrize(
    ("loading", "epochs"), [({"num_workers": 2}, 1), ({"drop_last": True}, 1), ({}, 2)]
)
def test_shuffled_experiences_in_every_epoch(classes, loading, epochs):
    make = partial(corrector, refresh="epoch")
    recorder, streams, n = Recorder(), [], 24 if "drop_last" in loading else 26
    plugins = [recorder, TargetCorrectionPlugin(make)]
    strategy = naive(network(), plugins, train_epochs=epochs)
    for experience, (X, Y) in zip(classes.train_stream, STREAMS, strict=True):
        recorder.inputs.clear()
        strategy.train(experience, **loading)
        seen = torch.cat(recorder.inputs)
        order = torch.cdist(seen[:n], X).argmin(1)
        assert len(set(order.tolist())) == n
        assert order.tolist() != sorted(order.tolist())
        assert torch.equal(seen, seen[:n].repeat(epochs, 1))
        streams.append((seen[:n], Y[order]))
    assert_like_by_hand(strategy.model, streams, make, epochs=epochs)


@pytest.mark.parametrize("make", [corrector, closed_loop])
def test_real_targets_without_any_label(regression, make):
    metrics = evaluator(loss_metrics(epoch=True, experience=True, stream=True))
    strategy = naive(network(2), [TargetCorrectionPlugin(make)], evaluator=metrics)
    train_all(strategy, regression)
    block = 8 if make is closed_loop else 0
    twin = assert_like_by_hand(strategy.model, REAL_STREAMS[:3], make, block=block)
    found = strategy.eval(regression.test_stream)
    X, Y = joined(REAL_STREAMS[3:])
    with torch.no_grad():
        errors = (twin(X) - Y).square().sum(1).numpy() / 2
    assert found["Loss_Stream/eval_phase/test_stream"] == pytest.approx(errors.mean(), rel=1e-9)
    last = errors[-12:].mean()
    assert found["Loss_Exp/eval_phase/test_stream/Exp002"] == pytest.approx(last, rel=1e-9)
    assert "Loss_Epoch/train_phase/train_stream" in found


def test_what_metrics_and_loggers_see(classes):
    text, recorder, model = io.StringIO(), Recorder(), nn.Sequential(nn.Dropout(0.2), *network())
    plugin = TargetCorrectionPlugin(corrector)
    watched = evaluator(accuracy_metrics(epoch=True), loggers=[TextLogger(text)])
    strategy = naive(model, [plugin, recorder], evaluator=watched)
    found = strategy.train(classes.train_stream[0], shuffle=False)
    X, Y = STREAMS[0]
    Z = corrector(network(), SGD4).correct(X, Y)
    where = "train_phase/train_stream/Task000/Exp000"
    shift = (Z - Y).square().mean().sqrt().item()
    assert found[f"TargetShift/{where}"] == pytest.approx(shift, rel=1e-9)
    assert found[f"LargestTarget/{where}"] == pytest.approx(Z.abs().max().item(), rel=1e-9)
    assert f"LinearizationError/{where}" not in found
    accuracy = torch.cat(recorder.right).mean().item()
    assert found["Top1_Acc_Epoch/train_phase/train_stream/Task000"] == pytest.approx(accuracy)
    assert "TargetShift/" in text.getvalue()
    found = strategy.train(classes.train_stream[1], shuffle=False)
    off = found["LinearizationError/train_phase/train_stream/Task000/Exp001"]
    assert off == plugin.corrector.linearization_error > 0
    assert model.training


def test_loggers_see_what_was_tried(classes):
    text = io.StringIO()
    plugin = TargetCorrectionPlugin(rt.NetworkCorrector)
    watched = evaluator(accuracy_metrics(epoch=True), loggers=[TextLogger(text)])
    strategy = naive(network(), [plugin], evaluator=watched)
    found = strategy.train(classes.train_stream[0], shuffle=False)
    where = "train_phase/train_stream/Task000/Exp000"
    plain, *others = plugin.corrector.trials
    assert found[f"Corrected/{where}"] == (not plain.chosen)
    assert found[f"LossOnTrueTargets/{where}"] == plain.error
    least = min(trial.error for trial in others)
    assert found[f"LossOnCorrectedTargets/{where}"] == least
    assert "LossOnTrueTargets/" in text.getvalue()


@pytest.mark.parametrize("make", [corrector, closed_loop])
def test_pickled_strategies_go_on(classes, make):
    # Avalanche's save_checkpoint pickles the whole strategy in this way. It is not called here, as
    # dill cannot pickle an optimizer of this version of torch, with or without our plugin.
    plugin = TargetCorrectionPlugin(make)
    one = naive(network(), [plugin])
    one.train(classes.train_stream[0], shuffle=False)
    model, plugin = dill.loads(dill.dumps((one.model, plugin)))
    for each in (one, other := naive(model, [plugin])):
        each.train(classes.train_stream[1], shuffle=False)
    assert_same(one.model, other.model, tolerance=0)


class Deaf(Naive):
    """A strategy with a loop of its own, which calls few hooks."""

    def training_epoch(self, **kwargs):
        for batch in self.dataloader:
            self.mbatch = batch
            self._unpack_minibatch()
            self._after_training_iteration(**kwargs)


def other_learner(**changes):
    return lambda model, learner: corrector(model, replace(learner, **changes))


slow, large, summed = (
    other_learner(**each) for each in ({"lr": 0.04}, {"batch_size": 8}, {"reduction": "sum"})
)
only_last = partial(corrector, params="2")
ready = corrector(network(), SGD4)  # for a network of its own
ENTROPY = {"criterion": nn.CrossEntropyLoss()}
# The corrector, the strategy's options or what makes them from the model, and what is said.
REFUSED = {
    # by the checks that all adapters share
    "corrector": (3, {}, "corrector is 3; expected a function"),
    "made": (lambda model, learner: {}, {}, "corrector made a dict"),
    "parameters": (only_last, {}, "optimizer trains 0.weight, and the corrector assumes the"),
    "closed loop twice": (closed_loop, {"train_epochs": 2}, "2 epochs, but in the closed loop"),
    # by Avalanche's own
    "mean squared error": (corrector, {"criterion": nn.MSELoss()}, "neither half"),
    "another rate": (slow, {}, "optimizer is SGD.lr=0.05,.*learner is SGD.lr=0.04,"),
    "another batch": (large, {}, "batch_size=8 and .*, but the strategy has train_mb_size=4 and"),
    "another reduction": (summed, {}, "reduction='sum', but .* is the mean over a mini-batch"),
    "another loss": (corrector, ENTROPY, "loss is 'squared'.*criterion is 'cross-entropy'"),
    "another network": (ready, {}, "the corrector is of another network"),
    "no mini-batch": (corrector, {"batch": 30}, "no mini-batch of 30 from the 26 samples"),
    "another loop": (corrector, {"kind": Deaf}, "Deaf did not call after_forward"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_corrector_does_not_describe_is_refused(classes, what):
    make, options, message = REFUSED[what]
    model = network()
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        train_all(naive(model, [TargetCorrectionPlugin(make)], **options), classes, drop_last=True)
    assert_same(model, network(), tolerance=0)


def plugged(model, *plugins):
    return naive(model, [*plugins, TargetCorrectionPlugin(corrector)])


class Anchor(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.penalty = Penalty(1.0)

    def before_backward(self, strategy, **kwargs):
        strategy.loss += self.penalty(strategy.model)


PENALTIES = {  # in the first experience in which they are not 0, and the step
    "L2-SP": (Anchor, 0, "at step 1 of the task the gradients differ by"),
    "EWC": (partial(EWCPlugin, 50.0), 1, "at step [124] of the task the gradients differ by"),
    "LwF": (partial(LwFPlugin, 1.0), 1, "at step 1 of the task the gradients differ by"),
}


@pytest.mark.parametrize("what", PENALTIES)
def test_penalties_of_other_plugins_are_found(classes, what):
    make, number, message = PENALTIES[what]
    strategy = plugged(network(), make())
    for experience in classes.train_stream[:number]:
        strategy.train(experience, shuffle=False)
    with pytest.raises(InvalidInputError, match=message):
        strategy.train(classes.train_stream[number], shuffle=False)


def test_adam_and_a_schedule_as_advised(classes):
    make = partial(corrector, gamma=1e3, ridge=1e3)
    model, twin = network(), network()
    adam, same = (torch.optim.Adam(each.parameters(), 0.001) for each in (model, twin))
    train_all(naive(model, [TargetCorrectionPlugin(make)], optimizer=adam), classes)
    learner = replace(SGD4, lr=0.001)
    by_hand(
        twin, make(twin, learner, preconditioner=same), STREAMS, optimizer=same, first_true=True
    )
    assert_same(model, twin, start=network())

    def scheduled(model, make):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        kept = {"reset_scheduler": False, "reset_lr": False, "step_granularity": "iteration"}
        plugins = [TargetCorrectionPlugin(make), LRSchedulerPlugin(schedule, **kept)]
        train_all(naive(model, plugins, optimizer=optimizer), classes, drop_last=True)

    with pytest.raises(InvalidInputError, match=r"one rate; .*SGD\(lr=\["):
        scheduled(network(), corrector)
    rates, twin = [0.05 * 0.9**step for step in range(12)], network()
    scheduled(model := network(), other_learner(lr=rates))
    same = corrector(twin, replace(SGD4, lr=rates))

    def streams():
        for (X, Y), stop in zip(STREAMS, (6, 12), strict=True):
            same.learner = replace(SGD4, lr=rates[:stop])
            yield X[:24], Y[:24]

    by_hand(twin, same, streams())
    assert_same(model, twin, start=network())


def test_growing_outputs_and_gdumb_are_refused(classes):
    growing = nn.Sequential(network(7), IncrementalClassifier(7).double()).double()
    with pytest.raises(InvalidInputError, match="has IncrementalClassifier"):
        plugged(growing).train(classes.train_stream[0])
    with pytest.raises(InvalidInputError, match="GDumbPlugin"):
        plugged(network(), GDumbPlugin(8)).train(classes.train_stream[0])


def test_everything_that_is_wrong_is_said_at_once(classes):
    """Of the network, the criterion and the optimizer; then of what a corrector describes."""
    adagrad = torch.optim.Adagrad(network().parameters())
    first = naive(network(), [], criterion=nn.MSELoss(), optimizer=adagrad)
    growing = nn.Sequential(network(7), IncrementalClassifier(7).double()).double()
    second = naive(growing, [GDumbPlugin(8)], kind=Naive, lr=0.05)
    last = partial(corrector, params="2")
    third = naive(network(), [], criterion=nn.CrossEntropyLoss(), lr=0.07)
    for strategy, make, reasons in (
        (first, corrector, ["neither half the squared error", "is Adagrad; expected torch's SGD"]),
        (second, slow, ["whose outputs grow", "GDumbPlugin", "learner is SGD.lr=0.04,"]),
        (third, last, ["optimizer trains 0.weight", "criterion is 'cross-entropy'"]),
    ):
        strategy.plugins.append(TargetCorrectionPlugin(make))
        with pytest.raises(InvalidInputError, match=f"^{len(reasons)} things") as caught:
            strategy.train(classes.train_stream[0])
        for reason in reasons:
            assert re.search(reason, str(caught.value))


def test_torchvision_is_left_alone(tmp_path):
    """In torchvision 0.29 the import works, and loading its library by hand aborts the process."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("works = True")
    (tmp_path / "torchvision" / "_C.so").write_text("not a library")
    code = (
        "from support import torchvision_operators as operators, corrected_training\n"
        "operators.declare_missing_operators()\n"
        "import torchvision\n"
        "assert torchvision.works and not operators._DECLARED"
    )
    paths = f"{tmp_path}:{Path(__file__).parents[1]}"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": paths})


def tangents(model, views=None):
    """A learner whose ridge is given: one that is chosen from 26 samples may be tiny."""
    return rt.TangentLearner(model, 0.01, 64, views=views)


def tangent(model, *plugins, **options):
    options = {
        "make_learner": tangents,
        "train_mb_size": 4,
        "eval_mb_size": 7,
        "evaluator": evaluator(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
    } | options
    return TangentStrategy(model=model, plugins=[*plugins], **options)


BIG, FEW = {"mem_size": 8}, {"mem_size": 8, "batch_size": 2, "batch_size_mem": 2}


@pytest.mark.parametrize(
    ("make", "replay", "message"),
    [
        (plugged, BIG, "gave a mini-batch of 8"),
        (plugged, FEW, "more than the 26 samples of the experience"),
        (tangent, BIG, "more than the 26 samples of the experience"),
    ],
)
def test_samples_that_another_plugin_adds_are_refused(classes, make, replay, message):
    strategy = make(network(), ReplayPlugin(**replay))
    strategy.train(classes.train_stream[0])
    with pytest.raises(InvalidInputError, match=message):
        strategy.train(classes.train_stream[1])
    assert make is plugged or strategy.learner.samples == 26


@pytest.mark.parametrize("strategy", [plugged, tangent])
def test_one_process_full_precision_and_no_task_labels(classes, strategy, tmp_path):
    experience = classes.train_stream[0]
    half = torch.autocast("cpu", torch.bfloat16)
    with half, pytest.raises(InvalidInputError, match="autocast is on"):
        strategy(network()).train(experience)
    mlp = SimpleMLP(num_classes=CLASSES, input_size=INPUTS, hidden_size=8)
    with pytest.raises(InvalidInputError, match="which takes task labels"):
        strategy(as_multitask(mlp, "classifier").double()).train(experience)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(InvalidInputError, match="training is distributed"):
            strategy(network()).train(experience)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("first_epochs", [0, 2])
def test_tangent_is_a_session_and_a_learner(classes, first_epochs):
    model, twin = network(), network()
    watched = evaluator(accuracy_metrics(stream=True, epoch=True), loss_metrics(stream=True))
    strategy = tangent(model, first_epochs=first_epochs, evaluator=watched)
    mine = torch.optim.SGD(twin.parameters(), lr=0.05)
    X, Y = STREAMS[0]
    for x, y in [*zip(X.split(4), Y.split(4), strict=True)] * first_epochs:
        mine.zero_grad()
        SquaredError()(twin(x), y).backward()
        mine.step()
    by_hand = tangents(twin)
    test, labels = TEST
    for number, (experience, (X, Y)) in enumerate(zip(classes.train_stream, STREAMS, strict=True)):
        before = by_hand.predict(X) if number else twin(X)
        found = strategy.train(experience, shuffle=False)
        accuracy = (before.argmax(1) == Y.argmax(1)).double().mean().item()
        assert found["Top1_Acc_Epoch/train_phase/train_stream/Task000"] == pytest.approx(accuracy)
        by_hand.learn(X, Y)
        found = strategy.eval(classes.test_stream)
        predicted = by_hand.predict(test)
        assert (strategy.learner.predict(test) - predicted).abs().max() < 1e-10
        accuracy = (predicted.argmax(1) == labels).double().mean().item()
        stream = "eval_phase/test_stream/Task000"
        assert found[f"Top1_Acc_Stream/{stream}"] == pytest.approx(accuracy, abs=1e-12)
        loss = SquaredError()(predicted, labels).item()
        assert found[f"Loss_Stream/{stream}"] == pytest.approx(loss, rel=1e-6)
    assert_same(model, twin)
    assert strategy.learner.samples == 52


@pytest.mark.parametrize("views", [None, [None, torch.fliplr]])
def test_tangent_learns_real_targets_in_any_order(regression, views):
    found, make_learner = [], partial(tangents, views=views)
    options = {"first_epochs": 0, "optimizer": None, "make_learner": make_learner}
    for experiences in (regression.train_stream, regression.train_stream[::-1]):
        watched = evaluator(loss_metrics(stream=True))
        strategy = tangent(network(2), evaluator=watched, **options)
        for experience in experiences:
            strategy.train(experience)
        found.append(strategy.eval(regression.test_stream)["Loss_Stream/eval_phase/test_stream"])
    by_hand = make_learner(network(2)).learn(*joined(REAL_STREAMS[:3]))
    X, Y = joined(REAL_STREAMS[3:])
    error = (by_hand.predict(X) - Y).square().sum(1).mean().item() / 2
    assert found == pytest.approx([error, error], rel=1e-8)


def test_tangent_on_a_feature_extractor_starts_from_zero(classes):
    options = {"first_epochs": 0, "optimizer": None, "targets": CLASSES}
    strategy = tangent(network(7), evaluator=evaluator(loss_metrics(epoch=True)), **options)
    found = strategy.train(classes.train_stream[0])
    # half of the squared norm of a one-hot row
    assert found["Loss_Epoch/train_phase/train_stream/Task000"] == pytest.approx(0.5)
    strategy.train(classes.train_stream[1])
    by_hand = tangents(network(7)).learn(*joined(STREAMS))
    assert (strategy.learner.predict(TEST[0]) - by_hand.predict(TEST[0])).abs().max() < 1e-9


class Stopper(SupervisedPlugin):
    def after_training_epoch(self, strategy, **kwargs):
        strategy.stop_training()


def test_tangent_after_a_stopped_session(classes):
    strategy = tangent(network(), Stopper(), first_epochs=5)
    strategy.train(classes.train_stream[0])
    assert (strategy.clock.train_iterations, strategy.learner.samples) == (2 * 7, 26)


def test_tangent_says_what_it_needs():
    with pytest.raises(InvalidInputError, match="first_epochs is -1"):
        tangent(network(), first_epochs=-1)
    with pytest.raises(InvalidInputError, match="there is no optimizer"):
        tangent(network(), optimizer=None)
