"""Networks trained on CIFAR-10: what Fig. 3A, Fig. 3C and Fig. 6 have in common."""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, Self

import numpy as np
import polars as pl
import torch
from pydantic import model_validator

from retarget.continual import (
    DER,
    ER,
    EWC,
    Corrected,
    CumulativeReplay,
    History,
    LabelledData,
    LabelSmoothing,
    Method,
    TaskStream,
    Vanilla,
    domain_pairs,
    shuffled,
    train,
)
from retarget.continual.corrector import Kind, Refresh
from retarget.continual.training import check_schedule
from retarget.data.cifar10 import load_cifar10, normalised
from retarget.data.files import data_folder
from retarget.errors import InvalidInputError, TrainingDivergedError
from retarget.experiments.cifar_net import cifar_net
from retarget.experiments.experiment import Config
from retarget.kernels import EmpiricalNTK
from retarget.learners import SGD, Reduction
from retarget.theory.sweep import Parts

MethodName = Literal[
    "vanilla",
    "ewc",
    "cumulative",
    "er",
    "der",
    "der++",
    "label smoothing",
    "corrected",
    "der, corrected",
]
# What may differ between networks that are trained at once.
OF_ONE_MEMBER = {"seed", "lr", "strength"}


class CifarRun(Config):
    """One training of the paper's network on CIFAR-10.

    Attributes:
        protocol: Five tasks of two classes on two outputs, or all ten classes in random order.
        per_class: Training images of each class.
        test_per_class: Test images of each class.
        evaluate_every: Samples between two evaluations.
        epochs: Passes over each task, always in the same order.
        device: Where to train.
    """

    protocol: Literal["domain pairs", "shuffled"]
    per_class: int
    test_per_class: int
    evaluate_every: int
    method: MethodName
    lr: float
    epochs: int = 1
    batch_size: int = 4
    reduction: Reduction = "mean"
    # of the correction
    gamma: float = 100.0
    block_size: int = 20
    refresh: Refresh = "task"
    kind: Kind = "iterative"
    parts: Parts = "both"
    assumed_reduction: Reduction | None = None
    # of EWC, and of the methods with a memory
    strength: float = 0.0
    capacity: int = 300
    device: str = "cpu"

    @model_validator(mode="after")
    def _require_sense(self) -> Self:
        """What the lab would refuse is refused before any training."""
        learner = _learner(self)
        check_schedule(self.epochs, self.evaluate_every, learner.batch_size)
        for method in _methods([self]):
            if isinstance(method, Corrected):
                method.check(learner)
        return self


def run(configs: Sequence[CifarRun]) -> Iterator[tuple[CifarRun, pl.DataFrame]]:
    """Accuracy along the stream. Runs that differ in seed, rate or strength train at once."""
    groups: dict[str, list[CifarRun]] = {}
    for config in configs:
        groups.setdefault(config.model_dump_json(exclude=OF_ONE_MEMBER), []).append(config)
    for group in groups.values():
        yield from _train_together(group)


def _train_together(configs: list[CifarRun]) -> Iterator[tuple[CifarRun, pl.DataFrame]]:
    """A run that diverges is left out, and its table says so; the others are trained again."""
    remaining = list(configs)
    while remaining:
        try:
            history = _history(remaining)
        except TrainingDivergedError as error:
            for member in error.members:
                yield remaining[member], _diverged_table(remaining[member])
            remaining = [c for m, c in enumerate(remaining) if m not in error.members]
        else:
            for member, config in enumerate(remaining):
                yield config, _table(history, member, config.epochs)
            return


def _history(configs: list[CifarRun]) -> History:
    first = configs[0]
    streams = [_stream(config) for config in configs]
    networks = [cifar_net(s.classes, c.seed) for s, c in zip(streams, configs, strict=True)]
    return train(
        [network.to(first.device) for network in networks],
        streams,
        [_learner(config) for config in configs],
        _methods(configs),
        epochs=first.epochs,
        evaluate_every=first.evaluate_every,
        seeds=[config.seed for config in configs],
    )


def _learner(config: CifarRun) -> SGD:
    return SGD(config.lr, config.batch_size, reduction=config.reduction)


def _methods(configs: list[CifarRun]) -> list[Method]:
    first = configs[0]
    corrected = Corrected(
        first.gamma,
        first.block_size,
        first.assumed_reduction,
        refresh=first.refresh,
        kind=first.kind,
        parts=first.parts,
        # as the authors' runs did
        first_block="plain" if first.kind == "iterative" else "corrected",
        kernel=partial(EmpiricalNTK, precision="split"),
    )
    methods: dict[str, list[Method]] = {
        "vanilla": [Vanilla()],
        "ewc": [EWC([config.strength for config in configs])],
        "cumulative": [CumulativeReplay()],
        "er": [ER(first.capacity)],
        "der": [DER(first.capacity)],
        "der++": [DER(first.capacity, beta=1.0)],
        "label smoothing": [LabelSmoothing(0.1)],
        "corrected": [corrected],
        "der, corrected": [corrected, DER(first.capacity)],
    }
    return methods[first.method]


def _stream(config: CifarRun) -> TaskStream:
    data = _data(data_folder(None), config.test_per_class, config.device)
    make = {"domain pairs": domain_pairs, "shuffled": shuffled}[config.protocol]
    return make(data, config.seed, config.per_class)


@lru_cache(maxsize=1)
def _data(folder: Path, test_per_class: int, device: str) -> LabelledData:
    """All images on the device, as the paper normalises them, and the first of each test class."""
    cifar = load_cifar10(folder)
    labels = cifar.test_labels
    there = int(np.bincount(labels).min())
    if not 1 <= test_per_class <= there:
        raise InvalidInputError(
            f"test_per_class is {test_per_class}, but a class here has {there} test images; "
            f"expected 1 to {there}"
        )
    chosen = np.concatenate(
        [np.flatnonzero(labels == label)[:test_per_class] for label in np.unique(labels)]
    )
    return LabelledData(
        torch.from_numpy(normalised(cifar.train_images)).to(device),
        torch.from_numpy(cifar.train_labels).to(device),
        torch.from_numpy(normalised(cifar.test_images[chosen])).to(device),
        torch.from_numpy(labels[chosen]).to(device),
    )


def _table(history: History, member: int, epochs: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "samples": history.samples,
            "passes": history.samples * epochs / history.samples[-1],
            "tasks_learned": history.task,
            "accuracy": history.accuracy[:, member],
            "task_accuracy": history.task_accuracy[:, member].tolist(),
            "loss": history.loss[:, member],
        }
    )


def _diverged_table(config: CifarRun) -> pl.DataFrame:
    """One row, with no accuracy, at the end of the stream."""
    stream = _stream(config)
    return pl.DataFrame(
        {
            "samples": [config.epochs * len(stream.train)],
            "passes": [float(config.epochs)],
            "tasks_learned": [stream.tasks],
            "accuracy": [float("nan")],
            "task_accuracy": [[float("nan")] * stream.tasks],
            "loss": [float("nan")],
        }
    )
