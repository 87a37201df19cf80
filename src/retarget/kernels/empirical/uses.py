r"""The ways to use parameters that have a rule, and what the rule needs of them.

In all of them the gradient of one output is $\sum_p g_p a_p^\top$ over positions p, where a is what
the parameters were multiplied with and g the output's gradient by the result:

| functions | a | positions |
|---|---|---|
| `linear`, `matmul`, `addmm` | the input | all dimensions between the first and the last |
| `conv2d` | the patch under the window | the windows |
| norms in evaluation mode, `mul`, `add` | the (normalised) input; one group a parameter | those \
that share a parameter |
| `embedding` | the token, one of many that are 1 or 0 | the tokens of a sample |

With a bias, a has a last 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

# A layer is a weight and a bias that are used together, by their names; None where there is none
# or it is not asked for.
Layer = tuple[str | None, str | None]


@dataclass(frozen=True)
class Use(ABC):
    """One call of a function with a layer's parameters.

    Attributes:
        input: What the function was given besides them.
        edge: Where the gradient by the call's result is found in the graph. Unlike the result
            itself it still stands for it after an operation in place, a ReLU's for one.
        shape: Of the result.
        blank: Of the result's type and device, without numbers.
        n: Samples in the pass.
    """

    input: Tensor
    edge: GradientEdge
    shape: torch.Size
    blank: Tensor
    n: int

    def has_rows(self) -> bool:
        """Whether it seems to have been called with one row a sample."""
        return len(self.shape) > 1 and self.shape[0] == self.n == len(self.input)

    @abstractmethod
    def positions(self) -> Tensor:
        """(n, groups, positions, features) a, without the bias's 1."""

    @abstractmethod
    def arranged(self, g: Tensor) -> Tensor:
        """(n, groups, results, positions) g, from its shape in the graph."""

    def by_position(self, g: Tensor | None) -> Tensor:
        """The same; zero where the output does not depend on the result."""
        return self.arranged(self.blank.new_zeros(self.shape) if g is None else g)

    def total(self, a: Tensor, g: Tensor) -> Tensor:
        """(groups * results, features) the gradients of all samples, added up."""
        return torch.einsum("ngop,ngpi->goi", g, a).flatten(0, 1)

    def by_row(self, values: Tensor, rows: int) -> Tensor:
        """(groups * results, features) one number for each number of a parameter, so arranged."""
        return values.reshape(rows, -1)

    def working(self) -> int:
        """Numbers that are held for it on the way through the network, about."""
        return self.input.numel() * 3 + self.shape.numel() * 6


class Dense(Use):
    """`linear`."""

    def has_rows(self) -> bool:
        """One or several: many a module flattens samples and positions for it."""
        rows = {len(self.input), self.shape[0]}
        return len(self.shape) > 1 and len(rows) == 1 and not rows.pop() % self.n

    def positions(self) -> Tensor:
        """The input."""
        x = self.input.detach()
        return x.reshape(self.n, 1, -1, x.shape[-1])

    def arranged(self, g: Tensor) -> Tensor:
        """One group."""
        return g.reshape(self.n, 1, -1, g.shape[-1]).mT


class Multiplied(Dense):
    """`matmul` and `addmm`, whose weight stands on the right: it has a column for each result."""

    def by_row(self, values: Tensor, rows: int) -> Tensor:
        """Transposed."""
        return values.mT.reshape(rows, -1) if values.ndim == 2 else super().by_row(values, rows)


