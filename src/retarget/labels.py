"""Class labels, as people have them, and the one-hot rows that learners are trained on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retarget.arrays import as_tensor, give_back
from retarget.errors import InvalidInputError, InvalidTypeError

ClassNames = Sequence[int | str] | None


def as_classes(classes: Any) -> list[int | str] | None:
    """Returns what the outputs stand for, as plain values; None if that was not said."""
    if classes is None:
        return None
    if isinstance(classes, str) or not hasattr(classes, "__iter__"):
        raise InvalidTypeError(
            f"classes is {classes!r}; expected a list with one label for each output of the network"
        )
    values = np.asarray(list(classes))
    plain: list[int | str] = values.tolist()
    if values.ndim != 1 or values.dtype.kind not in "iuU" or not plain:
        raise InvalidTypeError(
            f"classes is {plain!r:.80}; expected whole numbers or text, one for each output of the "
            "network"
        )
    if len(set(plain)) < len(plain):
        raise InvalidInputError(f"classes is {plain!r:.80}; expected every label once")
    return plain


def are_labels(Y: Any) -> bool:
    """Whether Y holds class labels (n,), as whole numbers or as text, and not real targets."""
    if isinstance(Y, Tensor):
        return Y.ndim == 1 and not (Y.is_floating_point() or Y.is_complex())
    try:
        values = np.asarray(Y)
    except (TypeError, ValueError, RuntimeError):  # `as_targets` says what is wrong with it
        return False
    return values.ndim == 1 and len(values) > 0 and (_is_text(values) or values.dtype.kind in "biu")


def label_rows(labels: Any, outputs: int, classes: ClassNames = None) -> Tensor:
    """Returns one-hot rows (n, outputs) in float64, on the CPU.

    Args:
        labels: (n,) whole numbers, or text.
        outputs: The number of the network's outputs.
        classes: The label that each output stands for; None for the numbers from 0 on.

    Examples:
        >>> label_rows(["cat", "ant"], 2, ["ant", "cat"])
        tensor([[0., 1.],
                [1., 0.]], dtype=torch.float64)
    """
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if outputs == 1:
        raise InvalidInputError(
            f"Y holds the class labels {values[:3].tolist()}, ..., but the network has one output; "
            "expected floating point: Y.float() for numbers, 0.0 and 1.0 for two classes"
        )
    if classes is None:
        if _is_text(values):
            raise InvalidInputError(
                f"Y holds text, such as {str(values[0])!r}, and nothing says for which output it "
                "stands; make the object with classes=[...], one label for each output of the "
                "network"
            )
        rows: Tensor = one_hot(torch.from_numpy(values.astype(np.int64)), outputs)
        return rows
    if len(classes) != outputs:
        raise InvalidInputError(
            f"there are {len(classes)} classes, but the network has {outputs} outputs; expected "
            "one label for each output"
        )
    place = {label: number for number, label in enumerate(classes)}
    for row, label in enumerate(values.tolist()):
        if label not in place:
            raise InvalidInputError(
                f"Y holds the label {label!r} in row {row}; expected one of the classes "
                f"{list(classes)!r:.80}"
            )
    numbers = [place[label] for label in values.tolist()]
    return functional.one_hot(torch.tensor(numbers, device="cpu"), outputs).double()


def one_hot(labels: Any, classes: int) -> Any:
    """Returns float64 targets (n, classes) of class labels (n,), in the library of the labels."""
    numbers = as_tensor("labels", labels)
    if numbers.is_floating_point() or numbers.ndim != 1:
        raise InvalidInputError(
            f"the labels have shape {tuple(numbers.shape)} and dtype {numbers.dtype}; expected "
            "classes (n,), as whole numbers"
        )
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < classes:
        raise InvalidInputError(
            f"the class labels are {int(numbers.min())} to {int(numbers.max())}, and there are "
            f"{classes} outputs; expected labels from 0 to {classes - 1}, one for each output"
        )
    return give_back(functional.one_hot(numbers.long(), classes).double(), labels)


def _is_text(values: np.ndarray) -> bool:
    if values.dtype.kind == "O":
        return all(isinstance(value, str) for value in values)
    return values.dtype.kind in "UT"
