"""Lightning on corrected targets ends where the same loop written by hand ends."""

import logging
from collections import namedtuple
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import retarget as rt
from retarget import continual
from retarget.errors import InvalidInputError, InvalidTypeError

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
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
]

LEARNER = rt.SGD(0.01, batch_size=6, reduction="mean")
OPTIONS = {"gamma": 20.0, "block_size": 12, "ridge": 3.0}


class Small(L.LightningModule):
    """Two outputs, trained on half of the squared error."""

    def __init__(self, learner=LEARNER, seed=3):
        super().__init__()
        torch.manual_seed(seed)
        self.network = nn.Sequential(nn.Linear(5, 300), nn.Tanh(), nn.Linear(300, 2)).double()
        self.learner, self.seen = learner, []
        rate = learner.lr if isinstance(learner.lr, float) else learner.lr[0]
        self.optimiser = torch.optim.SGD(
            self.network.parameters(),
            lr=rate,
            momentum=learner.momentum,
            weight_decay=learner.weight_decay,
        )

    def loss(self, x, z):
        each = (self.network(x) - z).square().sum(1) / 2
        return each.mean() if self.learner.reduction == "mean" else each.sum()

    def forward(self, x):
        return self.network(x)

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


def tasks(sizes=(48, 36), seed=0):
    random = torch.Generator().manual_seed(seed)
    for n in sizes:
        x = torch.randn(n, 5, generator=random).double()
        yield x, torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)


def loader(x, y, batch_size=6, **options):
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **options)


def correction(module, learner=LEARNER, **options):
    made = rt.NetworkCorrector(module.network, learner, **(OPTIONS | options))
    return TargetCorrection(made)


def by_hand(learner=LEARNER, streams=None, epochs=1, **options):
    """The weights after the same tasks in a plain loop."""
    module, options = Small(learner), OPTIONS | options
    corrector = rt.NetworkCorrector(module.network, learner, **options)
    step = 0
    for x, y in streams or tasks():
        for epoch in range(epochs):
            z = corrector.recorrect() if epoch else corrector.correct(x, y)
            batches = zip(x.split(learner.batch_size), z.split(learner.batch_size), strict=True)
            for inputs, targets in batches:
                for group in module.optimiser.param_groups:
                    group["lr"] = learner.rate(step)
                module.optimiser.zero_grad()
                module.loss(inputs, targets).backward()
                module.optimiser.step()
                step += 1
    return module


def assert_same(module, expected, tolerance=1e-10, start=Small):
    for mine, other in zip(module.network.parameters(), expected.network.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance)
    moved = start().network
    pairs = zip(moved.parameters(), module.network.parameters(), strict=True)
    gap = [(a - b).abs().max() for a, b in pairs]
    assert max(gap) > 1e-3  # something was learned


