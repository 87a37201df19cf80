"""skorch: networks with scikit-learn's interface whose `partial_fit` trains on corrected targets.

Needs the extra: `pip install ".[skorch]"`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset

from retarget.errors import InvalidInputError, missing_extra
from retarget.integrations import agreement
from retarget.integrations.agreement import HalfSquaredError, Problems, Shift
from retarget.integrations.gradients import GradientCheck
from retarget.learners import Reduction, described_optimizer
from retarget.networks.base import Corrector
from retarget.networks.closed_loop import ClosedLoopCorrector
from retarget.networks.corrector import NetworkCorrector
from retarget.samples import evaluating, join, take
from retarget.theory.losses import nearest_distributions

try:
    from skorch import NeuralNet, NeuralNetClassifier, NeuralNetRegressor
    from skorch.callbacks import GradientNormClipping
    from skorch.hf import AccelerateMixin
    from skorch.utils import to_tensor
except ImportError as error:
    raise missing_extra("retarget.integrations.skorch needs skorch", error, "skorch") from error

__all__ = ["HalfSquaredError", "TargetCorrectionClassifier", "TargetCorrectionRegressor"]

OTHER_STEPS = AccelerateMixin, GradientNormClipping


class _TaskDataset(Dataset[tuple[Any, Tensor]]):
    """The samples of one `partial_fit`, in the iterator's order, with the targets to train on."""

    def __init__(self, samples: Any, true: Tensor, targets: Tensor) -> None:
        self.samples, self.true, self.targets, self.epochs = samples, true, targets, 0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, Tensor]:
        return take(self.samples, row), self.targets[row]


