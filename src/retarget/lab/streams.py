"""Streams of tasks: the training samples in order, and the test set of each task."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import as_tensor, require_finite, require_float
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.labels import one_hot

LabeledTasks = Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class Labeled:
    """Samples in an order, grouped into consecutive tasks."""

    inputs: Tensor  # (N, ...) a pool of samples, shared with other orders of them
    rows: Tensor  # (n,) rows of the pool, in order
    labels: Tensor  # (n,) class of each sample, in order
    sizes: tuple[int, ...]  # samples in each task
    sample_bytes: int | None = None  # of one as it would be stored; None: as it is here

    def __len__(self) -> int:
        return len(self.rows)

    def spans(self) -> list[slice]:
        """The row range of each task."""
        return [slice(a, b) for a, b in pairwise(accumulate(self.sizes, initial=0))]


@dataclass(frozen=True)
class TaskStream:
    """Tasks to learn one after the other, and the test set of each.

    Give it to `train`, as you would give a `DataLoader` to another loop. The samples are in memory,
    and different orders share them. `domain_pairs`, `class_incremental` and others make a stream
    from a `LabeledData`.

    Attributes:
        train: The stream, in order.
        test: The test set of each task; every evaluation tests all tasks.
        classes: Number of classes, which is the number of the network's outputs.

    Examples:
        >>> X = torch.arange(6.0)[:, None]
        >>> stream = TaskStream.from_tasks([(X[:4], [0, 1, 0, 1]), (X[4:], [2, 0])])
        >>> stream.classes, stream.train.sizes
        (3, (4, 2))
    """

    train: Labeled
    test: Labeled
    classes: int

    def __post_init__(self) -> None:
        sizes = self.test.sizes
        tasks = len(self.train.sizes)
        if len(sizes) != tasks:
            raise InvalidInputError(
                f"test has {len(sizes)} tasks, but there are {tasks} to learn; expected one test "
                "set for each task"
            )
        if 0 in sizes:
            raise InvalidInputError(
                f"task {sizes.index(0)} has no test samples; expected at least one for each task"
            )
        test, train = (
            f"{samples.inputs.dtype} of shape {tuple(samples.inputs.shape[1:])}"
            for samples in (self.test, self.train)
        )
        if test != train:
            raise InvalidInputError(
                f"test samples are {test}; expected {train}, as in the training stream"
            )

    @classmethod
    def from_tasks(
        cls, tasks: LabeledTasks, test: LabeledTasks | None = None, classes: int | None = None
    ) -> "TaskStream":
        """Makes a stream from your own tasks.

        Args:
            tasks: (X, y) for each task, in order; X (n, ...) real numbers, y (n,) labels from 0.
            test: The same for the test sets; None tests on the training samples.
            classes: Number of classes; None for the largest label plus one.
        """
        train = _joined("tasks", tasks)
        tested = train if test is None else _joined("test", test)
        largest = int(max(train.labels.max(), tested.labels.max()))
        classes = largest + 1 if classes is None else classes
        if largest >= classes:
            raise InvalidInputError(
                f"a label is {largest}; expected 0 to {classes - 1}, as there are {classes} classes"
            )
        return cls(train, tested, classes)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.train.sizes)

    def targets(self) -> Tensor:
        """Returns one-hot targets (n, classes) of the stream, in the inputs' dtype."""
        targets: Tensor = one_hot(self.train.labels, self.classes)
        return targets.to(self.train.inputs.dtype)


@dataclass(frozen=True)
class LabeledData:
    """A data set to make streams from: training and test inputs (n, ...) and labels (n,).

    Attributes:
        sample_bytes: What a sample takes where it is stored, such as 3,072 for a picture of 32 x 32
            pixels; None for the size of its numbers here. Methods that keep samples count it.
    """

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    sample_bytes: int | None = None

    def __post_init__(self) -> None:
        for X, y in (("inputs", "labels"), ("test_inputs", "test_labels")):
            inputs, labels = _checked(X, getattr(self, X), getattr(self, y))
            object.__setattr__(self, X, inputs)  # the class is frozen; they are set only here
            object.__setattr__(self, y, labels)
        unseen = set(self.test_labels.tolist()) - set(self.labels.tolist())
        if unseen:
            raise InvalidInputError(
                f"test_labels holds {min(unseen)}, which labels does not; expected only classes "
                "that are trained on"
            )

    def classes(self) -> list[int]:
        """Returns the labels that occur, sorted."""
        return sorted(set(self.labels.tolist()))


def domain_pairs(data: LabeledData, seed: int, per_class: int | None = None) -> TaskStream:
    """Makes tasks of two classes each, relabeled 0 and 1: all tasks use the same two outputs.

    The seed shuffles the classes into pairs, draws `per_class` samples of each class (None for
    all), and shuffles each task.
    """
    random = np.random.default_rng(seed)
    classes = data.classes()
    if len(classes) < 2 or len(classes) % 2:
        raise InvalidInputError(
            f"there are {len(classes)} classes; expected an even number, to make pairs of them"
        )
    pairs = random.permutation(classes).reshape(-1, 2).tolist()
    return _by_class(data, random, pairs, per_class, relabel=True)


