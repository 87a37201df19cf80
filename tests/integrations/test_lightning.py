"""Lightning on corrected targets ends where the same loop written by hand ends."""

import itertools
import logging
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.integrations.agreement import HalfSquaredError
from support.corrected_training import (
    LEARNER,
    OPTIONS,
    Penalty,
    arguments_in,
    assert_same,
    by_hand,
    closed_loop,
    make,
    network,
    sgd,
    tasks,
    trained,
)

L = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import (  # noqa: E402
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from retarget.integrations.lightning import TangentModule, TargetCorrectionCallback  # noqa: E402
from retarget.integrations.lightning_trainer import Places  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

pytestmark = [
    pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded"),
    pytest.mark.filterwarnings("ignore:Found 1 module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
]
X, Y = tasks()[0]
MOMENTUM = rt.SGD(0.005, batch_size=6, reduction="mean", momentum=0.5)


class Small(L.LightningModule):
    """A network that is trained on half of the squared error."""

    def __init__(self, learner=LEARNER):
        super().__init__()
        self.network, self.learner, self.seen = network(), learner, []
        self.optimizer = sgd(self.network, learner)

    def forward(self, x):
        return self.network(x)

    def loss(self, x, z):
        return HalfSquaredError(self.learner.reduction)(self.network(x), z)

    def training_step(self, batch, batch_idx):
        self.seen.append(batch)
        return self.loss(batch[0], batch[1])

    def configure_optimizers(self):
        return self.optimizer


def trainer(*callbacks, **options):
    plain = {
        "max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return L.Trainer(callbacks=list(callbacks), **(plain | options))


def loader(x, y, batch_size=6, **options):
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **options)


def correction(module, learner=LEARNER, **options):
    maker = closed_loop if "features" in options else make
    return TargetCorrectionCallback(maker(module.network, learner, **options))


def fitted(module, callback=None, streams=None, settings=(), **loading):
    """The module's network after a fit for each task."""
    callback = callback or correction(module, module.learner)
    for x, y in streams or tasks():
        trainer(callback, **dict(settings)).fit(module, loader(x, y, **loading))
    return module.network


def assert_learned(found, expected=None):
    assert_same(found, expected or trained(), start=network())


class Scaled(Small):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] + 1, batch[1]]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * 0.5, batch[1]]


