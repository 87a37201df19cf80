"""Lets torchvision, which Avalanche imports, import beside torch for the CPU.

PyPI's torchvision is compiled for CUDA. Beside torch for the CPU its library does not load, and
`import torchvision` stops at two operators that nobody has defined. They are declared here without
an implementation: no part of Avalanche that the tests use calls them.
"""

from importlib.util import find_spec
from pathlib import Path

import torch

_DECLARED = []  # a library's operators go when it goes


def declare_missing_operators():
    """Does nothing where torchvision's library loads; call it before the first import."""
    package = find_spec("torchvision")
    if package is None or _DECLARED:
        return
    try:
        torch.ops.load_library(Path(package.origin).with_name("_C.so"))
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
