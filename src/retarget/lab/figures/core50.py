"""A small head on frozen features, new objects in every task: Fig. 3B, 6 E to H and 7C.

The pictures are CORe50, or a stand-in in its layout; results of a stand-in say so.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor, nn

from retarget.errors import MissingDataError
from retarget.lab import LabeledData, classes_in_tasks
from retarget.lab.data.backbones import SUFFIXES, ResNet18, backbone_checksum, load_backbone
from retarget.lab.data.core50 import core50_checksums as frames_checksums
from retarget.lab.data.core50 import load_core50, new_classes_tasks
from retarget.lab.data.features import image_features, prepared
from retarget.lab.data.fetch import FOLDER_VARIABLE, RESNET18, data_folder
from retarget.lab.experiment import Core50Source, Count
from retarget.lab.figures.training import NetworkRun, TrainingSetup
from retarget.lab.runs.compute import torch_threads

HIDDEN, OBJECTS = 100, 50
STAND_IN = "core50_standin.zip"
STAND_IN_BACKBONE = "resnet18-tiny150-f16.safetensors"


class Core50Run(NetworkRun):
    """One training of the paper's head on features of CORe50, or of its stand-in.

    Attributes:
        backbone: The network that computes features, as in `load_backbone`; by default ResNet-18
            for ImageNet for CORe50, and the stand-in's own weights for the stand-in.
        frames_per_session: Frames of each object in each session.
        image_size: Height and width that frames are resized to.
        network: The paper's head on frozen features, or the backbone itself with a linear layer on
            top, applied to the images.
    """

    data: Core50Source
    frames_per_session: Count
    backbone: str | None = None
    image_size: Count = 224
    network: Literal["head", "whole"] = "head"

    @model_validator(mode="after")
    def _require_least_squares(self) -> Self:
        """Refuses to train the whole network, whose scores stay zero."""
        untrained = self.method in ("tangent", "last layer") and self.first_epochs == 0
        if self.network == "whole" and not untrained:
            raise ValueError(
                "network is 'whole', which is not trained; expected method 'tangent' or 'last "
                "layer', and first_epochs = 0"
            )
        return self

    def identifying(self) -> dict[str, Any]:
        """Replaces a path of weights by the file's name: its checksum is part of `data`."""
        known = super().identifying()
        if self.backbone and Path(self.backbone).suffix in SUFFIXES:
            known["backbone"] = Path(self.backbone).name
        return known

    def setup(self) -> TrainingSetup:
        """Draws the stream and the network from the seed."""
        folder, whole = data_folder(None), self.network == "whole"
        sizes = (self.frames_per_session, self.image_size)
        data = _data(folder, self.data, self.backbone, *sizes, whole, self.device)
        stream = classes_in_tasks(data, self.seed, new_classes_tasks(self.seed))
        backbone = _sources(folder, self.data, self.backbone)[1]
        network = (
            WholeNetwork(load_backbone(backbone, folder), data.inputs[:1].cpu(), self.seed)
            if whole
            else head(data.inputs.shape[1], self.seed)
        )
        pictures = "CORe50" if self.data == "core50" else "stand-in pictures"
        return TrainingSetup(stream, network, f"{pictures}, features of {Path(backbone).name}")


def head(features: int, seed: int) -> nn.Sequential:
    """Returns the paper's two layers, without biases, initialized from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(features, HIDDEN, bias=False),
            nn.ReLU(),
            nn.Linear(HIDDEN, OBJECTS, bias=False),
        )


class WholeNetwork(nn.Module):
    """A backbone with a linear layer on top, whose scores are zero and whose gradients are not.

    So its tangents are those of all layers, and least squares on them starts from zero. It cannot
    be trained, since the scores stay zero. A single `image` determines the number of features.
    """

    def __init__(self, backbone: nn.Module, image: Tensor, seed: int) -> None:
        super().__init__()
        self.backbone = backbone.float().eval().requires_grad_(True)
        if isinstance(backbone, ResNet18):
            backbone.fc = nn.Identity()  # type: ignore[assignment]  # to get its features
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            features = self.backbone(image).shape[1]
            self.top = nn.Linear(features, OBJECTS, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """(n, objects) zeros, with the gradients of the scores."""
        scores: Tensor = self.top(self.backbone(images))
        return scores - scores.detach()


def core50_checksums(
    data: Core50Source, backbone: str | None, frames_per_session: int
) -> dict[str, str]:
    """Returns the checksums of the pictures that a run reads, and of the backbone."""
    frames_from, network = _sources(data_folder(), data, backbone)
    weights = backbone_checksum(network, data_folder())
    frames = frames_checksums(frames_from, frames_per_session)
    return {"backbone": weights, **frames}


@lru_cache(maxsize=1)
def _data(
    folder: Path,
    source: Core50Source,
    backbone: str | None,
    frames_per_session: int,
    image_size: int,
    as_images: bool,
    device: str,
) -> LabeledData:
    """Returns the features of all frames, or the frames themselves, on the device."""
    frames_from, backbone = _sources(folder, source, backbone)
    # reports missing weights before reading all frames
    network = None if as_images else load_backbone(backbone, folder)
    frames = load_core50(frames_from, frames_per_session)

    def inputs(images: np.ndarray) -> Tensor:
        if network is None:
            return _resized(images, image_size, device)
        features = image_features(network, images, image_size, device=device)
        return torch.from_numpy(features).to(device)

    with torch_threads(os.cpu_count() or 1):  # computed once and cached for all runs
        train, test = inputs(frames.train_images), inputs(frames.test_images)
    train_objects, test_objects = (
        torch.from_numpy(objects).to(device)
        for objects in (frames.train_objects, frames.test_objects)
    )
    return LabeledData(train, train_objects, test, test_objects)


def _resized(images: np.ndarray, size: int, device: str) -> Tensor:
    parts = np.array_split(images, -(-len(images) // 256))
    return torch.cat([prepared(torch.from_numpy(part).to(device), size) for part in parts])


def _sources(folder: Path, source: Core50Source, backbone: str | None) -> tuple[Path, str]:
    """Returns where the frames are, and the backbone that computes their features."""
    if source == "core50":
        return folder, backbone or RESNET18.name
    weights = folder / STAND_IN_BACKBONE
    needed = [folder / STAND_IN] + [weights] * (backbone is None)
    missing = [path.name for path in needed if not path.is_file()]
    if missing:
        raise MissingDataError(
            f"stand-in: {' and '.join(missing)} not found in {folder}; these are pictures in the "
            "layout of CORe50 and weights of a ResNet-18, which you provide: name their "
            f"folder with --data-dir or {FOLDER_VARIABLE}, other weights with --backbone"
        )
    return needed[0], backbone or str(weights)
