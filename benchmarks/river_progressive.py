"""Ridge regression on streams against river's own models: progressive validation and time.

    python benchmarks/river_progressive.py          # river's data sets, one after the other
    python benchmarks/river_progressive.py --time   # a sample's time at 256 features

Each sample is predicted before it is learned, in the order of the data set, with the same options
on all data sets: river's defaults for river's models, and ours for ours, after a running
standardization where that serves the model. Random features and ARF have several seeds, and KNN is
run as often, with river's own random search. Times are CPU time of predicting and learning, on one
thread, of the quickest run. "last value" repeats the target before; it is left out where the best
model is named.

It runs in the environment that `make integration-river` makes.
"""

import os

# before NumPy is imported: one thread
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from river import (
    datasets,
    dummy,
    forest,
    linear_model,
    metrics,
    naive_bayes,
    neighbors,
    optim,
    preprocessing,
    stats,
)

from retarget.integrations.river import StreamingRidgeClassifier, StreamingRidgeRegressor

OURS = "streaming ridge, rbf"
# Samples whose time is taken together; the quickest part is the one that was disturbed least.
PART = 100


def classifiers(classes: int, seed: int) -> dict[str, Any]:
    """The models, new; with the right linear one for this number of classes."""
    linear = linear_model.LogisticRegression() if classes == 2 else linear_model.SoftmaxRegression()
    return {
        OURS: preprocessing.StandardScaler() | StreamingRidgeClassifier("rbf", seed=seed),
        "streaming ridge, linear": preprocessing.StandardScaler() | StreamingRidgeClassifier(),
        "rbf, discount .99": preprocessing.StandardScaler()
        | StreamingRidgeClassifier("rbf", discount=0.99, seed=seed),
        "linear": preprocessing.StandardScaler() | linear,
        "KNN": preprocessing.StandardScaler() | neighbors.KNNClassifier(),
        # it is worse on standardized features
        "ARF": forest.ARFClassifier(seed=seed),
        "Gaussian naive Bayes": naive_bayes.GaussianNB(),
        "last value": dummy.NoChangeClassifier(),
    }


def regressors(seed: int) -> dict[str, Any]:
    """The models, new."""
    return {
        OURS: preprocessing.StandardScaler() | StreamingRidgeRegressor("rbf", seed=seed),
        "streaming ridge, linear": preprocessing.StandardScaler() | StreamingRidgeRegressor(),
        "rbf, discount .99": preprocessing.StandardScaler()
        | StreamingRidgeRegressor("rbf", discount=0.99, seed=seed),
        "linear": preprocessing.StandardScaler() | linear_model.LinearRegression(),
        "linear, intercept_lr=.1": preprocessing.StandardScaler()
        | linear_model.LinearRegression(optim.SGD(0.01), intercept_lr=0.1),
        "KNN": preprocessing.StandardScaler() | neighbors.KNNRegressor(),
        # it diverges on features that are not standardized
        "ARF": preprocessing.StandardScaler() | forest.ARFRegressor(seed=seed),
        "Bayesian linear": preprocessing.StandardScaler() | linear_model.BayesianLinearRegression(),
        "last value": dummy.StatisticRegressor(stats.Shift(0)),
    }


TASKS: dict[str, tuple[Callable[[], Any], Callable[[int], dict[str, Any]], type]] = {
    "Phishing": (datasets.Phishing, lambda seed: classifiers(2, seed), metrics.Accuracy),
    "ImageSegments": (datasets.ImageSegments, lambda seed: classifiers(7, seed), metrics.Accuracy),
    "Bananas": (datasets.Bananas, lambda seed: classifiers(2, seed), metrics.Accuracy),
    "TrumpApproval": (datasets.TrumpApproval, regressors, metrics.MAE),
}


def validate(model: Any, samples: list[tuple[dict[str, float], Any]], metric: Any) -> float:
    """Milliseconds of CPU a sample; the metric is brought up to date."""
    spent = 0.0
    for x, y in samples:
        before = time.process_time()
        predicted = model.predict_one(x)
        model.learn_one(x, y)
        spent += time.process_time() - before
        if predicted is not None:
            metric.update(y, predicted)
    return 1e3 * spent / len(samples)


def compare(names: list[str], seeds: int) -> None:
    """Prints a table for each data set."""
    for name in names:
        make, models, metric_of = TASKS[name]
        samples = list(make())
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in range(seeds):
            for label, model in models(seed).items():
                metric = metric_of()
                spent = validate(model, samples, metric)
                found.setdefault(label, []).append((spent, metric.get()))
        times = {label: min(spent for spent, _ in runs) for label, runs in found.items()}
        scores = {label: [score for _, score in runs] for label, runs in found.items()}
        peers = [label for label in found if "streaming" not in label and "discount" not in label]
        peers.remove("last value")
        bigger = metric_of is metrics.Accuracy
        best = (max if bigger else min)(peers, key=lambda label: statistics.mean(scores[label]))
        what = "accuracy" if bigger else "mean absolute error"
        print(f"\n{name}, {len(samples):,} samples, {seeds} seeds: {what}")
        print(f"  {'':<26}{'mean':>8}{'from':>8}{'to':>8}{'ms':>9}{'time beside ours':>19}")
        for label, found_scores in scores.items():
            numbers = statistics.mean(found_scores), min(found_scores), max(found_scores)
            shown = "".join(f"{number:8.4f}" for number in numbers)
            ratio = times[label] / times[OURS]
            print(f"  {label:<26}{shown}{times[label]:9.3f}{ratio:18.1f}x")
        gap = statistics.mean(scores[OURS]) - statistics.mean(scores[best])
        print(f"  ours less the best of river's models, {best}: {gap:+.4f}")


def made(inputs: int, count: int) -> Iterator[tuple[dict[str, float], int]]:
    """Samples of two classes."""
    draw = random.Random(0)
    for _ in range(count):
        x = {f"x{i}": draw.gauss(0, 1) for i in range(inputs)}
        yield x, int(x["x0"] * x["x1"] + x["x2"] > 0)


def time_parts(model: Any, samples: list[tuple[dict[str, float], int]]) -> list[float]:
    """Milliseconds of CPU a sample, part by part."""
    parts = []
    for start in range(0, len(samples), PART):
        before = time.process_time()
        for x, y in samples[start : start + PART]:
            model.predict_one(x)
            model.learn_one(x, y)
        parts.append(1e3 * (time.process_time() - before) / PART)
    return parts


def show_times() -> None:
    """A sample's time at 256 features, random or given, beside KNN and ARF."""
    nine, many = list(made(9, 2000)), list(made(256, 2000))
    rows = {
        "256 random features of 9": (StreamingRidgeClassifier("rbf"), nine),
        "256 given features": (StreamingRidgeClassifier(), many),
        "KNN, 9 features": (neighbors.KNNClassifier(), nine),
        "ARF, 9 features": (forest.ARFClassifier(seed=1), nine),
    }
    print(f"{'ms a sample':<28}{'quickest':>9}{'median':>9}   limit 0.2 for ours")
    for label, (model, samples) in rows.items():
        parts = sorted(time_parts(model, samples)[1:])
        print(f"{label:<28}{parts[0]:>9.3f}{parts[len(parts) // 2]:>9.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(TASKS), metavar="DATA_SET")
    parser.add_argument("--time", action="store_true", help="only a sample's time at 256 features")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each model")
    given = parser.parse_args()
    if given.time:
        show_times()
    else:
        compare(given.names, given.seeds)
