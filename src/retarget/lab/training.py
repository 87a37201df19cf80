"""The training loop of the continual-learning lab."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retarget.engine.losses import row_losses
from retarget.errors import InvalidInputError, TrainingDivergedError
from retarget.lab.checkpoint import Checkpoint
from retarget.lab.history import History
from retarget.lab.methods import Batch, Method
from retarget.lab.steps import NEVER, Ensemble, MemberSamples, Optimizer, PassPlan, Stepper
from retarget.lab.streams import TaskStream
from retarget.learners import SGD
from retarget.progress import PatientBar
from retarget.scalars import as_count
from retarget.streaming.ridge.views import View, Views

EVALUATED_AT_A_TIME = {"cpu": 64}  # so activations stay in the cache; 4096 on other devices
STEPS_BETWEEN_CHECKS = {"cpu": 1}  # of the loss; 250 on other devices, which each check waits for


def train(
    modules: nn.Module | Sequence[nn.Module],
    streams: TaskStream | Sequence[TaskStream],
    learners: SGD | Sequence[SGD],
    methods: Method | Sequence[Method] = (),
    *,
    epochs: int = 1,
    reshuffle: bool = False,
    evaluate_every: int | None = None,
    views: Sequence[View] | None = None,
    seeds: Sequence[int] | None = None,
    record: bool = True,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
) -> History:
    r"""Trains networks on a stream of tasks, and evaluates them during training.

    The loss of a sample is $\tfrac12 \|y - f(x)\|^2$; the learner's `reduction` says whether the
    losses of a mini-batch are summed or averaged. Several networks (members) train at once as one
    batched network, each on its own stream and at its own rate; each result is that of training the
    network alone, up to rounding.

    Args:
        modules: The network, or one per member; trained in place, on their device.
        streams: The stream, or one per member; the tasks must have the same sizes in all.
        learners: The optimizer, or one per member; constant rates, one batch size and reduction.
        methods: What to do beyond plain SGD. Several methods work together: targets pass through
            them in turn, and their penalties add up.
        epochs: Passes over each task.
        reshuffle: Whether every epoch after the first has a new order; ignored if a method needs
            the same order in every epoch (`keeps_order`).
        evaluate_every: Samples between two evaluations within a task, a multiple of the batch
            size. There is always one before training, and one after each task.
        views: Functions of a batch of samples that do not change what a sample means, such as its
            mirror image (None is the sample itself): in each pass, each sample is shown as one of
            them, chosen at random. Not with methods that change the targets of single samples.
        seeds: Seeds for everything random (orders, buffers), one per member; default 0, 1, 2...
        record: On CUDA, record a step of each pass and replay it (if the methods allow).
        progress: Whether to show a progress bar; None shows it on a terminal.
        checkpoint: A file to save the run to after every epoch. If it exists, the run resumes from
            it; on the CPU the results are bit-identical to an uninterrupted run. The file stays
            after training, and the same call then returns the results at once: delete it when you
            have stored them.

    Raises:
        TrainingDivergedError: The loss of a member is not finite. The modules are unchanged.
        InvalidInputError: The checkpoint is from another run, or an argument is invalid.
        OSError: The checkpoint cannot be written. The previous one stays.

    Warns:
        DamagedFileWarning: The checkpoint cannot be read. It is renamed, and training starts from
            the beginning.
    """
    schedule = {"epochs": epochs, "reshuffle": reshuffle, "evaluate_every": evaluate_every}
    given = {"views": Views(views), "record": record}
    run = _start(modules, streams, learners, methods, seeds, **given, **schedule)
    check_schedule(epochs, evaluate_every, run.learners[0].batch_size)
    fixed = [method.name for method in run.methods if method.keeps_order]
    if len(run.views) > 1 and fixed:
        raise InvalidInputError(
            f"views are shown at random, but {fixed[0]} computes the targets of each sample as it "
            "is; leave views out"
        )
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint), run)
    for method in run.methods:
        method.on_start(run)
    resumed = saved is not None and saved.load()
    if saved is not None:
        run.checkpoint = saved.save
    if not resumed:
        run.evaluate(0)
        run.checkpoint()
    with PatientBar("training", epochs * run.train.rows.shape[1], progress) as bar:
        bar.advance(run.seen)
        while run.task < len(run.train.spans[0]):
            _learn_task(run, bar)
    run.ensemble.write_back()
    return run.history()


@dataclass
class Run:
    """A training run, as the hooks of methods see it.

    Attributes:
        ensemble: The members' networks.
        learners: The members' learners.
        methods: All methods, in order.
        train: The members' streams.
        test: The members' test samples.
        targets: (M, n, c) true targets, in stream order.
        random: The random generator of each member.
        epochs: As in `train`, and so are `reshuffle`, `evaluate_every`, `views` and `record`.
        task: The task being learned, from 0.
        epoch: The pass over it, from 0.
        order: (M, n) positions of the task's samples, in the order of the last pass.
        seen: Number of training samples so far.
        checkpoint: Saves the run, if a checkpoint was requested. A method with a long `on_task_end`
            may call it there if its `state_dict` records the progress: after an interruption,
            `on_task_end` is called again.
        plan: The samples of each step of the current pass.
    """

    ensemble: Ensemble
    learners: list[SGD]
    methods: list[Method]
    train: MemberSamples
    test: MemberSamples
    targets: Tensor
    random: list[np.random.Generator]
    optimizer: Optimizer
    epochs: int
    reshuffle: bool
    evaluate_every: int | None
    views: Views
    record: bool
    total_loss: Tensor  # (M,) of the steps since the last evaluation
    first_bad: Tensor  # (M,) first step of the pass with a loss that is not finite, or NEVER
    task: int = 0
    epoch: int = 0
    passes: int = 0  # complete passes over the task
    ended: int = 0  # methods whose `on_task_end` has finished
    order: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    seen: int = 0
    checkpoint: Callable[[], None] = lambda: None
    plan: PassPlan = field(init=False)
    steps: int = 0  # since the last evaluation
    taken: int = 0  # steps of the current pass, or of the last one
    evaluations: list[tuple[int, int, Tensor, Tensor, Tensor]] = field(default_factory=list)

    @property
    def span(self) -> slice:
        """The range of the current task in the stream."""
        return self.train.spans[0][self.task]

    @property
    def stream_bytes(self) -> int:
        """Bytes of all samples and targets of a member's stream."""
        return self.train.rows.shape[1] * self.train.sample_bytes + self.targets[0].nbytes

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Returns each member's loss (M,), for outputs and targets (M, b, c), weights (M, b)."""
        losses = row_losses(outputs, targets) * weights
        if self.learners[0].reduction == "sum":
            return losses.sum(1)
        # an empty mini-batch (nothing to replay yet) costs nothing
        return losses.sum(1) / weights.sum(1).clamp(min=1)

    def inputs(self, positions: Tensor) -> Tensor:
        """Returns the samples (M, b, ...) at positions (M, b) of the members' streams."""
        return self.train.pool[self.train.rows.gather(1, positions)]

    def true_targets(self, positions: Tensor) -> Tensor:
        """Returns the one-hot targets (M, b, c) at positions (M, b) of the members' streams."""
        return gather_rows(self.targets, positions)

    def batch(self, step: Tensor) -> Batch:
        """Returns the mini-batch of a step of the current pass, with the present outputs."""
        positions = self.plan.positions.index_select(0, step)[0]
        weights = self.plan.weights.index_select(0, step)[0]
        inputs = self.inputs(positions)
        if len(self.views) > 1:
            flat = inputs.flatten(0, 1)
            seen = torch.stack([flat if v is None else v(flat) for v in self.views.functions])
            chosen = self.plan.views.index_select(0, step).flatten()
            inputs = seen[chosen, torch.arange(len(chosen), device=seen.device)].view_as(inputs)
        outputs = self.ensemble(inputs)
        return Batch(step, positions, weights, inputs, self.true_targets(positions), outputs)

    def pass_over(
        self,
        order: np.ndarray,
        methods: Sequence[Method] = (),
        after_step: Callable[[int], None] = lambda samples: None,
    ) -> None:
        """Trains on the samples at (M, n) positions, in this order, once.

        Args:
            order: The positions in the members' streams.
            methods: Methods whose hooks are called; empty for plain training.
            after_step: Called after each step with the number of samples in it.
        """
        n = order.shape[1]
        batch_size = self.learners[0].batch_size
        shown = np.zeros(order.shape, dtype=np.int64)
        if len(self.views) > 1:
            self.views.require_fit(self.train.inputs(0, slice(0, 1)))
            shown = np.stack([each.integers(len(self.views), size=n) for each in self.random])
        self.plan = PassPlan.in_order(order, shown, batch_size, self.targets)
        for method in methods:
            method.on_epoch_start(self)
        stepper = Stepper(self, methods)
        self.taken = 0
        self.first_bad.fill_(NEVER)
        interval = STEPS_BETWEEN_CHECKS.get(self.ensemble.device.type, 250)
        for step in range(1, len(self.plan) + 1):
            stepper.step()
            if step % interval == 0 or step == len(self.plan):
                self._require_finite(self.first_bad, "loss")
            after_step(min(batch_size, n - (step - 1) * batch_size))

    @torch.no_grad()
    def evaluate(self, learned: int) -> None:
        """Records every member's accuracy on all test samples, and on those of each task.

        Args:
            learned: Number of tasks that have been learned completely.
        """
        outputs = torch.stack([self._test_outputs(m) for m in range(len(self.ensemble))])
        if self.taken:
            self._require_sound(outputs)
        right = (outputs.argmax(2) == self.test.labels).double()
        by_task = [
            torch.stack([answers[span].mean() for span in spans])
            for answers, spans in zip(right, self.test.spans, strict=True)
        ]
        loss = self.total_loss / (self.steps or torch.nan)
        self.evaluations.append(
            (self.seen, learned, right.mean(1).cpu(), torch.stack(by_task).cpu(), loss.cpu())
        )
        self.total_loss.zero_()
        self.steps = 0

    def _test_outputs(self, member: int) -> Tensor:
        """Returns the member's outputs (n, c) for its test samples."""
        for method in reversed(self.methods):
            answers = method.test_outputs(self, member)
            if answers is not None:
                return answers
        size = EVALUATED_AT_A_TIME.get(self.ensemble.device.type, 4096)
        portions = torch.split(self.test.rows[member], size)
        return torch.cat([self.ensemble.predict(member, self.test.pool[p]) for p in portions])

    def history(self) -> History:
        """Returns all evaluations so far."""
        samples, task, *parts = zip(*self.evaluations, strict=True)
        accuracy, by_task, loss = (torch.stack(part).double().numpy() for part in parts)
        kept = sum(method.kept_bytes(self) for method in self.methods)
        return History(np.array(samples), np.array(task), accuracy, by_task, loss, kept)

    def _require_sound(self, outputs: Tensor) -> None:
        """Stops the run if the steps so far have broken a network, even if no loss shows it.

        The last step may have made the weights infinite; and a ReLU whose weights are minus
        infinity just returns 0.
        """
        self._require_finite(self.first_bad, "loss")
        sound = outputs.isfinite().flatten(1).all(1)
        for parameter in self.ensemble.parameters.values():
            sound &= parameter.isfinite().flatten(1).all(1)
        self._require_finite(torch.where(sound, NEVER, self.taken - 1), "network")

    def _require_finite(self, first_bad: Tensor, what: str) -> None:
        """Stops the run if a member became infinite or NaN in a step of this pass."""
        first = first_bad.cpu()
        if (first == NEVER).all():
            return
        members = (first != NEVER).nonzero()[:, 0].tolist()
        member = int(first.argmin())
        step = int(first.min())
        causes = [method.likely_cause(self, member) for method in self.methods]
        rate = self.learners[member].rate(0)
        high = f"its learning rate, {rate:g}, is probably too high for this network: try a third"
        cause = next(filter(None, causes), f"{high} of it")
        names = " + ".join(method.name for method in self.methods) or "plain SGD"
        raise TrainingDivergedError(
            f"the {what} of member {member} is not finite "
            f"{'at' if what == 'loss' else 'after'} step {step} of epoch {self.epoch} of task "
            f"{self.task}, with {names}; {cause}",
            step=step,
            members=tuple(members),
        )


