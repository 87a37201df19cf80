r"""The two learners: ridge regression (Eq. 2), and one pass of SGD (Lemma 3.1, Eq. 6, Eq. 7).

Their learning curves, the predictions after every prefix of the stream, take one pass as well.
Offline, the Cholesky factor of the whole stream holds that of every prefix: with
$V = L^{-1} K_{\cdot q}$ and $\beta = L^{-1} Y$, the prediction of the learner that has seen $t$
samples is the running sum $\sum_{i \le t} V_{iq}\, \beta_i$.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import ArrayT, as_targets, as_tensor, require_finite, require_float
from retarget.engine.cholesky import factorize
from retarget.engine.dual import DualLearner
from retarget.engine.followers import Online, follow
from retarget.engine.losses import Loss, check_loss, check_targets
from retarget.engine.offline.logistic import logistic_coefficients
from retarget.engine.response import require_lasting_start
from retarget.engine.stability import GrowthWatch
from retarget.engine.stream import SampleStream
from retarget.errors import InvalidInputError
from retarget.learners import SGD, require_learner
from retarget.scalars import as_count, as_non_negative
from retarget.settings import in_plain_torch
from retarget.theory.epochs import online_pass
from retarget.theory.problem import Problem, as_problem


@in_plain_torch
def offline_coefficients(
    K: ArrayT, Y: Any, gamma: float, *, initial: Any = None, loss: Loss = "squared"
) -> ArrayT:
    r"""Dual coefficients of offline ridge regression, $(\gamma I + K) A = Y$ (Eq. 2).

    The same as `sklearn.kernel_ridge.KernelRidge(alpha=gamma, kernel="precomputed")`; the Cholesky
    factorization takes $n^3/3$ multiplications. With `loss="cross-entropy"` it is kernel logistic
    regression, $\gamma A + \sigma(K A) = Y$: on explicit features, the same as
    `sklearn.linear_model.LogisticRegression(C=1/gamma, fit_intercept=False)`. That takes about ten
    steps of Newton's method after the factorization (docs/theory.md, section 10).

    Args:
        K: (n, n) Gram matrix of the stream.
        Y: (n,) or (n, c) targets.
        gamma: Ridge, 0 or more; with 0, K must be positive definite.
        initial: Values of the starting function on the stream, if it is not zero: the ridge then
            pulls towards that function. Add it to the prediction.
        loss: `"squared"` or `"cross-entropy"`: softmax for several outputs, whose targets sum to 1
            in every row, and logistic for one. `initial` then holds the starting function's logits.

    Returns:
        A with the shape of Y; the prediction for a query is `K_query @ A` (with cross-entropy, its
        logits).

    Raises:
        NotConvergedError: Cross-entropy has no solution, as with gamma = 0 for targets 0 and 1.

    Examples:
        One sample of norm 1 with target 3: the prediction is shrunk to $3 / (1 + \gamma)$.

        >>> import numpy as np
        >>> offline_coefficients(np.array([[1.0]]), np.array([3.0]), gamma=0.5)
        array([2.])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = loss_problem(K, Y, initial, loss, factored=True)
    return problem.give(offline_solution(problem, gamma, loss))


@in_plain_torch
def online_coefficients(
    K: ArrayT,
    Y: Any,
    learner: SGD,
    *,
    initial: Any = None,
    loss: Loss = "squared",
    epochs: int = 1,
) -> ArrayT:
    r"""Dual coefficients of the function learned in one online pass, or in several.

    For plain SGD this is the triangular system $(I/\eta + K^L) A = Y$ (Eq. 6), with $K^{bL}$ for
    mini-batches (Eq. 7); for momentum, weight decay and schedules the same system weighted by the
    optimizer's memory (docs/theory.md, section 5). With cross-entropy it is triangular as well,
    $A_t = \eta (y_t - \sigma(f_t))$ in order (section 10). It costs a few products $K Y$ per epoch.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        initial: Values of the starting function on the stream, if it is not zero. Add what is left
            of it at the end (all of it, without weight decay) to the prediction.
        loss: `"squared"` or `"cross-entropy"` (softmax for several outputs, logistic for one);
            `initial` then holds the starting function's logits.
        epochs: Passes over the stream, each in the same order; a schedule has one rate for each
            step of all of them. The time grows with their number, the memory does not.

    Returns:
        A with the shape of Y; the prediction for a query is `K_query @ A`.

    Examples:
        Two samples of kernel 1/2 to each other: the second step corrects what the first one left,
        $A_2 = \eta (y_2 - \eta y_1 / 2)$.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> online_coefficients(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([0.5  , 0.375])
    """
    problem = loss_problem(K, Y, initial, loss)
    return problem.give(online_pass(problem, learner, loss, as_count("epochs", epochs))[1])


@in_plain_torch
def prequential_errors(
    K: ArrayT, Y: Any, learner: SGD, *, initial: Any = None, loss: Loss = "squared"
) -> ArrayT:
    r"""The error on each sample before it is learned, $y_t - f_t(x_t)$.

    With cross-entropy it is the target minus the predicted probability.

    This is progressive validation, as in river. The errors solve the online system itself: for
    plain SGD the dual coefficients are $\eta$ times these errors.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        initial: Values of the starting function on the stream, if it is not zero.
        loss: `"squared"` or `"cross-entropy"` (softmax for several outputs, logistic for one);
            `initial` then holds the starting function's logits.

    Returns:
        Errors with the shape of Y.

    Examples:
        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> prequential_errors(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([1.  , 0.75])
    """
    problem = loss_problem(K, Y, initial, loss)
    return problem.give(online_pass(problem, learner, loss)[0])


