"""What the order of a stream costs river's classifiers, and what it costs ridge regression.

    pip install ".[river]"
    OMP_NUM_THREADS=1 python benchmarks/river_orders.py

River's ImageSegments, 2,310 pictures of seven classes: a random fifth is held out, the others are
learned one by one, in random order and sorted by class. "Before" is the accuracy on each sample
just before it is learned (progressive validation), "held out" that at the end. The inputs are
standardized beforehand for all models: a scaler that learns on the way would be at the mercy of the
order, and so would every model behind it. Three seeds, which decide what is held out, the random
order, and the random models.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from river import datasets, forest, linear_model, multiclass, neighbors

import retarget as rt

SEEDS, CLASSES = (0, 1, 2), 7


class Ours:
    """rt.StreamingRidge behind river's two verbs; the ridge is 1."""

    def __init__(self) -> None:
        self.ridge = rt.StreamingRidge(rt.RBF(width=6.0), gamma=1.0, features=256)

    def learn_one(self, x: dict[str, float], y: int) -> None:
        """One sample."""
        self.ridge.learn(np.array([list(x.values())]), np.eye(CLASSES)[[y]])

    def predict_one(self, x: dict[str, float]) -> int | None:
        """The class with the largest output; None before anything was learned."""
        if not self.ridge.samples:
            return None
        return int(self.ridge.predict(np.array([list(x.values())])).argmax())


def models(seed: int) -> dict[str, Callable[[], Any]]:
    """Makers of what is compared."""
    return {
        "logistic regression, one against the rest": lambda: multiclass.OneVsRestClassifier(
            linear_model.LogisticRegression()
        ),
        "5 nearest neighbors of the last 1,000": lambda: neighbors.KNNClassifier(n_neighbors=5),
        "adaptive random forest, 10 trees": lambda: forest.ARFClassifier(n_models=10, seed=seed),
        "rt.StreamingRidge, 256 features": Ours,
    }


def run(make: Callable[[], Any], stream: list[Any], held_out: list[Any]) -> tuple[float, ...]:
    """Accuracy before and held out, and milliseconds for each sample of the stream."""
    model, right = make(), 0
    start = time.perf_counter()
    for x, y in stream:
        right += model.predict_one(x) == y
        model.learn_one(x, y)
    spent = 1000 * (time.perf_counter() - start) / len(stream)
    found = [model.predict_one(x) == y for x, y in held_out]
    return right / len(stream), float(np.mean(found)), spent


def main() -> None:
    """Prints a row for each model and order: means over the seeds."""
    inputs, labels = zip(*datasets.ImageSegments(), strict=True)
    X = np.array([list(x.values()) for x in inputs])
    X = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)
    names = sorted(set(labels))
    samples = [
        (dict(zip(inputs[0], row.tolist(), strict=True)), names.index(label))
        for row, label in zip(X, labels, strict=True)
    ]
    print("| model | order | before | held out | ms a sample |\n|---|---|---|---|---|")
    for name in models(0):
        for order in ("random", "by class"):
            rows = []
            for seed in SEEDS:
                shuffled = np.random.default_rng(seed).permutation(len(samples))
                stream = [samples[i] for i in shuffled[len(samples) // 5 :]]
                if order == "by class":
                    stream.sort(key=lambda sample: sample[1])
                held_out = [samples[i] for i in shuffled[: len(samples) // 5]]
                rows.append(run(models(seed)[name], stream, held_out))
            before, at_end, spent = np.mean(rows, 0)
            print(f"| {name} | {order} | {before:.3f} | {at_end:.3f} | {spent:.2f} |", flush=True)


if __name__ == "__main__":
    main()
