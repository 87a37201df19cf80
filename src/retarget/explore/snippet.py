"""The Python that gives the numbers of the page."""

import numpy as np

from retarget.explore.picture import GRID_SIZE
from retarget.explore.state import State

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
    settings = state.model_dump() | {
        "count": len(stream),
        "x": _numbers(np.array(state.x)[stream]),
        "y": _numbers(np.array(state.y)[stream]),
        "seen": max(state.seen, 1),
        "grid_size": GRID_SIZE,
        "start": "",
        "add": "",
    }
    if state.start:
        settings["start"] = f" - {state.start!r}  # the learner starts at {state.start!r}"
        settings["add"] = f" + {state.start!r}"
        if state.start < 0:
            settings["start"] = f" + {-state.start!r}  # the learner starts at {state.start!r}"
            settings["add"] = f" - {-state.start!r}"
    code = CODE if state.learner.has_memory else CODE + TERMS
    return code.format_map(settings)


def _numbers(values: np.ndarray) -> str:
    """The list, a few numbers a line, each to its last digit."""
    texts = [repr(float(value)) for value in values]
    lines = [", ".join(texts[i : i + 5]) for i in range(0, len(texts), 5)]
    return f"[{lines[0]}]" if len(lines) == 1 else "[\n    " + ",\n    ".join(lines) + ",\n]"
