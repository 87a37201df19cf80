"""Networks that turn images into features: by name, by file of weights or by import path.

ResNet-18 is written from its description: K. He, X. Zhang, S. Ren and J. Sun, "Deep residual
learning for image recognition", CVPR 2016: Table 1, column "18-layer"; shortcuts of kind B.
"""

import hashlib
import inspect
import io
import pickletools
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from retarget.archives import open_zip
from retarget.errors import InvalidInputError, MissingDataError, a_type
from retarget.import_path import IMPORT_PATH, imported_network
from retarget.lab.data.cache import content_digest, file_checksum
from retarget.lab.data.fetch import RESNET18, locate
from retarget.storage import user_path
from retarget.text import listed

FEATURES = 512  # length of a ResNet-18's features
LONGEST_ERROR = 600  # characters: the error may name many weights

SAFETENSORS = ".safetensors"
PICKLED = (".pth", ".pt")
SUFFIXES = (SAFETENSORS, *PICKLED)
LARGEST_FILE = 4_000_000_000  # a ResNet-18 has 47 million

ZIP_MARK = b"PK\x03\x04"
PICKLE_NAME = "data.pkl"
# The format before 2020: two magic numbers, system information, content, storage keys.
OLD_PICKLES = 5
# A ResNet-18 has 4,200, a ResNet-152 about 32,000. This also limits the depth of nesting.
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
# Only names and text may be reused: a list that is reused often could grow without limit.
RECALLED = ("GLOBAL", "BINUNICODE")


