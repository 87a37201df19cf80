r"""Which rates are stable, and the report when one was not.

A step on a mini-batch with kernel block $B$ multiplies the error on it by $I - \eta r B$. It grows
unless $\eta\,(r \lambda_{\max}(B) + \lambda) \le 2$; with momentum the same bound, for a step
repeated on the same mini-batch, is $2(1+\mu)$ and, for Nesterov's form, $2(1+\mu)/(1+2\mu)$.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from retarget.errors import DivergedError
from retarget.learners import SGD


def largest_stable_lr(batch_gram: Callable[[slice], Tensor], learner: SGD, n: int) -> float:
    """The largest rate at which every step over the first `n` samples is stable.

    Args:
        batch_gram: Gives the kernel of a range of samples among themselves.
        learner: The online learner, whose own rate does not matter here.
        n: Number of samples.
    """
    curvature = 0.0
    for start in range(0, n, learner.batch_size):
        rows = slice(start, min(start + learner.batch_size, n))
        top = torch.linalg.eigvalsh(batch_gram(rows))[-1].item()
        scale = 1.0 if learner.reduction == "sum" else 1.0 / (rows.stop - rows.start)
        curvature = max(curvature, scale * top)
    return stable_limit(curvature, learner)


def stable_limit(curvature: float, learner: SGD) -> float:
    r"""The largest stable rate where the largest $r \lambda_{\max}(B)$ is `curvature`."""
    curvature += learner.weight_decay
    bound = 2.0 * (1 + learner.momentum)
    if learner.nesterov:
        bound /= 1 + 2 * learner.momentum
    return bound / curvature if curvature > 0 else math.inf


def require_converging(
    errors: Tensor, start: int, learner: SGD, batch_gram: Callable[[slice], Tensor]
) -> None:
    """Stops at the first error, of the samples from `start` on, that is no longer finite."""
    if math.isfinite(errors.sum().item()) or errors.isfinite().all():
        return
    row = start + int((~errors.isfinite().all(dim=1)).nonzero()[0, 0])
    step = row // learner.batch_size
    limit = largest_stable_lr(batch_gram, learner, row + 1)
    raise DivergedError(
        f"the online learner diverged: its error overflows at step {step} (sample {row}) with "
        f"lr = {learner.rate(step):g}; the largest lr that is stable up to there is {limit:.4g}",
        step=step,
        largest_stable_lr=limit,
    )
