"""The adapters of Avalanche against the same thing written as a plain loop."""

# ruff: noqa: E402 - what imports Avalanche comes after the operators that it misses

import functools
import io

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

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
from avalanche.training.plugins import EvaluationPlugin, LRSchedulerPlugin, ReplayPlugin
from avalanche.training.supervised import Cumulative, Naive

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.integrations.avalanche import (
    SquaredError,
    Tangent,
    TargetCorrectionPlugin,
    mse_metrics,
)

pytestmark = [
    # what Avalanche says of itself
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:You are using plugins that are not compatible"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CLASSES, INPUTS, EACH = 4, 5, 13  # samples of a class in the training stream


class Labelled(torch.utils.data.Dataset):
    """What nc_benchmark takes: samples, and `targets` beside them."""

    def __init__(self, X, y):
        self.X, self.targets = X, y.tolist()

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], self.targets[i]


def samples(seed, each):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(CLASSES).repeat(each)
    X = torch.randn(len(y), INPUTS, generator=generator, dtype=torch.float64)
    return X + 2 * torch.eye(CLASSES, INPUTS, dtype=torch.float64)[y], y


@pytest.fixture(scope="module")
def classes():
    """Four classes, two at a time."""
    train, test = samples(0, EACH), samples(1, 5)
    return nc_benchmark(Labelled(*train), Labelled(*test), 2, task_labels=False, shuffle=False)


@pytest.fixture(scope="module")
def regression():
    """Two targets, in three experiences of 12 samples without any label."""
    X, _ = samples(2, 18)
    Y = torch.stack([X[:, 0].sin(), X[:, 1] * X[:, 2]], 1)
    pairs = zip(X.split(12), Y.split(12), strict=True)
    parts = [AvalancheDataset([TensorDataset(x, y)]) for x, y in pairs]
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


def naive(model, plugins, *, lr=0.05, batch=4, criterion=None, optimizer=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr) if optimizer is None else optimizer
    options = {"evaluator": evaluator(), "eval_mb_size": 7} | options
    return Naive(
        model=model,
        optimizer=optimizer,
        criterion=SquaredError() if criterion is None else criterion,
        train_mb_size=batch,
        plugins=list(plugins),
        **options,
    )


def corrector(model, learner, **options):
    options = {"gamma": 3.0, "block_size": 2 * learner.batch_size, "ridge": 0.5} | options
    return rt.NetworkCorrector(model, learner, **options)


def whole(experience, outputs=CLASSES):
    """All samples of an experience, in its order, and their true targets."""
    rows = [experience.dataset[i] for i in range(len(experience.dataset))]
    X, y = torch.stack([row[0] for row in rows]), torch.as_tensor([0])
    if isinstance(rows[0][1], torch.Tensor):
        return X, torch.stack([row[1] for row in rows])
    y = torch.tensor([row[1] for row in rows])
    return X, functional.one_hot(y, outputs).double()


def half_squares(f, z):
    return (f - z).square().sum(1).mean() / 2


def pass_over(model, optimizer, X, Z, batch, loss=half_squares):
    for x, z in zip(X.split(batch), Z.split(batch), strict=True):
        optimizer.zero_grad()
        loss(model(x), z).backward()
        optimizer.step()


def same_weights(one, other, tolerance=1e-10):
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert (a - b).abs().max() < tolerance, name