def gather_rows(table: Tensor, positions: Tensor) -> Tensor:
    """Returns the rows (M, b, c) of each member's table (M, n, c) at its positions (M, b)."""
    return table.gather(1, positions[..., None].expand(-1, -1, table.shape[-1]))


def _learn_task(run: Run, bar: PatientBar) -> None:
    """Learns the current task, or the rest of it, and moves on to the next."""
    if not run.passes:
        run.epoch = 0
        for method in run.methods:
            method.on_task_start(run)
        run.order = np.tile(np.arange(run.span.start, run.span.stop), (len(run.ensemble), 1))
    end = int(run.epochs) * run.span.stop
    every = run.evaluate_every

    def after_step(samples: int) -> None:
        before = run.seen
        run.seen = min(run.seen + samples, end)
        bar.advance(samples)
        # with a mini-batch that is not full, the count may skip a multiple
        due = every and run.seen // every > before // every
        if due and run.seen < end:
            run.evaluate(run.task)

    shuffles = run.reshuffle and not any(method.keeps_order for method in run.methods)
    passes = run.epochs
    for method in run.methods:
        passes = method.epochs(run, passes)
    while run.passes < passes:
        run.epoch = run.passes
        if run.epoch and shuffles:
            rows = zip(run.random, run.order, strict=True)
            run.order = np.stack([random.permutation(row) for random, row in rows])
        run.pass_over(run.order, run.methods, after_step)
        run.passes += 1
        run.checkpoint()
    while run.ended < len(run.methods):
        run.methods[run.ended].on_task_end(run)
        run.ended += 1
    run.seen = end
    run.evaluate(run.task + 1)
    run.task += 1
    run.passes = 0
    run.ended = 0
    run.checkpoint()


