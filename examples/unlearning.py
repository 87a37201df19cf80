"""Draws the accuracy of a learner that learns wrong labels and forgets them again.

pip install ".[figures]"
python examples/unlearning.py docs/images/unlearning.png
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

images, labels = load_digits(return_X_y=True)
X, Y = images / 16, np.eye(10)[labels]
portions = np.arange(1300).reshape(13, 100)
wrong = Y.copy()
bad = portions[3:6].ravel()
wrong[bad] = np.roll(Y[bad], 1, axis=1)  # every label one too high


def accuracy(learner: rt.StreamingRidge) -> float:
    """The accuracy on the 497 images that are never learned."""
    return float(np.mean(learner.predict(X[1300:]).argmax(1) == labels[1300:]))


learner = rt.StreamingRidge(rt.RBF(width=4.0), gamma=0.1, features=512)
never = learner.empty()  # the same learner without the bad portions
course, course_never = [], []
for number, rows in enumerate(portions):
    learner.learn(X[rows], wrong[rows])
    if number not in (3, 4, 5):
        never.learn(X[rows], Y[rows])
    if number == 9:
        before = accuracy(learner)
        learner.forget(X[bad], wrong[bad])
        print(f"accuracy {before:.3f}, with the bad portions taken back {accuracy(learner):.3f}")
    course.append(accuracy(learner))
    course_never.append(accuracy(never))
gap = np.abs(learner.predict(X) - never.predict(X)).max()
print(f"at the end, equal to a learner that never saw them: {bool(gap < 1e-9)}")

with figure_style():
    figure, axes = plt.subplots(figsize=(7, 3.4))
    learned = 100 * np.arange(1, 14)
    axes.axvspan(300, 600, color="0.92", zorder=0)
    axes.annotate("wrong labels", (450, 0.42), ha="center")
    axes.plot(
        [*learned[:9], 1000, *learned[9:]],
        [*course[:9], before, *course[9:]],
        "o-",
        color=COLORS["online"],
        label="learns everything, takes 300 samples back",
    )
    axes.plot(learned, course_never, "x--", color=COLORS["offline"], label="never saw them")
    axes.annotate("forget", (1000, before), (1080, before), arrowprops={"arrowstyle": "-"})
    axes.set(xlabel="samples that came in", ylabel="accuracy", ylim=(0.38, 1))
    axes.legend(loc="lower right")
    picture = sys.argv[1] if sys.argv[1:] else "unlearning.png"
    figure.savefig(picture, dpi=110)
print(f"Written: {picture}")
