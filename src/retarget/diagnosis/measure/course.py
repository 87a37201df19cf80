"""The course of a diagnosis: what was left open is chosen, every learner runs, all are compared."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.kernels.base import StreamKernel
from retarget.diagnosis.measure.choose import choose_gamma, choose_rate, with_rate
from retarget.diagnosis.measure.compare import (
    LEARNERS,
    Measured,
    compare,
    held_out_errors,
    progressive_errors,
)
from retarget.diagnosis.measure.evaluation import Split
from retarget.diagnosis.measure.groups import group_shift, partition, unknown_shift
from retarget.diagnosis.measure.learn import Learned, learn_all
from retarget.diagnosis.measure.stability import largest_rate, non_normality
from retarget.diagnosis.measure.trials import attempt_changes
from retarget.diagnosis.result import Choice, GroupShift, Stability
from retarget.diagnosis.stream import Stream
from retarget.errors import NotPositiveDefiniteError
from retarget.learners import SGD


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
class Course:
    """What came of it."""

    learner: SGD
    lr: Choice
    gamma: Choice
    stability: Stability
    learned: Learned
    density: Tensor
    groups: GroupShift
    measured: Measured


@torch.no_grad()
def run_course(
    kernel: StreamKernel, parted: Split, plan: Plan, sample: StreamKernel | None
) -> Course:
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
    return Course(
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
) -> Measured:
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
