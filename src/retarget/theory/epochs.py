r"""Several passes over the same stream: E epochs of n samples are a triangular system of E n rows.

Its kernel is the n x n one, E times E times over, and is never formed. A sample's coefficients of
all epochs multiply the same kernel row, so they add up: the past of a lesson is the kernel of its
samples against all n, times one share per sample in the weights and one in the velocity.

The corrected targets of E epochs are the n targets that, taught again in every epoch, lead the
learner to the offline one. For plain SGD an epoch is

    A' = A + B (Z - K A),        B = (D^-1 + K^bL)^-1,  D = diag(eta r)

so that $A_E = G Z$ with $G = \sum_{j<E} (I - B K)^j B$, and in general the map from targets to
coefficients is linear. $G B^{-1}$ is a polynomial in $B K$ with eigenvalues of about 1 to E, which
GMRES solves in a few dozen iterations however large n is: each costs E passes over the stream. With
cross-entropy the map is not linear; Newton's method solves with its derivative, the same passes
with the slopes of the outputs.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from retarget.arrays import panels, require_no_overflow
from retarget.engine.dual import DualLearner
from retarget.engine.followers import Follower, Online, Steps, follow
from retarget.engine.lesson import Lesson, Past, products
from retarget.engine.losses import Loss, outputs, slope_product
from retarget.engine.response import (
    final_response,
    lasting_effect,
    remaining_start,
    step_response,
)
from retarget.engine.stability import GrowthWatch, largest_stable_lr
from retarget.engine.stream import Repeated, RepeatedStream, Window
from retarget.errors import UnreachableTargetsError
from retarget.learners import SGD, require_learner
from retarget.theory.problem import Problem

DIRECTIONS = 60  # kept by GMRES within a step of Newton's method
MOST_STEPS = 20  # of Newton's method; the squared error needs one, apart from rounding
MOST_HALVINGS = 12
SUFFICIENT = 1e-4  # a step must achieve this share of the decrease it predicts (Armijo)
ENOUGH = 1e-9  # one step need not reduce the residual by more than this factor
ROUNDING = 100.0  # a residual of fewer rounding units than this counts as zero


class RepeatedLearner(DualLearner):
    """The state of an online learner that passes over the same n samples several times.

    `like` (n, c) has the shape and type of its coefficients, which are added up over all epochs.
    """

    def __init__(self, learner: SGD, like: Tensor) -> None:
        super().__init__(learner)
        self._met = 0
        for share in self.shares.both:
            share.append(torch.zeros_like(like))

    def lesson(  # type: ignore[override]  # the rows of another kind of stream
        self, panel: Repeated, beside: Past | None = None
    ) -> Lesson:
        """What the next samples are to the learner; `beside` is the past of another one."""
        K_rows, samples = panel
        memory = step_response(self.learner, self.steps, len(K_rows))
        met = min(self._met, len(self))
        past, other = products(K_rows[:, :met], self.past, beside)
        return Lesson(self._met, K_rows[:, samples], past, memory, self.steps, samples, other)

    @property
    def past(self) -> Past | None:
        """(n, c) the shares in the weights and in the velocity of the samples met so far."""
        met = min(self._met, len(self))  # in the first epoch the others have no share yet
        return self.shares.past(slice(0, met)) if met else None

    def learn(self, lesson: Lesson, errors: Tensor) -> None:
        """Takes the steps of a window, on which it made these errors."""
        self.shares.carry_over(lesson)
        deposits = lesson.deposits(errors).tensors
        for share, deposit in zip(self.shares.both, deposits, strict=True):
            share.rows[lesson.place] += deposit
        self._met += len(errors)
        self.steps += lesson.memory.deposit.shape[1]


def online_pass(
    problem: Problem[Any], learner: SGD, loss: Loss = "squared", epochs: int = 1
) -> tuple[Tensor, Tensor]:
    """The errors (n, c) before each step of the last epoch, and the dual coefficients after it."""
    require_learner(learner)
    K = problem.K
    n = len(problem.K)
    learner.rates(n, epochs)  # raises for a schedule of the wrong length before any work
    left = None
    if problem.start is not None:
        left = K.new_tensor(remaining_start(learner, n, epochs)[:-1, None])
    stream = RepeatedStream(K, problem.Y, problem.start, left, epochs)
    columns = 1 if loss == "squared" else problem.Y.shape[1]
    probe = RepeatedLearner(learner, problem.Y[:, :1].expand(-1, columns))
    watch = GrowthWatch(learner, lambda rows: K[rows, rows], probe, loss, length=n)
    errors = torch.empty_like(problem.Y)
    online = Online(RepeatedLearner(learner, problem.Y), watch, loss, errors)
    follow(stream.windows(learner.batch_size), [online])
    watch.warn_once()
    return errors, online.learner.coefficients


def repeated_targets(
    problem: Problem[Any], coefficients: Tensor, learner: SGD, epochs: int, loss: Loss
) -> Tensor:
    """(n, c) the targets, the same in every epoch, that lead to these dual coefficients.

    Uses Newton's method, which takes one step for the squared error; with that loss, the caller
    still has to add the starting function.
    """
    require_no_overflow(coefficients)
    kernel_unit = _unit_of(problem.K)
    if kernel_unit != 1.0:
        # the same function of the samples, by steps of the same effect
        problem = replace(problem, K=problem.K / kernel_unit)
        learner = _in_units(learner, kernel_unit)
        coefficients = coefficients * kernel_unit
    run = _Epochs(problem, learner, epochs, loss, kernel_unit)
    # in units of the largest coefficient, so that no norm over- or underflows
    unit = coefficients.abs().amax(0) if loss == "squared" else coefficients.abs().max()
    unit = unit.where(unit > 0, 1.0)
    goal = coefficients / unit
    # the squared error is linear in targets and coefficients: each output is computed in its unit
    scale = torch.ones_like(unit) if loss == "squared" else unit
    size = float(torch.linalg.vector_norm(goal))
    rounding = len(goal) ** 0.5 * size
    Z = torch.zeros_like(goal)
    if loss != "squared":
        # each epoch is to add its share to the coefficients, around the offline probabilities
        Z = run.outputs_of(coefficients) + coefficients / (epochs * run.rates)
        rounding += epochs * float(torch.linalg.vector_norm(run.rates.expand_as(Z) / unit))
    enough = ROUNDING * torch.finfo(Z.dtype).eps * rounding
    left = goal - run.reached(Z) / scale
    gap = float(torch.linalg.vector_norm(left))
    for _ in range(MOST_STEPS):
        if gap <= enough:
            return Z * unit if loss == "squared" else Z
        step = run.unstepped(_gmres(lambda A: run.tangent(run.unstepped(A)), left)) * scale
        for halvings in range(MOST_HALVINGS):
            there = Z + 0.5**halvings * step
            left = goal - run.reached(there) / scale
            nearer = float(torch.linalg.vector_norm(left))
            if nearer < (1 - SUFFICIENT * 0.5**halvings) * gap:
                break
        else:
            break
        Z = there
        gap = nearer
    raise UnreachableTargetsError(
        f"no targets that are the same in all {epochs} epochs were found that lead this learner to "
        f"the offline one: the best miss it by {gap / size:.2g} of its size; use a smaller rate, "
        "at which every step is stable, or another number of epochs"
    )


class _Epochs:
    """The map from targets, the same in every epoch, to coefficients, and its derivative."""

    def __init__(
        self, problem: Problem[Any], learner: SGD, epochs: int, loss: Loss, kernel_unit: float
    ) -> None:
        self._K = problem.K
        self._kernel_unit = kernel_unit  # in which K and the learner are given
        self._learner = learner
        self._epochs = epochs
        self._loss = loss
        self._start = None if loss == "squared" else problem.start
        self.rates = _lasting_rates(problem.K, learner, epochs)
        # (epochs n, c) the outputs before each step, for cross-entropy
        self._outputs = problem.K.new_empty(0, problem.Y.shape[1])

    def outputs_of(self, coefficients: Tensor) -> Tensor:
        """(n, c) the outputs of the learner that has these coefficients."""
        logits = self._K @ coefficients
        return outputs(logits if self._start is None else logits + self._start, self._loss)

    def reached(self, Z: Tensor) -> Tensor:
        """(n, c) the coefficients after all epochs on these targets; keeps the outputs met."""
        learner = RepeatedLearner(self._learner, Z)
        if self._loss == "squared":
            follower: Follower = Online(learner)
        else:
            self._outputs = Z.new_empty(self._epochs * len(Z), Z.shape[1])
            follower = _Visitor(learner, self._outputs)
        A = self._after_all(follower, Z, self._start)
        if not bool(A.isfinite().all()):
            limit = largest_stable_lr(lambda rows: self._K[rows, rows], self._learner, len(Z))
            limit /= self._kernel_unit
            raise UnreachableTargetsError(
                f"the learner diverges within {self._epochs} epochs, so no targets lead it to the "
                f"offline one; below lr = {limit:.4g} it would be stable"
            )
        return A

    def tangent(self, change: Tensor) -> Tensor:
        """(n, c) the change of the coefficients with the targets, around those reached last."""
        if self._loss == "squared":
            return self.reached(change)
        learner = RepeatedLearner(self._learner, change)
        return self._after_all(_Derivative(learner, self._outputs), change)

    def unstepped(self, A: Tensor) -> Tensor:
        """B^-1 A: the targets of one epoch, by which GMRES is preconditioned."""
        K = self._K
        batch = self._learner.batch_size
        before = torch.empty_like(A)
        for rows in panels(len(K), batch, K.device):
            step = torch.arange(rows.stop - rows.start, device=K.device) // batch
            before[rows] = (K[rows, rows] * (step[:, None] > step)) @ A[rows]
            before[rows] += K[rows, : rows.start] @ A[: rows.start]
        if self._loss != "squared":
            before = slope_product(self._outputs[-len(A) :], before)
        return A / self.rates + before

    def _after_all(
        self, follower: Follower, targets: Tensor, start: Tensor | None = None
    ) -> Tensor:
        stream = RepeatedStream(self._K, targets, start, epochs=self._epochs)
        follow(stream.windows(self._learner.batch_size), [follower])
        return follower.learner.coefficients


class _Visitor(Online):
    """A learner with cross-entropy of which all outputs met on the way are kept."""

    def __init__(self, learner: RepeatedLearner, outputs: Tensor) -> None:
        super().__init__(learner, loss="cross-entropy")
        self._outputs = outputs

    def note(self, window: Window, lesson: Lesson, steps: Steps) -> None:
        """Keeps the outputs before each step."""
        self._outputs[window.rows] = steps.targets - steps.errors


class _Derivative(Follower):
    """How such a learner changes with its targets, around the outputs met on the way."""

    def __init__(self, learner: RepeatedLearner, outputs: Tensor) -> None:
        super().__init__(learner)
        self._outputs = outputs

    def teach(self, window: Window, lesson: Lesson) -> Steps:
        """Finds the change of the errors with the targets."""
        p = self._outputs[window.rows]
        change = window.targets
        errors = lesson.errors_in_order(change, lambda some, df: slope_product(p[some], df))
        return Steps(change, errors)


def _unit_of(K: Tensor) -> float:
    """The power of two in whose units the kernel is computed, so that no number is lost.

    The weights are in units of targets by kernel and the velocity in units of targets, so with a
    very large or small kernel one of them, times the kernel, would over- or underflow.
    """
    largest = float(K.diagonal().abs().max())
    if not largest > 0 or not math.isfinite(largest):
        return 1.0
    exponent = math.frexp(largest)[1]
    most = math.frexp(torch.finfo(K.dtype).max)[1] // 8  # squares and products stay in range
    return math.ldexp(1.0, exponent) if abs(exponent) > most else 1.0


def _in_units(learner: SGD, kernel_unit: float) -> SGD:
    """The learner that takes the same steps when the kernel is divided by this unit."""
    rates = learner.lr
    lr = rates * kernel_unit if isinstance(rates, float) else [kernel_unit * eta for eta in rates]
    return replace(learner, lr=lr, weight_decay=learner.weight_decay / kernel_unit)


def _lasting_rates(K: Tensor, learner: SGD, epochs: int) -> Tensor:
    """(n, 1) how far a step of the last epoch moves the weights in the end, without decay."""
    n = len(K)
    steps = learner.steps(len(K))
    lr = learner.lr if isinstance(learner.lr, float) else learner.lr[-steps:]
    plain = SGD(lr=lr, batch_size=learner.batch_size, reduction=learner.reduction)
    rates = final_response(plain, n) * lasting_effect(learner)
    return K.new_tensor(rates)[:, None]


def _gmres(operator: Any, rhs: Tensor) -> Tensor:
    """An approximate solution of operator(x) = rhs, all columns as one vector (Saad, 1986)."""
    size = torch.linalg.vector_norm(rhs)
    directions = [rhs / size]
    H = torch.zeros(DIRECTIONS + 1, DIRECTIONS, dtype=torch.float64, device="cpu")
    goal = torch.zeros(DIRECTIONS + 1, dtype=torch.float64, device="cpu")
    goal[0] = float(size)
    for k in range(DIRECTIONS):
        image = operator(directions[k])
        for _ in range(2):  # twice is enough to be orthogonal to rounding
            for i, direction in enumerate(directions):
                share = (direction * image).sum()
                H[i, k] += float(share)
                image = image - share * direction
        norm = float(torch.linalg.vector_norm(image))
        H[k + 1, k] = norm
        small = H[: k + 2, : k + 1]
        weights = torch.linalg.lstsq(small, goal[: k + 2, None], driver="gelsd").solution
        residual = float(torch.linalg.vector_norm(small @ weights - goal[: k + 2, None]))
        if residual <= ENOUGH * float(size) or norm <= torch.finfo(rhs.dtype).tiny:
            break
        directions.append(image / norm)
    parts = (float(w) * direction for w, direction in zip(weights[:, 0], directions, strict=False))
    return torch.stack(list(parts)).sum(0)