class Digits(L.LightningModule):
    def __init__(self, rate=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.rate = rate
        self.network = nn.Sequential(
            nn.Linear(64, 500, bias=False), nn.ReLU(), nn.Linear(500, 10, bias=False)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        y = y if y.is_floating_point() else nn.functional.one_hot(y, 10)
        return (self.network(x) - y).square().sum(1).mean() / 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)

    def accuracy(self):
        X, y, test = digits()
        with torch.no_grad():
            return (self.network(X[test]).argmax(1) == y[test]).float().mean().item()


def digits():
    X, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    return X.float() / 16, y, torch.arange(len(X)) % 4 == 0


def digit_tasks(batch_size, labels, **options):
    X, y, test = digits()
    Y = y if labels else nn.functional.one_hot(y, 10).float()
    for task in range(5):
        mine = ~test & (y // 2 == task)
        yield loader(X[mine], Y[mine], batch_size, **options)


def test_digits_two_at_a_time_on_true_targets():
    module = Digits()
    for task in digit_tasks(4, labels=True):
        trainer().fit(module, task)
    assert round(module.accuracy(), 2) == 0.20


@pytest.mark.parametrize("labels", [True, False], ids=["labels", "one-hot"])
def test_digits_two_at_a_time_on_corrected_targets(labels):
    module = Digits()
    learner = rt.SGD(0.1, batch_size=4, reduction="mean")
    options = {"gamma": 30.0, "block_size": 20, "ridge": 3.0}
    corrector = TargetCorrection(
        lambda module: rt.NetworkCorrector(module.network, learner, **options)
    )
    for task in digit_tasks(4, labels):
        trainer(corrector).fit(module, task)
    assert round(module.accuracy(), 2) == 0.88
    if labels:
        return
    plain = Digits()
    optimiser, by_hand = (
        plain.configure_optimizers(),
        rt.NetworkCorrector(plain.network, learner, **options),
    )
    for task in digit_tasks(4, labels):
        x, y = task.dataset.tensors
        z = by_hand.correct(x, y)
        for one in zip(x.split(4), z.split(4), strict=True):
            optimiser.zero_grad()
            plain.training_step(one, 0).backward()
            optimiser.step()
    assert_same(module, plain, 1e-6, Digits)


def test_digits_in_the_closed_loop():
    module = Digits()
    learner = rt.SGD(0.1, batch_size=40, reduction="mean")
    led = rt.NetworkCorrector(module.network, learner, 1.0, 40, memory=1024, replay=300)
    for task in digit_tasks(20, labels=True, shuffle=True):
        trainer(TargetCorrection(led)).fit(module, task)
    assert module.accuracy() > 0.94


def test_the_tangent_learner_is_above_replay_on_the_digits():
    X, y, test = digits()
    network = Digits().network
    module = TangentLearner(rt.TangentLearner(network, 1.0, 1024))
    held = loader(X[test], y[test], 100)
    for task in digit_tasks(32, labels=True, shuffle=True):
        fit = trainer()
        fit.fit(module, task, held)
    accuracy = float(fit.callback_metrics["val_accuracy"])
    streams = [(each.dataset.tensors) for each in digit_tasks(4, labels=True)]
    stream = continual.TaskStream.from_tasks(streams, test=[(X[test], y[test])] * 5)
    learner = rt.SGD(0.1, batch_size=4, reduction="mean")
    replay = continual.train(network, stream, learner, continual.ER(300)).final_accuracy[0]
    assert accuracy > 0.97 > 0.9 > replay - 0.05
    assert accuracy > replay


@pytest.mark.parametrize(
    "learner",
    [
        LEARNER,
        rt.SGD(0.002, batch_size=6, reduction="sum", weight_decay=0.01),
        rt.SGD(0.005, batch_size=6, reduction="mean", momentum=0.5),
    ],
    ids=["mean", "sum", "momentum"],
)
def test_weights_are_those_of_the_plain_loop(learner):
    module = Small(learner)
    callback = correction(module, learner)
    for x, y in tasks():
        trainer(callback).fit(module, loader(x, y))
    assert_same(module, by_hand(learner))


Pair = namedtuple("Pair", "inputs targets")


@pytest.mark.parametrize("form", ["list", "tuple", "named tuple", "dict", "reversed"])
def test_batches_of_every_form(form):
    module, where = Small(), {}

    def collate(rows):
        x, y = (torch.stack(each) for each in zip(*rows, strict=True))
        made = {
            "list": [x, y],
            "tuple": (x, y),
            "named tuple": Pair(x, y),
            "dict": {"name": "a", "x": x, "y": y},
            "reversed": (y, "a", x),
        }
        return made[form]

    step = module.training_step
    if form == "dict":
        where = {"inputs": "x", "targets": "y"}
        module.training_step = lambda batch, batch_idx: step((batch["x"], batch["y"]), 0)
    if form == "reversed":
        where = {"inputs": 2, "targets": 0}
        module.training_step = lambda batch, batch_idx: step((batch[2], batch[0]), 0)
    made = rt.NetworkCorrector(module.network, LEARNER, **OPTIONS)
    callback = TargetCorrection(lambda _: made, **where)
    for x, y in tasks():
        trainer(callback).fit(module, loader(x, y, collate_fn=collate))
    assert_same(module, by_hand())
    if form == "named tuple":
        assert isinstance(module.seen[0], Pair)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_several_workers_keep_the_order(persistent):
    module = Small()
    callback = correction(module)
    for x, y in tasks():
        trainer(callback).fit(module, loader(x, y, num_workers=2, persistent_workers=persistent))
    assert_same(module, by_hand())


def test_random_numbers_are_those_of_training_without_it():
    states = []
    for corrected in (False, True):
        module, (x, y) = Small(), next(tasks())
        torch.manual_seed(7)
        trainer(*[correction(module)] * corrected).fit(module, loader(x, y))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


class Halves(Small):
    """Takes its inputs in two parts."""

    def forward(self, left, right):
        return self.network(torch.cat([left, right], 1))

    def training_step(self, batch, batch_idx):
        error = self(batch["left"], batch["right"]) - batch["y"]
        return error.square().sum(1).mean() / 2


@pytest.mark.parametrize("inputs", [None, ["left", "right"]], ids=["all but the targets", "named"])
def test_inputs_of_several_parts(inputs):
    def collate(rows):
        x, y = (torch.stack(each) for each in zip(*rows, strict=True))
        names = {} if inputs is None else {"names": ["a"] * len(x)}
        return {"left": x[:, :2], "y": y, "right": x[:, 2:], **names}

    module = Halves()
    made = rt.NetworkCorrector(module, LEARNER, **OPTIONS)
    callback = TargetCorrection(made, inputs=inputs, targets="y")
    for x, y in tasks():
        trainer(callback).fit(module, loader(x, y, collate_fn=collate))
    assert_same(module, by_hand())


def test_what_the_loader_leaves_out_is_not_corrected():
    module, other = Small(), Small()
    callback, limited = correction(module), correction(other)
    shorter = [(x[:n], y[:n]) for (x, y), n in zip(tasks((50, 40)), (48, 36), strict=True)]
    for x, y in tasks((50, 40)):
        trainer(callback).fit(module, loader(x, y, drop_last=True))
        trainer(limited, limit_train_batches=len(x) // 6).fit(other, loader(x, y))
    expected = by_hand(streams=shorter)
    assert_same(module, expected)
    assert_same(other, expected)


def test_a_short_last_batch():
    module = Small()
    callback = correction(module)
    streams = list(tasks((40, 33)))
    for x, y in streams:
        trainer(callback).fit(module, loader(x, y))
    assert_same(module, by_hand(streams=streams))


def test_accumulated_batches_are_a_larger_batch():
    module = Small()
    callback = correction(module)
    for x, y in tasks():
        fit = trainer(callback, accumulate_grad_batches=3)
        fit.fit(module, loader(x, y, batch_size=2))
        assert fit.global_step == len(x) // 6
    assert_same(module, by_hand())


def test_double_precision_by_the_trainer():
    module = Small()
    module.network.float().double()
    callback = correction(module)
    for x, y in tasks():
        trainer(callback, precision="64-true").fit(module, loader(x.float(), y.float()))
    rounded = [(x.float().double(), y.float().double()) for x, y in tasks()]
    assert_same(module, by_hand(streams=rounded))


def test_several_epochs_are_corrected_each():
    module = Small()
    callback = correction(module, refresh="epoch")
    for x, y in tasks():
        trainer(callback, max_epochs=3).fit(module, loader(x, y))
    assert_same(module, by_hand(epochs=3, refresh="epoch"))


def test_one_trainer_for_all_tasks():
    module = Small()
    fit = trainer(correction(module))
    for x, y in tasks():
        fit.fit(module, loader(x, y))
        fit.fit_loop.max_epochs += 1
    assert_same(module, by_hand())


def test_the_module_itself_may_be_the_network():
    module = Small()
    callback = TargetCorrection(lambda module: rt.NetworkCorrector(module, LEARNER, **OPTIONS))
    for x, y in tasks():
        trainer(callback).fit(module, loader(x, y))
    assert_same(module, by_hand())


def test_a_schedule_that_is_described():
    rates = [0.01 * 0.95**step for step in range(8)]
    learner = replace(LEARNER, lr=rates)
    module = Small(learner)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(module.optimiser, 0.95)
    module.configure_optimizers = lambda: (
        [module.optimiser],
        [{"scheduler": scheduler, "interval": "step"}],
    )
    callback = correction(module, learner)
    for x, y in tasks((48,)):
        trainer(callback).fit(module, loader(x, y))
    assert_same(module, by_hand(learner, tasks((48,))))


@pytest.mark.parametrize("kind", ["rates", "Adam"])
def test_optimisers_that_are_a_preconditioner(kind):
    modules = Small(), Small()
    for module in modules:
        groups = [{"params": module.network[i].parameters(), "lr": r} for i, r in ((0, 2), (2, 1))]
        if kind == "rates":
            groups = [group | {"lr": 0.01 * group["lr"]} for group in groups]
            module.optimiser = torch.optim.SGD(groups)
        else:
            module.optimiser = torch.optim.Adam(module.network.parameters(), 0.001, (0.0, 0.999))
        for x, y in tasks((6,)):  # its second moments begin with a step
            module.loss(x, y).backward()
            module.optimiser.step()
    learner = replace(LEARNER, lr=0.02 if kind == "rates" else 0.001)
    module, plain = modules
    correctors = [
        rt.NetworkCorrector(each.network, learner, preconditioner=each.optimiser, **OPTIONS)
        for each in modules
    ]
    callback = TargetCorrection(correctors[0])
    for x, y in tasks():
        trainer(callback).fit(module, loader(x, y))
        z = correctors[1].correct(x, y)
        for inputs, targets in zip(x.split(6), z.split(6), strict=True):
            plain.optimiser.zero_grad()
            plain.loss(inputs, targets).backward()
            plain.optimiser.step()
    assert_same(module, plain)


@pytest.mark.parametrize("replay", [0, 30])
def test_the_closed_loop_is_that_of_the_plain_loop(replay):
    learner = rt.SGD(0.02, batch_size=12, reduction="mean")
    options = {"gamma": 0.5, "block_size": 12, "memory": 64, "replay": replay, "seed": 4}
    module, plain = Small(learner), Small(learner)
    callback = TargetCorrection(rt.NetworkCorrector(module.network, learner, **options))
    corrector = rt.NetworkCorrector(plain.network, learner, **options)
    for x, y in tasks():
        trainer(callback).fit(module, loader(x, y))
        for pair in zip(x.split(6), y.split(6), strict=True):
            plain.optimiser.zero_grad()
            plain.loss(*corrector.next_block(*pair)).backward()
            plain.optimiser.step()
    assert_same(module, plain)
    assert [len(batch[0]) for batch in module.seen[:3]] == ([6, 12, 12] if replay else [6, 6, 6])


class Scaled(Small):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] + 1, batch[1]]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * 0.5, batch[1]]