def class_incremental(
    data: LabeledData, seed: int, classes_a_task: int, per_class: int | None = None
) -> TaskStream:
    """Makes tasks of new classes, each with its own output; the seed shuffles everything."""
    random = np.random.default_rng(seed)
    classes = data.classes()
    if classes_a_task < 1 or len(classes) % classes_a_task:
        raise InvalidInputError(
            f"classes_a_task is {classes_a_task}; expected a divisor of the {len(classes)} classes"
        )
    groups = random.permutation(classes).reshape(-1, classes_a_task).tolist()
    return _by_class(data, random, groups, per_class, relabel=False)


def classes_in_tasks(
    data: LabeledData, seed: int, tasks: Sequence[Sequence[int]], per_class: int | None = None
) -> TaskStream:
    """Makes tasks of these classes, each with its own output; the seed shuffles the samples."""
    wanted = [label for task in tasks for label in task]
    if sorted(wanted) != data.classes():
        raise InvalidInputError(
            f"tasks have the classes {sorted(wanted)}, but the data have {data.classes()}; "
            "expected each class in exactly one task"
        )
    random = np.random.default_rng(seed)
    return _by_class(data, random, [list(task) for task in tasks], per_class, relabel=False)


def shuffled(data: LabeledData, seed: int, per_class: int | None = None) -> TaskStream:
    """Makes one task of all classes in random order: a stream without distribution shift."""
    return classes_in_tasks(data, seed, [data.classes()], per_class)


def _by_class(
    data: LabeledData,
    random: np.random.Generator,
    groups: list[list[int]],
    per_class: int | None,
    relabel: bool,
) -> TaskStream:
    """Makes one task of each group: training samples are drawn and shuffled, test samples not."""
    tasks = []
    test_tasks = []
    for group in groups:
        drawn = []
        for label in group:
            of_label = np.flatnonzero(data.labels.cpu() == label)
            if per_class is not None and not 1 <= per_class <= len(of_label):
                raise InvalidInputError(
                    f"per_class is {per_class}, but there are {len(of_label)} samples of class "
                    f"{label}; expected 1 to {len(of_label)}"
                )
            drawn.append(random.permutation(of_label)[:per_class])
        tasks.append(random.permutation(np.concatenate(drawn)))
        tested = [np.flatnonzero(data.test_labels.cpu() == label) for label in group]
        test_tasks.append(np.concatenate(tested))
    place = {label: i if relabel else label for group in groups for i, label in enumerate(group)}

    def labeled(inputs: Tensor, labels: Tensor, tasks: list[np.ndarray]) -> Labeled:
        rows = torch.from_numpy(np.concatenate(tasks)).to(inputs.device)
        shown = labels.new_tensor([place[label] for label in labels[rows].tolist()])
        return Labeled(inputs, rows, shown, tuple(map(len, tasks)), data.sample_bytes)

    train = labeled(data.inputs, data.labels, tasks)
    test = labeled(data.test_inputs, data.test_labels, test_tasks)
    return TaskStream(train, test, len(groups[0]) if relabel else max(data.classes()) + 1)


def _joined(name: str, tasks: LabeledTasks) -> Labeled:
    if not len(tasks):
        raise InvalidInputError(f"{name} is empty; expected (X, y) for each task")
    parts = [_checked(f"{name}[{i}]", X, y) for i, (X, y) in enumerate(tasks)]
    shapes = {tuple(X.shape[1:]) for X, _ in parts}
    if len(shapes) > 1:
        raise InvalidInputError(
            f"{name} have samples of the shapes {sorted(shapes)}; expected one shape for all tasks"
        )
    inputs, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    rows = torch.arange(len(inputs), device=inputs.device)
    return Labeled(inputs, rows, labels, tuple(len(X) for X, _ in parts))


def _checked(name: str, X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Returns samples and labels as tensors on one device."""
    inputs = as_tensor(name, X)
    labels = as_tensor(f"labels of {name}", y)
    require_float(name, inputs, "convert the samples first")
    if inputs.ndim < 2 or not len(inputs):
        raise InvalidInputError(
            f"{name} has shape {tuple(inputs.shape)}; expected samples as rows, and at least one"
        )
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InvalidTypeError(
            f"labels of {name} have dtype {labels.dtype}; expected whole numbers, the class of "
            "each sample"
        )
    if labels.shape != (len(inputs),):
        raise InvalidInputError(
            f"labels of {name} have shape {tuple(labels.shape)}; expected ({len(inputs)},)"
        )
    if labels.min() < 0:
        raise InvalidInputError(f"labels of {name} hold {int(labels.min())}; expected 0 or more")
    require_finite(name, inputs)
    return inputs, labels.to(inputs.device, torch.int64)
