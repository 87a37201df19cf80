r"""The loss that both learners minimize: half the squared error, or cross-entropy.

A learner is moved by $y - \sigma(f)$, the target minus its output, where $\sigma$ is

    squared error     the identity
    cross-entropy     softmax over several outputs; the logistic function of one

(both are the canonical link of their loss, so nothing else about the loss is needed). A learner
that starts from a function $f_0$ has $f_0$ added to its logits $f$. Only for the squared error is
that the same as subtracting it from the targets.
"""

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retarget.errors import InvalidInputError
from retarget.learners import Reduction

Loss = Literal["squared", "cross-entropy"]


def check_loss(loss: str) -> None:
    """Rejects an unknown loss."""
    if loss not in get_args(Loss):
        raise InvalidInputError(f"loss is {loss!r}; expected 'squared' or 'cross-entropy'")


def check_targets(name: str, Y: Tensor, loss: Loss, first_row: int = 0) -> None:
    r"""Rejects targets (n, c) that do not fit the loss.

    Cross-entropy takes real numbers, because corrected and effective targets leave [0, 1]. But the
    rows of several outputs must sum to 1: only then is the gradient $\sigma(f) - y$, in PyTorch
    too. A single output rejects labels such as -1 or 7. `name` and `first_row` are used in the
    message.
    """
    if loss == "squared" or not len(Y):
        return
    if Y.shape[1] == 1:
        labels = bool((Y.round() == Y).all())
        strange = (Y < 0) | (Y > 1)
        if labels and strange.any():
            row = int(strange[:, 0].nonzero()[0, 0])
            raise InvalidInputError(
                f"{name} has one output and holds the label {Y[row].item():g} in row "
                f"{first_row + row}; with loss='cross-entropy' expected 0 or 1 or a probability: "
                "one-hot encode more than two classes"
            )
        return
    sums = Y.double().sum(1)
    # half of the digits may be lost, because corrected targets are sums of larger numbers
    size = 1 + Y.abs().amax(1).double()
    off = (sums - 1).abs() > torch.finfo(Y.dtype).eps ** 0.5 * size
    if off.any():
        row = int(off.nonzero()[0, 0])
        raise InvalidInputError(
            f"{name} sums to {sums[row].item():.6g} in row {first_row + row}; with "
            "loss='cross-entropy' expected rows of probabilities that sum to 1: one-hot encode "
            "class labels"
        )


def outputs(logits: Tensor, loss: Loss) -> Tensor:
    r"""(m, c) $\sigma(f)$, what is compared with the targets."""
    if loss == "squared":
        return logits
    return torch.sigmoid(logits) if logits.shape[1] == 1 else torch.softmax(logits, 1)


def slope_product(p: Tensor, direction: Tensor) -> Tensor:
    r"""(m, c) $H v$: how cross-entropy's outputs `p` change with the logits, times a direction.

    $H = p (1 - p)$ for one output, and $\operatorname{diag}(p) - p p^\top$ for several.
    """
    if p.shape[1] == 1:
        return p * (1 - p) * direction
    return p * (direction - (p * direction).sum(1, keepdim=True))


def steepest_slope(loss: Loss, count: int) -> float:
    """The largest eigenvalue that H can have, for `count` outputs."""
    if loss == "squared":
        return 1.0
    return 0.25 if count == 1 else 0.5


def row_losses(predictions: Tensor, targets: Tensor, loss: Loss = "squared") -> Tensor:
    """Returns the loss (...,) of each row of logits (..., c); cross-entropy for (n, c) alone."""
    if predictions.shape != targets.shape:
        raise InvalidInputError(
            f"the targets have shape {tuple(targets.shape)}, but the outputs have shape "
            f"{tuple(predictions.shape)}; expected the same"
        )
    if loss == "squared":
        return (predictions - targets).square().sum(-1) / 2
    if predictions.shape[1] == 1:
        each = functional.binary_cross_entropy_with_logits(predictions, targets, reduction="none")
        return each[:, 0]
    return functional.cross_entropy(predictions, targets, reduction="none")


def nearest_distributions(outputs: np.ndarray) -> np.ndarray:
    """Returns for each row the non-negative numbers with sum 1 that are nearest to it.

    They are the positive parts of the outputs minus a constant (Held, Wolfe and Crowder, 1974).

    Args:
        outputs: (n, c) rows of any real numbers.

    Examples:
        >>> nearest_distributions(np.array([[0.2, 0.8], [1.4, 0.6], [5.0, -3.0]]))
        array([[0.2, 0.8],
               [0.9, 0.1],
               [1. , 0. ]])
    """
    falling = -np.sort(-outputs, axis=1)
    excess = falling.cumsum(axis=1) - 1
    counts = np.arange(1, outputs.shape[1] + 1)
    last = (falling * counts > excess).sum(axis=1, keepdims=True)  # how many stay positive
    shares = np.maximum(outputs - np.take_along_axis(excess, last - 1, axis=1) / last, 0)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))  # the sum is 1 up to rounding


def batch_loss(predictions: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    """Half the squared error of a mini-batch, summed over outputs; the sum or mean over rows."""
    each = row_losses(predictions.reshape(len(predictions), -1), targets.reshape(len(targets), -1))
    return each.mean() if reduction == "mean" else each.sum()
