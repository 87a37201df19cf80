"""Draws the two terms of the iterative correction, C_on and C_off, along a stream.

pip install ".[figures]"
python examples/correction_terms.py docs/images/correction-terms.png
"""

import sys

import numpy as np

import retarget as rt
from retarget.errors import require_extra
from retarget.lab.data.toy import WIDTH, toy_curve
from retarget.learners import COLORS

require_extra("this picture", "figures", "matplotlib")
import matplotlib.pyplot as plt

from retarget.lab.figures.over_seeds import figure_style, letter

LEARNER, GAMMA, BLOCK, RIDGE = rt.SGD(lr=0.5), 1.0, 8, 0.1
SHOWN = 2  # the block of panels C and D

toy = toy_curve(seed=69)  # the samples of Fig. 4, here from left to right
order = np.argsort(toy.x_train)
x, y = toy.x_train[order], toy.y_train[order]
K, n = rt.RBF(WIDTH)(x), len(x)

Z = rt.iterative_targets(K, y, LEARNER, GAMMA, BLOCK, RIDGE)
blocks = rt.correction_terms(K, LEARNER, GAMMA, BLOCK, RIDGE)
online, offline = np.zeros(n), np.zeros(n)
for block in blocks:
    past, new = slice(0, block.rows.start), block.rows
    f_on = f_off = np.zeros(len(y[new]))  # what the learners predict before they see the block
    if past.stop:
        f_on = K[new, past] @ rt.online_coefficients(K[past, past], Z[past], LEARNER)
        f_off = K[new, past] @ rt.offline_coefficients(K[past, past], y[past], GAMMA)
    online[new] = block.online @ (y[new] - f_on)
    offline[new] = block.offline @ (f_off - y[new])

with figure_style():
    figure = plt.figure(figsize=(10, 6.2))
    grid = figure.add_gridspec(2, 2, width_ratios=[2.1, 1])
    top, below = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    samples = np.arange(1, n + 1)
    letter(top, "A", "how many times its rate each sample gets: diagonal of $I + C_{on}$")
    diagonal = np.concatenate([block.modulation.diagonal() for block in blocks])
    top.bar(samples, diagonal, color=COLORS["online"])
    top.axhline(1, color="black", lw=0.8, ls="--")
    letter(below, "B", "how far each target is moved, and by which term")
    below.bar(samples - 0.2, online, 0.4, color=COLORS["online"], label="$C_{on}\\,(y - f_{on})$")
    below.bar(
        samples + 0.2, offline, 0.4, color=COLORS["offline"], label="$C_{off}\\,(f_{off} - y)$"
    )
    below.plot(samples, Z - y, "k.", ms=6, label="both: $z - y$")
    below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    for axes in (top, below):
        axes.set_xlim(0.4, n + 0.6)
        axes.set_xlabel("sample of the stream (shading: blocks)")
        for block in blocks[1::2]:
            axes.axvspan(block.rows.start + 0.5, block.rows.stop + 0.5, color="0.93", zorder=0)
    shown = blocks[SHOWN]
    ends = (shown.rows.start + 0.5, shown.rows.stop + 0.5)
    largest = max(np.abs(part).max() for part in (shown.modulation, shown.offline))
    matrices = (("C", "$I + C_{on}$", shown.modulation), ("D", "$C_{off}$", shown.offline))
    for row, (name, title, matrix) in enumerate(matrices):
        axes = figure.add_subplot(grid[row, 1])
        letter(axes, name, f"{title} of samples {shown.rows.start + 1} to {shown.rows.stop}")
        image = axes.imshow(
            matrix, cmap="RdBu_r", vmin=-largest, vmax=largest, extent=(*ends, *ends[::-1])
        )
        axes.set(xlabel="error on sample", ylabel="moves target of sample")
        figure.colorbar(image, ax=axes, shrink=0.85)
    picture = sys.argv[1] if sys.argv[1:] else "correction-terms.png"
    figure.savefig(picture, dpi=110)

learners = {"true": y, "iterative": Z, "exact": rt.corrected_targets(K, y, LEARNER, GAMMA)}
for name, targets in learners.items():
    print(f"{name} targets: discrepancy {rt.discrepancy(K, targets, y, LEARNER, GAMMA):.3f}")
print(f"Written: {picture}")
