"""Labels of classes: which output of a learner belongs to which, and how often each was learned."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, column_or_1d

from retarget.errors import InvalidInputError, InvalidTypeError, a_type

Label = Hashable


class Classes(NamedTuple):
    """The labels so far, in the order of the learner's outputs, and the samples of each.

    Labels that are equal are one class, as in a dict: 1, 1.0 and True. It is replaced as a whole.
    """

    labels: tuple[Label, ...] = ()
    counts: tuple[int, ...] = ()

    def plus(self, labels: Iterable[Label]) -> "Classes":
        """Counts labels that are learned; new ones come last."""
        counts = dict(zip(self.labels, self.counts, strict=True))
        for label in labels:
            counts[label] = counts.get(label, 0) + 1
        return Classes(tuple(counts), tuple(counts.values()))

    def announced(self, labels: Iterable[Label]) -> "Classes":
        """Adds labels of which no sample was learned yet."""
        new = [label for label in dict.fromkeys(labels) if label not in self.labels]
        return Classes((*self.labels, *new), (*self.counts, *[0] * len(new)))

    def without(self, labels: Iterable[Label]) -> "Classes":
        """Counts labels that are forgotten; those of which no sample is left are gone."""
        counts = dict(zip(self.labels, self.counts, strict=True))
        for label, number in Counter(labels).items():
            left = counts.get(label, 0) - number
            if left < 0:
                raise InvalidInputError(
                    f"{number} samples of the class {label!r} are to be forgotten, and "
                    f"{counts.get(label, 0)} were learned; pass samples and labels exactly as they "
                    "were learned"
                )
            if left:
                counts[label] = left
            else:
                del counts[label]
        return Classes(tuple(counts), tuple(counts.values()))

    def joined(self, other: "Classes") -> "Classes":
        """Adds the counts of another learner's classes; new ones come last."""
        counts = dict(zip(self.labels, self.counts, strict=True))
        for label, number in zip(other.labels, other.counts, strict=True):
            counts[label] = counts.get(label, 0) + number
        return Classes(tuple(counts), tuple(counts.values()))

    def columns_in(self, known: Self) -> list[int | None]:
        """Returns for each label which output of other classes it is; None if it is new there."""
        places = {label: column for column, label in enumerate(known.labels)}
        return [places.get(label) for label in self.labels]

    def one_hot(self, labels: Sequence[Label], dtype: Any = np.float64) -> np.ndarray:
        """Returns targets (n, c): 1 for the class of a sample, 0 for the others."""
        places = {label: column for column, label in enumerate(self.labels)}
        targets = np.zeros((len(labels), len(self.labels)), dtype)
        targets[np.arange(len(labels)), [places[label] for label in labels]] = 1
        return targets

    def in_order(self) -> tuple[np.ndarray, list[int]]:
        """Returns the labels as an array, sorted if they can be, and the output of each."""
        columns = list(range(len(self.labels)))
        try:
            columns.sort(key=lambda column: self.labels[column])  # type: ignore[arg-type,return-value]
        except TypeError:  # text and numbers, say: as they appeared
            columns = list(range(len(self.labels)))
        return as_array([self.labels[column] for column in columns]), columns


def as_array(labels: Sequence[Label]) -> np.ndarray:
    """Returns labels as an array of text or numbers, if they are all alike, or else of objects."""
    kinds = {type(label) for label in labels}
    if kinds in ({str}, {bool}) or kinds <= {int, float}:
        return np.array(labels)
    array = np.empty(len(labels), object)
    array[:] = labels
    return array


def as_labels(name: str, given: Any) -> list[Label]:
    """Returns labels as a list of plain values, or raises if one cannot name a class."""
    if isinstance(given, str | bytes):
        raise InvalidTypeError(
            f"{name} is {given!r:.80}; expected a list of labels, one per sample"
        )
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    if not isinstance(given, list | tuple):
        array = column_or_1d(given, warn=True)
        assert_all_finite(array, input_name=name)
        check_classification_targets(array)
        given = array.tolist()
    labels = [_plain(label) for label in given]
    for label in labels:
        _require_name(name, label)
    return labels


def _plain(label: Any) -> Any:
    single = isinstance(label, np.generic | np.ndarray | torch.Tensor) and np.ndim(label) == 0
    return label.item() if single else label


def _require_name(name: str, label: Any) -> None:
    if not isinstance(label, Hashable):
        raise InvalidTypeError(
            f"{name} holds {label!r:.80}, which is not hashable; expected text, numbers or tuples"
        )
    if label is None:
        raise InvalidInputError(
            f"{name} holds None, with which predict(X, reject=...) says that it knows no class; "
            "expected another label"
        )
    if label != label:
        raise InvalidInputError(f"{name} holds {label!r}, which is not equal to itself")
    if isinstance(label, float) and not label.is_integer():
        raise InvalidInputError(
            f"{name} holds {label!r}. Unknown label type: fractions are targets of a regression; "
            "expected labels of classes"
        )


def encoded(label: Label) -> Any:
    """Returns a label as JSON can hold it."""
    if isinstance(label, tuple):
        return {"tuple": [encoded(each) for each in label]}
    if type(label) in (str, int, float, bool):
        return label
    raise InvalidTypeError(
        f"the label {label!r:.80} is {a_type(label)}, which cannot be saved; expected "
        "text, numbers, booleans, or tuples of these"
    )


def decoded(value: Any) -> Label:
    """Returns a label that `encoded` made fit for JSON."""
    if isinstance(value, dict):
        return tuple(decoded(each) for each in value["tuple"])
    if isinstance(value, str | int | float):
        return value
    raise InvalidInputError(f"a label is {value!r:.80}; expected text, a number or a tuple")
