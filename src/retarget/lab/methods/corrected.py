"""Training on corrected targets: the paper's method for networks, and its closed loop."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from retarget.engine.followers import Parts
from retarget.engine.stream import FirstBlock
from retarget.errors import (
    DivergedError,
    NotPositiveDefiniteError,
    ResultOverflowError,
    TrainingDivergedError,
)
from retarget.kernels import EmpiricalNTK
from retarget.kernels.base import Kernel
from retarget.lab.methods import Batch, Method, recipe
from retarget.lab.methods.replay import DER
from retarget.lab.training import gather_rows
from retarget.learners import SGD, Reduction
from retarget.networks.closed_loop import ClosedLoopCorrector, ClosedLoopOptions
from retarget.networks.corrector import CorrectionOptions, Kind, NetworkCorrector, Refresh
from retarget.state_files import part_of

if TYPE_CHECKING:
    from retarget.lab.figures.training import NetworkRun
    from retarget.lab.training import Run


class Corrected(Method, name="corrected"):
    """Trains on targets from a `NetworkCorrector` for each member: the paper's method for networks.

    The correction assumes the learner of the run: with `reduction="mean"` its rate is divided by
    the batch size, as the loss implies. Before each task it computes the tangent kernel of all
    samples so far, whose time and memory grow with the square of their number; the steps cost the
    same as in plain SGD.

    Args:
        gamma: Ridge of the offline learner that the targets lead to; `"auto"` chooses it, or no
            correction, in each task (see `NetworkCorrector`).
        block_size: Samples corrected together, a multiple of the batch size.
        assumed_reduction: The `reduction` that the correction assumes, if not the learner's own.
            The paper's runs train on the mean over the mini-batch, with a correction for the sum.
        refresh: When the kernel is recomputed; this and the following options are those of
            `NetworkCorrector`.
        kind: Which kind of targets.
        ridge: Ridge of a block, for the iterative kind.
        parts: Both halves of the iterative correction, or one.
        first_block: Whether the iterative kind corrects the first block too.
        kernel: A function that makes the kernel from a network.
    """

    capturable = True
    keeps_order = True

    def __init__(
        self,
        gamma: float | Literal["auto"],
        block_size: int = 20,
        assumed_reduction: Reduction | None = None,
        *,
        refresh: Refresh = "task",
        kind: Kind = "iterative",
        ridge: float = 0.0,
        parts: Parts = "both",
        first_block: FirstBlock = "corrected",
        kernel: Callable[[nn.Module], Kernel] = EmpiricalNTK,
    ) -> None:
        self.options = CorrectionOptions(
            gamma, block_size, refresh, kind, ridge, parts, first_block
        )
        self.assumed_reduction = assumed_reduction
        self.kernel = kernel
        self.check(SGD(1.0))  # raises for bad options here, not when the first task begins

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        run = runs[0]
        return {
            "gamma": run.gamma,
            "block_size": run.block_size,
            "assumed_reduction": run.assumed_reduction,
            "refresh": run.refresh,
            "kind": run.kind,
            "parts": run.parts,
            # as in the authors' runs
            "first_block": "plain" if run.kind == "iterative" else "corrected",
            "kernel": partial(EmpiricalNTK, precision="split"),
        }

    def check(self, learner: SGD) -> None:
        self.options.checked(self._assumed(learner))

    @property
    def name(self) -> str:
        kind = self.options.kind
        return "Corrected" if kind == "iterative" else f"Corrected ({kind})"

    def on_start(self, run: "Run") -> None:
        self._tasks = 0
        options = asdict(self.options)
        self._correctors = [
            NetworkCorrector(module, self._assumed(learner), kernel=self.kernel, **options)
            for module, learner in zip(run.ensemble.modules, run.learners, strict=True)
        ]
        for corrector in self._correctors:
            corrector.trust()  # no warnings: a run is judged by its accuracy

    def on_task_start(self, run: "Run") -> None:
        self._compute(
            run,
            lambda m: self._correctors[m].correct(
                run.train.inputs(m, run.span), run.targets[m, run.span]
            ),
        )
        self._tasks = run.task + 1

    def on_epoch_start(self, run: "Run") -> None:
        if run.epoch:
            self._compute(run, lambda m: self._correctors[m].recorrect())

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        return gather_rows(self._targets, batch.positions - run.span.start)

    def kept_bytes(self, run: "Run") -> int:
        return run.stream_bytes

    def state_dict(self, run: "Run") -> dict[str, Any]:
        # without the correctors' samples, which are those of the stream
        if not self._tasks:
            return {"tasks": 0}
        trials = [list(map(list, corrector.trials)) for corrector in self._correctors]
        return {"tasks": self._tasks, "targets": self._targets, "trials": trials}

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        self._tasks = state["tasks"]
        if not self._tasks:
            return
        self._targets = state["targets"]
        for m, corrector in enumerate(self._correctors):
            spans = run.train.spans[m][: self._tasks]
            tasks = [(run.train.inputs(m, span), run.targets[m, span]) for span in spans]
            corrector.resume(tasks, self._targets[m], state["trials"][m])

    def likely_cause(self, run: "Run", member: int) -> str | None:
        largest = float(self._targets[member].abs().max())
        if largest < 100:
            return None
        return (
            f"the corrected targets reach {largest:.3g}: use a larger ridge, gamma or block_size, "
            "or a smaller rate"
        )

    def _assumed(self, learner: SGD) -> SGD:
        """Returns the learner to correct for."""
        reduction = self.assumed_reduction or learner.reduction
        return replace(learner, reduction=reduction)

    def _compute(self, run: "Run", targets_of: Callable[[int], Tensor]) -> None:
        """Computes every member's targets; a member for which this fails has diverged."""
        targets: list[Tensor] = []
        lost: dict[int, ArithmeticError] = {}
        for member in range(len(run.ensemble)):
            try:
                targets.append(targets_of(member))
            except (DivergedError, ResultOverflowError, TrainingDivergedError) as error:
                lost[member] = error
            except NotPositiveDefiniteError as error:
                if not run.seen:  # caused by the samples or the options, not by training
                    error.add_note(f"(member {member}, task {run.task}, epoch {run.epoch})")
                    raise
                lost[member] = error
        if lost:
            member, cause = next(iter(lost.items()))
            raise TrainingDivergedError(
                f"there are no targets for member {member} before epoch {run.epoch} of task "
                f"{run.task}, with {self.name}: {cause}",
                step=0,
                members=tuple(lost),
            ) from cause
        self._targets = torch.stack(targets)


