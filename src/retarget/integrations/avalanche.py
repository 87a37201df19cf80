r"""Avalanche: corrected targets as a plugin, and learning without forgetting as a strategy.

Needs the extra: `pip install "retarget[avalanche]"`. `TargetCorrectionPlugin` gives any supervised
strategy the targets of an `rt.NetworkCorrector`; `Tangent` is a strategy that learns every
experience with an `rt.TangentLearner`. `SquaredError` is the loss that both are for, and
`mse_metrics` measures regression, for which Avalanche has no metric.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from retarget.continual.corrector import NetworkCorrector
from retarget.continual.linearisation import outputs
from retarget.continual.steps import evaluating
from retarget.errors import InvalidInputError, missing_extra
from retarget.learners import SGD, Reduction
from retarget.streaming.ridge import StreamingRidge
from retarget.streaming.tangent import TangentLearner

try:
    from avalanche.core import SupervisedPlugin
    from avalanche.distributed.distributed_helper import DistributedHelper
    from avalanche.evaluation import GenericPluginMetric
    from avalanche.evaluation.metric_results import MetricValue
    from avalanche.evaluation.metric_utils import get_metric_name
    from avalanche.evaluation.metrics.mean import Mean
    from avalanche.models.utils import is_multi_task_module
    from avalanche.training.templates import SupervisedTemplate
except ImportError as error:
    reason = "retarget.integrations.avalanche needs Avalanche"
    raise missing_extra(reason, error, "avalanche") from error

__all__ = ["SquaredError", "Tangent", "TargetCorrectionPlugin", "mse_metrics"]

Batch = list[Tensor]  # inputs, labels or targets, and perhaps task labels
Corrected = Iterator[tuple[Batch, Tensor]]  # a mini-batch, and what it is to be trained on


class SquaredError(nn.Module):
    r"""$\tfrac12\|y - f(x)\|^2$, summed over the outputs: the loss that corrected targets are for.

    Use it as a strategy's `criterion`. `torch.nn.MSELoss` differs from it by a factor of 2 over the
    number of outputs, which amounts to another learning rate. Whole numbers are taken for labels,
    and compared as one-hot rows.

    Args:
        reduction: `"mean"` or `"sum"` over the mini-batch.

    Examples:
        >>> SquaredError()(torch.tensor([[0.0, 3.0]]), torch.tensor([1]))
        tensor(2.)
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise InvalidInputError(f"reduction is {reduction!r}; expected 'mean' or 'sum'")
        self.reduction = reduction

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a mini-batch, from outputs (n, c) and labels (n,) or targets (n, c)."""
        rows = outputs.reshape(len(outputs), -1)
        losses = (rows - _as_rows(targets, rows.shape[1]).to(rows)).square().sum(1) / 2
        return losses.mean() if self.reduction == "mean" else losses.sum()


class TargetCorrectionPlugin(SupervisedPlugin):
    """Trains a strategy on corrected targets instead of the true ones.

    Add it to the `plugins` of a strategy, `Naive` for one, whose `criterion` is `SquaredError`.
    When an experience begins, its mini-batches are drawn from the strategy's loader, once, and
    corrected in the order in which they came; the strategy is then trained on these mini-batches
    in this order. So shuffling, random transforms and workers of the loader are as exact as a plain
    order; in a further epoch the same mini-batches come again. Metrics still see the true labels.

    A corrector with `memory=...` (the closed loop) is asked block by block while the strategy
    trains, and nothing is held but the block.

    Three numbers go to the strategy's loggers after every epoch: `TargetShift`, the root mean
    square of corrected less true targets; `LargestTarget`; and `LinearisationError`, how far the
    network was from where the theory said, as far as this is known.

    What is not described by the corrector's learner is refused: another optimiser, rate, batch
    size or loss than the learner has, samples that other plugins add (replay), task labels as
    inputs, several processes, mixed precision.

    Args:
        corrector: The corrector of the strategy's own model; or a function from the model and an
            `rt.SGD`, which describes the strategy's optimiser, batch size and criterion, to a
            corrector. It is called when training begins.
    """

    def __init__(
        self, corrector: NetworkCorrector | Callable[[nn.Module, SGD], NetworkCorrector]
    ) -> None:
        super().__init__()
        self.corrector: NetworkCorrector | None = None
        self._factory: Callable[[nn.Module, SGD], NetworkCorrector] | None = None
        if isinstance(corrector, NetworkCorrector):
            self.corrector = corrector
        else:
            self._factory = corrector
        self._drawn: list[Batch] = []
        self._wanted: Tensor | None = None  # targets of the mini-batch at hand
        self._labels = torch.empty(0)
        self._experiences = 0
        self._sums = _Sums()

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Corrects the experience, or corrects it again; every plugin has set its loader by now."""
        again = strategy.clock.train_exp_epochs > 0
        drawn = iter(self._drawn) if again else self._draw(strategy, strategy.dataloader)
        first = next(drawn, None)
        if first is None:
            raise InvalidInputError(
                f"the loader gives no mini-batch of {strategy.train_mb_size} from the "
                f"{len(strategy.experience.dataset)} samples of the experience"
            )
        drawn, length = itertools.chain([first], drawn), len(strategy.dataloader)
        corrector = self._checked(strategy, first[0], again, **kwargs)
        self._sums = _Sums()
        if corrector.memory is None:
            self._drawn = list(drawn)
            batches = self._all_at_once(strategy, corrector, again)
        else:
            _require_one_pass(strategy, corrector)
            batches = self._block_by_block(strategy, corrector, drawn)
            length *= 2 if corrector.replay else 1
        strategy.dataloader = _CorrectedBatches(self, batches, length)

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Puts the corrected targets in the mini-batch, for the criterion to see."""
        if self._wanted is not None:
            self._labels = strategy.mbatch[1]
            shape = strategy.mb_output.shape
            strategy.mbatch[1] = self._wanted.to(strategy.mb_output).reshape(shape)

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Puts the labels back, for metrics and other plugins to see."""
        strategy.mbatch[1], self._wanted = self._labels, None

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Makes sure that the corrected targets were trained on."""
        if self._wanted is not None:
            raise InvalidInputError(
                f"{type(strategy).__name__} did not call after_forward and before_backward around "
                "its criterion, where targets are exchanged; use a strategy with SGDUpdate's loop"
            )

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Logs how far the targets were shifted, and how well the network followed."""
        assert self.corrector is not None
        found = {
            "TargetShift": self._sums.shift,
            "LargestTarget": self._sums.largest,
            "LinearisationError": self.corrector.linearisation_error,
        }
        for name, value in found.items():
            if value is not None:
                _log(strategy, self, name, value)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Lets go of the experience."""
        self._drawn = []
        self._experiences += 1

    def _checked(self, strategy: Any, X: Tensor, again: bool, **kwargs: Any) -> NetworkCorrector:
        """The corrector, if it describes what the strategy does."""
        _require_plain(strategy)
        loss, reduction = _loss_of(strategy._criterion, outputs(strategy.model, X[:1]).to(X))
        new = not (again or self._experiences)
        learner = _learner_of(strategy, reduction, new)
        if learner.momentum and not new and kwargs.get("reset_optimizer_state"):
            raise InvalidInputError(
                "reset_optimizer_state is True, but the corrector takes the momentum to go on from "
                "one experience to the next; leave it out"
            )
        if self._factory is not None and self.corrector is None:
            self.corrector = self._factory(strategy.model, learner)
        assert self.corrector is not None
        _require_described(strategy, self.corrector, learner, loss)
        return self.corrector

    def _all_at_once(self, strategy: Any, corrector: NetworkCorrector, again: bool) -> Corrected:
        """Mini-batches of the open loop, corrected when training begins."""
        X = torch.cat([batch[0] for batch in self._drawn])
        Y = self._true(strategy, torch.cat([batch[1] for batch in self._drawn]), X)
        with evaluating(strategy.model):
            Z = corrector.recorrect() if again else corrector.correct(X, Y)
        self._sums.add(Z, Y)
        sizes = [len(batch[0]) for batch in self._drawn]
        return iter([(list(b), z) for b, z in zip(self._drawn, Z.split(sizes), strict=True)])

    def _block_by_block(
        self, strategy: Any, corrector: NetworkCorrector, drawn: Iterator[Batch]
    ) -> Corrected:
        """Mini-batches of the closed loop, each block corrected when the one before is trained."""
        size = corrector.learner.batch_size
        while block := list(itertools.islice(drawn, corrector.block_size // size)):
            own = [torch.cat(parts) for parts in zip(*block, strict=True)]
            Y = self._true(strategy, own[1], own[0])
            with evaluating(strategy.model):
                X, Z = corrector.next_block(own[0], Y)
            self._sums.add(Z[: len(Y)], Y)
            rows = [*_with_stored(own, X[len(Y) :], Z[len(Y) :]), Z]
            for *batch, wanted in zip(*(part.split(size) for part in rows), strict=True):
                yield batch, wanted

    def _draw(self, strategy: Any, loader: Any) -> Iterator[Batch]:
        """The loader's mini-batches, refused where they are not those of the experience."""
        size, full, samples = strategy.train_mb_size, True, 0
        for given in loader:
            batch = [part.to(strategy.device) for part in given]
            samples += len(batch[0])
            if len(batch[0]) > size or not full:
                raise InvalidInputError(
                    f"train_mb_size is {size}, but the loader gave a mini-batch of {len(batch[0])}"
                    f"{'' if full else ' after a short one'}: another plugin or the strategy adds "
                    "samples (replay); leave it out"
                )
            _require_own(strategy, samples)
            full = len(batch[0]) == size
            yield batch

    def _true(self, strategy: Any, labels: Tensor, X: Tensor) -> Tensor:
        c = outputs(strategy.model, X[:1]).shape[1]
        return _as_rows(labels, c).to(next(strategy.model.parameters()))


