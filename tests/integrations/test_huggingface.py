"""`TargetCorrectionTrainer` against the same steps by hand, and everything that it refuses."""

from functools import partial

import pytest

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments  # noqa: E402

import retarget as rt  # noqa: E402
from retarget.errors import InvalidInputError, InvalidTypeError  # noqa: E402
from retarget.integrations.huggingface import TargetCorrectionTrainer, smoothed_targets  # noqa: E402
from support.corrected_training import Penalty, arguments_in, assert_same, by_hand  # noqa: E402

pytestmark = [
    # `pin_memory` on a machine without an accelerator, and a large target of so small a network
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning"),
    pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning"),
    pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning"),
]

CLASSES, BATCH, LR = 4, 4, 0.02


def bert(seed=0, dropout=0.0, trained="all"):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=12, num_labels=CLASSES,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config).double()
    if trained != "all":
        for name, value in model.named_parameters():
            value.requires_grad_(trained in name)
    return model


def sentences(n, seed=0, classes=(0, 1)):
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 20, (n, 10), generator=random)
    mask = (torch.arange(10) < torch.randint(5, 11, (n, 1), generator=random)).long()
    labels = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=random)]
    ids[:, 1] = labels + 3
    rows = zip((ids * mask).tolist(), mask.tolist(), labels.tolist(), strict=True)
    return [{"input_ids": i, "attention_mask": m, "labels": label} for i, m, label in rows]


TASKS = sentences(16, 1, (0, 1)), sentences(12, 2, (2, 3))


def arguments(folder, **options):
    defaults = {
        "output_dir": str(folder), "per_device_train_batch_size": BATCH, "learning_rate": LR,
        "optim": "sgd", "train_sampling_strategy": "sequential", "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant", "num_train_epochs": 1, "save_strategy": "no",
        "report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": 1000,
    }  # fmt: skip
    return TrainingArguments(**(defaults | options))


CORRECTOR = partial(rt.NetworkCorrector, gamma=2.0, block_size=8, ridge=0.5)
AUTO = partial(rt.NetworkCorrector, gamma="auto", block_size=8)
CLOSED = partial(rt.ClosedLoopCorrector, gamma=1.0, block_size=8, features=64, replay=0)
LEARNER = rt.SGD(LR, BATCH, reduction="mean")


def by_trainer(folder, model, tasks=TASKS, corrector=CORRECTOR, extra=None, **options):
    given = {"corrector": corrector, "train_dataset": tasks[0]} | (extra or {})
    trainer = TargetCorrectionTrainer(model, arguments(folder, **options), **given)
    for task in tasks:
        trainer.train_dataset = task
        trainer.train()
    return trainer


def tensors(task):
    parts = {key: torch.tensor([row[key] for row in task]) for key in task[0]}
    return parts, functional.one_hot(parts.pop("labels"), CLASSES).double()


def assert_like_by_hand(
    model, corrector=CORRECTOR, learner=LEARNER, streams=None, trained="all", corrects=True, **how
):
    """The model's weights are those of the plain loop, in which there is something to correct."""
    same = bert(trained=trained)
    streams = [tensors(task) for task in TASKS] if streams is None else streams
    Z = by_hand(same, corrector(same, learner), streams, **how)
    assert not corrects or (Z[-1] - streams[-1][1][-len(Z[-1]) :]).abs().max() > 0.1
    assert_same(model, same)


def accumulated(batches):
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": batches}
    return options, {"learner": rt.SGD(LR, 2 * batches, reduction="mean")}


SMOOTHED = [(X, 0.8 * Y + 0.2 / CLASSES) for X, Y in map(tensors, TASKS)]
ODD = sentences(18, 1), sentences(15, 2)
WHOLE = [tensors(ODD[0][:16]), tensors(ODD[1][:12])]
EPOCHS, ENTROPY = partial(CORRECTOR, refresh="epoch"), partial(CORRECTOR, loss="cross-entropy")
# The Trainer's options, and what the plain loop is given.
LIKE_BY_HAND = {
    "all is trained": ({}, {}),
    "the head is trained": ({}, {"trained": "classifier"}),
    "cross-entropy": ({"corrector": ENTROPY}, {"corrector": ENTROPY, "trained": "layer.1."}),
    "gamma chosen": ({"corrector": AUTO}, {"corrector": AUTO, "corrects": False}),
    "accumulated": accumulated(2),
    "half a last step": accumulated(4),  # of the 12 samples in steps of 8
    "smoothed labels": ({"label_smoothing_factor": 0.2}, {"streams": SMOOTHED}),
    "dropped": ({"tasks": ODD, "dataloader_drop_last": True}, {"streams": WHOLE}),
    "epochs": ({"corrector": EPOCHS, "num_train_epochs": 2}, {"corrector": EPOCHS, "epochs": 2}),
    "closed": ({"corrector": CLOSED}, {"corrector": CLOSED, "block": 8}),
    "workers": ({"dataloader_num_workers": 2}, {}),
    "checkpointing": ({"gradient_checkpointing": True}, {}),
}


