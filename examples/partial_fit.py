"""Compares what models with `partial_fit` or `learn_one` know at the end, by the order of the rows.

    python examples/partial_fit.py                                # prints the table
    python examples/partial_fit.py docs/images/partial-fit.png    # also draws the picture

Scikit-learn's handwritten digits: 1,300 pictures are learned once and 497 are asked at the end. The
rows come shuffled, or one class after the other. Three seeds decide the order and the random
models. Models of river are in the table if river is installed.
"""

import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Perceptron, SGDClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier

import retarget as rt
from retarget.errors import require_extra
from retarget.learners import COLORS

SEEDS = 0, 1, 2
PORTION = 100  # rows in a call of `partial_fit`, at most
DIGITS = np.arange(10)
images, labels = load_digits(return_X_y=True)
X, X_test = images[:1300] / 16, images[1300:] / 16
y, y_test = labels[:1300], labels[1300:]


class FromRiver:
    """A model of river behind scikit-learn's methods."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def partial_fit(self, X: np.ndarray, y: np.ndarray, classes: np.ndarray) -> None:
        """Learns the rows one by one."""
        for row, label in zip(X, y, strict=True):
            self.model.learn_one(as_dict(row), int(label))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The label of each row."""
        return np.array([self.model.predict_one(as_dict(row)) for row in X])

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        """The accuracy."""
        return float(np.mean(self.predict(X) == y))


def as_dict(row: np.ndarray) -> dict[int, float]:
    """A sample as river wants it."""
    return dict(enumerate(row.tolist()))


def models_of_sklearn(seed: int) -> dict[str, Any]:
    """New models, by what the table calls them."""
    return {
        "`SGDClassifier()`": SGDClassifier(random_state=seed),
        '`SGDClassifier(loss="log_loss")`': SGDClassifier(loss="log_loss", random_state=seed),
        "`Perceptron()`": Perceptron(random_state=seed),
        "`MLPClassifier()`": MLPClassifier(random_state=seed),
        "`GaussianNB()`": GaussianNB(),
        "`MultinomialNB()`": MultinomialNB(),
    }


def models_of_river(seed: int) -> dict[str, Any]:
    """The same for river; they have no `fit`."""
    from river import forest, linear_model, naive_bayes, neighbors, tree

    return {
        "river's `SoftmaxRegression()`": FromRiver(linear_model.SoftmaxRegression()),
        "river's `GaussianNB()`": FromRiver(naive_bayes.GaussianNB()),
        "river's `HoeffdingTreeClassifier()`": FromRiver(tree.HoeffdingTreeClassifier()),
        "river's `KNNClassifier()`": FromRiver(neighbors.KNNClassifier()),
        "river's `ARFClassifier()`": FromRiver(forest.ARFClassifier(seed=seed)),
    }


def models_of_ours(seed: int) -> dict[str, Any]:
    """Ridge regression on the pixels, and on 1,024 random features of them."""
    return {
        "`rt.StreamingRidgeClassifier()`": rt.StreamingRidgeClassifier(),
        '`rt.StreamingRidgeClassifier(kernel="rbf")`': rt.StreamingRidgeClassifier(
            kernel="rbf", random_state=seed
        ),
    }


def portions(seed: int, by_class: bool) -> list[np.ndarray]:
    """The rows of each call: in random order, or of one class after the other."""
    shuffled = np.random.default_rng(seed).permutation(len(y))
    groups = [shuffled[y[shuffled] == digit] for digit in DIGITS] if by_class else [shuffled]
    return [rows[i : i + PORTION] for rows in groups for i in range(0, len(rows), PORTION)]


def after_one_pass(model: Any, rows: list[np.ndarray]) -> float:
    """The accuracy on pictures that are never learned, after every row was learned once."""
    for portion in rows:
        model.partial_fit(X[portion], y[portion], classes=DIGITS)
    return model.score(X_test, y_test)


def fitted(model: Any) -> float | None:
    """The accuracy after `fit`, which may go over all rows many times."""
    return model.fit(X, y).score(X_test, y_test) if hasattr(model, "fit") else None


def print_table(make_models: list[Callable[[int], dict[str, Any]]]) -> None:
    """Means over the seeds, a row for each model."""
    print("| model | class by class | shuffled | `fit` on all rows |")
    print("|---|---|---|---|")
    for make in make_models:
        for name in make(0):
            batch = [fitted(make(seed)[name]) for seed in SEEDS]
            shuffled, by_class = (
                np.mean([after_one_pass(make(seed)[name], portions(seed, order)) for seed in SEEDS])
                for order in (False, True)
            )
            known = "" if batch[0] is None else f"{np.mean(batch):.2f}"
            print(f"| {name} | {by_class:.2f} | {shuffled:.2f} | {known} |", flush=True)


def on_digits_so_far(model: Any) -> list[float]:
    """After each digit, the accuracy on pictures of the digits that have come so far."""
    accuracies = []
    for digit in DIGITS:
        rows, asked = y == digit, y_test <= digit
        model.partial_fit(X[rows], y[rows], classes=DIGITS)
        accuracies.append(model.score(X_test[asked], y_test[asked]))
    return accuracies


def draw(picture: str) -> None:
    """What two models know while ten classes come one by one."""
    import matplotlib.pyplot as plt

    from retarget.lab.figures.over_seeds import figure_style

    courses = {
        "rt.StreamingRidgeClassifier": (
            on_digits_so_far(rt.StreamingRidgeClassifier(kernel="rbf")),
            COLORS["offline"],
        ),
        "SGDClassifier": (on_digits_so_far(SGDClassifier(random_state=0)), COLORS["online"]),
    }
    gray = "0.47"  # readable on a white page and on a dark one
    with figure_style(), plt.rc_context({"text.color": gray, "axes.labelcolor": gray}):
        figure, axes = plt.subplots(figsize=(7, 2.6))
        for name, (accuracies, color) in courses.items():
            axes.plot(DIGITS, accuracies, "o-", color=color)
            axes.annotate(name, (9, accuracies[-1]), (0, 9), textcoords="offset points", ha="right")
        axes.set(xlabel="the digit learned last", xticks=DIGITS, ylim=(0, 1.15))
        axes.set(ylabel="accuracy on the\ndigits so far", yticks=[0, 0.5, 1])
        axes.tick_params(colors=gray)
        axes.spines[:].set_color(gray)
        figure.savefig(picture, dpi=110, transparent=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)  # MLPClassifier stops after 200 passes
    if len(sys.argv) > 1:
        require_extra("the picture", "figures", "matplotlib")
    river = [models_of_river] if find_spec("river") else []
    print_table([models_of_sklearn, *river, models_of_ours])
    for picture in sys.argv[1:]:
        draw(picture)
        print(f"Written: {picture}")