class Tangent(SupervisedTemplate):
    """Trains the network on the first experience, and learns all of them without forgetting.

    The first session is plain training with the optimiser and the criterion. From then on the
    network stays as it is, and an `rt.TangentLearner` learns every experience, the first one
    included, in one pass. Its predictions are those of the strategy: Avalanche's metrics and
    loggers work as with any other. No sample is kept, and neither the order of experiences nor
    that of samples matters after the first session. In training, metrics show what was predicted
    before the experience was learned.

    Classes and real-valued targets are both learned; classes need an output of the network each.

    Args:
        model: The network.
        optimizer: Of the first session; may be None where `first_epochs` is 0.
        criterion: The loss of the first session, and of the metrics.
        make_learner: Makes the learner from the network when the first session is over, such as
            `functools.partial(rt.TangentLearner, memory=1024)`.
        first_epochs: Passes of the first session; 0 for a network that was trained elsewhere.
        targets: How many classes or targets there are, where the network has another number of
            outputs: it is then a feature extractor, and learning starts from zero.
        **others: What `SupervisedTemplate` takes besides: `train_mb_size`, `eval_mb_size`,
            `device`, `plugins`, `evaluator`, `eval_every`.

    Attributes:
        learner: The learner, once the first session is over.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
        make_learner: Callable[[nn.Module], StreamingRidge] = TangentLearner,
        first_epochs: int = 1,
        targets: int | None = None,
        **others: Any,
    ) -> None:
        if first_epochs < 0:
            raise InvalidInputError(f"first_epochs is {first_epochs}; expected 0 or more")
        if first_epochs and optimizer is None:
            raise InvalidInputError(
                f"first_epochs is {first_epochs}, but there is no optimizer to train the network "
                "with; give one, or first_epochs=0"
            )
        criterion = SquaredError() if criterion is None else criterion
        # one more: the pass in which the first experience is learned
        epochs = first_epochs + 1
        super().__init__(
            model=model, optimizer=optimizer, criterion=criterion, train_epochs=epochs, **others
        )
        self.first_epochs, self.targets = first_epochs, targets
        self.make_learner = make_learner
        self.learner: StreamingRidge | None = None

    def make_optimizer(self, **kwargs: Any) -> None:
        """As always, where there is an optimiser."""
        if self.optimizer is not None:
            super().make_optimizer(**kwargs)

    def forward(self) -> Tensor:
        """The learner's predictions; those of the network until something was learned."""
        if self.learner is not None and self.learner.samples:
            predicted: Tensor = self.learner.predict(self.mb_x)
            return predicted
        found: Tensor = super().forward()
        if self.targets is None or found.shape[1] == self.targets:
            return found
        return found.new_zeros(len(found), self.targets)  # where a learner on features starts

    def _train_exp(self, experience: Any, eval_streams: Any = None, **kwargs: Any) -> None:
        _require_plain(self)
        if self.learner is None:
            self.train_epochs = self.first_epochs
            super()._train_exp(experience, eval_streams, **kwargs)
            self.learner = self.make_learner(self.model)
            self.train_epochs = 1
        self._before_training_epoch(**kwargs)
        self._learn(self.learner, **kwargs)
        self._after_training_epoch(**kwargs)

    def _learn(self, learner: StreamingRidge, **kwargs: Any) -> None:
        """Learns the experience; it is predicted by what was learned before."""
        part = learner.empty()
        for batch in self.dataloader:
            self.mbatch = batch
            self._unpack_minibatch()
            self._before_training_iteration(**kwargs)
            with torch.no_grad():
                self._before_forward(**kwargs)
                self.mb_output = self.forward()
                self._after_forward(**kwargs)
                self.loss = self._make_empty_loss() + self.criterion()
            self._before_update(**kwargs)
            targets = _as_rows(self.mb_y, self.targets or self.mb_output.shape[1])
            part.learn(self.mb_x, targets.to(self.mb_output))
            _require_own(self, part.samples)
            self._after_update(**kwargs)
            self._after_training_iteration(**kwargs)
        learner.merge(part)