def _start(
    modules: nn.Module | Sequence[nn.Module],
    streams: TaskStream | Sequence[TaskStream],
    learners: SGD | Sequence[SGD],
    methods: Method | Sequence[Method],
    seeds: Sequence[int] | None,
    **options: Any,
) -> Run:
    ensemble = Ensemble([modules] if isinstance(modules, nn.Module) else list(modules))
    members = len(ensemble)
    shown = [streams] * members if isinstance(streams, TaskStream) else list(streams)
    optimizers = [learners] * members if isinstance(learners, SGD) else list(learners)
    drawn = list(range(members)) if seeds is None else list(seeds)
    for name, values in (("streams", shown), ("learners", optimizers), ("seeds", drawn)):
        if len(values) != members:
            raise InvalidInputError(
                f"there are {len(values)} {name} for {members} modules; expected one per module"
            )
    _check_learners(optimizers)
    _check_streams(shown, ensemble)
    device = ensemble.device
    return Run(
        ensemble=ensemble,
        learners=optimizers,
        methods=[methods] if isinstance(methods, Method) else list(methods),
        train=MemberSamples.gather([stream.train for stream in shown], device),
        test=MemberSamples.gather([stream.test for stream in shown], device),
        targets=torch.stack([stream.targets().to(device) for stream in shown]),
        random=[np.random.default_rng(seed) for seed in drawn],
        optimizer=Optimizer(optimizers, list(ensemble.parameters.values())),
        total_loss=torch.zeros(members, device=device, dtype=torch.float64),
        first_bad=torch.full((members,), NEVER, device=device),
        **options,
    )


