"""The weights of a network from a file of plain tensors; nothing in the file is ever run."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from retarget.data.resnet18 import FEATURES, ResNet18
from retarget.data.torch_file import read_torch_file
from retarget.errors import InvalidInputError, MissingDataError

SAFETENSORS = ".safetensors"
PICKLED = (".pth", ".pt")
SUFFIXES = (SAFETENSORS, *PICKLED)
LARGEST_FILE = 4_000_000_000  # a ResNet-18 has 47 million
SHOWN = 5


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name, from a .safetensors file or from what `torch.save` made of a state dict.

    Args:
        path: The file; nothing in it can run, see `retarget.data.torch_file`.

    Raises:
        MissingDataError: There is no such file.
        InvalidInputError: It is damaged, of another kind, or holds something else than tensors.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidInputError(
            f"{path} has the suffix {path.suffix!r}; expected weights in {', '.join(SUFFIXES)}"
        )
    require_weights(path)
    if path.stat().st_size > LARGEST_FILE:
        raise InvalidInputError(
            f"{path} has {path.stat().st_size} bytes; expected weights of at most {LARGEST_FILE}"
        )
    found = _read_safetensors(path) if path.suffix == SAFETENSORS else read_torch_file(path)
    if not isinstance(found, Mapping):
        raise InvalidInputError(
            f"{path} holds one {type(found).__name__}; expected tensors by name, "
            "as torch.save(model.state_dict(), path) writes them"
        )
    others = [name for name, value in found.items() if not isinstance(value, Tensor)]
    if others:
        raise InvalidInputError(
            f"{path} holds something else than tensors: {_listed(map(str, others))}; expected the "
            "state dict alone: save that part of the checkpoint to a file of its own"
        )
    return {name: tensor.detach() for name, tensor in found.items()}


def require_weights(path: Path) -> None:
    """Refuses a file of weights that is not there."""
    if not path.is_file():
        raise MissingDataError(f"there is no file of weights {path}")


def resnet18_from(path: Path) -> ResNet18:
    """A ResNet-18 with the weights of a file, in float32 and in eval mode.

    Args:
        path: See `read_weights`; the number of classes is that of the file.

    Raises:
        MissingDataError: There is no such file.
        InvalidInputError: It is damaged, or the weights are not those of a ResNet-18.
    """
    weights = read_weights(path)
    last = weights.get("fc.weight")
    # On no device: drawing weights that are replaced would move the caller's random numbers on.
    with torch.device("meta"):
        network = ResNet18(1000 if last is None or last.ndim != 2 else max(1, len(last)))
    _require_fit(network, weights, path)
    weights = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    network.load_state_dict(weights, assign=True)
    return network.eval()


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InvalidInputError(
            f"{path} is damaged, or no .safetensors file: {error}; get it again"
        ) from error


def _require_fit(network: ResNet18, weights: dict[str, Tensor], path: Path) -> None:
    wanted = network.state_dict()
    misshapen = [
        f"{name} {_kind(weights[name])} instead of {_kind(tensor)}"
        for name, tensor in wanted.items()
        if name in weights and _kind(weights[name]) != _kind(tensor)
    ]
    problems = {
        "missing": [name for name in wanted if name not in weights],
        "unexpected": [name for name in weights if name not in wanted],
        "misshapen": misshapen,
    }
    if any(problems.values()):
        found = "; ".join(f"{what}: {_listed(names)}" for what, names in problems.items() if names)
        raise InvalidInputError(
            f"{path} does not hold the weights of a ResNet-18 with {FEATURES} features; {found}. "
            "Expected the names and shapes of torchvision's resnet18"
        )


def _kind(tensor: Tensor) -> str:
    """Shape, and whether of real numbers; their precision does not matter."""
    return f"{tuple(tensor.shape)}" + ("" if tensor.is_floating_point() else " of integers")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
