r"""Learning curves: the predictions after every prefix of the stream, from one pass.

Offline, the Cholesky factor of the whole stream holds that of every prefix. With
$V = L^{-1} K_{\cdot q}$ and $\beta = L^{-1} Y$, the prediction of the learner that has seen $t$
samples is $\sum_{i \le t} V_{iq}\, \beta_i$: a running sum. Online, the dual coefficients after $t$
samples are what they are on the way to the end.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import (
    ArrayT,
    Problem,
    as_non_negative,
    as_problem,
    as_tensor,
    panels,
    require_finite,
    require_float,
)
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.theory.cholesky import factorise
from retarget.theory.dual import DualLearner
from retarget.theory.stability import GrowthWatch


@torch.no_grad()
def offline_learning_curve(
    K: ArrayT, Y: Any, K_query: Any, gamma: float, stops: Sequence[int]
) -> ArrayT:
    r"""Predictions of the offline learner after each of several prefixes of the stream.

    One factorisation serves all prefixes.

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
    factor = factorise(problem.K, gamma)
    V, beta = factor.solve_lower(query.mT.contiguous()), factor.solve_lower(problem.Y)
    total = query.new_zeros(len(query), beta.shape[1])
    predictions, start = [], 0
    for stop in _checked_stops(stops, len(problem.K), 1):
        total = total + V[start:stop].mT @ beta[start:stop]
        predictions.append(total)
        start = stop
    result: ArrayT = _stacked(problem, predictions)
    return result


@torch.no_grad()
def online_learning_curve(
    K: ArrayT, Y: Any, K_query: Any, learner: SGD, stops: Sequence[int]
) -> ArrayT:
    r"""Predictions of the online learner after each of several prefixes of the stream.

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
    gram, n = problem.K, len(problem.K)
    learner.rates(n)
    dual = DualLearner(learner, capacity=n)
    watch = GrowthWatch(learner, lambda batch: gram[batch, batch])
    predictions = []
    for stop in _checked_stops(stops, n, learner.batch_size):
        for rows in _between(len(dual), stop, learner.batch_size, gram):
            window = dual.window(gram[rows, : rows.stop])
            errors = window.errors(problem.Y[rows])
            watch.follow(gram[rows, : rows.stop], window, problem.Y[rows], errors)
            dual.learn(window, errors)
        predictions.append(query[:, :stop] @ dual.coefficients)
    watch.warn_once()
    result: ArrayT = _stacked(problem, predictions)
    return result


def _between(start: int, stop: int, multiple: int, like: Tensor) -> Iterator[slice]:
    for rows in panels(stop - start, multiple, like.device):
        yield slice(start + rows.start, start + rows.stop)


def _as_query(problem: Problem, K_query: Any) -> Tensor:
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
                f"the stop at {stop} is inside a mini-batch of {batch}; expected ends of batches"
            )
    return checked


def _stacked(problem: Problem, predictions: list[Tensor]) -> Any:
    # through the door as one long list of predictions, queries standing where samples do elsewhere
    given = problem.give(torch.cat(predictions))
    return given.reshape(len(predictions), -1, *given.shape[1:])