def test_samples_are_corrected_as_the_hooks_of_a_transfer_leave_them():
    module = Scaled()
    callback = correction(module)
    for x, y in tasks():
        trainer(callback).fit(module, loader(x, y))
    assert_same(module, by_hand(streams=[((x + 1) * 0.5, y) for x, y in tasks()]))


def test_buffers_are_changed_by_training_alone():
    module = Small()
    module.network.insert(1, nn.BatchNorm1d(300, affine=False).double())
    x, y = next(tasks())
    trainer(correction(module)).fit(module, loader(x, y))
    assert module.network[1].num_batches_tracked == 8


@pytest.mark.filterwarnings("ignore:Found 1 module")
def test_modes_of_the_network_stay_and_dropout_is_off_while_correcting():
    module = Small()
    module.network.insert(1, nn.Dropout(0.3))
    module.network[0].eval()
    x, y = next(tasks())
    callback = correction(module)
    trainer(callback).fit(module, loader(x, y))
    assert module.network[1].training
    assert not module.network[0].training


def test_what_is_logged(tmp_path):
    module = Small()
    callback = correction(module)
    metrics = []
    for x, y in tasks():
        fit = trainer(callback, logger=CSVLogger(tmp_path))
        fit.fit(module, loader(x, y))
        metrics.append({name: float(value) for name, value in fit.logged_metrics.items()})
        fit.logger.save()
    corrector = rt.NetworkCorrector(Small().network, LEARNER, **OPTIONS)
    x, y = next(tasks())
    z = corrector.correct(x, y)
    first, second = metrics
    assert first["retarget/shift"] == pytest.approx((z - y).square().mean().sqrt().item(), 1e-6)
    assert first["retarget/largest_target"] == pytest.approx(z.abs().max().item(), 1e-6)
    assert "retarget/linearisation_error" not in first
    assert second["retarget/linearisation_error"] == pytest.approx(
        callback.corrector.linearisation_error, 1e-6
    )
    written = (tmp_path / "lightning_logs" / "version_1" / "metrics.csv").read_text()
    assert "retarget/linearisation_error" in written.splitlines()[0]


