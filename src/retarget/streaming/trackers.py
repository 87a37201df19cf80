"""The shift and the exact correction, followed sample by sample (Eq. 11, appendix A.5)."""

import copy
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import GrowingRows, as_positive, panels
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.state_files import part_of
from retarget.streaming.intake import Intake
from retarget.streaming.resumable import Resumable
from retarget.theory.cholesky import GrowingCholesky
from retarget.theory.correction import targets_reaching
from retarget.theory.dual import DualLearner, carry_over
from retarget.theory.stability import require_converging


class ShiftTracker(Resumable):
    r"""Follows the effective targets of a stream while an online learner learns it (Eq. 11).

    Learning sample $t$ with the error $e_t = y_t - f(x_t)$ moves the effective target of every
    earlier sample by $\eta\, e_t\, k(x_t, x_i)$: $O(n)$ work a sample. For mini-batches and
    learners with a memory the rule is the same, for the weights and the velocity together.

    Args:
        kernel: A retarget kernel; a function `k(A, B)`; the name of a scikit-learn kernel; or a
            precomputed Gram matrix (samples are then its row numbers).
        learner: The online learner.
        gamma: Ridge of the offline learner that it is compared with, above 0.

    Example:
        >>> import numpy as np, retarget as rt
        >>> tracker = rt.ShiftTracker(rt.Linear(), rt.SGD(lr=0.5), gamma=1.0)
        >>> tracker.update(np.array([[1.0, 0.0]]), np.array([1.0]))
        >>> tracker.effective_targets
        array([1.])
        >>> tracker.update(np.array([[0.5, 0.75**0.5]]), np.array([1.0]))
        >>> tracker.effective_targets
        array([1.1875, 1.    ])
    """

    def __init__(self, kernel: Any, learner: SGD, gamma: float) -> None:
        self.learner, self.gamma = learner, as_positive("gamma", gamma)
        self._intake = Intake(kernel, learner)
        self._dual = DualLearner(learner)
        # The kernel of all samples so far times their shares in the weights (and the velocity):
        # the functions that these represent, at the samples.
        self._values = tuple(GrowingRows() for _ in self._dual.shares)
        self._start = GrowingRows()
        self._waiting: Tensor | None = None  # targets of a mini-batch that is not full yet

    def __len__(self) -> int:
        return len(self._intake)

    @torch.no_grad()
    def update(self, X: Any, Y: Any, *, initial: Any = None) -> None:
        """Lets the learner learn any number of samples.

        Args:
            X: (m, ...) samples.
            Y: (m,) or (m, c) their targets.
            initial: Values of the starting function on them, if it is not zero.
        """
        residual, start = self._intake.take(X, Y, initial)
        if len(residual) == 0:
            return
        self._start.append(start)
        waiting = residual if self._waiting is None else torch.cat([self._waiting, residual])
        full = len(waiting) - len(waiting) % self.learner.batch_size
        for rows in panels(full, self.learner.batch_size, waiting.device):
            self._learn(waiting[rows])
        self._waiting = waiting[full:]

    @property
    @torch.no_grad()
    def effective_targets(self) -> Any:
        """Those of all samples so far: `rt.effective_targets` on the stream up to here.

        Samples of a mini-batch that is not full yet count as one, as if the stream ended here.
        """
        ended = self._ended()
        effective = self.gamma * ended._dual.coefficients + ended._values[0].rows + self._start.rows
        return self._intake.give(effective)

    @property
    @torch.no_grad()
    def coefficients(self) -> Any:
        """The learner's dual coefficients: `rt.online_coefficients` on the stream up to here."""
        return self._intake.give(self._ended()._dual.coefficients.clone())

    def _ended(self) -> Self:
        """This tracker as if the stream ended here: an open mini-batch is a step of its own."""
        if self._waiting is None:
            raise InvalidInputError("there are no samples yet; call update(X, Y) first")
        if not len(self._waiting):
            return self
        ended = copy.copy(self)
        ended._dual, ended._values = copy.deepcopy((self._dual, self._values))
        ended._learn(self._waiting)
        return ended

    def _learn(self, targets: Tensor) -> None:
        n, m = len(self._dual), len(targets)
        K_rows = self._intake.kernel_rows(slice(n, n + m))
        window = self._dual.window(K_rows)
        errors = window.errors(targets)
        require_converging(errors, n, self.learner, self._intake.gram)
        # Eq. 11: earlier samples move by the new errors times the kernel, the new ones start at
        # the prediction for them, plus that.
        inherited = window.inherited_after()
        carry_over(self._values, window)
        for values, prediction, deposit in zip(
            self._values, inherited, window.deposits(errors), strict=False
        ):
            if n:
                values.rows.addmm_(K_rows[:, :n].mT, deposit)
            values.append(torch.addmm(prediction, K_rows[:, n:], deposit))
        self._dual.learn(window, errors)

    def _options(self) -> dict[str, Any]:
        return {"gamma": self.gamma}

    def _state(self) -> dict[str, Any]:
        state = {f"intake.{key}": value for key, value in self._intake.state_dict().items()}
        state |= {f"dual.{key}": value for key, value in self._dual.state_dict().items()}
        if len(self._dual):
            state |= {f"values{part}": values.rows for part, values in enumerate(self._values)}
        if self._waiting is not None:
            state |= {"start": self._start.rows, "waiting": self._waiting}
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self._intake.load_state_dict(part_of(state, "intake"))
        self._dual.load_state_dict(part_of(state, "dual"))
        for part, values in enumerate(self._values):
            if f"values{part}" in state:
                values.append(state[f"values{part}"])
        if "waiting" in state:
            self._start.append(state["start"])
            self._waiting = state["waiting"]