class _Corrected:
    """Shared by the classifier and the regressor: each `partial_fit` is one task."""

    module_: nn.Module
    optimizer_: torch.optim.Optimizer
    criterion_: nn.Module
    device: Any
    max_epochs: int
    history: Any

    def __init__(
        self,
        module: Any,
        *args: Any,
        corrector: Callable[..., Corrector],
        criterion: Any = HalfSquaredError,
        max_epochs: int = 1,
        train_split: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(  # type: ignore[call-arg]  # skorch's
            module,
            *args,
            criterion=criterion,
            max_epochs=max_epochs,
            train_split=train_split,
            **kwargs,
        )
        self.corrector = corrector

    # State ends with an underscore, because skorch treats all other attributes as parameters.
    corrector_: Corrector | None = None
    saved_: tuple[dict[str, Any], dict[str, Tensor]] | None = None
    outputs_ = 0  # of the module, once known
    before_ = 0  # samples in earlier calls
    trained_ = 0  # batches trained on in this call
    wanted_ = 0  # batches to train on in this call

    def initialize(self) -> Any:
        """Makes a new network, and starts a new stream."""
        super().initialize()  # type: ignore[misc]
        self.corrector_, self.saved_, self.check_ = None, None, GradientCheck()
        self.before_ = self.trained_ = self.wanted_ = 0
        return self

    def get_split_datasets(self, X: Any, y: Any = None, **fit_params: Any) -> tuple[Any, Any]:
        """Returns training samples with corrected targets, and validation samples as given."""
        if fit_params:
            raise InvalidInputError(
                f"fit parameters {sorted(fit_params)} were given, which the corrector does not "
                "know; expected none: give X as a dict if the module takes several inputs"
            )
        train, valid = super().get_split_datasets(X, y)  # type: ignore[misc]
        iterator = self.get_iterator(train, training=True)  # type: ignore[attr-defined]
        corrector = self._ready(iterator)
        self.trained_ = self.wanted_ = 0
        self.check_.open(corrector, self.optimizer_)
        if not isinstance(corrector, NetworkCorrector):
            return train, valid
        parts = [self._on_device(batch) for batch in iterator]
        samples = join([each for each, _ in parts])
        true = agreement.true_targets(self.module_, samples, torch.cat([each for _, each in parts]))
        self.before_, self.outputs_ = corrector.samples, true.shape[1]
        targets = agreement.corrected(corrector, self.optimizer_, samples, true)
        self.wanted_ = self.max_epochs * len(parts)
        return _TaskDataset(to_tensor(samples, device="cpu"), true.cpu(), targets.cpu()), valid

    def on_epoch_begin(
        self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any
    ) -> None:
        """Corrects the targets for a further epoch, and records the shift in the history."""
        super().on_epoch_begin(net, dataset_train, dataset_valid, **kwargs)  # type: ignore[misc]
        if isinstance(dataset_train, _TaskDataset):
            assert isinstance(self.corrector_, NetworkCorrector)
            if dataset_train.epochs:
                with evaluating(self.module_):
                    dataset_train.targets = self.corrector_.recorrect().cpu()
            dataset_train.epochs += 1
            shift = Shift().add(dataset_train.targets, dataset_train.true)
            for name, value in shift.found(self.corrector_).items():
                self.history.record(name, value)

    def on_train_end(self, net: Any, *args: Any, **kwargs: Any) -> None:
        """Stops watching the optimizer."""
        super().on_train_end(net, *args, **kwargs)  # type: ignore[misc]
        self.check_.close()

    def train_step_single(self, batch: Any, **fit_params: Any) -> Any:
        """Computes a step's loss and gradients, on corrected targets."""
        corrector = self.corrector_
        assert corrector is not None
        learner = corrector.learner
        if isinstance(corrector, ClosedLoopCorrector):
            given = self._on_device(batch)
            *batch, logged = agreement.next_block(corrector, self.optimizer_, *given)
            self.outputs_ = batch[1].shape[1]
            for name, value in logged.items():
                self.history.record_batch(name, value)
        else:
            step = self.before_ // learner.batch_size + self.trained_
            agreement.require_rate(self.optimizer_, learner, step)
        self.module_.train()  # as skorch will do
        self.check_.add(*self._on_device(batch))
        found = super().train_step_single(batch, **fit_params)  # type: ignore[misc]
        self.trained_ += 1
        return found

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        corrector = state.pop("corrector_", None)
        if corrector is not None:  # it refers to the network, which is pickled separately
            values, tensors = corrector.to_state()
            state["saved_"] = values, {name: value.cpu() for name, value in tensors.items()}
        return state

    def _ready(self, iterator: Any) -> Corrector:
        """Returns the corrector, made if necessary; raises if training does not match it."""
        problems = Problems(type(self).__name__)
        own = type(self).train_step is not NeuralNet.train_step  # type: ignore[attr-defined]
        steps = (self, *(each for _, each in self.callbacks_))  # type: ignore[attr-defined]
        other = [kind.__name__ for kind in OTHER_STEPS if any(isinstance(e, kind) for e in steps)]
        batches = isinstance(iterator, DataLoader) and type(iterator.batch_sampler) is BatchSampler
        problems.add(
            not batches,
            "iterator_train is not a DataLoader with mini-batches of one size; expected skorch's "
            "default, with any batch_size",
        )
        problems.add(
            other,
            f"the net has a {', '.join(other)}, whose steps no learner describes; leave it out",
        )
        problems.add(
            own,
            "the net has its own train_step, whose steps no learner describes; expected skorch's, "
            "and a larger batch_size instead of accumulated gradients",
        )
        problems.add(
            self.trained_ < self.wanted_,
            f"the call before ended after {self.trained_} of {self.wanted_} batches, but the "
            "corrector counts all of them as learned; call fit to start again",
        )
        if not batches:  # without a batch size there is no learner
            problems.refuse()
        corrector = self.corrector_
        if corrector is None or corrector.module is not self.module_:
            corrector = problems.check(self._made, iterator.batch_size)
        if corrector is not None:
            self._compare(problems, iterator, corrector)
        problems.refuse()
        assert corrector is not None
        self.corrector_ = corrector
        return corrector

    def _compare(self, problems: Problems, iterator: Any, corrector: Corrector) -> None:
        """Adds what differs between the training and the corrector."""
        problems.check(agreement.require_optimizer, self.optimizer_, corrector)
        problems.check(agreement.require_passes, corrector, self.max_epochs, max_epochs=1)
        if isinstance(corrector, ClosedLoopCorrector):
            return
        problems.check(agreement.require_order, iterator, iterator_train__shuffle=False)
        expected = corrector.learner.batch_size
        problems.add(
            iterator.batch_size != expected,
            f"batch_size is {iterator.batch_size}, but the corrector's learner has {expected}; "
            "expected the same in every call",
            batch_size=expected,
        )

    def _made(self, batch_size: int) -> Corrector:
        """Makes the user's corrector, and restores the state that was pickled with the net."""
        agreement.require_maker(self.corrector)
        reduction: Reduction = getattr(self.criterion_, "reduction", "mean")
        learner, _ = described_optimizer(self.optimizer_, batch_size, reduction)
        made = agreement.made_by(self.corrector, self.module_, learner, self.optimizer_)
        if self.saved_ is not None:
            made.restore(*self.saved_)
            self.saved_ = None
        return made

    def _on_device(self, batch: Any) -> tuple[Any, Tensor]:
        samples, targets = batch
        samples = tuple(samples) if isinstance(samples, list) else samples
        return to_tensor(samples, device=self.device), to_tensor(targets, device=self.device)


class TargetCorrectionClassifier(_Corrected, NeuralNetClassifier):
    """A `skorch.NeuralNetClassifier` that is trained on corrected targets.

    Every `partial_fit(X, y)` is one task: its targets are corrected for the network as it is then
    and for all earlier tasks, and the network trains on it in one pass. `fit` starts again, with
    one task. The samples are learned in the given order.

    Labels are 0 to c - 1 for a module with c outputs, and the class with the largest output is
    predicted. `predict_proba` returns the distributions nearest to the outputs; they rank the
    classes, but are not calibrated. The history has `shift` (root mean square of
    corrected minus true targets), `largest_target`, and `linearization_error`, how far the network
    is from the theory (`NetworkCorrector.linearization_error`).

    Args:
        module: The network, as in skorch.
        corrector: A function that makes the corrector from the module and the learner, an `rt.SGD`
            that describes skorch's optimizer, batch size and criterion, and from `preconditioner=`
            for Adam, AdamW, RMSprop and several rates, such as
            `functools.partial(rt.NetworkCorrector, gamma=30.0, block_size=20)`.
        criterion: The loss: half the squared error, summed over the outputs, or whatever the
            corrector's `loss` says. It is an error if its gradients differ from that loss's.
        max_epochs: Passes over a task. More than one needs a corrector with `refresh="epoch"`.
        train_split: None, so that all samples are learned; skorch's default holds some out.

    Everything else is as in skorch.

    Attributes:
        corrector_: The corrector, after the first call.
    """

    @property
    def classes_(self) -> Any:
        """The classes: as given, or one for each output; skorch's are those of the last call."""
        if self.classes is not None or not self.outputs_:
            return super().classes_
        return np.arange(self.outputs_)

    def predict_proba(self, X: Any) -> Any:
        """Returns the probabilities (n, c) of the classes: numbers of at least 0, with sum 1."""
        return nearest_distributions(super().predict_proba(X))


class TargetCorrectionRegressor(_Corrected, NeuralNetRegressor):
    """A `skorch.NeuralNetRegressor` that is trained on corrected targets.

    Arguments and behavior are those of `TargetCorrectionClassifier`; targets are real numbers,
    (n, c) for a module with c outputs.
    """