@pytest.mark.parametrize("loop", ["open", "closed", "never"])
def test_a_checkpoint_goes_on_with_the_next_task(tmp_path, loop):
    options = {"memory": 64, "replay": 20, "ridge": 0.0} if loop == "closed" else {}
    learner = LEARNER
    if loop == "closed":
        learner = replace(LEARNER, batch_size=12)
    if loop == "never":
        options = {"refresh": "never"}
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
    assert_same(resumed, whole)


def test_a_checkpoint_from_the_middle_of_a_task_is_refused(tmp_path):
    module, (x, y) = Small(), next(tasks())

    class Saver(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if index == 3:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    trainer(correction(module), Saver()).fit(module, loader(x, y))
    with pytest.raises(InvalidInputError, match="middle of a task, 4 batches before its end"):
        trainer(correction(module)).fit(module, loader(x, y), ckpt_path=tmp_path / "middle.ckpt")


def test_a_fit_that_broke_off_is_not_gone_on_from():
    module, (x, y) = Small(), next(tasks())
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


class Augmented(Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.asked = x, y, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.asked += 1
        return self.x[i] + self.asked, self.y[i]


class Clipping(Small):
    def configure_gradient_clipping(self, *given, **more):
        pass


class Manual(Small):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Adam(Small):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Scheduled(Small):
    def configure_optimizers(self):
        return [self.optimiser], [torch.optim.lr_scheduler.ExponentialLR(self.optimiser, 0.9)]


class OtherLoss(Small):
    def loss(self, x, z):
        return 3 * nn.functional.mse_loss(self.network(x), z)


class Skipping(Small):
    def training_step(self, batch, batch_idx):
        return None


class Head(Small):
    def configure_optimizers(self):
        return torch.optim.SGD(self.network[2].parameters(), lr=0.01)


class Warm(Small):
    def on_train_batch_start(self, batch, batch_idx):
        self.optimiser.param_groups[0]["lr"] = 0.01 * 1.01**batch_idx


class Rates(Small):
    def configure_optimizers(self):
        groups = [{"params": layer.parameters(), "lr": rate} for layer, rate in self.layers()]
        return torch.optim.SGD(groups)

    def layers(self):
        return (self.network[0], 0.01), (self.network[2], 0.002)


REFUSED = {
    "shuffle": (Small, {}, {}, {"shuffle": True}, "RandomSampler.*use shuffle=False"),
    "out of order": (Small, {}, {}, {"num_workers": 1, "in_order": False}, "in_order=True"),
    "batch size": (Small, {}, {}, {"batch_size": 4}, "batches of 4, 1 to a step.*batch_size=6"),
    "many epochs": (Small, {}, {"max_epochs": 2}, {}, "2 epochs.*refresh='task'"),
    "endless": (Small, {"refresh": "epoch"}, {"max_epochs": -1}, {}, "any number of epochs"),
    "few steps": (Small, {}, {"max_steps": 3}, {}, "max_steps is 3.*8 steps"),
    "bfloat16": (Small, {}, {"precision": "bf16-mixed"}, {}, "precision is 'bf16-mixed'"),
    "clip": (Small, {}, {"gradient_clip_val": 0.5}, {}, "gradient_clip_val is 0.5"),
    "own clipping": (Clipping, {}, {}, {}, "own configure_gradient_clipping"),
    "manual": (Manual, {}, {}, {}, "automatic_optimization=False"),
    "Adam": (Adam, {}, {}, {}, "optimizer is a Adam; expected a torch.optim.SGD"),
    "rate": (lambda: Small(replace(LEARNER, lr=0.1)), {}, {}, {}, "optimiser is SGD\\(lr=0.1"),
    "scheduler": (Scheduled, {}, {}, {}, "a scheduler changes the rate"),
    "warm-up": (Warm, {}, {}, {}, "rate of step 1 is 0.0101"),
    "loss": (OtherLoss, {}, {}, {}, "half of the squared error"),
    "skipped": (Skipping, {}, {}, {}, "training_step returned None"),
    "head": (Head, {}, {}, {}, "does not train 0.weight"),
    "rates": (Rates, {}, {}, {}, "have the rates \\[0.002, 0.01\\]"),
    "sum": (Small, {}, {"accumulate_grad_batches": 3}, {"batch_size": 2}, "reduction='sum'"),
    "unfilled": (Small, {}, {"accumulate_grad_batches": 3}, {"batch_size": 2}, "do not fill"),
    "swa": (Small, {}, {}, {}, "StochasticWeightAveraging"),
    "accumulation": (Small, {}, {}, {}, "GradientAccumulationScheduler"),
    "closed epochs": (Small, {"memory": 8, "ridge": 0.0}, {"max_epochs": 2}, {}, "learned once"),
    "closed steps": (Small, {"memory": 8, "ridge": 0.0}, {}, {"batch_size": 12}, "batch_size=12"),
    "closed warm-up": (
        Warm,
        {"memory": 8, "ridge": 0.0},
        {},
        {},
        "rate of step 0 is 0.0101",
    ),
    "closed schedule": (Small, {"memory": 8, "ridge": 0.0}, {}, {}, "has a schedule"),
    "closed accumulation": (
        Small,
        {"memory": 8, "ridge": 0.0},
        {"accumulate_grad_batches": 2},
        {},
        "accumulate_grad_batches is 2",
    ),
}
CALLBACKS = {
    "swa": lambda: StochasticWeightAveraging(0.1),
    "accumulation": lambda: GradientAccumulationScheduler({0: 1}),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_what_is_refused(what):
    kind, options, settings, loading, message = REFUSED[what]
    learner = replace(LEARNER, reduction="sum") if what == "sum" else LEARNER
    if what == "closed schedule":
        learner = replace(LEARNER, lr=[0.01] * 8)
    module = kind()
    ((x, y),) = tasks((44,) if what == "unfilled" else (48,))
    callback = correction(module, learner, **options)
    before = [value.clone() for value in module.network.parameters()]
    others = [CALLBACKS[what]()] if what in CALLBACKS else []
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        trainer(callback, *others, **settings).fit(module, loader(x, y, **loading))
    assert "training_step" not in vars(module)
    if "warm-up" not in what:
        for value, old in zip(module.network.parameters(), before, strict=True):
            assert torch.equal(value, old)


def test_a_momentum_that_begins_anew_is_refused():
    learner = rt.SGD(0.005, batch_size=6, reduction="mean", momentum=0.5)
    module = Small(learner)
    callback, (first, second) = correction(module, learner), tasks()
    trainer(callback).fit(module, loader(*first))
    module.optimiser = torch.optim.SGD(module.network.parameters(), lr=0.005, momentum=0.5)
    with pytest.raises(InvalidInputError, match="new, without the velocity of the 48 samples"):
        trainer(callback).fit(module, loader(*second))


def test_samples_that_change_from_pass_to_pass_are_refused():
    module, (x, y) = Small(), next(tasks())
    with pytest.raises(InvalidInputError, match="batch 0 is not the one corrected"):
        trainer(correction(module)).fit(module, DataLoader(Augmented(x, y), batch_size=6))


class Shrinking:
    """A loader that gives a batch less each time; the Trainer begins it before it is corrected."""

    def __init__(self, batches):
        self.batches = list(batches)

    def __iter__(self):
        all_of_them = iter(self.batches)
        self.batches = self.batches[:-1]
        return all_of_them


def test_batches_that_were_not_there_before_are_refused():
    module, (x, y) = Small(), next(tasks())
    with pytest.raises(InvalidInputError, match="batch [67] is not the one corrected"):
        trainer(correction(module)).fit(module, Shrinking(loader(x, y)))


class Once:
    """A loader that can be gone over once."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)


def test_loaders_that_are_refused():
    module, (x, y) = Small(), next(tasks())
    with pytest.raises(InvalidInputError, match="is a Once, which can be gone over only once"):
        trainer(correction(module)).fit(module, Once(loader(x, y)))
    with pytest.raises(InvalidInputError, match="there are 2 training loaders"):
        trainer(correction(module)).fit(module, {"a": loader(x, y), "b": loader(x, y)})
    with pytest.raises(InvalidInputError, match="gives batches of 48"):
        trainer(correction(module)).fit(module, loader(x, y, batch_size=48))


def test_several_devices_are_refused():
    module, (x, y) = Small(), next(tasks())
    with pytest.raises(InvalidInputError, match="DDPStrategy of 1 processes"):
        trainer(correction(module), strategy="ddp", devices=1).fit(module, loader(x, y))
    torch.distributed.destroy_process_group()


def test_entries_that_are_not_there_are_refused():
    module, (x, y) = Small(), next(tasks())
    made = rt.NetworkCorrector(module.network, LEARNER, **OPTIONS)
    with pytest.raises(InvalidInputError, match="has no entry"):
        trainer(TargetCorrection(made, targets="y")).fit(module, loader(x, y))
    named = DataLoader(TensorDataset(x), batch_size=6)
    with pytest.raises(InvalidInputError, match="a list of 1"):
        trainer(TargetCorrection(made)).fit(module, named)
    with pytest.raises(InvalidInputError, match="class labels are 0 to 5, and there are 2 outputs"):
        trainer(TargetCorrection(made)).fit(module, loader(x, torch.arange(48) % 6))
    whole = y.round().long()
    with pytest.raises(InvalidInputError, match="whole numbers of shape \\(48, 2\\)"):
        trainer(TargetCorrection(made)).fit(module, loader(x, whole))
    with pytest.raises(InvalidTypeError, match="corrector is 3"):
        TargetCorrection(3)
    with pytest.raises(InvalidTypeError, match="corrector made a int"):
        trainer(TargetCorrection(lambda module: 3)).fit(module, loader(x, y))


def test_tangents_are_those_of_the_learner_itself(tmp_path):
    network, (first, second) = Small().network, tasks((50, 31))
    module = TangentLearner(rt.TangentLearner(network, 0.3, 80))
    fit = trainer()
    fit.fit(module, loader(*first, shuffle=True), loader(*second))
    fit.save_checkpoint(tmp_path / "tangent.ckpt")
    trainer().fit(module, loader(*second, batch_size=7), loader(*second))
    expected = rt.TangentLearner(network, 0.3, 80).learn(*first).learn(*second)
    found = torch.cat(trainer().predict(module, loader(*first)))
    torch.testing.assert_close(found, expected.predict(first[0]), rtol=0, atol=1e-10)

    tested = trainer().test(module, loader(*first, batch_size=50), verbose=False)[0]
    error = (found - first[1]).square().sum(1).mean() / 2
    assert tested["test_loss"] == pytest.approx(error.item(), 1e-6)

    other = TangentLearner(rt.TangentLearner(Small(seed=9).network, 0.3, 80))
    trainer(max_epochs=2).fit(
        other, loader(*second), ckpt_path=tmp_path / "tangent.ckpt", weights_only=True
    )
    torch.testing.assert_close(other(first[0]), found, rtol=0, atol=1e-10)


def test_tangents_of_a_backbone_with_labels():
    network = nn.Sequential(nn.Linear(5, 30), nn.Tanh()).double()
    module = TangentLearner(rt.TangentLearner(network, 0.3, 80), classes=3)
    x, y = next(tasks((60,)))
    labels = (y[:, 0] > 0).long() + (y[:, 1] > 0).long()
    fit = trainer()
    fit.fit(module, loader(x, labels), loader(x, labels))
    assert fit.callback_metrics["val_accuracy"] > 0.8
    assert torch.cat(trainer().predict(module, DataLoader(x, batch_size=25))).shape == (60, 3)


def test_what_the_tangent_module_refuses():
    module = TangentLearner(rt.TangentLearner(Small().network, 0.3, 80))
    data = loader(*next(tasks()))
    with pytest.raises(InvalidInputError, match="max_epochs is 2 at epoch 0"):
        trainer(max_epochs=2).fit(module, data)
    with pytest.raises(InvalidInputError, match="precision is 'bf16-mixed'"):
        trainer(precision="bf16-mixed").fit(module, data)
    with pytest.raises(InvalidTypeError, match="expected an rt.TangentLearner"):
        TangentLearner(Small().network)
    assert module.learner.samples == 0
