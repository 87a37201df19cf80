"""The shift: what the online learner's targets look like to an offline learner (Theorem 3.2)."""

from typing import Any

import torch

from retarget.arrays import ArrayT, as_non_negative, as_problem
from retarget.learners import SGD
from retarget.theory.online import online_pass
from retarget.theory.start import require_lasting_start


@torch.no_grad()
def effective_targets(
    K: ArrayT, Y: Any, learner: SGD, gamma: float, *, initial: Any = None
) -> ArrayT:
    r"""The targets on which the offline learner learns what the online learner learned.

    $Y^e = (\gamma I + K)\, A$ with $A$ the online learner's dual coefficients (Theorem 3.2, Eq. 8).

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        gamma: Ridge of the offline learner that it is compared with, 0 or more.
        initial: Values of the starting function on the stream, if it is not zero (without weight
            decay only).

    Returns:
        Effective targets of the shape of Y; the shift is their difference from Y.

    Example:
        At the rate $1 / (\gamma + k(x, x))$ the newest sample is not shifted (Eq. 11); the one
        before it is, towards the error on the newest.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> effective_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1.1875, 1.    ])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_problem(K, Y, initial)
    require_lasting_start(initial, learner)
    A = online_pass(problem, learner)[1]
    effective = torch.addmm(A, problem.K, A, beta=gamma)
    if problem.start is not None:
        effective += problem.start
    result: ArrayT = problem.give(effective)
    return result
