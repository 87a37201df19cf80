"""Lightning on corrected targets ends where the same loop written by hand ends."""

import logging
from collections import namedtuple
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from support.corrected_training import (
    LEARNER,
    assert_same,
    by_hand,
    make,
    network,
    sgd,
    step_loss,
    tasks,
    trained,
)

L = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import (  # noqa: E402
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from retarget.integrations.lightning import TangentLearner, TargetCorrection  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded"),
    pytest.mark.filterwarnings("ignore:Found 1 module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
]
MOMENTUM = rt.SGD(0.005, batch_size=6, reduction="mean", momentum=0.5)


class Small(L.LightningModule):
    """A network that is trained on half of the squared error."""

    def __init__(self, learner=LEARNER):
        super().__init__()
        self.network, self.learner, self.seen = network(), learner, []
        self.optimiser = sgd(self.network, learner)

    def forward(self, x):
        return self.network(x)

    def loss(self, x, z):
        return step_loss(self.network(x), z, self.learner)

    def training_step(self, batch, batch_idx):
        self.seen.append(batch)
        return self.loss(batch[0], batch[1])

    def configure_optimizers(self):
        return self.optimiser


def trainer(*callbacks, **options):
    plain = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(callbacks=list(callbacks), **(plain | options))


def loader(x, y, batch_size=6, **options):
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **options)


def correction(module, learner=LEARNER, **options):
    return TargetCorrection(make(module.network, learner, **options))


def fitted(module, callback=None, streams=None, learner=LEARNER, options=(), **loading):
    """The module's network after a fit for each task."""
    callback = callback or correction(module, learner)
    for x, y in streams or tasks():
        trainer(callback, **dict(options)).fit(module, loader(x, y, **loading))
    return module.network


def assert_learned(found, expected=None):
    assert_same(found, expected or trained(), start=network())


@pytest.mark.parametrize(
    "learner",
    [LEARNER, rt.SGD(0.002, batch_size=6, reduction="sum", weight_decay=0.01), MOMENTUM],
    ids=["mean", "sum", "momentum"],
)
def test_weights_are_those_of_the_plain_loop(learner):
    module = Small(learner)
    assert_learned(fitted(module, learner=learner), trained(learner))


def test_labels_are_one_hot_targets():
    labels = [(x, (y[:, 0] > 0).long()) for x, y in tasks()]
    one_hot = [(x, torch.eye(2).double()[y]) for x, y in labels]
    assert_learned(fitted(Small(), streams=labels), trained(streams=one_hot))


@pytest.mark.parametrize(
    ("options", "loading"),
    [
        ({}, {"num_workers": 2}),
        ({}, {"num_workers": 2, "persistent_workers": True}),
        ({"accumulate_grad_batches": 3}, {"batch_size": 2}),
    ],
    ids=["workers", "persistent workers", "accumulated batches"],
)
def test_what_changes_nothing(options, loading):
    module = Small()
    assert_learned(fitted(module, options=options, **loading))
    assert module.trainer.global_step == 36 // 6


Pair = namedtuple("Pair", "inputs targets")
# How a batch is collated, and where its inputs and targets are.
FORMS = {
    "list": (lambda x, y: [x, y], {}),
    "tuple": (lambda x, y: (x, y), {}),
    "named tuple": (Pair, {}),
    "dict": (lambda x, y: {"name": "a", "x": x, "y": y}, {"inputs": "x", "targets": "y"}),
    "reversed": (lambda x, y: (y, "a", x), {"inputs": 2, "targets": 0}),
}


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_every_form(form):
    form_of, places = FORMS[form]

    def collate(rows):
        return form_of(*(torch.stack(each) for each in zip(*rows, strict=True)))

    module = Small()
    step, inputs, targets = module.training_step, *(places.values() or (0, 1))
    if places:
        module.training_step = lambda batch, batch_idx: step((batch[inputs], batch[targets]), 0)
    callback = TargetCorrection(lambda _: make(module.network), **places)
    assert_learned(fitted(module, callback, collate_fn=collate))
    if form == "named tuple":
        assert isinstance(module.seen[0], Pair)


class Halves(Small):
    """Takes its inputs in two parts."""

    def forward(self, left, right):
        return self.network(torch.cat([left, right], 1))

    def training_step(self, batch, batch_idx):
        outputs = self(batch["left"], batch["right"])
        return step_loss(outputs, batch["y"], self.learner)


