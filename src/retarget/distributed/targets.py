"""The functions of the theory for a kernel that is larger than memory.

The online learner goes through the columns of K: it learns each chunk of samples, and then updates
the predictions for all later chunks. What the past contributes to a chunk's predictions (its kernel
times the weights and the velocity at that time) is computed tile by tile. One worker takes the
chunk's own steps.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import dask.array as da
import numpy as np
import torch
from dask.delayed import Delayed, delayed
from torch import Tensor

from retarget.arrays import as_tensor
from retarget.distributed.cluster import computed
from retarget.distributed.tiles import (
    ColumnWork,
    Tasks,
    TiledFactor,
    TiledProblem,
    as_tiled_problem,
    go_through_columns,
    on_tensors,
    transpose_times,
)
from retarget.engine.condition import warn_if_meaningless
from retarget.engine.dual import DualLearner, Shares
from retarget.engine.followers import Exact, Follower, Iterative, Online, Parts
from retarget.engine.lesson import Lesson, Past, products
from retarget.engine.offline.all import newest_coefficients
from retarget.engine.response import (
    has_memory,
    remaining_start,
    require_lasting_start,
    step_response,
)
from retarget.engine.stability import (
    FAR_BEYOND,
    blown_up,
    require_converging,
    warn_of_divergence,
)
from retarget.engine.stream import FirstBlock, SampleStream, Window
from retarget.learners import SGD
from retarget.scalars import as_non_negative
from retarget.settings import in_plain_torch
from retarget.theory.correction import errors_reaching
from retarget.theory.iterative import check_correction


@in_plain_torch
def offline_coefficients(K: da.Array, Y: Any, gamma: float, *, initial: Any = None) -> np.ndarray:
    r"""Dual coefficients of offline ridge regression, as `retarget.offline_coefficients`.

    Arguments and result are those of that function, except that K is a Dask array in square chunks,
    Y may be one, and the result is computed: a NumPy array.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> offline_coefficients(K, np.array([3.0, 0.0]), gamma=1.0)
        array([ 1.6, -0.4])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial)
    return problem.give(_ridge_solution(problem, gamma))


@in_plain_torch
def online_coefficients(K: da.Array, Y: Any, learner: SGD, *, initial: Any = None) -> np.ndarray:
    r"""Dual coefficients of what one online pass learns, as `retarget.online_coefficients`.

    Arguments and result differ from those of that function as in `offline_coefficients`.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> online_coefficients(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([0.5  , 0.375])
    """
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    return problem.give(_online_pass(problem, learner))


