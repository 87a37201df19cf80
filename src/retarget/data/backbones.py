"""Networks whose features stand for images: found by name, by file or by import path."""

from pathlib import Path

from torch import nn

from retarget.data.download import get
from retarget.data.files import DataFile, DataSet, StoredFile, data_folder, is_complete, locate
from retarget.data.weights import SUFFIXES, resnet18_from
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
    if name == RESNET18.name:
        folder = data_folder(folder)
        if download and not is_complete(RESNET18, folder):
            get(RESNET18, folder)
        ((path,),) = locate(RESNET18, folder)
        return resnet18_from(path)
    if Path(name).suffix in SUFFIXES:
        return resnet18_from(user_path(name))
    if IMPORT_PATH.fullmatch(str(name)):
        return imported_network(str(name), "backbone")
    raise InvalidInputError(
        f"there is no backbone {str(name)!r}; expected {RESNET18.name!r}, a file of weights "
        f"({', '.join(SUFFIXES)}) or 'package.module:factory'"
    )
