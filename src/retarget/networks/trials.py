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
from typing import TYPE_CHECKING, Any, NamedTuple

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
        past, first_step = len(Y) - sizes[-1], sum(map(learner.steps, sizes[:-1]))
        held = held_out_rows(sizes, self.options.seed)
        kept = np.setdiff1d(np.arange(len(Y)), held)
        before, task = kept[kept < past], kept[kept >= past]
        # the oldest rows go, so that the task begins at the same place of a block as in the stream
        before = before[(len(before) - past) % self.options.block_size :]
        rows = torch.from_numpy(np.concatenate([before, task])).to(K.device)
        now, tested = rows[len(before) :], torch.from_numpy(held).to(K.device)
        K, unit = K[rows][:, rows], float(K.diagonal()[rows].mean())
        shorter = _shortened(learner, first_step, len(before), len(rows))
        strengths: list[tuple[float | None, float | None]] = [(None, None)]
        strengths += [(gamma * unit, ridge * unit) for gamma, ridge in CANDIDATES]
        losses = []
        for gamma, ridge in strengths:
            Z = Y[now]
            if gamma is not None and ridge is not None:
                corrected = self._corrected(K, Y[rows].double(), shorter, gamma, ridge)
                Z = corrected[len(before) :].to(Y)
            weights = self._trained(take(X, now), Z, learner, first_step)
            found = outputs(self.module, take(X, tested), weights)
            losses.append(row_losses(found, Y[tested].to(found), self.options.loss))
        errors = [float(each.mean()) for each in losses]
        errors = [error if math.isfinite(error) else math.inf for error in errors]
        best = _best(losses, errors)
        return tuple(
            Trial(gamma, ridge, error, i == best)
            for i, ((gamma, ridge), error) in enumerate(zip(strengths, errors, strict=True))
        )

    def _corrected(self, K: Tensor, Y: Tensor, learner: SGD, gamma: float, ridge: float) -> Tensor:
        """Returns a candidate's targets; NaN if there are none, as it then cannot be the best."""
        options = self.options
        form = options.block_size, ridge, options.parts, options.first_block
        with warnings.catch_warnings(action="ignore"):
            try:
                return iterative_targets(K, Y, learner, gamma, *form, loss=options.loss)
            except (DivergedError, NotPositiveDefiniteError, ResultOverflowError):
                return torch.full_like(Y, math.nan)

    def _trained(self, X: Samples, Z: Tensor, learner: SGD, step: int) -> dict[str, Tensor]:
        """Returns the weights and buffers of a copy after one pass, which begins at this step."""
        given = dict(self.module.named_parameters())
        weights = {name: value.detach().clone() for name, value in given.items()}
        clones = {id(given[name]): weights[name].requires_grad_() for name in self.params}
        weights |= {name: value.clone() for name, value in self.module.named_buffers()}
        optimizer: Optimizer
        if self.optimizer is None:
            optimizer = learner.to_torch(clones.values(), step)
        else:  # with its state, on the clones
            optimizer = copy.deepcopy(self.optimizer, dict(clones))
        rates = [group["lr"] for group in optimizer.param_groups]
        like = next(iter(clones.values()))
        devices = [like.device] if like.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad():
            for i in range(learner.steps(len(Z))):
                rows = slice(i * learner.batch_size, (i + 1) * learner.batch_size)
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * learner.rate(step + i) / learner.rate(step)
                batch = with_type_of(like, take(X, rows))
                found = outputs_with(self.module, batch, weights).flatten(1)
                loss = row_losses(found, Z[rows].to(found), self.options.loss)
                loss = loss.mean() if learner.reduction == "mean" else loss.sum()
                gradients = derivatives(loss, list(clones.values()), torch.ones_like(loss), False)
                for clone, gradient in zip(clones.values(), gradients, strict=True):
                    clone.grad = gradient
                optimizer.step()
        return {name: value.detach() for name, value in weights.items()}


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
    found, start = [], 0
    for task, size in enumerate(sizes):
        number = max(size // HELD_OUT, min(FEWEST, size // 2))
        edges = start + np.linspace(0, size, number + 1).astype(int)
        random = np.random.default_rng([seed % 2**64, task])
        found.append(random.integers(edges[:-1], edges[1:]))
        start += size
    return np.concatenate(found)


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
