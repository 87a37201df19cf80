"""Tracks the shift and the exact correction sample by sample (Eq. 11, appendix A.5)."""

import copy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from retarget.arrays import GrowingRows, panels
from retarget.engine.cholesky import GrowingCholesky
from retarget.engine.dual import DualLearner
from retarget.engine.followers import ShiftFollower, follow
from retarget.engine.losses import Loss, outputs
from retarget.engine.offline.logistic import LogisticFit
from retarget.engine.stability import GrowthWatch
from retarget.engine.stream import SampleStream
from retarget.errors import InvalidInputError
from retarget.learners import SGD, require_learner
from retarget.scalars import as_non_negative
from retarget.settings import in_plain_torch
from retarget.state_files import part_of, require_shape
from retarget.streaming.intake import Intake, Resumable
from retarget.streaming.turns import in_turn
from retarget.theory.correction import targets_reaching


class ShiftTracker(Resumable):
    r"""Tracks the effective targets of a stream while an online learner learns it (Eq. 11).

    Use it to watch what an online learner has really learned during a stream; for a whole stream,
    use `effective_targets`. It accepts samples as they arrive and keeps them all. Learning sample
    $t$ with the error $e_t = y_t - f(x_t)$ moves the effective target of every earlier sample by
    $\eta\, e_t\, k(x_t, x_i)$: $O(n)$ work per sample. The same rule holds for mini-batches and
    for learners with momentum, where it covers the weights and the velocity together.

    Args:
        kernel: A retarget kernel; a function `k(A, B)`; the name of a scikit-learn kernel; or a
            precomputed Gram matrix (samples are then its row numbers).
        learner: The online learner.
        gamma: Ridge of the offline learner that it is compared with, 0 or more.
        loss: The loss of both learners: `"squared"` or `"cross-entropy"`.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> tracker = rt.ShiftTracker(rt.Linear(), rt.SGD(lr=0.5), gamma=1.0)
        >>> tracker.update(np.array([[1.0, 0.0]]), np.array([1.0]))
        >>> tracker.effective_targets
        array([1.])
        >>> tracker.update(np.array([[0.5, 0.75**0.5]]), np.array([1.0]))
        >>> tracker.effective_targets
        array([1.1875, 1.    ])
    """

    OPTIONS: ClassVar = ("gamma", "loss")

    def __init__(self, kernel: Any, learner: SGD, gamma: float, *, loss: Loss = "squared") -> None:
        require_learner(learner)
        self.learner = learner
        self.gamma = as_non_negative("gamma", gamma)
        self.loss = loss
        self._intake = Intake(kernel, learner, loss)
        watch = GrowthWatch(learner, self._intake.gram, loss=loss)
        self._shift = ShiftFollower(DualLearner(learner), watch, loss)
        self._start = GrowingRows()
        self._waiting: Tensor | None = None  # targets of the mini-batch that is not full yet

    @in_turn
    @in_plain_torch
    def update(self, X: Any, Y: Any, *, initial: Any = None) -> None:
        """Lets the online learner learn any number of samples.

        Args:
            X: (m, ...) samples.
            Y: (m,) or (m, c) their targets.
            initial: Values of the starting function on them, if it is not zero.
        """
        after = self.fork()
        targets, start = after._intake.take(X, Y, initial)
        if len(targets) == 0:
            return
        after._start.append(start)
        waiting = targets if self._waiting is None else torch.cat([self._waiting, targets])
        full = len(waiting) - len(waiting) % self.learner.batch_size
        after._learn(waiting[:full])
        after._waiting = waiting[full:].clone()  # not a view of the caller's array
        after._shift.watch.warn_once()
        self._become(after)

    @property
    @in_turn
    @in_plain_torch
    def effective_targets(self) -> Any:
        """The result of `rt.effective_targets` on the stream so far.

        A mini-batch that is not full counts as a step, as if the stream ended here.
        """
        ended = self._ended()
        values = outputs(ended._shift.values.weights.rows + self._start.rows, self.loss)
        return self._intake.give(self.gamma * ended._shift.learner.coefficients + values)

    @property
    @in_turn
    @in_plain_torch
    def coefficients(self) -> Any:
        """The learner's dual coefficients: `rt.online_coefficients` on the stream so far."""
        return self._intake.give(self._ended()._shift.learner.coefficients.clone())

    def _ended(self) -> Self:
        """Returns this tracker as if the stream ended here, with a step on the open mini-batch."""
        if self._waiting is None:
            raise InvalidInputError("there are no samples yet; call update(X, Y) first")
        if not len(self._waiting):
            return self
        ended = self.fork()
        ended._learn(self._waiting)
        return ended

    @in_turn
    def fork(self) -> Self:
        """Returns an independent copy that continues from here."""
        fork = copy.copy(self)
        fork._intake = self._intake.fork()
        fork._shift = self._shift.fork(fork._intake.gram)
        fork._start = self._start.fork()
        return fork

    def _learn(self, targets: Tensor) -> None:
        """Learns the next samples, of which these are the targets."""
        n = len(self._shift)
        start = self._start.rows[n : n + len(targets)]
        stream = SampleStream(self._intake.kernel_rows, targets, start, first=n)
        follow(stream.windows(self.learner.batch_size), [self._shift])

    def _parts(self) -> dict[str, Any]:
        return {"intake": self._intake, "dual": self._shift.learner, "watch": self._shift.watch}

    def _rest(self) -> dict[str, Any]:
        tensors = {}
        if len(self._shift):
            for number, values in enumerate(self._shift.values.both):
                tensors[f"values{number}"] = values.rows
        if self._waiting is not None:
            tensors |= {"start": self._start.rows, "waiting": self._waiting}
        return tensors

    def _restore(self, state: dict[str, Any]) -> None:
        n = len(self)
        learned = len(self._shift)
        seen = self._shift.watch.seen
        outputs = self._intake.outputs
        if seen != learned or learned > n:
            raise InvalidInputError(
                f"it counts {learned} of {n} samples as learned, and {seen} as seen"
            )
        if learned:
            require_shape("share0", self._shift.learner.coefficients, learned, outputs)
            for number, values in enumerate(self._shift.values.both):
                name = f"values{number}"
                values.append(require_shape(name, state[name], learned, outputs))
        if n:
            self._start.append(require_shape("start", state["start"], n, outputs))
            self._waiting = require_shape("waiting", state["waiting"], n - learned, outputs)