@pytest.mark.parametrize("given", ["corrector", "factory"])
@pytest.mark.parametrize(
    ("batch", "options", "reduction"),
    [
        (4, {}, "mean"),
        (3, {"momentum": 0.5, "weight_decay": 0.1}, "sum"),  # 26 samples: a last one of 2
        (1, {"momentum": 0.3, "nesterov": True}, "sum"),
    ],
)
def test_weights_are_those_of_a_plain_loop_on_corrected_targets(
    classes, given, batch, options, reduction
):
    model, twin = network(), network()
    learner = rt.SGD(0.02, batch_size=batch, reduction=reduction, **options)
    plugin = TargetCorrectionPlugin(
        corrector(model, learner) if given == "corrector" else corrector
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, **options)
    criterion = SquaredError(reduction)
    strategy = naive(model, [plugin], batch=batch, criterion=criterion, optimizer=optimizer)
    mine = torch.optim.SGD(twin.parameters(), lr=0.02, **options)
    by_hand = corrector(twin, learner)

    def loss(f, z):
        each = (f - z).square().sum(1) / 2
        return each.mean() if reduction == "mean" else each.sum()

    for experience in classes.train_stream:
        strategy.train(experience, shuffle=False)
        X, Y = whole(experience)
        pass_over(twin, mine, X, by_hand.correct(X, Y), batch, loss)
    same_weights(model, twin)
    start = network()
    assert (model[0].weight - start[0].weight).abs().max() > 1e-3


@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}, {"drop_last": True}])
def test_a_shuffled_experience_is_corrected_in_the_order_that_was_drawn(classes, loader):
    model, twin, recorder = network(), network(), Recorder()
    strategy = naive(model, [recorder, TargetCorrectionPlugin(corrector)])
    learner = rt.SGD(0.05, batch_size=4, reduction="mean")
    by_hand, mine = corrector(twin, learner), torch.optim.SGD(twin.parameters(), lr=0.05)
    for experience in classes.train_stream:
        recorder.inputs.clear()
        strategy.train(experience, **loader)
        seen, (X, Y) = torch.cat(recorder.inputs), whole(experience)
        order = torch.cdist(seen, X).argmin(1)
        n = 24 if loader.get("drop_last") else 26
        assert len(seen) == len(set(order.tolist())) == n
        assert order.tolist() != sorted(order.tolist())
        pass_over(twin, mine, seen, by_hand.correct(seen, Y[order]), 4)
    same_weights(model, twin)


def test_another_epoch_has_the_same_mini_batches_and_is_corrected_again(classes):
    model, twin, recorder = network(), network(), Recorder()
    anew = functools.partial(corrector, refresh="epoch")
    strategy = naive(model, [recorder, TargetCorrectionPlugin(anew)], train_epochs=2)
    learner = rt.SGD(0.05, batch_size=4, reduction="mean")
    by_hand, mine = anew(twin, learner), torch.optim.SGD(twin.parameters(), lr=0.05)
    for experience in classes.train_stream:
        recorder.inputs.clear()
        strategy.train(experience)
        seen, (X, Y) = torch.cat(recorder.inputs), whole(experience)
        assert torch.equal(seen[:26], seen[26:])
        Y = Y[torch.cdist(seen[:26], X).argmin(1)]
        pass_over(twin, mine, seen[:26], by_hand.correct(seen[:26], Y), 4)
        pass_over(twin, mine, seen[:26], by_hand.recorrect(), 4)
    same_weights(model, twin)


@pytest.mark.parametrize("replay", [0, 9])
def test_the_closed_loop_is_corrected_block_by_block(classes, replay):
    model, twin = network(), network()
    closed = functools.partial(corrector, ridge=0.0, memory=64, replay=replay)
    strategy = naive(model, [TargetCorrectionPlugin(closed)])
    learner = rt.SGD(0.05, batch_size=4, reduction="mean")
    by_hand, mine = closed(twin, learner), torch.optim.SGD(twin.parameters(), lr=0.05)
    for experience in classes.train_stream:
        strategy.train(experience, shuffle=False)
        X, Y = whole(experience)
        for x, y in zip(X.split(8), Y.split(8), strict=True):
            pass_over(twin, mine, *by_hand.next_block(x, y), 4)
    same_weights(model, twin)