@in_plain_torch
def effective_targets(
    K: da.Array, Y: Any, learner: SGD, gamma: float, *, initial: Any = None
) -> np.ndarray:
    r"""The targets that the online learner really learned, as `retarget.effective_targets`.

    Arguments and result differ from those of that function as in `offline_coefficients`. K is
    computed twice, unless it was persisted.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> effective_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1.1875, 1.    ])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    require_lasting_start(initial, learner)
    A = _online_pass(problem, learner)
    product = _Product(problem, A)
    go_through_columns(problem, product, check=False)
    return problem.give(product.total + gamma * A, from_residual=True)


@in_plain_torch
def corrected_targets(
    K: da.Array, Y: Any, learner: SGD, gamma: float, *, initial: Any = None
) -> np.ndarray:
    r"""The targets on which online learning ends as offline, as `retarget.corrected_targets`.

    Arguments and result differ from those of that function as in `offline_coefficients`. K is
    computed twice, unless it was persisted.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> corrected_targets(K, np.array([1.1875, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1., 1.])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    require_lasting_start(initial, learner)
    learner.rates(len(problem.Y))
    coefficients = torch.from_numpy(_ridge_solution(problem, gamma))
    errors = errors_reaching(coefficients, learner).numpy()

    def taught(j: int, tile: Delayed, start: Start) -> Delayed:
        return delayed(learn_chunk)(tile, start, errors[problem.chunks[j]], "errors")

    learning = TiledLearning(problem, learner, taught)
    go_through_columns(problem, learning, check=False)
    return problem.give(learning.targets, from_residual=True)


@in_plain_torch
def iterative_targets(
    K: da.Array,
    Y: Any,
    learner: SGD,
    gamma: float,
    block_size: int,
    ridge: float = 0.0,
    parts: Parts = "both",
    first_block: FirstBlock = "corrected",
    *,
    initial: Any = None,
) -> np.ndarray:
    r"""Targets that follow the offline learner block by block, as `retarget.iterative_targets`.

    Arguments and result differ from those of that function as in `offline_coefficients`.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> iterative_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0, block_size=1)
        array([1.  , 0.95])
    """
    gamma, ridge = check_correction(learner, gamma, block_size, ridge, parts, first_block)
    problem = as_tiled_problem(K, Y, initial, block_size)
    require_lasting_start(initial, learner)
    options = (gamma, block_size, ridge, parts, first_block)
    residual = problem.residual
    factor = None if parts == "online" else TiledFactor(problem, gamma)

    def taught(j: int, tile: Delayed, start: Start) -> Delayed:
        newest = None if factor is None else factor.newest
        return delayed(settle_chunk)(tile, start, residual[problem.chunks[j]], *options, newest)

    learning = TiledLearning(problem, learner, taught)
    works: tuple[ColumnWork, ...] = (learning,) if factor is None else (factor, learning)
    go_through_columns(problem, *works)
    learning.warn_if_diverging()
    warned = warn_if_meaningless("the kernel of a block", learning.condition, problem.dtype)
    if factor is not None and not warned:
        warn_if_meaningless("gamma I + K", factor.condition, problem.dtype)
    return problem.give(learning.targets, from_residual=True)


def _ridge_solution(problem: TiledProblem, gamma: float) -> np.ndarray:
    """Returns (gamma I + K)^-1 Y."""
    factor = TiledFactor(problem, gamma)
    go_through_columns(problem, factor)
    warn_if_meaningless("gamma I + K", factor.condition, problem.dtype)
    return factor.solve_transposed()


def _online_pass(problem: TiledProblem, learner: SGD) -> np.ndarray:
    """Returns the dual coefficients after the last step."""
    targets = problem.Y
    if problem.start is not None:
        remaining = remaining_start(learner, len(targets))[:-1, None].astype(targets.dtype)
        targets = targets - remaining * problem.start

    def taught(j: int, tile: Delayed, start: Start) -> Delayed:
        return delayed(learn_chunk)(tile, start, targets[problem.chunks[j]], "targets")

    learning = TiledLearning(problem, learner, taught)
    go_through_columns(problem, learning)
    learning.warn_if_diverging()
    return learning.shares[0]


class _Product:
    """Computes K A; each tile below the diagonal is also used for the one above it."""

    def __init__(self, problem: TiledProblem, A: np.ndarray) -> None:
        self.total = np.zeros_like(A)
        self._A = A
        self._chunks = problem.chunks

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        A = self._A
        chunks = self._chunks
        below = {i: on_tensors(torch.matmul, tile, A[chunks[j]]) for i, tile in column.items()}
        above = {
            i: on_tensors(transpose_times, tile, A[chunks[i]])
            for i, tile in column.items()
            if i > j
        }
        return {}, {"below": below, "above": above}

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        for i, product in wanted["below"].items():
            self.total[self._chunks[i]] += product
        for product in wanted["above"].values():
            self.total[self._chunks[j]] += product


class Start(NamedTuple):
    """The state of the learner when a chunk begins."""

    learner: SGD
    row: int  # the chunk's first sample, which is also the first of a mini-batch
    inherited: np.ndarray  # (parts, m, c) values of the past weights, and velocity, at the chunk


class ChunkSteps(NamedTuple):
    """The result of a chunk's steps."""

    targets: np.ndarray  # (m, c) the targets trained on
    errors: np.ndarray  # (m, c) the error before each step
    deposits: np.ndarray  # (parts, m, c) what the steps add to the weights and the velocity
    transfer: np.ndarray  # (2, 2) how the steps change the earlier weights and velocity
    condition: float = 1.0  # a lower bound on the largest condition number found


class ChunkLearner(DualLearner):
    """The learner within a chunk, of which it knows what the past before it predicts there.

    Attributes:
        transfer: (2, 2) how the chunk's steps change the weights and velocity before them.
    """

    def __init__(self, start: Start) -> None:
        super().__init__(start.learner)
        self.steps = start.row // start.learner.batch_size
        self.transfer = np.eye(2)
        self._row = start.row
        self._inherited = Shares(has_memory(start.learner))
        inherited = (as_tensor("inherited", values) for values in start.inherited)
        self._inherited.append(Past(*inherited))

    def lesson(self, K_rows: Tensor, beside: Past | None = None) -> Lesson:
        """What the next samples of the chunk are to the learner."""
        n = len(self)
        m = len(K_rows)
        past = self._inherited.past(slice(n, n + m))
        (own,) = products(K_rows[:, :n], self.past)
        if past is not None and own is not None:  # add what the chunk itself has learned so far
            pairs = zip(past.tensors, own.tensors, strict=True)
            past = Past(*(before + since for before, since in pairs))
        memory = step_response(self.learner, self.steps, m)
        return Lesson(self._row + n, K_rows[:, n:], past, memory, self.steps)

    def learn(self, lesson: Lesson, errors: Tensor) -> None:
        """Takes the steps of a window, on which it made these errors."""
        super().learn(lesson, errors)
        self._inherited.carry_over(lesson)
        self.transfer = lesson.memory.transfer @ self.transfer


def learn_chunk(
    gram: np.ndarray, start: Start, values: np.ndarray, kind: Literal["targets", "errors"]
) -> ChunkSteps:
    """Takes steps on these targets, or on targets that give these errors."""
    given = as_tensor(kind, values)
    learner = ChunkLearner(start)
    follower: Follower = Online(learner) if kind == "targets" else Exact(learner, given)
    stream = SampleStream.of_matrix(as_tensor("K", gram), given)
    return _steps_taken(follower, learner, stream.windows(start.learner.batch_size))


def settle_chunk(
    gram: np.ndarray,
    start: Start,
    targets: np.ndarray,
    gamma: float,
    block_size: int,
    ridge: float,
    parts: Parts,
    first_block: FirstBlock,
    factor: tuple[np.ndarray, np.ndarray] | None,
) -> ChunkSteps:
    """Takes the steps that lead the learner to the offline predictions.

    The factor is L_jj of the chunk and its rows of L^-1 Y; without it, the aim is the targets.
    """
    Y = as_tensor("targets", targets)
    offline = None if factor is None else FactorOfChunk(gamma, *factor)
    learner = ChunkLearner(start)
    follower = Iterative(learner, offline, ridge, parts=parts, first_block=first_block)
    stream = SampleStream.of_matrix(as_tensor("K", gram), Y)
    steps = _steps_taken(follower, learner, stream.windows(block_size, first_block))
    return steps._replace(condition=follower.settling.condition)


class FactorOfChunk:
    """The offline learner within a chunk, from its rows of the stream's factor and of L^-1 Y."""

    def __init__(self, gamma: float, triangle: np.ndarray, beta: np.ndarray) -> None:
        self._gamma = gamma
        self._triangle = as_tensor("L", triangle)
        self._beta = as_tensor("L", beta)

    def learn(self, window: Window) -> Tensor:
        """(m, c) its prediction for each new block, once it has learned that block."""
        rows = window.rows
        corner = self._triangle[rows, rows]
        newest = newest_coefficients(corner, self._beta[rows], window.block_size)
        return window.targets - self._gamma * newest


def _steps_taken(
    follower: Follower, learner: ChunkLearner, windows: Iterator[Window]
) -> ChunkSteps:
    steps = [follower.learn(window) for window in windows]
    return ChunkSteps(
        torch.cat([each.targets for each in steps]).numpy(),
        torch.cat([each.errors for each in steps]).numpy(),
        torch.stack([share.rows for share in learner.shares.both]).numpy(),
        learner.transfer,
    )


class TiledLearning:
    """Follows the columns of K with an online learner that has learned the chunks so far.

    `teach` is a function that returns the task that takes a chunk's steps.

    Attributes:
        targets: (n, c) the targets that were trained on.
        shares: (parts, n, c) the share of every sample in the weights and, with momentum, in the
            velocity.
        condition: A lower bound on the largest condition number of a chunk.
    """

    def __init__(
        self,
        problem: TiledProblem,
        learner: SGD,
        teach: Callable[[int, Delayed, Start], Delayed],
    ) -> None:
        n = len(problem.Y)
        parts = 2 if has_memory(learner) else 1
        learner.rates(n)  # raises for a schedule of the wrong length before any work is done
        self.targets = np.empty_like(problem.Y)
        self._errors = np.empty_like(problem.Y)
        self.shares = np.zeros((parts, *problem.Y.shape), problem.Y.dtype)
        self.condition = 1.0
        self._inherited = np.zeros_like(self.shares)
        self._problem = problem
        self._learner = learner
        self._teach = teach
        # the last one is kept, since mini-batches are requested one after the other
        self._diagonal_tile = lru_cache(maxsize=1)(lambda j: computed(problem.tile(j, j))[0])

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        """Returns the chunk's steps, and what they add to the predictions for later chunks."""
        rows = self._problem.chunks[j]
        start = Start(self._learner, rows.start, self._inherited[:, rows])
        learned = self._teach(j, column[j], start)
        felt = {i: on_tensors(torch.matmul, column[i], learned.deposits) for i in column if i > j}
        return {}, {"learned": learned, "felt": felt}

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        """Applies the chunk's steps to the past shares, and adds the new ones."""
        learned: ChunkSteps = wanted["learned"]
        rows = self._problem.chunks[j]
        errors = as_tensor("errors", learned.errors)
        require_converging(errors, rows.start, self._learner, self._batch_gram)
        self.targets[rows] = learned.targets
        self._errors[rows] = learned.errors
        self.condition = max(self.condition, learned.condition)
        if len(self.shares) == 2:
            past = self.shares[:, : rows.start]
            future = self._inherited[:, rows.stop :]
            for values in (past, future):
                values[:] = np.tensordot(learned.transfer, values, axes=1)
        self.shares[:, rows] = learned.deposits
        for i, felt in wanted["felt"].items():
            self._inherited[:, self._problem.chunks[i]] += felt

    def warn_if_diverging(self) -> None:
        """Warns if the errors have grown far beyond the targets, after the last chunk."""
        error, target = (float(np.abs(values).max()) for values in (self._errors, self.targets))
        if error > FAR_BEYOND * target:
            what = blown_up(error, target)
            warn_of_divergence(what, self._learner, self._batch_gram, len(self.targets))

    def _batch_gram(self, batch: slice) -> Tensor:
        """Returns the kernel of a mini-batch, to explain a divergence."""
        chunks = self._problem.chunks
        j = next(j for j, rows in enumerate(chunks) if batch.start < rows.stop)
        own = slice(batch.start - chunks[j].start, batch.stop - chunks[j].start)
        return as_tensor("K", self._diagonal_tile(j)[own, own])