class CorrectionTracker(Resumable):
    r"""Tracks the exact corrected targets of a growing stream (appendix A.5).

    Use it if the stream grows and you need the exact correction of all of it repeatedly; for a
    whole stream, use `corrected_targets`. Its coefficients are those of
    `sklearn.kernel_ridge.KernelRidge`, refitted with every sample. Every new sample changes the
    corrected targets of all earlier ones. It keeps the Cholesky factor of the stream so far. Adding
    a sample is $O(n^2)$ work. Reading the targets is $O(n^2)$ work too, and computes the kernel of
    all pairs again, which avoids keeping a second n x n matrix.

    Args:
        kernel: A retarget kernel; a function `k(A, B)`; the name of a scikit-learn kernel; or a
            precomputed Gram matrix (samples are then its row numbers).
        learner: The online learner that would be trained on the targets.
        gamma: Ridge of the offline learner, 0 or more.
        loss: The loss of both learners: `"squared"` or `"cross-entropy"`. With cross-entropy, each
            reading of the targets fits the offline learner, starting from the previous fit.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> tracker = rt.CorrectionTracker(rt.RBF(1.0), rt.SGD(lr=0.5), gamma=1.0)
        >>> tracker.update(np.array([0.0]), np.array([1.0]))
        >>> tracker.corrected_targets
        array([1.])
        >>> tracker.update(np.array([1.0]), np.array([0.0]))
        >>> tracker.corrected_targets.round(3)
        array([1.035, 0.   ])
    """

    OPTIONS: ClassVar = ("gamma", "loss")

    def __init__(self, kernel: Any, learner: SGD, gamma: float, *, loss: Loss = "squared") -> None:
        require_learner(learner)
        self.learner = learner
        self.gamma = as_non_negative("gamma", gamma)
        self.loss = loss
        self._intake = Intake(kernel, learner, loss)
        self._offline: GrowingCholesky | LogisticFit | None = None
        self._targets = GrowingRows()
        self._start = GrowingRows()

    @in_turn
    @in_plain_torch
    def update(self, X: Any, Y: Any, *, initial: Any = None) -> None:
        """Adds any number of samples.

        Args:
            X: (m, ...) samples.
            Y: (m,) or (m, c) their true targets.
            initial: Values of the starting function on them, if it is not zero.
        """
        n = len(self)
        after = self.fork()
        targets, start = after._intake.take(X, Y, initial)
        if len(targets) == 0:
            return
        for rows in panels(len(targets), 1, targets.device):
            K_rows = after._intake.kernel_rows(slice(n + rows.start, n + rows.stop))
            offline = after._begun()
            if isinstance(offline, LogisticFit):
                offline.extend(K_rows, targets[rows], start[rows])
            else:
                offline.commit(offline.extend(K_rows))
            after._targets.append(targets[rows])
            after._start.append(start[rows])
        (offline.factor if isinstance(offline, LogisticFit) else offline).warn_once()
        self._become(after)

    def _begun(self) -> GrowingCholesky | LogisticFit:
        """Returns the offline learner, made once the first samples show the number of outputs."""
        if self._offline is None:
            gram = self._intake.gram
            if self.loss == "squared":
                self._offline = GrowingCholesky(self.gamma, gram, roomy=True)
            else:
                self._offline = LogisticFit(self.gamma, self._intake.outputs, gram, roomy=True)
        return self._offline

    @in_turn
    def fork(self) -> Self:
        """Returns an independent copy that continues from here."""
        fork = copy.copy(self)
        fork._intake = self._intake.fork()
        if self._offline is not None:
            fork._offline = self._offline.fork(fork._intake.gram)
        fork._targets = self._targets.fork()
        fork._start = self._start.fork()
        return fork

    @property
    @in_turn
    @in_plain_torch
    def corrected_targets(self) -> Any:
        """The result of `rt.corrected_targets` on the stream so far."""
        watch = GrowthWatch(self.learner, self._intake.gram, loss=self.loss)
        solution = self._solution()
        stream = SampleStream(self._intake.kernel_rows, self._targets.rows, self._start.rows)
        targets = targets_reaching(solution, watch, stream)
        watch.warn_once()
        return self._intake.give(targets)

    @property
    @in_turn
    @in_plain_torch
    def coefficients(self) -> Any:
        """The offline learner's dual coefficients, which training on the targets ends with."""
        return self._intake.give(self._solution().clone())  # the next fit starts from its own

    def _solution(self) -> Tensor:
        if self._offline is None:
            raise InvalidInputError("there are no samples yet; call update(X, Y) first")
        if isinstance(self._offline, LogisticFit):
            return self._offline.solve()
        return self._offline.solve(self._targets.rows - self._start.rows)

    def _parts(self) -> dict[str, Any]:
        return {"intake": self._intake}

    def _rest(self) -> dict[str, Any]:
        if self._offline is None:
            return {}
        offline = {f"offline.{key}": value for key, value in self._offline.state_dict().items()}
        return offline | {"targets": self._targets.rows, "start": self._start.rows}

    def _restore(self, state: dict[str, Any]) -> None:
        if len(self) == 0:
            return
        shape = (len(self), self._intake.outputs)
        offline = self._begun()
        if isinstance(offline, LogisticFit):
            offline.load_state_dict(part_of(state, "offline"), len(self), shape)
        else:
            offline.load_state_dict(part_of(state, "offline"))
        if len(offline) != len(self):
            raise InvalidInputError(f"the factor has {len(offline)} rows; expected {len(self)}")
        for name, rows in (("targets", self._targets), ("start", self._start)):
            rows.append(require_shape(name, state[name], *shape))
