"""Networks trained on a stream of tasks: what Fig. 3, Fig. 6 and Fig. 7 have in common."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import polars as pl
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from retarget import lab
from retarget.engine.followers import Parts
from retarget.errors import TrainingDivergedError
from retarget.lab import History, Method, TaskStream
from retarget.lab.experiment import Config, Count, Positive
from retarget.lab.methods import code_of_method, recipe_named
from retarget.lab.training import check_schedule
from retarget.learners import SGD, Reduction
from retarget.networks.corrector import Kind, Refresh
from retarget.streaming.ridge.learner import Precision
from retarget.streaming.ridge.views import View

WholeNotNegative = Annotated[int, Field(ge=0)]
SHIFT = 2  # pixels by which views of a picture differ
# What may differ between networks that are trained together.
MAY_DIFFER_BY_MEMBER = {"seed", "lr", "strength"}


@dataclass(frozen=True)
class TrainingSetup:
    """What a run learns: tasks, a network (not yet on its device), and the data in words."""

    stream: TaskStream
    network: nn.Module
    data: str


class NetworkRun(Config):
    """The parameters of one training of a network; each data set adds its own.

    Attributes:
        method: A name of `lab.methods.recipes()`, or "package.module:Class" of the user's own.
        options: Arguments of the method's class, besides those that are parameters here.
        evaluate_every: Samples between two evaluations; None evaluates only after each task.
        reshuffle: Whether each pass has a new order, for methods that do not need a fixed one.
        replay_passes: Passes over all samples seen, after each task (cumulative replay) or at the
            end (joint training).
        features: Number of features of the tangent learner.
        first_epochs: Passes over the first task, for the tangent learner and the last layer.
        combinations: Random combinations of outputs, for the tangent learner.
        damping: Divisor of the steps of the closed loop.
        views: In which a picture is shown: at random in training, all of them to least squares.
            "shifts" and "crops" add two of these to the picture and its mirror image.
        precision: In which the tangent learner and the last layer keep their sums.
        random_features: Number of random ReLU features of the last layer, or 0 for none.
    """

    alone: ClassVar = False  # whether the network is too large to train several at once

    method: str
    lr: float
    evaluate_every: int | None = None
    epochs: int = 1
    reshuffle: bool = False
    batch_size: int = 4
    momentum: float = 0.0
    reduction: Reduction = "mean"
    # for the correction
    gamma: float = 100.0
    block_size: int = 20
    refresh: Refresh = "task"
    kind: Kind = "iterative"
    parts: Parts = "both"
    assumed_reduction: Reduction | None = None
    # for EWC, methods with a small memory, and cumulative replay
    strength: float = 0.0
    capacity: int = 300
    replay_passes: Count = 1
    # for least squares after a first session
    features: Count = 4096
    first_epochs: WholeNotNegative = 1
    combinations: Count = 1
    random_features: WholeNotNegative = 0
    damping: Positive = 1.0
    views: Literal["none", "mirror", "shifts", "crops"] = "none"
    precision: Precision = "float64"
    device: str = "cpu"
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Checks the method before any training starts."""
        _check_method(self.model_copy(update={"seed": 0}))  # the seed does not matter here
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # options, a dictionary, have no hash

    def identifying(self) -> dict[str, Any]:
        """Returns the parameters, and the code of a method that is not part of the package."""
        own = {"method_code": code_of_method(self.method)} if ":" in self.method else {}
        return super().identifying() | own

    @property
    def learner(self) -> SGD:
        """The online learner."""
        return SGD(self.lr, self.batch_size, self.momentum, reduction=self.reduction)

    @property
    def shown(self) -> list[View]:
        """The views as functions of pictures."""
        if self.views == "none":
            return [None]
        changed = {"shifts": _shifted, "crops": _cropped}.get(self.views)
        more = [partial(changed, by=by) for by in (-SHIFT, SHIFT)] if changed else []
        return [None, _mirrored, *more]

    def setup(self) -> TrainingSetup:
        """Returns what the run learns."""
        raise NotImplementedError


def _mirrored(pictures: Tensor) -> Tensor:
    return pictures.flip(-1)


