r"""The exact correction of a stream that comes task by task.

Theorem 4.1 needs the whole stream in advance. Here the targets of a task must be given before the
next task is known, and the earlier tasks have been learned already. Let $f$ be the function that
the learner would have after the task $n$ if it made no error on it (momentum and weight decay
change it even so), and $f_{off}$ the offline learner of all samples so far. The closest function to
$f_{off}$, in the kernel's space, that the task's own rows can reach is

    f + k(., X_n) K_nn^+ (f_off(X_n) - f(X_n))

which is Eq. 16 with the whole task as one block. It is $f_{off}$ itself in the first task, and
wherever the task's rows span the kernel's features. With $B$ the dual coefficients of $f_{off}$ and
$A_p$ those of $f$, the task's own coefficients are therefore

    A_n = B_n + K_nn^+ K_np (B_p - A_p)

and its targets follow from the triangular system of the online learner, as in Theorem 4.1. The
inverse is needed only for what earlier tasks left to be done: in the first task it is not used.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from retarget.arrays import ArrayT, as_non_negative, panels
from retarget.errors import PrecisionWarning, warn_caller
from retarget.learners import SGD
from retarget.settings import in_plain_torch
from retarget.theory.cholesky import GrowingCholesky
from retarget.theory.correction import next_targets
from retarget.theory.dual import DualLearner
from retarget.theory.losses import Loss
from retarget.theory.offline.logistic import LogisticFit
from retarget.theory.online import loss_problem
from retarget.theory.response import final_carry
from retarget.theory.settling import BlockInverses, invert_blocks
from retarget.theory.stability import MEANINGFUL, GrowthWatch


@in_plain_torch
def targets_by_task(
    K: ArrayT,
    Y: ArrayT,
    learner: SGD,
    gamma: float,
    sizes: Sequence[int],
    loss: Loss = "squared",
    eps: float | None = None,
) -> ArrayT:
    """Targets that lead the online learner as near as possible to the offline one in each task.

    Near at the end of each task, to the offline learner of all samples so far, in the kernel's
    space. A task may end with a mini-batch that is not full.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n, c) targets, in stream order.
        learner: The online learner.
        gamma: Ridge of the offline learner, 0 or more.
        sizes: The number of samples in each task; their sum is n.
        loss: The loss of both learners.
        eps: The relative rounding of K, if it is more than that of its type.

    Returns:
        Corrected targets with the shape of Y.
    """
    gamma = as_non_negative("gamma", gamma)
    problem = loss_problem(K, Y, None, loss, factored=True)
    gram, dual = problem.K, DualLearner(learner, len(problem.K))

    def square(rows: slice) -> Tensor:
        return gram[rows, rows]

    watch = GrowthWatch(learner, square, loss=loss)
    fit = (
        GrowingCholesky(gamma, square)
        if loss == "squared"
        else LogisticFit(gamma, problem.Y.shape[1], square)
    )
    targets = []
    for size in sizes:
        first = len(dual)
        task, past = slice(first, first + size), slice(0, first)
        B = _solved(fit, gram, problem.Y, task.stop)
        A = B[task]
        if first:
            carry = final_carry(learner, size, dual.steps)
            parts = zip(carry, dual.shares, strict=False)  # plain SGD has no velocity
            left = B[past] - sum(share * part.rows for share, part in parts)
            inverse = invert_blocks(square(task)[None], 0.0, first, in_range=True, eps=eps)
            A = A + inverse.solve(gram[task, past] @ left)
            if task.stop == len(gram):  # the tasks before were warned of when they were the last
                norm = math.sqrt(max(float((left * (square(past) @ left)).sum()), 0.0))
                _warn_of_loss(square(task), inverse, norm, gram[task, : task.stop] @ B, first)
        targets.append(next_targets(dual, lambda rows: gram[rows, : rows.stop], A, watch))
    fit.warn_once()
    watch.warn_once()
    return problem.give(torch.cat(targets))


def _warn_of_loss(K: Tensor, inverse: BlockInverses, left: float, F: Tensor, first: int) -> None:
    """Warns if rounding hides directions of a task's kernel that matter for its predictions F.

    A pseudo-inverse leaves out eigenvalues that cannot be told from rounding. If those that it
    keeps reach down to the rounding, parts of a function of norm `left` are lost with the others,
    and at a sample they can be as large as the root of the smallest one kept times this norm.
    """
    if inverse.singular is None or inverse.condition * inverse.rounding < MEANINGFUL:
        return
    lost = left * math.sqrt(float(K.norm()) / inverse.condition)
    if lost > MEANINGFUL * float(F.abs().max()):
        warn_caller(
            f"the kernel of samples {first} to {first + len(K) - 1} is nearly singular in its "
            "precision: parts of the exact correction that matter are lost in rounding; use a "
            "network in float64, or kind='iterative' with a ridge",
            PrecisionWarning,
        )


def _solved(fit: GrowingCholesky | LogisticFit, K: Tensor, Y: Tensor, n: int) -> Tensor:
    """(n, c) the offline learner's dual coefficients, once it has seen the first n samples."""
    first = len(fit)
    for part in panels(n - first, 1, K.device):
        rows = slice(first + part.start, first + part.stop)
        if isinstance(fit, LogisticFit):
            fit.extend(K[rows, : rows.stop], Y[rows], None)
        else:
            fit.commit(fit.extend(K[rows, : rows.stop]))
    return fit.solve() if isinstance(fit, LogisticFit) else fit.solve(Y[:n])