def test_cross_entropy_where_the_corrector_has_it(classes):
    model, twin = network(), network()
    entropy = functools.partial(corrector, loss="cross-entropy")
    strategy = naive(model, [TargetCorrectionPlugin(entropy)], criterion=nn.CrossEntropyLoss())
    learner = rt.SGD(0.05, batch_size=4, reduction="mean")
    by_hand, mine = entropy(twin, learner), torch.optim.SGD(twin.parameters(), lr=0.05)
    for experience in classes.train_stream:
        strategy.train(experience, shuffle=False)
        X, Y = whole(experience)
        pass_over(twin, mine, X, by_hand.correct(X, Y), 4, functional.cross_entropy)
    same_weights(model, twin)


@pytest.mark.parametrize("memory", [None, 64])
def test_real_targets_without_any_label(regression, memory):
    model, twin = network(2), network(2)
    options = {"memory": memory, "ridge": 0.5 if memory is None else 0.0}
    strategy = naive(
        model,
        [TargetCorrectionPlugin(functools.partial(corrector, **options))],
        evaluator=evaluator(mse_metrics(epoch=True, experience=True, stream=True)),
    )
    learner = rt.SGD(0.05, batch_size=4, reduction="mean")
    by_hand, mine = corrector(twin, learner, **options), torch.optim.SGD(twin.parameters(), lr=0.05)
    for experience in regression.train_stream:
        strategy.train(experience, shuffle=False)
        X, Y = whole(experience)
        for x, y in [(X, Y)] if memory is None else zip(X.split(8), Y.split(8), strict=True):
            pass_over(twin, mine, x, by_hand.correct(x, y), 4)
    same_weights(model, twin)
    found = strategy.eval(regression.test_stream)
    X, Y = (torch.cat(parts) for parts in zip(*map(whole, regression.test_stream), strict=True))
    with torch.no_grad():
        errors = (twin(X) - Y).square().mean(1).numpy()
    assert found["MSE_Stream/eval_phase/test_stream"] == pytest.approx(errors.mean(), rel=1e-9)
    last = errors[-12:].mean()
    assert found["MSE_Exp/eval_phase/test_stream/Exp002"] == pytest.approx(last, rel=1e-9)
    assert "MSE_Epoch/train_phase/train_stream" in found


def test_metrics_see_labels_and_loggers_see_the_shift(classes):
    text, model, recorder = io.StringIO(), network(), Recorder()
    plugin = TargetCorrectionPlugin(corrector)
    watched = evaluator(accuracy_metrics(epoch=True), loggers=[TextLogger(text)])
    strategy = naive(model, [plugin, recorder], evaluator=watched)
    by_hand = corrector(network(), rt.SGD(0.05, batch_size=4, reduction="mean"))
    found = strategy.train(classes.train_stream[0], shuffle=False)
    X, Y = whole(classes.train_stream[0])
    Z = by_hand.correct(X, Y)
    where = "train_phase/train_stream/Task000/Exp000"
    shift = (Z - Y).square().mean().sqrt().item()
    assert found[f"TargetShift/{where}"] == pytest.approx(shift, rel=1e-9)
    assert found[f"LargestTarget/{where}"] == pytest.approx(Z.abs().max().item(), rel=1e-9)
    assert f"LinearisationError/{where}" not in found
    accuracy = torch.cat(recorder.right).mean().item()
    assert found["Top1_Acc_Epoch/train_phase/train_stream/Task000"] == pytest.approx(accuracy)
    assert "TargetShift/" in text.getvalue()
    found = strategy.train(classes.train_stream[1], shuffle=False)
    off = found["LinearisationError/train_phase/train_stream/Task000/Exp001"]
    assert off == plugin.corrector.linearisation_error > 0


def test_evaluation_in_between_changes_nothing(classes):
    models = network(), network()
    for model, every in zip(models, (-1, 2), strict=True):
        options = {"eval_every": every, "peval_mode": "iteration"}
        strategy = naive(model, [TargetCorrectionPlugin(corrector)], **options)
        streams = [classes.test_stream]
        for experience in classes.train_stream:
            strategy.train(experience, eval_streams=streams, shuffle=False)
    same_weights(*models, tolerance=1e-15)


