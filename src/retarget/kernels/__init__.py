"""Kernels k(x, x'), which are independent of any learner."""

from retarget.kernels.empirical.ntk import EmpiricalNTK
from retarget.kernels.infinite.ntk import InfiniteNTK
from retarget.kernels.simple import (
    RBF,
    CallableKernel,
    Features,
    Kernel,
    Linear,
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