@pytest.mark.parametrize("inputs", [None, ["left", "right"]], ids=["all but the targets", "named"])
def test_inputs_of_several_parts(inputs):
    def collate(rows):
        x, y = (torch.stack(each) for each in zip(*rows, strict=True))
        names = {} if inputs is None else {"names": ["a"] * len(x)}
        return {"left": x[:, :2], "y": y, "right": x[:, 2:], **names}

    module = Halves()
    callback = TargetCorrection(make(module), inputs=inputs, targets="y")
    assert_learned(fitted(module, callback, collate_fn=collate))


def test_random_numbers_are_those_of_training_without_it():
    states = []
    for corrected in (False, True):
        module, (x, y) = Small(), tasks()[0]
        torch.manual_seed(7)
        trainer(*[correction(module)] * corrected).fit(module, loader(x, y))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_what_the_loader_leaves_out_is_not_corrected():
    module, other = Small(), Small()
    limited = correction(other)
    longer = tasks((50, 40))
    fitted(module, streams=longer, drop_last=True)
    for x, y in longer:
        trainer(limited, limit_train_batches=len(x) // 6).fit(other, loader(x, y))
    shorter = [(x[: len(x) // 6 * 6], y[: len(x) // 6 * 6]) for x, y in longer]
    for each in (module, other):
        assert_learned(each.network, trained(streams=shorter))


def test_a_short_last_batch():
    streams = tasks((40, 33))
    assert_learned(fitted(Small(), streams=streams), trained(streams=streams))


def test_double_precision_by_the_trainer():
    halved = [(x.float(), y.float()) for x, y in tasks()]
    found = fitted(Small(), streams=halved, options={"precision": "64-true"})
    assert_learned(found, trained(streams=[(x.double(), y.double()) for x, y in halved]))


def test_several_epochs_are_corrected_each():
    module = Small()
    callback = correction(module, refresh="epoch")
    found = fitted(module, callback, options={"max_epochs": 3})
    assert_learned(found, trained(epochs=3, refresh="epoch"))


def test_one_trainer_for_all_tasks_and_the_module_itself_as_the_network():
    module = Small()
    fit = trainer(TargetCorrection(make))
    for x, y in tasks():
        fit.fit(module, loader(x, y))
        fit.fit_loop.max_epochs += 1
    assert_learned(module.network)


def test_a_schedule_that_is_described():
    learner = replace(LEARNER, lr=[0.01 * 0.95**step for step in range(8)])
    module = Small(learner)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(module.optimiser, 0.95)
    steps = [{"scheduler": scheduler, "interval": "step"}]
    module.configure_optimizers = lambda: ([module.optimiser], steps)
    found = fitted(module, streams=tasks((48,)), learner=learner)
    assert_learned(found, trained(learner, tasks((48,))))


@pytest.mark.parametrize("kind", ["rates", "Adam"])
def test_optimisers_that_are_a_preconditioner(kind):
    modules = Small(), Small()
    for module in modules:
        if kind == "rates":
            rated = zip((module.network[0], module.network[2]), (0.02, 0.01), strict=True)
            groups = [{"params": layer.parameters(), "lr": rate} for layer, rate in rated]
            module.optimiser = torch.optim.SGD(groups)
        else:
            module.optimiser = torch.optim.Adam(module.network.parameters(), 0.001, (0.0, 0.999))
        ((x, y),) = tasks((6,))  # its second moments begin with a step
        module.loss(x, y).backward()
        module.optimiser.step()
    learner = replace(LEARNER, lr=0.02 if kind == "rates" else 0.001)
    module, plain = modules
    correctors = [make(each.network, learner, preconditioner=each.optimiser) for each in modules]
    fitted(module, TargetCorrection(correctors[0]))
    by_hand(plain.network, correctors[1], tasks(), optimiser=plain.optimiser)
    assert_learned(module.network, plain.network)


@pytest.mark.parametrize("replay", [0, 30])
def test_the_closed_loop_is_that_of_the_plain_loop(replay):
    learner = rt.SGD(0.02, batch_size=12, reduction="mean")
    options = {"gamma": 0.5, "ridge": 0.0, "memory": 64, "replay": replay, "seed": 4}
    module = Small(learner)
    found = fitted(module, correction(module, learner, **options))
    assert_learned(found, trained(learner, block=6, **options))
    assert [len(batch[0]) for batch in module.seen[:3]] == ([6, 12, 12] if replay else [6, 6, 6])


class Scaled(Small):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] + 1, batch[1]]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * 0.5, batch[1]]


def test_samples_are_corrected_as_the_hooks_of_a_transfer_leave_them():
    streams = [((x + 1) * 0.5, y) for x, y in tasks()]
    assert_learned(fitted(Scaled()), trained(streams=streams))


def test_modes_and_buffers_are_changed_by_training_alone_and_dropout_is_off_while_correcting():
    module = Small()
    module.network.insert(1, nn.Dropout(0.3))
    module.network.insert(1, nn.BatchNorm1d(300, affine=False).double())
    module.network[0].eval()
    fitted(module, streams=tasks((48,)))
    assert module.network[1].num_batches_tracked == 8
    assert [part.training for part in module.network] == [False, True, True, True, True]


def test_what_is_logged(tmp_path):
    module = Small()
    callback, metrics = correction(module), []
    for x, y in tasks():
        fit = trainer(callback, logger=CSVLogger(tmp_path))
        fit.fit(module, loader(x, y))
        metrics.append({name: float(value) for name, value in fit.logged_metrics.items()})
        fit.logger.save()
    x, y = tasks()[0]
    z = make(network()).correct(x, y)
    first, second = metrics
    assert first["retarget/shift"] == pytest.approx((z - y).square().mean().sqrt().item(), 1e-6)
    assert first["retarget/largest_target"] == pytest.approx(z.abs().max().item(), 1e-6)
    assert "retarget/linearisation_error" not in first
    error = callback.corrector.linearisation_error
    assert second["retarget/linearisation_error"] == pytest.approx(error, 1e-6)
    written = (tmp_path / "lightning_logs" / "version_1" / "metrics.csv").read_text()
    assert "retarget/linearisation_error" in written.splitlines()[0]


@pytest.mark.parametrize(
    ("learner", "options"),
    [
        (LEARNER, {}),
        (MOMENTUM, {}),
        (replace(LEARNER, batch_size=12), {"memory": 64, "replay": 20, "ridge": 0.0}),
        (LEARNER, {"refresh": "never"}),
    ],
    ids=["open", "momentum", "closed", "never"],
)
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


def test_a_checkpoint_from_the_middle_of_a_task_is_refused(tmp_path):
    module, (x, y) = Small(), tasks()[0]

    class Saver(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if index == 3:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    trainer(correction(module), Saver()).fit(module, loader(x, y))
    with pytest.raises(InvalidInputError, match="middle of a task, 4 batches before its end"):
        trainer(correction(module)).fit(module, loader(x, y), ckpt_path=tmp_path / "middle.ckpt")


def test_a_fit_that_broke_off_is_not_gone_on_from():
    module, (x, y) = Small(), tasks()[0]
    callback, step = correction(module), module.training_step

    def unlucky(batch, batch_idx):
        if batch_idx == 3:
            raise RuntimeError("the power is gone")
        return step(batch, batch_idx)

    module.training_step = unlucky
    with pytest.raises(RuntimeError, match="power"):
        trainer(callback).fit(module, loader(x, y))
    assert module.training_step is unlucky  # as it was
    del module.training_step
    with pytest.raises(InvalidInputError, match="5 batches before the end"):
        trainer(callback).fit(module, loader(x, y))
    assert "training_step" not in vars(module)


class Clipping(Small):
    def configure_gradient_clipping(self, *given, **more):
        pass


class Manual(Small):
    automatic_optimization = False


class Scheduled(Small):
    def configure_optimizers(self):
        return [self.optimiser], [torch.optim.lr_scheduler.ExponentialLR(self.optimiser, 0.9)]


class OtherLoss(Small):
    def loss(self, x, z):
        return 3 * nn.functional.mse_loss(self.network(x), z)


class Skipping(Small):
    def training_step(self, batch, batch_idx):
        return None


class Warm(Small):
    def on_train_batch_start(self, batch, batch_idx):
        self.optimiser.param_groups[0]["lr"] = 0.01 * 1.01**batch_idx


def stepped():
    """A module whose optimiser has a velocity."""
    module = Small(MOMENTUM)
    module.loss(*tasks((6,))[0]).backward()
    module.optimiser.step()
    return module


SUM = replace(LEARNER, reduction="sum")
CLOSED = {"memory": 8, "ridge": 0.0}
EPOCH = {"refresh": "epoch"}
TWO, THREE = {"accumulate_grad_batches": 2}, {"accumulate_grad_batches": 3}
# The module, the corrector's options, the Trainer's, the loader's, and what is said.
REFUSED = {
    "shuffle": (Small, {}, {}, {"shuffle": True}, "RandomSampler.*use shuffle=False"),
    "out of order": (Small, {}, {}, {"num_workers": 1, "in_order": False}, "in_order=True"),
    "batch size": (Small, {}, {}, {"batch_size": 4}, "batches of 4, 1 to a step.*batch_size=6"),
    "many epochs": (Small, {}, {"max_epochs": 2}, {}, "2 epochs.*refresh='task'"),
    "endless": (Small, EPOCH, {"max_epochs": -1}, {}, "any number of epochs"),
    "few steps": (Small, {}, {"max_steps": 3}, {}, "max_steps is 3.*8 steps"),
    "bfloat16": (Small, {}, {"precision": "bf16-mixed"}, {}, "precision is 'bf16-mixed'"),
    "clip": (Small, {}, {"gradient_clip_val": 0.5}, {}, "gradient_clip_val is 0.5"),
    "own clipping": (Clipping, {}, {}, {}, "own configure_gradient_clipping"),
    "manual": (Manual, {}, {}, {}, "automatic_optimization=False"),
    "rate": (lambda: Small(replace(LEARNER, lr=0.1)), {}, {}, {}, "optimiser is SGD\\(lr=0.1"),
    "scheduler": (Scheduled, {}, {}, {}, "a scheduler changes the rate"),
    "warm-up": (Warm, {}, {}, {}, "rate of step 1 is 0.0101"),
    "loss": (OtherLoss, {}, {}, {}, "half of the squared error"),
    "skipped": (Skipping, {}, {}, {}, "training_step returned None"),
    "sum": (Small, {"learner": SUM}, THREE, {"batch_size": 2}, "reduction='sum'"),
    "unfilled": (Small, {}, THREE, {"batch_size": 2}, "do not fill"),
    "swa": (Small, {}, {}, {}, "StochasticWeightAveraging"),
    "accumulation": (Small, {}, {}, {}, "GradientAccumulationScheduler"),
    "velocity": (
        stepped,
        {"learner": MOMENTUM},
        {},
        {},
        "has the velocity of earlier steps, but the corrector has seen 0 samples",
    ),
    "closed epochs": (Small, CLOSED, {"max_epochs": 2}, {}, "learned once"),
    "closed steps": (Small, CLOSED, {}, {"batch_size": 12}, "batch_size=12"),
    "closed warm-up": (Warm, CLOSED, {}, {}, "rate of step 0 is 0.0101"),
    "closed schedule": (
        Small,
        CLOSED | {"learner": replace(LEARNER, lr=[0.01] * 8)},
        {},
        {},
        "has a schedule",
    ),
    "closed accumulation": (Small, CLOSED, TWO, {}, "accumulate_grad_batches is 2"),
}
CALLBACKS = {
    "swa": lambda: StochasticWeightAveraging(0.1),
    "accumulation": lambda: GradientAccumulationScheduler({0: 1}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    kind, options, settings, loading, message = REFUSED[what]
    module = kind()
    ((x, y),) = tasks((44,) if what == "unfilled" else (48,))
    callback = correction(module, **options)
    before = [value.clone() for value in module.network.parameters()]
    others = [CALLBACKS[what]()] if what in CALLBACKS else []
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        trainer(callback, *others, **settings).fit(module, loader(x, y, **loading))
    assert "training_step" not in vars(module)
    if "warm-up" not in what:
        for value, old in zip(module.network.parameters(), before, strict=True):
            assert torch.equal(value, old)


def test_a_momentum_that_begins_anew_is_refused():
    module = Small(MOMENTUM)
    callback, (first, second) = correction(module, MOMENTUM), tasks()
    trainer(callback).fit(module, loader(*first))
    module.optimiser = sgd(module.network, MOMENTUM)
    with pytest.raises(InvalidInputError, match="new, without velocity, .* seen 48 samples"):
        trainer(callback).fit(module, loader(*second))


class Augmented(Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.asked = x, y, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.asked += 1
        return self.x[i] + self.asked, self.y[i]


class Shrinking:
    """A loader that gives a batch less each time; the Trainer begins it before it is corrected."""

    def __init__(self, batches):
        self.batches = list(batches)

    def __iter__(self):
        all_of_them = iter(self.batches)
        self.batches = self.batches[:-1]
        return all_of_them


class Once(Shrinking):
    """A loader that can be gone over once."""

    def __iter__(self):
        return self

    def __next__(self):
        return self.batches.pop()


X, Y = tasks()[0]
LOADERS = {
    "augmented": (lambda: DataLoader(Augmented(X, Y), 6), "batch 0 is not the one corrected"),
    "shrinking": (lambda: Shrinking(loader(X, Y)), "batch [67] is not the one corrected"),
    "once": (lambda: Once(loader(X, Y)), "is a Once, which can be gone over only once"),
    "several": (lambda: {"a": loader(X, Y), "b": loader(X, Y)}, "several training loaders"),
    "no targets": (lambda: DataLoader(TensorDataset(X), 6), "a list of 1"),
    "labels": (lambda: loader(X, torch.arange(48) % 6), "labels are 0 to 5, and .* 2 outputs"),
    "integers": (lambda: loader(X, Y.round().long()), "whole numbers of shape \\(48, 2\\)"),
}


@pytest.mark.parametrize("what", LOADERS)
def test_loaders_that_are_refused(what):
    given, message = LOADERS[what]
    module = Small()
    with pytest.raises(InvalidInputError, match=message):
        trainer(correction(module)).fit(module, given())


def test_several_devices_are_refused():
    module = Small()
    with pytest.raises(InvalidInputError, match="DDPStrategy of 1 processes"):
        trainer(correction(module), strategy="ddp", devices=1).fit(module, loader(X, Y))
    torch.distributed.destroy_process_group()


def test_places_that_are_not_in_a_batch_are_refused():
    module = Small()
    with pytest.raises(InvalidInputError, match="has no entry"):
        fitted(module, TargetCorrection(make(module.network), targets="y"))


def test_tangents_are_those_of_the_learner_itself(tmp_path):
    net, (first, second) = network(), tasks((50, 31))
    module = TangentLearner(rt.TangentLearner(net, 0.3, 80))
    fit = trainer()
    fit.fit(module, loader(*first, shuffle=True), loader(*second))
    fit.save_checkpoint(tmp_path / "tangent.ckpt")
    trainer().fit(module, loader(*second, batch_size=7), loader(*second))
    expected = rt.TangentLearner(net, 0.3, 80).learn(*first).learn(*second)
    found = torch.cat(trainer().predict(module, loader(*first)))
    torch.testing.assert_close(found, expected.predict(first[0]), rtol=0, atol=1e-10)

    tested = trainer().test(module, loader(*first, batch_size=50), verbose=False)[0]
    error = (found - first[1]).square().sum(1).mean() / 2
    assert tested["test_loss"] == pytest.approx(error.item(), 1e-6)

    other = TangentLearner(rt.TangentLearner(network(seed=9), 0.3, 80))
    trainer(max_epochs=2).fit(
        other, loader(*second), ckpt_path=tmp_path / "tangent.ckpt", weights_only=True
    )
    torch.testing.assert_close(other(first[0]), found, rtol=0, atol=1e-10)


def test_tangents_of_a_backbone_with_labels():
    net = nn.Sequential(nn.Linear(5, 30), nn.Tanh()).double()
    module = TangentLearner(rt.TangentLearner(net, 0.3, 80), classes=3)
    ((x, y),) = tasks((60,))
    labels = (y[:, 0] > 0).long() + (y[:, 1] > 0).long()
    fit = trainer()
    fit.fit(module, loader(x, labels), loader(x, labels))
    assert fit.callback_metrics["val_accuracy"] > 0.8
    assert torch.cat(trainer().predict(module, DataLoader(x, batch_size=25))).shape == (60, 3)


def test_what_the_tangent_module_refuses():
    module = TangentLearner(rt.TangentLearner(network(), 0.3, 80))
    with pytest.raises(InvalidInputError, match="max_epochs is 2 at epoch 0"):
        trainer(max_epochs=2).fit(module, loader(X, Y))
    with pytest.raises(InvalidInputError, match="precision is 'bf16-mixed'"):
        trainer(precision="bf16-mixed").fit(module, loader(X, Y))
    with pytest.raises(InvalidTypeError, match="expected an rt.TangentLearner"):
        TangentLearner(network())
    assert module.learner.samples == 0
