"""The weights of a network from a file of plain tensors; nothing in the file is ever run.

A file of `torch.save` is read with `torch.load(weights_only=True)`. torch allows more than a state
dict needs, including values that take memory without limit. So the pickle's instructions are looked
at first, which runs nothing: they may only name tensors and their storages.
"""

import io
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from retarget.data.archives import open_zip
from retarget.errors import InvalidInputError, MissingDataError
from retarget.text import listed

SAFETENSORS = ".safetensors"
PICKLED = (".pth", ".pt")
SUFFIXES = (SAFETENSORS, *PICKLED)
LARGEST_FILE = 4_000_000_000  # a ResNet-18 has 47 million

ZIP_MARK = b"PK\x03\x04"
PICKLE_NAME = "data.pkl"
# The form from before 2020: two marks, one about the machine, the content, the storages' keys.
OLD_PICKLES = 5
# A ResNet-18 has 4,200, a ResNet-152 some 32,000. The limit also bounds how deep values can nest.
MOST_INSTRUCTIONS = 40_000
STORAGES = "Float Double Half BFloat16 Long Int Short Char Byte Bool"
KNOWN = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {kind}Storage" for kind in STORAGES.split()),
}
REMEMBER = ("BINPUT", "LONG_BINPUT")
RECALL = ("BINGET", "LONG_BINGET")
# What may be used twice: names and texts. A list used a thousand times is a thousand copies.
RECALLED = ("GLOBAL", "BINUNICODE")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name, from a .safetensors file or from what `torch.save` made of a state dict.

    Args:
        path: The file; nothing in it can run.

    Raises:
        MissingDataError: There is no such file.
        InvalidInputError: It is damaged, of another kind, or holds something other than tensors.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidInputError(
            f"{path} has the suffix {path.suffix!r}; expected weights in {', '.join(SUFFIXES)}"
        )
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}")
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
            f"{path} holds something other than tensors: {listed(others)}; expected the "
            "state dict alone: save that part of the checkpoint to a file of its own"
        )
    return {name: tensor.detach() for name, tensor in found.items()}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InvalidInputError(
            f"{path} is damaged, or no .safetensors file: {error}; get it again"
        ) from error


def read_torch_file(path: Path) -> Any:
    """What a file of `torch.save` holds, with its tensors on the CPU.

    Tensors that share their numbers in the file share them here.

    Raises:
        InvalidInputError: It is damaged, no such file, or holds something other than tensors and
            plain values.
    """
    with path.open("rb") as file:
        zipped = file.read(len(ZIP_MARK)) == ZIP_MARK
        file.seek(0)
        try:
            if zipped:
                _require_tensors(io.BytesIO(_zipped_pickle(path)), 1)
            else:
                _require_tensors(file, OLD_PICKLES)
            file.seek(0)
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch and pickletools raise a dozen kinds of errors
            raise InvalidInputError(
                f"{path} is damaged, or holds more than plain tensors, and nothing of it was run: "
                f"{str(error).partition(chr(10))[0]}; expected what "
                "torch.save(model.state_dict(), path) writes"
            ) from error
    for value in found.values() if isinstance(found, Mapping) else [found]:
        if isinstance(value, Tensor) and value.nbytes > value.untyped_storage().nbytes():
            raise InvalidInputError(
                f"{path} holds a tensor of shape {tuple(value.shape)} with fewer numbers than "
                "that; expected each number to be stored"
            )
    return found


def _zipped_pickle(path: Path) -> bytes:
    """The pickle in the archive. Every checksum is compared, which torch does not do."""
    left = path.stat().st_size  # torch does not compress: nothing may grow
    pickles = []
    with open_zip(path) as files:
        for name in files.names:
            content = files.read(name, left)
            left -= len(content)
            if name.split("/")[1:] == [PICKLE_NAME]:
                pickles.append(content)
    if len(pickles) != 1:
        raise InvalidInputError(f"it is a zip archive without one {PICKLE_NAME}")
    return pickles[0]


def _require_tensors(file: IO[bytes], pickles: int) -> None:
    """Refuses pickles that ask for something other than tensors, or that could grow."""
    count = 0
    for _ in range(pickles):
        last = ""
        remembered: dict[Any, str] = {}
        for instruction, argument, _ in pickletools.genops(file):
            count += 1
            if count > MOST_INSTRUCTIONS:
                raise InvalidInputError(f"it has more than {MOST_INSTRUCTIONS} instructions")
            if instruction.name == "GLOBAL" and argument not in KNOWN:
                raise InvalidInputError(f"it asks for {argument!a}")
            if instruction.name in RECALL and remembered.get(argument, "") not in RECALLED:
                raise InvalidInputError("it uses a value twice that is neither name nor text")
            if instruction.name in REMEMBER:
                remembered[argument] = last
            else:
                last = instruction.name
