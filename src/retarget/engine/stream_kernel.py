r"""The kernel of a whole stream, in the form that learners passing over it need.

`DenseKernel` stores all of it; `FeatureKernel` computes with explicit features, and stores only
vectors as long as the stream. On $K = \Phi \Phi^\top$ both give the same numbers. Every pass over
the stream is one loop over `StreamKernel.windows`.
"""

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import panel_rows, panels
from retarget.engine.cholesky import GrowingCholesky, factorize
from retarget.engine.dual import DualLearner
from retarget.engine.lesson import diagonal_blocks
from retarget.engine.offline.all import KernelRidge, RecursiveRidge
from retarget.engine.primal import FeatureRows, PrimalLearner
from retarget.engine.settling import in_blocks
from retarget.engine.stream import Window, equal_blocks
from retarget.engine.sums import FeatureSums
from retarget.journal import Kept, KeptTensors
from retarget.learners import SGD
from retarget.row_files import RowFiles, shuffled

# Rows up to which the leave-one-out error is computed on all of them. For the dense kernel, an
# eigendecomposition is about thirty times the work of a Cholesky factorization.
DENSE_LEAVE_ONE_OUT_ROWS = 2000
FEATURE_LEAVE_ONE_OUT_ROWS = 50_000
MOST_ROWS_AT_ONCE = 100_000  # of a stream in files
# Rows of a window with features. A learner computes the kernel within each window, so short windows
# are less work, down to where calling the functions takes longer than what they compute.
SHORT_WINDOW = 128


Advance = Callable[..., None]  # called with the number of rows done, as `PatientBar.advance`


class Offline(NamedTuple):
    """The offline learner.

    Attributes:
        dual: (n, c) its dual coefficients.
        coefficients: The prediction for a query is its row times these.
    """

    dual: Tensor
    coefficients: Tensor


