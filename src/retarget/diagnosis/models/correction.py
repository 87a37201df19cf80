"""Corrected targets for a user's model: which of them, found by training it on each.

The kernel machine that describes the model gives the targets; only the model itself can tell
whether it follows them. The rows of the stream make the choice, held-out rows play no part in it.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from retarget.diagnosis.answers import TOO_LARGE
from retarget.diagnosis.measure.choose import choose_block, choose_gamma
from retarget.diagnosis.measure.choose_correction import choose_correction
from retarget.diagnosis.measure.passes import IterativeCorrection, offline_aims
from retarget.diagnosis.models.adapters import ModelFailedError, OnlineModel
from retarget.diagnosis.models.equivalent import Machine
from retarget.diagnosis.models.runs import pass_in_order
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.stream import Stream
from retarget.engine.followers import follow
from retarget.engine.stream_kernel import Advance
from retarget.settings import in_plain_torch

# A network often follows only targets that are smaller than those its kernel asks for. So these are
# tried as well: multiples of the batch model's ridge, each with a least stabilizer in multiples of
# the mean of k(x, x), and a part of the way from the true targets to the first corrected ones.
GENTLER = ((10.0, 0.1), (100.0, 1.0), (1000.0, 1.0))
PARTS_OF_THE_WAY = (0.5, 0.25)


class ModelCorrection(NamedTuple):
    """The targets (n, c) that were chosen, and the model trained on them; None if it always failed.

    `before_blocks` (n, c) are its predictions before any row of a block was learned.
    """

    targets: np.ndarray
    model: OnlineModel | None
    before_blocks: np.ndarray
    failures: tuple[str, ...]  # where the model failed, one sentence each


def best_correction(
    model: OnlineModel,
    machine: Machine,
    stream: Stream,
    options: DiagnosisOptions,
    advance: Advance,
) -> ModelCorrection | None:
    """Trains the model on every candidate, and keeps the candidate with the least error.

    The error is that on the stream's own rows. Targets of a usable size come first. Returns None if
    there are no corrected targets. A model that fails is not an error here; a kernel without a
    batch model is.
    """
    block = choose_block(options.block_size, machine.learner.batch_size, len(stream))
    failures: list[str] = []
    best: ModelCorrection | None = None
    least = (True, True, math.inf)
    for targets, words in candidates(machine, stream, options, block):
        trained = None
        before = np.full_like(targets, math.nan)
        error = math.inf
        try:
            trained, before = pass_in_order(
                model, stream.X, targets, np.arange(len(stream)), options.seed, advance, block
            )
            error = float(np.square(trained.predict(stream.X) - stream.Y).mean())
        except ModelFailedError as failure:
            failures.append(f"On {words}, {failure}.")
        rank = trained is None, stream.farthest(targets) > TOO_LARGE, error
        if best is None or rank < least:
            best = ModelCorrection(targets, trained, before, ())
            least = rank
    return best and best._replace(failures=tuple(failures))


@in_plain_torch
def candidates(
    machine: Machine, stream: Stream, options: DiagnosisOptions, block: int
) -> Iterator[tuple[np.ndarray, str]]:
    """Yields corrected targets (n, c), and which ones, in words.

    Those that serve the kernel machine best come first, then gentler ones; if the user gave a ridge
    or a stabilizer, there are no others. Corrections that overflow are left out.
    """
    learner, kernel, start = machine
    gamma = choose_gamma(options, kernel, stream.target_scales)
    choice, _ = choose_correction(kernel, learner, gamma, block, options.ridge)
    first = choice.gamma.value, choice.ridge.value
    gentler = GENTLER if gamma.automatic and options.ridge == "auto" else ()
    scale = kernel.mean_diagonal()
    pairs = [first]
    pairs += [
        (max(first[0], times * gamma.value), max(first[1], share * scale))
        for times, share in gentler
    ]
    for ridge, stabilizer in dict.fromkeys(pairs):
        aims = choice.aims if ridge == first[0] else offline_aims(kernel, ridge, block)
        correction = IterativeCorrection(kernel, learner, aims, stabilizer)
        follow(kernel.windows(block), [correction])
        if correction.failure is not None:
            continue
        targets = (correction.targets + start).numpy()
        words = f"targets corrected with ridge {ridge:.3g} and stabilizer {stabilizer:.3g}"
        yield targets, words
        if gentler and (ridge, stabilizer) == first:
            for share in PARTS_OF_THE_WAY:
                moved = stream.Y + share * (targets - stream.Y)
                yield moved, f"{share:.0%} of the way to {words}"
