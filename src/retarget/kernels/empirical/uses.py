r"""The uses of parameters that have a rule, and what the rule needs of them.

In all of them the gradient of one output is $\sum_p g_p a_p^\top$ over positions p, where a is what
the parameters were multiplied with and g is the output's gradient by the result:

| functions | a | positions |
|---|---|---|
| `linear`, `matmul`, `addmm` | the input | all dimensions between the first and the last |
| `conv2d` | the patch under the window | the windows |
| norms in evaluation mode, `mul`, `add` | the (normalized) input; one group per parameter | those \
that share a parameter |
| `embedding` | the token, one of many that are 1 or 0 | the tokens of a sample |

With a bias, a has a last 1.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

# The names of a weight and a bias that are used together; None for one that is missing or frozen.
LayerNames = tuple[str | None, str | None]


def names_of(layer: LayerNames) -> list[str]:
    """Drops what is missing or frozen."""
    return [name for name in layer if name is not None]


@dataclass(frozen=True)
class Use(ABC):
    """One call of a function with a layer's parameters.

    Attributes:
        input: The function's other argument.
        edge: The graph's edge with the gradient by the call's result. Unlike the result itself, it
            stays valid after an in-place operation, such as a ReLU.
        zeros: Zeros in the shape of the result, which take no memory.
        n: Samples in the pass.
        order: How the weight stands in its gradient: with a row, or a column, for each result.
        is_linear: Whether each result has a row of weights of its own.
    """

    order: ClassVar[Literal["rows", "columns"]] = "rows"
    is_linear: ClassVar[bool] = False

    input: Tensor
    edge: GradientEdge
    zeros: Tensor
    n: int

    def has_rows(self) -> bool:
        """Whether it seems to have been called with one row per sample."""
        return self.zeros.ndim > 1 and len(self.zeros) == self.n == len(self.input)

    @abstractmethod
    def positions(self) -> Tensor:
        """(n, groups, positions, features) a, without the bias's 1."""

    @abstractmethod
    def arranged(self, g: Tensor) -> Tensor:
        """(n, groups, results, positions) g, from its shape in the graph."""

    def total(self, a: Tensor, g: Tensor) -> Tensor:
        """(groups * results, features) the sum of all samples' gradients."""
        return torch.einsum("ngop,ngpi->goi", g, a).flatten(0, 1)

    def by_row(self, values: Tensor, rows: int) -> Tensor:
        """(groups * results, features) one value for each number of a parameter, in this layout."""
        return values.reshape(rows, -1)

    def rows_looked_up(self) -> int | None:
        """Rows of an embedding; None for other layers."""
        return None

    def applied_at(self) -> int:
        """Positions of a sample that a matrix is multiplied at."""
        return 1

    def working(self) -> int:
        """Roughly how many numbers it holds on the way through the network."""
        return self.input.numel() * 3 + self.zeros.numel() * 6


class LinearUse(Use):
    """`linear`, applied to the last dimension at every position of the others."""

    is_linear = True

    def applied_at(self) -> int:
        """All dimensions of the result but the last."""
        return self.zeros.shape[:-1].numel() // self.n

    def has_rows(self) -> bool:
        """One or several: many modules flatten samples and positions first."""
        rows = len(self.zeros) if self.zeros.ndim > 1 else 0
        return rows > 0 and rows == len(self.input) and rows % self.n == 0

    def positions(self) -> Tensor:
        """All dimensions of the input between samples and features, as one group."""
        return self.input.detach().reshape(self.n, 1, -1, self.input.shape[-1])

    def arranged(self, g: Tensor) -> Tensor:
        """The same positions as those of the input."""
        return g.reshape(self.n, 1, -1, g.shape[-1]).mT


class Multiplied(LinearUse):
    """`matmul` and `addmm`, whose weight stands on the right: it has a column for each result."""

    order = "columns"

    def by_row(self, values: Tensor, rows: int) -> Tensor:
        """A column of the weight becomes a row, as `linear` has it."""
        return super().by_row(values.mT if values.ndim == 2 else values, rows)