class StreamKernel(ABC):
    """The kernel of a stream of samples X (n, d) with targets Y (n, c), float64.

    `advance` is called with the number of rows of each window, after work on it. With `files`, X
    and Y are mapped files, and so is everything else that has a value for each row.
    """

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        advance: Advance | None = None,
        files: RowFiles | None = None,
    ) -> None:
        self.X = X
        self.Y = Y
        self.files = files
        self._advance = advance

    def __len__(self) -> int:
        return len(self.X)

    def follow_with(self, advance: Advance) -> None:
        """Has `advance` called from now on."""
        self._advance = advance

    def row_values(self, columns: int) -> Tensor:
        """(n, columns) values for each row, which are to be written."""
        if self.files is not None:
            return self.files.tensor((len(self), columns))
        return self.Y.new_empty(len(self), columns)

    def of_rows(self, columns: int, values: Callable[[slice], Tensor]) -> Tensor:
        """(n, columns) values for each row, computed for a range of rows at a time."""
        if self.files is None:
            return values(slice(0, len(self)))
        written = self.row_values(columns)
        step = self.files.journal.step()
        if not step.finished:
            for rows in self.ranges():
                written[rows] = values(rows)
            step.finish()
        return written

    def taken(self, values: Tensor, rows: slice | Tensor) -> Tensor:
        """Some rows of what has a value for each row."""
        if self.files is None or isinstance(rows, slice):
            return values[rows]
        some: Tensor = self.files.taken(values, rows)
        return some

    def ranges(self) -> Iterator[slice]:
        """All rows at once, or in ranges if they are in files."""
        step = max(1, len(self)) if self.files is None else MOST_ROWS_AT_ONCE
        for start in range(0, len(self), step):
            rows = slice(start, min(start + step, len(self)))
            yield rows
            if self.files is not None:
                self.files.advance(rows.stop - rows.start)

    @property
    def target_moments(self) -> tuple[Tensor, Tensor]:
        """The targets' means and standard deviations (c,)."""
        if self.files is None:
            return self.Y.mean(0), self.Y.std(0, correction=0)
        mean = torch.stack([self.Y[rows].sum(0) for rows in self.ranges()]).sum(0) / len(self)
        squares = [(self.Y[rows] - mean).square().sum(0) for rows in self.ranges()]
        return mean, (torch.stack(squares).sum(0) / len(self)).sqrt()

    def windows(
        self,
        block_size: int,
        order: Tensor | None = None,
        least: int | None = None,
        keeping: Sequence[Kept] | None = None,
    ) -> Iterator[Window]:
        """The stream in windows of whole blocks, perhaps in another order of (some of) its rows.

        A last, shorter block is a window of its own. The others have at least so many rows, by
        default as many as suit online learners. With `keeping`, all that the work on a window
        changes beside values for each row, a pass over files that was interrupted goes on where it
        was; without, it begins again.
        """
        least = self.online_rows if least is None else least
        stop = len(self) if order is None else len(order)
        for rows, size in self._ranges(block_size, stop, least, keeping):
            samples = rows if order is None else order[rows]
            yield Window(rows, samples, size, self.panel(rows, order), self.Y[samples])

    @property
    def online_rows(self) -> int:
        """How many rows of a window suit online learners."""
        return panel_rows(self.X.device)

    @property
    def offline_rows(self) -> int:
        """How many rows of a window suit `offline_learner`."""
        return panel_rows(self.X.device)

    def _ranges(
        self,
        block_size: int,
        stop: int | None = None,
        least: int | None = None,
        keeping: Sequence[Kept] | None = None,
    ) -> Iterator[tuple[slice, int]]:
        device = self.X.device
        stop = len(self) if stop is None else stop
        ranges = equal_blocks(0, stop, block_size, "corrected", device, least)
        for rows, size in ranges if keeping is None else self._not_done(ranges, keeping):
            yield rows, size
            self._done(rows.stop - rows.start)

    def _not_done(
        self, ranges: Iterable[tuple[slice, int]], keeping: Sequence[Kept]
    ) -> Iterator[tuple[slice, int]]:
        """Ranges of a pass, without those of files that were done before an interruption."""
        if self.files is None:
            yield from ranges
            return
        step = self.files.journal.step(keeping)
        left = iter(ranges)
        before = sum(rows.stop - rows.start for rows, _ in itertools.islice(left, step.done))
        if before and self._advance is not None:
            self._advance(before, earlier=True)
        for rows, size in left:
            yield rows, size
            step.advance()
        if not step.finished:
            step.finish()

    def _done(self, rows: int) -> None:
        """Notes that work on so many rows is done."""
        if self._advance is not None:
            self._advance(rows)
        if self.files is not None:
            self.files.advance(rows)

    def spread_rows(self, most: int) -> Tensor:
        """Positions of at most this many rows, evenly spaced over the stream."""
        last = len(self) - 1
        count = min(len(self), most)
        return torch.linspace(0, last, count, dtype=torch.float64, device="cpu").round().long()

    def mean_diagonal(self) -> float:
        """The mean of k(x, x); 1 if all of them are 0."""
        return sum(float(block.sum()) for block in self.blocks(1)) / len(self) or 1.0

    def predict(self, X: Tensor, coefficients: Tensor) -> Tensor:
        """(m, c) predictions for samples outside the stream."""
        # into one array: small pieces between large temporaries would keep these from being freed
        predictions = coefficients.new_empty(len(X), coefficients.shape[1])
        for rows in panels(len(X), 1, self.X.device):
            torch.mm(self.query(X[rows]), coefficients, out=predictions[rows])
        return predictions

    @abstractmethod
    def of(self, X: Tensor, Y: Tensor) -> Self:
        """The same kernel, of another stream."""

    @abstractmethod
    def part(self, rows: slice | Tensor) -> Self:
        """The kernel of some rows of the stream, in its order."""

    @abstractmethod
    def shuffled(self, rng: np.random.Generator) -> Self:
        """The same stream in a random order, of rows that are in files."""

    @abstractmethod
    def dense(self, rows: Tensor) -> "DenseKernel":
        """The kernel matrix of some rows, which must be few."""

    @abstractmethod
    def learner(self, learner: SGD) -> Any:
        """A learner before its first sample: a `DualLearner`, or a `PrimalLearner`."""

    @abstractmethod
    def panel(self, rows: slice, order: Tensor | None = None) -> Any:
        """The input of a learner's window for these samples, in this (or another) order."""

    @abstractmethod
    def offline_learner(self, gamma: float) -> KernelRidge | RecursiveRidge:
        """An offline learner before its first sample."""

    @abstractmethod
    def query(self, X: Tensor) -> Tensor:
        """What coefficients are multiplied by: (q, n) the kernel of samples, or their features."""

    @abstractmethod
    def queried(self, Q: Tensor, rows: slice, order: Tensor | None = None) -> Any:
        """The input of a learner's `queries`, at the samples of a window; `Q` is from `query`."""

    @abstractmethod
    def offline_predictions(self, Q: Tensor, gamma: float, counts: Sequence[int]) -> list[Tensor]:
        """(q, c) what the offline learners of the first `counts` rows predict, from `query`."""

    @abstractmethod
    def in_stream_order(self, coefficients: Tensor, order: Tensor) -> Tensor:
        """The coefficients of a learner that has seen the samples in another order."""

    @abstractmethod
    def values(self, coefficients: Tensor) -> Tensor:
        """(n, c) the predictions for the stream's own rows."""

    @abstractmethod
    def blocks(self, size: int, keeping: Sequence[Kept] | None = None) -> Iterator[Tensor]:
        """(count, b, b) the kernel within consecutive blocks; a last one may be short.

        `keeping` is as in `windows`.
        """

    @abstractmethod
    def density(self) -> Tensor:
        """(n,) mean similarity of each row to the others."""

    @abstractmethod
    def leave_one_out(self, gammas: Tensor, seed: int) -> tuple[Tensor, int]:
        """(gammas, c) mean squared errors on rows left out, and how many rows those are."""

    @abstractmethod
    def offline(self, gamma: float, weights: Tensor | None = None) -> Offline:
        """The offline learner on the whole stream, perhaps with weights (n,) above 0."""

    @abstractmethod
    def later(
        self, C: Tensor, parts: Tensor, count: int, batch: int, keeping: Sequence[Kept] = ()
    ) -> Iterator[tuple[slice, Tensor]]:
        """What rows learned later add to each row, by the part of the stream that they belong to.

        Yields rows and their (m, count, c) sums of k(x_i, x_j) C_j over the rows j of later steps;
        `parts` (n,) holds the part of each row, from 0 to count - 1. `keeping` is as in `windows`.
        """


