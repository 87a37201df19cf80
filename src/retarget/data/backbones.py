"""Networks whose features stand for images: found by name, by file or by import path."""

import hashlib
import inspect
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from retarget.data.cache import content_digest, file_checksum
from retarget.data.fetch import DataFile, DataSet, StoredFile, data_folder, get, is_complete, locate
from retarget.data.weights import SUFFIXES, require_weights, resnet18_from
from retarget.errors import InvalidInputError
from retarget.import_path import IMPORT_PATH, imported_network
from retarget.storage import user_path

RESNET18 = DataSet(
    name="resnet18",
    description="weights of ResNet-18 for ImageNet (IMAGENET1K_V1), 1000 classes",
    files=(
        DataFile(
            download=StoredFile(
                "resnet18-f37072fd.pth",
                46_830_571,
                "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
            ),
            mirrors=("https://download.pytorch.org/models/resnet18-f37072fd.pth",),
        ),
    ),
)


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
        InvalidTypeError: The factory gives something else than a module.
        DownloadError: The official weights could not be downloaded.
    """
    if name == RESNET18.name and download and not is_complete(RESNET18, data_folder(folder)):
        get(RESNET18, data_folder(folder))
    weights = _weights_file(name, folder)
    return resnet18_from(weights) if weights else imported_network(str(name), "backbone")


def backbone_checksum(name: str | Path, folder: str | Path | None = None) -> str:
    """SHA-256 of what makes a backbone: a file of weights, or the network of an import path.

    Raises:
        MissingDataError: The file is not there.
        InvalidInputError: Nothing has this name, or its code is in no file.
    """
    weights = _weights_file(name, folder)
    if weights is None:
        return _network_checksum(str(name))
    require_weights(weights)
    return file_checksum(weights)


@lru_cache(maxsize=8)
def _network_checksum(name: str) -> str:
    return content_digest(identity(imported_network(name, "backbone")))


def _weights_file(name: str | Path, folder: str | Path | None) -> Path | None:
    """The file of weights that a name stands for; None for an import path."""
    if name == RESNET18.name:
        ((path,),) = locate(RESNET18, data_folder(folder))
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
