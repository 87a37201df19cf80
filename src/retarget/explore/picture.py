"""Computes what the page draws for a setting, and Python code that gives the same numbers."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
UNTRUSTED = (DivergenceWarning, PrecisionWarning)  # reported next to a curve
BEYOND_THE_PICTURE = 1e6  # times the size of the targets: too large to draw


@dataclass(frozen=True)
class Terms:
    """How the iterative correction made the targets of one block (Eq. 16), sample by sample."""

    first: int  # position of the block's first sample in the stream, from 0
    modulation: np.ndarray  # (b,) the factor on each sample's own error: diagonal of I + C_on
    online: np.ndarray  # (b,) how far C_on moves each target: C_on (y - f_on)
    offline: np.ndarray  # (b,) how far C_off does: C_off (f_off - y)


@dataclass(frozen=True)
class Picture:
    """All numbers of one picture. Learners and targets that could not be computed are left out."""

    stream: np.ndarray  # (n,) numbers of the points, in the order in which they are learned
    grid: np.ndarray  # (m,) where the curves are drawn
    # offline, online, corrected, iterative: (m,) each learner's function after the samples seen
    curves: dict[str, np.ndarray]
    # in stream order: `effective` of the samples seen; `before`, the same without the last of them;
    # `corrected` and `iterative` of the whole stream
    targets: dict[str, np.ndarray]
    predicted: np.ndarray | None  # (seen,) by the online learner before each sample was learned
    distances: dict[str, float]  # of each online learner's curve from the offline one (RMS)
    discrepancies: dict[str, float]  # the same as functions: RKHS norm of the difference (Eq. 14)
    # for the newest sample's block; None with momentum, or if that learner diverges
    terms: Terms | None
    largest_lr: float  # the largest rate at which every step over the whole stream is stable
    problems: dict[str, str]  # by curve or targets: why it is missing or unreliable


def draw(state: State) -> Picture:
    """Computes the picture of a setting."""
    with warnings.catch_warnings():  # `_attempt` reports them, once for each curve and its targets
        for kind in UNTRUSTED:
            warnings.simplefilter("ignore", kind)
        return _Drawing(state).picture()


class _Drawing:
    """A stream, its kernel, and the problems found so far."""

    def __init__(self, state: State) -> None:
        self.state, self.learner, self.seen = state, state.learner, state.seen
        self.order = state.stream()
        self.grid = np.linspace(state.low, state.high, GRID_SIZE)
        kernel, x = RBF(state.width), np.array(state.x)[self.order]
        self.y = np.array(state.y)[self.order] - state.start  # what remains to be learned
        self.K, self.K_grid = kernel(x), kernel(self.grid, x)
        self.largest = BEYOND_THE_PICTURE * max(float(np.abs(self.y).max()), 1e-9)
        self.problems: dict[str, str] = {}

    def picture(self) -> Picture:
        state, y, learner, gamma = self.state, self.y, self.learner, self.state.gamma
        blocks = state.block_size, state.block_ridge
        corrected = self._attempt("corrected", corrected_targets, self.K, y, learner, gamma)
        iterative = self._attempt(
            "iterative", iterative_targets, self.K, y, learner, gamma, *blocks
        )
        learned = {"online": y, "corrected": corrected, "iterative": iterative}
        learned = {name: z for name, z in learned.items() if z is not None}
        curves = {"offline": self._curve("offline", offline_coefficients, y, gamma)}
        for name, z in learned.items():
            curves[name] = self._curve(name, online_coefficients, z, learner)
        targets = {
            "effective": self._effective(self.seen),
            "before": self._effective(self.seen - 1),
        }
        targets |= {"corrected": corrected, "iterative": iterative}
        found = {name: curve for name, curve in curves.items() if curve is not None}
        compared = [name for name in learned if name in found and "offline" in found]
        gram = torch.from_numpy(self.K)
        return Picture(
            stream=self.order,
            grid=self.grid,
            curves={name: curve + state.start for name, curve in found.items()},
            targets={name: z + state.start for name, z in targets.items() if z is not None},
            predicted=self._predicted(),
            distances={
                name: float(np.sqrt(np.mean((found[name] - found["offline"]) ** 2)))
                for name in compared
            },
            discrepancies={name: self._discrepancy(learned[name]) for name in compared},
            terms=None if iterative is None else self._terms(iterative),
            largest_lr=largest_stable_lr(lambda rows: gram[rows, rows], learner, len(y)),
            problems=self.problems,
        )

    def _curve(
        self, name: str, coefficients: Callable[..., Any], z: np.ndarray, option: Any
    ) -> np.ndarray | None:
        """Returns a learner's function after the samples seen, trained on these targets."""
        if self.seen == 0:
            return np.zeros(len(self.grid))
        s = slice(0, self.seen)
        return self._attempt(
            name, lambda: self.K_grid[:, s] @ coefficients(self.K[s, s], z[s], option)
        )

    def _effective(self, seen: int) -> np.ndarray | None:
        if seen <= 0:
            return np.zeros(0)
        K, y = self.K[:seen, :seen], self.y[:seen]
        return self._attempt("effective", effective_targets, K, y, self.learner, self.state.gamma)

    def _discrepancy(self, targets: np.ndarray) -> float:
        if self.seen == 0:
            return 0.0
        s = slice(0, self.seen)
        return discrepancy(self.K[s, s], targets[s], self.y[s], self.learner, self.state.gamma)

    def _terms(self, targets: np.ndarray) -> Terms | None:
        """Returns the terms of the newest block, given the iteratively corrected targets."""
        state, learner, size = self.state, self.learner, self.state.block_size
        if state.seen == 0 or learner.has_memory:
            return None
        start = (state.seen - 1) // size * size
        seen, new = slice(0, start + size), slice(start, start + size)
        K, z, y = self.K[seen, seen], targets[seen], self.y[seen]
        block = correction_terms(K, learner, state.gamma, size, state.block_ridge)[-1]
        try:
            # without momentum, the past's coefficients are the first of the stream's
            f_on = K[new, :start] @ online_coefficients(K, z, learner)[:start]
        except DivergedError:
            return None
        online = block.online @ (y[new] - f_on)
        return Terms(start, block.modulation.diagonal(), online, z[new] - y[new] - online)

    def _predicted(self) -> np.ndarray | None:
        if "online" in self.problems or self.seen == 0:
            return None
        K, y = self.K[: self.seen, : self.seen], self.y[: self.seen]
        return np.asarray(y - prequential_errors(K, y, self.learner) + self.state.start)

    def _attempt(self, name: str, compute: Callable[..., Any], *options: Any) -> np.ndarray | None:
        """Returns the result; if it cannot be computed, notes the problem and returns None."""
        with warnings.catch_warnings(record=True) as caught:
            for kind in UNTRUSTED:
                warnings.simplefilter("always", kind)
            try:
                values: np.ndarray = compute(*options)
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
    """Returns a script whose variables hold the numbers of the picture of this setting.

    If no sample has been seen yet, the script is for the first one.
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
    """Formats a list, a few numbers per line, with full precision."""
    texts = [repr(float(value)) for value in values]
    lines = [", ".join(texts[i : i + 5]) for i in range(0, len(texts), 5)]
    return f"[{lines[0]}]" if len(lines) == 1 else "[\n    " + ",\n    ".join(lines) + ",\n]"
