"""`CorrectedTrainer` against the same steps by hand, and everything that it refuses."""

from functools import partial

import pytest

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments  # noqa: E402

import retarget as rt  # noqa: E402
from retarget.errors import InvalidInputError, InvalidTypeError  # noqa: E402
from retarget.integrations.huggingface import CorrectedTrainer, true_targets  # noqa: E402

pytestmark = [
    # `pin_memory` on a machine without an accelerator, and a large target of so small a network
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning"),
    pytest.mark.filterwarnings("ignore::retarget.errors.LinearisationWarning"),
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


def by_trainer(folder, model, tasks=TASKS, corrector=CORRECTOR, extra=None, **options):
    trainer = CorrectedTrainer(
        model, arguments(folder, **options), corrector=corrector, **(extra or {})
    )
    for task in tasks:
        trainer.train_dataset = task
        trainer.train()
    return trainer


def tensors(task):
    parts = {key: torch.tensor([row[key] for row in task]) for key in task[0]}
    return parts, functional.one_hot(parts.pop("labels"), CLASSES).double()


def by_hand(
    model, learner, tasks=TASKS, loss="squared", optimizer=None, rates=None, first_true=False,
    corrector=CORRECTOR, smoothing=0.0,
):  # fmt: skip
    """The same written out; gives the targets of each task."""
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = optimizer or torch.optim.SGD(trained, lr=LR)
    given = {} if isinstance(optimizer, torch.optim.SGD) else {"preconditioner": optimizer}
    made, targets, step = corrector(model, learner, **given), [], 0
    for number, task in enumerate(tasks):
        X, Y = tensors(task)
        Y = (1 - smoothing) * Y + smoothing / CLASSES
        if rates is not None:
            seen = sum(len(each) for each in tasks[: number + 1]) // learner.batch_size
            made.learner = rt.SGD(rates[:seen], learner.batch_size, reduction="mean")
        if first_true and not number:
            made.resume([(X, Y)], Y)
            Z = Y
        else:
            Z = made.correct(X, Y)
        targets.append(Z)
        for rows in torch.arange(len(Z)).split(learner.batch_size):
            if rates is not None:
                optimizer.param_groups[0]["lr"] = rates[step]
            optimizer.zero_grad()
            logits = model(**{key: value[rows] for key, value in X.items()}).logits
            if loss == "squared":
                (logits - Z[rows]).square().sum(1).mean().div(2).backward()
            else:
                functional.cross_entropy(logits, Z[rows]).backward()
            optimizer.step()
            step += 1
    return targets


def assert_same_weights(one, other):
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=0, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
@pytest.mark.parametrize("trained", ["all", "classifier", "layer.1."])
def test_the_same_weights_as_by_hand(tmp_path, trained, loss):
    corrector = partial(CORRECTOR, loss=loss)
    model, same = bert(trained=trained), bert(trained=trained)
    trainer = by_trainer(tmp_path, model, corrector=corrector)
    learner = rt.SGD(LR, BATCH, reduction="mean")
    Z = by_hand(same, learner, loss=loss, corrector=corrector)
    assert_same_weights(model, same)
    assert (Z[1] - tensors(TASKS[1])[1]).abs().max() > 0.1  # there was something to correct
    assert trainer.corrector.learner == learner


@pytest.mark.parametrize("accumulated", [2, 4])
def test_accumulated_batches_are_one_batch(tmp_path, accumulated):
    # 16 and 12 samples: with four batches of 2, the last step of the last task is half as large
    model, same = bert(), bert()
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": accumulated}
    by_trainer(tmp_path, model, **options)
    by_hand(same, rt.SGD(LR, 2 * accumulated, reduction="mean"))
    assert_same_weights(model, same)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_is_the_learners(tmp_path, schedule):
    model, same = bert(), bert()
    trainer = by_trainer(tmp_path, model, lr_scheduler_type=schedule)
    rates = trainer.corrector.learner.lr
    if schedule == "linear":
        assert rates == pytest.approx([LR * part for part in (1, 0.75, 0.5, 0.25, 1, 2 / 3, 1 / 3)])
    by_hand(same, rt.SGD(LR, BATCH, reduction="mean"), rates=rates)
    assert_same_weights(model, same)


def test_momentum_goes_on_from_task_to_task(tmp_path):
    model, same = bert(), bert()
    made = [torch.optim.SGD(each.parameters(), lr=LR, momentum=0.5) for each in (model, same)]
    by_trainer(tmp_path, model, extra={"optimizers": (made[0], None)})
    by_hand(same, rt.SGD(LR, BATCH, momentum=0.5, reduction="mean"), optimizer=made[1])
    assert_same_weights(model, same)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_adamw_corrects_from_the_second_task_on(tmp_path, loss):
    corrector = partial(rt.NetworkCorrector, gamma=1e3, block_size=8, ridge=1e3, loss=loss)
    model, same = bert(), bert()
    trainer = by_trainer(
        tmp_path, model, corrector=corrector, optim="adamw_torch", learning_rate=1e-3
    )
    optimizer = torch.optim.AdamW(same.parameters(), lr=1e-3, weight_decay=0.0)
    learner = rt.SGD(1e-3, BATCH, reduction="mean")
    by_hand(same, learner, loss=loss, optimizer=optimizer, first_true=True, corrector=corrector)
    assert_same_weights(model, same)
    shifts = [each["target_shift"] for each in trainer_logs(trainer)]
    assert shifts[-1] > 0


def trainer_logs(trainer):
    return [each for each in trainer.state.log_history if "target_shift" in each]


def test_smoothed_labels_are_corrected(tmp_path):
    model, same = bert(), bert()
    by_trainer(tmp_path, model, label_smoothing_factor=0.2)
    by_hand(same, rt.SGD(LR, BATCH, reduction="mean"), smoothing=0.2)
    assert_same_weights(model, same)


@pytest.mark.parametrize(
    "options",
    [{"dataloader_num_workers": 2}, {"gradient_checkpointing": True}],
    ids=["workers", "checkpointing"],
)
def test_what_changes_nothing(tmp_path, options):
    model, same = bert(), bert()
    by_trainer(tmp_path, model, **options)
    by_hand(same, rt.SGD(LR, BATCH, reduction="mean"))
    assert_same_weights(model, same)


def test_dropped_samples_are_not_corrected(tmp_path):
    tasks = sentences(18, 1), sentences(15, 2)
    model, same = bert(), bert()
    by_trainer(tmp_path, model, tasks, dataloader_drop_last=True)
    by_hand(same, rt.SGD(LR, BATCH, reduction="mean"), [tasks[0][:16], tasks[1][:12]])
    assert_same_weights(model, same)


def test_several_epochs_are_corrected_anew(tmp_path):
    model, same = bert(), bert()
    corrector = partial(CORRECTOR, refresh="epoch")
    by_trainer(tmp_path, model, TASKS[:1], corrector, num_train_epochs=2)
    made = corrector(same, rt.SGD(LR, BATCH, reduction="mean"))
    X, Y = tensors(TASKS[0])
    optimizer = torch.optim.SGD(same.parameters(), lr=LR)
    for epoch in range(2):
        Z = made.recorrect() if epoch else made.correct(X, Y)
        for rows in torch.arange(16).split(BATCH):
            optimizer.zero_grad()
            logits = same(**{key: value[rows] for key, value in X.items()}).logits
            (logits - Z[rows]).square().sum(1).mean().div(2).backward()
            optimizer.step()
    assert_same_weights(model, same)


def test_the_closed_loop_block_by_block(tmp_path):
    model, same = bert(), bert()
    corrector = partial(rt.NetworkCorrector, gamma=1.0, block_size=8, memory=64)
    trainer = by_trainer(tmp_path, model, corrector=corrector)
    made = corrector(same, rt.SGD(LR, BATCH, reduction="mean"))
    optimizer = torch.optim.SGD(same.parameters(), lr=LR)
    for task in TASKS:
        X, Y = tensors(task)
        for block in torch.arange(len(Y)).split(8):
            Z = made.correct({key: value[block] for key, value in X.items()}, Y[block])
            for rows, z in zip(block.split(BATCH), Z.split(BATCH), strict=True):
                optimizer.zero_grad()
                logits = same(**{key: value[rows] for key, value in X.items()}).logits
                (logits - z).square().sum(1).mean().div(2).backward()
                optimizer.step()
    assert_same_weights(model, same)
    assert trainer_logs(trainer)[-1]["largest_target"] > 0


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_resumed_in_the_midst_of_a_task(tmp_path, schedule):
    whole, broken = bert(), bert()
    by_trainer(tmp_path / "whole", whole, lr_scheduler_type=schedule)
    options = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": schedule}
    by_trainer(tmp_path / "broken", broken, **options)  # writes checkpoint-2 of the second task
    again = CorrectedTrainer(
        bert(3), arguments(tmp_path / "broken", **options), corrector=CORRECTOR,
        train_dataset=TASKS[1],
    )  # fmt: skip
    again.train(resume_from_checkpoint=str(tmp_path / "broken" / "checkpoint-2"))
    assert_same_weights(again.model, whole)
    third = sentences(8, 5)
    again.train_dataset = third
    again.train()
    longer = bert()
    by_trainer(tmp_path / "longer", longer, (*TASKS, third), lr_scheduler_type=schedule)
    assert_same_weights(again.model, longer)


def test_resumed_where_a_task_was_complete(tmp_path):
    options = {"save_strategy": "epoch"}
    third, longer = sentences(8, 5), bert()
    by_trainer(tmp_path / "longer", longer, (*TASKS, third))
    by_trainer(tmp_path / "broken", bert(), **options)
    again = CorrectedTrainer(
        bert(3), arguments(tmp_path / "broken", **options), corrector=CORRECTOR,
        train_dataset=TASKS[1],
    )  # fmt: skip
    again.train(resume_from_checkpoint=str(tmp_path / "broken" / "checkpoint-3"))
    again.train_dataset = third
    again.train()
    assert_same_weights(again.model, longer)


def test_what_is_logged(tmp_path):
    trainer = CorrectedTrainer(
        bert(), arguments(tmp_path), corrector=CORRECTOR, train_dataset=TASKS[0]
    )
    trainer.train()
    (first,) = trainer_logs(trainer)
    X, Y = tensors(TASKS[0])
    Z = CORRECTOR(bert(), rt.SGD(LR, BATCH, reduction="mean")).correct(X, Y)
    assert first["target_shift"] == pytest.approx(float((Z - Y).square().mean().sqrt()))
    assert first["largest_target"] == pytest.approx(float(Z.abs().max()))
    assert "linearisation_error" not in first
    trainer.train_dataset = TASKS[1]
    trainer.train()
    (second,) = trainer_logs(trainer)
    assert second["linearisation_error"] == trainer.corrector.linearisation_error > 0


def test_evaluation_is_on_true_labels(tmp_path):
    trainer = by_trainer(tmp_path, bert(), TASKS[:1])
    X, Y = tensors(TASKS[1])
    with torch.no_grad():
        logits = trainer.model.eval()(**X).logits
    found = trainer.evaluate(TASKS[1])["eval_loss"]
    assert found == pytest.approx(float((logits - Y).square().sum(1).mean() / 2), rel=1e-6)
    assert trainer.predict(TASKS[1]).predictions.shape == (12, CLASSES)


REFUSED = [
    ({"train_sampling_strategy": "random"}, "set train_sampling_strategy='sequential'"),
    ({"max_grad_norm": 1.0}, "set max_grad_norm=0"),
    ({"bf16": True}, "fp16 or bf16 is set"),
    ({"max_steps": 3}, "max_steps is set"),
    ({"num_train_epochs": 1.5}, "num_train_epochs is 1.5; expected a whole number"),
    ({"auto_find_batch_size": True}, "auto_find_batch_size is set"),
    ({"torch_compile": True}, "torch_compile is set"),
    ({"label_names": ["label_ids"]}, "expected \\['labels'\\]"),
    ({"warmup_steps": 2, "lr_scheduler_type": "linear"}, "the rate of step 0 is 0.0"),
    ({"weight_decay": 0.1}, "lr \\* weight_decay differs between groups"),
    ({"optim": "adafactor"}, "the optimiser is a Adafactor; expected SGD, Adam or AdamW"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[next(iter(o)) for o, _ in REFUSED])
def test_habits_that_are_refused(tmp_path, options, message):
    model, same = bert(), bert()
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        by_trainer(tmp_path, model, **options)
    assert_same_weights(model, same)


@pytest.mark.parametrize(("name", "value"), [("world_size", 2), ("n_gpu", 2)])
def test_several_devices_are_refused(tmp_path, monkeypatch, name, value):
    trainer = CorrectedTrainer(
        bert(), arguments(tmp_path), corrector=CORRECTOR, train_dataset=TASKS[0]
    )
    monkeypatch.setattr(TrainingArguments, name, property(lambda self: value))
    with pytest.raises(InvalidInputError, match="several processes or devices"):
        trainer.train()


def test_the_best_model_at_the_end_is_refused(tmp_path):
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    with pytest.raises(InvalidInputError, match="load_best_model_at_end is set"):
        by_trainer(tmp_path, bert(), extra={"eval_dataset": TASKS[0]}, **options)


def test_losses_networks_and_schedulers_from_elsewhere_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="compute_loss_func is given"):
        by_trainer(tmp_path, bert(), extra={"compute_loss_func": lambda *_, **__: None})
    with pytest.raises(InvalidInputError, match="model_init makes a new network"):
        by_trainer(tmp_path, None, extra={"model_init": lambda: bert()})
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with pytest.raises(InvalidInputError, match="a scheduler is given"):
        by_trainer(tmp_path, model, extra={"optimizers": (optimizer, scheduler)})


def test_a_rate_that_follows_the_evaluation_is_refused(tmp_path):
    options = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}
    with pytest.raises(InvalidInputError, match="whose rates are not known beforehand"):
        by_trainer(tmp_path, bert(), extra={"eval_dataset": TASKS[0]}, **options)


