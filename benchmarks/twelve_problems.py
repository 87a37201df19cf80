"""Twelve problems that are in no test, with nothing tuned: what helps, and what does not?

Run `python benchmarks/twelve_problems.py`, where Lightning, transformers and river are installed;
a problem whose framework is missing is left out, and said to be. Each problem is a stream of tasks
that is learned in one pass, in mini-batches of 16 at one rate (.05 for SGD, .003 for Adam and
AdamW). It compares

    plain     the true targets
    auto      `rt.NetworkCorrector(network, learner)`, with its defaults
    learner   `rt.TangentLearner(network)` or `rt.StreamingRidge*`, with their defaults
    joint     five shuffled passes over all tasks together

on a fifth of all rows, by accuracy or (for regression) by the root of the mean squared error of
standardized targets. Numbers are means over the seeds.
"""

import argparse
import importlib.util
import logging
import statistics
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier
from torch import Tensor, nn
from torch.nn import functional

import retarget as rt

BATCH = 16
PASSES = 5  # of joint training
RATES = {"SGD": 0.05, "Adam": 0.003, "AdamW": 0.003}
ENTROPY = "cross-entropy"
COLUMNS = "plain", "auto", "learner", "joint"
torch.set_num_threads(1)


@dataclass
class Stream:
    """Samples, class labels (n,) or real targets (n, c), and the rows of each task."""

    X: Tensor
    y: Tensor
    tasks: list[Tensor]
    test: Tensor  # rows that are set aside

    @property
    def classes(self) -> bool:
        """Whether the targets are class labels."""
        return not self.y.is_floating_point()


@dataclass
class Problem:
    """A stream, a network, and how it is trained."""

    name: str
    framework: str
    optimizer: str
    loss: str
    stream: Callable[[int], Stream]
    network: Callable[[], nn.Module]


def standard(values: np.ndarray) -> Tensor:
    """Columns with mean 0 and variance 1."""
    values = np.asarray(values, dtype=float).reshape(len(values), -1)
    return torch.from_numpy((values - values.mean(0)) / (values.std(0) + 1e-9)).float()


def divided(X: Tensor, y: Tensor, groups: Tensor, seed: int) -> Stream:
    """One task for each group, in random order within it, without the rows of the test."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    test, rest = order[: len(y) // 5], order[len(y) // 5 :]
    tasks = [rest[groups[rest] == group] for group in groups.unique()]
    return Stream(X, y, tasks, test)


def by_value(values: Tensor, tasks: int) -> Tensor:
    """Groups of equal size, from the least value to the greatest."""
    ranks = values.argsort().argsort()
    return ranks * tasks // len(values)


def circuit(make: Callable[..., Any], noise: float, column: int, tasks: int, seed: int) -> Stream:
    """One of Friedman's functions, by one of its arguments."""
    X, y = map(standard, make(600, noise=noise, random_state=seed))
    return divided(X, y, by_value(X[:, column], tasks), seed)


