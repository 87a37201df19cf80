"""Lets torchvision, which Avalanche imports, import beside torch for the CPU.

PyPI's torchvision is compiled for CUDA. Beside torch for the CPU its library may not load, and some
versions then stop at two operators that nobody has defined. They are declared here without an
implementation: no part of Avalanche that the tests use calls them.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

import torch

_DECLARED = []  # a library's operators go when it goes


def declare_missing_operators():
    """Does nothing where torchvision can be imported, or is not installed."""
    if find_spec("torchvision") is None or _DECLARED:
        return
    try:
        import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [each for each in sys.modules if each.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
