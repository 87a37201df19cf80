"""Corrected targets in Hugging Face's `Trainer`.

Needs the extra: `pip install ".[huggingface]"`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from retarget.engine.losses import row_losses
from retarget.errors import InvalidInputError, a_type, missing_extra
from retarget.integrations import agreement
from retarget.integrations.agreement import Problems, Shift
from retarget.integrations.gradients import GradientCheck
from retarget.learners import OPTIMIZERS, SGD, described_optimizer
from retarget.networks.base import Corrector
from retarget.networks.closed_loop import ClosedLoopCorrector
from retarget.networks.corrector import NetworkCorrector
from retarget.networks.linearization import outputs
from retarget.samples import Samples, count, evaluating, join, output_of, take

try:
    from transformers import Trainer, TrainerCallback, get_scheduler
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise missing_extra(
        "retarget.integrations.huggingface needs transformers and accelerate", error, "huggingface"
    ) from error

__all__ = ["TargetCorrectionTrainer"]

STATE_FILE = "corrector.safetensors"  # in a checkpoint's folder
# The value that an argument must have for corrected targets to be right, and why.
EXPECTED = {
    "train_sampling_strategy": ("sequential", "targets are corrected for one order"),
    "max_grad_norm": (0, "targets are corrected for steps that are not clipped"),
    "fp16": (False, "rounded steps do not follow the targets"),
    "bf16": (False, "rounded steps do not follow the targets"),
    "max_steps": (-1, "every task is trained on completely, num_train_epochs times"),
    "auto_find_batch_size": (False, "targets are corrected for one batch size"),
    "load_best_model_at_end": (False, "the corrector continues from the last step"),
    "torch_compile": (False, "compiled steps are not tested with corrected targets"),
}
# Instead of a schedule whose rates are not known, or begin at 0.
CONSTANT = {"lr_scheduler_type": "constant", "warmup_steps": 0}


class TargetCorrectionTrainer(Trainer):
    """A `Trainer` that trains on corrected targets, one task for each call of `train`.

    Set `train_dataset` to the next task and call `train()`; earlier tasks are then not forgotten,
    to the extent that the network follows its tangent kernel. Before the first step it reads the
    task's batches once, in order, and corrects their labels. The loss on the corrected targets is
    the corrector's: half the squared error, or cross-entropy.

    The learner is derived from the optimizer, the batch size, gradient accumulation and the
    schedule, so that they always agree. With Adam and AdamW the first task is trained on its true
    targets, because the kernel needs second moments; the corrector still counts it as seen.
    Anything that would make the targets wrong (shuffling, clipping, dropout, mixed precision,
    several devices) is an error before training starts, which lists all of it and the
    `TrainingArguments` to use instead. At the first steps of a task and at a few later ones, the
    gradients are compared with those of the corrector's loss, so that a penalty that a subclass or
    a callback adds is an error, too.

    The costs are those of the corrector: the open loop keeps all samples, and computes the kernel
    of all samples so far before each task.

    Args:
        *args: As for `Trainer`.
        corrector: A function that makes the corrector from the network, the learner and, for Adam,
            AdamW and several rates, `preconditioner=`, such as `rt.NetworkCorrector` itself. It is
            called once, at the first task.
        **kwargs: As for `Trainer`.

    Attributes:
        corrector: The corrector, once the first task has begun.
    """

    # The loss below is divided by the number of samples in a step, over all its batches.
    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, corrector: Callable[..., Corrector], **kwargs: Any) -> None:
        agreement.require_maker(corrector)
        super().__init__(*args, **kwargs)
        self._make_corrector = corrector
        self.corrector: NetworkCorrector | ClosedLoopCorrector | None = None
        self._learner: SGD | None = None
        self._samples: Samples = None  # those of the present task, in the loader's order
        self._labels = self._targets = torch.empty(0, device="cpu")
        self._rates: list[float] = []  # rates of the steps before the present pass
        self._row = 0  # the next sample to be trained on
        self._resumed: Path | None = None
        self._check = GradientCheck()
        self.add_callback(_AtTheRightTime(self))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains on the next task; arguments as for `Trainer.train`."""
        if self.corrector is not None and self._row != len(self._labels):
            raise InvalidInputError(
                f"the last task ended after {self._row} of {len(self._labels)} samples, but the "
                "others were corrected as well; begin again with a new trainer, without stopping "
                "a task early"
            )
        self._prepare()
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        self._resumed = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        if self._resumed is not None and not (self._resumed / STATE_FILE).is_file():
            raise InvalidInputError(
                f"{self._resumed} holds no {STATE_FILE}; expected a checkpoint that a "
                "TargetCorrectionTrainer wrote"
            )
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _prepare(self) -> None:
        """Reads the task and makes the corrector; raises an error with all that is wrong."""
        problems = _wrong_arguments(self)
        args = self.args
        batch = args.train_batch_size * args.gradient_accumulation_steps
        by_trainer = self.optimizer is None  # then its arguments decide
        optimizer = _plain(self.create_optimizer())
        corrector = self.corrector
        instead = _other_optimizer(optimizer, args) if by_trainer else {}
        described = problems.check(described_optimizer, optimizer, batch, "mean", **instead)
        if problems.check(self._read, self.get_train_dataloader()):
            problems.check(_require_no_noise, self.model, self._samples)
            steps = -(-len(self._labels) // batch) * int(args.num_train_epochs)
            problems.check(_rates, _trial_scheduler(args, steps), range(steps), **CONSTANT)
        if corrector is None and described is not None:
            given = self._make_corrector, self.model, described[0], optimizer
            corrector = problems.check(agreement.made_by, *given)
            if corrector is not None:
                _add_corrector(problems, corrector, optimizer, args)
        problems.refuse()
        self.corrector = corrector
        self._learner = self._learner or described[0]

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Returns the loss: on corrected targets in training, on true ones in evaluation."""
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        if model.training:
            targets, share = self._next_targets(inputs, len(labels))
        result = model(**inputs)
        logits = output_of(result, len(labels))
        if not isinstance(logits, Tensor):
            raise InvalidInputError(
                f"the model returned {a_type(result)} without a matrix of outputs (n, c); "
                "expected a model for classification or regression of whole sequences"
            )
        if not model.training:
            targets = smoothed_targets(labels, logits.shape[1], 0.0)
            share = 1 / len(labels)
        kind = "squared" if self.corrector is None else self.corrector.loss
        loss = share * row_losses(logits, targets.to(logits), kind).sum()
        return (loss, result) if return_outputs else loss

    def _next_targets(self, inputs: dict[str, Any], size: int) -> tuple[Tensor, float]:
        """Returns the targets of the next batch, and a sample's weight in the mean over a step."""
        rows = slice(self._row, self._row + size)
        mine = take(self._samples, rows)
        if count(mine) != size or not all(_same(inputs.get(key), mine[key]) for key in mine):
            raise InvalidInputError(
                f"the batch at sample {self._row} is not the one corrected; expected the "
                "same samples in the same order, with the same padding and no random changes"
            )
        assert self.corrector is not None
        closed = isinstance(self.corrector, ClosedLoopCorrector)
        if closed and self._row % self.corrector.block_size == 0:
            block = slice(self._row, self._row + self.corrector.block_size)
            with evaluating(self.model):
                corrected = self.corrector.correct(take(self._samples, block), self._labels[block])
            self._targets[block] = corrected
        batch = self.corrector.learner.batch_size
        first = self._row // batch * batch
        self._row = rows.stop
        self._check.add(mine, self._targets[rows])
        return self._targets[rows], 1 / min(batch, len(self._labels) - first)

    def begin_task(self) -> None:
        """Restores the corrector, if training continues from a checkpoint."""
        if self._resumed is not None:
            self._restore(self._resumed / STATE_FILE)
            if self.state.global_step >= self.state.max_steps:  # the task is complete
                self._row = len(self._labels)
        assert self.corrector is not None
        self._check.open(self.corrector, _plain(self.optimizer))

    def begin_epoch(self, epoch: int) -> None:
        """Corrects the task for the rates of the schedule, and logs the shift."""
        assert self.corrector is not None
        assert self._learner is not None
        corrector = self.corrector
        n = len(self._labels)
        resumed = self._resumed
        steps = self._learner.steps(n)
        self._row = 0
        self._resumed = None
        in_the_middle = resumed is not None and self.state.global_step % steps
        if in_the_middle and isinstance(corrector, NetworkCorrector):
            self._row = self.state.global_step % steps * self._learner.batch_size
            self._targets = corrector.recorrect()
            return
        if epoch:
            self._rates = self._rates[:-steps]  # another pass over the same samples
        self._rates += _rates(self.lr_scheduler, range(epoch * steps, (epoch + 1) * steps))
        constant = len(set(self._rates)) == 1
        corrector.learner = replace(self._learner, lr=self._rates[0] if constant else self._rates)
        if isinstance(corrector, ClosedLoopCorrector):
            self._targets = torch.zeros_like(self._labels)  # filled block by block
            return
        if epoch:
            self._targets = corrector.recorrect()
        else:
            given = self._samples, self._labels
            self._targets = agreement.corrected(corrector, _plain(self.optimizer), *given)
        self.log_targets()

    def log_targets(self) -> None:
        """Logs how far targets were corrected, whether they were, and how the network follows."""
        assert self.corrector is not None
        numbers = Shift().add(self._targets, self._labels).numbers(self.corrector)
        self.log({"target_shift": numbers.pop("shift")} | numbers)

    def _read(self, loader: Any) -> bool:
        """Reads the task's samples and true targets, in the order of training; returns True."""
        batches = [self._prepare_inputs(dict(batch)) for batch in loader]
        labels = [batch.pop("labels", None) for batch in batches]
        if not batches or any(each is None for each in labels):
            raise InvalidInputError(
                "the data collator gave no batch with 'labels'; expected samples with labels"
            )
        kept = [{k: v for k, v in batch.items() if isinstance(v, Tensor)} for batch in batches]
        shapes = {tuple(sorted((k, tuple(v.shape[1:])) for k, v in each.items())) for each in kept}
        if len(shapes) > 1:
            raise InvalidInputError(
                "batches have different lengths, but the kernel needs samples of one shape; pad "
                "all to one length, as DataCollatorWithPadding(tokenizer, padding='max_length', "
                "max_length=...) does"
            )
        self._samples = join(kept)
        width = outputs(self.model, take(self._samples, slice(0, 1))).shape[1]
        smoothing = self.args.label_smoothing_factor
        like = next(self.model.parameters())
        self._labels = smoothed_targets(torch.cat(labels), width, smoothing).to(like)
        return True

    def _restore(self, path: Path) -> None:
        assert self.corrector is not None
        corrector = self.corrector
        if not isinstance(corrector, NetworkCorrector) or corrector.refresh != "task":
            raise InvalidInputError(
                "only a NetworkCorrector with refresh='task' can resume from a checkpoint in the "
                "middle of a task; use one from the end of a task"
            )
        kernel = corrector.kernel
        device = self._labels.device
        corrector = NetworkCorrector.load(path, self.model, lambda *_, **__: kernel, device)
        self.corrector = corrector
        rate = corrector.learner.lr
        steps = corrector.learner.steps(corrector.samples)
        self._rates = [rate] * steps if isinstance(rate, float) else list(rate)


class _AtTheRightTime(TrainerCallback):
    """Calls the trainer when a task begins, an epoch begins, and a checkpoint is written."""

    def __init__(self, trainer: TargetCorrectionTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.begin_task()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._check.close()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.begin_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if isinstance(self.trainer.corrector, ClosedLoopCorrector):
            self.trainer.log_targets()  # not known before

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.trainer.corrector is not None and folder.is_dir():
            self.trainer.corrector.save(folder / STATE_FILE)


def smoothed_targets(labels: Tensor, outputs: int, smoothing: float) -> Tensor:
    """Returns targets (n, c) for class labels (n,), with label smoothing, or for real numbers."""
    if smoothing and labels.is_floating_point():
        raise InvalidInputError(
            "label_smoothing_factor is for classes; expected whole numbers as labels"
        )
    return (1 - smoothing) * agreement.real_targets(labels, outputs) + smoothing / outputs


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """Returns the optimizer without the wrapper of accelerate."""
    plain: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return plain


def _same(given: Any, kept: Tensor) -> bool:
    return isinstance(given, Tensor) and given.shape == kept.shape and torch.equal(given, kept)


def _other_optimizer(optimizer: torch.optim.Optimizer, args: Any) -> dict[str, Any]:
    """Returns the arguments for an optimizer that can be described."""
    known = type(optimizer).__name__ in OPTIMIZERS
    return ({} if known else {"optim": "sgd"}) | (
        {"weight_decay": 0.0} if args.weight_decay else {}
    )


def _trial_scheduler(args: Any, steps: int) -> Any:
    """Returns a scheduler such as Trainer will make, for the rates alone."""
    optimizer = torch.optim.SGD([torch.zeros(1, device="cpu")], args.learning_rate)
    warmup = args.get_warmup_steps(steps)
    options = args.lr_scheduler_kwargs
    return get_scheduler(args.lr_scheduler_type, optimizer, warmup, steps, options)


def _add_corrector(problems: Problems, corrector: Corrector, optimizer: Any, args: Any) -> None:
    """Adds what a new corrector does not allow."""
    problems.check(agreement.require_parameters, optimizer, corrector)
    if not isinstance(corrector, ClosedLoopCorrector):
        return
    problems.check(
        agreement.require_passes, corrector, int(args.num_train_epochs), num_train_epochs=1
    )
    problems.add(
        args.lr_scheduler_type != "constant",
        f"lr_scheduler_type is {str(args.lr_scheduler_type)!r}, but the closed loop needs one rate",
        lr_scheduler_type="constant",
    )
    problems.add(
        corrector.replay > 0,
        f"replay is {corrector.replay}, but Trainer trains on the samples of train_dataset alone; "
        "use replay=0, or write the loop yourself (examples/closed_loop.py)",
    )


def _rates(scheduler: Any, steps: range) -> list[float]:
    """Returns the rate of each of these steps."""
    if not isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR):
        raise InvalidInputError(
            f"the scheduler is {a_type(scheduler)}, whose rates are not known beforehand; "
            "expected lr_scheduler_type to be 'constant', 'linear' or 'cosine'"
        )
    base = scheduler.base_lrs[0]
    shape = scheduler.lr_lambdas[0]
    rates = [float(base * shape(step)) for step in steps]
    for step, rate in zip(steps, rates, strict=True):
        if not rate > 0:
            raise InvalidInputError(
                f"the rate of step {step} is {rate}, and a step at rate 0 cannot learn a target; "
                "expected no warm-up, and a schedule that stays above 0"
            )
    return rates


def _wrong_arguments(trainer: Trainer) -> Problems:
    """Returns the options that would make corrected targets wrong."""
    args = trainer.args
    problems = Problems("TrainingArguments")
    for option, (expected, why) in EXPECTED.items():
        value = getattr(args, option)
        problems.add(value != expected, f"{option} is {value!r}, but {why}", **{option: expected})
    epochs = args.num_train_epochs
    names = trainer.label_names
    problems.add(
        epochs != int(epochs),
        f"num_train_epochs is {epochs}; expected a whole number",
        num_train_epochs=max(1, round(epochs)),
    )
    problems.add(
        names != ["labels"], f"label_names is {names}; expected ['labels']", label_names=["labels"]
    )
    problems.add(
        args.world_size > 1 or args.n_gpu > 1,
        "there are several processes or devices, and each would see another part of the stream; "
        "use one (CUDA_VISIBLE_DEVICES=0)",
    )
    problems.add(
        trainer.model_init is not None,
        "model_init makes a new network for every train(); give the model itself",
    )
    problems.add(
        trainer.compute_loss_func is not None,
        "compute_loss_func is given, but targets are corrected for the corrector's loss; leave it "
        "out",
    )
    problems.add(
        trainer.lr_scheduler is not None and not trainer._created_lr_scheduler,
        "a scheduler is given, which does not start again with each task; set lr_scheduler_type, "
        "and give optimizers=(yours, None)",
    )
    return problems


def _require_no_noise(model: nn.Module, samples: Samples) -> None:
    """Raises if the network's outputs differ between training and evaluation mode."""
    training = model.training
    samples = take(samples, slice(0, 8))
    with torch.random.fork_rng():
        noisy, still = (outputs(model.train(mode), samples) for mode in (True, False))
    model.train(training)
    if not torch.allclose(noisy, still, rtol=1e-4, atol=1e-5):
        raise InvalidInputError(
            "the model's outputs in training differ from those in evaluation (dropout, batch norm, "
            "noise), and targets are for the latter; set hidden_dropout_prob=0 and "
            "attention_probs_dropout_prob=0, or the corresponding options in the model's config"
        )
