"""What a Lightning Trainer must be like, for corrected targets to be right in it."""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden

from retarget.continual import NetworkCorrector
from retarget.errors import InvalidInputError
from retarget.integrations.agreement import require_order

FULL_PRECISION = ("32-true", "64-true")
OTHER_STEPS = StochasticWeightAveraging, WeightAveraging, GradientAccumulationScheduler


def require_exact_training(
    trainer: Trainer, module: LightningModule, corrector: NetworkCorrector
) -> int:
    """Refuses a Trainer that trains otherwise than the theory has it; gives the epochs."""
    require_plain_fit(trainer)
    if not module.automatic_optimization:
        raise InvalidInputError(
            "the module has automatic_optimization=False, so that its steps cannot be compared with"
            " the corrector's learner; expected automatic optimisation"
        )
    if trainer.gradient_clip_val is not None:
        raise InvalidInputError(
            f"gradient_clip_val is {trainer.gradient_clip_val}, but the targets are for steps that "
            "are not clipped; leave it out, and raise the corrector's gamma, "
            "ridge or damping where steps are too long"
        )
    for hook in ("optimizer_step", "configure_gradient_clipping"):
        if is_overridden(hook, module):
            raise InvalidInputError(
                f"the module has its own {hook}, so that its steps cannot be compared with the "
                "corrector's learner; expected Lightning's"
            )
    for callback in trainer.callbacks:
        if isinstance(callback, OTHER_STEPS):
            raise InvalidInputError(
                f"the Trainer has a {type(callback).__name__}, which trains otherwise than the "
                "corrector's learner; leave it out"
            )
    if len(trainer.optimizers) != 1:
        raise InvalidInputError(
            f"the module has {len(trainer.optimizers)} optimisers; expected one"
        )
    if trainer.lr_scheduler_configs and isinstance(corrector.learner.lr, float):
        raise InvalidInputError(
            "a scheduler changes the rate, but the corrector's learner has one rate; describe it "
            "as SGD(lr=[...]), with one rate a step"
        )
    loader = trainer.train_dataloader
    if isinstance(loader, list | tuple | dict):
        raise InvalidInputError(
            f"there are {len(loader)} training loaders; expected one, which gives batches"
        )
    return _require_passes(trainer, corrector, loader)


def _require_passes(trainer: Trainer, corrector: NetworkCorrector, loader: Any) -> int:
    """Refuses passes over the loader that the corrector has no targets for; gives their number."""
    epochs: int = trainer.max_epochs - trainer.current_epoch
    accumulated = trainer.accumulate_grad_batches
    if corrector.memory is not None:
        if not isinstance(corrector.learner.lr, float):
            raise InvalidInputError(
                "the corrector's learner has a schedule, which this callback does not follow in "
                "the closed loop; use one rate"
            )
        if accumulated != 1:
            raise InvalidInputError(
                f"accumulate_grad_batches is {accumulated}, but in the closed loop every batch is "
                "a block that is trained on before the next; use 1, and larger batches"
            )
        if epochs != 1:
            raise InvalidInputError(
                f"this fit makes {epochs} epochs, but in the closed loop every sample is learned "
                "once; use max_epochs=1"
            )
        return epochs
    require_order(loader)
    if isinstance(loader, Iterator):
        raise InvalidInputError(
            f"the training loader is a {type(loader).__name__}, which can be gone over only once; "
            "expected one that can be gone over again, such as a DataLoader"
        )
    if epochs != 1 and (epochs < 1 or corrector.refresh != "epoch"):
        raise InvalidInputError(
            f"this fit makes {epochs if epochs > 0 else 'any number of'} epochs, but the corrector "
            f"has refresh={corrector.refresh!r}; use max_epochs=1, or refresh='epoch', which "
            "corrects the targets before each of a known number"
        )
    steps = epochs * -(-int(min(trainer.num_training_batches, 2**62)) // accumulated)
    if trainer.max_steps != -1 and trainer.global_step + steps > trainer.max_steps:
        raise InvalidInputError(
            f"max_steps is {trainer.max_steps}, but the corrector counts on all of the loader's "
            f"{steps} steps; leave it out, or use limit_train_batches"
        )
    return epochs


def require_plain_fit(trainer: Trainer) -> None:
    """Refuses several devices, and arithmetic of low precision."""
    if trainer.world_size != 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise InvalidInputError(
            f"the Trainer has a {type(trainer.strategy).__name__} of {trainer.world_size} "
            "processes, each of which would train on other samples; use one device: "
            "Trainer(devices=1, strategy='auto')"
        )
    if trainer.precision not in FULL_PRECISION:
        raise InvalidInputError(
            f"precision is {trainer.precision!r}, in which targets far from the outputs lose their "
            f"digits; expected one of {FULL_PRECISION}"
        )


def require_batches(sizes: list[int], trainer: Trainer, corrector: NetworkCorrector) -> None:
    """Refuses mini-batches that are not the learner's."""
    accumulated, learner = trainer.accumulate_grad_batches, corrector.learner
    if not sizes:
        raise InvalidInputError("the training loader gives no batch; expected at least one")
    if any(accumulated * size != learner.batch_size for size in sizes[:-1]) or (
        accumulated * sizes[-1] > learner.batch_size
    ):
        raise InvalidInputError(
            f"the loader gives batches of {max(sizes)}, {accumulated} to a step, but the "
            f"corrector's learner has batch_size={learner.batch_size}; expected the same"
        )
    if accumulated > 1:
        if learner.reduction == "sum":
            raise InvalidInputError(
                "the learner has reduction='sum', but with accumulate_grad_batches Lightning "
                "divides every loss by their number; expected the mean over the mini-batch"
            )
        if len(sizes) % accumulated or sizes[-1] != sizes[0]:
            raise InvalidInputError(
                f"the loader gives {len(sizes)} batches, the last of {sizes[-1]}, which do not "
                f"fill steps of {accumulated} batches of {sizes[0]}; expected a multiple: use "
                "drop_last=True, or accumulate_grad_batches=1"
            )
