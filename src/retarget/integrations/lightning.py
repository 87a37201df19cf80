"""Lightning: a callback that corrects targets, and a module that learns in bounded memory.

Needs the extra: `pip install "retarget[lightning]"`.
"""

import functools
import itertools
from collections.abc import Callable as Function
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retarget.continual import NetworkCorrector
from retarget.continual.linearisation import outputs
from retarget.continual.steps import evaluating
from retarget.errors import InvalidInputError, InvalidTypeError, missing_extra
from retarget.integrations.agreement import (
    Places,
    one_hot,
    require_loss,
    require_optimiser,
    require_rate,
    shift_of,
)
from retarget.samples import count, join, named_leaves, outputs_of, take
from retarget.state_files import checksum

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities.seed import isolate_rng
except ImportError as error:
    raise missing_extra(
        "retarget.integrations.lightning needs Lightning", error, "lightning"
    ) from (error)

from retarget.integrations.lightning_tangent import TangentLearner
from retarget.integrations.lightning_trainer import require_batches, require_exact_training

__all__ = ["TangentLearner", "TargetCorrection"]


class TargetCorrection(Callback):
    """Trains a `LightningModule` on corrected targets; module and Trainer stay as they are.

    Every `Trainer.fit` is one task. Before it, the callback goes over the training loader once,
    asks the corrector for the targets of all its samples, and then puts them into the batches that
    `training_step` is given: (x, z) instead of (x, y). Use the same callback object for all tasks.

    With a corrector of the closed loop (`memory=...`) nothing is computed beforehand. Every batch
    is a block, trained on in one step: the callback asks for its targets when it comes, and where
    the corrector stores samples (`replay=...`), as many of them stand behind the batch's own.

    The loss in `training_step` must be half of the squared error, summed over the outputs, with
    the sum or the mean over the mini-batch that the learner's `reduction` says. This is checked
    on the first batch of a task, and the optimiser is compared with the learner. Whatever would
    make the targets wrong (shuffling, mixed precision, several devices, ...) is refused with an
    `InvalidInputError` before the first step.

    Logs `retarget/shift` (root mean square of corrected less true targets),
    `retarget/largest_target`, and `retarget/linearisation_error`, how far the network is from the
    theory (`NetworkCorrector.linearisation_error`), once an epoch; in the closed loop, with every
    batch.

    Its state is in the Trainer's checkpoints: `fit(..., ckpt_path=...)` goes on after the task that
    the checkpoint was written at the end of.

    Args:
        corrector: A `NetworkCorrector`, or a function that makes one for the `LightningModule`; it
            is called at the start of the first task.
        inputs: The position or key of the inputs in a batch, or several of them; None for the first
            entry of a list or tuple, and for everything but the targets in a dict.
        targets: The position or key of the targets: real numbers, or class labels (n,).

    Attributes:
        corrector: The corrector; None before it was made.
    """

    def __init__(
        self,
        corrector: NetworkCorrector | Function[[Any], NetworkCorrector],
        *,
        inputs: int | str | Sequence[int | str] | None = None,
        targets: int | str = 1,
    ) -> None:
        made = isinstance(corrector, NetworkCorrector)
        if not made and not callable(corrector):
            raise InvalidTypeError(
                f"corrector is {corrector!r}; expected a NetworkCorrector, or a function that "
                "makes one for the LightningModule"
            )
        self.corrector: NetworkCorrector | None = corrector if made else None  # type: ignore[assignment]
        self._make = corrector
        self._places = Places(inputs, targets)
        self._loaded: dict[str, Any] | None = None
        self._left = 0  # batches of the present task that are still to come
        self._fit: _Fit | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Corrects the targets of a task."""
        corrector = self._ready(pl_module)
        epochs = require_exact_training(trainer, pl_module, corrector)
        require_optimiser(trainer.optimizers[0], corrector)
        if corrector.memory is None:
            self._fit = _Task(trainer, corrector, self._places)
            self._left = epochs * len(self._fit.batches)
        else:
            self._fit = _ClosedLoop(trainer, corrector, self._places)
            self._left = 0
        self._step = _wrapped(pl_module, self._training_step)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Corrects the targets of a further epoch, and logs what was found."""
        if isinstance(self._fit, _Task):
            self._fit.begin_epoch()
            self._log(pl_module, on_step=False, on_epoch=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the training step back to what it was."""
        self._finish(pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Takes the training step back to what it was."""
        self._finish(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The corrector's state; nothing where there is no corrector yet."""
        if self.corrector is None:
            return {}
        values, tensors = self.corrector.to_state()
        return {"values": values, "tensors": tensors, "left": self._left}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a checkpoint at the end of a task, when the next fit starts."""
        if state_dict and state_dict["left"]:
            raise InvalidInputError(
                f"the checkpoint was written in the middle of a task, {state_dict['left']} batches "
                "before its end, and Lightning begins a loader anew; go on from one that was "
                "written at the end of a fit"
            )
        self._loaded = state_dict or None

    def _ready(self, module: LightningModule) -> NetworkCorrector:
        """The corrector, made and brought to where it was, if need be."""
        if self._left:
            raise InvalidInputError(
                f"the fit before ended {self._left} batches before the end of its task, which the "
                "corrector takes for learned; go on from a checkpoint of an earlier task, or begin "
                "with a new callback"
            )
        if self.corrector is None:
            made = self._make(module)  # type: ignore[operator]
            if not isinstance(made, NetworkCorrector):
                raise InvalidTypeError(
                    f"corrector made a {type(made).__name__}; expected a NetworkCorrector"
                )
            self.corrector = made
        if self._loaded is not None:
            device = next(self.corrector.module.parameters()).device
            tensors = {name: value.to(device) for name, value in self._loaded["tensors"].items()}
            self.corrector.restore(self._loaded["values"], tensors)
            self._loaded = None
        return self.corrector

    def _training_step(
        self, step: Function[..., Any], module: LightningModule, batch: Any, *more: Any
    ) -> Any:
        """The user's training step on the corrected batch."""
        fit = self._fit
        assert fit is not None
        batch, targets, samples = fit.corrected(batch)
        if isinstance(fit, _ClosedLoop):
            self._log(module, on_step=True, on_epoch=False)
        first = fit.first_outputs(samples)
        result = step(batch, *more)
        loss = result["loss"] if isinstance(result, dict) else result
        if not isinstance(loss, Tensor):
            raise InvalidInputError(
                f"training_step returned {loss!r}; expected a loss for every batch, as the "
                "corrector takes all of them for learned"
            )
        if first is not None:
            require_loss(loss, first, targets, fit.corrector.learner.reduction)
        self._left = max(0, self._left - 1)
        return result

    def _log(self, module: LightningModule, **when: bool) -> None:
        assert self._fit is not None
        found = {f"retarget/{name}": value for name, value in self._fit.found.items()}
        module.log_dict(found, batch_size=1, **when)

    def _finish(self, module: LightningModule) -> None:
        if self._fit is not None:
            self._step()
            self._fit = None


class _Fit:
    """One call of `Trainer.fit`: what is trained on.

    Attributes:
        found: What is logged.
    """

    def __init__(self, trainer: Trainer, corrector: NetworkCorrector, places: Places) -> None:
        self.trainer, self.corrector, self.places = trainer, corrector, places
        self.found: dict[str, float] = {}
        self._compared = False

    def corrected(self, batch: Any) -> tuple[Any, Tensor, Any]:
        """The batch to train on, its targets and its samples."""
        raise NotImplementedError

    def first_outputs(self, samples: Any) -> Tensor | None:
        """On the first batch, the network's outputs, from which the loss is known."""
        if self._compared:
            return None
        self._compared = True
        module = self.corrector.module
        weights = {name: value.detach() for name, value in module.named_parameters()}
        weights |= {name: value.clone() for name, value in module.named_buffers()}
        with torch.no_grad(), isolate_rng():  # the same Dropout as in the step to come
            return outputs_of(module, samples, weights)

    def true_targets(self, samples: Any, targets: Tensor) -> Tensor:
        """As real numbers, in the network's precision."""
        network = self.corrector.module
        if targets.is_floating_point():
            return targets
        number = outputs(network, take(samples, slice(0, 1))).shape[1]
        return one_hot(targets, number, next(network.parameters()).dtype)


class _Task(_Fit):
    """Targets of a whole loader, for as many epochs as the Trainer makes.

    Attributes:
        batches: The checksum of each batch, and its rows.
    """

    def __init__(self, trainer: Trainer, corrector: NetworkCorrector, places: Places) -> None:
        super().__init__(trainer, corrector, places)
        self._before, self._next, self._epoch = corrector.samples, 0, 0
        self.batches: list[tuple[str, slice]] = []
        samples, targets = self._collect()
        self._true = self.true_targets(samples, targets)
        with evaluating(corrector.module):
            self._targets: Tensor = corrector.correct(samples, self._true)

    def _collect(self) -> tuple[Any, Tensor]:
        """The samples and targets of the loader, in its order."""
        loader, limit = self.trainer.train_dataloader, self.trainer.num_training_batches
        parts = []
        with isolate_rng():
            stop = None if limit == float("inf") else int(limit)
            for batch in itertools.islice(loader, stop):
                samples, targets = self.places.split(_transferred(self.trainer, batch))
                start = self.batches[-1][1].stop if self.batches else 0
                rows = slice(start, start + len(targets))
                self.batches.append((_mark(samples, targets), rows))
                parts.append((samples, targets))
            if getattr(loader, "persistent_workers", False):
                iter(loader)  # such a loader has one iterator, which training goes on with
        require_batches([len(targets) for _, targets in parts], self.trainer, self.corrector)
        return join([each for each, _ in parts]), torch.cat([each for _, each in parts])

    def begin_epoch(self) -> None:
        """Targets for the pass that begins."""
        if self._epoch:
            with evaluating(self.corrector.module):
                self._targets = self.corrector.recorrect()
        self._next, self._epoch = 0, self._epoch + 1
        self.found = shift_of(self._targets, self._true, self.corrector)

    def corrected(self, batch: Any) -> tuple[Any, Tensor, Any]:
        """The batch with its corrected targets, if they were computed for this one."""
        samples, targets = self.places.split(batch)
        known = self.batches[self._next : self._next + 1]
        if [_mark(samples, targets)] != [mark for mark, _ in known]:
            raise InvalidInputError(
                f"batch {self._next} is not the one corrected; expected a loader that "
                "gives the same samples in the same order each time it is gone over, without "
                "shuffling or random augmentation"
            )
        ((_, rows),) = known
        learner = self.corrector.learner
        if self._epoch == 1 or isinstance(learner.lr, float):
            step = (self._before + rows.start) // learner.batch_size
            require_rate(self.trainer.optimizers[0], learner, step)
        self._next += 1
        Z = self._targets[rows]
        return self.places.put(batch, samples, Z), Z, samples


class _ClosedLoop(_Fit):
    """Targets batch by batch: each is a block."""

    def corrected(self, batch: Any) -> tuple[Any, Tensor, Any]:
        """The batch with the targets that lead the network, and with stored samples beside it."""
        samples, targets = self.places.split(batch)
        true = self.true_targets(samples, targets)
        learner = self.corrector.learner
        require_rate(self.trainer.optimizers[0], learner, 0)
        with evaluating(self.corrector.module):
            samples, Z = self.corrector.next_block(samples, true)
        if count(samples) > learner.batch_size:
            raise InvalidInputError(
                f"there are {len(true)} samples in a batch and {count(samples) - len(true)} stored "
                f"ones beside them, trained on in one step; expected a learner with batch_size="
                f"{count(samples)} or more, not {learner.batch_size}"
            )
        self.found = shift_of(Z[: len(true)], true, self.corrector)
        return self.places.put(batch, samples, Z), Z, samples


def _mark(samples: Any, targets: Tensor) -> str:
    return checksum("", named_leaves("samples", samples) | {"targets": targets})


def _transferred(trainer: Trainer, batch: Any) -> Any:
    """A batch as `training_step` will get it: converted, changed by hooks, on the device."""
    module = trainer.lightning_module
    batch = trainer.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _wrapped(module: LightningModule, around: Function[..., Any]) -> Function[[], None]:
    """Puts a function around a module's training step; what is returned takes it off again."""
    step, own = module.training_step, vars(module).get("training_step")

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