class Scheduled(Small):
    def configure_optimizers(self):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        return [self.optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Entropy(Small):
    def loss(self, x, z):
        return nn.functional.cross_entropy(self.network(x), z)


def first(n, streams):
    return [(x[:n], y[:n]) for x, y in streams]


LABELS = [(x, (y[:, 0] > 0).long()) for x, y in tasks()]
HOT = [(x, torch.eye(2).double()[y]) for x, y in LABELS]
FLOATS = [(x.float(), y.float()) for x, y in tasks()]
DOUBLES = [(x.double(), y.double()) for x, y in FLOATS]
LONG, DOUBLE, EPOCH = tasks((50, 53)), {"precision": "64-true"}, {"refresh": "epoch"}
DECAYING = replace(LEARNER, lr=[0.01 * 0.95**step for step in range(14)])
CLOSED, AUTO = {"features": 64}, {"gamma": "auto", "ridge": 0.0}
TWELVE = rt.SGD(0.02, batch_size=12, reduction="mean")  # of a batch and of stored samples
# What differs from the plain case: how Lightning is set, and what the plain loop is given.
LIKE_THE_PLAIN_LOOP = {
    "mean": {},
    "gamma chosen": {"options": AUTO, "streams": tasks((120, 90))},
    "sum": {"learner": rt.SGD(0.002, batch_size=6, reduction="sum", weight_decay=0.01)},
    "momentum": {"learner": MOMENTUM},
    "cross-entropy": {
        "kind": Entropy,
        "streams": LABELS,
        "expected": HOT,
        "options": {"loss": "cross-entropy"},
    },
    "workers": {"loading": {"num_workers": 2}},
    "persistent workers": {"loading": {"num_workers": 2, "persistent_workers": True}},
    "accumulated": {"settings": {"accumulate_grad_batches": 3}, "loading": {"batch_size": 2}},
    "labels": {"streams": LABELS, "expected": HOT},
    "double precision": {"streams": FLOATS, "settings": DOUBLE, "expected": DOUBLES},
    "short last batch": {"streams": tasks((40, 33))},
    "drop": {"streams": LONG, "loading": {"drop_last": True}, "expected": first(48, LONG)},
    "limited": {"settings": {"limit_train_batches": 5}, "expected": first(30, tasks())},
    "transfer": {"kind": Scaled, "expected": [((x + 1) * 0.5, y) for x, y in tasks()]},
    "epochs": {"settings": {"max_epochs": 3}, "options": EPOCH, "how": {"epochs": 3}},
    "closed": {"learner": TWELVE, "options": CLOSED, "how": {"block": 6}},
    "replay": {"learner": TWELVE, "options": CLOSED | {"replay": 30}, "how": {"block": 6}},
}


@pytest.mark.parametrize("what", LIKE_THE_PLAIN_LOOP)
def test_weights_are_those_of_the_plain_loop(what):
    given = {"kind": Small, "learner": LEARNER, "options": {}, "settings": {}, "loading": {}}
    given |= {"streams": tasks(), "how": {}} | LIKE_THE_PLAIN_LOOP[what]
    learner, options, streams = (given[name] for name in ("learner", "options", "streams"))
    module = given["kind"](learner)
    callback = correction(module, learner, **options)
    found = fitted(module, callback, streams, given["settings"], **given["loading"])
    expected = given.get("expected", streams)
    assert_learned(found, trained(learner, expected, **options, **given["how"]))
    sizes = [len(batch[0]) for batch in module.seen[:3]]
    assert sizes == {"accumulated": [2, 2, 2], "replay": [6, 12, 12]}.get(what, [6, 6, 6])


Pair = namedtuple("Pair", "inputs targets")
# A batch of some inputs and targets, and where they are.
FORMS = {
    "named tuple": (Pair, {}),
    "list": (lambda x, y: [x, y, "a"], {}),
    "reversed": (lambda x, y: (y, "a", x), {"inputs": 2, "targets": 0}),
    "some": (lambda x, y: (y, x, "a", x), {"inputs": [3, 1], "targets": 0}),
    "dict": (lambda x, y: {"a": "b", "x": x, "y": y}, {"inputs": "x", "targets": "y"}),
    "all but one": (lambda x, y: {"a": x, "y": y, "b": x}, {"targets": "y"}),
}


@pytest.mark.parametrize("what", FORMS)
def test_batches_of_every_form(what):
    form, where = FORMS[what]
    places = Places(**({"inputs": None, "targets": 1} | where))
    inputs, targets = places.split(form("x", Y))
    assert targets is Y
    assert inputs == {"some": ("x", "x"), "all but one": {"a": "x", "b": "x"}}.get(what, "x")
    found = places.put(form("other", Y), inputs, X)
    assert (type(found), found) == (type(form("x", X)), form("x", X))


class Halves(Small):
    def forward(self, left, right):
        return self.network(torch.cat([left, right], 1))

    def training_step(self, batch, batch_idx):
        return self.loss(torch.cat([batch["left"], batch["right"]], 1), batch["y"])


def in_halves(rows):
    x, y = (torch.stack(each) for each in zip(*rows, strict=True))
    return {"left": x[:, :2], "y": y, "right": x[:, 2:]}


def test_a_function_makes_the_corrector():
    """As the message advises: functools.partial(rt.NetworkCorrector, gamma=..., block_size=...)."""
    callback = TargetCorrectionCallback(partial(rt.NetworkCorrector, **OPTIONS))
    assert_learned(fitted(Small(), callback))
    assert callback.corrector.learner == LEARNER
    callback = TargetCorrectionCallback(partial(rt.NetworkCorrector, **OPTIONS))
    batches = torch.utils.data.BatchSampler(range(48), 2, False)
    accumulating = trainer(callback, accumulate_grad_batches=3)
    accumulating.fit(Small(), DataLoader(TensorDataset(X, Y), batch_sampler=batches))
    assert callback.corrector.learner == LEARNER


def test_a_scheduler_and_adam_as_advised():
    def decaying(module, learner):  # make the corrector from SGD(lr=[...])
        return make(module, replace(learner, lr=DECAYING.lr))

    def steps():
        for stream, stop in zip(tasks(), (8, 14), strict=True):
            twin.learner = replace(DECAYING, lr=DECAYING.lr[:stop])
            yield stream

    same = network()
    twin = make(same, DECAYING)
    by_hand(same, twin, steps())
    assert_learned(fitted(Scheduled(), TargetCorrectionCallback(decaying)), same)

    same, options = network(), {"gamma": 1e3, "block_size": 12, "ridge": 1e3}
    optimizer = torch.optim.Adam(same.parameters(), 0.001)
    learner = replace(LEARNER, lr=0.001)
    twin = make(same, learner, preconditioner=optimizer, **options)
    by_hand(same, twin, tasks(), optimizer=optimizer, first_true=True)
    module = Small()
    module.optimizer = torch.optim.Adam(module.network.parameters(), 0.001)
    callback = TargetCorrectionCallback(partial(rt.NetworkCorrector, **options))
    assert_learned(fitted(module, callback), same)


class MakesNew(Small):
    """As in most of Lightning's examples: a new optimizer in every fit."""

    kind = torch.optim.Adam

    def configure_optimizers(self):
        return self.kind(self.parameters(), lr=0.001)


class KeepsOne(MakesNew):
    """The two lines of the message."""

    def __init__(self):
        super().__init__()
        self.optimizer = self.kind(self.parameters(), lr=0.001)

    def configure_optimizers(self):
        return self.optimizer


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop"])
def test_one_optimizer_for_two_tasks(monkeypatch, kind):
    monkeypatch.setattr(MakesNew, "kind", getattr(torch.optim, kind))
    factory = partial(rt.NetworkCorrector, gamma=1e3, block_size=12, ridge=1e3)
    made = rf"self.optimizer = torch.optim.{kind}\(self.parameters\(\), ...\)"
    lines = f"in __init__, after the network, with {made}, and return self.optimizer from configure"
    with pytest.raises(InvalidInputError, match=rf"not the one that the corrector.* {lines}"):
        fitted(MakesNew(), TargetCorrectionCallback(factory))
    module = KeepsOne()
    fitted(module, TargetCorrectionCallback(factory))
    assert len(module.optimizer.state) == len(list(module.parameters()))


class Anchored(Small):
    def __init__(self, penalty):
        super().__init__()
        self.penalty = penalty

    def loss(self, x, z):
        return super().loss(x, z) + self.penalty(self.network)


@pytest.mark.parametrize("penalty", [Penalty(1.0), Penalty(2.0, True)], ids=["L2-SP", "EWC"])
@pytest.mark.parametrize("options", [{}, CLOSED], ids=["open", "closed"])
def test_penalties_that_start_at_zero_are_found(penalty, options):
    penalty.start, module = None, Anchored(penalty)
    with pytest.raises(InvalidInputError, match="at step 1 .* gradients differ by"):
        fitted(module, correction(module, **options))
    assert "training_step" not in vars(module)
    assert not module.optimizer._optimizer_step_pre_hooks


def test_everything_wrong_is_said_at_once():
    module, wrong = Small(), {"max_epochs": 3, "gradient_clip_val": 0.5, "precision": "bf16-mixed"}
    with pytest.raises(InvalidInputError, match="^4 things .*\n- precision is 'bf16-mixed'") as e:
        trainer(correction(module), **wrong).fit(module, loader(X, Y, shuffle=True))
    message = str(e.value)
    for reason in ("gradient_clip_val is 0.5", "there are 3 epochs", "use shuffle=False"):
        assert f"- {reason}" in message or f"; {reason}" in message
    right = arguments_in(message, "Trainer")
    assert right == {"precision": "32-true", "gradient_clip_val": None, "max_epochs": 1}
    module = Small()
    fitted(module, streams=tasks()[:1], settings=wrong | right)
    assert_learned(module.network, trained(streams=tasks()[:1]))


def test_the_module_itself_as_the_network():
    assert_learned(
        fitted(Halves(), TargetCorrectionCallback(make, targets="y"), collate_fn=in_halves)
    )


def test_random_numbers_are_those_of_training_without_it():
    states = []
    for corrected in (False, True):
        module = Small()
        torch.manual_seed(7)
        trainer(*[correction(module)] * corrected).fit(module, loader(X, Y))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_modes_and_buffers_while_correcting():
    module = Small()
    module.network.insert(1, nn.Dropout(0.3))
    module.network.insert(1, nn.BatchNorm1d(300, affine=False).double())
    module.network[0].eval()
    fitted(module, streams=tasks((48,)))
    assert module.network[1].num_batches_tracked == 8
    assert [part.training for part in module.network] == [False, True, True, True, True]


def test_what_one_trainer_logs_for_all_tasks(tmp_path):
    module = Small()
    callback, metrics = correction(module), []
    fit = trainer(callback, logger=CSVLogger(tmp_path))
    for x, y in tasks():
        fit.fit(module, loader(x, y))
        metrics.append({name: float(value) for name, value in fit.logged_metrics.items()})
        fit.fit_loop.max_epochs += 1
    assert_learned(module.network)
    z = make(network()).correct(X, Y)
    shift, largest = (z - Y).square().mean().sqrt().item(), z.abs().max().item()
    expected = {"retarget/shift": shift, "retarget/largest_target": largest}
    assert metrics[0] == pytest.approx(expected, 1e-6)
    error = callback.corrector.linearization_error
    assert metrics[1]["retarget/linearization_error"] == pytest.approx(error, 1e-6)
    fit.logger.save()
    written = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "retarget/linearization_error" in written.splitlines()[0]


def test_the_log_says_what_was_tried():
    module = Small()
    callback = TargetCorrectionCallback(rt.NetworkCorrector)
    fit = trainer(callback)
    fit.fit(module, loader(X, Y))
    plain, *others = callback.corrector.trials
    logged = {name.removeprefix("retarget/"): float(v) for name, v in fit.logged_metrics.items()}
    assert logged["corrected"] == (not plain.chosen)
    assert logged["loss_on_true_targets"] == pytest.approx(plain.error, 1e-6)
    least = min(trial.error for trial in others)
    assert logged["loss_on_corrected_targets"] == pytest.approx(least, 1e-6)


GOING_ON = {
    "momentum": (MOMENTUM, {}),
    "closed": (TWELVE, CLOSED | {"replay": 20}),
    "never": (LEARNER, {"refresh": "never"}),
}


@pytest.mark.parametrize(("learner", "options"), GOING_ON.values(), ids=GOING_ON)
def test_a_checkpoint_goes_on_with_the_next_task(tmp_path, learner, options):
    whole, (first, second) = Small(learner), tasks()
    callback = correction(whole, learner, **options)
    fit = trainer(callback)
    fit.fit(whole, loader(*first))
    fit.save_checkpoint(tmp_path / "task.ckpt")
    trainer(callback).fit(whole, loader(*second))

    resumed = Small(learner)
    trainer(correction(resumed, learner, **options), max_epochs=2).fit(
        resumed, loader(*second), ckpt_path=tmp_path / "task.ckpt", weights_only=True
    )
    assert_learned(resumed.network, whole.network)


class Unlucky(Small):
    def training_step(self, batch, batch_idx):
        if batch_idx == 3 and self.path:
            self.trainer.save_checkpoint(self.path)
            raise RuntimeError("the power is gone")
        return super().training_step(batch, batch_idx)


def test_a_broken_fit_does_not_go_on(tmp_path):
    module = Unlucky()
    callback, module.path = correction(module), tmp_path / "middle.ckpt"
    step = module.training_step = module.training_step  # of this object
    with pytest.raises(RuntimeError, match="power"):
        trainer(callback).fit(module, loader(X, Y))
    assert module.training_step is step  # as it was
    module.path = None
    with pytest.raises(InvalidInputError, match="5 batches before the end"):
        trainer(callback).fit(module, loader(X, Y))
    with pytest.raises(InvalidInputError, match="5 batches before its end"):
        trainer(correction(module)).fit(module, loader(X, Y), ckpt_path=tmp_path / "middle.ckpt")


def changed(**members):
    """A module like the small one, with other methods."""
    return type("Changed", (Small,), members)


def three_times(module, x, z):
    return 3 * nn.functional.mse_loss(module.network(x), z)


def headed():
    """A module with an output layer that is trained, and of which the corrector does not know."""
    module = Small()
    module.head = nn.Linear(2, 2).double()
    module.optimizer = sgd(module, LEARNER)
    return module


def warming_up(module, batch, batch_idx):
    module.optimizer.param_groups[0]["lr"] = 0.01 * 1.01**batch_idx


CLIPPING = changed(configure_gradient_clipping=lambda *_, **__: None)
CALLS = itertools.count()


def augmented(rows):
    x, y = (torch.stack(each) for each in zip(*rows, strict=True))
    return x + next(CALLS), y


SUM, SCHEDULE = replace(LEARNER, reduction="sum"), replace(LEARNER, lr=[0.01] * 8)
TWO, THREE = {"accumulate_grad_batches": 2}, {"accumulate_grad_batches": 3}
PAIRS, SEVERAL = {"batch_size": 2}, {"a": loader(X, Y), "b": loader(X, Y)}
# What is said; then what is given: the kind of module, the options of the corrector, the settings
# of the Trainer, its other callback, the options of the loader, or another loader.
REFUSED = {
    # by the checks that all adapters share
    "shuffle": ("RandomSampler.*use shuffle=False", {"loading": {"shuffle": True}}),
    "epochs": ("2 epochs.*refresh='task'", {"settings": {"max_epochs": 2}}),
    "outside": ("2 parameters outside of the corrector's network", {"kind": headed}),
    "no optimizer": ("returned 0 optimizers", {"kind": changed(configure_optimizers=lambda _: [])}),
    "rate": ("optimizer is SGD.lr=0.1", {"kind": lambda: Small(replace(LEARNER, lr=0.1))}),
    "warm-up": ("rate of step 1 is 0.0101", {"kind": changed(on_train_batch_start=warming_up)}),
    "loss": (
        "step 0 of the task the gradients are 3 times those",
        {"kind": changed(loss=three_times)},
    ),
    # by Lightning's own
    "batch size": ("batches of 4, 1 to a step.*batch_size=6", {"loading": {"batch_size": 4}}),
    "few steps": ("max_steps is 3.*8 steps", {"settings": {"max_steps": 3}}),
    "bfloat16": ("precision is 'bf16-mixed'", {"settings": {"precision": "bf16-mixed"}}),
    "clip": ("gradient_clip_val is 0.5", {"settings": {"gradient_clip_val": 0.5}}),
    "own clipping": ("own configure_gradient_clipping", {"kind": CLIPPING}),
    "manual": ("automatic_optimization=False", {"kind": changed(automatic_optimization=False)}),
    "scheduler": ("a scheduler changes the rate", {"kind": Scheduled}),
    "skipped": ("training_step returned None", {"kind": changed(training_step=lambda *_: None)}),
    "sum": ("reduction='sum'", {"options": {"learner": SUM}, "settings": THREE, "loading": PAIRS}),
    "unfilled": ("do not fill", {"settings": THREE, "loader": lambda: loader(X[:44], Y[:44], 2)}),
    "swa": ("StochasticWeightAveraging", {"other": lambda: StochasticWeightAveraging(0.1)}),
    "accumulation": ("AccumulationSch", {"other": lambda: GradientAccumulationScheduler({0: 1})}),
    "closed schedule": ("has a schedule", {"options": CLOSED | {"learner": SCHEDULE}}),
    "closed accumulation": ("grad_batches is 2", {"options": CLOSED, "settings": TWO}),
    "augmented": ("batch 0 is not the one corrected", {"loading": {"collate_fn": augmented}}),
    "once": ("can be read only once", {"loader": lambda: iter(list(loader(X, Y)))}),
    "several": ("several training loaders", {"loader": lambda: SEVERAL}),
    "no targets": ("a list of 1", {"loader": lambda: DataLoader(TensorDataset(X), 6)}),
    "places": ("has no entry", {"places": {"targets": "y"}}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    message, given = REFUSED[what]
    module = given.get("kind", Small)()
    batches = given["loader"]() if "loader" in given else loader(X, Y, **given.get("loading", {}))
    options = given.get("options", {})
    corrector = (closed_loop if "features" in options else make)(module.network, **options)
    callbacks = [TargetCorrectionCallback(corrector, **given.get("places", {}))]
    if "other" in given:
        callbacks.append(given["other"]())
    with pytest.raises(InvalidInputError, match=message):
        trainer(*callbacks, **given.get("settings", {})).fit(module, batches)
    assert "training_step" not in vars(module)
    if what != "warm-up":
        assert_same(module.network, network(), tolerance=0)


def test_bad_correctors_and_several_devices():
    with pytest.raises(InvalidTypeError, match="corrector is 3; expected a function"):
        TargetCorrectionCallback(3)
    with pytest.raises(InvalidTypeError, match="corrector made a dict"):
        fitted(Small(), TargetCorrectionCallback(lambda module, learner: {}))
    with pytest.raises(InvalidInputError, match="DDPStrategy of 1 processes"):
        fitted(Small(), settings={"strategy": "ddp", "devices": 1})
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("views", [None, [None, torch.fliplr]])
def test_tangents_are_those_of_the_learner_itself(tmp_path, views):
    net, (first, second) = network(), tasks((50, 31))
    module = TangentModule(rt.TangentLearner(net, 0.3, 80, views=views))
    fit = trainer()
    fit.fit(module, loader(*first, shuffle=True), loader(*second))
    fit.save_checkpoint(tmp_path / "tangent.ckpt")
    trainer().fit(module, loader(*second, batch_size=7), loader(*second))
    expected = rt.TangentLearner(net, 0.3, 80, views=views).learn(*first).learn(*second)
    found = torch.cat(trainer().predict(module, loader(*first)))
    torch.testing.assert_close(found, expected.predict(first[0]), rtol=0, atol=1e-10)

    tested = trainer().test(module, loader(*first, batch_size=50), verbose=False)[0]
    error = (found - first[1]).square().sum(1).mean() / 2
    assert tested["test_loss"] == pytest.approx(error.item(), 1e-6)

    other = TangentModule(rt.TangentLearner(network(seed=9), 0.3, 80, views=views))
    trainer(max_epochs=2).fit(
        other, loader(*second), ckpt_path=tmp_path / "tangent.ckpt", weights_only=True
    )
    torch.testing.assert_close(other(first[0]), found, rtol=0, atol=1e-10)


def test_tangents_of_a_backbone_with_labels():
    net = nn.Sequential(nn.Linear(5, 30), nn.Tanh()).double()
    module = TangentModule(rt.TangentLearner(net, 0.3, 80), classes=3)
    ((x, y),) = tasks((60,))
    labels = (y[:, 0] > 0).long() + (y[:, 1] > 0).long()
    fit = trainer()
    fit.fit(module, loader(x, labels), loader(x, labels))
    assert fit.callback_metrics["val_accuracy"] > 0.8
    assert torch.cat(trainer().predict(module, DataLoader(x, batch_size=25))).shape == (60, 3)


def test_what_the_tangent_module_refuses():
    module = TangentModule(rt.TangentLearner(network(), 0.3, 80))
    with pytest.raises(InvalidInputError, match="max_epochs is 2 at epoch 0"):
        trainer(max_epochs=2).fit(module, loader(X, Y))
    with pytest.raises(InvalidInputError, match="precision is 'bf16-mixed'"):
        trainer(precision="bf16-mixed").fit(module, loader(X, Y))
    with pytest.raises(InvalidTypeError, match="expected an rt.TangentLearner"):
        TangentModule(network())
    assert module.learner.samples == 0


PROCESSES = """
import os, torch, lightning, retarget as rt
from torch.utils.data import DataLoader, TensorDataset
from retarget.integrations.lightning import TangentModule

def flip(X):
    return X.flip(-1)

class Watched(TangentModule):
    def validation_step(self, *given):
        if not self.trainer.sanity_checking:
            known.append(self.learner.samples)
        super().validation_step(*given)

def trainer(**options):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    places = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "precision": "64-true"}
    return lightning.Trainer(max_epochs=1, **quiet, **places, **options)

def loader(X, Y, size):
    return DataLoader(TensorDataset(X, Y), batch_size=size)

torch.manual_seed(0)
X, Y = torch.randn(24, 5).double(), torch.randn(24, 3).double()
layers = torch.nn.Linear(5, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)
learner = rt.TangentLearner(torch.nn.Sequential(*layers).double(), 0.3, 40, views=[None, flip])
module, whole, known = Watched(learner.empty()), learner.empty(), []

def assert_whole(X, Y):
    whole.learn(X, Y)
    assert module.learner.samples == whole.samples, module.learner.samples
    assert (module.learner.predict(X) - whole.predict(X)).abs().max() < 1e-12

for part in (slice(0, 16), slice(16, 24)):  # two tasks, each validated twice
    fit = trainer(val_check_interval=0.5)
    fit.fit(module, loader(X[part], Y[part], 2), loader(X, Y, 6))
    assert_whole(X[part], Y[part])
    loss = (whole.predict(X) - Y).square().sum(1).mean() / 2
    assert abs(fit.callback_metrics["val_loss"] - loss) < 1e-10
assert known == [8, 8, 16, 16, 20, 20, 24, 24], known
loaded = Watched(learner.empty())
loaded.load_state_dict(module.state_dict())
assert (loaded.learner.predict(X) - whole.predict(X)).abs().max() < 1e-12

try:
    trainer().fit(module, loader(X[:7], Y[:7], 2))
    raise AssertionError("a repeated sample was learned")
except rt.errors.InvalidInputError as error:
    assert "repeats 1 samples" in str(error), error
own = slice(int(os.environ.get("LOCAL_RANK", 0)), 7, 2)  # 4 and 3 samples
trainer(use_distributed_sampler=False).fit(module, loader(X[own], Y[own], 4))
assert_whole(X[:7], Y[:7])
print(f"process {fit.global_rank} passed", flush=True)
"""


@pytest.mark.slow
def test_processes_learn_their_parts_and_all_know_everything(tmp_path):
    (tmp_path / "processes.py").write_text(PROCESSES)
    command = [sys.executable, str(tmp_path / "processes.py")]
    theirs = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    clean = {name: value for name, value in os.environ.items() if name not in theirs}
    options = {"env": clean, "capture_output": True, "text": True, "timeout": 100}
    done = subprocess.run(command, check=False, **options)
    passed = [f"process {rank} passed" in done.stdout for rank in (0, 1)]
    assert (done.returncode, passed) == (0, [True, True]), done.stderr