def by_class(X: np.ndarray, labels: np.ndarray, each: int, seed: int) -> Stream:
    """So many classes at a time."""
    y = torch.from_numpy(labels)
    return divided(standard(X), y, y // each, seed)


def arm(seed: int) -> Stream:
    """Where a robot's arm of two joints ends, by the angle of the first."""
    random = np.random.default_rng(seed)
    angles = random.uniform(-np.pi, np.pi, (800, 2))
    first, both = angles[:, 0], angles.sum(1)
    hand = np.stack([np.cos(first) + 0.7 * np.cos(both), np.sin(first) + 0.7 * np.sin(both)], 1)
    X = standard(angles)
    return divided(X, standard(hand), by_value(X[:, 0], 4), seed)


def clouds(seed: int) -> Stream:
    """Ten clouds in 16 dimensions, two at a time."""
    X, y = datasets.make_blobs(800, 16, centers=10, cluster_std=4.0, random_state=seed)
    return by_class(X, y, 2, seed)


def crossed_clouds(seed: int) -> Stream:
    """Six classes of two clouds each, one class at a time."""
    options = {"n_informative": 12, "n_classes": 6, "n_clusters_per_class": 2}
    X, y = datasets.make_classification(600, 20, random_state=seed, **options)
    return by_class(X, y, 1, seed)


def shells(seed: int) -> Stream:
    """Five shells around a point, from the inner to the outer one."""
    options = {"n_samples": 600, "n_features": 6, "n_classes": 5}
    return by_class(*datasets.make_gaussian_quantiles(random_state=seed, **options), 1, seed)


def turned_digits(seed: int) -> Stream:
    """Ten digits upright, then lying on a side, upside down, and on the other side."""
    data = datasets.load_digits()
    images = torch.from_numpy(data.images[:800]).float() / 16
    turns = torch.arange(800) * 4 // 800
    X = torch.stack([image.rot90(int(turn)) for image, turn in zip(images, turns, strict=True)])
    return divided(X[:, None], torch.from_numpy(data.target[:800]), turns, seed)


def waves(seed: int) -> Stream:
    """Sines, squares, triangles and saws of any phase, one kind after another."""
    random = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(4), 150)
    t = np.linspace(0, 4 * np.pi, 32) * random.uniform(0.7, 1.3, (600, 1))
    t = t + random.uniform(0, 2 * np.pi, (600, 1))
    saw = (t / np.pi) % 2 - 1
    shapes = np.stack([np.sin(t), np.sign(np.sin(t)), 2 * np.abs(saw) - 1, saw])
    X = shapes[kinds, np.arange(600)] + 0.3 * random.normal(size=(600, 32))
    y = torch.from_numpy(kinds)
    return divided(torch.from_numpy(X).float()[:, None], y, y, seed)


def sentences(seed: int) -> Stream:
    """Sentences of 12 tokens about six subjects that share half of their words, two at a time."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(480) // 80
    shared = torch.randint(3, 20, (480, 12), generator=random)
    own = 20 + 6 * y[:, None] + torch.randint(9, (480, 12), generator=random)
    X = torch.where(torch.rand(480, 12, generator=random) < 0.5, shared, own)
    return divided(X, y, y // 2, seed)


def lengths(seed: int) -> Stream:
    """How many words of a sentence are of one kind: a number, from short to long sentences."""
    random = torch.Generator().manual_seed(seed)
    length = 4 + torch.arange(400) // 50
    X = torch.randint(3, 40, (400, 12), generator=random)
    X = torch.where(torch.arange(12) < length[:, None], X, 1)
    y = ((X > 2) & (X < 15)).sum(1)
    return divided(X, standard(y.numpy()), (length - 4) // 2, seed)


WORDS = {
    "kitchen": "boil bake stir salt oven pan knife dough onion spoon roast taste",
    "sea": "wave tide boat sail storm harbor fish anchor salt coast net rope",
    "court": "judge law jury trial appeal fine guilty court claim oath fair case",
    "garden": "seed root soil rose rake onion bloom hedge water weed prune shade",
    "music": "chord tune violin beat choir note drum tempo scale voice string fair",
    "space": "orbit star planet comet rocket moon lens scale crew launch wave dust",
    "money": "bank loan price fine stock trade tax coin profit note market claim",
    "health": "heart pulse fever nurse dose sleep bone cough voice water diet scale",
}


def subjects(seed: int) -> Stream:
    """Sentences of eight words about eight subjects, one subject after another."""
    random = np.random.default_rng(seed)
    every = " ".join(WORDS.values()).split()
    owners = [words.split() for words in WORDS.values() for _ in range(100)]
    pick = random.choice
    texts = [[pick(own if random.random() < 0.6 else every) for _ in range(8)] for own in owners]
    X = HashingVectorizer(n_features=256).transform(map(" ".join, texts)).toarray()
    y = torch.arange(800) // 100
    return divided(torch.from_numpy(X).float(), y, y, seed)


def bikes(seed: int) -> Stream:
    """Rented bikes by weather, month after month: the seasons change what is usual."""
    random = np.random.default_rng(seed)
    day = np.arange(720)
    warmth = np.sin(2 * np.pi * (day - 100) / 360) + 0.3 * random.normal(size=720)
    rain, wind = random.exponential(1, (2, 720))
    weekend = (day % 7 > 4).astype(float)
    rented = 3 + 2 * warmth - rain * (1 + 0.5 * weekend) - 0.3 * wind + weekend * warmth
    X = standard(np.column_stack([warmth, rain, wind, weekend, rain * weekend, warmth * weekend]))
    y = standard(rented + 0.5 * random.normal(size=720))
    return divided(X, y, torch.from_numpy(day // 60), seed)


def mlp(inputs: int, outputs: int) -> nn.Module:
    """One hidden layer of 128 units."""
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, outputs))


def image_net() -> nn.Module:
    """Two convolutions for images of 8 x 8."""
    first = nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)
    second = nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(96, 10))


def wave_net() -> nn.Module:
    """Two convolutions along 32 values."""
    first = nn.Conv1d(1, 12, 5, padding=2), nn.ReLU(), nn.AvgPool1d(2)
    second = nn.Conv1d(12, 24, 5, padding=2), nn.ReLU(), nn.AvgPool1d(4)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(96, 4))


class Outputs(nn.Module):
    """A model of Hugging Face as a function of token ids."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Returns outputs (n, c)."""
        return self.model(input_ids=ids).logits


