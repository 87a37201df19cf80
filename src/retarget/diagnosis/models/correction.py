"""Corrected targets for a user's model, from the kernel that describes it, tried on the model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from retarget.diagnosis.measure.choose import choose_block, choose_correction, choose_gamma
from retarget.diagnosis.measure.trials import IterativeCorrection, follow, offline_aims
from retarget.diagnosis.models.adapters import Advance, ModelFailedError, OnlineModel
from retarget.diagnosis.models.equivalent import Description
from retarget.diagnosis.models.runs import pass_in_order
from retarget.diagnosis.options import Options
from retarget.diagnosis.stream import Stream
from retarget.theory.stream_kernel import StreamKernel

# What is tried if the first choice makes the model worse on its own rows: multiples of the batch
# model's ridge, and a least stabiliser in multiples of the mean of k(x, x). Both make the targets
# smaller, and the steps gentler.
GENTLER = ((10.0, 0.1), (100.0, 1.0), (1000.0, 1.0), (1000.0, 10.0))


@dataclass(frozen=True)
class Correction:
    """Corrected targets, and the model that was trained on them.

    Attributes:
        targets: (n, c) the targets.
        model: The model at the end; None if it failed.
        before_blocks: (n, c) what it predicted before it learned any row of a block; None if not
            wanted, or it failed.
        error: Its mean squared error on the stream's own rows at the end, against the true targets.
        reason: Why the model failed, if it did.
        failures: Which targets were tried first and led nowhere, a sentence each.
    """

    targets: np.ndarray
    model: OnlineModel | None
    before_blocks: np.ndarray | None
    error: float
    reason: str | None = None
    failures: tuple[str, ...] = ()


def try_correction(
    model: OnlineModel,
    description: Description,
    kernel: StreamKernel,
    start: Tensor,
    stream: Stream,
    options: Options,
    plain_error: float,
    before_blocks: bool,
    advance: Advance,
) -> Correction | None:
    """Trains the model on iteratively corrected targets, for real.

    Ridge and stabiliser are those with which the kernel machine ends nearest to its batch model.
    If the model's error on the stream's own rows is then above what it is without correction,
    gentler ones are tried, and the best is kept. Held-out rows take no part.

    Args:
        model: The model.
        description: The kernel machine that describes it.
        kernel: Its kernel of the stream, with the targets less the starting function.
        start: (n, c) the starting function.
        stream: The stream.
        options: Gamma, block size and ridge, or that they are to be chosen.
        plain_error: The model's mean squared error on the stream's own rows at the end, without
            correction.
        before_blocks: Whether its predictions before each block are wanted.
        advance: Called with the number of rows after each step.

    Returns:
        The correction; None where there are no such targets.

    Raises:
        NotPositiveDefiniteError: The kernel has no batch model with the ridge that was given.
    """
    learner = description.learner
    block = choose_block(replace(options, batch_size=learner.batch_size), len(stream))
    failures: list[str] = []
    best: Correction | None = None
    for gamma, ridge, residual in _candidates(kernel, description, stream, options, block):
        targets = (residual + start).numpy()
        tried = _trained(model, stream, targets, options.seed, block, before_blocks, advance)
        if best is None or tried.error < best.error:
            best = tried
        if tried.error <= plain_error:
            break
        worse = (
            f"the model's error on its own rows is {tried.error:.3g} at the end, and "
            f"{plain_error:.3g} without correction"
        )
        failures.append(
            f"On targets corrected with ridge {gamma:.3g} and stabiliser {ridge:.3g}, "
            f"{tried.reason or worse}."
        )
    return None if best is None else replace(best, failures=tuple(failures))


@torch.no_grad()
def _candidates(
    kernel: StreamKernel, description: Description, stream: Stream, options: Options, block: int
) -> Iterator[tuple[float, float, Tensor]]:
    """Ridge, stabiliser and targets (less the start): the chosen ones, then gentler ones."""
    learner = description.learner
    gamma = choose_gamma(options, kernel, stream.target_scales)
    choice, _ = choose_correction(kernel, learner, gamma, block, options.ridge)
    first = choice.aim.value, choice.ridge.value
    pairs = [first]
    if gamma.automatic and options.ridge is None:
        scale = kernel.mean_diagonal()
        pairs += [
            (max(first[0], times * gamma.value), max(first[1], share * scale))
            for times, share in GENTLER
        ]
    for aim, ridge in dict.fromkeys(pairs):
        aims = choice.aims if aim == first[0] else offline_aims(kernel, aim, block)
        correction = IterativeCorrection(kernel, learner, aims, ridge)
        follow(kernel, [correction], block)
        if correction.failure is None:
            yield aim, ridge, correction.targets


def _trained(
    model: OnlineModel,
    stream: Stream,
    targets: np.ndarray,
    seed: int,
    block: int,
    before_blocks: bool,
    advance: Advance,
) -> Correction:
    every = block if before_blocks else None
    try:
        trained, predicted = pass_in_order(
            model, stream.X, targets, np.arange(len(stream)), seed, advance, every
        )
        error = float(np.square(trained.predict(stream.X) - stream.Y).mean())
    except ModelFailedError as failure:
        return Correction(targets, None, None, float("inf"), str(failure))
    return Correction(targets, trained, predicted, error)