@pytest.mark.parametrize("kind", ["open", "closed", "tangent"])
def test_what_was_pickled_goes_on_as_if_nothing_had_happened(classes, kind):
    # Avalanche's save_checkpoint pickles the whole strategy in this way. It is not called here, as
    # dill cannot pickle an optimiser of this version of torch, with or without our plugin.
    def strategy(model, plugin=None, learner=None):
        if kind != "tangent":
            return naive(model, [plugin])
        strategy = tangent(model)
        strategy.learner = learner
        return strategy

    closed = {"memory": 64, "ridge": 0.0} if kind == "closed" else {}
    plugin = TargetCorrectionPlugin(functools.partial(corrector, **closed))
    one = strategy(network(), plugin)
    one.train(classes.train_stream[0], shuffle=False)
    kept = one.model, plugin, getattr(one, "learner", None)
    other = strategy(*dill.loads(dill.dumps(kept)))
    for each in (one, other):
        each.train(classes.train_stream[1], shuffle=False)
    same_weights(one.model, other.model, tolerance=1e-15)
    if kind == "tangent":
        X, _ = whole(classes.test_stream[0])
        assert torch.equal(one.learner.predict(X), other.learner.predict(X))


class Deaf(Naive):
    """A strategy with a loop of its own, which calls few hooks."""

    def training_epoch(self, **kwargs):
        for batch in self.dataloader:
            self.mbatch = batch
            self._unpack_minibatch()
            self._after_training_iteration(**kwargs)


SGD4 = rt.SGD(0.05, batch_size=4, reduction="mean")


def scheduled(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return {"optimizer": optimizer, "plugins": [LRSchedulerPlugin(scheduler)]}


def two_rates(model):
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.1}]
    return {"optimizer": torch.optim.SGD(groups, lr=0.05)}


def frozen_in_the_corrector(model, learner):
    return corrector(model, learner, params="2")


@pytest.mark.parametrize(
    ("make", "options", "kind", "message"),
    [
        (corrector, lambda _: {"criterion": nn.MSELoss()}, InvalidInputError, "neither half"),
        (
            corrector,
            lambda model: {"optimizer": torch.optim.Adam(model.parameters())},
            InvalidTypeError,
            "optimizer is a Adam",
        ),
        (corrector, scheduled, InvalidInputError, "a scheduler changes the rate"),
        (corrector, two_rates, InvalidInputError, r"the rates \[0.05, 0.1\]"),
        (
            lambda model, _: corrector(model, SGD4),
            lambda _: {"lr": 0.06},
            InvalidInputError,
            "the corrector's learner is SGD.lr=0.05.*trains as SGD.lr=0.06",
        ),
        (
            lambda model, _: corrector(model, SGD4),
            lambda _: {"batch": 5},
            InvalidInputError,
            "trains as SGD.lr=0.05, batch_size=5",
        ),
        (
            corrector,
            lambda _: {"criterion": nn.CrossEntropyLoss()},
            InvalidInputError,
            "the corrector's loss is 'squared'.*criterion is 'cross-entropy'",
        ),
        (
            lambda _, learner: corrector(network(), learner),
            lambda _: {},
            InvalidInputError,
            "the corrector is of another network",
        ),
        (frozen_in_the_corrector, lambda _: {}, InvalidInputError, "0.bias, 0.weight is trained"),
        (
            functools.partial(corrector, ridge=0.0, memory=32),
            lambda _: {"train_epochs": 2},
            InvalidInputError,
            "train_epochs is 2, but with memory=32",
        ),
    ],
    ids=[
        "mean squared error",
        "Adam",
        "scheduler",
        "two rates",
        "another rate",
        "another batch size",
        "another loss",
        "another network",
        "other parameters",
        "closed loop twice",
    ],
)
def test_what_the_corrector_does_not_describe_is_refused(classes, make, options, kind, message):
    model = network()
    given = options(model)
    plugins = [TargetCorrectionPlugin(make), *given.pop("plugins", [])]
    with pytest.raises(kind, match=message):
        naive(model, plugins, **given).train(classes.train_stream[0], shuffle=False)
    same_weights(model, network(), tolerance=1e-15)