def _shifted(pictures: Tensor, by: int) -> Tensor:
    """Shifts pictures along the diagonal; pixels at the edge are repeated."""
    padded = functional.pad(pictures, (abs(by),) * 4, mode="replicate")
    height, width = pictures.shape[-2:]
    first = abs(by) + by
    return padded[..., first : first + height, first : first + width]


def _cropped(pictures: Tensor, by: int) -> Tensor:
    """Cuts off two edges, at the top left or the bottom right, and enlarges the rest."""
    overlap = slice(2 * by, None) if by > 0 else slice(None, 2 * by)
    cut = pictures[..., overlap, overlap]
    size = tuple(pictures.shape[-2:])
    return functional.interpolate(cut, size, mode="bilinear")


@lru_cache(maxsize=256)  # a plan may have 100,000 runs
def _check_method(config: NetworkRun) -> None:
    learner = config.learner
    check_schedule(config.epochs, config.evaluate_every, learner.batch_size)
    for method in methods_of([config]):
        method.check(learner)


def trained_together(config: NetworkRun) -> str | None:
    """Returns a key that runs trained together share: on a GPU, all but seed, rate and strength.

    On the CPU each run trains alone: training together gains little, other processes compute other
    runs, and a resumed run does not depend on which runs it was trained with.
    """
    if config.device == "cpu" or config.alone:
        return None
    return config.model_dump_json(exclude=MAY_DIFFER_BY_MEMBER)


def methods_of(configs: Sequence[NetworkRun]) -> list[Method]:
    """Returns the methods of runs that train together."""
    return recipe_named(configs[0].method)(configs)


def train_networks(
    configs: Sequence[NetworkRun], checkpoint: Path | None = None
) -> Iterator[tuple[NetworkRun, pl.DataFrame]]:
    """Trains runs together; those that diverge get a table that says so, the others restart."""
    remaining = list(configs)
    while remaining:
        setups = [config.setup() for config in remaining]
        first = remaining[0]
        try:
            history = lab.train(
                [setup.network.to(first.device) for setup in setups],
                [setup.stream for setup in setups],
                [config.learner for config in remaining],
                methods_of(remaining),
                epochs=first.epochs,
                reshuffle=first.reshuffle,
                evaluate_every=first.evaluate_every,
                views=first.shown,
                seeds=[config.seed for config in remaining],
                checkpoint=_checkpoint_of(remaining, checkpoint),
            )
        except TrainingDivergedError as error:
            for member in error.members:
                yield remaining[member], _diverged_table(remaining[member], setups[member])
            remaining = [c for m, c in enumerate(remaining) if m not in error.members]
        else:
            for member, config in enumerate(remaining):
                yield config, _table(history, member, config.epochs, setups[member].data)
            return


def _checkpoint_of(configs: list[NetworkRun], path: Path | None) -> Path | None:
    """Returns a file for exactly these runs: trained with others, their numbers would differ."""
    if path is None or len(configs) == 1:
        return path
    members = "\0".join(config.model_dump_json() for config in configs)
    return path.with_stem(f"{path.stem}-{hashlib.sha256(members.encode()).hexdigest()[:16]}")


def _table(history: History, member: int, epochs: int, data: str) -> pl.DataFrame:
    columns = {
        "data": data,
        "samples": history.samples,
        "passes": history.samples * epochs / history.samples[-1],
        "tasks_learned": history.task,
        "accuracy": history.accuracy[:, member],
        "task_accuracy": history.task_accuracy[:, member].tolist(),
        "loss": history.loss[:, member],
        "kept_bytes": history.kept_bytes,
    }
    return pl.DataFrame(columns, schema_overrides={"kept_bytes": pl.Int64})


def _diverged_table(config: NetworkRun, setup: TrainingSetup) -> pl.DataFrame:
    """Returns a table of one row without an accuracy, at the end of the stream."""
    tasks = setup.stream.tasks
    unknown = np.full((1, 1), np.nan)
    of_tasks = np.full((1, 1, tasks), np.nan)
    samples = np.array([config.epochs * len(setup.stream.train)])
    end = History(samples, np.array([tasks]), unknown, of_tasks, unknown)
    return _table(end, 0, config.epochs, setup.data)