class CorrectionTracker(Resumable):
    r"""Follows the exact corrected targets of a growing stream (appendix A.5).

    Every new sample changes the corrected targets of all earlier ones, by an amount that scales
    with the offline learner's error on it. What has to be kept for that is the Cholesky factor of
    the stream so far: taking in a sample is $O(n^2)$ work; reading the targets is $O(n^2)$ too, and
    asks the kernel for all pairs again, so that no n x n matrix is kept beside the factor.

    Args:
        kernel: A retarget kernel; a function `k(A, B)`; the name of a scikit-learn kernel; or a
            precomputed Gram matrix (samples are then its row numbers).
        learner: The online learner that would be trained on the targets.
        gamma: Ridge of the offline learner, above 0.

    Example:
        >>> import numpy as np, retarget as rt
        >>> tracker = rt.CorrectionTracker(rt.RBF(1.0), rt.SGD(lr=0.5), gamma=1.0)
        >>> tracker.update(np.array([0.0]), np.array([1.0]))
        >>> tracker.corrected_targets
        array([1.])
        >>> tracker.update(np.array([1.0]), np.array([0.0]))
        >>> tracker.corrected_targets.round(3)
        array([1.035, 0.   ])
    """

    def __init__(self, kernel: Any, learner: SGD, gamma: float) -> None:
        self.learner, self.gamma = learner, as_positive("gamma", gamma)
        self._intake = Intake(kernel, learner)
        self._factor = GrowingCholesky(self.gamma, self._intake.gram, roomy=True)
        self._targets, self._start = GrowingRows(), GrowingRows()

    def __len__(self) -> int:
        return len(self._intake)

    @torch.no_grad()
    def update(self, X: Any, Y: Any, *, initial: Any = None) -> None:
        """Takes in any number of samples.

        Args:
            X: (m, ...) samples.
            Y: (m,) or (m, c) their true targets.
            initial: Values of the starting function on them, if it is not zero.
        """
        n = len(self)
        residual, start = self._intake.take(X, Y, initial)
        for rows in panels(len(residual), 1, residual.device):
            K_rows = self._intake.kernel_rows(slice(n + rows.start, n + rows.stop))
            self._factor.commit(self._factor.extend(K_rows))
            self._targets.append(residual[rows])
            self._start.append(start[rows])

    @property
    @torch.no_grad()
    def corrected_targets(self) -> Any:
        """Those of all samples so far: `rt.corrected_targets` on the stream up to here."""
        targets = targets_reaching(self._intake.kernel_rows, self._solution(), self.learner)
        return self._intake.give(targets + self._start.rows)

    @property
    @torch.no_grad()
    def coefficients(self) -> Any:
        """The dual coefficients that a learner trained on them ends with: the offline learner's."""
        return self._intake.give(self._solution())

    def _solution(self) -> Tensor:
        if len(self) == 0:
            raise InvalidInputError("there are no samples yet; call update(X, Y) first")
        return self._factor.solve(self._targets.rows)

    def _options(self) -> dict[str, Any]:
        return {"gamma": self.gamma}

    def _state(self) -> dict[str, Any]:
        state = {f"intake.{key}": value for key, value in self._intake.state_dict().items()}
        state |= {f"factor.{key}": value for key, value in self._factor.state_dict().items()}
        if len(self):
            state |= {"targets": self._targets.rows, "start": self._start.rows}
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self._intake.load_state_dict(part_of(state, "intake"))
        self._factor.load_state_dict(part_of(state, "factor"))
        if "targets" in state:
            self._targets.append(state["targets"])
            self._start.append(state["start"])
