"""Chooses the strength of a correction by trying: copies of the network are trained on candidates.

At each task a tenth of its rows is held out. Copies of the network as it is now are trained on the
others: one on the true targets, and one for each candidate of `gamma` and `ridge`. They are
compared on the held-out rows of all tasks so far, which have no part in a candidate's targets.
"""

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retarget.engine.losses import row_losses
from retarget.errors import (
    DivergedError,
    InvalidInputError,
    NotPositiveDefiniteError,
    ResultOverflowError,
)
from retarget.kernels.empirical.recording import derivatives, outputs_with
from retarget.learners import SGD
from retarget.networks.linearization import outputs
from retarget.samples import Samples, take, with_type_of
from retarget.scalars import as_non_negative
from retarget.theory.iterative import iterative_targets

if TYPE_CHECKING:
    from retarget.networks.corrector import CorrectionOptions

# gamma and ridge of the candidates, in units of the mean of the kernel's diagonal
CANDIDATES = (0.1, 0.1), (1.0, 0.1), (10.0, 1.0), (100.0, 10.0)
HELD_OUT = 10  # one row of so many
FEWEST = 4  # rows held out of a task, unless that is more than half of it
# A candidate is chosen only if it is better than no correction by so many standard errors.
CLEARLY = 2.0
# A candidate has blown up if its outputs are so many times as large as those without a correction.
# Its loss need not show it: outputs without bound are right about a task that has only one class.
BLOWN_UP = 100.0


class Trial(NamedTuple):
    """One candidate that `NetworkCorrector(gamma="auto")` tried for its last task.

    Attributes:
        gamma: Ridge of the offline learner; None for no correction.
        ridge: Ridge of a block; None for no correction.
        error: Mean loss on the held-out rows of all tasks so far; infinite if training diverged or
            the tasks are too short to hold out any.
        chosen: Whether the task's targets were computed with it.
    """

    gamma: float | None
    ridge: float | None
    error: float
    chosen: bool


