"""Checks that a Lightning Trainer and its batches are right for corrected targets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import DistributedSampler

from retarget.errors import InvalidInputError, a_type
from retarget.integrations.agreement import (
    Problems,
    require_optimizer,
    require_order,
    require_passes,
)
from retarget.learners import SGD, described_optimizer
from retarget.networks.base import Corrector
from retarget.networks.closed_loop import ClosedLoopCorrector
from retarget.networks.corrector import NetworkCorrector

FULL_PRECISION = ("32-true", "64-true")
OTHER_STEPS = StochasticWeightAveraging, WeightAveraging, GradientAccumulationScheduler


def plain_fit(trainer: Trainer, ddp: bool = False) -> Problems:
    """Returns what is wrong with the devices and the precision; `ddp` allows several processes."""
    problems = Problems("Trainer")
    alone = trainer.world_size == 1 and isinstance(trainer.strategy, SingleDeviceStrategy)
    problems.add(
        not (alone or (ddp and isinstance(trainer.strategy, DDPStrategy))),
        f"the Trainer has {a_type(trainer.strategy)} of {trainer.world_size} processes; "
        f"expected one device{', or DDP' if ddp else ''}",
        devices=1,
        strategy="auto",
    )
    sampler: Any = getattr(trainer.train_dataloader, "sampler", None)
    shared = isinstance(sampler, DistributedSampler)
    repeated = sampler.total_size - len(sampler.dataset) if shared else 0
    problems.add(
        ddp and repeated > 0,
        f"the sampler repeats {repeated} samples to give {trainer.world_size} processes equally "
        "many, and they would be learned twice; expected each sample in one process: use a number "
        "of samples that can be divided by it, or give each process a loader of its own part with "
        "equally many batches, and Trainer(use_distributed_sampler=False)",
    )
    problems.add(
        trainer.precision not in FULL_PRECISION,
        f"precision is {trainer.precision!r}, in which targets far from the outputs lose their "
        f"digits; expected one of {FULL_PRECISION}",
        precision=FULL_PRECISION[0],
    )
    return problems


def only_optimizer(trainer: Trainer) -> torch.optim.Optimizer:
    """Returns the optimizer; raises if there are none or several."""
    optimizers: list[torch.optim.Optimizer] = trainer.optimizers
    if len(optimizers) != 1:
        raise InvalidInputError(
            f"configure_optimizers returned {len(optimizers)} optimizers; expected one"
        )
    return optimizers[0]


def described(trainer: Trainer, places: "Places") -> SGD:
    """Describes how a Trainer trains: its optimizer, and the mean over a step's batches."""
    size = getattr(trainer.train_dataloader, "batch_size", None)
    if size is None:  # a sampler of batches, or no DataLoader
        with isolate_rng():
            size = len(places.split(next(iter(trainer.train_dataloader)))[1])
    batch_size = size * trainer.accumulate_grad_batches
    return described_optimizer(only_optimizer(trainer), batch_size, "mean")[0]


def require_exact_training(trainer: Trainer, module: LightningModule, corrector: Corrector) -> int:
    """Raises if the Trainer trains differently from the corrector's learner; returns epochs."""
    problems = plain_fit(trainer)
    loader = trainer.train_dataloader
    epochs = trainer.max_epochs - trainer.current_epoch
    hooks = ("optimizer_step", "configure_gradient_clipping")
    own = [hook for hook in hooks if is_overridden(hook, module)]
    callbacks = [type(each).__name__ for each in trainer.callbacks if isinstance(each, OTHER_STEPS)]
    problems.add(
        trainer.gradient_clip_val is not None,
        f"gradient_clip_val is {trainer.gradient_clip_val}, but targets are for steps that are "
        "not clipped; raise the corrector's gamma, ridge or damping if steps are too long",
        gradient_clip_val=None,
    )
    problems.add(
        not module.automatic_optimization,
        "the module has automatic_optimization=False, whose steps no learner describes; expected "
        "automatic optimization",
    )
    problems.add(
        own,
        f"the module has its own {', '.join(own)}, whose steps no learner describes; expected "
        "Lightning's",
    )
    problems.add(
        callbacks,
        f"the Trainer has a {', '.join(callbacks)}, whose steps no learner describes; leave it out",
    )
    problems.add(
        isinstance(loader, list | tuple | dict),
        "there are several training loaders; expected one, which gives batches",
    )
    optimizer = problems.check(only_optimizer, trainer)
    if optimizer is not None:
        line = f"self.optimizer = torch.optim.{type(optimizer).__name__}(self.parameters(), ...)"
        keep = (
            f"keep one optimizer for all tasks: make it in __init__, after the network, with "
            f"{line}, and return self.optimizer from configure_optimizers"
        )
        problems.check(require_optimizer, optimizer, corrector, keep)
    problems.check(require_passes, corrector, epochs, max_epochs=trainer.current_epoch + 1)
    if isinstance(corrector, ClosedLoopCorrector):
        _add_closed_loop(problems, trainer, corrector)
    else:
        problems.check(require_order, loader)
        _add_open_loop(problems, trainer, epochs)
    problems.refuse()
    return int(epochs)