@dataclass(frozen=True)
class Convolved(Use):
    """`conv2d`, and the geometry of its window."""

    size: tuple[int, int]
    stride: Any
    padding: Any
    dilation: Any
    groups: int

    def has_rows(self) -> bool:
        """As above, and only for images in batches: `conv2d` also takes a single one."""
        return self.input.ndim == 4 and super().has_rows()

    def positions(self) -> Tensor:
        """What lies under the window at each of its places, for each group of channels."""
        patches = self._patches(self.input.detach())
        return patches.reshape(len(patches), self.groups, -1, patches.shape[-1]).mT

    def arranged(self, g: Tensor) -> Tensor:
        """The result's channels are divided among the groups in order."""
        return g.reshape(len(g), self.groups, g.shape[1] // self.groups, -1)

    def working(self) -> int:
        """As above, with a copy of the input for each number of the window."""
        taps = self.size[0] * self.size[1]
        return self.input.numel() * (1 + 2 * taps) + self.zeros.numel() * 6

    def applied_at(self) -> int:
        """The places of the window."""
        return self.zeros.shape[2:].numel()

    def _patches(self, x: Tensor) -> Tensor:
        """(n, channels * height * width of the window, positions).

        Uses strides, because `torch.nn.functional.unfold` goes sample by sample on CUDA.
        """
        size = self.size
        stride = _two(self.stride)
        dilation = _two(self.dilation)
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
    """A norm, a product or a sum, in which a parameter meets one number at each position.

    Attributes:
        normalize: Makes that number from the input.
        trailing: Dimensions at the end that have a parameter each; None for the channels, which
            are the second dimension.
    """

    normalize: Callable[[Tensor], Tensor]
    trailing: int | None

    def has_rows(self) -> bool:
        """Whether it has one row per sample, and no parameters for the rows themselves."""
        return self.input.ndim > (self.trailing or 0) and super().has_rows()

    def positions(self) -> Tensor:
        """The numbers that each parameter meets, in a group of its own."""
        return self._by_parameter(self.normalize(self.input.detach()))[..., None]

    def arranged(self, g: Tensor) -> Tensor:
        """The gradients by what each parameter was used in, in the same groups."""
        return self._by_parameter(g)[:, :, None]

    def _by_parameter(self, x: Tensor) -> Tensor:
        if self.trailing is None:
            return x.reshape(len(x), x.shape[1], -1)
        parameters = x.shape[x.ndim - self.trailing :].numel()
        return x.reshape(len(x), -1, parameters).mT


@dataclass(frozen=True)
class LookedUp(Use):
    """`embedding`, with the token's number for a; the padding token has no gradient."""

    vocabulary: int
    padding: int | None

    def rows_looked_up(self) -> int:
        """The vocabulary."""
        return self.vocabulary

    def positions(self) -> Tensor:
        """(n, 1, positions, 1) tokens."""
        return self.input.reshape(len(self.input), 1, -1, 1)

    def arranged(self, g: Tensor) -> Tensor:
        """Zero where the token is the padding, which has no gradient."""
        if self.padding is not None:
            g = g.masked_fill((self.input == self.padding)[..., None], 0)
        return g.reshape(len(g), 1, -1, g.shape[-1]).mT

    def total(self, a: Tensor, g: Tensor) -> Tensor:
        """(vocabulary, features), with the gradients of a token added up."""
        summed = g.new_zeros((self.vocabulary, g.shape[2]))
        return summed.index_add_(0, a.flatten(), g[:, 0].mT.flatten(0, 1))


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


class Call(NamedTuple):
    """A call of a function that has a rule, before its parameters are known by name."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    kind: type[Use]
    options: tuple[Any, ...] = ()

    def has_one_type(self, result: Tensor) -> bool:
        """Whether it computes in the type of its parameters: under autocast, it would not."""
        others = [each for each in (self.input, self.weight, self.bias) if each is not None]
        return all(each.dtype == result.dtype for each in others if each.is_floating_point())

    def use(self, result: Tensor, n: int) -> Use:
        """Records the use of the call's parameters, in a pass of n samples."""
        zeros = result.detach().new_zeros(()).expand(result.shape)
        return self.kind(self.input, get_gradient_edge(result), zeros, n, *self.options)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    return Call(input, weight, bias, LinearUse)


def _matmul(input: Tensor, other: Tensor) -> Call | None:
    return Call(input, other, None, Multiplied) if other.ndim == 2 and input.ndim > 1 else None


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Call | None:
    simple = beta == 1 == alpha and input.ndim == 1
    return Call(mat1, mat2, input, Multiplied) if simple else None


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call:
    return Call(
        input, weight, bias, Convolved, (tuple(weight.shape[2:]), stride, padding, dilation, groups)
    )


def _norm(function: Callable[..., Tensor]) -> Callable[..., Call | None]:
    """The rule of a norm, which is the same function without weight and bias."""
    signature = inspect.signature(function)

    def rule(*args: Any, **kwargs: Any) -> Call | None:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("training"):  # then samples depend on each other
            return None
        x = given.pop("input")
        weight = given.pop("weight", None)
        bias = given.pop("bias", None)
        trailing = len(given["normalized_shape"]) if "normalized_shape" in given else None
        return Call(x, weight, bias, Scaled, (lambda x: function(x, **given), trailing))

    return rule


def _mul(one: Any, other: Any) -> Call | None:
    pair = _broadcast(one, other)
    return pair and Call(pair[0], pair[1], None, Scaled, (lambda x: x, pair[2]))


def _add(one: Any, other: Any, alpha: float = 1) -> Call | None:
    pair = _broadcast(one, other) if alpha == 1 else None
    return pair and Call(pair[0], None, pair[1], Scaled, (lambda x: x, pair[2]))


def _broadcast(one: Any, other: Any) -> tuple[Tensor, Tensor, int] | None:
    """The operand that keeps its shape, the leaf repeated over its rows, and its dimensions."""
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
    input: Tensor,
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
    return Call(input, weight, None, LookedUp, (len(weight), padding))


NORMS = functional.layer_norm, functional.rms_norm, functional.batch_norm, functional.group_norm
# The rule of each function; it returns None for arguments that it does not cover.
RULES: dict[Any, Callable[..., Call | None]] = {
    functional.linear: _linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    torch.addmm: _addmm,
    functional.conv2d: _conv2d,
    **{function: _norm(function) for function in NORMS},
    functional.embedding: _embedding,
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__rmul__), _mul),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__radd__), _add),
}