@dataclass(frozen=True)
class Rehearsal:
    """Trains copies of a network on candidate targets, and compares them on held-out rows.

    Attributes:
        module: The network as it is trained. It is never changed.
        params: Names of the parameters that are trained.
        optimizer: The optimizer of the loop, if it is not the SGD that the learner describes.
        options: The options of the corrector.
    """

    module: nn.Module
    params: Sequence[str]
    optimizer: Optimizer | None
    options: "CorrectionOptions"

    def trials(
        self, K: Tensor, X: Samples, Y: Tensor, learner: SGD, sizes: Sequence[int]
    ) -> tuple[Trial, ...]:
        """Tries all candidates for the last of the tasks, which have these sizes.

        K, X and Y are the kernel, the samples and the true targets of all of them. Exactly one
        candidate is chosen.
        """
        learner.rates(len(Y))  # raises for a schedule of the wrong length, whatever is chosen
        rows = SplitRows.of(sizes, self.options, K.device)
        learned = torch.cat([rows.past, rows.task])
        past_steps = sum(learner.steps(size) for size in sizes[:-1])
        unit = float(K.diagonal()[learned].mean())
        candidates = [Strength(gamma * unit, ridge * unit) for gamma, ridge in CANDIDATES]
        kernel = K[learned][:, learned]
        shorter = _shortened(learner, past_steps, len(rows.past), len(learned))

        def predictions_after(targets: Tensor) -> Tensor:
            """What a copy that was trained on these targets predicts for the held-out rows."""
            weights = self._trained(take(X, rows.task), targets, learner, past_steps)
            return outputs(self.module, take(X, rows.tested), weights)

        usual = predictions_after(Y[rows.task])
        true = Y[rows.tested].to(usual)
        losses = [row_losses(usual, true, self.options.loss)]
        size = float(usual.norm())
        bound = BLOWN_UP * max(size if math.isfinite(size) else 0.0, float(true.norm()))
        for strength in candidates:
            corrected = self._corrected(kernel, Y[learned].double(), shorter, strength)
            predictions = predictions_after(corrected[len(rows.past) :].to(Y))
            loss = row_losses(predictions, true, self.options.loss)
            if not float(predictions.norm()) <= bound:
                loss = torch.full_like(loss, math.inf)
            losses.append(loss)
        errors = [_finite_mean(each) for each in losses]
        best = _best(losses, errors)
        plain = Trial(None, None, errors[0], best == 0)
        others = [
            Trial(strength.gamma, strength.ridge, errors[number], best == number)
            for number, strength in enumerate(candidates, start=1)
        ]
        return plain, *others

    def _corrected(self, K: Tensor, Y: Tensor, learner: SGD, strength: "Strength") -> Tensor:
        """Returns a candidate's targets; NaN if there are none, as it then cannot be the best."""
        options = self.options
        with warnings.catch_warnings(action="ignore"):
            try:
                return iterative_targets(
                    K,
                    Y,
                    learner,
                    strength.gamma,
                    cast(int, options.block_size),
                    strength.ridge,
                    options.parts,
                    options.first_block,
                    loss=options.loss,
                )
            except (DivergedError, NotPositiveDefiniteError, ResultOverflowError):
                return torch.full_like(Y, math.nan)

    def _trained(self, X: Samples, Z: Tensor, learner: SGD, step: int) -> dict[str, Tensor]:
        """Returns the weights and buffers of a copy after one pass, which begins at this step."""
        originals = dict(self.module.named_parameters())
        weights = {name: value.detach().clone() for name, value in originals.items()}
        weights |= {name: value.clone() for name, value in self.module.named_buffers()}
        trained = [weights[name].requires_grad_() for name in self.params]
        optimizer: Optimizer
        if self.optimizer is None:
            optimizer = learner.to_torch(trained, step)
        else:  # with its state, on the clones
            clones = {id(originals[name]): weights[name] for name in self.params}
            optimizer = copy.deepcopy(self.optimizer, dict(clones))
        first_rates = [group["lr"] for group in optimizer.param_groups]
        device = trained[0].device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            for number in range(learner.steps(len(Z))):
                for group, rate in zip(optimizer.param_groups, first_rates, strict=True):
                    group["lr"] = rate * learner.rate(step + number) / learner.rate(step)
                rows = slice(number * learner.batch_size, (number + 1) * learner.batch_size)
                loss = self._loss(take(X, rows), Z[rows], weights, learner)
                gradients = derivatives(loss, trained, torch.ones_like(loss), False)
                for weight, gradient in zip(trained, gradients, strict=True):
                    weight.grad = gradient
                optimizer.step()
        return {name: value.detach() for name, value in weights.items()}

    def _loss(self, X: Samples, Z: Tensor, weights: dict[str, Tensor], learner: SGD) -> Tensor:
        """Returns the loss of a mini-batch with these weights, which are being trained."""
        like = weights[self.params[0]]
        predictions = outputs_with(self.module, with_type_of(like, X), weights).flatten(1)
        losses = row_losses(predictions, Z.to(predictions), self.options.loss)
        return losses.mean() if learner.reduction == "mean" else losses.sum()


class Strength(NamedTuple):
    """The ridges of a candidate: of the offline learner, and of a block."""

    gamma: float
    ridge: float


