"""Networks whose features stand for images: found by name, by file or by import path.

ResNet-18 is written from its description: K. He, X. Zhang, S. Ren and J. Sun, "Deep residual
learning for image recognition", CVPR 2016: Table 1, column "18-layer"; shortcuts of kind B.
"""

import hashlib
import inspect
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retarget.data.cache import content_digest, file_checksum
from retarget.data.catalogue import RESNET18
from retarget.data.fetch import locate
from retarget.data.weights import SUFFIXES, read_weights
from retarget.errors import InvalidInputError
from retarget.import_path import IMPORT_PATH, imported_network
from retarget.storage import user_path

FEATURES = 512  # of a ResNet-18
LONGEST_ERROR = 600  # letters: a network has many weights to name


class ResNet18(nn.Module):
    """Images (n, 3, height, width) to class scores, and to 512 features on the way.

    Parameters and buffers have the names that torchvision gives them, so that its files of weights
    fit. The weights are drawn anew; `load_backbone` takes those of a file.

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
        """What the last layer sees: (n, 512), none negative."""
        x = functional.relu(self.bn1(self.conv1(images)))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x.mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """The scores of the classes: (n, classes)."""
        scores: Tensor = self.fc(self.features(images))
        return scores


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut around them, which is projected where shapes change."""

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
        """The block's output, of half the size if its stride is 2."""
        residual = functional.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        return functional.relu(residual + self.downsample(x))


def _stage(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, stride=1)
    )


def _convolution(channels_in: int, channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    # Without bias: the normalisation that follows has one.
    return nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False)


def load_backbone(
    name: str | Path, folder: str | Path | None = None, *, download: bool = False
) -> nn.Module:
    """A network for `retarget.data.features.image_features`.

    Args:
        name: "resnet18", with the official weights for ImageNet; or the path of a file with other
            weights of a ResNet-18 (.pth, .pt, .safetensors); or "package.module:factory", any
            function or class that gives a torch module when it is called without arguments.
        folder: Where the official weights are; by default `RETARGET_DATA`, else the user's cache.
        download: If they are not there, download them first.

    Raises:
        MissingDataError: The file is not there; of the official one, the message says how to get
            it.
        InvalidInputError: The weights are damaged or do not fit, or nothing has this name.
        InvalidTypeError: The factory gives something other than a module.
        DownloadError: The official weights could not be downloaded.
    """
    weights = _weights_file(name, folder, download)
    return resnet18_from(weights) if weights else imported_network(str(name), "backbone")


def backbone_checksum(name: str | Path, folder: str | Path | None = None) -> str:
    """SHA-256 of what makes a backbone: a file of weights, or the network of an import path.

    Raises:
        MissingDataError: The file is not there.
        InvalidInputError: Nothing has this name, or its code is in no file.
    """
    weights = _weights_file(name, folder)
    return file_checksum(weights) if weights else _network_checksum(str(name))


@lru_cache(maxsize=8)
def _network_checksum(name: str) -> str:
    return content_digest(identity(imported_network(name, "backbone")))


def _weights_file(
    name: str | Path, folder: str | Path | None, download: bool = False
) -> Path | None:
    """The file of weights that a name stands for; None for an import path."""
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
    """What a backbone is made of: its printed form, its code, and every weight by name.

    Two backbones of the same identity give the same features.

    Raises:
        InvalidInputError: The code of one of its classes is in no file.
    """
    yield repr(backbone)
    yield code_of(backbone)
    for name, tensor in backbone.state_dict().items():
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def code_of(backbone: nn.Module) -> str:
    """A checksum of the files that its classes are in, but for those of torch."""
    classes = {type(part) for part in backbone.modules()}
    paths = {_file_of(kind) for kind in classes if not kind.__module__.startswith("torch.")}
    return hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in sorted(paths))).hexdigest()


def _file_of(kind: type) -> str:
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError) as error:
        raise InvalidInputError(
            f"the code of the backbone's {kind.__qualname__} is in no file, so that its features "
            "could not be found again; define it in a module, or pass cache=False"
        ) from error


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
    weights = {
        name: tensor if name.endswith("num_batches_tracked") else tensor.float()
        for name, tensor in weights.items()
    }
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InvalidInputError(
            f"{path} does not hold the weights of a ResNet-18, of the names and shapes that "
            f"torchvision's resnet18 has: {textwrap.shorten(str(error), LONGEST_ERROR)}"
        ) from error
    return network.eval()