class DenseKernel(StreamKernel):
    """All pairs of rows in memory, n x n: the exact method."""

    def __init__(
        self, kernel: Callable[..., Tensor], X: Tensor, Y: Tensor, advance: Advance | None = None
    ) -> None:
        super().__init__(X, Y, advance)
        self._kernel = kernel
        self.K = kernel(X).to(torch.float64)
        self._factor: GrowingCholesky | None = None

    def of(self, X: Tensor, Y: Tensor) -> Self:
        """The matrix of another stream."""
        return type(self)(self._kernel, X, Y)

    def part(self, rows: slice | Tensor) -> Self:
        """A part of the matrix, copied unless the rows are consecutive."""
        part = copy.copy(self)
        part.X = self.X[rows]
        part.Y = self.Y[rows]
        part._factor = part._advance = None
        if isinstance(rows, slice):
            part.K = self.K[rows, rows]
            return part
        part.K = self.K.new_empty(len(rows), len(rows))
        for some in panels(len(rows), 1, self.K.device):  # never a copy of whole rows of all
            part.K[some] = self._entries(rows[some], rows)
        return part

    def _entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The kernel of some samples and others; NumPy gathers columns in a quarter of the time."""
        of_rows = self.K[rows]
        if of_rows.device.type != "cpu":
            return of_rows[:, columns]
        return torch.from_numpy(of_rows.numpy()[:, columns.numpy()])

    def shuffled(self, rng: np.random.Generator) -> Self:
        """Not for a matrix, which is too large for a stream in files."""
        raise NotImplementedError("the kernel of a stream in files is computed by features")

    def dense(self, rows: Tensor) -> "DenseKernel":
        """The same as `part`."""
        return self.part(rows)

    @property
    def offline_rows(self) -> int:
        """Many: products of larger panels of the Cholesky factor are quicker."""
        return 2 * panel_rows(self.X.device)

    def learner(self, learner: SGD) -> DualLearner:
        """A learner in dual form."""
        return DualLearner(learner, capacity=len(self))

    def panel(self, rows: slice, order: Tensor | None = None) -> Tensor:
        """(m, stop) the kernel of these samples against all before and themselves."""
        if order is None:
            return self.K[rows, : rows.stop]
        return self._entries(order[rows], order[: rows.stop])

    def in_stream_order(self, coefficients: Tensor, order: Tensor) -> Tensor:
        """Dual coefficients belong to rows: each returns to its row."""
        placed = torch.empty_like(coefficients)
        placed[order] = coefficients
        return placed

    def query(self, X: Tensor) -> Tensor:
        """(q, n) the kernel of samples against the stream."""
        return self._kernel(X, self.X).to(torch.float64)

    def queried(self, Q: Tensor, rows: slice, order: Tensor | None = None) -> Tensor:
        """(q, stop) their kernel against all rows before and in the window."""
        return Q[:, : rows.stop] if order is None else Q[:, order[: rows.stop]]

    def offline_predictions(self, Q: Tensor, gamma: float, counts: Sequence[int]) -> list[Tensor]:
        """From the leading parts of one Cholesky factor."""
        factor = self._factor_of(gamma)
        return [Q[:, :count] @ factor.solve(self.Y[:count]) for count in counts]

    def values(self, coefficients: Tensor) -> Tensor:
        """The kernel matrix times the coefficients."""
        return self.K @ coefficients

    def blocks(self, size: int, keeping: Sequence[Kept] | None = None) -> Iterator[Tensor]:
        """The diagonal blocks of the kernel matrix."""
        for rows, count in self._ranges(size):
            yield diagonal_blocks(self.K[rows, rows], count)

    def density(self) -> Tensor:
        """Means of the kernel's rows without the diagonal."""
        return (self.K.sum(1) - self.K.diagonal()) / max(1, len(self) - 1)

    def leave_one_out(self, gammas: Tensor, seed: int) -> tuple[Tensor, int]:
        r"""From one eigendecomposition $K = U S U^\top$, of a random sample if there are many rows.

        With $B = (\gamma I + K)^{-1}$ and $A = B Y$ the error on row $i$ of the learner that has
        not seen it is $A_i / B_{ii}$.
        """
        n = min(len(self), DENSE_LEAVE_ONE_OUT_ROWS)
        K = self.K
        Y = self.Y
        if n < len(self):
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(self), generator=generator, device="cpu")[:n].sort().values
            K = K[chosen][:, chosen]
            Y = Y[chosen]
        S, U = torch.linalg.eigh(K)
        shrink = 1 / (S.clamp(min=0)[:, None] + gammas)
        inverse_diagonal = U.square() @ shrink  # (n, gammas)
        A = torch.tensordot(U, shrink[:, :, None] * (U.mT @ Y)[:, None, :], dims=1)
        return (A / inverse_diagonal[:, :, None]).square().mean(0), n

    def offline_learner(self, gamma: float) -> KernelRidge:
        """One with a growing Cholesky factor, which is kept for `offline`."""
        ridge = KernelRidge(gamma, lambda rows: self.K[rows, rows])
        self._factor = ridge.factor
        return ridge

    def offline(self, gamma: float, weights: Tensor | None = None) -> Offline:
        r"""From the Cholesky factor, which an `offline_learner` may have computed already.

        With weights $D$ it is $A = D^{1/2} (\gamma I + D^{1/2} K D^{1/2})^{-1} D^{1/2} Y$.
        """
        if weights is not None:
            root = weights.sqrt()[:, None]
            scaled = factorize(root * self.K * root.mT, gamma)
            dual = root * scaled.solve(root * self.Y)
            return Offline(dual, dual)
        dual = self._factor_of(gamma).solve(self.Y)
        return Offline(dual, dual)

    def _factor_of(self, gamma: float) -> GrowingCholesky:
        """The Cholesky factor of gamma I + K, kept for the next time."""
        if self._factor is None or self._factor.gamma != gamma or len(self._factor) < len(self):
            self._factor = factorize(self.K, gamma)
        self._factor.warn_once()
        return self._factor

    def later(
        self, C: Tensor, parts: Tensor, count: int, batch: int, keeping: Sequence[Kept] = ()
    ) -> Iterator[tuple[slice, Tensor]]:
        """Products with the part of K above the diagonal blocks."""
        D = _by_part(C, parts, count)
        for rows, _ in self._ranges(batch):
            total = self.K[rows, rows.stop :] @ D[rows.stop :]
            total += _in_later_steps(self.K[rows, rows], batch) @ D[rows]
            yield rows, total.reshape(len(total), count, -1)


