"""The diagnosis of a stream: what an online learner made of it, and what would have helped."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import considerate_threads
from retarget.diagnosis.measure.approximation import (
    Nystroem,
    Opened,
    measure_approximation,
    open_kernel,
)
from retarget.diagnosis.measure.baselines import baseline_errors
from retarget.diagnosis.measure.choose import (
    Learned,
    attempt_changes,
    choose_block,
    choose_gamma,
    choose_kernel,
    choose_rate,
    learn_all,
)
from retarget.diagnosis.measure.compare import (
    Comparison,
    Errors,
    Split,
    as_tensors,
    compare,
    group_shift,
    held_out_errors,
    partition,
    prediction_errors,
    progressive_errors,
    split,
)
from retarget.diagnosis.measure.stability import largest_rate, non_normality
from retarget.diagnosis.models.model_diagnosis import diagnose_model
from retarget.diagnosis.options import Options
from retarget.diagnosis.result import Approximation, Choice, Diagnosis, GroupShift, Stability
from retarget.diagnosis.stream import Stream
from retarget.errors import NotPositiveDefiniteError, PrecisionWarning
from retarget.learners import SGD
from retarget.progress import PatientBar

PASSES = 24  # over the rows, for the progress bar


@dataclass(frozen=True)
class Outcome:
    """What every learner made of the stream, and how they compare."""

    learner: SGD
    block_size: int
    lr: Choice
    gamma: Choice
    stability: Stability
    learned: Learned
    density: Tensor
    groups: GroupShift
    comparison: Comparison
    approximation: Approximation | None


def diagnose_stream(
    stream: Stream,
    test: Stream | None = None,
    options: Options | None = None,
    *,
    progress: bool | None = None,
) -> Diagnosis:
    """Runs the offline, online and corrected learners over a stream and says what they made of it.

    `retarget.diagnose` prepares a table or arrays and calls this. Use it for a stream of numbers
    that is ready to be learned from.

    Args:
        stream: The rows, in the order in which they were learned.
        test: Rows to compare the learners on. Given, they are used, and no row is held out.
        options: The learner and the method; None leaves everything to be chosen.
        progress: Whether to show a progress bar; None shows it on a terminal only.

    Examples:
        A drifting stream: the online learner has forgotten where it started.

        >>> import numpy as np
        >>> from retarget.diagnosis.stream import Stream
        >>> x = np.linspace(-2, 2, 200)[:, None]
        >>> y = np.sin(2 * x)
        >>> names, one = ("x",), np.ones(1)
        >>> stream = Stream(x, y, "regression", ("y",), 0 * one, one, names, np.arange(200))
        >>> found = diagnose_stream(stream, stream, Options(width=0.7, lr=0.5))
        >>> bool(found.score("online").error.low > found.score("offline").error.high)
        True
    """
    options = options or Options()
    return diagnose_split(split(stream, test, options), options, progress=progress)


def diagnose_split(parted: Split, options: Options, *, progress: bool | None = None) -> Diagnosis:
    """The same of a stream whose rows to compare the learners on are held out already."""
    X, Y = as_tensors(parted.stream)
    kernel, words = choose_kernel(options, X)
    with (
        considerate_threads(),
        PatientBar("diagnosing", PASSES * len(X), progress) as bar,
        _noting_precision() as doubts,
    ):
        model = None
        if options.model is not None:  # first: one that cannot be run is told at once
            model = diagnose_model(parted, options, progress=progress)
        opened = open_kernel(kernel, X, Y, options, bar.advance)
        outcome = run_learners(opened, parted, options)
    return replace(_diagnosis(parted, outcome, options, words, doubts), model=model)


@torch.no_grad()
def run_learners(opened: Opened, parted: Split, options: Options) -> Outcome:
    """What was left open is chosen, then every learner goes over the stream and is compared."""
    kernel, stream, progressive = opened.kernel, parted.stream, parted.test is None
    gamma = choose_gamma(options, kernel, stream.target_scales)
    limit = largest_rate(kernel, options.learner)
    lr = choose_rate(options, kernel, limit, stream.target_scales, progressive)
    learner = replace(options.learner, lr=lr.value)
    block_size = choose_block(options, len(stream))

    learned = learn_all(kernel, learner, gamma, block_size, options.ridge, limit, progressive)
    shift = learned.effective - kernel.Y
    groups = group_shift(kernel, stream, partition(stream), learned.dual, shift, learner.batch_size)

    learned.changed = attempt_changes(kernel, learner, lr, options.seed, progressive)

    true_kernel = None
    if parted.test is None:
        errors = progressive_errors(kernel, learned, gamma.value, learner.batch_size)
    else:
        errors = held_out_errors(kernel, parted.test, learned)
        true_kernel = _true_kernel(opened, parted.test, stream, options)
    baselines = baseline_errors(kernel, parted, options)
    return Outcome(
        learner,
        block_size,
        lr,
        gamma,
        Stability(limit, non_normality(kernel, learner, options.seed)),
        learned,
        kernel.density(),
        groups,
        compare(errors, baselines, parted, options, true_kernel),
        measure_approximation(opened, learner, gamma.value),
    )


def _true_kernel(opened: Opened, test: Stream, stream: Stream, options: Options) -> Errors | None:
    """Held-out errors of an offline learner with the true kernel on a sample of the rows.

    None where the kernel is the true one, or there is no such learner.
    """
    if opened.sample is None or not isinstance(opened.features, Nystroem):
        return None
    gamma = choose_gamma(options, opened.sample, stream.target_scales)
    try:
        offline = opened.sample.offline(gamma.value)
    except NotPositiveDefiniteError:
        return None
    return prediction_errors(opened.sample, test, [offline.coefficients])[0]


def _diagnosis(
    parted: Split, outcome: Outcome, options: Options, words: str, doubts: list[str]
) -> Diagnosis:
    learned, comparison, stream = outcome.learned, outcome.comparison, parted.stream
    effective, approximation = learned.effective.numpy(), outcome.approximation
    if approximation is not None:
        approximation = replace(approximation, reference=comparison.true_kernel)
    errors = learned.online.errors
    return Diagnosis(
        stream=stream,
        test_rows=comparison.rows,
        evaluation=parted.evaluation,
        mode="exact" if approximation is None else "features",
        kernel=words,
        learner=outcome.learner,
        block_size=outcome.block_size,
        lr=outcome.lr,
        gamma=outcome.gamma,
        scores=comparison.scores,
        baselines=comparison.baselines,
        reference=options.reference,
        excess=comparison.excess,
        gap_closed=comparison.gap_closed,
        accuracy_gap=comparison.accuracy_gap,
        effective=effective,
        corrected=learned.corrected.numpy(),
        iterative=learned.iterative.numpy(),
        prequential=np.full_like(effective, np.nan) if errors is None else errors.numpy(),
        density=outcome.density.numpy(),
        hindsight=_hindsight(stream, outcome),
        changed=changed_rows(stream, effective),
        groups=outcome.groups,
        stability=outcome.stability,
        approximation=approximation,
        ridge=learned.ridge,
        aim=learned.aim,
        trials=comparison.trials,
        failures=(*learned.failures, *doubts),
        unseen=_unseen(parted),
    )


def _unseen(parted: Split) -> tuple[str, ...]:
    """Classes of the held-out rows that the stream does not have."""
    if parted.test is None or parted.stream.kind == "regression":
        return ()
    new = (parted.test.Y.sum(axis=0) > 0) & (parted.stream.Y.sum(axis=0) == 0)
    return tuple(np.array(parted.stream.target_names, dtype=object)[new])


def _hindsight(stream: Stream, outcome: Outcome) -> float:
    """The finished online learner's mean squared error on the rows that it has learned."""
    learned = outcome.learned
    said = learned.effective - outcome.gamma.value * learned.dual  # Y^e = (gamma I + K) C
    return float(np.square((stream.Y - said.numpy()) * stream.target_scales).mean())


def changed_rows(stream: Stream, effective: np.ndarray) -> np.ndarray:
    """(n,) whether the class is another one, or a number is on the other side of the mean."""
    known = np.isfinite(effective).all(axis=1)
    if stream.kind == "classification":
        other = effective.argmax(axis=1) != stream.Y.argmax(axis=1)
    else:
        other = (effective * stream.Y < 0).any(axis=1)
    return np.asarray(known & other)


@contextmanager
def _noting_precision() -> Iterator[list[str]]:
    """Collects what is said about lost digits, a sentence each; other warnings go their way."""
    doubts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield doubts
    for warning in caught:
        if issubclass(warning.category, PrecisionWarning):
            text = str(warning.message)
            doubts.append(f"{text[0].upper()}{text[1:]}.")
        else:
            place = warning.filename, warning.lineno
            warnings.warn_explicit(warning.message, warning.category, *place)
    doubts[:] = dict.fromkeys(doubts)