def test_several_rates_are_exact_with_a_preconditioner(classes):
    model, twin = network(), network()
    optimizers = [two_rates(each)["optimizer"] for each in (model, twin)]

    def make(optimizer):
        return lambda module, learner: corrector(module, learner, preconditioner=optimizer)

    strategy = naive(model, [TargetCorrectionPlugin(make(optimizers[0]))], optimizer=optimizers[0])
    by_hand = make(optimizers[1])(twin, SGD4)
    for experience in classes.train_stream:
        strategy.train(experience, shuffle=False)
        X, Y = whole(experience)
        pass_over(twin, optimizers[1], X, by_hand.correct(X, Y), 4)
    same_weights(model, twin)


@pytest.mark.parametrize("first", [True, False])
def test_replay_is_refused_in_whatever_order_the_plugins_are(classes, first):
    plugins = [TargetCorrectionPlugin(corrector), ReplayPlugin(mem_size=8)]
    strategy = naive(network(), plugins if first else plugins[::-1])
    strategy.train(classes.train_stream[0])
    with pytest.raises(InvalidInputError, match="gave a mini-batch of 8"):
        strategy.train(classes.train_stream[1])
    few = [ReplayPlugin(mem_size=8, batch_size=2, batch_size_mem=2), plugins[0]]
    strategy = naive(network(), [few[0], TargetCorrectionPlugin(corrector)])
    strategy.train(classes.train_stream[0])
    with pytest.raises(InvalidInputError, match="more than the 26 samples of the experience"):
        strategy.train(classes.train_stream[1])


def test_momentum_that_starts_anew_is_refused(classes):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    strategy = naive(model, [TargetCorrectionPlugin(corrector)], optimizer=optimizer)
    strategy.train(classes.train_stream[0])
    with pytest.raises(InvalidInputError, match="reset_optimizer_state is True"):
        strategy.train(classes.train_stream[1], reset_optimizer_state=True)


