"""Convolutions as matrix products, for the gradients of many samples by vmap.

vmap makes grouped convolutions of them, with as many groups as there are samples. On CUDA the
libraries are very slow at those: written as a product with the unfolded input, they become batched
matrix products. (On the CPU the grouped convolution is the faster one.)
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad, unfold
from torch.overrides import TorchFunctionMode


def sample_convolutions(device: torch.device) -> AbstractContextManager[object]:
    """Within it, gradients of single samples by vmap are fast on this device."""
    return UnfoldedConvolutions() if device.type == "cuda" else nullcontext()


class UnfoldedConvolutions(TorchFunctionMode):
    """Within it, `conv2d` without groups is a matrix product; everything else is as it was."""

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
        if groups != 1 or input.ndim != 4:
            return conv2d(input, weight, bias, stride, padding, dilation, groups)
        kernel, step, spread = weight.shape[2:], _pair(stride), _pair(dilation)
        extent = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
        if padding == "same":  # the odd one goes to the end, as in PyTorch
            top, left = extent[0] // 2, extent[1] // 2
            input = pad(input, (left, extent[1] - left, top, extent[0] - top))  # noqa: A001
        border = (0, 0) if isinstance(padding, str) else _pair(padding)
        height, width = (
            (size + 2 * p - e - 1) // s + 1
            for size, p, e, s in zip(input.shape[2:], border, extent, step, strict=True)
        )
        patches = unfold(input, tuple(kernel), spread, border, step)
        output = (weight.flatten(1) @ patches).reshape(len(input), len(weight), height, width)
        return output if bias is None else output + bias[:, None, None]


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
