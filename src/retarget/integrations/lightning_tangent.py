"""A network's tangent learner as a module of Lightning."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from retarget.continual.linearisation import outputs
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.integrations.agreement import Places, half_squared_error, one_hot
from retarget.integrations.lightning_trainer import require_plain_fit
from retarget.samples import mapped, take
from retarget.streaming import tangent


class TangentLearner(LightningModule):
    """An `rt.TangentLearner` as a `LightningModule`, for `fit`, `validate`, `test` and `predict`.

    Every training batch is learned exactly and once, without an optimiser, in whatever order it
    comes; nothing of it is kept but sums. Each `Trainer.fit` goes on where the one before ended.

    Validation and test log `val_loss` and `test_loss`, half of the squared error, and for class
    labels `val_accuracy` and `test_accuracy`. `predict` gives the learner's outputs. What
    was learned is in the checkpoints, with the network's weights.

    Args:
        learner: What learns; it has the network, and stays on its device.
        classes: How many classes there are where targets are labels (n,); None for the number of
            the network's outputs.
        inputs: The position or key of the inputs in a batch, or several of them; None for the first
            entry of a list or tuple, and for everything but the targets in a dict. A batch that is
            a tensor is all inputs.
        targets: The position or key of the targets.
    """

    def __init__(
        self,
        learner: tangent.TangentLearner,
        *,
        classes: int | None = None,
        inputs: int | str | Sequence[int | str] | None = None,
        targets: int | str = 1,
    ) -> None:
        super().__init__()
        if not isinstance(learner, tangent.TangentLearner):
            raise InvalidTypeError(f"learner is {learner!r}; expected an rt.TangentLearner")
        self.learner, self.classes = learner, classes
        self._places = Places(inputs, targets)
        self.automatic_optimization = False

    def configure_optimizers(self) -> list[Any]:
        """None: learning needs no steps."""
        return []

    def on_train_start(self) -> None:
        """Refuses what would count samples twice, or lose digits."""
        require_plain_fit(self.trainer)
        if self.trainer.max_epochs - self.trainer.current_epoch != 1:
            raise InvalidInputError(
                f"max_epochs is {self.trainer.max_epochs} at epoch {self.trainer.current_epoch}; "
                "expected one more epoch: each sample is learned exactly, once"
            )

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Learns a batch."""
        samples, targets = self._places.split(batch)
        self.learner.learn(samples, self._real(samples, targets))

    def forward(self, samples: Any) -> Tensor:
        """What the learner predicts."""
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
        """The predictions for a batch."""
        samples = batch if isinstance(batch, Tensor) else self._places.split(batch)[0]
        predicted: Tensor = self(samples)
        return predicted

    def get_extra_state(self) -> dict[str, Any]:
        """The sums, and the network that they are of."""
        values, tensors = self.learner.to_state()
        return {"values": values, "tensors": tensors}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        device = self._device_of_learner
        tensors = {name: value.to(device) for name, value in state["tensors"].items()}
        kind = type(self.learner)
        self.learner = kind.from_state(state["values"], tensors, self.learner.module)

    @property
    def _device_of_learner(self) -> torch.device:
        return next(self.learner.module.parameters()).device

    def _evaluate(self, batch: Any, stage: str) -> None:
        samples, targets = self._places.split(batch)
        predicted = self(samples)
        true = self._real(samples, targets).to(predicted)
        found = {f"{stage}_loss": half_squared_error(predicted, true, "mean")}
        if not targets.is_floating_point():
            found[f"{stage}_accuracy"] = (predicted.argmax(1) == targets).double().mean()
        self.log_dict(found, batch_size=len(targets), on_step=False, on_epoch=True)

    def _real(self, samples: Any, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            return targets.to(self._device_of_learner)
        number, network = self.classes, self.learner.module
        if number is None:
            with _ordinary_tensors():
                first = mapped(torch.clone, take(samples, slice(0, 1)))
                number = outputs(network, first).shape[1]
        dtype = next(network.parameters()).dtype
        return one_hot(targets, number, dtype).to(self._device_of_learner)


@contextmanager
def _ordinary_tensors() -> Iterator[None]:
    """Outside of inference mode, whose tensors a later training step could not go on with."""
    with torch.inference_mode(False), torch.no_grad():
        yield