def distilbert(outputs: int) -> nn.Module:
    """A small DistilBERT with random weights, without dropout."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=70, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=16,
        dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=outputs,
        problem_type="regression" if outputs == 1 else "single_label_classification",
    )  # fmt: skip
    return DistilBertForSequenceClassification(config)


reactance = partial(circuit, datasets.make_friedman2, 50.0, 1, 5)
phase = partial(circuit, datasets.make_friedman3, 0.1, 0, 4)
PROBLEMS = (
    Problem("reactance by frequency", "", "SGD", "squared", reactance, lambda: mlp(4, 1)),
    Problem("a robot's arm by angle", "", "Adam", "squared", arm, lambda: mlp(2, 2)),
    Problem("ten clouds, two at a time", "", "SGD", ENTROPY, clouds, lambda: mlp(16, 10)),
    Problem("six classes, one by one", "", "Adam", ENTROPY, crossed_clouds, lambda: mlp(20, 6)),
    Problem("digits that are turned", "", "SGD", "squared", turned_digits, image_net),
    Problem("waves, kind by kind", "", "SGD", ENTROPY, waves, wave_net),
    Problem("five shells", "lightning", "SGD", ENTROPY, shells, lambda: mlp(6, 5)),
    Problem("phase by resistance", "lightning", "Adam", "squared", phase, lambda: mlp(4, 1)),
    Problem("six subjects", "transformers", "SGD", ENTROPY, sentences, lambda: distilbert(6)),
    Problem("words counted", "transformers", "AdamW", "squared", lengths, lambda: distilbert(1)),
    Problem("eight subjects", "sklearn", "", "hinge", subjects, lambda: mlp(256, 8)),
    Problem("rented bikes by month", "river", "", "squared", bikes, lambda: mlp(6, 1)),
)


def loss_of(outputs: Tensor, targets: Tensor, loss: str) -> Tensor:
    """Returns the mean over a mini-batch."""
    if loss == ENTROPY:
        return functional.cross_entropy(outputs, targets)
    return (outputs - targets).square().sum(1).mean() / 2


def rows_of(stream: Stream) -> Tensor:
    """Returns real targets (n, c)."""
    return functional.one_hot(stream.y).float() if stream.classes else stream.y


def optimizer_of(problem: Problem, network: nn.Module) -> torch.optim.Optimizer:
    """Returns the problem's optimizer, without weight decay."""
    kind = getattr(torch.optim, problem.optimizer)
    return kind(network.parameters(), lr=RATES[problem.optimizer], weight_decay=0)


def trained(problem: Problem, network: nn.Module, optimizer: Any, X: Tensor, Z: Tensor) -> None:
    """Trains a network for one pass in order."""
    for x, z in zip(X.split(BATCH), Z.split(BATCH), strict=True):
        optimizer.zero_grad()
        loss_of(network(x), z, problem.loss).backward()
        optimizer.step()