@pytest.mark.parametrize("what", LIKE_BY_HAND)
def test_the_same_weights_as_by_hand(tmp_path, what):
    options, by_hand = LIKE_BY_HAND[what]
    trainer = by_trainer(tmp_path, bert(trained=by_hand.get("trained", "all")), **options)
    assert_like_by_hand(trainer.model, **by_hand)
    assert trainer_logs(trainer)[-1]["largest_target"] > 0
    made = trainer.corrector
    assert bool(getattr(made, "trials", ())) == (made.options.gamma == "auto")
    assert trainer.corrector.learner == by_hand.get("learner", LEARNER)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_is_the_learners(tmp_path, schedule):
    trainer, same = by_trainer(tmp_path, bert(), lr_scheduler_type=schedule), bert()
    rates, corrector = trainer.corrector.learner.lr, CORRECTOR(same, LEARNER)
    if schedule == "linear":
        assert rates == pytest.approx([LR * part for part in (1, 0.75, 0.5, 0.25, 1, 2 / 3, 1 / 3)])

    def streams():
        for task, steps in zip(TASKS, (4, 7), strict=True):
            corrector.learner = rt.SGD(rates[:steps], BATCH, reduction="mean")
            yield tensors(task)

    by_hand(same, corrector, streams())
    assert_same(trainer.model, same)


def test_momentum_goes_on_from_task_to_task(tmp_path):
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    by_trainer(tmp_path, model, extra={"optimizers": (optimizer, None)})
    assert_like_by_hand(model, learner=rt.SGD(LR, BATCH, momentum=0.5, reduction="mean"))


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_adamw_corrects_from_the_second_task_on(tmp_path, loss):
    corrector = partial(rt.NetworkCorrector, gamma=1e3, block_size=8, ridge=1e3, loss=loss)
    options = {"optim": "adamw_torch", "learning_rate": 1e-3}
    trainer, same = by_trainer(tmp_path, bert(), corrector=corrector, **options), bert()
    optimizer = torch.optim.AdamW(same.parameters(), lr=1e-3, weight_decay=0.0)
    learner = rt.SGD(1e-3, BATCH, reduction="mean")
    made = corrector(same, learner, preconditioner=optimizer)
    by_hand(same, made, map(tensors, TASKS), optimizer=optimizer, first_true=True)
    assert_same(trainer.model, same)
    assert trainer_logs(trainer)[-1]["target_shift"] > 0


def trainer_logs(trainer):
    return [each for each in trainer.state.log_history if "target_shift" in each]


STEPS, EPOCH = {"save_strategy": "steps", "save_steps": 2}, {"save_strategy": "epoch"}


@pytest.mark.parametrize(
    ("schedule", "saved", "checkpoint"),
    [("constant", STEPS, 2), ("linear", STEPS, 2), ("constant", EPOCH, 3)],
    ids=["in a task", "in a task, scheduled", "after a task"],
)
def test_resumed_from_a_checkpoint_of_the_second_task(tmp_path, schedule, saved, checkpoint):
    third, options = sentences(8, 5), saved | {"lr_scheduler_type": schedule}
    expected = by_trainer(tmp_path, bert(), (*TASKS, third), lr_scheduler_type=schedule)
    by_trainer(tmp_path / "broken", bert(), **options)
    given = {"corrector": CORRECTOR, "train_dataset": TASKS[1]}
    again = TargetCorrectionTrainer(bert(3), arguments(tmp_path / "broken", **options), **given)
    again.train(resume_from_checkpoint=str(tmp_path / "broken" / f"checkpoint-{checkpoint}"))
    again.train_dataset = third
    again.train()
    assert_same(again.model, expected.model)


