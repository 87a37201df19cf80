r"""The offline learner for cross-entropy: kernel logistic regression, by Newton's method.

It minimizes $J = \sum_i \ell(y_i, f(x_i) + f_0(x_i)) + \tfrac\gamma2 \lVert f \rVert^2$ with $\ell$
for cross-entropy and the norm of the kernel's space. With $f = K A$ the minimum is where

    gamma A + sigma(K A + f_0) = Y .

J is convex, and strictly so in $f$ if $\gamma > 0$: there is one solution, for any real targets,
and damped Newton steps lead to it. A step solves

    (gamma I + H K) D = Y - sigma - gamma A          H: the slopes of sigma, c x c for each sample

H K is self-adjoint in the inner product $\langle a, b \rangle_K = \operatorname{tr} a^\top K b$, so
conjugate gradients work in that one. They are preconditioned by $P = \gamma I + h K = h L L^\top$,
with h the slope at logits of zero: one Cholesky factor for all steps, and for all blocks of a
stream, since it grows with it. As $K z$ is $r / h - (\gamma / h) z$ where $P z = r$, an iteration
costs one solve with the factor, 2 n^2 c multiplications, and the kernel itself is not needed.

If $\gamma$ is small and most samples are certain, h is a poor guess of H, and the iteration is
slow. The system is then solved directly (Williams and Barber, 1998): because
$H = \Delta - \Pi \Pi^\top$ with $\Delta$ diagonal, that is a factorization for each class and one
for what they share, c + 1 of them.

`solve` finds the solution up to rounding. The iterative correction of a stream needs one after
every block. After the first block and the first few samples, `predictions` stops where no entry of

    R = gamma A + sigma(K A + f_0) - Y

is larger than `TOLERANCE`: A is then the exact solution for the targets $Y + R$. It starts from the
last block's solution. If the past responded to the new samples $n$ with the slope h, what it leaves
of their kernel would be $S = K_{nn} - K_{np} (\tfrac\gamma h I + K_{pp})^{-1} K_{pn}$, and their
coefficients and those of the past would change by

    gamma A_n + sigma(S A_n + K_np A_p + f_0) = Y_n               the same equation, for b samples
    (D_p, A_n) = L^-T (0, L_nn^T A_n)                             as S + gamma/h I = L_nn L_nn^T

A few iterations over all samples then correct what the slope h has wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import GrowingRows, panels, require_memory, shallow
from retarget.engine.cholesky import GrowingCholesky
from retarget.engine.losses import outputs, slope_product, steepest_slope
from retarget.engine.offline.learner import OfflineLearner, block_bounds
from retarget.engine.triangular import solve_lower, solve_lower_transposed
from retarget.errors import InvalidInputError, NotConvergedError, NotPositiveDefiniteError
from retarget.state_files import part_of, require_shape

LARGEST_GAMMA = 1e100
MOST_STEPS = 100  # of Newton's method; about ten are usual, and thirty if gamma is tiny
MOST_ITERATIONS = 50  # of conjugate gradients, before the system is solved directly
MOST_HALVINGS = 40
SUFFICIENT = 1e-4  # a step must achieve this share of the decrease it predicts (Armijo)
NEARLY = 1e3  # a residual that no step reduces may be this many times its rounding
TOLERANCE = 0.01  # of the equation between blocks, in units of the targets
EXACT_UP_TO = 64  # samples, for which a solution up to rounding costs next to nothing
# MKL multiplies by so many columns in half the time of ten, as it does not copy the matrix first.
FAST_COLUMNS = 12


@dataclass
class Equation:
    r"""$\gamma A + \sigma(K A + f_0) = Y$, for samples whose kernel is known through its solves.

    Attributes:
        gamma: The ridge.
        slope: h, the slope of sigma that the preconditioner gamma I + h K assumes.
        solve: Returns $(K + \tfrac\gamma h I)^{-1} B$.
        Y: (n, c) the targets.
        start: (n, c) the starting function's logits.
    """

    gamma: float
    slope: float
    solve: Callable[[Tensor], Tensor]
    Y: Tensor
    start: Tensor

    def outputs(self, f: Tensor) -> Tensor:
        """(n, c) sigma."""
        return outputs(f + self.start, "cross-entropy")

    @property
    def steepest(self) -> float:
        """The largest slope that sigma can have."""
        return steepest_slope("cross-entropy", self.Y.shape[1])

    def residual(self, A: Tensor, p: Tensor) -> Tensor:
        """(n, c) what the equation is off by, for the outputs p."""
        return self.gamma * A + p - self.Y

    def approach(self, A: Tensor, f: Tensor, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Coefficients and logits that solve the equation up to a tolerance; None if it is hard.

        Nonlinear conjugate gradients (Polak and Ribière) with the preconditioner P.
        """
        p = self.outputs(f)
        R = self.residual(A, p)
        d = torch.zeros_like(R)
        Kd = torch.zeros_like(R)
        before = R
        size_before = 1.0
        for iteration in range(MOST_ITERATIONS):
            if largest(R) <= tolerance:
                return A, f
            z = self.solve(R) / self.slope
            Kz = (R - self.gamma * z) / self.slope
            if self.slope * largest(Kz) <= tolerance:
                # What is left lies mostly in the null space of K, which the inner product does not
                # see, and where z solves the equation exactly.
                rest = self.residual(A - z, self.outputs(f - Kz))
                if largest(rest) <= tolerance:
                    return A - z, f - Kz
            size = dot(R, Kz)
            share = max(0.0, (size - dot(before, Kz)) / size_before) if iteration else 0.0
            d = share * d - z
            Kd = share * Kd - Kz
            slope = dot(R, Kd)
            length = -slope / dot(self.gamma * d + slope_product(p, Kd), Kd)
            before = R
            size_before = size
            p = self.outputs(f + length * Kd)
            R = self.residual(A + length * d, p)
            if dot(R, Kd) * slope < -(slope**2) / 2:
                # Far beyond the minimum along this line: with the steepest slope that sigma can
                # have, J decreases (Boehning, 1992).
                length = -slope / dot(self.gamma * d + self.steepest * Kd, Kd)
                p = self.outputs(f + length * Kd)
                R = self.residual(A + length * d, p)
            A = A + length * d
            f = f + length * Kd
        return None

    def newton_step(self, p: Tensor, R: Tensor) -> tuple[Tensor, Tensor] | None:
        """A Newton step and its logits by conjugate gradients; None if they take too long."""
        h = self.slope
        tau = self.gamma / self.slope
        tolerance = min(0.1, float(R.abs().max()) ** 0.5)
        r = -R
        step = torch.zeros_like(R)
        logits = torch.zeros_like(R)
        d = torch.zeros_like(R)
        Kd = torch.zeros_like(R)
        before = 1.0
        first = 0.0
        for iteration in range(MOST_ITERATIONS):
            z = self.solve(r) / h
            Kz = r / h - tau * z
            size = float((r * Kz).sum())  # <r, P^-1 r>_K
            if iteration == 0:
                first = size
            if size <= tolerance**2 * first:
                # This inner product does not see the null space of K, where z solves the system
                # exactly; elsewhere z is small.
                return step + z, logits + Kz
            share = size / before if iteration else 0.0
            d = z + share * d
            Kd = Kz + share * Kd
            before = size
            image = self.gamma * d + slope_product(p, Kd)
            length = size / float((image * Kd).sum())
            step = step + length * d
            logits = logits + length * Kd
            r = r - length * image
        return None

    def step_length(self, A: Tensor, f: Tensor, R: Tensor, step: Tensor, logits: Tensor) -> float:
        """The first of 1, 1/2, 1/4, ... that decreases J enough; 0 if none does."""
        now = self.objective(A, f)
        decrease = float((R * logits).sum())
        # by how much two sums of n c terms may differ through rounding
        slack = 4 * torch.finfo(A.dtype).eps * (abs(now) + float(A.numel()))
        length = 1.0
        for _ in range(MOST_HALVINGS):
            there = self.objective(A + length * step, f + length * logits)
            if there <= now + SUFFICIENT * length * decrease + slack:
                return length
            length /= 2
        return 0.0

    def objective(self, A: Tensor, f: Tensor) -> float:
        """J."""
        logits = f + self.start
        if f.shape[1] == 1:
            partition = torch.nn.functional.softplus(logits, threshold=100)
        else:
            partition = torch.logsumexp(logits, 1)
        loss = partition.sum() - (self.Y * logits).sum()
        return float(loss + self.gamma / 2 * (A * f).sum())


