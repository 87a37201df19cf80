"""Does `NetworkCorrector(gamma="auto")` make anything worse? Twelve streams, three seeds each.

Run `python benchmarks/auto_gamma.py`. Each stream comes in a few tasks, and a network goes over it
once: on the true targets, and on those of a corrector with `gamma="auto"` and nothing tuned. The
rate, too, is not tuned for either. A fifth of the rows is set aside for the test, from all tasks.
"""

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional

import retarget as rt

SEEDS = 0, 1, 2
ENTROPY = "cross-entropy"
LEAST = 0.01  # a change that counts: a point of accuracy, or 1% of an error
torch.set_num_threads(1)


class Stream(NamedTuple):
    """Samples in the order of their tasks, a network, and how it is trained."""

    X: Tensor
    y: Tensor  # class labels, or standardized real targets
    tasks: list[Tensor]  # rows of each
    network: nn.Module
    lr: float = 0.02
    batch: int = 8
    loss: str = "squared"
    momentum: float = 0.0


def standard(X: np.ndarray) -> Tensor:
    """Columns with mean 0 and variance 1."""
    X = (X - X.mean(0)) / (X.std(0) + 1e-9)
    return torch.from_numpy(X).float()


def by_class(y: Tensor, each: int) -> list[Tensor]:
    """Tasks of so many classes."""
    first = range(0, int(y.max()) + 1, each)
    return [torch.nonzero((y >= k) & (y < k + each)).flatten() for k in first]


def sorted_by(key: Tensor, tasks: int) -> list[Tensor]:
    """Tasks of equal size, from the least to the greatest key; shuffled within a task."""
    return [part[torch.randperm(len(part))] for part in key.argsort().chunk(tasks)]


def mlp(inputs: int, outputs: int, width: int = 64) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