class SplitRows(NamedTuple):
    """Rows of a stream of tasks: those to learn from, and those to test on.

    Attributes:
        past: Rows of earlier tasks that stay.
        task: Rows of the last task that stay: what copies are trained on.
        tested: Rows held out of all tasks.
    """

    past: Tensor
    task: Tensor
    tested: Tensor

    @classmethod
    def of(
        cls, sizes: Sequence[int], options: "CorrectionOptions", device: torch.device
    ) -> "SplitRows":
        """Divides tasks of these sizes, by the seed of the options."""
        total = sum(sizes)
        beginning = total - sizes[-1]  # of the last task
        tested = held_out_rows(sizes, options.seed)
        kept = np.setdiff1d(np.arange(total), tested)
        past = kept[kept < beginning]
        # the oldest rows go, so that the task begins at the same place of a block as in the stream
        past = past[(len(past) - beginning) % cast(int, options.block_size) :]
        task = kept[kept >= beginning]
        return cls(*(torch.from_numpy(rows).to(device) for rows in (past, task, tested)))


def checked_trials(given: Sequence[Sequence[Any]], automatic: bool) -> tuple[Trial, ...]:
    """Returns saved trials: none, or with `gamma="auto"` some of which one is chosen."""
    trials = tuple(Trial(*each) for each in given)
    chosen = sum(trial.chosen is True for trial in trials)
    if trials and not (automatic and chosen == 1):
        raise InvalidInputError(
            f"there are {len(trials)} trials of which {chosen} are chosen; expected one that is "
            "chosen with gamma='auto', and no trials otherwise"
        )
    for strength in (part for trial in trials for part in trial[:2] if part is not None):
        as_non_negative("the strength of a trial", strength)
    return trials


def held_out_rows(sizes: Sequence[int], seed: int) -> np.ndarray:
    """Returns the rows held out of tasks of these sizes: one from each of many equal stretches.

    They depend on the sizes and the seed alone, so they need not be saved.
    """
    rows_of_tasks = []
    start = 0
    for task, size in enumerate(sizes):
        number = max(size // HELD_OUT, min(FEWEST, size // 2))
        edges = start + np.linspace(0, size, number + 1).astype(int)
        random = np.random.default_rng([seed % 2**64, task])
        rows_of_tasks.append(random.integers(edges[:-1], edges[1:]))
        start += size
    return np.concatenate(rows_of_tasks)


def no_correction_in_words(trials: Sequence[Trial], size: int, adaptive: str | None) -> str:
    """Says that a task of this size is trained on its true targets, and what was tried.

    `adaptive` is the name of the optimizer, if it is not plain SGD.
    """
    plain, *candidates = trials
    tried = ", ".join(f"{trial.error:.3g} with gamma {trial.gamma:.3g}" for trial in candidates)
    advice = (
        f"; {adaptive} divides every step by the size of recent gradients, so that it does not take"
        " the steps that a correction asks for: use SGD, or rt.TangentLearner"
        if adaptive
        else "; rt.TangentLearner learns the same tasks without corrected targets"
    )
    return (
        f"no correction for this task of {size} samples, which is trained on its true targets: the "
        f"held-out loss is {plain.error:.3g} on them, and {tried} on corrected ones, and none of "
        f"these is lower by {CLEARLY:g} standard errors{advice}"
    )


def _finite_mean(losses: Tensor) -> float:
    """Returns the mean; infinity if training diverged or nothing was held out."""
    mean = float(losses.mean())
    return mean if math.isfinite(mean) else math.inf


def _best(losses: Sequence[Tensor], errors: Sequence[float]) -> int:
    """Returns the candidate with the least error if it is clearly better than the first, else 0."""
    best = int(np.argmin(errors))
    if not math.isfinite(errors[0]):
        return best
    gain = losses[0] - losses[best]
    noise = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    return best if float(gain.mean()) > CLEARLY * noise else 0


def _shortened(learner: SGD, first_step: int, before: int, n: int) -> SGD:
    """Returns the learner for the n samples that are left of the stream.

    The last task, after `before` of them, keeps its rates: it began at `first_step` of the stream.
    """
    if isinstance(learner.lr, float):
        return learner
    first = first_step - before // learner.batch_size
    steps = np.arange(first, first + learner.steps(n)).clip(max=len(learner.lr) - 1)
    return replace(learner, lr=np.array(learner.lr)[steps])