class ResNet18(nn.Module):
    """Maps images (n, 3, height, width) to 512 features, and these to class scores.

    Parameters and buffers have torchvision's names, so its weight files can be loaded. The weights
    are initialized at random; `load_backbone` loads them from a file.

    Args:
        classes: Length of the output.

    Examples:
        >>> import torch
        >>> network = ResNet18(classes=10).eval()
        >>> images = torch.zeros(2, 3, 64, 64)
        >>> network(images).shape, network.features(images).shape
        (torch.Size([2, 10]), torch.Size([2, 512]))
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = _convolution(3, 64, size=7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, FEATURES, stride=2)
        self.fc = nn.Linear(FEATURES, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor) -> Tensor:
        """Returns the inputs of the last layer: (n, 512), none negative."""
        x = functional.relu(self.bn1(self.conv1(images)))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x.mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Returns the class scores (n, classes)."""
        scores: Tensor = self.fc(self.features(images))
        return scores


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut around them, with a projection if the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(channels_in, channels, size=3, stride=stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _convolution(channels, channels, size=3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = (
            nn.Identity()
            if channels_in == channels
            else nn.Sequential(
                _convolution(channels_in, channels, size=1, stride=stride),
                nn.BatchNorm2d(channels),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output, of half the size if its stride is 2."""
        residual = functional.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        return functional.relu(residual + self.downsample(x))


def _stage(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, stride=1)
    )


def _convolution(channels_in: int, channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    # No bias: the following normalization has one.
    return nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False)


def load_backbone(
    name: str | Path, folder: str | Path | None = None, *, download: bool = False
) -> nn.Module:
    """Loads a network for `retarget.lab.data.features.image_features`.

    Args:
        name: "resnet18", with the official weights for ImageNet; or the path of a file with other
            weights of a ResNet-18 (.pth, .pt, .safetensors); or "package.module:factory", any
            function or class that returns a torch module when called without arguments.
        folder: Where the official weights are; by default `RETARGET_DATA`, else the user's cache.
        download: Whether to download them first if they are missing.

    Raises:
        MissingDataError: The file is missing; for the official weights, the message says how to
            get them.
        InvalidInputError: The weights are damaged or do not fit, or the name is unknown.
        InvalidTypeError: The factory returns something other than a module.
        DownloadError: The official weights could not be downloaded.
    """
    weights = _weights_file(name, folder, download)
    return resnet18_from(weights) if weights else imported_network(str(name), "backbone")


def backbone_checksum(name: str | Path, folder: str | Path | None = None) -> str:
    """Returns the SHA-256 of a backbone: of its file of weights, or of an imported network."""
    weights = _weights_file(name, folder)
    return file_checksum(weights) if weights else _network_checksum(str(name))


@lru_cache(maxsize=8)
def _network_checksum(name: str) -> str:
    return content_digest(identity(imported_network(name, "backbone")))


def _weights_file(
    name: str | Path, folder: str | Path | None, download: bool = False
) -> Path | None:
    """Returns the file of weights for a name; None for an import path."""
    if name == RESNET18.name:
        ((path,),) = locate(RESNET18, folder, download=download)
        return path
    if Path(name).suffix in SUFFIXES:
        return user_path(name)
    if IMPORT_PATH.fullmatch(str(name)):
        return None
    raise InvalidInputError(
        f"there is no backbone {str(name)!r}; expected {RESNET18.name!r}, a file of weights "
        f"({', '.join(SUFFIXES)}) or 'package.module:factory'"
    )


def identity(backbone: nn.Module) -> Iterator[str | np.ndarray]:
    """Yields what its features depend on: its printed form, its code, and each weight by name."""
    yield repr(backbone)
    yield code_of(backbone)
    for name, tensor in backbone.state_dict().items():
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def code_of(backbone: nn.Module) -> str:
    """Returns a checksum of the source files of its classes, except torch's."""
    classes = {type(layer) for layer in backbone.modules()}
    paths = {_file_of(kind) for kind in classes if not kind.__module__.startswith("torch.")}
    return hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in sorted(paths))).hexdigest()


def _file_of(kind: type) -> str:
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError) as error:
        raise InvalidInputError(
            f"the code of the backbone's {kind.__qualname__} is not in a file, so its features "
            "cannot be cached; define it in a module, or pass cache=False"
        ) from error


def resnet18_from(path: Path) -> ResNet18:
    """Loads a ResNet-18 with the weights and classes of a file, in float32 and in eval mode."""
    weights = read_weights(path)
    last = weights.get("fc.weight")
    # On the meta device: initializing weights would advance the caller's random generator.
    with torch.device("meta"):
        network = ResNet18(1000 if last is None or last.ndim != 2 else max(1, len(last)))
    weights = {
        name: tensor if name.endswith("num_batches_tracked") else tensor.float()
        for name, tensor in weights.items()
    }
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InvalidInputError(
            f"{path} does not hold the weights of a ResNet-18, with the names and shapes of "
            f"torchvision's resnet18: {textwrap.shorten(str(error), LONGEST_ERROR)}"
        ) from error
    return network.eval()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Reads tensors by name, from a .safetensors file or a state dict written by `torch.save`.

    No code in the file is ever run.

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
    if path.suffix == SAFETENSORS:
        try:
            return load_file(path)
        except SafetensorError as error:
            raise InvalidInputError(
                f"{path} is damaged, or not a .safetensors file: {error}; get it again"
            ) from error
    state = read_torch_file(path)
    if not isinstance(state, Mapping):
        raise InvalidInputError(
            f"{path} holds {a_type(state)}; expected tensors by name, "
            "as torch.save(model.state_dict(), path) writes them"
        )
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise InvalidInputError(
            f"{path} holds something other than tensors: {listed(others)}; expected the "
            "state dict alone: save that part of the checkpoint to a separate file"
        )
    return {name: tensor.detach() for name, tensor in state.items()}


def read_torch_file(path: Path) -> Any:
    """Loads a file of `torch.save` to the CPU, if it holds only tensors and plain values.

    `torch.load(weights_only=True)` allows more than a state dict needs, including values that use
    unlimited memory. So the pickle's instructions are inspected first, without running them: they
    may only name tensors and their storages.
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
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch and pickletools raise a dozen kinds of errors
            raise InvalidInputError(
                f"{path} is damaged, or holds more than plain tensors, and was not loaded: "
                f"{str(error).partition(chr(10))[0]}; expected what "
                "torch.save(model.state_dict(), path) writes"
            ) from error
    for value in content.values() if isinstance(content, Mapping) else [content]:
        if isinstance(value, Tensor) and value.nbytes > value.untyped_storage().nbytes():
            raise InvalidInputError(
                f"{path} holds a tensor of shape {tuple(value.shape)} but stores fewer "
                "numbers; expected all of them"
            )
    return content


def _zipped_pickle(path: Path) -> bytes:
    """Reads the pickle in the archive and verifies every checksum, which torch does not do."""
    left = path.stat().st_size  # torch does not compress, so nothing may be larger
    pickles = []
    with open_zip(path) as files:
        for name in files.names:
            content = files.read(name, left)
            left -= len(content)
            if name.split("/")[1:] == [PICKLE_NAME]:
                pickles.append(content)
    if len(pickles) != 1:
        raise InvalidInputError(f"it is a zip archive without a {PICKLE_NAME}")
    return pickles[0]


def _require_tensors(file: IO[bytes], pickles: int) -> None:
    """Refuses pickles that name anything but tensors, or that could use unlimited memory."""
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
                raise InvalidInputError("it reuses a value that is neither a name nor text")
            if instruction.name in REMEMBER:
                remembered[argument] = last
            else:
                last = instruction.name
