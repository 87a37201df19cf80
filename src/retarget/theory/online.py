"""The two learners: ridge regression (Eq. 2), and one pass of SGD (Lemma 3.1, Eq. 6, Eq. 7)."""

from typing import Any

import torch
from torch import Tensor

from retarget.arrays import (
    ArrayT,
    Problem,
    as_non_negative,
    as_problem,
    as_targets,
    panels,
)
from retarget.learners import SGD
from retarget.theory.cholesky import factorise
from retarget.theory.dual import DualLearner
from retarget.theory.epochs import check_epochs, epochs_pass
from retarget.theory.losses import Loss, check_loss, check_targets
from retarget.theory.offline.logistic import logistic_coefficients
from retarget.theory.response import remaining_start
from retarget.theory.stability import GrowthWatch


@torch.no_grad()
def offline_coefficients(
    K: ArrayT, Y: Any, gamma: float, *, initial: Any = None, loss: Loss = "squared"
) -> ArrayT:
    r"""Dual coefficients of offline ridge regression, $(\gamma I + K) A = Y$ (Eq. 2).

    With `loss="cross-entropy"`, of kernel logistic regression: $\gamma A + \sigma(K A) = Y$, as
    `sklearn.linear_model.LogisticRegression(C=1/gamma, fit_intercept=False)` on explicit features.
    It takes some ten steps of Newton's method after the factorisation (docs/theory.md, section 10).

    Args:
        K: (n, n) Gram matrix of the stream.
        Y: (n,) or (n, c) targets.
        gamma: Ridge, 0 or more; without any, K must be positive definite.
        initial: Values of the starting function on the stream, if it is not zero: the ridge then
            pulls towards that function, and it is to be added to the prediction.
        loss: `"squared"` or `"cross-entropy"`: softmax for several outputs, whose targets sum to 1
            in every row, and logistic for one. `initial` is then the starting function's logits.

    Returns:
        A of the shape of Y; the prediction for a query is `K_query @ A` (of cross-entropy, its
        logits).

    Raises:
        NotConvergedError: Cross-entropy has no solution, as without a ridge for targets 0 and 1.

    Examples:
        One sample of norm 1 with target 3: the prediction is shrunk to $3 / (1 + \gamma)$.

        >>> import numpy as np
        >>> offline_coefficients(np.array([[1.0]]), np.array([3.0]), gamma=0.5)
        array([2.])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = loss_problem(K, Y, initial, loss, factored=True)
    result: ArrayT = problem.give(offline_solution(problem, gamma, loss))
    return result


@torch.no_grad()
def online_coefficients(
    K: ArrayT,
    Y: Any,
    learner: SGD,
    *,
    initial: Any = None,
    loss: Loss = "squared",
    epochs: int = 1,
) -> ArrayT:
    r"""Dual coefficients of the function that one online pass learns, or several.

    For plain SGD this is the triangular system $(I/\eta + K^L) A = Y$ (Eq. 6), with $K^{bL}$ for
    mini-batches (Eq. 7); for momentum, weight decay and schedules the same system weighted by the
    optimiser's memory (docs/theory.md, section 5). With cross-entropy it is triangular as well,
    $A_t = \eta (y_t - \sigma(f_t))$ in order (section 10).

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        initial: Values of the starting function on the stream, if it is not zero. What is left of
            it at the end (all of it without weight decay) is to be added to the prediction.
        loss: `"squared"` or `"cross-entropy"` (softmax for several outputs, logistic for one);
            `initial` is then the starting function's logits.
        epochs: Passes over the stream, each in the same order; a schedule has one rate for each
            step of all of them. They take as many times as long, and no more memory.

    Returns:
        A of the shape of Y; the prediction for a query is `K_query @ A`.

    Examples:
        Two samples of kernel 1/2 to each other: the second step corrects what the first one left,
        $A_2 = \eta (y_2 - \eta y_1 / 2)$.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> online_coefficients(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([0.5  , 0.375])
    """
    problem = loss_problem(K, Y, initial, loss)
    result: ArrayT = problem.give(learned_coefficients(problem, learner, loss, epochs))
    return result


@torch.no_grad()
def prequential_errors(
    K: ArrayT, Y: Any, learner: SGD, *, initial: Any = None, loss: Loss = "squared"
) -> ArrayT:
    r"""The error on each sample before it is learned, $y_t - f_t(x_t)$.

    With cross-entropy it is the target less the probability that was predicted.

    This progressive-validation curve is the solution of the online system itself: for plain SGD
    the dual coefficients are $\eta$ times these errors.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        initial: Values of the starting function on the stream, if it is not zero.
        loss: `"squared"` or `"cross-entropy"` (softmax for several outputs, logistic for one);
            `initial` is then the starting function's logits.

    Returns:
        Errors of the shape of Y.

    Examples:
        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> prequential_errors(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([1.  , 0.75])
    """
    problem = loss_problem(K, Y, initial, loss)
    result: ArrayT = problem.give(online_pass(problem, learner, loss)[0])
    return result


def loss_problem(K: Any, Y: Any, initial: Any, loss: Loss, *, factored: bool = False) -> Problem:
    """Checks the inputs of the functional core, and whether the targets fit the loss."""
    check_loss(loss)
    problem = as_problem(K, Y, initial, factored=factored)
    check_targets("Y", as_targets("Y", Y), loss)  # as they came: their own rounding is allowed
    return problem


def offline_solution(problem: Problem, gamma: float, loss: Loss) -> Tensor:
    """(n, c) the offline learner's dual coefficients."""
    if loss == "squared":
        return factorise(problem.K, gamma).solve(problem.residual)
    return logistic_coefficients(problem.K, problem.Y, problem.start, gamma)


def learned_coefficients(problem: Problem, learner: SGD, loss: Loss, epochs: int) -> Tensor:
    """(n, c) the online learner's dual coefficients after one pass or several."""
    if check_epochs(epochs) == 1:
        return online_pass(problem, learner, loss)[1]
    return epochs_pass(problem, learner, epochs, loss)


def online_pass(problem: Problem, learner: SGD, loss: Loss = "squared") -> tuple[Tensor, Tensor]:
    """Errors before each step, and the dual coefficients after the last one."""
    K, targets, start = problem.K, problem.Y, problem.start
    learner.rates(len(K))  # a schedule of the wrong length is an error before any work
    if start is not None:
        start = K.new_tensor(remaining_start(learner, len(K))[:-1])[:, None] * start
        if loss == "squared":
            targets, start = targets - start, None
    errors = torch.empty_like(targets)
    dual = DualLearner(learner, capacity=len(K))
    watch = GrowthWatch(learner, lambda batch: K[batch, batch], loss=loss)
    for rows in panels(len(K), learner.batch_size, K.device):
        window = dual.window(K[rows, : rows.stop])
        errors[rows] = window.errors(targets[rows], loss, None if start is None else start[rows])
        watch.follow(K[rows, : rows.stop], window, targets[rows], errors[rows])
        dual.learn(window, errors[rows])
    watch.warn_once()
    return errors, dual.coefficients