def test_what_is_logged_and_evaluated(tmp_path):
    trainer = by_trainer(tmp_path, bert(), TASKS[:1])
    (first,) = trainer_logs(trainer)
    X, Y = tensors(TASKS[0])
    Z = CORRECTOR(bert(), LEARNER).correct(X, Y)
    assert first["target_shift"] == pytest.approx(float((Z - Y).square().mean().sqrt()))
    assert "linearization_error" not in first
    X, Y = tensors(TASKS[1])
    with torch.no_grad():
        logits = trainer.model.eval()(**X).logits
    found = trainer.evaluate(TASKS[1])["eval_loss"]
    assert found == pytest.approx(float((logits - Y).square().sum(1).mean() / 2), rel=1e-6)
    assert trainer.predict(TASKS[1]).predictions.shape == (12, CLASSES)
    trainer.train_dataset = TASKS[1]
    trainer.train()
    (second,) = trainer_logs(trainer)
    assert second["linearization_error"] == trainer.corrector.linearization_error > 0


def test_the_log_says_what_was_tried(tmp_path):
    trainer = by_trainer(tmp_path, bert(), TASKS[:1], corrector=rt.NetworkCorrector)
    (first,) = trainer_logs(trainer)
    plain, *others = trainer.corrector.trials
    assert first["corrected"] == (not plain.chosen)
    assert first["loss_on_true_targets"] == plain.error
    assert first["loss_on_corrected_targets"] == min(trial.error for trial in others)


def shorter(rows):
    """Batches that are padded to the longest of their own sentences."""
    longest = max(sum(row["attention_mask"]) for row in rows)
    keys = ("input_ids", "attention_mask")
    batch = {key: torch.tensor([row[key][:longest] for row in rows]) for key in keys}
    return batch | {"labels": torch.tensor([row["labels"] for row in rows])}


