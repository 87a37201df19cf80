"""Whether a module has a tangent kernel: each output a function of its own sample."""

import math

import torch
from torch import Tensor, nn

from retarget.errors import InvalidInputError
from retarget.kernels.empirical.recording import Network


def require_settled_layers(module: nn.Module) -> None:
    """Refuses layers that are known to mix samples, or to be random, as they are set."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (
            layer.training or layer.running_mean is None
        ):
            raise InvalidInputError(
                f"layer {name!r} ({type(layer).__name__}) normalises by the batch, so that samples "
                "depend on each other; call module.eval() first"
            )
        random = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
        if layer.training and (random or isinstance(layer, nn.RReLU)):
            raise InvalidInputError(
                f"layer {name!r} ({type(layer).__name__}) is random in training; call "
                "module.eval() first"
            )


def require_separate_samples(network: Network, few: Tensor, together: Tensor) -> None:
    """Refuses modules whose output for a sample is not a function of that sample."""
    with torch.no_grad():
        alone = torch.cat([network(few[i : i + 1]) for i in range(len(few))])
    gap = (alone - together).abs().max().item()
    if not gap <= tolerance(alone) * together.abs().max().item():
        raise InvalidInputError(
            f"the outputs of a sample alone and of the same sample among others differ by "
            f"{gap:.3g}; expected each to depend on its own sample, and not on chance: call "
            "module.eval(), or leave out what mixes samples"
        )


def tolerance(values: Tensor) -> float:
    """The relative difference between two ways to the same values that rounding may make."""
    return math.sqrt(torch.finfo(values.dtype).eps)
