r"""Avalanche: corrected targets as a plugin, and learning without forgetting as a strategy.

Needs the extra: `pip install ".[avalanche]"`. `TargetCorrectionPlugin` trains any supervised
strategy on corrected targets; `TangentStrategy` learns every experience with an
`rt.TangentLearner`. `SquaredError` is the loss to use with both.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from retarget.errors import InvalidInputError, a_type, missing_extra
from retarget.integrations import agreement
from retarget.integrations.agreement import HalfSquaredError as SquaredError
from retarget.integrations.agreement import Problems, Shift
from retarget.integrations.gradients import GradientCheck
from retarget.learners import Reduction, described_optimizer
from retarget.networks.base import Corrector
from retarget.networks.closed_loop import ClosedLoopCorrector
from retarget.networks.corrector import NetworkCorrector
from retarget.networks.linearization import outputs
from retarget.samples import evaluating
from retarget.streaming.ridge.learner import StreamingRidge
from retarget.streaming.ridge.tangent import TangentLearner

try:
    from avalanche.core import SupervisedPlugin
    from avalanche.distributed.distributed_helper import DistributedHelper
    from avalanche.evaluation.metric_results import MetricValue
    from avalanche.evaluation.metric_utils import get_metric_name
    from avalanche.models.dynamic_modules import DynamicModule
    from avalanche.models.utils import is_multi_task_module
    from avalanche.training.plugins import GDumbPlugin
    from avalanche.training.templates import SupervisedTemplate
except ImportError as error:
    reason = "retarget.integrations.avalanche needs Avalanche"
    raise missing_extra(reason, error, "avalanche") from error

__all__ = ["SquaredError", "TangentStrategy", "TargetCorrectionPlugin"]

MiniBatch = list[Tensor]  # inputs, labels or targets, and perhaps task labels
CorrectedBatches = Iterator[tuple[MiniBatch, Tensor]]  # a mini-batch, and the targets to train on
LOGGED = {
    "shift": "TargetShift",
    "largest_target": "LargestTarget",
    "linearization_error": "LinearizationError",
    "corrected": "Corrected",
    "loss_on_true_targets": "LossOnTrueTargets",
    "loss_on_corrected_targets": "LossOnCorrectedTargets",
}


class TargetCorrectionPlugin(SupervisedPlugin):
    """Trains a strategy on corrected targets instead of the true ones.

    Add it to the `plugins` of a strategy, such as `Naive`, whose `criterion` is `SquaredError`.
    When an experience begins, the plugin draws its mini-batches from the strategy's loader, once,
    and corrects them in that order; the strategy then trains on these mini-batches in this order.
    So shuffling, random transforms and loader workers are allowed, and the correction stays exact;
    further epochs repeat the same mini-batches. Metrics still see the true labels.

    An `rt.ClosedLoopCorrector` corrects block by block while the strategy trains, and only one
    block is in memory.

    The strategy's loggers get numbers after every epoch: `TargetShift`, the root mean square of
    corrected minus true targets; `LargestTarget`; `LinearizationError`, how far the network was
    from the theory, once this is known; and with `gamma="auto"` `Corrected`, 0 if no correction was
    chosen, with the held-out losses that decided, `LossOnTrueTargets` and (of the best correction)
    `LossOnCorrectedTargets`.

    Anything that the corrector's learner does not describe is an error that lists all of it: an
    optimizer, rate, batch size or loss that differs from the learner's, samples that other plugins
    add (replay), task labels as inputs, several processes, mixed precision. At the first steps of
    an experience and at a few later ones the gradients are compared with those of the corrector's
    loss, so that penalties of other plugins (EWC, LwF) are errors, too.

    Args:
        corrector: A corrector of the strategy's model; or a function that makes one, when training
            begins, from the model, an `rt.SGD` that describes the strategy's optimizer, batch size
            and criterion and, for Adam, AdamW, RMSprop and several rates, `preconditioner=`, such
            as `rt.NetworkCorrector` itself.
    """

    def __init__(self, corrector: Corrector | Callable[..., Corrector]) -> None:
        super().__init__()
        self.corrector = corrector if isinstance(corrector, Corrector) else None
        if self.corrector is None:
            agreement.require_maker(corrector)
        self._make: Any = corrector
        self._drawn: list[MiniBatch] = []
        self._wanted: Tensor | None = None  # targets of the present mini-batch
        self._labels = torch.empty(0, device="cpu")
        self._shift = Shift()
        self._check = GradientCheck()
        self._step = 0  # of the whole stream

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Corrects the experience, at every epoch; by now all plugins have set their loaders."""
        again = strategy.clock.train_exp_epochs > 0
        drawn = iter(self._drawn) if again else _draw(strategy, strategy.dataloader)
        first = next(drawn, None)
        if first is None:
            raise InvalidInputError(
                f"the loader gives no mini-batch of {strategy.train_mb_size} from the "
                f"{len(strategy.experience.dataset)} samples of the experience; expected at least "
                "one"
            )
        drawn = itertools.chain([first], drawn)
        length = len(strategy.dataloader)
        corrector = self._checked(strategy, first[0])
        self._shift = Shift()
        if not again:
            self._check.open(corrector, strategy.optimizer)
            self._step = corrector.learner.steps(corrector.samples)
        if isinstance(corrector, ClosedLoopCorrector):
            batches = self._block_by_block(strategy, corrector, drawn)
            length *= 2 if corrector.replay else 1
        else:
            self._drawn = list(drawn)
            batches = self._all_at_once(strategy, corrector, again)
        strategy.dataloader = _CorrectedLoader(self, batches, length)

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Compares the rate, and takes note of the gradients that the mini-batch should have."""
        if self._wanted is not None and self.corrector is not None:
            agreement.require_rate(strategy.optimizer, self.corrector.learner, self._step)
            self._check.add(strategy.mb_x, self._wanted)
            self._step += 1

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Puts the corrected targets in the mini-batch, for the criterion to see."""
        if self._wanted is not None:
            self._labels = strategy.mbatch[1]
            shape = strategy.mb_output.shape
            strategy.mbatch[1] = self._wanted.to(strategy.mb_output).reshape(shape)

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Puts the labels back, for metrics and other plugins to see."""
        strategy.mbatch[1] = self._labels
        self._wanted = None

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Checks that the strategy trained on the corrected targets."""
        if self._wanted is not None:
            raise InvalidInputError(
                f"{type(strategy).__name__} did not call after_forward and before_backward around "
                "its criterion, which the plugin needs; use a strategy with SGDUpdate's loop"
            )

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Logs how far the targets were shifted, and how well the network followed."""
        assert self.corrector is not None
        for name, value in self._shift.numbers(self.corrector).items():
            _log(strategy, self, LOGGED[name], value)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Drops the mini-batches of the experience, and stops watching the optimizer."""
        self._drawn = []
        self._check.close()

    def _checked(self, strategy: Any, X: Tensor) -> Any:
        """Returns the corrector; raises if it does not describe what the strategy does."""
        problems = _plain(strategy)
        size = strategy.train_mb_size
        loss_and_reduction = None
        optimizer = strategy.optimizer
        corrector = self.corrector
        if not problems:  # of another kind of network the outputs are not known
            like = outputs(strategy.model, X[:1]).to(X)
            loss_and_reduction = problems.check(_loss_of, strategy._criterion, like)
        loss, reduction = loss_and_reduction or (None, "mean")
        if corrector is None:
            described = problems.check(described_optimizer, optimizer, size, reduction)
            if described is not None:
                given = self._make, strategy.model, described[0], optimizer
                corrector = problems.check(agreement.made_by, *given)
        if corrector is not None:
            self._compare(problems, strategy, corrector)
        if corrector is not None and loss_and_reduction is not None:
            learner = corrector.learner
            problems.add(
                learner.batch_size != size or (size > 1 and learner.reduction != reduction),
                f"the corrector's learner has batch_size={learner.batch_size} and "
                f"reduction={learner.reduction!r}, but the strategy has train_mb_size={size} and "
                f"a criterion that is the {reduction} over a mini-batch; give a function such as "
                "functools.partial(rt.NetworkCorrector, ...) instead of a corrector",
            )
            problems.add(
                corrector.loss != loss,
                f"the corrector's loss is {corrector.loss!r}, but the strategy's criterion is "
                f"{loss!r}; use SquaredError() for 'squared', CrossEntropyLoss() for "
                "'cross-entropy'",
            )
        problems.refuse()
        self.corrector = corrector
        return corrector

    def _compare(self, problems: Problems, strategy: Any, corrector: Corrector) -> None:
        """Adds what differs between the strategy and the corrector, whatever the criterion."""
        problems.add(
            corrector.module is not strategy.model,
            "the corrector is of another network than the strategy's; make it from strategy.model",
        )
        if corrector.module is strategy.model:
            problems.check(agreement.require_optimizer, strategy.optimizer, corrector)
        closed = isinstance(corrector, ClosedLoopCorrector)
        if closed or not isinstance(corrector.learner.lr, float):
            problems.check(agreement.require_passes, corrector, strategy.train_epochs)

    def _all_at_once(
        self, strategy: Any, corrector: NetworkCorrector, again: bool
    ) -> CorrectedBatches:
        """Yields mini-batches of the open loop, corrected when training begins."""
        X = torch.cat([batch[0] for batch in self._drawn])
        Y = agreement.true_targets(
            strategy.model, X, torch.cat([batch[1] for batch in self._drawn])
        )
        if again:
            with evaluating(strategy.model):
                Z = corrector.recorrect()
        else:
            Z = agreement.corrected(corrector, strategy.optimizer, X, Y)
        self._shift.add(Z, Y)
        sizes = [len(batch[0]) for batch in self._drawn]
        return iter([(list(b), z) for b, z in zip(self._drawn, Z.split(sizes), strict=True)])

    def _block_by_block(
        self, strategy: Any, corrector: ClosedLoopCorrector, drawn: Iterator[MiniBatch]
    ) -> CorrectedBatches:
        """Yields mini-batches of the closed loop; corrects a block after training on the last."""
        size = corrector.learner.batch_size
        while block := list(itertools.islice(drawn, corrector.block_size // size)):
            own = [torch.cat(parts) for parts in zip(*block, strict=True)]
            Y = agreement.true_targets(strategy.model, own[0], own[1])
            with evaluating(strategy.model):
                X, Z = corrector.next_block(own[0], Y)
            self._shift.add(Z[: len(Y)], Y)
            rows = [*_with_stored(own, X[len(Y) :], Z[len(Y) :]), Z]
            for *batch, wanted in zip(*(column.split(size) for column in rows), strict=True):
                yield batch, wanted


class TangentStrategy(SupervisedTemplate):
    """Trains the network on the first experience, and then learns all of them without forgetting.

    The first session is plain training with the optimizer and the criterion. From then on the
    network does not change, and an `rt.TangentLearner` learns every experience, including the
    first one, in one pass. The strategy predicts with this learner: Avalanche's metrics and loggers
    work as usual. No sample is kept, and after the first session neither the order of experiences
    nor that of samples matters. Training metrics use predictions made before learning the
    experience.

    Targets may be classes or real numbers; the network needs one output for each class.

    Args:
        model: The network.
        optimizer: The optimizer of the first session; may be None if `first_epochs` is 0.
        criterion: The loss of the first session, and of the metrics.
        make_learner: A function that makes the learner from the network after the first session,
            such as `functools.partial(rt.TangentLearner, features=1024)`.
        first_epochs: Passes of the first session; 0 for a network that is already trained.
        targets: The number of classes or targets, if the network has another number of outputs: it
            is then a feature extractor, and learning starts from zero.
        **others: Other arguments of `SupervisedTemplate`: `train_mb_size`, `eval_mb_size`,
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
        epochs = first_epochs + 1  # in the last one, the learner learns the first experience
        super().__init__(
            model=model, optimizer=optimizer, criterion=criterion, train_epochs=epochs, **others
        )
        self.first_epochs = first_epochs
        self.targets = targets
        self.make_learner = make_learner
        self.learner: StreamingRidge | None = None

    def make_optimizer(self, **kwargs: Any) -> None:
        """Resets the optimizer, if there is one."""
        if self.optimizer is not None:
            super().make_optimizer(**kwargs)

    def forward(self) -> Tensor:
        """Returns the learner's predictions; the network's before anything is learned."""
        if self.learner is not None and self.learner.samples:
            predicted: Tensor = self.learner.predict(self.mb_x)
            return predicted
        outputs: Tensor = super().forward()
        if self.targets is None or outputs.shape[1] == self.targets:
            return outputs
        return outputs.new_zeros(
            len(outputs), self.targets
        )  # a learner on features starts from zero

    def _train_exp(self, experience: Any, eval_streams: Any = None, **kwargs: Any) -> None:
        _plain(self).refuse()
        if self.learner is None:
            self.train_epochs = self.first_epochs
            super()._train_exp(experience, eval_streams, **kwargs)
            self.learner = self.make_learner(self.model)
            self.train_epochs = 1
        self._before_training_epoch(**kwargs)
        self._learn(self.learner, **kwargs)
        self._after_training_epoch(**kwargs)

    def _learn(self, learner: StreamingRidge, **kwargs: Any) -> None:
        """Predicts the experience for the metrics, and then learns it."""
        newest = learner.empty()
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
            targets = agreement.real_targets(self.mb_y, self.targets or self.mb_output.shape[1])
            newest.learn(self.mb_x, targets.to(self.mb_output))
            _require_own(self, newest.samples)
            self._after_update(**kwargs)
            self._after_training_iteration(**kwargs)
        learner.merge(newest)


class _CorrectedLoader:
    """Replaces the strategy's loader, and tells the plugin the targets of each mini-batch."""

    def __init__(
        self, plugin: TargetCorrectionPlugin, batches: CorrectedBatches, length: int
    ) -> None:
        self._plugin = plugin
        self._batches = batches
        self._length = length

    def __len__(self) -> int:  # progress bars ask for it
        return self._length

    def __iter__(self) -> Iterator[MiniBatch]:
        for batch, wanted in self._batches:
            self._plugin._wanted = wanted
            yield batch


def _draw(strategy: Any, loader: Any) -> Iterator[MiniBatch]:
    """Yields the loader's mini-batches; raises if samples were added to the experience."""
    size = strategy.train_mb_size
    full = True
    samples = 0
    for given in loader:
        batch = [tensor.to(strategy.device) for tensor in given]
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


def _with_stored(own: MiniBatch, X: Tensor, Z: Tensor) -> MiniBatch:
    """Appends the stored samples to a block.

    The corrector stores no labels. Only training metrics use them: for these samples they see the
    targets instead.
    """
    labels = Z.argmax(1) if own[1].ndim == 1 and not own[1].is_floating_point() else Z
    labels = labels.to(own[1]).reshape(len(X), *own[1].shape[1:])
    others = [tensor[:1].expand(len(X), *tensor.shape[1:]) for tensor in own[2:]]
    return [torch.cat(pair) for pair in zip(own, (X, labels, *others), strict=True)]


def _log(strategy: Any, origin: Any, name: str, value: float) -> None:
    """Publishes a number through the strategy's evaluator, named like its metrics."""
    experience = strategy.experience
    strategy.experience = experience.logging()  # this view allows reading its number
    full = get_metric_name(name, strategy, add_experience=True)
    strategy.experience = experience
    step = strategy.clock.train_iterations
    strategy.evaluator.publish_metric_value(MetricValue(origin, full, value, step))


def _loss_of(criterion: Callable[[Tensor, Tensor], Tensor], like: Tensor) -> tuple[str, Reduction]:
    """Finds out from its gradient which loss a criterion is, and how it reduces a mini-batch."""
    c = like.shape[1]
    f = torch.linspace(-1, 2, 3 * c, device="cpu").reshape(3, c).to(like).requires_grad_()
    z = (f.detach().flip(0, 1).sigmoid() if c == 1 else f.detach().flip(0, 1).softmax(1)) + 0
    (actual,) = torch.autograd.grad(criterion(f, z), f)
    p = f.detach().sigmoid() if c == 1 else f.detach().softmax(1)
    for loss, gradient in (("squared", f.detach() - z), ("cross-entropy", p - z)):
        if torch.allclose(actual, gradient, rtol=1e-3, atol=1e-6):
            return loss, "sum"
        if torch.allclose(actual, gradient / 3, rtol=1e-3, atol=1e-6):
            return loss, "mean"
    raise InvalidInputError(
        f"criterion is {criterion}, which is neither half the squared error, summed over the "
        "outputs, nor cross-entropy; use SquaredError() of retarget.integrations.avalanche"
    )


def _require_own(strategy: Any, samples: int) -> None:
    """Raises if the loader gives more samples than the experience has."""
    n = len(strategy.experience.dataset)
    if samples > n:
        raise InvalidInputError(
            f"the loader gives more than the {n} samples of the experience: another plugin or the "
            "strategy adds some (replay, several tasks in an experience); leave it out"
        )


def _plain(strategy: Any) -> Problems:
    """Returns ways of training that no learner describes."""
    problems = Problems()
    model = strategy.model
    several = is_multi_task_module(model)
    growing = [
        type(layer).__name__ for layer in model.modules() if isinstance(layer, DynamicModule)
    ]
    problems.add(
        DistributedHelper.is_distributed,
        "training is distributed, and each process would see only a part of the stream; train "
        "in one process",
    )
    problems.add(
        torch.is_autocast_enabled(strategy.device.type),
        "autocast is on, and half precision rounds away the correction of the targets; train "
        "without it",
    )
    problems.add(
        several,
        f"the model is {a_type(model)}, which takes task labels; expected a network of "
        "the inputs alone",
    )
    problems.add(
        growing and not several,
        f"the model has {', '.join(growing)}, whose outputs grow with the classes, but targets "
        "need all outputs from the beginning; use a torch.nn.Linear with one output for each class "
        "of the whole stream",
    )
    problems.add(
        any(isinstance(each, GDumbPlugin) for each in strategy.plugins),
        "GDumbPlugin trains on the samples that it stores instead of those of the experience; "
        "leave it out",
    )
    return problems