def _add_closed_loop(problems: Problems, trainer: Trainer, corrector: ClosedLoopCorrector) -> None:
    accumulated = trainer.accumulate_grad_batches
    problems.add(
        not isinstance(corrector.learner.lr, float),
        "the corrector's learner has a schedule, which this callback does not follow in the closed "
        "loop; use one rate",
    )
    problems.add(
        accumulated != 1,
        f"accumulate_grad_batches is {accumulated}, but in the closed loop every batch is a block "
        "that is trained on before the next; use larger batches",
        accumulate_grad_batches=1,
    )


def _add_open_loop(problems: Problems, trainer: Trainer, epochs: int) -> None:
    loader = trainer.train_dataloader
    accumulated = trainer.accumulate_grad_batches
    steps = epochs * -(-int(min(trainer.num_training_batches, 2**62)) // accumulated)
    problems.add(
        isinstance(loader, Iterator),
        f"the training loader is {a_type(loader)}, which can be read only once; pass one "
        "that can be read again, such as a DataLoader",
    )
    problems.add(
        trainer.max_steps != -1 and trainer.global_step + steps > trainer.max_steps,
        f"max_steps is {trainer.max_steps}, but the corrector counts on all of the loader's "
        f"{steps} steps; use limit_train_batches instead",
        max_steps=-1,
    )


def require_batches(sizes: list[int], trainer: Trainer, corrector: NetworkCorrector) -> None:
    """Raises if the mini-batches are not those of the learner."""
    accumulated = trainer.accumulate_grad_batches
    learner = corrector.learner
    problems = Problems()
    if not sizes:
        raise InvalidInputError("the training loader gives no batch; expected at least one")
    full = all(accumulated * size == learner.batch_size for size in sizes[:-1])
    problems.add(
        not full or accumulated * sizes[-1] > learner.batch_size,
        f"the loader gives batches of {max(sizes)}, {accumulated} to a step, but the corrector's "
        f"learner has batch_size={learner.batch_size}; expected the same",
    )
    problems.add(
        accumulated > 1 and learner.reduction == "sum",
        "the learner has reduction='sum', but with accumulate_grad_batches Lightning divides every "
        "loss by their number; expected the mean over the mini-batch",
    )
    problems.add(
        accumulated > 1 and (len(sizes) % accumulated > 0 or sizes[-1] != sizes[0]),
        f"the loader gives {len(sizes)} batches, the last of {sizes[-1]}, which do not fill steps "
        f"of {accumulated} batches of {sizes[0]}; expected a multiple: use drop_last=True, or "
        "accumulate_grad_batches=1",
    )
    problems.refuse()


class Places:
    """Where the inputs and the targets are in a batch, as `TargetCorrectionCallback` is told."""

    def __init__(self, inputs: int | str | Sequence[int | str] | None, targets: int | str) -> None:
        self.inputs = inputs
        self.targets = targets

    def split(self, batch: Any) -> tuple[Any, Tensor]:
        """Returns the inputs and the targets of a batch."""
        keys, many = self._keys(batch)
        try:
            entries = {key: batch[key] for key in (*keys, self.targets)}
        except (LookupError, TypeError) as error:
            raise InvalidInputError(
                f"the batch is {_in_words(batch)}, and has no entry {error}; use inputs= and "
                "targets= to say where they are"
            ) from error
        targets = entries.pop(self.targets)
        if not isinstance(targets, Tensor):
            raise InvalidInputError(
                f"the batch's targets are {a_type(targets)}; expected a tensor, one row "
                "per sample: say where they are with targets="
            )
        if not many:
            return entries[keys[0]], targets
        return (entries if isinstance(batch, Mapping) else tuple(entries.values())), targets

    def put(self, batch: Any, inputs: Any, targets: Tensor) -> Any:
        """Returns a copy of the batch with other inputs and targets."""
        keys, many = self._keys(batch)
        parts = (
            [inputs] if not many else list(inputs.values() if isinstance(inputs, dict) else inputs)
        )
        new = dict(zip(keys, parts, strict=True)) | {self.targets: targets}
        if isinstance(batch, Mapping):
            return {**batch, **new}
        changed = [new.get(i, entry) for i, entry in enumerate(batch)]
        if hasattr(batch, "_fields"):
            return type(batch)(*changed)
        return type(batch)(changed)

    def _keys(self, batch: Any) -> tuple[list[Any], bool]:
        """Returns the keys of the inputs, and whether there are several inputs."""
        if self.inputs is not None:
            several = not isinstance(self.inputs, int | str)
            return (list(self.inputs) if several else [self.inputs]), several  # type: ignore[arg-type]
        if isinstance(batch, Mapping):
            keys = [key for key in batch if key != self.targets]
            return keys, len(keys) != 1
        return [0], False


def _in_words(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a dict with {', '.join(map(repr, batch))}"
    length = f" of {len(batch)}" if isinstance(batch, Sequence) else ""
    return f"{a_type(batch)}{length}"
