"""Kernels k(x, x'), which are independent of any learner."""

import pkgutil
from importlib import import_module

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

# Each file of this folder registers its kernels when it is imported.
for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