@recipe("der, corrected")
def _der_with_corrected_targets(runs: Sequence["NetworkRun"]) -> list[Method]:
    return [Corrected.for_runs(runs), DER.for_runs(runs)]


class Led(Method, name="led"):
    """Trains on targets that lead the network towards a tangent learner, block by block.

    It uses a `ClosedLoopCorrector` for each member, which keeps only the sums of a `TangentLearner`
    of the initial network. Use it if the result must be a network; otherwise `Tangent` is the
    better predictor. Each block costs the kernel of its samples and a factorization of size
    `features`.

    Args:
        gamma: Ridge of the tangent learner; `"auto"` for generalized cross-validation.
        features: Its number of features.
        block_size: Samples corrected together, a multiple of the batch size.
        damping: How much shorter than the whole distance the steps are.
    """

    keeps_order = True

    def __init__(
        self,
        gamma: float | Literal["auto"] = 1.0,
        features: int = 4096,
        block_size: int = 20,
        damping: float = 1.0,
    ) -> None:
        self.options = ClosedLoopOptions(gamma, features, block_size, replay=0, damping=damping)
        self.check(SGD(1.0))  # raises for bad options here, not when the first task begins

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        run = runs[0]
        return {
            "gamma": 3.0,
            "features": run.features,
            "block_size": run.block_size,
            "damping": run.damping,
        }

    def check(self, learner: SGD) -> None:
        self.options.checked(learner)

    def on_start(self, run: "Run") -> None:
        self._correctors = []
        for module, learner, random in zip(
            run.ensemble.modules, run.learners, run.random, strict=True
        ):
            options = asdict(self.options) | {"seed": int(random.integers(2**31))}
            self._correctors.append(ClosedLoopCorrector(module, learner, **options))
            self._correctors[-1].trust()

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        # the targets of a block are computed with its first mini-batch
        step = int(batch.step)
        size = batch.positions.shape[1]
        steps = self._correctors[0].block_size // size  # of a block
        place = step % steps
        if not place:
            rows = slice(step, step + steps)
            real = run.plan.weights[rows, 0].flatten() > 0  # the last mini-batch is padded
            targets = []
            for m, corrector in enumerate(self._correctors):
                positions = run.plan.positions[rows, m].flatten()
                inputs = run.train.pool[run.train.rows[m, positions]]
                corrected = corrector.correct(inputs[real], run.targets[m, positions[real]])
                targets.append(
                    torch.cat([corrected, corrected[-1:].expand(int((~real).sum()), -1)])
                )
            self._targets = torch.stack(targets)
        return self._targets[:, place * size : (place + 1) * size]

    def kept_bytes(self, run: "Run") -> int:
        return self._correctors[0].nbytes

    def state_dict(self, run: "Run") -> dict[str, Any]:
        state: dict[str, Any] = {}
        for m, corrector in enumerate(self._correctors):
            values, tensors = corrector.to_state()
            state[f"values{m}"] = values
            state |= {f"tensors{m}.{name}": tensor for name, tensor in tensors.items()}
        return state

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        for m, corrector in enumerate(self._correctors):
            corrector.restore(state[f"values{m}"], part_of(state, f"tensors{m}"))
