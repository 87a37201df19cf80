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
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import GrowingRows, panels, require_memory, shallow
from retarget.engine.cholesky import GrowingCholesky
from retarget.engine.losses import outputs, slope_product, steepest_slope
from retarget.engine.offline.learner import OfflineLearner, block_bounds
from retarget.errors import InvalidInputError, NotConvergedError, NotPositiveDefiniteError
from retarget.state_files import part_of, require_shape

LARGEST_GAMMA = 1e100
MOST_STEPS = 100  # of Newton's method; about ten are usual, and thirty if gamma is tiny
MOST_ITERATIONS = 50  # of conjugate gradients, before the system is solved directly
MOST_HALVINGS = 40
SUFFICIENT = 1e-4  # a step must achieve this share of the decrease it predicts (Armijo)
NEARLY = 1e3  # a residual that no step reduces may be this many times its rounding


class LogisticFit(OfflineLearner):
    """The offline learner on the stream so far, which may grow, with `count` outputs.

    Attributes:
        coefficients: (n, c) dual coefficients, after `solve` was called.
        logits: (n, c) the predictions for the stream, without the starting function.
    """

    def __init__(
        self, gamma: float, count: int, gram: Callable[[slice], Tensor], roomy: bool = False
    ) -> None:
        self.gamma, self._gram = gamma, gram
        self._slope = 0.25 if count == 1 else 1 / count
        self._steepest = steepest_slope("cross-entropy", count)
        if gamma > LARGEST_GAMMA:
            raise InvalidInputError(
                f"gamma is {gamma:g}; expected at most {LARGEST_GAMMA:g} with "
                "loss='cross-entropy', whose solver squares it"
            )
        self.factor = GrowingCholesky(gamma / self._slope, gram, roomy)
        self._Y, self._start, self._roots = GrowingRows(), GrowingRows(), GrowingRows()
        self.coefficients = torch.empty(0, count, device="cpu")
        self.logits = torch.empty(0, count, device="cpu")

    def __len__(self) -> int:
        return len(self.factor)

    def extend(self, K_rows: Tensor, Y: Tensor, start: Tensor | None) -> None:
        """Adds samples, given their kernel (m, n + m) against the past and themselves."""
        n = len(self)
        try:
            self.factor.commit(self.factor.extend(K_rows))
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

    def solve(self) -> Tensor:
        """Returns the (n, c) dual coefficients; raises `NotConvergedError` if it finds none."""
        Y, start = self._Y.rows, self._start.rows
        if self.gamma == 0:
            self.coefficients = self.factor.solve(_finite_logits(Y, start))
            self.logits = self._times_kernel(self.coefficients)
            return self.coefficients
        A, best, directly = self.coefficients, torch.inf, False
        for _ in range(MOST_STEPS):
            f = self._times_kernel(A)
            p = outputs(f + start, "cross-entropy")
            R = self.gamma * A + p - Y
            excess = float((R.abs() / self._rounding(A)).max())
            if excess <= 1 or (best <= NEARLY and excess > best / 2):
                if A.shape[1] > 1:  # make rows sum to 0 exactly, as targets sum to 1
                    A = A - A.mean(1, keepdim=True)
                self.coefficients, self.logits = A, f
                return A
            best = min(best, excess)
            step = None if directly else self._iterate(p, R)
            if step is None:
                directly, step = True, self._solve_directly(p, R)
            length = self._step_length(A, f, R, *step)
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
        """See `OfflineLearner`."""
        logits = []
        for first, stop in block_bounds(len(Y), block_size):
            block, begun = slice(first, stop), None if start is None else start[first:stop]
            self.extend(rows[block, : len(self) + block_size], Y[block], begun)
            self.solve()
            logits.append(self.logits[-block_size:])
        return torch.cat(logits)

    def warn_once(self) -> bool:
        """See `OfflineLearner`."""
        return self.factor.warn_once()

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """See `OfflineLearner`."""
        fork = shallow(self)
        fork._gram, fork.factor = gram, self.factor.fork(gram)
        fork._Y, fork._start = self._Y.fork(), self._start.fork()
        fork._roots = self._roots.fork()
        return fork

    def state_dict(self) -> dict[str, Any]:
        """See `OfflineLearner`."""
        state = {f"factor.{key}": value for key, value in self.factor.state_dict().items()}
        if len(self):
            state |= {"Y": self._Y.rows, "start": self._start.rows, "roots": self._roots.rows}
            state |= {"coefficients": self.coefficients}
        return state

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """See `OfflineLearner`."""
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

    def _times_kernel(self, A: Tensor) -> Tensor:
        """K A, from the factor of K + gamma/h I."""
        return self.factor.product(A) - (self.gamma / self._slope) * A

    def _rounding(self, A: Tensor) -> Tensor:
        """(n, c) what rounding alone may leave of the equation."""
        roots = self._roots.rows
        logits = roots * (roots * A.abs()).sum(0) + (self.gamma / self._slope) * A.abs()
        eps = torch.finfo(A.dtype).eps
        return eps * (1 + self._Y.rows.abs() + self.gamma * A.abs() + self._steepest * logits)

    def _iterate(self, p: Tensor, R: Tensor) -> tuple[Tensor, Tensor] | None:
        """A Newton step and its logits by conjugate gradients; None if they take too long."""
        h, tau = self._slope, self.gamma / self._slope
        tolerance = min(0.1, float(R.abs().max()) ** 0.5)
        r = -R
        step, logits = torch.zeros_like(R), torch.zeros_like(R)
        d, Kd = torch.zeros_like(R), torch.zeros_like(R)
        before, first = 1.0, 0.0
        for iteration in range(MOST_ITERATIONS):
            z = self.factor.solve(r) / h
            Kz = r / h - tau * z
            size = float((r * Kz).sum())  # <r, P^-1 r>_K
            if iteration == 0:
                first = size
            if size <= tolerance**2 * first:
                # This inner product does not see the null space of K, where z solves the system
                # exactly; elsewhere z is small.
                return step + z, logits + Kz
            share = size / before if iteration else 0.0
            d, Kd, before = z + share * d, Kz + share * Kd, size
            image = self.gamma * d + slope_product(p, Kd)
            length = size / float((image * Kd).sum())
            step, logits = step + length * d, logits + length * Kd
            r = r - length * image
        return None

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

    def _step_length(self, A: Tensor, f: Tensor, R: Tensor, step: Tensor, logits: Tensor) -> float:
        """The first of 1, 1/2, 1/4, ... that decreases J enough; 0 if none does."""
        now, decrease = self._objective(A, f), float((R * logits).sum())
        # by how much two sums of n c terms may differ through rounding
        slack = 4 * torch.finfo(A.dtype).eps * (abs(now) + float(A.numel()))
        length = 1.0
        for _ in range(MOST_HALVINGS):
            there = self._objective(A + length * step, f + length * logits)
            if there <= now + SUFFICIENT * length * decrease + slack:
                return length
            length /= 2
        return 0.0

    def _objective(self, A: Tensor, f: Tensor) -> float:
        logits = f + self._start.rows
        if f.shape[1] == 1:
            partition = torch.nn.functional.softplus(logits, threshold=100)
        else:
            partition = torch.logsumexp(logits, 1)
        loss = partition.sum() - (self._Y.rows * logits).sum()
        return float(loss + self.gamma / 2 * (A * f).sum())


def logistic_coefficients(K: Tensor, Y: Tensor, start: Tensor | None, gamma: float) -> Tensor:
    """(n, c) dual coefficients of the offline learner on a whole stream."""
    fit = LogisticFit(gamma, Y.shape[1], lambda rows: K[rows, rows])
    for rows in panels(len(K), 1, K.device):
        fit.extend(K[rows, : rows.stop], Y[rows], None if start is None else start[rows])
    fit.factor.warn_once()
    return fit.solve()


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
