"""Kernels k(x, x'). They know nothing of learning."""

from retarget.kernels.base import Kernel
from retarget.kernels.empirical_ntk import EmpiricalNTK
from retarget.kernels.features import Features
from retarget.kernels.infinite_ntk import InfiniteNTK
from retarget.kernels.linear import Linear
from retarget.kernels.rbf import RBF
from retarget.kernels.wrapped import (
    CallableKernel,
    PrecomputedKernel,
    SklearnKernel,
    as_kernel,
    kernel_from_dict,
)

__all__ = [
    "RBF",
    "CallableKernel",
    "EmpiricalNTK",
    "Features",
    "InfiniteNTK",
    "Kernel",
    "Linear",
    "PrecomputedKernel",
    "SklearnKernel",
    "as_kernel",
    "kernel_from_dict",
]