def _check_learners(learners: Sequence[SGD]) -> None:
    if any(not isinstance(learner.lr, float) for learner in learners):
        raise InvalidInputError(
            "a learner has a schedule of rates, but methods change the number of steps; use one "
            "constant rate"
        )
    for name in ("batch_size", "reduction", "nesterov"):
        values = {getattr(learner, name) for learner in learners}
        if len(values) > 1:
            raise InvalidInputError(
                f"the learners differ in {name}: {sorted(values)}; expected the same for all "
                "members: train others in a separate call"
            )


def _check_streams(streams: Sequence[TaskStream], ensemble: Ensemble) -> None:
    def described(stream: TaskStream) -> dict[str, object]:
        return {
            "tasks of": f"{stream.train.sizes} samples",
            "classes:": stream.classes,
            "test samples:": len(stream.test),
            "samples of shape": tuple(stream.train.inputs.shape[1:]),
        }

    first = streams[0]
    expected = described(streams[0])
    dtype = next(iter(ensemble.parameters.values())).dtype
    for i, stream in enumerate(streams):
        for what, got in described(stream).items():
            if got != expected[what]:
                raise InvalidInputError(
                    f"stream {i} has {what} {got}; expected {expected[what]}, as in stream 0: "
                    "train others in a separate call"
                )
        if stream.train.inputs.dtype != dtype:
            raise InvalidInputError(
                f"stream {i} is {stream.train.inputs.dtype}, but the network is {dtype}; convert "
                "one of them"
            )
    few = first.train.inputs[first.train.rows[:2]].to(ensemble.device)
    outputs = ensemble.predict(0, few)
    if not isinstance(outputs, Tensor) or outputs.shape != (len(few), first.classes):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InvalidInputError(
            f"the network's output for {len(few)} samples is {shape}; expected "
            f"({len(few)}, {first.classes}), one output per class"
        )


def check_schedule(epochs: int, evaluate_every: int | None, batch_size: int) -> None:
    """Raises if the number of epochs or the evaluation interval is invalid."""
    as_count("epochs", epochs)
    if evaluate_every is not None and (evaluate_every < 1 or evaluate_every % batch_size):
        raise InvalidInputError(
            f"evaluate_every is {evaluate_every}; expected a positive multiple of the batch size, "
            f"{batch_size}"
        )
