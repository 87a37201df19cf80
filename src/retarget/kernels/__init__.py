"""Kernels k(x, x'), which are independent of any learner."""

from retarget.kernels.base import Kernel
from retarget.kernels.empirical.ntk import EmpiricalNTK
from retarget.kernels.features import Features
from retarget.kernels.given import CallableKernel, PrecomputedKernel, SklearnKernel
from retarget.kernels.infinite.ntk import InfiniteNTK
from retarget.kernels.laplace import Laplace
from retarget.kernels.linear import Affine, Linear
from retarget.kernels.lookup import as_kernel, kernel_from_dict
from retarget.kernels.matern import Matern32, Matern52
from retarget.kernels.rbf import RBF

__all__ = [
    "RBF",
    "Affine",
    "CallableKernel",
    "EmpiricalNTK",
    "Features",
    "InfiniteNTK",
    "Kernel",
    "Laplace",
    "Linear",
    "Matern32",
    "Matern52",
    "PrecomputedKernel",
    "SklearnKernel",
    "as_kernel",
    "kernel_from_dict",
]
