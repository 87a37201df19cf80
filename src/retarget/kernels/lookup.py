"""From what a caller gives as a kernel, its name included, to the kernel."""

from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.kernels.base import KINDS, NAMED, Kernel
from retarget.kernels.given import CallableKernel, PrecomputedKernel, SklearnKernel


def as_kernel(
    kernel: Any, width: float | Literal["auto"] = "auto", X: Tensor | None = None
) -> Kernel:
    """Makes a kernel from a name, a function or a Gram matrix.

    Args:
        kernel: A `Kernel`; the name of one ("rbf", "laplace", "matern32", "matern52", "linear",
            "affine", or that of your own) or its class; the name of another scikit-learn pairwise
            kernel; a function `k(A, B)`; or a precomputed Gram matrix, for which samples are row
            numbers.
        width: The width, for a name that has one. `"auto"` chooses it from X or, without X, from
            the number of values in a sample.
        X: (n, d) samples to choose the width from.

    Examples:
        >>> as_kernel("matern32", width=2.0)
        Matern32(width=2)
        >>> as_kernel("polynomial")
        SklearnKernel('polynomial')
    """
    known = named_class(kernel)
    if known is not None:
        return known.from_width(width, X)
    if width != "auto":
        raise InvalidInputError(
            f"width is {width!r} with the kernel {kernel!r:.80}; only a name such as 'rbf' takes a "
            "width: leave it out"
        )
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str):
        return _of_scikit_learn(kernel)
    if isinstance(kernel, np.ndarray | Tensor):
        return PrecomputedKernel(kernel)
    if isinstance(kernel, nn.Module):
        raise InvalidTypeError(
            f"kernel is {a_type(kernel)}, a network; expected a kernel: "
            "rt.EmpiricalNTK(network), its tangent kernel, or rt.Features(network), the products "
            "of its outputs"
        )
    if callable(kernel):
        return CallableKernel(kernel)
    raise InvalidTypeError(
        f"kernel is {kernel!r}; expected a retarget kernel, its name, a function k(A, B), the name "
        "of a scikit-learn kernel or a precomputed matrix"
    )


def named_class(kernel: Any) -> type[Kernel] | None:
    """Returns the class of kernels that a name stands for, or the class itself; None for others."""
    if isinstance(kernel, str):
        return NAMED.get(kernel)
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        return kernel
    return None


def takes_width(kernel: Any) -> bool:
    """Whether a name or a class has a width to choose."""
    known = named_class(kernel)
    # a class that has a width makes itself from one
    return known is not None and known.from_width.__func__ is not Kernel.from_width.__func__  # type: ignore[attr-defined]


def kernel_names() -> list[str]:
    """Returns the names of all kernels that are registered by now."""
    return sorted(NAMED)


def _of_scikit_learn(name: str) -> Kernel:
    try:
        return SklearnKernel(name)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{error}; or one of retarget's: {', '.join(kernel_names())} (a kernel of your own is "
            "known once the module that defines it is imported)"
        ) from None


def kernel_from_dict(description: dict[str, Any]) -> Kernel:
    """Rebuilds the kernel that `Kernel.to_dict` described."""
    values = dict(description)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidInputError(
            f"kernel kind is {kind!r}; expected one of {sorted(KINDS)} (import the "
            "module that defines a kernel of your own first)"
        )
    return KINDS[kind].from_dict(**values)