def test_loaders_and_strategies_that_cannot_be_corrected_are_refused(classes):
    plugin = TargetCorrectionPlugin(corrector)
    strategy = naive(network(), [plugin], batch=30)
    with pytest.raises(InvalidInputError, match="no mini-batch of 30 from the 26 samples"):
        strategy.train(classes.train_stream[0], drop_last=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    deaf = Deaf(
        model=model,
        optimizer=optimizer,
        criterion=SquaredError(),
        train_mb_size=4,
        plugins=[TargetCorrectionPlugin(corrector)],
        evaluator=evaluator(),
    )
    with pytest.raises(InvalidInputError, match="Deaf did not call after_forward"):
        deaf.train(classes.train_stream[0])
    with pytest.raises(InvalidInputError, match="labels are from 2 to 3, but there are 2 outputs"):
        naive(network(2), [TargetCorrectionPlugin(corrector)]).train(classes.train_stream[1])


def tangent(model, **options):
    options = {
        "make_learner": functools.partial(rt.TangentLearner, memory=64),
        "train_mb_size": 4,
        "eval_mb_size": 7,
        "evaluator": evaluator(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
    } | options
    return Tangent(model=model, **options)


@pytest.mark.parametrize("adapter", ["plugin", "tangent"])
def test_one_process_full_precision_and_no_task_labels(classes, adapter, tmp_path):
    def strategy(model):
        if adapter == "plugin":
            return naive(model, [TargetCorrectionPlugin(corrector)])
        return tangent(model)

    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(InvalidInputError, match="autocast is on"),
    ):
        strategy(network()).train(classes.train_stream[0])
    mlp = SimpleMLP(num_classes=CLASSES, input_size=INPUTS, hidden_size=8)
    with pytest.raises(InvalidInputError, match="which takes task labels"):
        strategy(as_multitask(mlp, "classifier").double()).train(classes.train_stream[0])
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(InvalidInputError, match="training is distributed"):
            strategy(network()).train(classes.train_stream[0])
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("first_epochs", [0, 2])
def test_tangent_is_a_first_session_and_a_learner_of_everything(classes, first_epochs):
    model, twin = network(), network()
    watched = evaluator(accuracy_metrics(stream=True, epoch=True), loss_metrics(stream=True))
    strategy = tangent(model, first_epochs=first_epochs, evaluator=watched)
    mine = torch.optim.SGD(twin.parameters(), lr=0.05)
    X, Y = whole(classes.train_stream[0])
    for _ in range(first_epochs):
        pass_over(twin, mine, X, Y, 4)
    by_hand = rt.TangentLearner(twin, memory=64)
    tests = [whole(experience) for experience in classes.test_stream]
    test, labels = torch.cat([x for x, _ in tests]), torch.cat([y for _, y in tests]).argmax(1)
    for number, experience in enumerate(classes.train_stream):
        X, Y = whole(experience)
        before = by_hand.predict(X) if number else twin(X)
        found = strategy.train(experience, shuffle=False)
        accuracy = (before.argmax(1) == Y.argmax(1)).double().mean().item()
        assert found["Top1_Acc_Epoch/train_phase/train_stream/Task000"] == pytest.approx(accuracy)
        by_hand.learn(X, Y)
        found = strategy.eval(classes.test_stream)
        predicted = by_hand.predict(test)
        assert (strategy.learner.predict(test) - predicted).abs().max() < 1e-9
        accuracy = (predicted.argmax(1) == labels).double().mean().item()
        stream = "eval_phase/test_stream/Task000"
        assert found[f"Top1_Acc_Stream/{stream}"] == pytest.approx(accuracy, abs=1e-12)
        loss = SquaredError()(predicted, labels).item()
        assert found[f"Loss_Stream/{stream}"] == pytest.approx(loss, rel=1e-6)
    same_weights(model, twin)
    assert strategy.learner.samples == 52


def test_tangent_learns_real_targets_in_any_order(regression):
    found = []
    for experiences in (regression.train_stream, regression.train_stream[::-1]):
        watched = evaluator(mse_metrics(stream=True))
        strategy = tangent(network(2), first_epochs=0, optimizer=None, evaluator=watched)
        for experience in experiences:
            strategy.train(experience)
        found.append(strategy.eval(regression.test_stream)["MSE_Stream/eval_phase/test_stream"])
    X, Y = (torch.cat(parts) for parts in zip(*map(whole, regression.train_stream), strict=True))
    by_hand = rt.TangentLearner(network(2), memory=64).learn(X, Y)
    X, Y = (torch.cat(parts) for parts in zip(*map(whole, regression.test_stream), strict=True))
    error = (by_hand.predict(X) - Y).square().mean().item()
    assert found == pytest.approx([error, error], rel=1e-8)


def test_tangent_on_a_feature_extractor_starts_from_zero(classes):
    watched = evaluator(accuracy_metrics(stream=True), loss_metrics(epoch=True))
    options = {"first_epochs": 0, "optimizer": None, "targets": CLASSES, "evaluator": watched}
    strategy = tangent(network(7), **options)
    found = strategy.train(classes.train_stream[0])
    # half of the squared norm of a one-hot row
    assert found["Loss_Epoch/train_phase/train_stream/Task000"] == pytest.approx(0.5)
    strategy.train(classes.train_stream[1])
    X, Y = (torch.cat(parts) for parts in zip(*map(whole, classes.train_stream), strict=True))
    by_hand = rt.TangentLearner(network(7), memory=64).learn(X, Y)
    test, _ = whole(classes.test_stream[1])
    assert (strategy.learner.predict(test) - by_hand.predict(test)).abs().max() < 1e-9


class Stopper(SupervisedPlugin):
    def after_training_epoch(self, strategy, **kwargs):
        strategy.stop_training()


class Counter(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.samples = []

    def before_eval(self, strategy, **kwargs):
        self.samples.append(0 if strategy.learner is None else strategy.learner.samples)


def test_tangent_learns_the_first_experience_when_its_session_is_stopped(classes):
    counter = Counter()
    strategy = tangent(network(), first_epochs=5, plugins=[Stopper(), counter], eval_every=0)
    strategy.train(classes.train_stream[0], eval_streams=[classes.test_stream])
    assert strategy.clock.train_iterations == 2 * 7
    assert strategy.learner.samples == 26
    assert counter.samples == [0, 26]  # at the beginning and, learned, at the end


def test_tangent_says_what_it_needs(classes):
    with pytest.raises(InvalidInputError, match="first_epochs is -1"):
        tangent(network(), first_epochs=-1)
    with pytest.raises(InvalidInputError, match="there is no optimizer to train the network"):
        tangent(network(), optimizer=None)
    strategy = tangent(network(), plugins=[ReplayPlugin(mem_size=8)])
    strategy.train(classes.train_stream[0])
    with pytest.raises(InvalidInputError, match="more than the 26 samples"):
        strategy.train(classes.train_stream[1])
    assert strategy.learner.samples == 26
    with pytest.raises(InvalidInputError, match="labels are from 2 to 3, but there are 2"):
        tangent(network(2), first_epochs=0).train(classes.train_stream[1])


def test_the_loss_is_half_the_squared_error():
    f, y = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]]), torch.tensor([0, 1, 1])
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    each = torch.tensor([4 / 2, 4 / 2, (9 + 0.25) / 2])
    for targets in (y, rows):
        assert SquaredError()(f, targets) == pytest.approx(each.mean().item())
        assert SquaredError("sum")(f, targets) == pytest.approx(each.sum().item())
    assert SquaredError()(f[:, :1], f[:, 0] + 1) == pytest.approx(0.5)
    with pytest.raises(InvalidInputError, match="reduction is 'none'"):
        SquaredError("none")