def test_dropout_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="hidden_dropout_prob=0"):
        by_trainer(tmp_path, bert(dropout=0.1))


def test_shuffling_by_a_loader_of_ones_own_is_refused(tmp_path):
    class Shuffling(CorrectedTrainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(
                self.train_dataset, BATCH, shuffle=True, collate_fn=self.data_collator
            )

    trainer = Shuffling(bert(), arguments(tmp_path), corrector=CORRECTOR, train_dataset=TASKS[0])
    with pytest.raises(InvalidInputError, match="is not the one corrected"):
        trainer.train()


def test_batches_of_different_lengths_are_refused(tmp_path):
    def shorter(rows):
        longest = max(sum(row["attention_mask"]) for row in rows)
        keys = ("input_ids", "attention_mask")
        batch = {key: torch.tensor([row[key][:longest] for row in rows]) for key in keys}
        return batch | {"labels": torch.tensor([row["labels"] for row in rows])}

    with pytest.raises(InvalidInputError, match="pad all to one length"):
        by_trainer(tmp_path, bert(), [sentences(16, 8)], extra={"data_collator": shorter}, per_device_train_batch_size=1)  # fmt: skip  # noqa: E501


def test_samples_without_labels_are_refused(tmp_path):
    bare = [{key: row[key] for key in ("input_ids", "attention_mask")} for row in TASKS[0]]
    with pytest.raises(InvalidInputError, match="no batch with 'labels'"):
        by_trainer(tmp_path, bert(), [bare])


@pytest.mark.parametrize(
    ("labels", "smoothing", "message"),
    [
        (torch.tensor([0, 4]), 0.0, "labels go from 0 to 4; expected classes from 0 to 3"),
        (torch.tensor([0, -100]), 0.0, "labels go from -100 to 0"),
        (torch.zeros(2, 3, dtype=torch.long), 0.0, "labels of single tokens are not supported"),
        (torch.zeros(2), 0.1, "label_smoothing_factor is for classes"),
    ],
    ids=["too many", "ignored", "tokens", "smoothed numbers"],
)
def test_labels_that_are_refused(labels, smoothing, message):
    with pytest.raises(InvalidInputError, match=message):
        true_targets(labels, CLASSES, smoothing)


def test_numbers_as_labels():
    numbers = torch.tensor([0.5, -2.0])
    assert torch.equal(true_targets(numbers, 1, 0.0), numbers[:, None])
    assert torch.equal(true_targets(torch.ones(2, 3), 3, 0.0), torch.ones(2, 3))


def test_correctors_that_are_refused(tmp_path):
    with pytest.raises(InvalidTypeError, match="corrector is a float; expected what makes one"):
        by_trainer(tmp_path, bert(), corrector=1.0)
    with pytest.raises(InvalidTypeError, match="corrector made a dict"):
        by_trainer(tmp_path, bert(), corrector=lambda *_: {})
    with pytest.raises(InvalidInputError, match="freeze the others with requires_grad_"):
        by_trainer(tmp_path, bert(), corrector=partial(CORRECTOR, params="classifier"))
    loop = partial(rt.NetworkCorrector, gamma=1.0, block_size=8, memory=64)
    with pytest.raises(InvalidInputError, match="replay is 20, but Trainer trains on"):
        by_trainer(tmp_path, bert(), corrector=partial(loop, replay=20))
    with pytest.raises(InvalidInputError, match="the closed loop .memory=.... needs one rate"):
        by_trainer(tmp_path, bert(), corrector=loop, lr_scheduler_type="linear")
    with pytest.raises(InvalidInputError, match="each block is corrected once"):
        by_trainer(tmp_path, bert(), corrector=loop, num_train_epochs=2)


def test_a_task_that_ended_early_ends_the_stream(tmp_path):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    trainer = CorrectedTrainer(
        bert(), arguments(tmp_path), corrector=CORRECTOR, train_dataset=TASKS[0], callbacks=[Stop]
    )
    trainer.train()
    with pytest.raises(InvalidInputError, match="the last task ended after 4 of 16 samples"):
        trainer.train()


def test_checkpoints_that_are_refused(tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    trainer = CorrectedTrainer(
        bert(), arguments(tmp_path), corrector=CORRECTOR, train_dataset=TASKS[0]
    )
    with pytest.raises(InvalidInputError, match="holds no corrector.safetensors"):
        trainer.train(resume_from_checkpoint=True)
    options = {"save_strategy": "steps", "save_steps": 2}
    never = partial(CORRECTOR, refresh="never")
    by_trainer(tmp_path / "never", bert(), TASKS[:1], never, **options)
    trainer = CorrectedTrainer(
        bert(), arguments(tmp_path / "never", **options), corrector=never, train_dataset=TASKS[0]
    )
    with pytest.raises(InvalidInputError, match="only a corrector with refresh='task'"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "never" / "checkpoint-2"))