def by_torch(problem: Problem, stream: Stream, network: nn.Module, automatic: bool) -> None:
    """Trains task by task in a plain loop."""
    optimizer = optimizer_of(problem, network)
    learner = rt.SGD(RATES[problem.optimizer], batch_size=BATCH, reduction="mean")
    given = {} if problem.optimizer == "SGD" else {"preconditioner": optimizer}
    corrector = rt.NetworkCorrector(network, learner, loss=problem.loss, **given)
    Y = rows_of(stream)
    for number, rows in enumerate(stream.tasks):
        Z = Y[rows]
        if automatic and given and not number:  # a new Adam has no second moments
            corrector.resume([(stream.X[rows], Z)], Z)
        elif automatic:
            Z = corrector.correct(stream.X[rows], Z)
        trained(problem, network, optimizer, stream.X[rows], Z)


def by_lightning(problem: Problem, stream: Stream, network: nn.Module, automatic: bool) -> None:
    """Trains task by task in Lightning's Trainer."""
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    from retarget.integrations.lightning import TargetCorrectionCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.optimizer = optimizer_of(problem, network)

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return loss_of(self(batch[0]), batch[1], problem.loss)

        def configure_optimizers(self) -> Any:
            return self.optimizer

    logging.getLogger("lightning.pytorch").setLevel("ERROR")
    maker = partial(rt.NetworkCorrector, loss=problem.loss)
    callbacks = [TargetCorrectionCallback(maker)] if automatic else []
    module = Module()
    Y = rows_of(stream)
    for rows in stream.tasks:
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", callbacks=callbacks, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(stream.X[rows], Y[rows]), BATCH))