class FeatureKernel(StreamKernel):
    r"""$K = \Phi \Phi^\top$, never formed.

    Stores the normal matrix $\Phi^\top \Phi$, the moments $\Phi^\top Y$ and the sum of the
    features; also the features themselves, rounded to single precision, if they fit into `room`
    bytes (0 to keep them exact). Otherwise they are computed again in every pass. All else is
    computed in double precision. `features` is a function from samples to features.
    """

    def __init__(
        self,
        features: Any,
        X: Tensor,
        Y: Tensor,
        advance: Advance | None = None,
        room: int = 0,
        files: RowFiles | None = None,
        known: Tensor | None = None,
    ) -> None:
        super().__init__(X, Y, advance, files)
        self.map = features
        self._room = room
        size = features(X[:1]).shape[1]
        fits = files is None and 4 * len(X) * size <= room
        rows_kept = len(X) if fits else 0
        kept = X.new_empty((rows_kept, size), dtype=torch.float32) if known is None else known
        self._kept = X.new_empty(0)  # until all of them are
        self._sums = FeatureSums.nothing(size, Y.shape[1], X)
        self._sum = X.new_zeros(size)
        self._diagonal = self.row_values(1)[:, 0]
        sums = KeptTensors(normal=self._sums.normal, moment=self._sums.moment, sum=self._sum)
        for rows, _ in self._ranges(1, keeping=[sums]):
            if known is None:
                Phi = self.query(X[rows])
                if len(kept):
                    kept[rows] = Phi
            if len(kept):
                Phi = kept[rows].double()
            self._sums.add(Phi, Y[rows])
            self._sum += Phi.sum(0)
            self._diagonal[rows] = Phi.square().sum(1)
        self._kept = kept

    def _features(self, samples: slice | Tensor) -> Tensor:
        if len(self._kept):
            return self._kept[samples].double()
        return self.query(self.taken(self.X, samples))

    @property
    def feature_count(self) -> int:
        """How many features there are."""
        return len(self._sum)

    @property
    def online_rows(self) -> int:
        """Few: the kernel of a window is computed from its features."""
        return min(SHORT_WINDOW, panel_rows(self.X.device))

    @property
    def offline_rows(self) -> int:
        """Half as many as features: a factorization for each window is little then."""
        return max(panel_rows(self.X.device), self.feature_count // 2)

    def of(self, X: Tensor, Y: Tensor) -> Self:
        """The same features of another stream."""
        return type(self)(self.map, X, Y, room=self._room)

    def shuffled(self, rng: np.random.Generator) -> Self:
        """The same features, and the same sums of them."""
        if self.files is None:
            raise ValueError("only a stream in files is copied; another is gone over in any order")
        arrays = [self.X.numpy(), self.Y.numpy(), self._diagonal.numpy()]
        same = copy.copy(self)
        copies = shuffled(self.files, arrays, rng)
        same.X, same.Y, same._diagonal = (torch.from_numpy(array) for array in copies)
        return same

    def part(self, rows: slice | Tensor) -> Self:
        """The same features of some rows, computed again unless they are kept."""
        known = self._kept[rows] if len(self._kept) else None
        X = self.taken(self.X, rows)
        return type(self)(self.map, X, self.taken(self.Y, rows), room=self._room, known=known)

    def dense(self, rows: Tensor) -> DenseKernel:
        """Inner products of the features."""
        Phi = self._features(rows)
        X = self.taken(self.X, rows)
        return DenseKernel(lambda *_: Phi @ Phi.mT, X, self.taken(self.Y, rows))

    def learner(self, learner: SGD) -> PrimalLearner:
        """A learner in feature space."""
        return PrimalLearner(learner)

    def panel(self, rows: slice, order: Tensor | None = None) -> FeatureRows:
        """The features of these samples."""
        return FeatureRows(self._features(rows if order is None else order[rows]))

    def in_stream_order(self, coefficients: Tensor, order: Tensor) -> Tensor:
        """Weights belong to features: the order of the samples does not matter."""
        return coefficients

    def query(self, X: Tensor) -> Tensor:
        """(q, features) the features of samples."""
        features: Tensor = self.map(X).to(X)
        return features

    def queried(self, Q: Tensor, rows: slice, order: Tensor | None = None) -> FeatureRows:
        """Their features, whatever the window."""
        return FeatureRows(Q)

    def offline_predictions(self, Q: Tensor, gamma: float, counts: Sequence[int]) -> list[Tensor]:
        """From the normal equations, less what the rows behind each count added to them."""
        sums = self._sums.copy()
        learned = len(self)
        predictions: dict[int, Tensor] = {}
        for count in sorted(set(counts), reverse=True):
            for rows in panels(learned - count, 1, self.X.device):
                later = slice(count + rows.start, count + rows.stop)
                sums.add(self._features(later), self.Y[later], sign=-1)
            learned = count
            predictions[count] = Q @ sums.weights(gamma)
        return [predictions[count] for count in counts]

    def values(self, coefficients: Tensor) -> Tensor:
        """Features times weights."""
        values = self.row_values(coefficients.shape[1])
        for rows, _ in self._ranges(1, keeping=()):
            torch.mm(self._features(rows), coefficients, out=values[rows])
        return values

    def blocks(self, size: int, keeping: Sequence[Kept] | None = None) -> Iterator[Tensor]:
        """Inner products within each block."""
        for rows, count in self._ranges(size, keeping=keeping):
            if size == 1:
                yield self._diagonal[rows, None, None]
            else:
                Phi = in_blocks(self._features(rows), count)
                yield Phi @ Phi.mT

    def density(self) -> Tensor:
        """Features times their sum, minus each row's own part."""
        values = self.values(self._sum[:, None])[:, 0]
        others = max(1, len(self) - 1)
        return self.of_rows(
            1, lambda rows: ((values[rows] - self._diagonal[rows]) / others)[:, None]
        )[:, 0]

    def leave_one_out(self, gammas: Tensor, seed: int) -> tuple[Tensor, int]:
        r"""From one eigendecomposition of the normal matrix; at evenly spaced rows, if many.

        The error on row $i$ of the learner that has not seen it is its residual over $1 - H_{ii}$,
        with $H = \Phi (\gamma I + \Phi^\top \Phi)^{-1} \Phi^\top$.
        """
        chosen = self.spread_rows(FEATURE_LEAVE_ONE_OUT_ROWS)
        S, U = torch.linalg.eigh(self._sums.normal)
        shrink = 1 / (S.clamp(min=0)[:, None] + gammas)  # (features, gammas)
        weights = shrink[:, :, None] * (U.mT @ self._sums.moment)[:, None, :]
        total = self.Y.new_zeros(len(gammas), self.Y.shape[1])
        for some in panels(len(chosen), 1, self.X.device):
            Z = self._features(chosen[some]) @ U
            Y = self.taken(self.Y, chosen[some])
            residual = Y[:, None] - torch.tensordot(Z, weights, dims=1)
            kept = 1 - Z.square() @ shrink
            total += (residual / kept[:, :, None]).square().sum(0)
        return total / len(chosen), len(chosen)

    def offline_learner(self, gamma: float) -> RecursiveRidge:
        """Recursive least squares."""
        return RecursiveRidge(gamma)

    def offline(self, gamma: float, weights: Tensor | None = None) -> Offline:
        r"""From the normal equations; the dual coefficients are $(Y - \Phi \theta) / \gamma$.

        With weights, each row's coefficients are multiplied by its weight.
        """
        sums = self._sums
        if weights is not None:
            sums = FeatureSums.nothing(self.feature_count, self.Y.shape[1], self.X)
            for rows, _ in self._ranges(1):
                root = weights[rows, None].sqrt()
                sums.add(root * self._features(rows), root * self.Y[rows])
        theta = sums.weights(gamma)
        values = self.values(theta)

        def dual(rows: slice) -> Tensor:
            of_rows = (self.Y[rows] - values[rows]) / gamma
            return of_rows if weights is None else weights[rows, None] * of_rows

        return Offline(self.of_rows(self.Y.shape[1], dual), theta)

    def later(
        self, C: Tensor, parts: Tensor, count: int, batch: int, keeping: Sequence[Kept] = ()
    ) -> Iterator[tuple[slice, Tensor]]:
        """From the last window to the first, with the sum over all later rows of each part."""
        later = C.new_zeros(self.feature_count, count * C.shape[1])
        ranges = equal_blocks(0, len(self), batch, "corrected", self.X.device, self.online_rows)
        backwards = reversed(list(ranges))
        for rows, _ in self._not_done(backwards, [*keeping, KeptTensors(later=later)]):
            seen = self.panel(rows)
            D = _by_part(C[rows], parts[rows], count)
            total = seen.features @ later
            total += _in_later_steps(seen.gram, batch) @ D
            later.addmm_(seen.features.mT, D)
            yield rows, total.reshape(len(total), count, -1)
            self._done(rows.stop - rows.start)


def _by_part(C: Tensor, parts: Tensor, count: int) -> Tensor:
    """(m, count * c) the coefficients, each row's in the columns of its part."""
    spread = C.new_zeros(len(C), count, C.shape[1])
    spread[torch.arange(len(C), device=C.device), parts] = C
    return spread.flatten(1)


def _in_later_steps(gram: Tensor, batch: int) -> Tensor:
    """(m, m) a window's kernel if the column is learned in a later step than the row, else 0."""
    step = torch.arange(len(gram), device=gram.device) // batch
    return gram * (step[:, None] < step)
