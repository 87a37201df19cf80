"""The correction: targets with which the online learner ends as the offline one (Theorem 4.1)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from retarget.arrays import ArrayT, as_non_negative, as_problem, panels
from retarget.errors import UnreachableTargetsError
from retarget.learners import SGD
from retarget.theory.cholesky import factorise
from retarget.theory.dual import DualLearner
from retarget.theory.response import final_response, require_lasting_start
from retarget.theory.stability import GrowthWatch


@torch.no_grad()
def corrected_targets(
    K: ArrayT, Y: Any, learner: SGD, gamma: float, *, initial: Any = None
) -> ArrayT:
    r"""The targets on which the online learner learns what the offline learner learned.

    $Y^c = (I/\eta + K^L)(\gamma I + K)^{-1} Y$ (Theorem 4.1, Eq. 12), and its like for every other
    learner. They need the whole stream beforehand: see `iterative_targets` for a causal form.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        gamma: Ridge of the offline learner, 0 or more; without any, K must be positive definite.
        initial: Values of the starting function on the stream, if it is not zero (without weight
            decay only).

    Returns:
        Corrected targets of the shape of Y.

    Example:
        They are the inverse of the effective targets.

        >>> import numpy as np
        >>> from retarget import effective_targets
        >>> K, learner = np.array([[1.0, 0.5], [0.5, 1.0]]), SGD(lr=0.5)
        >>> shifted = effective_targets(K, np.array([1.0, 1.0]), learner, gamma=1.0)
        >>> corrected_targets(K, shifted, learner, gamma=1.0)
        array([1., 1.])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_problem(K, Y, initial, factored=True)
    require_lasting_start(initial, learner)
    learner.rates(len(problem.K))
    coefficients = factorise(problem.K, gamma).solve(problem.residual)
    gram = problem.K
    watch = GrowthWatch(learner, lambda rows: gram[rows, rows])
    targets = targets_reaching(lambda rows: gram[rows, : rows.stop], coefficients, watch)
    watch.warn_once()
    result: ArrayT = problem.give(targets, from_residual=True)
    return result


def targets_reaching(
    kernel_rows: Callable[[slice], Tensor], coefficients: Tensor, watch: GrowthWatch
) -> Tensor:
    """The targets with which the learner ends at these dual coefficients.

    Args:
        kernel_rows: Gives the kernel of a range of samples against all before and themselves.
        coefficients: (n, c) dual coefficients.
        watch: Follows the learner that is to be trained on them.
    """
    learner = watch.learner
    errors = errors_reaching(coefficients, learner)
    targets = torch.empty_like(errors)
    dual = DualLearner(learner, capacity=len(errors))
    for rows in panels(len(errors), learner.batch_size, coefficients.device):
        K_rows = kernel_rows(rows)
        window = dual.window(K_rows)
        targets[rows] = window.targets(errors[rows])
        watch.follow(K_rows, window, targets[rows], errors[rows])
        dual.learn(window, errors[rows])
    return targets


def errors_reaching(coefficients: Tensor, learner: SGD) -> Tensor:
    """The errors whose steps lead the learner to these dual coefficients (n, c)."""
    n = len(coefficients)
    weight = coefficients.new_tensor(final_response(learner, n))
    lost = weight.abs() <= torch.finfo(weight.dtype).eps * weight.abs().max()
    if lost.any():
        row = int(lost.nonzero()[0, 0])
        raise UnreachableTargetsError(
            f"what the learner learns from sample {row} is forgotten by the end of the {n} samples "
            f"(its step keeps {weight[row].item():.2g} of its effect), so no target for it can be "
            "exact; use less weight decay or momentum, or iterative_targets"
        )
    return coefficients / weight[:, None]