def by_trainer(problem: Problem, stream: Stream, network: nn.Module, automatic: bool) -> None:
    """Trains task by task in Hugging Face's Trainer."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from retarget.integrations.huggingface import TargetCorrectionTrainer

    args = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=BATCH, num_train_epochs=1, use_cpu=True,
        optim="sgd" if problem.optimizer == "SGD" else "adamw_torch",
        learning_rate=RATES[problem.optimizer], lr_scheduler_type="constant",
        train_sampling_strategy="sequential", max_grad_norm=0.0, save_strategy="no",
        report_to="none", disable_tqdm=True, logging_strategy="no", log_level="error",
        dataloader_pin_memory=False,
    )  # fmt: skip
    maker = partial(rt.NetworkCorrector, loss=problem.loss)
    y = stream.y.squeeze(-1) if not stream.classes else stream.y
    corrected = TargetCorrectionTrainer(network, args, corrector=maker) if automatic else None
    optimizer = optimizer_of(problem, network)
    for rows in stream.tasks:
        task = [
            {"input_ids": ids, "labels": label.item()}
            for ids, label in zip(stream.X[rows], y[rows], strict=True)
        ]
        if corrected is None:  # one optimizer for all tasks, as in the other column
            trainer = Trainer(network, args, train_dataset=task, optimizers=(optimizer, None))
        else:
            trainer = corrected
            trainer.train_dataset = task
        trainer.remove_callback(PrinterCallback)
        trainer.train()


TRAINED = {"": by_torch, "lightning": by_lightning, "transformers": by_trainer}


def score(outputs: Tensor, stream: Stream) -> float:
    """Returns the accuracy, or the error, on the rows that were set aside."""
    true = stream.y[stream.test]
    if stream.classes:
        return (outputs.argmax(1) == true).double().mean().item()
    return (outputs.reshape(true.shape) - true).square().mean().sqrt().item()


def network_scores(problem: Problem, seed: int) -> dict[str, float]:
    """Trains networks and a `TangentLearner`, all from the same weights."""
    stream = problem.stream(seed)
    test = stream.X[stream.test]
    scores = {}

    def fresh() -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(seed)
        network = problem.network()
        return network, Outputs(network) if problem.framework == "transformers" else network

    for name, automatic in (("plain", False), ("auto", True)):
        network, function = fresh()
        TRAINED[problem.framework](problem, stream, network, automatic)
        with torch.no_grad():
            scores[name] = score(function.eval()(test), stream)
    learner = rt.TangentLearner(fresh()[1])
    for rows in stream.tasks:
        learner.learn(stream.X[rows], stream.y[rows])
    scores["learner"] = score(learner.predict(test), stream)
    _, function = fresh()
    optimizer = optimizer_of(problem, function)
    every, Y = torch.cat(stream.tasks), rows_of(stream)
    for _ in range(PASSES):
        rows = every[torch.randperm(len(every))]
        trained(problem, function, optimizer, stream.X[rows], Y[rows])
    with torch.no_grad():
        return scores | {"joint": score(function(test), stream)}


def sklearn_scores(problem: Problem, seed: int) -> dict[str, float]:
    """Compares `SGDClassifier.partial_fit` with `rt.StreamingRidgeClassifier`."""
    stream = problem.stream(seed)
    X, y = stream.X.numpy(), stream.y.numpy()
    test = stream.test.numpy()
    every = torch.cat(stream.tasks).numpy()
    plain = SGDClassifier(random_state=seed)
    joint = SGDClassifier(random_state=seed)
    learner = rt.StreamingRidgeClassifier()
    for task in stream.tasks:
        rows = task.numpy()
        for batch in np.array_split(rows, -(-len(rows) // BATCH)):
            plain.partial_fit(X[batch], y[batch], classes=np.unique(y))
            learner.partial_fit(X[batch], y[batch])
    for number in range(PASSES):
        rows = np.random.default_rng([seed, number]).permutation(every)
        joint.partial_fit(X[rows], y[rows], classes=np.unique(y))
    models = {"plain": plain, "learner": learner, "joint": joint}
    return {name: float(model.score(X[test], y[test])) for name, model in models.items()}


def river_scores(problem: Problem, seed: int) -> dict[str, float]:
    """Compares river's `LinearRegression` with our regressor for river, row by row."""
    from river import linear_model

    from retarget.integrations.river import StreamingRidgeRegressor

    stream = problem.stream(seed)
    samples = [dict(enumerate(row)) for row in stream.X.tolist()]
    y = stream.y[:, 0].tolist()
    every = torch.cat(stream.tasks)
    plain, joint = linear_model.LinearRegression(), linear_model.LinearRegression()
    learner = StreamingRidgeRegressor()
    for row in every.tolist():
        plain.learn_one(samples[row], y[row])
        learner.learn_one(samples[row], y[row])
    torch.manual_seed(seed)
    for _ in range(PASSES):
        for row in every[torch.randperm(len(every))].tolist():
            joint.learn_one(samples[row], y[row])
    models = {"plain": plain, "learner": learner, "joint": joint}
    scores = {}
    for name, model in models.items():
        predictions = [model.predict_one(samples[row]) for row in stream.test.tolist()]
        scores[name] = score(torch.tensor(predictions), stream)
    return scores


SCORES = {"sklearn": sklearn_scores, "river": river_scores}


def main() -> None:
    """Prints a line of the table for each problem."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many (3)")
    parser.add_argument("--framework", help="only problems of this one, such as lightning")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"| problem | with | measure | {' | '.join(COLUMNS)} |\n|---|---|---|---|---|---|---|")
    for problem in PROBLEMS:
        if options.framework is not None and options.framework != problem.framework:
            continue
        if problem.framework and importlib.util.find_spec(problem.framework) is None:
            print(f"{problem.name}: left out, as {problem.framework} is not installed")
            continue
        scored = SCORES.get(problem.framework, network_scores)
        runs = [scored(problem, seed) for seed in range(options.seeds)]
        means = {name: statistics.mean(run[name] for run in runs) for name in runs[0]}
        numbers = [f"{means[name]:.3f}" if name in means else "-" for name in COLUMNS]
        measure = "accuracy" if problem.stream(0).classes else "error"
        setting = ", ".join(filter(None, (problem.framework, problem.loss, problem.optimizer)))
        print(f"| {' | '.join((problem.name, setting, measure, *numbers))} |", flush=True)


if __name__ == "__main__":
    main()
