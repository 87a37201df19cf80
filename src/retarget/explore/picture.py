"""From a setting of the page to what is drawn, and to the Python that gives the same numbers."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from retarget.errors import DivergedError, DivergenceWarning, PrecisionWarning, RetargetError
from retarget.explore.state import State
from retarget.kernels import RBF
from retarget.theory.correction import (
    corrected_targets,
    correction_terms,
    discrepancy,
    effective_targets,
)
from retarget.theory.iterative import iterative_targets
from retarget.theory.online import offline_coefficients, online_coefficients, prequential_errors
from retarget.theory.stability import largest_stable_lr

GRID_SIZE = 201
UNTRUSTED = (DivergenceWarning, PrecisionWarning)  # what is told beside a curve that has it
BEYOND_THE_PICTURE = 1e6  # times the targets' own size: nothing to be seen but a number


@dataclass(frozen=True)
class Terms:
    """How the iterative correction made the targets of one block (Eq. 16), sample by sample."""

    first: int  # place of the block's first sample in the stream, from 0
    modulation: np.ndarray  # (b,) the factor on each sample's own error: diagonal of I + C_on
    online: np.ndarray  # (b,) how far C_on moves each target: C_on (y - f_on)
    offline: np.ndarray  # (b,) how far C_off does: C_off (f_off - y)


@dataclass(frozen=True)
class Picture:
    """All numbers of one picture. A learner or targets that could not be computed are left out.

    Attributes:
        stream: (n,) numbers of the points, in the order in which they are learned.
        grid: (m,) where the curves are drawn.
        curves: By learner (offline, online, corrected, iterative), (m,) its function after the
            samples seen.
        targets: In stream order: `effective` of the samples seen; `before`, the same without the
            last of them; `corrected` and `iterative` of the whole stream.
        predicted: (seen,) the online learner's prediction for each sample before it was learned.
        distances: By online learner, how far its curve is from the offline one (root mean square).
        discrepancies: The same as functions: the RKHS norm of the difference (Eq. 14).
        terms: Correction terms of the newest sample's block; none with momentum, before the first
            sample, or where the iteratively corrected learner diverges.
        largest_lr: The largest rate at which every step over the whole stream is stable.
        problems: By name of a curve or of targets, why it is missing or not to be trusted.
    """

    stream: np.ndarray
    grid: np.ndarray
    curves: dict[str, np.ndarray] = field(default_factory=dict)
    targets: dict[str, np.ndarray] = field(default_factory=dict)
    predicted: np.ndarray | None = None
    distances: dict[str, float] = field(default_factory=dict)
    discrepancies: dict[str, float] = field(default_factory=dict)
    terms: Terms | None = None
    largest_lr: float = 0.0
    problems: dict[str, str] = field(default_factory=dict)


def draw(state: State) -> Picture:
    """The picture of a setting."""
    with warnings.catch_warnings():  # `_attempt` tells them, once for each curve and its targets
        for kind in UNTRUSTED:
            warnings.simplefilter("ignore", kind)
        return _Drawing(state).picture()


class _Drawing:
    """A stream, its kernel, and the picture as far as it has been drawn."""

    def __init__(self, state: State) -> None:
        self.state, self.learner = state, state.learner
        self.order = state.stream()
        self.grid = np.linspace(state.low, state.high, GRID_SIZE)
        kernel, x = RBF(state.width), np.array(state.x)[self.order]
        self.y = np.array(state.y)[self.order] - state.start  # what is left to be learned
        self.K, self.K_grid = kernel(x), kernel(self.grid, x)
        self.largest = BEYOND_THE_PICTURE * max(float(np.abs(self.y).max()), 1e-9)
        self.problems: dict[str, str] = {}

    def picture(self) -> Picture:
        state, K, y, learner, gamma = self.state, self.K, self.y, self.learner, self.state.gamma
        seen, before = state.seen, max(state.seen - 1, 0)
        corrected = self._attempt("corrected", lambda: corrected_targets(K, y, learner, gamma))
        iterative = self._attempt(
            "iterative",
            lambda: iterative_targets(K, y, learner, gamma, state.block_size, state.block_ridge),
        )
        curves = {
            "offline": self._function(
                "offline", y, lambda K, y: offline_coefficients(K, y, state.gamma)
            ),
            "online": self._online("online", y),
            "corrected": self._online("corrected", corrected),
            "iterative": self._online("iterative", iterative),
        }
        targets = {
            "effective": self._effective(seen),
            "before": self._effective(before),
            "corrected": corrected,
            "iterative": iterative,
        }
        found = {name: curve for name, curve in curves.items() if curve is not None}
        gram = torch.from_numpy(K)
        return Picture(
            stream=self.order,
            grid=self.grid,
            curves={name: curve + state.start for name, curve in found.items()},
            targets={name: z + state.start for name, z in targets.items() if z is not None},
            predicted=self._predicted(),
            distances={
                name: float(np.sqrt(np.mean((curve - found["offline"]) ** 2)))
                for name, curve in found.items()
                if name != "offline" and "offline" in found
            },
            discrepancies={
                name: self._discrepancy(z)
                for name, z in {"online": y, "corrected": corrected, "iterative": iterative}.items()
                if z is not None and name in found and "offline" in found
            },
            terms=self._terms(iterative),
            largest_lr=largest_stable_lr(lambda rows: gram[rows, rows], learner, len(y)),
            problems=self.problems,
        )

    def _online(self, name: str, targets: np.ndarray | None) -> np.ndarray | None:
        """The online learner's function after the samples seen, on these targets."""
        if targets is None:
            return None
        return self._function(name, targets, lambda K, z: online_coefficients(K, z, self.learner))

    def _function(
        self,
        name: str,
        targets: np.ndarray,
        coefficients: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> np.ndarray | None:
        seen = self.state.seen
        if seen == 0:
            return np.zeros(len(self.grid))
        K, z = self.K[:seen, :seen], targets[:seen]
        return self._attempt(name, lambda: self.K_grid[:, :seen] @ coefficients(K, z))

    def _effective(self, seen: int) -> np.ndarray | None:
        if seen == 0:
            return np.zeros(0)
        K, y = self.K[:seen, :seen], self.y[:seen]
        return self._attempt(
            "effective", lambda: effective_targets(K, y, self.learner, self.state.gamma)
        )

    def _discrepancy(self, targets: np.ndarray) -> float:
        seen = self.state.seen
        if seen == 0:
            return 0.0
        K, z, y = self.K[:seen, :seen], targets[:seen], self.y[:seen]
        return discrepancy(K, z, y, self.learner, self.state.gamma)

    def _terms(self, targets: np.ndarray | None) -> Terms | None:
        """Terms of the newest sample's block, given the iteratively corrected targets."""
        state, learner = self.state, self.learner
        if targets is None or state.seen == 0 or learner.has_memory:
            return None
        start = (state.seen - 1) // state.block_size * state.block_size
        seen, new = slice(0, start + state.block_size), slice(start, start + state.block_size)
        K, z, y = self.K[seen, seen], targets[seen], self.y[seen]
        block = correction_terms(K, learner, state.gamma, state.block_size, state.block_ridge)
        try:
            # without a memory, the past's coefficients are the first of those of the stream
            f_on = K[new, :start] @ online_coefficients(K, z, learner)[:start]
        except DivergedError:
            return None
        online = block[-1].online @ (y[new] - f_on)
        return Terms(start, block[-1].modulation.diagonal(), online, z[new] - y[new] - online)

    def _predicted(self) -> np.ndarray | None:
        seen = self.state.seen
        K, y = self.K[:seen, :seen], self.y[:seen]
        if "online" in self.problems or seen == 0:
            return None
        return np.asarray(y - prequential_errors(K, y, self.learner) + self.state.start)

    def _attempt(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray | None:
        """What `compute` gives; None, and the reason among the problems, where it cannot."""
        with warnings.catch_warnings(record=True) as caught:
            for kind in UNTRUSTED:
                warnings.simplefilter("always", kind)
            try:
                values = compute()
            except DivergedError:
                self.problems[name] = "the online learner diverged: its numbers overflow"
                return None
            except RetargetError as error:
                self.problems[name] = str(error)
                return None
        if not np.abs(values).max() <= self.largest:
            self.problems[name] = "the online learner diverged, far beyond the picture"
            return None
        if caught:
            self.problems[name] = str(caught[-1].message)
        return values


CODE = """\
import numpy as np
import retarget as rt

# {count} points, in the order in which they are learned
x = np.array({x})
y = np.array({y}){start}
learner = rt.SGD(lr={lr!r}, batch_size={batch_size}, momentum={momentum!r})
kernel, gamma = rt.RBF(width={width!r}), {gamma!r}
K = kernel(x)

# after the first {seen} samples: what the online learner was really taught
seen = {seen}
K_seen, y_seen = K[:seen, :seen], y[:seen]
effective = rt.effective_targets(K_seen, y_seen, learner, gamma){add}

# the functions that the learners have by then
query = np.linspace({low!r}, {high!r}, {grid_size})
K_query = kernel(query, x[:seen])
offline = K_query @ rt.offline_coefficients(K_seen, y_seen, gamma){add}
online = K_query @ rt.online_coefficients(K_seen, y_seen, learner){add}
online_discrepancy = rt.discrepancy(K_seen, y_seen, y_seen, learner, gamma)

# the targets, of the whole stream, that correct it: exactly, and without the future
Z = rt.corrected_targets(K, y, learner, gamma)
corrected_targets = Z{add}
corrected = K_query @ rt.online_coefficients(K_seen, Z[:seen], learner){add}
corrected_discrepancy = rt.discrepancy(K_seen, Z[:seen], y_seen, learner, gamma)

Z = rt.iterative_targets(K, y, learner, gamma, block_size={block_size}, ridge={block_ridge!r})
iterative_targets = Z{add}
iterative = K_query @ rt.online_coefficients(K_seen, Z[:seen], learner){add}
iterative_discrepancy = rt.discrepancy(K_seen, Z[:seen], y_seen, learner, gamma)
"""
TERMS = """
# how the last of these were made, in the block of the newest sample (Eq. 16)
blocks = rt.correction_terms(K, learner, gamma, block_size={block_size}, ridge={block_ridge!r})
block = blocks[(seen - 1) // {block_size}]
past, new = slice(0, block.rows.start), block.rows
f_on = K[new, past] @ rt.online_coefficients(K, Z, learner)[past]
modulation = block.modulation.diagonal()
online_move = block.online @ (y[new] - f_on)
offline_move = Z[new] - y[new] - online_move  # C_off (f_off - y)
"""


def python_code(state: State) -> str:
    """A script whose variables hold the numbers of the picture of this setting.

    Of a stream of which nothing has been seen, it is the script for the first sample.
    """
    stream = state.stream()
    start, size = state.start, abs(state.start)
    less, add = ("-", "+") if start > 0 else ("+", "-")
    settings = state.model_dump() | {
        "count": len(stream),
        "x": _numbers(np.array(state.x)[stream]),
        "y": _numbers(np.array(state.y)[stream]),
        "seen": max(state.seen, 1),
        "grid_size": GRID_SIZE,
        "start": f" {less} {size!r}  # the learner starts at {start!r}" if start else "",
        "add": f" {add} {size!r}" if start else "",
    }
    code = CODE if state.learner.has_memory else CODE + TERMS
    return code.format_map(settings)


def _numbers(values: np.ndarray) -> str:
    """The list, a few numbers a line, each to its last digit."""
    texts = [repr(float(value)) for value in values]
    lines = [", ".join(texts[i : i + 5]) for i in range(0, len(texts), 5)]
    return f"[{lines[0]}]" if len(lines) == 1 else "[\n    " + ",\n    ".join(lines) + ",\n]"
