"""Convolutions as matrix products, for networks (or samples) that are batched by vmap.

vmap makes one grouped convolution of many networks' convolutions, and of many samples' gradients.
On CUDA the libraries are slow at those: written as a product with the unfolded input, they become
one batched matrix product. (On the CPU the grouped convolution is the faster one.)
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad
from torch.overrides import TorchFunctionMode


def batched_convolutions(device: torch.device) -> AbstractContextManager[object]:
    """Within it, what vmap makes of a convolution is fast on this device."""
    return UnfoldedConvolutions() if device.type == "cuda" else nullcontext()


class UnfoldedConvolutions(TorchFunctionMode):
    """Within it, `conv2d` is a matrix product (without groups or dilation, that is)."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replaces the convolution."""
        if func is conv2d or func is torch.conv2d:
            return _convolution(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _convolution(
    input: Tensor,  # noqa: A002 (the name in conv2d, which callers may use)
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Tensor:
    with torch._C.DisableTorchFunction():
        if groups != 1 or _pair(dilation) != (1, 1) or input.ndim != 4:
            return conv2d(input, weight, bias, stride, padding, dilation, groups)
        (height, width), step = weight.shape[2:], _pair(stride)
        top, left = _border(padding, height, width)
        # the odd one of "same" goes to the end, as in PyTorch
        odd = (height - 1) % 2 * (padding == "same"), (width - 1) % 2 * (padding == "same")
        framed = pad(input, (left, left + odd[1], top, top + odd[0]))
        # (n, channels, rows, columns, height, width): windows as a view, then one copy of it;
        # torch's own unfold launches a kernel for every sample
        windows = framed.unfold(2, height, step[0]).unfold(3, width, step[1])
        n, channels, rows, columns = windows.shape[:4]
        patches = windows.permute(0, 1, 4, 5, 2, 3).reshape(
            n, channels * height * width, rows * columns
        )
        output = (weight.flatten(1) @ patches).reshape(n, len(weight), rows, columns)
        return output if bias is None else output + bias[:, None, None]


def _border(padding: int | tuple[int, int] | str, height: int, width: int) -> tuple[int, int]:
    if padding == "same":
        return (height - 1) // 2, (width - 1) // 2
    return (0, 0) if isinstance(padding, str) else _pair(padding)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