@dataclass(frozen=True)
class Convolved(Use):
    """`conv2d`, and the geometry of its window."""

    size: tuple[int, int]
    stride: Any
    padding: Any
    dilation: Any
    groups: int

    def has_rows(self) -> bool:
        """Of images."""
        return self.input.ndim == 4 and super().has_rows()

    def positions(self) -> Tensor:
        """The patches."""
        patches = self._patches(self.input.detach())
        return patches.reshape(len(patches), self.groups, -1, patches.shape[-1]).mT

    def arranged(self, g: Tensor) -> Tensor:
        """Each group's channels."""
        return g.reshape(len(g), self.groups, g.shape[1] // self.groups, -1)

    def working(self) -> int:
        """The patches, too."""
        taps = self.size[0] * self.size[1]
        return self.input.numel() * (1 + 2 * taps) + self.shape.numel() * 6

    def _patches(self, x: Tensor) -> Tensor:
        """(n, channels * height * width of the window, positions).

        By strides, as `torch.nn.functional.unfold` goes sample by sample on CUDA.
        """
        size, stride, dilation = self.size, _two(self.stride), _two(self.dilation)
        spread = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        if self.padding == "same":
            before = [each // 2 for each in spread]
            after = [each - each // 2 for each in spread]
        else:
            before = after = list(_two(0 if self.padding == "valid" else self.padding))
        x = functional.pad(x, (before[1], after[1], before[0], after[0]))
        n, channels, *sides = x.shape
        counts = [(sides[i] - spread[i] - 1) // stride[i] + 1 for i in (0, 1)]
        over, across, *along = x.stride()
        steps = [dilation[i] * along[i] for i in (0, 1)] + [stride[i] * along[i] for i in (0, 1)]
        view = x.as_strided((n, channels, *size, *counts), (over, across, *steps))
        return view.reshape(n, channels * size[0] * size[1], counts[0] * counts[1])


@dataclass(frozen=True)
class Scaled(Use):
    """A norm's, a product's or a sum's parameters, each multiplied with one number a position.

    Attributes:
        normalise: Makes that number from the input.
        trailing: Dimensions at the end that have a parameter each; None for the channels, which
            are the second dimension.
    """

    normalise: Callable[[Tensor], Tensor]
    trailing: int | None

    def has_rows(self) -> bool:
        """And no parameters for the rows themselves."""
        return self.input.ndim > (self.trailing or 0) and super().has_rows()

    def positions(self) -> Tensor:
        """One group for each parameter."""
        return self._by_parameter(self.normalise(self.input.detach()))[..., None]

    def arranged(self, g: Tensor) -> Tensor:
        """Likewise."""
        return self._by_parameter(g)[:, :, None]

    def _by_parameter(self, x: Tensor) -> Tensor:
        if self.trailing is None:
            return x.reshape(len(x), x.shape[1], -1)
        parameters = x.shape[x.ndim - self.trailing :].numel()
        return x.reshape(len(x), -1, parameters).mT


@dataclass(frozen=True)
class LookedUp(Use):
    """`embedding`, where a is written as the token's number.

    Attributes:
        vocabulary: Rows of the weight.
        padding: The token without gradient; None where all have one.
    """

    vocabulary: int
    padding: int | None

    def positions(self) -> Tensor:
        """(n, 1, positions, 1) tokens."""
        return self.input.reshape(len(self.input), 1, -1, 1)

    def arranged(self, g: Tensor) -> Tensor:
        """One group; zero where nothing is learned."""
        if self.padding is not None:
            g = g.masked_fill((self.input == self.padding)[..., None], 0)
        return g.reshape(len(g), 1, -1, g.shape[-1]).mT

    def total(self, a: Tensor, g: Tensor) -> Tensor:
        """(vocabulary, features)."""
        found = self.blank.new_zeros((self.vocabulary, g.shape[2]))
        return found.index_add_(0, a.flatten(), g[:, 0].mT.flatten(0, 1))


def _two(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


@dataclass(frozen=True)
class Call:
    """A call of a function that has a rule, before it is known whose parameters it has.

    Attributes:
        make: Makes the use, once the result is there.
    """

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    make: Callable[..., Use]

    def use(self, result: Tensor, n: int) -> Use:
        """The use of the parameters that it was called with, in a pass of n samples."""
        blank = result.detach().new_empty(0)
        return self.make(self.input, get_gradient_edge(result), result.shape, blank, n)


def _with(kind: type[Use], *options: Any) -> Callable[..., Use]:
    return lambda *common: kind(*common, *options)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:  # noqa: A002
    return Call(input, weight, bias, Dense)


def _matmul(input: Tensor, other: Tensor) -> Call | None:  # noqa: A002
    return Call(input, other, None, Multiplied) if other.ndim == 2 and input.ndim > 1 else None


def _addmm(
    input: Tensor,  # noqa: A002
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Call | None:
    simple = beta == 1 == alpha and input.ndim == 1
    return Call(mat1, mat2, input, Multiplied) if simple else None


def _conv2d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call:
    size = weight.shape[2], weight.shape[3]
    return Call(input, weight, bias, _with(Convolved, size, stride, padding, dilation, groups))


def _layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Call:
    def normalise(x: Tensor) -> Tensor:
        return functional.layer_norm(x, list(normalized_shape), eps=eps)

    return Call(input, weight, bias, _with(Scaled, normalise, len(normalized_shape)))


def _rms_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Call:
    def normalise(x: Tensor) -> Tensor:
        return functional.rms_norm(x, list(normalized_shape), eps=eps)

    return Call(input, weight, None, _with(Scaled, normalise, len(normalized_shape)))


def _batch_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Call | None:
    if training:  # samples depend on each other
        return None

    def normalise(x: Tensor) -> Tensor:
        return functional.batch_norm(x, running_mean, running_var, eps=eps)

    return Call(input, weight, bias, _with(Scaled, normalise, None))


def _group_norm(
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Call:
    def normalise(x: Tensor) -> Tensor:
        return functional.group_norm(x, num_groups, eps=eps)

    return Call(input, weight, bias, _with(Scaled, normalise, None))


def _mul(one: Any, other: Any) -> Call | None:
    pair = _broadcast(one, other)
    if pair is None:
        return None
    x, weight, trailing = pair
    return Call(x, weight, None, _with(Scaled, lambda x: x, trailing))


def _add(one: Any, other: Any, alpha: float = 1) -> Call | None:
    pair = _broadcast(one, other)
    if pair is None or alpha != 1:
        return None
    x, bias, trailing = pair
    return Call(x, None, bias, _with(Scaled, lambda x: x, trailing))


def _broadcast(one: Any, other: Any) -> tuple[Tensor, Tensor, int] | None:
    """Which of two keeps its shape, the leaf that is repeated over its rows, and its dimensions."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return None
    for x, parameter in ((one, other), (other, one)):
        shape = list(parameter.shape)
        while shape and shape[0] == 1:
            shape.pop(0)
        fits = list(x.shape[x.ndim - len(shape) :]) == shape and x.ndim > len(shape)
        if parameter.is_leaf and parameter.requires_grad and fits and x.ndim >= parameter.ndim:
            return x, parameter, len(shape)
    return None


def _embedding(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Call | None:
    if max_norm is not None or scale_grad_by_freq:
        return None
    padding = None if padding_idx is None else padding_idx % len(weight)
    return Call(input, weight, None, _with(LookedUp, len(weight), padding))


# What a call of each function is; None where its arguments leave the rule.
CALLS: dict[Any, Callable[..., Call | None]] = {
    functional.linear: _linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    torch.addmm: _addmm,
    functional.conv2d: _conv2d,
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.batch_norm: _batch_norm,
    functional.group_norm: _group_norm,
    functional.embedding: _embedding,
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__rmul__), _mul),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__radd__), _add),
}