class MeanSquaredError(GenericPluginMetric):
    """The mean squared error over samples and outputs, of an epoch, an experience or a stream.

    Labels count as one-hot rows. `mse_metrics` makes these metrics.
    """

    def __init__(self, each: Literal["epoch", "experience", "stream"]) -> None:
        mode = "train" if each == "epoch" else "eval"
        super().__init__(Mean(), reset_at=each, emit_at=each, mode=mode)
        self._name = {"epoch": "MSE_Epoch", "experience": "MSE_Exp", "stream": "MSE_Stream"}[each]

    def update(self, strategy: Any) -> None:
        """Adds a mini-batch."""
        rows = strategy.mb_output.detach().reshape(len(strategy.mb_output), -1)
        errors = rows - _as_rows(strategy.mb_y, rows.shape[1]).to(rows)
        self._metric.update(errors.square().mean(), len(rows))

    def __str__(self) -> str:
        return self._name


def mse_metrics(
    *, epoch: bool = False, experience: bool = False, stream: bool = False
) -> list[MeanSquaredError]:
    """Metrics of the mean squared error, for an `EvaluationPlugin`.

    Args:
        epoch: Of every training epoch.
        experience: Of every experience that is evaluated.
        stream: Of all experiences that are evaluated.
    """
    found = [MeanSquaredError("epoch")] if epoch else []
    found += [MeanSquaredError("experience")] if experience else []
    found += [MeanSquaredError("stream")] if stream else []
    return found


