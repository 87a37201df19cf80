r"""A Cholesky factor that grows: $L L^\top = \gamma I + K$, a few rows of $K$ at a time.

The leading part of a Cholesky factor is the Cholesky factor of the leading part. So the factor of
the whole stream holds the factor of every prefix, and it can be built causally: to append the
samples $n$ behind the past $p$,

    L_np = K_np L_pp^-T                            a triangular solve
    L_nn L_nn^T = gamma I + K_nn - L_np L_np^T     a small factorization

Rows are kept in panels, each as long as the triangle needs: n^2/2 numbers in all, nothing is ever
moved when the stream grows, and nearly all of the work is matrix products.

How many digits of a solution are correct depends on the condition number of

    H = D^-1/2 (gamma I + K) D^-1/2        D the diagonal of gamma I + K

and not on that of $\gamma I + K$ itself, which is large already if samples have kernels of very
different sizes (van der Sluis, 1969; Demmel, 1989; Higham, "Accuracy and Stability of Numerical
Algorithms", section 10.1). The computed coefficients $a$ are off by about eps cond(H) in the norm
of $D^{1/2} a$, relative to that norm: each sample counts by its share in the function,
$|a_i| \sqrt{\gamma + k(x_i, x_i)}$. That is the error of which the warnings speak. It is
norm-wise: a sample whose share is a thousandth of the largest may have three digits fewer in its
own coefficient than a warning says, and the function hardly depends on them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import (
    PANEL_ROWS_ELSEWHERE,
    GrowingRows,
    claim,
    panel_rows,
    panels,
    require_memory,
    shallow,
)
from retarget.engine.probes import PROBES, random_probes
from retarget.errors import (
    InvalidInputError,
    NotPositiveDefiniteError,
    PrecisionWarning,
    warn_caller,
)
from retarget.state_files import require_shape

MEANINGFUL_DIGITS = 2.0
SLACK = 1e3  # the probes may underestimate a condition so much, with a probability of 6e-4
FEW_ROWS = 64  # up to this many, skipping half of a square takes longer than computing it
ITERATIONS = 5  # of the estimate of a norm; usually two or three are enough


def expected_digits(condition: float, dtype: torch.dtype) -> float:
    """Correct decimal digits of the solution of a system with this condition number."""
    return -math.log10(torch.finfo(dtype).eps * max(condition, 1.0))


def inverse_norm(solve: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    r"""Estimates $\|M^{-1}\|_1$ of symmetric matrices from a few solves with them.

    Hager's method with Higham's safeguard ("FORTRAN codes for estimating the one-norm", 1988; also
    LAPACK's `dlacn2`): climbs from column to column of the inverse, each the steepest one seen from
    the last. A lower bound, hardly ever more than three times too small. `like` has the shape
    (..., n, n) of the matrices. From products instead of solves, it is the norm of M.
    """
    n = like.shape[-1]
    alternating = 1 + torch.arange(n, dtype=like.dtype, device=like.device) / max(1, n - 1)
    alternating[1::2] *= -1
    columns = torch.stack([torch.full_like(alternating, 1 / n), alternating], dim=1)
    start = solve(columns.expand(*like.shape[:-2], n, 2).clone())
    v = start[..., :1]
    safeguard = 2 * start[..., 1].abs().sum(-1) / (3 * n)
    norm = v.abs().sum((-2, -1))
    for _ in range(ITERATIONS):
        slope = solve(torch.where(v < 0, -1.0, 1.0).to(v))
        steepest = slope.abs().argmax(dim=-2, keepdim=True)
        v = solve(torch.zeros_like(v).scatter_(-2, steepest, 1.0))
        grown = torch.maximum(norm, v.abs().sum((-2, -1)))
        if bool((grown <= norm).all()):
            break
        norm = grown
    return torch.maximum(norm, safeguard)


def scaled_condition(
    roots: Tensor, solve: Callable[[Tensor], Tensor], product: Callable[[Tensor], Tensor]
) -> Tensor:
    """(...) estimates cond(H) of matrices M from `solve` and `product`, by M^-1 and by M.

    `roots` (..., n, 1) are the square roots of their diagonals.
    """
    like = roots.expand(*roots.shape[:-1], roots.shape[-2])
    inverse = inverse_norm(lambda rhs: roots * solve(roots * rhs), like)
    return inverse * inverse_norm(lambda rhs: product(rhs / roots) / roots, like)


def diagonal_roots(K: Tensor, gamma: float = 0.0) -> Tensor:
    """(..., n, 1) the square roots of the diagonal of gamma I + K.

    Of |K|, so that a negative entry, of which rounding is left when gamma is added, counts fully.
    """
    return (K.diagonal(dim1=-2, dim2=-1).abs() + gamma).sqrt()[..., None]


def probed_condition(probed: Tensor) -> float:
    r"""A bound on the largest cond(H), at most SLACK times too small but for very bad luck.

    The probes $x$ as `probed` $= L^{-1} D^{1/2} x$ (..., n, PROBES) have the squared norms
    $x^\top H^{-1} x$, about the sum of the eigenvalues of $H^{-1}$. Those of H add up to n.
    """
    norm = float(torch.linalg.vector_norm(probed, dim=-2).amax())
    return probed.shape[-2] * norm * norm


def plenty(dtype: torch.dtype) -> float:
    """A probed condition below which digits are plenty, even if it is SLACK times too small."""
    return 10**-MEANINGFUL_DIGITS / torch.finfo(dtype).eps / SLACK


def matrix_condition(M: Tensor, factor: Tensor) -> float:
    """Estimates cond(H) of a matrix from its Cholesky factor; 1 if digits are plenty."""
    roots = diagonal_roots(M)
    probed = solve_lower(factor, roots * random_probes(0, roots))
    if probed_condition(probed) < plenty(M.dtype):
        return 1.0
    condition = scaled_condition(roots, lambda rhs: torch.cholesky_solve(rhs, factor), M.matmul)
    return float(condition)


def warn_if_meaningless(name: str, condition: float, dtype: torch.dtype) -> bool:
    """Warns if fewer than two digits of a solution can be correct; returns whether it did."""
    digits = expected_digits(condition, dtype)
    if digits >= MEANINGFUL_DIGITS:
        return False
    precision = str(dtype).removeprefix("torch.")
    advice = "" if dtype == torch.float64 else "compute in float64, or "
    warn_caller(
        f"{name} has a condition number of about {condition:.1g}: in {precision} expect "
        f"{max(digits, 0.0):.1f} correct digits at best; {advice}raise gamma or ridge",
        PrecisionWarning,
    )
    return True


# Up to this size a failed factorization is explained by the exact smallest eigenvalue.
EXPLAINED_SIZE = 4096


# Triangular solves, by the triangle that is stored: the other half is never read.
def solve_lower(L: Tensor, rhs: Tensor, unit_diagonal: bool = False) -> Tensor:
    r"""$L^{-1} B$."""
    x: Tensor = torch.linalg.solve_triangular(L, rhs, upper=False, unitriangular=unit_diagonal)
    return x


def solve_lower_transposed(L: Tensor, rhs: Tensor) -> Tensor:
    r"""$L^{-\top} B$."""
    x: Tensor = torch.linalg.solve_triangular(L.mT, rhs, upper=True)
    return x


def solve_lower_right(L: Tensor, rhs: Tensor) -> Tensor:
    r"""$B L^{-\top}$."""
    rows, columns = rhs.shape[-2:]
    if rhs.device.type == "cpu" or 4 * rows < columns:
        # as rows of B are in one piece, this form copies less, and a second core helps
        whole = L.is_contiguous() or L.mT.is_contiguous()
        return solve_lower(L if whole else L.contiguous(), rhs.mT).mT
    x: Tensor = torch.linalg.solve_triangular(L.mT, rhs, upper=True, left=False)
    return x


def less_square(M: Tensor, part: Tensor) -> Tensor:
    r"""$M - A A^\top$ as a new matrix; above the diagonal, a part of it may be M."""
    if M.shape[0] <= FEW_ROWS:
        return torch.addmm(M, part, part.mT, alpha=-1)
    half = M.shape[0] // 2
    result = M.clone()
    result[:half, :half].addmm_(part[:half], part[:half].mT, alpha=-1)
    result[half:].addmm_(part[half:], part.mT, alpha=-1)
    return result


def less_product(M: Tensor, left: Tensor, right: Tensor) -> Tensor:
    r"""$M - A B^\top$."""
    return torch.addmm(M, left, right.mT, alpha=-1) if left.shape[1] else M


@dataclass(eq=False)
class _Panel:
    """Consecutive rows of L, perhaps not all in use, without the zeros to their right.

    Forks share the arrays: the first one that writes goes on in them, and the others take copies.
    """

    start: int
    values: Tensor  # (room, start + room); (room, start) if all rows come at once
    used: int = 0
    free: list[int] = field(default_factory=lambda: [0])  # the first row that no fork has
    closed: Tensor | None = None  # the triangle in one piece, if there will be no more rows

    def claim(self) -> None:
        """Prepares to write behind the rows in use."""
        if not claim(self.free, self.used):
            self.values = self.values.clone()
            self.free = []

    def close(self) -> None:
        """Makes solves faster, once there will be no more rows."""
        if self.closed is None:
            self.closed = self.triangle.contiguous()

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.used)

    @property
    def room(self) -> int:
        return self.values.shape[0]

    @property
    def left(self) -> Tensor:
        return self.values[: self.used, : self.start]

    @property
    def triangle(self) -> Tensor:
        return self.values[: self.used, self.rows] if self.closed is None else self.closed


@dataclass(frozen=True)
class NewRows:
    """Rows computed for L that are not part of it yet."""

    panel: _Panel
    past: Tensor  # (m, n)
    corner: Tensor  # (m, m)
    roots: Tensor  # (m, 1) of their diagonal entries in gamma I + K

    def solve(self, rhs: Tensor, solved: Tensor) -> Tensor:
        """The new rows of $L^{-1} B$, given those before them."""
        columns = solved.mT.contiguous()  # the product with few columns takes half the time
        return solve_lower(self.corner, less_product(rhs, self.past, columns))


class GrowingCholesky:
    """The Cholesky factor of gamma I + K for the stream so far.

    Args:
        gamma: The number added to the diagonal of K.
        gram: Returns the kernel of a range of the stream; used to explain a failure.
        roomy: Give panels room for many rows, because few will be appended at a time.
    """

    def __init__(self, gamma: float, gram: Callable[[slice], Tensor], roomy: bool = False) -> None:
        self.gamma = gamma
        self._gram = gram
        self.panels: list[_Panel] = []
        self._roomy = roomy
        self._roots = GrowingRows()  # (n, 1) of the diagonal of gamma I + K
        self._solved = GrowingRows()  # (n, c) L^-1 of the right-hand sides
        self._probed = GrowingRows()  # (n, PROBES) L^-1 of the probes
        self._estimated = 0  # rows at the last estimate of the condition
        self._warned = False

    def __len__(self) -> int:
        return self.panels[-1].rows.stop if self.panels else 0

    @property
    def solved(self) -> Tensor:
        r"""(n, c) the rows of $L^{-1} B$ so far."""
        return self._solved.rows

    def extend(self, K_rows: Tensor) -> NewRows:
        """Computes new rows of L from the samples' kernel (m, n + m) to the past and themselves.

        `commit` makes them part of the factor; otherwise they are dropped.
        """
        n = len(self)
        m = K_rows.shape[0]
        panel = self._panel_for(K_rows)
        panel.claim()
        solved = panel.values[panel.used : panel.used + m, :n]
        for past in self.panels:
            columns = past.rows
            rhs = less_product(K_rows[:, columns], solved[:, : past.start], past.left)
            solved[:, columns] = solve_lower_right(past.triangle, rhs)
        own = K_rows[:, n:]
        roots = diagonal_roots(own, self.gamma)
        schur = less_square(own, solved)
        schur.diagonal().add_(self.gamma)
        corner, info = torch.linalg.cholesky_ex(schur)
        if info.item():
            raise self._not_positive_definite(schur, n + int(info) - 1)
        del schur  # a block may be the whole stream: two matrices of its size at a time
        if m == panel.room:
            panel.closed = corner = corner.contiguous()
        else:
            panel.values[panel.used : panel.used + m, n : n + m] = corner
        return NewRows(panel, solved, corner, roots)

    def commit(self, new: NewRows, rhs: Tensor | None = None) -> Tensor:
        r"""Makes the rows that `extend` computed part of the factor.

        Returns the new rows of $L^{-1} B$, of which `rhs` (m, c) has those of B. The probes for the
        condition are solved for together with it; give a right-hand side always or never.
        """
        probes = new.roots * random_probes(len(self), new.roots)
        together = probes if rhs is None else torch.cat([rhs, probes], dim=1)
        both = new.solve(together, self._solved_and_probed() if self.panels else together[:0])
        solved = both[:, :-PROBES]
        probed = both[:, -PROBES:]
        if not self.panels or self.panels[-1] is not new.panel:
            if self.panels:
                self.panels[-1].close()
            self.panels.append(new.panel)
        new.panel.used += new.corner.shape[0]
        new.panel.free.append(new.panel.used)
        self._roots.append(new.roots)
        self._solved.append(solved)
        self._probed.append(probed)
        return solved

    def _solved_and_probed(self) -> Tensor:
        return torch.cat([self._solved.rows, self._probed.rows], dim=1)

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent factor that continues from here."""
        fork = shallow(self)
        fork._gram = gram
        # only the last panel is ever changed
        fork.panels = [*self.panels[:-1], *map(shallow, self.panels[-1:])]
        fork._roots = self._roots.fork()
        fork._solved = self._solved.fork()
        fork._probed = self._probed.fork()
        return fork

    def _leading(self, count: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The panels of the factor of the first samples: rows, what is left of them, triangle."""
        for panel in self.panels:
            used = min(panel.used, count - panel.start)
            if used > 0:
                rows = slice(panel.start, panel.start + used)
                yield rows, panel.left[:used], panel.triangle[:used, :used]

    def solve_lower(self, rhs: Tensor) -> Tensor:
        r"""$L^{-1} B$; of the leading part, if B has fewer rows."""
        x = rhs.clone()
        for rows, left, triangle in self._leading(len(rhs)):
            x[rows] = solve_lower(triangle, x[rows] - left @ x[: rows.start])
        return x

    def solve(self, rhs: Tensor) -> Tensor:
        r"""$(\gamma I + K)^{-1} B$; of the leading part, if B has fewer rows."""
        return self.solve_upper(self.solve_lower(rhs))

    def solve_upper(self, rhs: Tensor) -> Tensor:
        r"""$L^{-\top} B$; of the leading part, if B has fewer rows."""
        x = rhs.clone()
        for rows, left, triangle in reversed(list(self._leading(len(rhs)))):
            x[rows] = solve_lower_transposed(triangle, x[rows])
            x[: rows.start] -= left.mT @ x[rows]
        return x

    def product(self, x: Tensor) -> Tensor:
        r"""$(\gamma I + K) X$, from the factor alone; of the leading part, if X has fewer rows."""
        half = torch.zeros_like(x)  # L^T X
        for rows, left, triangle in self._leading(len(x)):
            half[rows] += triangle.tril().mT @ x[rows]
            half[: rows.start] += left.mT @ x[rows]
        result = torch.empty_like(x)
        for rows, left, triangle in self._leading(len(x)):
            result[rows] = triangle.tril() @ half[rows]
            result[rows] += left @ half[: rows.start]
        return result

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        state: dict[str, Any] = {
            "panels": len(self.panels),
            "estimated": self._estimated,
            "warned": self._warned,
        }
        if self.panels:
            state |= {"roots": self._roots.rows, "solved": self._solved_and_probed()}
        for i, panel in enumerate(self.panels):
            state[f"width{i}"] = panel.values.shape[1]
            state[f"left{i}"] = panel.left
            state[f"triangle{i}"] = panel.triangle.tril()  # its upper half is not defined
        return state

    def load_state_dict(self, state: dict[str, Any], columns: int = 0) -> None:
        """Restores a saved state with this many right-hand sides; call it on a new factor."""
        self._estimated = int(state["estimated"])
        self._warned = bool(state["warned"])
        n = 0
        for i in range(state["panels"]):
            left = state[f"left{i}"]
            triangle = state[f"triangle{i}"]
            width = state[f"width{i}"]
            used = len(left)
            require_shape(f"left{i}", left, used, n)
            require_shape(f"triangle{i}", triangle, used, used)
            room = width - n or used
            if not 0 < used <= room <= max(used, PANEL_ROWS_ELSEWHERE):
                raise InvalidInputError(
                    f"width{i} is {width}, but {used} rows start at {n}; expected at least 1 row, "
                    "and room for all of them in one panel"
                )
            # strides and alignment as before, because rounding depends on them
            panel = _Panel(n, left.new_empty(room, width), used, [used])
            panel.left.copy_(left)
            if width > n:
                panel.triangle.copy_(triangle)
            if width == n or i + 1 < state["panels"]:
                panel.closed = triangle.clone()
            self.panels.append(panel)
            n += used
        if n:
            roots = require_shape("roots", state["roots"], n, 1)
            solved = require_shape("solved", state["solved"], n, PROBES + columns)
            self._roots.append(roots)
            self._solved.append(solved[:, :columns])
            self._probed.append(solved[:, columns:])
            least = float(roots.min())
            if not least > 0:
                raise InvalidInputError(f"roots holds {least:g}; expected numbers above 0")
        if not 0 <= self._estimated <= n:
            raise InvalidInputError(f"estimated is {self._estimated}; expected 0 to {n} rows")

    @property
    def condition(self) -> float:
        """Estimates the condition number of H, from a few solves and products with the factor."""
        if not self.panels:
            return 1.0
        return float(scaled_condition(self._roots.rows, self.solve, self.product))

    def warn_once(self) -> bool:
        """Warns once if solutions lose their digits; returns whether it has ever warned.

        An estimate of the condition costs several times as much as appending a row. It is made
        where the probes leave doubts, and again if the factor has grown by half since the last
        time, or the probes tenfold.
        """
        if not self.panels or self._warned:
            return self._warned
        probed = self._probed.rows
        last = self._estimated
        bound = probed_condition(probed)
        if bound < plenty(probed.dtype):
            return False
        if 2 * len(self) >= 3 * last or not bound < 10 * probed_condition(probed[:last]):
            self._estimated = len(self)
            self._warned = warn_if_meaningless("gamma I + K", self.condition, probed.dtype)
        return self._warned

    def _not_positive_definite(self, schur: Tensor, row: int) -> NotPositiveDefiniteError:
        if row < EXPLAINED_SIZE:
            M = self._gram(slice(0, EXPLAINED_SIZE)).clone()
            M.diagonal().add_(self.gamma)
            return not_positive_definite(M, self.gamma, row)
        # What is enough for the Schur complement S of the rows so far is enough for the whole: if
        # its smallest eigenvalue is negative, x^T M x >= v^T S v >= min eig(S) |x|^2, x = (u, v).
        return not_positive_definite(schur, self.gamma, row)

    def _panel_for(self, K_rows: Tensor) -> _Panel:
        n = len(self)
        m = K_rows.shape[0]
        if self.panels and self.panels[-1].used + m <= self.panels[-1].room:
            return self.panels[-1]
        rows = max(m, panel_rows(K_rows.device)) if self._roomy else m
        require_memory(
            f"the factor of {n + m} samples, grown by {rows} rows,",
            rows * (n + rows),
            K_rows,
            "use a shorter stream, or float32",
        )
        return _Panel(n, K_rows.new_empty(rows, n if rows == m else n + rows))


def factorize(K: Tensor, gamma: float) -> GrowingCholesky:
    """The Cholesky factor of gamma I + K, leaving K as it is."""
    factor = GrowingCholesky(gamma, lambda rows: K[rows, rows])
    for rows in panels(len(K), 1, K.device):
        factor.commit(factor.extend(K[rows, : rows.stop]))
    factor.warn_once()
    return factor


def not_positive_definite(M: Tensor, gamma: float, row: int) -> NotPositiveDefiniteError:
    """Makes the error for a factorization that failed at a row of M, which includes gamma I."""
    deficit, jitter = needed_jitter(M)
    dtype = str(M.dtype).removeprefix("torch.")
    limits = torch.finfo(M.dtype)
    rounding = jitter - deficit
    why = "; expected the Gram matrix of a kernel"
    if deficit <= 10 * rounding:
        largest = rounding / limits.eps / M.shape[-1]
        why = (
            f", which is rounding beside the largest, {largest:.3g}: samples repeat, or gamma is "
            "too small for such a kernel"
        )
    return NotPositiveDefiniteError(
        f"gamma I + K is not positive definite in {dtype}, from row {row} on: its smallest "
        f"eigenvalue is {-deficit:.3g} with gamma = {gamma:g}{why}. "
        f"gamma = {rounded_up(gamma + jitter):g} would do (jitter {jitter:.3g})"
        + ("" if M.dtype == torch.float64 else ", or compute in float64"),
        deficit=deficit,
        jitter=jitter,
    )


def normal_factor(M: Tensor, gamma: float) -> Tensor:
    """The Cholesky factor of a matrix to which gamma I was added."""
    factor, info = torch.linalg.cholesky_ex(M)
    if info.item():
        finite = bool(M.isfinite().all())
        deficit, jitter = needed_jitter(M) if finite else (math.inf, math.inf)
        raise NotPositiveDefiniteError(
            f"the normal equations with gamma = {gamma:g} are not positive definite in "
            f"{str(M.dtype).removeprefix('torch.')}; "
            + (
                f"gamma = {rounded_up(gamma + jitter):g} would do" if finite else "use a larger one"
            ),
            deficit=deficit,
            jitter=jitter,
        )
    result: Tensor = factor
    return result


def rounded_up(value: float) -> float:
    """The next larger number with four digits: a ridge that is rounded down would not do.

    Examples:
        >>> rounded_up(0.0123412), rounded_up(1.0 + 1e-15)
        (0.01235, 1.001)
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 3) if value > 0 else 1.0
    return float(f"{math.ceil(value / step) * step:.4g}")


def needed_jitter(M: Tensor) -> tuple[float, float]:
    """How far M's smallest eigenvalue is below zero, and the shift that makes it factorizable."""
    eigenvalues = torch.linalg.eigvalsh(M.double())
    deficit = max(0.0, -eigenvalues[..., 0].min().item())
    rounding = M.shape[-1] * torch.finfo(M.dtype).eps * eigenvalues[..., -1].max().item()
    return deficit, deficit + rounding
