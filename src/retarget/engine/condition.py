r"""How many digits of a solution of $(\gamma I + K) a = y$ are correct, and a warning if few are.

That depends on the condition number of

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
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import GrowingRows, shallow
from retarget.engine.probes import PROBES, random_probes
from retarget.engine.triangular import solve_lower, symmetric
from retarget.errors import InvalidInputError, PrecisionWarning, warn_caller
from retarget.state_files import require_shape

MEANINGFUL_DIGITS = 2.0
SLACK = 1e3  # the probes may underestimate a condition so much, with a probability of 6e-4
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
    """Estimates cond(H) of a matrix from its Cholesky factor; 1 if digits are plenty.

    Of M, only the lower half counts.
    """
    roots = diagonal_roots(M)
    probed = solve_lower(factor, roots * random_probes(0, roots))
    if probed_condition(probed) < plenty(M.dtype):
        return 1.0
    product = symmetric(M).matmul
    return float(scaled_condition(roots, lambda rhs: torch.cholesky_solve(rhs, factor), product))


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


class GrowingCondition:
    r"""What is known about the condition of H while the factor $L L^\top = \gamma I + K$ grows.

    Random probes are solved for together with the right-hand sides, and cost next to nothing; an
    estimate of the condition costs several times as much as appending a row. It is made where the
    probes leave doubts, and again if the factor has grown by half since the last time, or the
    probes tenfold.
    """

    def __init__(self) -> None:
        self._roots = GrowingRows()  # (n, 1) of the diagonal of gamma I + K
        self._probed = GrowingRows()  # (n, PROBES) L^-1 of the probes
        self._estimated = 0  # rows at the last estimate of the condition
        self._warned = False

    def __len__(self) -> int:
        return len(self._roots)

    @property
    def probed(self) -> Tensor:
        r"""(n, PROBES) $L^{-1}$ of the probes."""
        return self._probed.rows

    def probes(self, roots: Tensor) -> Tensor:
        """(m, PROBES) the right-hand sides for new rows, whose diagonals have these roots."""
        return roots * random_probes(len(self), roots)

    def append(self, roots: Tensor, probed: Tensor) -> None:
        r"""Appends new rows: the roots (m, 1) of their diagonal, and $L^{-1}$ of their probes."""
        self._roots.append(roots)
        self._probed.append(probed)

    def estimate(
        self, solve: Callable[[Tensor], Tensor], product: Callable[[Tensor], Tensor]
    ) -> float:
        """Estimates the condition number, from a few solves and products with the factor."""
        return float(scaled_condition(self._roots.rows, solve, product)) if len(self) else 1.0

    def warn_once(self, estimate: Callable[[], float]) -> bool:
        """Warns once if solutions lose their digits; returns whether it has ever warned."""
        if not len(self) or self._warned:
            return self._warned
        last = self._estimated
        bound = probed_condition(self.probed)
        if bound < plenty(self.probed.dtype):
            return False
        if 2 * len(self) >= 3 * last or not bound < 10 * probed_condition(self.probed[:last]):
            self._estimated = len(self)
            self._warned = warn_if_meaningless("gamma I + K", estimate(), self.probed.dtype)
        return self._warned

    def fork(self) -> Self:
        """Returns an independent one that continues from here."""
        fork = shallow(self)
        fork._roots = self._roots.fork()
        fork._probed = self._probed.fork()
        return fork

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        state: dict[str, Any] = {"estimated": self._estimated, "warned": self._warned}
        if len(self):
            state |= {"roots": self._roots.rows, "probed": self.probed}
        return state

    def load_state_dict(self, state: dict[str, Any], n: int) -> None:
        """Restores a saved state of n rows; call it on a new one."""
        self._estimated = int(state["estimated"])
        self._warned = bool(state["warned"])
        if n:
            roots = require_shape("roots", state["roots"], n, 1)
            self.append(roots, require_shape("probed", state["probed"], n, PROBES))
            least = float(roots.min())
            if not least > 0:
                raise InvalidInputError(f"roots holds {least:g}; expected numbers above 0")
        if not 0 <= self._estimated <= n:
            raise InvalidInputError(f"estimated is {self._estimated}; expected 0 to {n} rows")