class _Sums:
    """What is logged of an epoch's targets."""

    def __init__(self) -> None:
        self.squares, self.count, self.largest = 0.0, 0, 0.0

    def add(self, Z: Tensor, Y: Tensor) -> None:
        self.squares += float((Z - Y).double().square().sum())
        self.count += Y.numel()
        self.largest = max(self.largest, float(Z.abs().max()))

    @property
    def shift(self) -> float:
        return math.sqrt(self.squares / max(self.count, 1))


class _CorrectedBatches:
    """Stands for the strategy's loader, and tells the plugin the targets of each mini-batch."""

    def __init__(self, plugin: TargetCorrectionPlugin, batches: Corrected, length: int) -> None:
        self._plugin, self._batches, self._length = plugin, batches, length

    def __len__(self) -> int:  # progress bars ask for it
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        for batch, wanted in self._batches:
            self._plugin._wanted = wanted
            yield batch


def _as_rows(labels: Tensor, c: int) -> Tensor:
    """(n, c) true targets: one-hot rows of labels, or the targets themselves."""
    if labels.is_floating_point() or labels.ndim > 1:
        return labels.reshape(len(labels), -1)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < c:
        raise InvalidInputError(
            f"labels are from {int(labels.min())} to {int(labels.max())}, but there are {c} "
            "outputs; expected an output for every class of the stream from the beginning"
        )
    return nn.functional.one_hot(labels.long(), c)


def _with_stored(own: Batch, X: Tensor, Z: Tensor) -> Batch:
    """A block, and the stored samples beside it.

    The corrector stores no labels. Only metrics of training look at them: there these samples
    count by their targets.
    """
    labels = Z.argmax(1) if own[1].ndim == 1 and not own[1].is_floating_point() else Z
    labels = labels.to(own[1]).reshape(len(X), *own[1].shape[1:])
    others = [part[:1].expand(len(X), *part.shape[1:]) for part in own[2:]]
    return [torch.cat(pair) for pair in zip(own, (X, labels, *others), strict=True)]


def _log(strategy: Any, origin: Any, name: str, value: float) -> None:
    """Publishes a number by the strategy's evaluator, under a name as its metrics have them."""
    experience = strategy.experience
    strategy.experience = experience.logging()  # in which its number may be read
    full = get_metric_name(name, strategy, add_experience=True)
    strategy.experience = experience
    step = strategy.clock.train_iterations
    strategy.evaluator.publish_metric_value(MetricValue(origin, full, value, step))


