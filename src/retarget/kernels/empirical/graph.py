"""What outputs were computed by: the operations of autograd's graph, and how often each parameter.

Rules see functions of torch that are called with a parameter. The graph also shows what they do not
see, such as an `autograd.Function` of the user's own, and which operations lie between.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

# Operations that, whatever numbers they meet, leave rows where they are for one size of batches if
# they do for another, and whose backward pass torch.func.vmap computes right, for every size. Other
# ones (indexing, sorting, scattering, a user's own) may send rows anywhere, or have a faulty
# batching rule: those of `cdist` and `prelu` give wrong gradients without an error. (`Squeeze1` is
# that of a given dimension: without one, it takes away the first one of a single sample.)
KNOWN = frozenset((
    "Abs", "Acos", "AdaptiveAvgPool2D", "AdaptiveMaxPool2D", "Add", "Addcmul", "Addmm", "Amax",
    "Amin", "Asin", "Atan", "Atan2", "AvgPool2D", "Baddbmm", "Bmm", "Cat", "Celu", "Clamp",
    "ClampMax", "ClampMin", "Clone", "ConstantPadNd", "Convolution", "Cos", "Cosh", "Cumsum",
    "Div", "Elu", "Embedding", "Erf", "Exp", "Expand", "Expm1", "Gelu", "Glu", "Hardshrink",
    "Hardsigmoid", "Hardswish", "Hardtanh", "Im2Col", "LeakyRelu", "Lerp", "LinalgVectorNorm",
    "Log", "Log1P", "Log2", "LogSigmoid", "LogSoftmax", "Logsumexp", "MaskedFill", "Max",
    "MaxPool2DWithIndices", "Maximum", "Mean", "Minimum", "Mish", "Mm", "Mul", "Mv",
    "NativeBatchNorm", "NativeGroupNorm", "NativeLayerNorm", "Neg", "Permute", "PixelShuffle",
    "Pow", "Prod", "Reciprocal", "ReflectionPad2D", "Relu", "Repeat", "ReplicationPad2D",
    "ReshapeAlias", "Rsqrt", "Rsub", "SafeSoftmax", "ScaledDotProductFlashAttentionForCpu",
    "Select", "Sigmoid",
    "Silu", "Sin", "Sinh", "Slice", "Softmax", "Softplus", "Softshrink", "Split",
    "SplitWithSizes", "Sqrt", "Squeeze1", "Stack", "Std", "Sub", "Sum", "T", "Tan", "Tanh",
    "Threshold", "ToCopy", "Transpose", "Tril", "Unbind", "UnsafeView", "Unsqueeze",
    "UpsampleBilinear2D", "UpsampleNearest2D", "Var", "View", "WeightNormInterface", "Where",
))  # fmt: skip
# The same on other devices, under names of their own.
KNOWN_ELSEWHERE = frozenset((
    "CudnnBatchNorm", "ScaledDotProductCudnnAttention", "ScaledDotProductEfficientAttention",
    "ScaledDotProductFlashAttention",
))  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """What some outputs depend on.

    Attributes:
        nodes: The operations.
        edges: How many operations use each leaf, by its `id`.
    """

    nodes: frozenset[Node]
    edges: Mapping[int, int]

    @classmethod
    def of(cls, outputs: Tensor) -> "Graph":
        """Walks through the graph once."""
        nodes: set[Node] = set()
        edges: Counter[int] = Counter()
        waiting = [outputs.grad_fn]
        while waiting:
            node: Any = waiting.pop()
            if node is None or node in nodes:
                continue
            nodes.add(node)
            for earlier, _ in node.next_functions:
                if type(earlier).__name__ == "AccumulateGrad":
                    edges[id(earlier.variable)] += 1
                else:
                    waiting.append(earlier)
        return cls(frozenset(nodes), edges)

    @property
    def is_known(self) -> bool:
        """Whether only known operations are in it."""
        return all(map(_is_known, self.nodes))


def _is_known(node: Node) -> bool:
    # operations of torch are numbered; `autograd.Function`s of the user's own are not
    operation, _, number = node.name().partition("Backward")
    known = operation in KNOWN or operation + number in KNOWN or operation in KNOWN_ELSEWHERE
    return known and number.isdigit()