EVALUATED = {"eval_strategy": "epoch", "extra": {"eval_dataset": TASKS[0]}}
BEST = EVALUATED | {"save_strategy": "epoch", "load_best_model_at_end": True}
PLATEAU = EVALUATED | {"lr_scheduler_type": "reduce_lr_on_plateau"}
PADDED = {"extra": {"data_collator": shorter}, "per_device_train_batch_size": 1}
BARE = [{key: row[key] for key in ("input_ids", "attention_mask")} for row in TASKS[0]]
REFUSED = {
    # by the checks that all adapters share
    "corrector": ({"corrector": 1.0}, "corrector is 1.0; expected a function that makes"),
    "made": ({"corrector": lambda *_: {}}, "corrector made a dict"),
    "parameters": ({"corrector": partial(CORRECTOR, params="classifier")}, "trains bert"),
    # by Trainer's own
    "order": ({"train_sampling_strategy": "random"}, "one order; set TrainingArg.*='sequential'"),
    "clipping": ({"max_grad_norm": 1.0}, "max_grad_norm is 1.0.*max_grad_norm=0"),
    "bf16": ({"bf16": True}, "bf16 is True"),
    "steps": ({"max_steps": 3}, "max_steps is 3"),
    "epochs": ({"num_train_epochs": 1.5}, "num_train_epochs is 1.5; expected a whole number"),
    "batch size": ({"auto_find_batch_size": True}, "auto_find_batch_size is True"),
    "compiled": ({"torch_compile": True}, "torch_compile is True"),
    "label names": ({"label_names": ["label_ids"]}, "expected \\['labels'\\]"),
    "warm-up": ({"warmup_steps": 2, "lr_scheduler_type": "linear"}, "rate of step 0 is 0.0"),
    "decay": ({"weight_decay": 0.1}, "lr \\* weight_decay is 0, but .*set .*weight_decay=0.0"),
    "optimizer": ({"optim": "adafactor"}, "is Adafactor; expected torch's .*optim='sgd'"),
    "best": (BEST, "load_best_model_at_end is True"),
    "plateau": (PLATEAU, "whose rates are not known beforehand"),
    "loss": ({"extra": {"compute_loss_func": max}}, "compute_loss_func is given"),
    "network": ({"model": None, "extra": {"model_init": lambda: bert()}}, "model_init makes a"),
    "dropout": ({"model": partial(bert, dropout=0.1)}, "hidden_dropout_prob=0"),
    "padding": (PADDED, "pad all to one length"),
    "no labels": ({"tasks": [BARE]}, "no batch with 'labels'"),
    "replay": ({"corrector": partial(CLOSED, replay=20)}, "replay is 20, but Trainer trains on"),
    "closed twice": (
        {"corrector": CLOSED, "num_train_epochs": 2},
        "2 epochs, but in the closed loop",
    ),
    "closed, scheduled": ({"corrector": CLOSED, "lr_scheduler_type": "linear"}, "needs one rate"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_before_anything_is_trained(tmp_path, what):
    options, message = REFUSED[what]
    given = {"model": bert, "tasks": TASKS} | options
    made = given.pop("model")
    model = made and made()
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        by_trainer(tmp_path, model, **given)
    if what not in ("network", "dropout"):
        assert_same(model, bert(), tolerance=0)


def test_everything_wrong_is_said_at_once(tmp_path):
    wrong = {
        "train_sampling_strategy": "random", "max_grad_norm": 1.0, "bf16": True,
        "lr_scheduler_type": "linear", "warmup_steps": 2, "weight_decay": 0.1, "optim": "adafactor",
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match="^6 things would make corrected") as caught:
        by_trainer(tmp_path, bert(dropout=0.1), **wrong)
    message = str(caught.value)
    for reason in (
        "is Adafactor",
        "rate of step 0 is 0.0",
        "hidden_dropout_prob=0",
        "bf16 is True",
    ):
        assert reason in message
    right = arguments_in(message, "TrainingArguments")
    expected = {"optim": "sgd", "weight_decay": 0.0, "warmup_steps": 0, "max_grad_norm": 0}
    assert expected.items() <= right.items()
    trainer = by_trainer(tmp_path, bert(), **(wrong | right))
    assert_like_by_hand(trainer.model)


class Anchored(TargetCorrectionTrainer):
    penalty = None

    def compute_loss(self, model, *args, **kwargs):
        return super().compute_loss(model, *args, **kwargs) + self.penalty(model)


@pytest.mark.parametrize("options", [(1.0,), (2.0, True)], ids=["L2-SP", "EWC"])
@pytest.mark.parametrize("batches", [1, 2], ids=["steps", "accumulated"])
def test_penalties_that_start_at_zero_are_found(tmp_path, options, batches):
    args = arguments(tmp_path, gradient_accumulation_steps=batches)
    trainer = Anchored(bert(), args, corrector=CORRECTOR, train_dataset=TASKS[0])
    trainer.penalty = Penalty(*options)
    with pytest.raises(InvalidInputError, match="at step 1 .* gradients differ by"):
        trainer.train()


@pytest.mark.parametrize("name", ["world_size", "n_gpu"])
def test_several_devices_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(TrainingArguments, name, 2)
    with pytest.raises(InvalidInputError, match="several processes or devices"):
        by_trainer(tmp_path, bert())


def test_schedulers_and_loaders_from_elsewhere(tmp_path, monkeypatch):
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with pytest.raises(InvalidInputError, match="a scheduler is given"):
        by_trainer(tmp_path, model, extra={"optimizers": (optimizer, scheduler)})

    def shuffled(trainer):
        data, collate = trainer.train_dataset, trainer.data_collator
        return DataLoader(data, BATCH, shuffle=True, collate_fn=collate)

    monkeypatch.setattr(TargetCorrectionTrainer, "get_train_dataloader", shuffled)
    with pytest.raises(InvalidInputError, match="is not the one corrected"):
        by_trainer(tmp_path, model)


def test_numbers_as_labels():
    numbers = torch.tensor([0.5, -2.0])
    assert torch.equal(smoothed_targets(numbers, 1, 0.0), numbers[:, None])
    assert torch.equal(smoothed_targets(torch.ones(2, 3), 3, 0.0), torch.ones(2, 3))
    with pytest.raises(InvalidInputError, match="label_smoothing_factor is for classes"):
        smoothed_targets(numbers, 1, 0.1)


class Stop(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


def test_tasks_that_cannot_be_gone_on_from(tmp_path):
    trainer = by_trainer(tmp_path, bert(), TASKS[:1], extra={"callbacks": [Stop]})
    with pytest.raises(InvalidInputError, match="after 4 of 16 samples"):
        trainer.train()
    (tmp_path / "checkpoint-9").mkdir()
    complete = by_trainer(tmp_path, bert(), TASKS[:1])
    with pytest.raises(InvalidInputError, match="holds no corrector.safetensors"):
        complete.train(resume_from_checkpoint=True)
    never = partial(CORRECTOR, refresh="never")
    trainer = by_trainer(tmp_path / "never", bert(), TASKS[:1], never, **STEPS)
    with pytest.raises(InvalidInputError, match="NetworkCorrector with refresh='task'"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "never" / "checkpoint-2"))
