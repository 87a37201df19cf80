"""The two learners: ridge regression (Eq. 2), and one pass of SGD (Lemma 3.1, Eq. 6, Eq. 7)."""

from typing import Any

import torch
from torch import Tensor

from retarget.arrays import ArrayT, Problem, as_non_negative, as_problem, panels
from retarget.learners import SGD
from retarget.theory.cholesky import factorise
from retarget.theory.dual import DualLearner
from retarget.theory.response import remaining_start
from retarget.theory.stability import GrowthWatch


@torch.no_grad()
def offline_coefficients(K: ArrayT, Y: Any, gamma: float, *, initial: Any = None) -> ArrayT:
    r"""Dual coefficients of offline ridge regression, $(\gamma I + K) A = Y$ (Eq. 2).

    Args:
        K: (n, n) Gram matrix of the stream.
        Y: (n,) or (n, c) targets.
        gamma: Ridge, 0 or more; without any, K must be positive definite.
        initial: Values of the starting function on the stream, if it is not zero: the ridge then
            pulls towards that function, and it is to be added to the prediction.

    Returns:
        A of the shape of Y; the prediction for a query is `K_query @ A`.

    Example:
        One sample of norm 1 with target 3: the prediction is shrunk to $3 / (1 + \gamma)$.

        >>> import numpy as np
        >>> offline_coefficients(np.array([[1.0]]), np.array([3.0]), gamma=0.5)
        array([2.])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_problem(K, Y, initial, factored=True)
    result: ArrayT = problem.give(factorise(problem.K, gamma).solve(problem.residual))
    return result


@torch.no_grad()
def online_coefficients(K: ArrayT, Y: Any, learner: SGD, *, initial: Any = None) -> ArrayT:
    r"""Dual coefficients of the function that one online pass learns.

    For plain SGD this is the triangular system $(I/\eta + K^L) A = Y$ (Eq. 6), with $K^{bL}$ for
    mini-batches (Eq. 7); for momentum, weight decay and schedules the same system weighted by the
    optimiser's memory (docs/theory.md, section 5).

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        initial: Values of the starting function on the stream, if it is not zero. What is left of
            it at the end (all of it without weight decay) is to be added to the prediction.

    Returns:
        A of the shape of Y; the prediction for a query is `K_query @ A`.

    Example:
        Two samples of kernel 1/2 to each other: the second step corrects what the first one left,
        $A_2 = \eta (y_2 - \eta y_1 / 2)$.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> online_coefficients(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([0.5  , 0.375])
    """
    problem = as_problem(K, Y, initial)
    result: ArrayT = problem.give(online_pass(problem, learner)[1])
    return result


@torch.no_grad()
def prequential_errors(K: ArrayT, Y: Any, learner: SGD, *, initial: Any = None) -> ArrayT:
    r"""The error on each sample before it is learned, $y_t - f_t(x_t)$.

    This progressive-validation curve is the solution of the online system itself: for plain SGD
    the dual coefficients are $\eta$ times these errors.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        initial: Values of the starting function on the stream, if it is not zero.

    Returns:
        Errors of the shape of Y.

    Example:
        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> prequential_errors(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([1.  , 0.75])
    """
    problem = as_problem(K, Y, initial)
    result: ArrayT = problem.give(online_pass(problem, learner)[0])
    return result


def online_pass(problem: Problem, learner: SGD) -> tuple[Tensor, Tensor]:
    """Errors before each step, and the dual coefficients after the last one."""
    K, targets = problem.K, problem.Y
    learner.rates(len(K))  # a schedule of the wrong length is an error before any work
    if problem.start is not None:
        remaining = K.new_tensor(remaining_start(learner, len(K))[:-1])
        targets = targets - remaining[:, None] * problem.start
    errors = torch.empty_like(targets)
    dual = DualLearner(learner, capacity=len(K))
    watch = GrowthWatch(learner, lambda batch: K[batch, batch])
    for rows in panels(len(K), learner.batch_size, K.device):
        window = dual.window(K[rows, : rows.stop])
        errors[rows] = window.errors(targets[rows])
        watch.follow(K[rows, : rows.stop], window, targets[rows], errors[rows])
        dual.learn(window, errors[rows])
    watch.warn_once()
    return errors, dual.coefficients
