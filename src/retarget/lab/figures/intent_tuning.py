"""The baselines of Fig. 8 that train the network itself, which takes minutes to an hour each."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import polars as pl
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from retarget.lab.data import minilm
from retarget.lab.experiment import Config, Count, Family, Positive, one_by_one
from retarget.lab.figures.intents import (
    COLUMNS,
    FOLDS,
    IntentData,
    Source,
    draw,
    intent_checksums,
    intent_data,
    stops,
    summarize,
)
from retarget.progress import PatientBar

WARM_UP = 0.1  # of the steps, in which the rate rises; then it falls to zero
ALIKE = 16  # mini-batches whose sentences are sorted by length, so that little is padding


class Tuning(Config):
    """One fine-tuning of all parameters with a new head, by AdamW.

    Attributes:
        learner: "joint", on all sentences at once; "fine-tuning", `step` intents after another;
            "replay", the same, with as many stored sentences in each mini-batch as new ones.
        lr: The largest rate of the network's parameters.
        head_lr: That of the head, which starts at zero. With the network's own rate it would hardly
            move in the few steps of a task, and the network would change in its place.
        epochs: Passes over the sentences of each task.
        capacity: Sentences that replay stores, a random sample of all so far.
        intents: How many of the intents; None for all.
        per_intent: How many sentences of each, in both sets; None for all.
        fold: None for the official test set, or which fifth of the training set is the test.
        device: Where the network is trained.
    """

    data: Source
    learner: Literal["joint", "fine-tuning", "replay"]
    step: Count
    lr: Positive
    head_lr: Positive = 1e-3
    epochs: Count
    batch_size: Count = 32
    capacity: int = Field(default=0, ge=0)
    intents: Count | None = None
    per_intent: Count | None = None
    fold: int | None = Field(default=None, ge=0, lt=FOLDS)
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The learner, and what runs of a figure differ in."""
        return {
            "joint": f"joint, rate {self.lr:g}",
            "fine-tuning": "fine-tuning",
            "replay": f"replay, {self.capacity:,} stored",
        }[self.learner]


class TunedEncoder(nn.Module):
    """The network with a head on the mean of the tokens, which starts at zero."""

    def __init__(self, encoder: minilm.SentenceEncoder, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, classes) scores."""
        scores: Tensor = self.head(self.encoder.mean(input_ids, attention_mask))
        return scores


class Tuner:
    """Trains on tasks of sentences, one task after another."""

    def __init__(self, config: Tuning, data: IntentData) -> None:
        self.config = config
        self.labels = torch.from_numpy(data.labels(config.seed))
        self.texts = [text for part in data.parts[:2] for text in part]
        self.lengths = np.array([len(text) for text in self.texts])
        self.random = np.random.default_rng(config.seed)
        encoder = minilm.load_minilm()
        with torch.no_grad():
            width = encoder(**minilm.as_tokens(self.texts[:1])).shape[1]
        self.network = TunedEncoder(encoder, width, len(data.names)).to(config.device)
        self.stored: list[int] = []
        self.seen = 0

    def train(self, rows: np.ndarray, classes: int) -> None:
        """A task: some passes over its sentences, with rates that rise and fall.

        The loss is that of the classes so far: to tell them from others, which nobody has seen,
        would be most of what is learned.
        """
        size = self.config.batch_size
        steps = -(-len(rows) // size) * self.config.epochs
        parameters = [
            {"params": list(self.network.encoder.parameters()), "lr": self.config.lr},
            {"params": list(self.network.head.parameters()), "lr": self.config.head_lr},
        ]
        optimizer = torch.optim.AdamW(parameters)
        rising = max(1.0, WARM_UP * steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / rising, (steps - step) / (steps - rising + 1))
        )
        self.network.train()
        with PatientBar("steps of fine-tuning", steps) as bar:
            for batch in self._batches(rows):
                scores = self._scores([self.texts[row] for row in batch])
                answers = self.labels[batch].to(scores.device)
                loss = functional.cross_entropy(scores[:, :classes], answers)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                bar.advance(1)
        self._store(rows)

    def _batches(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Mini-batches of sentences of about the same length, and stored ones beside them."""
        size = self.config.batch_size
        for _ in range(self.config.epochs):
            shuffled = self.random.permutation(rows)
            batches = []
            for first in range(0, len(shuffled), size * ALIKE):
                some = shuffled[first : first + size * ALIKE]
                some = some[np.argsort(self.lengths[some], kind="stable")]
                batches += [some[start : start + size] for start in range(0, len(some), size)]
            for place in self.random.permutation(len(batches)):
                batch = batches[place]
                if self.stored:
                    count = min(len(batch), len(self.stored))
                    again = self.random.choice(self.stored, count, replace=False)
                    batch = np.concatenate([batch, again])
                yield batch

    def _store(self, rows: np.ndarray) -> None:
        """Keeps a random sample of all sentences so far (reservoir sampling)."""
        for row in self.random.permutation(rows):
            self.seen += 1
            if len(self.stored) < self.config.capacity:
                self.stored.append(int(row))
                continue
            place = int(self.random.integers(self.seen))
            if place < self.config.capacity:
                self.stored[place] = int(row)

    def predict(self, rows: np.ndarray, classes: int) -> np.ndarray:
        """The best of the first few classes for each sentence."""
        self.network.eval()
        texts = [self.texts[row] for row in rows]
        with torch.no_grad():
            scores = minilm.by_length("answers", texts, self._scores)
        best: np.ndarray = scores[:, :classes].argmax(1)
        return best

    def _scores(self, texts: Sequence[str]) -> Tensor:
        """(n, classes)."""
        scores: Tensor = self.network(**minilm.as_tokens(texts, self.config.device))
        return scores

    @property
    def stored_bytes(self) -> int:
        """The size of the stored sentences."""
        return sum(len(self.texts[row].encode()) for row in self.stored)


def run(config: Tuning) -> pl.DataFrame:
    """Computes accuracy after each task, on the queries of the intents so far."""
    data = intent_data(config.data, config.intents, config.per_intent, config.fold)
    device = torch.device(config.device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)  # for dropout
        return pl.DataFrame(list(_points(config, data)), schema=COLUMNS)


def _points(config: Tuning, data: IntentData) -> Iterator[dict[str, object]]:
    tuner = Tuner(config, data)
    labels = tuner.labels.numpy()
    known = labels[data.learned]
    last = len(data.names)
    first = 0
    for stop in (last,) if config.learner == "joint" else stops(last, config.step):
        tuner.train(data.learned[(known >= first) & (known < stop)], stop)
        first = stop
        asked = data.asked[labels[data.asked] < stop]
        yield {
            "data": config.data,
            "learner": config.name,
            "test": "official" if config.fold is None else "folds",
            "sentences": len(data.learned),
            "bytes": data.text_bytes if config.learner == "joint" else tuner.stored_bytes,
            "intents": stop,
            "accuracy": float((tuner.predict(asked, stop) == labels[asked]).mean()),
        }


FAMILIES = {"intent tuning": Family(Tuning, one_by_one(run), draw, summarize, intent_checksums)}
