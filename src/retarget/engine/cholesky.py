r"""A Cholesky factor that grows: $L L^\top = \gamma I + K$, a few rows of $K$ at a time.

The leading part of a Cholesky factor is the Cholesky factor of the leading part. So the factor of
the whole stream holds the factor of every prefix, and it can be built causally: to append the
samples $n$ behind the past $p$,

    L_np = K_np L_pp^-T                            a triangular solve
    L_nn L_nn^T = gamma I + K_nn - L_np L_np^T     a small factorization

Rows are kept in panels, each as long as the triangle needs: n^2/2 numbers in all, nothing is ever
moved when the stream grows, and nearly all of the work is matrix products.

How many digits of a solution are correct is watched by `condition.GrowingCondition`.
"""

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
from retarget.engine.condition import GrowingCondition, diagonal_roots
from retarget.engine.definite import not_positive_definite
from retarget.engine.triangular import (
    less_product,
    less_square,
    solve_lower,
    solve_lower_right,
    solve_lower_transposed,
)
from retarget.errors import InvalidInputError, NotPositiveDefiniteError
from retarget.state_files import require_shape

# Up to this size a failed factorization is explained by the exact smallest eigenvalue.
EXPLAINED_SIZE = 4096


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
        self._solved = GrowingRows()  # (n, c) L^-1 of the right-hand sides
        self._condition = GrowingCondition()

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

        Returns the new rows of $L^{-1} B$, of which `rhs` (m, c) has those of B; give a right-hand
        side always or never. The probes for the condition are solved for in the same pass.
        """
        probes = self._condition.probes(new.roots)
        rhs = probes[:, :0] if rhs is None else rhs
        together = torch.cat([rhs, probes], dim=1)
        past = together[:0]
        if self.panels:
            past = torch.cat([self._solved.rows, self._condition.probed], dim=1)
        solved, probed = new.solve(together, past).split_with_sizes(
            [rhs.shape[1], probes.shape[1]], dim=1
        )
        if not self.panels or self.panels[-1] is not new.panel:
            if self.panels:
                self.panels[-1].close()
            self.panels.append(new.panel)
        new.panel.used += new.corner.shape[0]
        new.panel.free.append(new.panel.used)
        self._solved.append(solved)
        self._condition.append(new.roots, probed)
        return solved

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent factor that continues from here."""
        fork = shallow(self)
        fork._gram = gram
        # only the last panel is ever changed
        fork.panels = [*self.panels[:-1], *map(shallow, self.panels[-1:])]
        fork._solved = self._solved.fork()
        fork._condition = self._condition.fork()
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
        state = {"panels": len(self.panels), **self._condition.state_dict()}
        if self.panels:
            state["solved"] = self.solved
        for i, panel in enumerate(self.panels):
            state[f"width{i}"] = panel.values.shape[1]
            state[f"left{i}"] = panel.left
            state[f"triangle{i}"] = panel.triangle.tril()  # its upper half is not defined
        return state

    def load_state_dict(self, state: dict[str, Any], columns: int = 0) -> None:
        """Restores a saved state with this many right-hand sides; call it on a new factor."""
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
            self._solved.append(require_shape("solved", state["solved"], n, columns))
        self._condition.load_state_dict(state, n)

    @property
    def condition(self) -> float:
        """Estimates the condition number of H, from a few solves and products with the factor."""
        return self._condition.estimate(self.solve, self.product)

    def warn_once(self) -> bool:
        """Warns once if solutions lose their digits; returns whether it has ever warned."""
        return self._condition.warn_once(lambda: self.condition)

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