def test_dropout_is_corrected_as_in_evaluation_and_trained_as_it_is(classes):
    model = nn.Sequential(nn.Dropout(0.2), *network())
    found = naive(model, [TargetCorrectionPlugin(corrector)]).train(classes.train_stream[0])
    assert found["TargetShift/train_phase/train_stream/Task000/Exp000"] > 0
    assert model.training


def test_outputs_that_are_added_later_are_refused():
    X, y = samples(0, EACH)
    data = Labelled(X.float(), y)  # in which Avalanche makes new outputs
    stream = nc_benchmark(data, data, 2, task_labels=False, shuffle=False).train_stream
    model = nn.Sequential(*network(8).float(), IncrementalClassifier(8, 2, masking=False))
    strategy = naive(model, [TargetCorrectionPlugin(corrector)])
    strategy.train(stream[0])
    with pytest.raises(InvalidInputError, match="4 targets.*the first one .*2 targets"):
        strategy.train(stream[1])


def test_samples_that_the_strategy_adds_are_refused(classes):
    model = network()
    strategy = Cumulative(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        criterion=SquaredError(),
        train_mb_size=4,
        plugins=[TargetCorrectionPlugin(corrector)],
        evaluator=evaluator(),
    )
    strategy.train(classes.train_stream[0])
    with pytest.raises(InvalidInputError, match="more than the 26 samples"):
        strategy.train(classes.train_stream[1])
