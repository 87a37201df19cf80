"""Draws which later digits overwrote earlier ones, in a stream with ten planted conflicts.

pip install ".[figures]"
python examples/influence.py docs/images/influence.png
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import retarget as rt
from retarget.errors import require_extra
from retarget.learners import COLORS

require_extra("this picture", "figures", "matplotlib")
import matplotlib.pyplot as plt

from retarget.lab.figures.over_seeds import figure_style

GAMMA, LEARNER, N = 0.1, rt.SGD(lr=0.2), 600

rng = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
rows = rng.permutation(len(labels))[:N]
X, y = images[rows] / 16, labels[rows]
victims, culprits = rng.choice(200, 10, replace=False), 200 + rng.choice(400, 10, replace=False)
X[culprits] = X[victims] + 0.02 * rng.normal(size=(10, 64))  # the same pictures again ...
y[culprits] = (y[victims] + rng.integers(1, 10, 10)) % 10  # ... under another label

K, Y = rt.RBF(width=2.0)(X), np.eye(10)[y]
A = rt.online_coefficients(K, Y, LEARNER)
pull = np.triu(K, 1) * A[:, y].T  # row i, column j > i: what learning j did to the target of i
found = pull[victims].argmin(1)
print(f"found the planted copy of {(found == culprits).sum()} of {len(victims)} samples")

with figure_style():
    figure = plt.figure(figsize=(10, 4.4))
    left, right = figure.subfigures(1, 2, width_ratios=[1.1, 1])
    places = left.subplots(4, 4)
    for line, i in zip(places, np.argsort(pull.min(1))[:4], strict=True):
        for place, j in zip(line, (i, *np.argsort(pull[i])[:3]), strict=True):
            place.imshow(X[j].reshape(8, 8), cmap="Greys")
            place.set_axis_off()
            moved = "" if j == i else f": {pull[i, j]:+.2f}"
            place.set_title(f"{j}, labeled {y[j]}{moved}", fontsize=8)
    left.suptitle("overwritten, and the three that pulled most", fontsize=10)
    curve, strongest = right.subplots(), np.sort(pull.min(1))
    curve.plot(np.arange(1, N + 1), strongest, color=COLORS["online"], label="all 600 samples")
    of_planted = pull[victims, culprits]
    ranks = 1 + np.searchsorted(strongest, of_planted)
    curve.plot(ranks, of_planted, "ko", label="those whose pictures came again")
    curve.set(xscale="log", xlabel="rank: the most overwritten sample first")
    curve.set_ylabel("strongest pull of a later sample")
    curve.legend(loc="lower right")
    picture = sys.argv[1] if sys.argv[1:] else "influence.png"
    figure.savefig(picture, dpi=110)
print(f"Written: {picture}")