class LogisticFit(OfflineLearner):
    """The offline learner on the stream so far, which may grow, with `count` outputs.

    Attributes:
        coefficients: (n, c) dual coefficients, after `solve` was called.
        logits: (n, c) the predictions for the stream, without the starting function, likewise.
    """

    def __init__(
        self, gamma: float, count: int, gram: Callable[[slice], Tensor], roomy: bool = False
    ) -> None:
        self.gamma = gamma
        self._gram = gram
        self._slope = 0.25 if count == 1 else 1 / count
        self._steepest = steepest_slope("cross-entropy", count)
        if gamma > LARGEST_GAMMA:
            raise InvalidInputError(
                f"gamma is {gamma:g}; expected at most {LARGEST_GAMMA:g} with "
                "loss='cross-entropy', whose solver squares it"
            )
        self.factor = GrowingCholesky(gamma / self._slope, gram, roomy)
        self._Y = GrowingRows()
        self._start = GrowingRows()
        self._roots = GrowingRows()
        self.coefficients = torch.empty(0, count, device="cpu")
        self.logits = torch.empty(0, count, device="cpu")

    def __len__(self) -> int:
        return len(self.factor)

    def extend(self, K_rows: Tensor, Y: Tensor, start: Tensor | None) -> Tensor:
        """Adds samples, given their kernel (m, n + m) against the past and themselves.

        Returns their (m, m) triangle of the factor.
        """
        n = len(self)
        try:
            new = self.factor.extend(K_rows)
            self.factor.commit(new)
        except NotPositiveDefiniteError as error:  # reported for this gamma, not for the factor's
            jitter = error.jitter * self._slope
            raise NotPositiveDefiniteError(
                f"K has negative eigenvalues in {str(K_rows.dtype).removeprefix('torch.')}, too "
                f"large for gamma = {self.gamma:g}; expected the Gram matrix of a kernel. If they "
                f"are rounding, use gamma = {self.gamma + jitter:.4g} (jitter {jitter:.3g})"
                + ("" if K_rows.dtype == torch.float64 else ", or compute in float64"),
                deficit=error.deficit,
                jitter=jitter,
            ) from error
        self._Y.append(Y)
        self._start.append(torch.zeros_like(Y) if start is None else start)
        # |k(x, x')| is at most the product of these, which bounds the rounding of logits
        self._roots.append(K_rows[:, n:].diagonal().clamp(min=0).sqrt()[:, None])
        self.coefficients = torch.cat([self.coefficients.to(Y), torch.zeros_like(Y)])
        self.logits = torch.cat([self.logits.to(Y), torch.zeros_like(Y)])
        return new.corner

    def solve(self, count: int | None = None, tolerance: float = 0.0) -> Tensor:
        """Returns the (n, c) dual coefficients; raises `NotConvergedError` if it finds none.

        Args:
            count: How many samples are learned, the first ones of the stream; None for all.
            tolerance: What the equation may be off by, if that is more than its rounding.
        """
        n = len(self) if count is None else count
        equation = self._equation(n)
        if self.gamma == 0:
            A = self.factor.solve(_finite_logits(equation.Y, equation.start))
            return self._settle(A, self._times_kernel(A))
        A = self.coefficients[:n]
        best = torch.inf
        directly = False
        for _ in range(MOST_STEPS):
            f = self._times_kernel(A)
            p = equation.outputs(f)
            R = equation.residual(A, p)
            excess = float((R.abs() / self._rounding(A)).max())
            near = excess <= 1 or largest(R) <= tolerance
            if near or (best <= NEARLY and excess > best / 2):
                if A.shape[1] > 1:  # make rows sum to 0 exactly, as targets sum to 1
                    A = A - A.mean(1, keepdim=True)
                return self._settle(A, f)
            best = min(best, excess)
            step = None if directly else equation.newton_step(p, R)
            if step is None:
                directly = True
                step = self._solve_directly(p, R)
            length = equation.step_length(A, f, R, *step)
            if length == 0:
                break
            A = A + length * step[0]
        raise NotConvergedError(
            f"Newton's method did not find the offline learner with gamma = {self.gamma:g}: its "
            f"equation is still off by {float(R.abs().max()):.2g}, {excess:.2g} times its "
            "rounding; use a larger gamma"
            + ("" if A.dtype == torch.float64 else ", or compute in float64")
        )

    def predictions(
        self, rows: Tensor, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """(m, c) its prediction for each new block, once it has learned that block."""
        past = len(self)
        corner = self.extend(rows, Y, start)
        logits = []
        for first, stop in block_bounds(len(Y), block_size):
            block = slice(first, stop)
            self._learn_block(rows[block, : past + stop], corner[block, block])
            logits.append(self.logits[past + first : past + stop])
        return torch.cat(logits)

    def _learn_block(self, K_rows: Tensor, corner: Tensor) -> None:
        """Moves the solution of the samples before a block to that of the block as well.

        Args:
            K_rows: (b, n + b) the kernel of the block against the past and itself.
            corner: (b, b) its triangle of the factor.
        """
        size, count = K_rows.shape
        if self.gamma == 0 or size == count or count <= EXACT_UP_TO:
            self.solve(count)
            return
        whole = self._equation(count)
        past = slice(0, count - size)
        block = slice(count - size, count)
        inherited = K_rows[:, past] @ self.coefficients[past]
        own = Equation(
            self.gamma,
            self._slope,
            lambda rhs: solve_lower_transposed(corner, solve_lower(corner, rhs)),
            whole.Y[block],
            whole.start[block] + inherited,
        )
        none = torch.zeros_like(inherited)
        new = own.approach(none, none, TOLERANCE / 2)
        solution = None
        if new is not None:
            moved = torch.zeros_like(whole.Y)
            moved[block] = corner.mT @ new[0]
            moved = in_fast_columns(self.factor.solve_upper, moved)
            logits = self.logits[:count] - (self.gamma / self._slope) * moved
            logits[block] = inherited + new[1]
            solution = whole.approach(self.coefficients[:count] + moved, logits, TOLERANCE)
        if solution is None:
            self.solve(count, TOLERANCE)
        else:
            self._settle(*solution)

    def _equation(self, count: int) -> Equation:
        """The equation of the first samples of the stream."""
        Y = self._Y.rows[:count]
        start = self._start.rows[:count]
        solve = partial(in_fast_columns, self.factor.solve)
        return Equation(self.gamma, self._slope, solve, Y, start)

    def _settle(self, A: Tensor, f: Tensor) -> Tensor:
        """Keeps the solution of the first samples, as new tensors: forks have the old ones."""
        n = len(A)
        self.coefficients = torch.cat([A, self.coefficients[n:]])
        self.logits = torch.cat([f, self.logits[n:]])
        return self.coefficients[:n]

    def warn_once(self) -> bool:
        """Warns once if few digits are correct; returns whether it has ever warned."""
        return self.factor.warn_once()

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent learner that continues from here."""
        fork = shallow(self)
        fork._gram = gram
        fork.factor = self.factor.fork(gram)
        fork._Y = self._Y.fork()
        fork._start = self._start.fork()
        fork._roots = self._roots.fork()
        return fork

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        state = {f"factor.{key}": value for key, value in self.factor.state_dict().items()}
        if len(self):
            state |= {"Y": self._Y.rows, "start": self._start.rows, "roots": self._roots.rows}
            state |= {"coefficients": self.coefficients, "logits": self.logits}
        return state

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        self.factor.load_state_dict(part_of(state, "factor"))
        n, count = shape
        if len(self) != n:
            raise InvalidInputError(
                f"the factor has {len(self)} rows; expected {n}, one per sample"
            )
        kept = {"Y": (self._Y, count), "start": (self._start, count), "roots": (self._roots, 1)}
        for name, (rows, columns) in kept.items():
            rows.append(require_shape(name, state[name], n, columns))
        if bool((self._roots.rows < 0).any()):
            raise InvalidInputError("roots holds a number below 0; expected square roots")
        self.coefficients = require_shape("coefficients", state["coefficients"], n, count)
        self.logits = require_shape("logits", state["logits"], n, count)

    def _times_kernel(self, A: Tensor) -> Tensor:
        """K A, from the factor of K + gamma/h I."""
        return self.factor.product(A) - (self.gamma / self._slope) * A

    def _rounding(self, A: Tensor) -> Tensor:
        """(n, c) what rounding alone may leave of the equation."""
        Y = self._Y.rows[: len(A)]
        roots = self._roots.rows[: len(A)]
        logits = roots * (roots * A.abs()).sum(0) + (self.gamma / self._slope) * A.abs()
        eps = torch.finfo(A.dtype).eps
        return eps * (1 + Y.abs() + self.gamma * A.abs() + self._steepest * logits)

    def _solve_directly(self, p: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
        r"""A Newton step and its logits, by factorizations.

        With $K' = K / \gamma$ and $E_c = (\Delta_c^{-1} + K')^{-1}$ for each class,
        $(I + H K')^{-1} R = R - M K' R$, where $M v = E v - E\, S^{-1} \sum_c E_c v_c$ and
        $S = \sum_c E_c$. One output has no second term, and $\Delta = p (1 - p)$.
        """
        n, count = p.shape
        require_memory(
            f"the Newton step of {n} samples and {count} outputs",
            float(count + 3) * n * n,
            p,
            "use a larger gamma, a shorter stream or float32",
        )
        K = self._gram(slice(0, n)).to(p) / self.gamma
        v = K @ R
        weights = (p * (1 - p) if count == 1 else p).clamp(min=torch.finfo(p.dtype).tiny).sqrt()
        inverses = []
        for each in range(count):
            w = weights[:, each]
            B = w[:, None] * K * w
            B.diagonal().add_(1.0)
            inverse = torch.cholesky_inverse(self._factor(B))
            inverses.append(inverse.mul_(w[:, None]).mul_(w))
        Ev = torch.stack([inverses[each] @ v[:, each] for each in range(count)], dim=1)
        if count > 1:
            shared = self._factor(torch.stack(inverses).sum(0))
            u = torch.cholesky_solve(Ev.sum(1, keepdim=True), shared)
            Ev -= torch.cat([inverse @ u for inverse in inverses], dim=1)
        step = (Ev - R) / self.gamma
        return step, self.gamma * (K @ step)

    def _factor(self, M: Tensor) -> Tensor:
        """The Cholesky factor of a matrix of the Newton step, if K / gamma did not overflow."""
        factor, info = torch.linalg.cholesky_ex(M)
        if info.item():
            raise NotConvergedError(
                f"gamma = {self.gamma:g} is too small next to the kernel for Newton's method in "
                f"{str(M.dtype).removeprefix('torch.')}; use a larger gamma"
            )
        result: Tensor = factor
        return result


def logistic_coefficients(K: Tensor, Y: Tensor, start: Tensor | None, gamma: float) -> Tensor:
    """(n, c) dual coefficients of the offline learner on a whole stream."""
    fit = LogisticFit(gamma, Y.shape[1], lambda rows: K[rows, rows])
    for rows in panels(len(K), 1, K.device):
        fit.extend(K[rows, : rows.stop], Y[rows], None if start is None else start[rows])
    fit.factor.warn_once()
    return fit.solve()


def dot(a: Tensor, b: Tensor) -> float:
    """The sum of the products of the entries."""
    return float(torch.dot(a.flatten(), b.flatten()))


def largest(a: Tensor) -> float:
    """The size of the largest entry."""
    return float(a.abs().max())


def in_fast_columns(solve: Callable[[Tensor], Tensor], rhs: Tensor) -> Tensor:
    """Solves with columns of zeros added, so that there are a multiple of `FAST_COLUMNS`."""
    count = rhs.shape[1]
    if count == 1:
        return solve(rhs)
    return solve(torch.nn.functional.pad(rhs, (0, -count % FAST_COLUMNS)))[:, :count]


def _finite_logits(Y: Tensor, start: Tensor) -> Tensor:
    """(n, c) the logits whose outputs are Y, less the start; their rows sum to 0 if c > 1."""
    outside = ~((Y > 0) & (Y < 1)).all(1)
    if outside.any():
        row = int(outside.nonzero()[0, 0])
        raise NotConvergedError(
            f"with gamma = 0 and loss='cross-entropy' every target would be fitted exactly, but no "
            f"finite logits give the targets of row {row}; use a gamma above 0, or targets "
            "strictly between 0 and 1"
        )
    if Y.shape[1] == 1:
        return torch.logit(Y) - start
    logits = Y.log() - start
    return logits - logits.mean(1, keepdim=True)
