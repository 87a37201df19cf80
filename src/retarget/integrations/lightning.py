"""Lightning: a callback that corrects targets, and a module that learns in bounded memory.

Needs the extra: `pip install ".[lightning]"`.
"""

import functools
import itertools
from collections.abc import Callable as Function
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from retarget.errors import InvalidInputError, InvalidTypeError, missing_extra
from retarget.integrations import agreement
from retarget.integrations.agreement import HalfSquaredError, Shift
from retarget.integrations.gradients import GradientCheck
from retarget.networks.base import Corrector
from retarget.networks.closed_loop import ClosedLoopCorrector
from retarget.networks.corrector import NetworkCorrector
from retarget.samples import evaluating, join, mapped, named_leaves, take
from retarget.state_files import checksum
from retarget.streaming.ridge.tangent import TangentLearner

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities.seed import isolate_rng
except ImportError as error:
    reason = "retarget.integrations.lightning needs Lightning"
    raise missing_extra(reason, error, "lightning") from error

from retarget.integrations.lightning_trainer import (
    Places,
    described,
    plain_fit,
    require_batches,
    require_exact_training,
)

__all__ = ["TangentModule", "TargetCorrectionCallback"]


class TargetCorrectionCallback(Callback):
    """Trains a `LightningModule` on corrected targets, without changes to the module or Trainer.

    Every `Trainer.fit` is one task. When it starts, the callback reads the training loader once,
    computes the corrected targets of all samples, and then puts them into the batches that
    `training_step` receives: (x, z) instead of (x, y). Use the same callback object for all tasks.

    With an `rt.ClosedLoopCorrector` nothing is computed beforehand. Every batch is a block and one
    training step: the callback corrects it when it arrives and, if the corrector stores samples
    (`replay=...`), appends equally many of them to the batch.

    The loss in `training_step` must be the corrector's: half the squared error, summed over the
    outputs (or cross-entropy), with the sum or the mean over the mini-batch according to the
    learner's `reduction`, and no penalty. Its gradients are compared with the corrector's at the
    first steps of a task and at a few later ones, and the optimizer is compared with the learner.
    Anything that would make the targets wrong (shuffling, mixed precision, several devices, ...)
    raises an `InvalidInputError` that lists all of it before the first step.

    It logs `retarget/shift` (root mean square of corrected minus true targets),
    `retarget/largest_target`, and `retarget/linearization_error`, how far the network is from the
    theory (`NetworkCorrector.linearization_error`), once an epoch; in the closed loop, with every
    batch. With `gamma="auto"` it also logs `retarget/corrected`, 0 if no correction was chosen, and
    the held-out losses that decided: `retarget/loss_on_true_targets` and (of the best correction)
    `retarget/loss_on_corrected_targets`.

    The Trainer's checkpoints contain its state: `fit(..., ckpt_path=...)` continues after the task
    at whose end the checkpoint was written.

    Args:
        corrector: An `rt.NetworkCorrector` or `rt.ClosedLoopCorrector`, or a function that makes
            one at the start of the first task from the `LightningModule`, an `rt.SGD` that
            describes the optimizer and the loader's batches (with the mean over a mini-batch) and,
            for Adam, AdamW, RMSprop and several rates, `preconditioner=`, such as
            `rt.NetworkCorrector` itself.
        inputs: The position or key of the inputs in a batch, or several of them; None for the first
            entry of a list or tuple, and for everything but the targets in a dict.
        targets: The position or key of the targets: real numbers, or class labels (n,).

    Attributes:
        corrector: The corrector; None if it has not been made yet.
    """

    def __init__(
        self,
        corrector: Corrector | Function[..., Corrector],
        *,
        inputs: int | str | Sequence[int | str] | None = None,
        targets: int | str = 1,
    ) -> None:
        self.corrector = corrector if isinstance(corrector, Corrector) else None
        if self.corrector is None:
            agreement.require_maker(corrector)
        self._make: Any = corrector
        self._places = Places(inputs, targets)
        self._loaded: dict[str, Any] | None = None
        self._left = 0  # remaining batches of the present task
        self._task: _TaskTargets | None = None  # None in the closed loop
        self._check = GradientCheck()
        self._unwrap: Function[[], None] = lambda: None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Corrects the targets of a task."""
        corrector = self._ready(trainer, pl_module)
        epochs = require_exact_training(trainer, pl_module, corrector)
        self._task = None
        self._left = 0
        if isinstance(corrector, NetworkCorrector):
            self._task = _TaskTargets(trainer, corrector, self._places)
            self._left = epochs * len(self._task.batches)
        self._check.open(corrector, trainer.optimizers[0])
        self._unwrap = _wrapped(pl_module, self._training_step)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Corrects the targets for a further epoch, and logs the shift."""
        if self._task is not None:
            _log(pl_module, self._task.begin_epoch(), on_step=False, on_epoch=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the module's own training step."""
        self._unwrap()
        self._check.close()
        self._task = None
        self._unwrap = lambda: None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Restores the module's own training step."""
        self.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Returns the corrector's state; empty if there is no corrector yet."""
        if self.corrector is None:
            return {}
        values, tensors = self.corrector.to_state()
        return {"values": values, "tensors": tensors, "left": self._left}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a checkpoint at the end of a task, when the next fit starts."""
        if state_dict and state_dict["left"]:
            raise InvalidInputError(
                f"the checkpoint was written in the middle of a task, {state_dict['left']} batches "
                "before its end, and Lightning restarts the loader; resume from a checkpoint that "
                "was written at the end of a fit"
            )
        self._loaded = state_dict or None

    def _ready(self, trainer: Trainer, module: LightningModule) -> Corrector:
        """Returns the corrector, made or restored if necessary."""
        if self._left:
            raise InvalidInputError(
                f"the previous fit ended {self._left} batches before the end of its task, which "
                "the corrector counts as learned; resume from a checkpoint of an earlier task, or "
                "start with a new callback"
            )
        if self.corrector is None:
            learner = described(trainer, self._places)
            self.corrector = agreement.made_by(self._make, module, learner, trainer.optimizers[0])
        if self._loaded is not None:
            self.corrector.restore(self._loaded["values"], self._loaded["tensors"])
            self._loaded = None
        return self.corrector

    def _training_step(
        self, step: Function[..., Any], module: LightningModule, batch: Any, *more: Any
    ) -> Any:
        """Calls the user's training step on the corrected batch."""
        corrector = self.corrector
        optimizer = module.trainer.optimizers[0]
        samples, targets = self._places.split(batch)
        if self._task is not None:
            Z = self._task.corrected(samples, targets)
        else:  # a batch is a block
            assert isinstance(corrector, ClosedLoopCorrector)
            samples, Z, numbers = agreement.next_block(corrector, optimizer, samples, targets)
            _log(module, numbers, on_step=True, on_epoch=False)
        self._check.add(samples, Z)
        result = step(self._places.put(batch, samples, Z), *more)
        loss = result["loss"] if isinstance(result, dict) else result
        if not isinstance(loss, Tensor):
            raise InvalidInputError(
                f"training_step returned {loss!r}; expected a loss for every batch, as the "
                "corrector counts all of them as learned"
            )
        self._left = max(0, self._left - 1)
        return result


class _TaskTargets:
    """The corrected targets of a whole loader, for all epochs of a fit.

    Attributes:
        batches: The checksum of each batch, and its rows.
    """

    def __init__(self, trainer: Trainer, corrector: NetworkCorrector, places: Places) -> None:
        self.trainer = trainer
        self.corrector = corrector
        self.places = places
        self._before = corrector.samples
        self._next = 0
        self._epoch = 0
        self.batches: list[tuple[str, slice]] = []
        samples, targets = self._collect()
        self._true = agreement.true_targets(corrector.module, samples, targets)
        self._targets = agreement.corrected(corrector, trainer.optimizers[0], samples, self._true)

    def _collect(self) -> tuple[Any, Tensor]:
        """Reads the samples and targets of the loader, in its order."""
        loader = self.trainer.train_dataloader
        limit = self.trainer.num_training_batches
        parts = []
        start = 0
        with isolate_rng():
            stop = None if limit == float("inf") else int(limit)
            for batch in itertools.islice(loader, stop):
                samples, targets = self.places.split(_transferred(self.trainer, batch))
                rows = slice(start, start := start + len(targets))
                self.batches.append((_mark(samples, targets), rows))
                parts.append((samples, targets))
            if getattr(loader, "persistent_workers", False):
                iter(loader)  # such a loader has only one iterator, so restart it for training
        require_batches([len(targets) for _, targets in parts], self.trainer, self.corrector)
        return join([each for each, _ in parts]), torch.cat([each for _, each in parts])

    def begin_epoch(self) -> dict[str, float]:
        """Corrects the targets for the next epoch; returns what to log."""
        if self._epoch:
            with evaluating(self.corrector.module):
                self._targets = self.corrector.recorrect()
        self._next = 0
        self._epoch += 1
        return Shift().add(self._targets, self._true).numbers(self.corrector)

    def corrected(self, samples: Any, targets: Tensor) -> Tensor:
        """Returns the targets of the next batch; raises if they were computed for another batch."""
        known = self.batches[self._next : self._next + 1]
        if [_mark(samples, targets)] != [mark for mark, _ in known]:
            raise InvalidInputError(
                f"batch {self._next} is not the one corrected; expected a loader that gives the "
                "same samples in the same order each time, without shuffling or random augmentation"
            )
        ((_, rows),) = known
        learner = self.corrector.learner
        step = (self._before + rows.start) // learner.batch_size
        agreement.require_rate(self.trainer.optimizers[0], learner, step)
        self._next += 1
        return self._targets[rows]


def _log(module: LightningModule, numbers: dict[str, float], **when: bool) -> None:
    named = {f"retarget/{name}": value for name, value in numbers.items()}
    module.log_dict(named, batch_size=1, **when)


def _mark(samples: Any, targets: Tensor) -> str:
    return checksum("", named_leaves("samples", samples) | {"targets": targets})


def _transferred(trainer: Trainer, batch: Any) -> Any:
    """Returns a batch as `training_step` will receive it: after conversion, hooks and transfer."""
    module = trainer.lightning_module
    batch = trainer.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _wrapped(module: LightningModule, around: Function[..., Any]) -> Function[[], None]:
    """Wraps a function around a module's training step; returns a function that removes it."""
    step = module.training_step
    own = vars(module).get("training_step")

    @functools.wraps(step)
    def wrapped(*given: Any) -> Any:
        return around(step, module, *given)

    module.training_step = wrapped

    def restore() -> None:
        if own is None:
            del module.training_step
        else:
            module.training_step = own

    return restore


class TangentModule(LightningModule):
    """An `rt.TangentLearner` as a `LightningModule`, for `fit`, `validate`, `test` and `predict`.

    It learns every training batch exactly and once, without an optimizer, in any order, and keeps
    only sums. Each `Trainer.fit` continues where the previous one ended.

    Validation and test log `val_loss` and `test_loss`, half the squared error, and for class labels
    `val_accuracy` and `test_accuracy`. `predict` returns the learner's outputs. Checkpoints contain
    what was learned, and the network's weights.

    With `strategy="ddp"` each process learns its own part of the data. The parts are merged for
    every validation and at the end of the epoch, after which all processes hold the same learner.

    Args:
        learner: The learner; it contains the network, and stays on its device.
        classes: The number of classes if targets are labels (n,); None for the number of the
            network's outputs.
        inputs: The position or key of the inputs in a batch, or several of them; None for the first
            entry of a list or tuple, and for everything but the targets in a dict. A batch that is
            a tensor is all inputs.
        targets: The position or key of the targets.
    """

    def __init__(
        self,
        learner: TangentLearner,
        *,
        classes: int | None = None,
        inputs: int | str | Sequence[int | str] | None = None,
        targets: int | str = 1,
    ) -> None:
        super().__init__()
        if not isinstance(learner, TangentLearner):
            raise InvalidTypeError(f"learner is {learner!r}; expected an rt.TangentLearner")
        self.learner = learner
        self.classes = classes
        self._places = Places(inputs, targets)
        self.automatic_optimization = False
        # DistributedDataParallel accepts no module without a parameter to train
        self.unused = torch.nn.Parameter(torch.zeros(()))
        self._own: TangentLearner | None = None  # this process's part, while others join in

    def configure_optimizers(self) -> list[Any]:
        """Returns no optimizer: learning needs none."""
        return []

    def on_train_start(self) -> None:
        """Raises if samples would be learned twice, or in low precision."""
        problems = plain_fit(self.trainer, ddp=True)
        done = self.trainer.current_epoch
        problems.add(
            self.trainer.max_epochs - done != 1,
            f"max_epochs is {self.trainer.max_epochs} at epoch {done}; expected one more epoch: "
            "each sample is learned exactly, and once",
            max_epochs=done + 1,
        )
        problems.refuse()
        if self.global_rank:  # the first process alone keeps what all of them know
            self.learner = self.learner.empty()

    def on_train_epoch_end(self) -> None:
        """Merges what the processes have learned."""
        if self.trainer.world_size > 1:
            self.learner.all_merge()

    def on_validation_start(self) -> None:
        """Lends every process what all have learned, if they are in the middle of learning."""
        learning = self.trainer.state.fn == "fit" and not self.trainer.sanity_checking
        if learning and self.trainer.world_size > 1:
            merged = self.learner.fork().all_merge()
            self._own = self.learner
            self.learner = merged

    def on_validation_end(self) -> None:
        """Goes back to the part of this process."""
        if self._own is not None:
            self.learner = self._own
            self._own = None

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Learns a batch."""
        samples, targets = self._places.split(batch)
        self.learner.learn(samples, self._real(samples, targets))

    def forward(self, samples: Any) -> Tensor:
        """Returns the learner's predictions."""
        with _ordinary_tensors():
            predicted: Tensor = self.learner.predict(mapped(torch.clone, samples))
        return predicted

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Logs how good the predictions are."""
        if self.learner.samples or not self.trainer.sanity_checking:
            self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Logs how good the predictions are."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Returns the predictions for a batch."""
        samples = batch if isinstance(batch, Tensor) else self._places.split(batch)[0]
        predicted: Tensor = self(samples)
        return predicted

    def get_extra_state(self) -> dict[str, Any]:
        """Returns the sums, and the network that they belong to."""
        values, tensors = self.learner.to_state()
        return {"values": values, "tensors": tensors}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint, with the views of this learner: a file has no functions."""
        module = self.learner.module
        views = self.learner.views
        device = next(module.parameters()).device
        tensors = {name: value.to(device) for name, value in state["tensors"].items()}
        self.learner = type(self.learner).from_state(state["values"], tensors, module, views)

    def _evaluate(self, batch: Any, stage: str) -> None:
        samples, targets = self._places.split(batch)
        predicted = self(samples)
        true = self._real(samples, targets).to(predicted)
        measures = {f"{stage}_loss": HalfSquaredError()(predicted, true)}
        if not targets.is_floating_point():
            measures[f"{stage}_accuracy"] = (predicted.argmax(1) == targets).double().mean()
        size = len(targets)
        self.log_dict(measures, batch_size=size, on_step=False, on_epoch=True, sync_dist=True)

    def _real(self, samples: Any, targets: Tensor) -> Tensor:
        """Returns the targets on the learner's device; class labels become one-hot rows."""
        module = self.learner.module
        if targets.is_floating_point():
            return targets.to(next(module.parameters()).device)
        with _ordinary_tensors():
            first = mapped(torch.clone, take(samples, slice(0, 1)))
            return agreement.true_targets(module, first, targets, self.classes)


@contextmanager
def _ordinary_tensors() -> Iterator[None]:
    """Leaves inference mode, whose tensors a later training step could not use."""
    with torch.inference_mode(False), torch.no_grad():
        yield
