"""The diagnosis of a stream: what an online learner made of it, and what would have helped."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.kernels.base import StreamKernel
from retarget.diagnosis.measure.approximation import (
    measure_approximation,
    open_kernel,
    sample_kernel,
)
from retarget.diagnosis.measure.choose import (
    attempt_changes,
    choose_block,
    choose_gamma,
    choose_kernel,
    choose_rate,
    with_rate,
)
from retarget.diagnosis.measure.compare import (
    LEARNERS,
    Comparison,
    Split,
    compare,
    held_out_errors,
    progressive_errors,
    split,
)
from retarget.diagnosis.measure.groups import group_shift, partition, unknown_shift
from retarget.diagnosis.measure.learn import Learned, learn_all
from retarget.diagnosis.measure.stability import largest_rate, non_normality
from retarget.diagnosis.result import (
    Approximation,
    Choice,
    Diagnosis,
    Evaluation,
    GroupShift,
    Mode,
    Stability,
)
from retarget.diagnosis.stream import Stream
from retarget.errors import NotPositiveDefiniteError, PrecisionWarning
from retarget.learners import SGD, Reduction
from retarget.progress import PatientBar
from retarget.theory.iterative import check_correction

PASSES = 15  # over the rows, for the progress bar


@dataclass(frozen=True)
class Plan:
    """What was asked for. The learner's rate is still to be chosen."""

    learner: SGD
    block_size: int
    ridge: float | None
    gamma: float | Literal["auto"]
    lr: float | Literal["auto"]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What every learner made of the stream, and how they compare."""

    learner: SGD
    lr: Choice
    gamma: Choice
    stability: Stability
    learned: Learned
    density: Tensor
    groups: GroupShift
    comparison: Comparison


def diagnose_stream(
    stream: Stream,
    test: Stream | None = None,
    *,
    evaluation: Evaluation = "last part",
    test_share: float = 0.2,
    kernel: Any = "rbf",
    width: float | None = None,
    gamma: float | Literal["auto"] = "auto",
    lr: float | Literal["auto"] = "auto",
    batch_size: int = 1,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    reduction: Reduction = "sum",
    block_size: int | None = None,
    ridge: float | None = None,
    mode: Mode | Literal["auto"] = "auto",
    features: int | None = None,
    memory: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Diagnosis:
    """Runs the offline, online and corrected learners over a stream and says what they made of it.

    Args:
        stream: The rows, in the order in which they were learned.
        test: Rows to compare the learners on. Given, they are used, and no row is held out.
        evaluation: `"last part"` holds out the last rows; `"test set"` uses `test`;
            `"progressive"` compares errors on each row before it is learned.
        test_share: Share of the rows held out.
        kernel: `"rbf"`, `"linear"`, or whatever `retarget.as_kernel` takes.
        width: Of the RBF kernel; None takes the median distance between rows.
        gamma: Ridge of the offline learner; `"auto"` takes the least leave-one-out error.
        lr: The online learner's rate; `"auto"` takes the least prequential error.
        batch_size: Rows in a step.
        momentum: As in `retarget.SGD`.
        nesterov: As in `retarget.SGD`.
        weight_decay: As in `retarget.SGD`.
        reduction: As in `retarget.SGD`.
        block_size: Rows that the iterative correction corrects together, a multiple of
            `batch_size`; None takes about 64.
        ridge: Its stabiliser; None takes, of a few, the one that ends nearest to the offline
            learner.
        mode: `"exact"`, `"features"` (features instead of the kernel: see `FEATURES`), or `"auto"`:
            exact where `memory` allows.
        features: Number of features; None takes as many as there is time for.
        memory: Bytes that the exact method may take; None is half of what is free, at most 4 GB.
        seed: Seed for everything random.
        progress: Whether to show a progress bar; None shows it on a terminal only.

    Example:
        A drifting stream: the online learner has forgotten where it started.

        >>> import numpy as np
        >>> from retarget.diagnosis.stream import Stream
        >>> x = np.linspace(-2, 2, 200)[:, None]
        >>> y = np.sin(2 * x)
        >>> names, one = ("x",), np.ones(1)
        >>> stream = Stream(x, y, "regression", ("y",), 0 * one, one, names, np.arange(200))
        >>> found = diagnose_stream(stream, stream, width=0.7, lr=0.5)
        >>> bool(found.score("online").error.low > found.score("offline").error.high)
        True
    """
    parted = split(stream, test, evaluation, test_share)
    plan = Plan(
        SGD(1.0, batch_size, momentum, nesterov, weight_decay, reduction),
        choose_block(block_size, batch_size, len(parted.stream)),
        ridge,
        gamma,
        lr,
        seed,
    )
    check_correction(plan.learner, 1.0, plan.block_size, ridge or 0.0, "both", "corrected")
    X, Y = as_tensor64(parted.stream.X), as_tensor64(parted.stream.Y)
    chosen, words = choose_kernel(kernel, width, X)
    with PatientBar("diagnosing", PASSES * len(X), progress) as bar, _noting_precision() as doubts:
        opened = open_kernel(
            chosen,
            X,
            Y,
            mode=mode,
            features=features,
            memory=memory,
            batch_size=plan.learner.batch_size,
            seed=seed,
            advance=bar.advance,
        )
        sample = None
        if opened.features is not None and not opened.features.exact:
            sample = sample_kernel(chosen, X, Y)
        outcome = run_learners(opened.kernel, parted, plan, sample)
        approximation = None
        if opened.features is not None:
            approximation = measure_approximation(
                chosen, opened.features, X, Y, outcome.learner, outcome.gamma.value, *opened.memory
            )
    return _diagnosis(parted, plan, outcome, words, opened.kernel.mode, approximation, doubts)


def _diagnosis(
    parted: Split,
    plan: Plan,
    outcome: Outcome,
    words: str,
    mode: Mode,
    approximation: Approximation | None,
    doubts: list[str],
) -> Diagnosis:
    learned, comparison, stream = outcome.learned, outcome.comparison, parted.stream
    effective = learned.effective.numpy()
    if approximation is not None:
        approximation = replace(approximation, reference=comparison.reference)
    errors = learned.online.errors
    return Diagnosis(
        stream=stream,
        test_rows=comparison.rows,
        evaluation=parted.evaluation,
        mode=mode,
        kernel=words,
        learner=outcome.learner,
        block_size=plan.block_size,
        lr=outcome.lr,
        gamma=outcome.gamma,
        scores=comparison.scores,
        excess=comparison.excess,
        gap_closed=comparison.gap_closed,
        effective=effective,
        corrected=learned.corrected.numpy(),
        iterative=learned.iterative.numpy(),
        prequential=np.full_like(effective, np.nan) if errors is None else errors.numpy(),
        density=outcome.density.numpy(),
        changed=changed_rows(stream, effective),
        groups=outcome.groups,
        stability=outcome.stability,
        approximation=approximation,
        ridge=learned.ridge,
        aim=learned.aim,
        trials=comparison.trials,
        failures=(*learned.failures, *doubts),
    )


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


@torch.no_grad()
def run_learners(
    kernel: StreamKernel, parted: Split, plan: Plan, sample: StreamKernel | None
) -> Outcome:
    """Every learner over the stream, compared.

    Args:
        kernel: The stream's kernel.
        parted: The stream, and the rows held out.
        plan: What was asked for.
        sample: The true kernel of some of the rows, where the stream's is approximate.
    """
    stream = parted.stream
    gamma = choose_gamma(plan.gamma, kernel, stream.target_scales, plan.seed)
    limit = largest_rate(kernel, plan.learner)
    lr = choose_rate(plan.lr, plan.learner, kernel, limit, stream.target_scales)
    learner = with_rate(plan.learner, lr.value)
    learned = learn_all(kernel, learner, gamma, plan.block_size, plan.ridge, limit)
    return Outcome(
        learner,
        lr,
        gamma,
        Stability(limit, non_normality(kernel, learner, plan.seed)),
        learned,
        kernel.density(),
        _groups(kernel, stream, learned, learner),
        _compare(kernel, sample, parted, plan, learned, learner, lr, gamma.value),
    )


def _groups(kernel: StreamKernel, stream: Stream, learned: Learned, learner: SGD) -> GroupShift:
    groups = partition(stream)
    if learned.online.coefficients is None:
        return unknown_shift(groups)
    shift = learned.effective - kernel.Y
    return group_shift(kernel, stream, groups, learned.dual, shift, learner.batch_size)


def _compare(
    kernel: StreamKernel,
    sample: StreamKernel | None,
    parted: Split,
    plan: Plan,
    learned: Learned,
    learner: SGD,
    lr: Choice,
    gamma: float,
) -> Comparison:
    attempts = attempt_changes(kernel, learner, lr, plan.seed, parted.test is None)
    if parted.test is None:
        errors = progressive_errors(kernel, learned, learner, gamma, plan.block_size)
        kept = [(one, one.run.errors.numpy()) for one in attempts if one.run.errors is not None]
        return compare(errors, kept, parted, plan.seed)
    usable = [(one, one.run.coefficients) for one in attempts]
    tried = [(one, found) for one, found in usable if found is not None]
    names = [name for name in LEARNERS if name in learned.coefficients]
    coefficients = [learned.coefficients[name] for name in names] + [found for _, found in tried]
    X, Y = as_tensor64(parted.test.X), as_tensor64(parted.test.Y)
    made = held_out_errors(kernel, X, Y, coefficients)
    errors = dict(zip(names, made, strict=False))
    others = zip((one for one, _ in tried), made[len(names) :], strict=True)
    reference = None if sample is None else _reference(sample, parted, plan, X, Y)
    return compare(errors, list(others), parted, plan.seed, reference)


def _reference(
    sample: StreamKernel, parted: Split, plan: Plan, X: Tensor, Y: Tensor
) -> NDArray[np.float64] | None:
    """(m, c) held-out errors of an offline learner with the true kernel; None if there is none."""
    gamma = choose_gamma(plan.gamma, sample, parted.stream.target_scales, plan.seed)
    try:
        offline = sample.offline(gamma.value)
    except NotPositiveDefiniteError:
        return None
    return held_out_errors(sample, X, Y, [offline.coefficients])[0]


def as_tensor64(array: np.ndarray) -> Tensor:
    """Rows of the user's as a tensor to compute on."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))