@in_plain_torch
def offline_learning_curve(
    K: ArrayT, Y: Any, K_query: Any, gamma: float, stops: Sequence[int]
) -> ArrayT:
    r"""Predictions of the offline learner after each of several prefixes of the stream.

    One factorization serves all prefixes, so a whole curve costs little more than its last point.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets.
        K_query: (m, n) kernel of the queries against the stream.
        gamma: Ridge, 0 or more.
        stops: Prefix lengths, increasing.

    Returns:
        (len(stops), m, c) predictions; (len(stops), m) for flat Y.

    Examples:
        >>> import numpy as np
        >>> offline_learning_curve(np.eye(2), np.array([1.0, 2.0]), np.ones((1, 2)), 1.0, [1, 2])
        array([[0.5],
               [1.5]])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_problem(K, Y, factored=True)
    query = _as_query(problem, K_query)
    factor = factorize(problem.K, gamma)
    V = factor.solve_lower(query.mT.contiguous())
    beta = factor.solve_lower(problem.Y)
    total = query.new_zeros(len(query), beta.shape[1])
    predictions = []
    start = 0
    for stop in _checked_stops(stops, len(problem.K), 1):
        total = total + V[start:stop].mT @ beta[start:stop]
        predictions.append(total)
        start = stop
    result: ArrayT = _stacked(problem, predictions)
    return result


@in_plain_torch
def online_learning_curve(
    K: ArrayT, Y: Any, K_query: Any, learner: SGD, stops: Sequence[int]
) -> ArrayT:
    r"""Predictions of the online learner after each of several prefixes of the stream.

    One pass over the stream serves all prefixes.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, true or corrected.
        K_query: (m, n) kernel of the queries against the stream.
        learner: The online learner.
        stops: Prefix lengths, increasing, each at the end of a mini-batch.

    Returns:
        (len(stops), m, c) predictions; (len(stops), m) for flat Y.

    Examples:
        >>> import numpy as np
        >>> query = np.array([[1.0, 1.0]])
        >>> online_learning_curve(np.eye(2), np.array([1.0, 2.0]), query, SGD(lr=0.5), [1, 2])
        array([[0.5],
               [1.5]])
    """
    problem = as_problem(K, Y)
    query = _as_query(problem, K_query)
    K_all = problem.K
    n = len(problem.K)
    require_learner(learner)
    learner.rates(n)
    watch = GrowthWatch(learner, lambda batch: K_all[batch, batch])
    follower = Online(DualLearner(learner, capacity=n), watch)
    stream = SampleStream.of_matrix(K_all, problem.Y)
    predictions = []
    for stop in _checked_stops(stops, n, learner.batch_size):
        follow(stream.windows(learner.batch_size, begin=len(follower), stop=stop), [follower])
        predictions.append(query[:, :stop] @ follower.learner.coefficients)
    watch.warn_once()
    result: ArrayT = _stacked(problem, predictions)
    return result


def loss_problem(
    K: ArrayT,
    Y: Any,
    initial: Any,
    loss: Loss,
    lasting: SGD | None = None,
    *,
    factored: bool = False,
) -> Problem[ArrayT]:
    """Checks the inputs of the functional core, and whether the targets fit the loss.

    If `lasting` is given, raises if that learner would forget the starting function.
    """
    check_loss(loss)
    problem = as_problem(K, Y, initial, factored=factored)
    check_targets("Y", as_targets("Y", Y), loss)  # in the caller's dtype: its rounding is allowed
    if lasting is not None:
        require_lasting_start(initial, lasting)
    return problem


def offline_solution(problem: Problem[Any], gamma: float, loss: Loss) -> Tensor:
    """(n, c) the offline learner's dual coefficients."""
    if loss == "squared":
        return factorize(problem.K, gamma).solve(problem.residual)
    return logistic_coefficients(problem.K, problem.Y, problem.start, gamma)


def _as_query(problem: Problem[Any], K_query: Any) -> Tensor:
    query = as_tensor("K_query", K_query)
    require_float("K_query", query, "convert it first")
    if query.ndim != 2 or query.shape[1] != len(problem.K):
        raise InvalidInputError(
            f"K_query has shape {tuple(query.shape)}; expected (m, {len(problem.K)}), the kernel "
            "of the queries against the stream"
        )
    require_finite("K_query", query)
    return query.to(problem.K)


def _checked_stops(stops: Sequence[int], n: int, batch: int) -> list[int]:
    checked = [int(stop) for stop in stops]
    if not checked or any(np.diff([0, *checked]) <= 0) or checked[-1] > n:
        raise InvalidInputError(f"stops are {checked}; expected increasing lengths from 1 to {n}")
    for stop in checked:
        if stop % batch and stop != n:
            raise InvalidInputError(
                f"the stop at {stop} is inside a mini-batch of {batch}; expected stops at the ends "
                "of mini-batches"
            )
    return checked


def _stacked(problem: Problem[Any], predictions: list[Tensor]) -> Any:
    # returned as one long list of predictions, with queries in the role of samples
    given = problem.give(torch.cat(predictions))
    return given.reshape(len(predictions), -1, *given.shape[1:])
