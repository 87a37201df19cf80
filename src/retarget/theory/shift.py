"""How an online learner differs from an offline one: in its targets, and in its function."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from retarget.arrays import ArrayT, as_non_negative, as_targets
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.theory.losses import Loss, check_targets, outputs
from retarget.theory.online import (
    learned_coefficients,
    loss_problem,
    offline_solution,
    online_pass,
)
from retarget.theory.response import require_lasting_start


@torch.no_grad()
def effective_targets(
    K: ArrayT,
    Y: Any,
    learner: SGD,
    gamma: float,
    *,
    initial: Any = None,
    loss: Loss = "squared",
    epochs: int = 1,
) -> ArrayT:
    r"""The targets on which the offline learner learns what the online learner learned.

    $Y^e = (\gamma I + K)\, A$ with $A$ the online learner's dual coefficients (Theorem 3.2, Eq. 8).
    With cross-entropy it is $Y^e = \sigma(K A) + \gamma A$ (docs/theory.md, section 10).

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        gamma: Ridge of the offline learner that it is compared with, 0 or more.
        initial: Values of the starting function on the stream, if it is not zero (without weight
            decay only).
        loss: `"squared"` or `"cross-entropy"`, of both learners; `initial` is then logits.
        epochs: Passes over the stream, each in the same order; a schedule has one rate for each
            step of all of them. They take as many times as long, and no more memory.

    Returns:
        Effective targets of the shape of Y; the shift is their difference from Y.

    Examples:
        At the rate $1 / (\gamma + k(x, x))$ the newest sample is not shifted (Eq. 11); the one
        before it is, towards the error on the newest.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> effective_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1.1875, 1.    ])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = loss_problem(K, Y, initial, loss)
    require_lasting_start(initial, learner)
    A = learned_coefficients(problem, learner, loss, epochs)
    if loss == "squared":
        effective = torch.addmm(A, problem.K, A, beta=gamma)
    else:
        logits = problem.K @ A if problem.start is None else problem.start + problem.K @ A
        effective = outputs(logits, loss) + gamma * A
    result: ArrayT = problem.give(effective, from_residual=loss == "squared")
    return result


@torch.no_grad()
def discrepancy(
    K: ArrayT,
    Z: Any,
    Y: Any,
    learner: SGD,
    gamma: float,
    *,
    initial: Any = None,
    loss: Loss = "squared",
) -> float:
    r"""The distance between the online learner trained on Z and the offline learner trained on Y.

    It is the norm of their difference in the kernel's function space (RKHS),
    $\lVert f_{on}[Z] - f_{off}[Y] \rVert_{\mathcal H} = \sqrt{\operatorname{tr} D^\top K D}$ with
    $D$ the difference of their dual coefficients, all outputs together. The paper minimises its
    square (Eq. 14) or half its square (Eq. 15, where the term in $\gamma_o$ is added).

    The distance bounds every prediction: at a query $x$ the outputs of the two learners differ by
    at most $\sqrt{k(x, x)}$ times as much (in the Euclidean norm over outputs).

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Z: Targets of the online learner, of the shape of Y.
        Y: (n,) or (n, c) targets of the offline learner, in stream order.
        learner: The online learner, compared as it is at the end of the stream (with momentum,
            before it has come to rest).
        gamma: Ridge of the offline learner, 0 or more.
        initial: Values of the starting function on the stream, if it is not zero (without weight
            decay only).
        loss: `"squared"` or `"cross-entropy"`, of both learners; `initial` is then logits.

    Returns:
        The distance, 0 or more; for the distance of one output, pass that column of Z and Y.

    Examples:
        On the true targets the online learner misses the offline one, on corrected ones not.

        >>> import numpy as np
        >>> from retarget import corrected_targets
        >>> K, Y, learner = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([1.0, 1.0]), SGD(lr=0.5)
        >>> round(discrepancy(K, Y, Y, learner, gamma=1.0), 4)
        0.0901
        >>> discrepancy(K, corrected_targets(K, Y, learner, 1.0), Y, learner, gamma=1.0) < 1e-12
        True
    """
    gamma = as_non_negative("gamma", gamma)
    problem = loss_problem(K, Y, initial, loss, factored=True)
    require_lasting_start(initial, learner)
    taught = as_targets("Z", Z)
    if taught.shape != problem.Y.shape:
        raise InvalidInputError(
            f"Z has shape {np.shape(Z)}, but Y has shape {np.shape(Y)}; expected a target of the "
            "online learner for each target of the offline one"
        )
    if taught.device != problem.K.device:
        raise InvalidInputError(
            f"Z is on {taught.device}, but K is on {problem.K.device}; move one to the other"
        )
    check_targets("Z", taught, loss)
    dtype = torch.promote_types(problem.K.dtype, taught.dtype)
    start = None if problem.start is None else problem.start.to(dtype)
    problem = replace(problem, K=problem.K.to(dtype), Y=problem.Y.to(dtype), start=start)
    D = online_pass(replace(problem, Y=taught.to(dtype)), learner, loss)[1]
    D = D - offline_solution(problem, gamma, loss)
    scale = float(D.abs().max())  # squares of numbers that are far from 1 are not representable
    D = D / (scale or 1.0)
    # K is positive semidefinite up to rounding, and so is this square
    return scale * math.sqrt(max(float((D * (problem.K @ D)).sum()), 0.0))