class Transformer(nn.Module):
    """Attention over the rows of an image, or over values of a series."""

    def __init__(self, length: int, size: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(size, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Returns outputs (n, c)."""
        return self.head(self.block(self.embed(x) + self.place).mean(1))


class LowRank(nn.Module):
    """A frozen network with trained low-rank additions to its layers, as LoRA has them."""

    def __init__(self, inputs: int, outputs: int, width: int = 128, rank: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, outputs)
        for layer in (self.first, self.last):
            layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(inputs, rank) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(rank, width))
        self.head_down = nn.Parameter(torch.randn(width, rank) / width**0.5)
        self.head_up = nn.Parameter(torch.zeros(rank, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Returns outputs (n, c)."""
        hidden = torch.relu(self.first(x) + x @ self.down @ self.up)
        return self.last(hidden) + hidden @ self.head_down @ self.head_up


def digits(number: int) -> tuple[Tensor, Tensor]:
    """The first of the images of scikit-learn."""
    data = datasets.load_digits()
    X = torch.from_numpy(data.images[:number]).float() / 16
    return X, torch.from_numpy(data.target[:number])


def conv_digits() -> Stream:
    """A small conv net meets two digits at a time."""
    X, y = digits(1000)
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
    return Stream(X[:, None], y, by_class(y, 2), nn.Sequential(*layers, nn.Linear(256, 10)))


def vit_digits() -> Stream:
    """A transformer meets two digits at a time."""
    X, y = digits(600)
    return Stream(X, y, by_class(y, 2), Transformer(8, 8, 10))


def vit_digits_shuffled() -> Stream:
    """The same in random order."""
    X, y = digits(600)
    return Stream(X, y, list(torch.randperm(len(y)).chunk(5)), Transformer(8, 8, 10))


def lora_digits() -> Stream:
    """A low-rank adapter of a random network meets two digits at a time."""
    X, y = digits(300)
    return Stream(X.flatten(1), y, by_class(y, 2), LowRank(64, 10), loss=ENTROPY)


def wine() -> Stream:
    """One class at a time."""
    data = datasets.load_wine()
    X, y = standard(data.data), torch.from_numpy(data.target)
    return Stream(X, y, by_class(y, 1), mlp(13, 3), batch=4)


def breast_cancer() -> Stream:
    """From small to large radius."""
    data = datasets.load_breast_cancer()
    X, y = standard(data.data), torch.from_numpy(data.target)
    return Stream(X, y, sorted_by(X[:, 0], 4), mlp(30, 2), loss=ENTROPY)


def diabetes() -> Stream:
    """From low to high body-mass index."""
    data = datasets.load_diabetes()
    X, y = standard(data.data), standard(data.target[:, None])
    return Stream(X, y, sorted_by(X[:, 2], 4), mlp(10, 1))


def friedman() -> Stream:
    """By its linear feature."""
    X, y = datasets.make_friedman1(1000, noise=1.0, random_state=0)
    X, y = standard(X), standard(y[:, None])
    return Stream(X, y, sorted_by(X[:, 3], 5), mlp(10, 1))


def housing() -> Stream:
    """Prices that depend on income, age and place, from south to north, with outliers."""
    random = np.random.default_rng(0)
    place, income = random.uniform(-1, 1, (1000, 2)), random.lognormal(0, 0.5, 1000)
    age, rooms = random.uniform(0, 50, 1000), random.normal(5, 1, 1000)
    coast = np.exp(-4 * (place[:, 0] - 0.3 * place[:, 1]) ** 2)
    price = income * (1 + coast) + 0.1 * rooms - 0.01 * age + 0.3 * random.standard_t(3, 1000)
    X = standard(np.column_stack([place, income, age, rooms]))
    y = standard(price[:, None])
    return Stream(X, y, sorted_by(X[:, 1], 5), mlp(5, 1), momentum=0.5)


def series() -> Stream:
    """The next value of a wave whose frequency grows."""
    t = np.arange(616)
    values = np.sin(0.1 * t + 1e-4 * t**2) + 0.1 * np.random.default_rng(0).normal(size=len(t))
    windows = np.lib.stride_tricks.sliding_window_view(values, 17)
    X, y = torch.tensor(windows[:, :16, None]).float(), torch.tensor(windows[:, 16:]).float()
    return Stream(X, y, list(torch.arange(len(y)).chunk(4)), Transformer(16, 1, 1))


def clouds() -> Stream:
    """One class at a time."""
    X, y = datasets.make_classification(
        400, 20, n_informative=10, n_classes=4, n_clusters_per_class=2, random_state=0
    )
    y = torch.from_numpy(y)
    return Stream(standard(X), y, by_class(y, 1), mlp(20, 4, 128), loss=ENTROPY)


def random_order() -> Stream:
    """A linear function with noise: nothing about the order does harm."""
    X, y = datasets.make_regression(1000, 20, n_informative=8, noise=20.0, random_state=0)
    rows = torch.arange(1000).chunk(4)
    return Stream(standard(X), standard(y[:, None]), list(rows), mlp(20, 1))


STREAMS = (
    conv_digits, vit_digits, vit_digits_shuffled, lora_digits, wine, breast_cancer, clouds,
    diabetes, friedman, housing, series, random_order,
)  # fmt: skip


def score(make: Callable[[], Stream], seed: int, automatic: bool) -> tuple[float, str]:
    """Returns the accuracy, or the root of the mean squared error, and what was chosen."""
    torch.manual_seed(seed)
    X, y, tasks, network, lr, batch, loss, momentum = make()
    classes = not y.is_floating_point()
    Y = functional.one_hot(y).float() if classes else y
    test = torch.rand(len(X)) < 0.2
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=momentum)
    learner = rt.SGD(lr, batch_size=batch, momentum=momentum, reduction="mean")
    corrector = rt.NetworkCorrector(
        network, learner, gamma="auto", block_size=2 * batch, loss=loss, seed=seed
    )
    chosen = ""
    for rows in tasks:
        rows = rows[~test[rows]]
        Z = Y[rows]
        if automatic:
            Z = corrector.correct(X[rows], Z)
            chosen += "-1234"[[trial.chosen for trial in corrector.trials].index(True)]
        for x, z in zip(X[rows].split(batch), Z.split(batch), strict=True):
            f = network(x)
            squared = (f - z).square().sum(1).mean() / 2
            optimizer.zero_grad()
            (functional.cross_entropy(f, z) if loss == ENTROPY else squared).backward()
            optimizer.step()
    with torch.no_grad():
        found = network(X[test])
    if classes:
        return (found.argmax(1) == y[test]).double().mean().item(), chosen
    return (found - Y[test]).square().mean().sqrt().item(), chosen


def verdict(before: float, after: float, classes: bool) -> str:
    """Says whether a score is better, worse or about the same."""
    gain = after - before if classes else (before - after) / before
    return "better" if gain > LEAST else "worse" if gain < -LEAST else "alike"


def main() -> None:
    """Prints a line for each stream, and the counts."""
    warnings.simplefilter("ignore", rt.errors.LinearizationWarning)
    streams, runs = Counter[str](), Counter[str]()
    print(f"{'stream':20} {'measure':8}  plain   auto  verdict   s  chosen (- none, 1 to 4 gamma)")
    for make in STREAMS:
        start = time.perf_counter()
        plain, auto = (
            [score(make, seed, automatic) for seed in SEEDS] for automatic in (False, True)
        )
        classes = not make().y.is_floating_point()
        runs.update(verdict(a, b, classes) for (a, _), (b, _) in zip(plain, auto, strict=True))
        one, other = (statistics.mean(value for value, _ in each) for each in (plain, auto))
        found, choices = verdict(one, other, classes), " ".join(choice for _, choice in auto)
        streams[found] += 1
        measure, taken = "accuracy" if classes else "error", time.perf_counter() - start
        numbers = f"{measure:8}  {one:.3f}  {other:.3f}  {found:7} {taken:3.0f}  {choices}"
        print(f"{make.__name__:20} {numbers}", flush=True)
    print(f"streams, mean of {len(SEEDS)} seeds: {dict(streams)}; single runs: {dict(runs)}")


if __name__ == "__main__":
    main()