def _loss_of(criterion: Callable[[Tensor, Tensor], Tensor], like: Tensor) -> tuple[str, Reduction]:
    """Which loss a criterion is, and how it reduces a mini-batch, by its gradient."""
    c = like.shape[1]
    f = torch.linspace(-1, 2, 3 * c).reshape(3, c).to(like).requires_grad_()
    z = (f.detach().flip(0, 1).sigmoid() if c == 1 else f.detach().flip(0, 1).softmax(1)) + 0
    (found,) = torch.autograd.grad(criterion(f, z), f)
    p = f.detach().sigmoid() if c == 1 else f.detach().softmax(1)
    for loss, gradient in (("squared", f.detach() - z), ("cross-entropy", p - z)):
        if torch.allclose(found, gradient, rtol=1e-3, atol=1e-6):
            return loss, "sum"
        if torch.allclose(found, gradient / 3, rtol=1e-3, atol=1e-6):
            return loss, "mean"
    raise InvalidInputError(
        f"criterion is {criterion}, which is neither half the squared error, summed over the "
        "outputs, nor cross-entropy; use SquaredError() of retarget.integrations.avalanche"
    )


def _learner_of(strategy: Any, reduction: Reduction, new: bool) -> SGD:
    """The strategy's optimiser, batch size and reduction as a learner."""
    optimizer = strategy.optimizer
    if not new and type(optimizer) is torch.optim.SGD:
        # without its velocity, which is of steps that the corrector knows of
        optimizer = torch.optim.SGD([dict(group) for group in optimizer.param_groups])
    return SGD.from_torch(optimizer, strategy.train_mb_size, reduction)


def _require_described(strategy: Any, corrector: NetworkCorrector, learner: SGD, loss: str) -> None:
    """Refuses a corrector of another network, optimiser or loss than the strategy has."""
    described = corrector.learner
    if learner.batch_size == 1:  # of which mean and sum are the same
        described = dataclasses.replace(described, reduction=learner.reduction)
    if described != learner:
        raise InvalidInputError(
            f"the corrector's learner is {described}, but the strategy trains as {learner}; give "
            "a function from model and learner to a corrector instead"
        )
    if corrector.loss != loss:
        raise InvalidInputError(
            f"the corrector's loss is {corrector.loss!r}, but the strategy's criterion is "
            f"{loss!r}; use SquaredError() for 'squared', CrossEntropyLoss() for 'cross-entropy'"
        )
    module = getattr(corrector.kernel, "module", strategy.model)
    if module is not strategy.model and corrector.refresh != "never":
        raise InvalidInputError(
            "the corrector is of another network than the strategy's; make it from strategy.model"
        )
    trained = {name for name, value in strategy.model.named_parameters() if value.requires_grad}
    if corrector.params is not None and set(corrector.params) != trained:
        others = sorted(trained.symmetric_difference(corrector.params))
        raise InvalidInputError(
            f"the corrector and the strategy differ in whether {', '.join(others)} is trained; "
            "freeze what is not, with requires_grad_(False)"
        )
    rates = {float(group["lr"]) for group in strategy.optimizer.param_groups}
    if len(rates) > 1 and getattr(corrector.kernel, "preconditioner", None) is None:
        raise InvalidInputError(
            f"the optimizer has the rates {sorted(rates)}, of which the corrector knows one; give "
            "it preconditioner=optimizer"
        )


def _require_one_pass(strategy: Any, corrector: NetworkCorrector) -> None:
    if strategy.train_epochs != 1:
        raise InvalidInputError(
            f"train_epochs is {strategy.train_epochs}, but with memory={corrector.memory} each "
            "block is corrected once; use train_epochs=1, or a corrector without memory"
        )


def _require_own(strategy: Any, samples: int) -> None:
    """Refuses a loader that gives more than the experience has."""
    n = len(strategy.experience.dataset)
    if samples > n:
        raise InvalidInputError(
            f"the loader gives more than the {n} samples of the experience: another plugin or the "
            "strategy adds some (replay, several tasks in an experience); leave it out"
        )


def _require_plain(strategy: Any) -> None:
    """Refuses ways to train that no learner describes."""
    if DistributedHelper.is_distributed:
        raise InvalidInputError(
            "training is distributed, and each process would see a part of the stream only; train "
            "in one process"
        )
    if torch.is_autocast_enabled(strategy.device.type):
        raise InvalidInputError(
            "autocast is on, and half precision loses the digits that targets are made of; train "
            "without it"
        )
    if is_multi_task_module(strategy.model):
        raise InvalidInputError(
            f"the model is a {type(strategy.model).__name__}, which takes task labels; expected a "
            "network of the inputs alone"
        )
