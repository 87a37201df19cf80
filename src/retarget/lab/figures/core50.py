"""A small head on frozen features, new objects in every task: Fig. 3B, 6 E to H and 7C.

The pictures are CORe50, or a stand-in in its layout; results of a stand-in say so.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from retarget.lab import LabeledData, classes_in_tasks
from retarget.lab.data.backbones import backbone_checksum, load_backbone
from retarget.lab.data.core50 import core50_checksums as frames_checksums
from retarget.lab.data.core50 import load_core50, new_classes_tasks
from retarget.lab.data.features import all_prepared, image_features
from retarget.lab.data.fetch import RESNET18, data_folder
from retarget.lab.experiment import Core50Source, Count
from retarget.lab.figures.pretrained import BackboneRun, name_of, stand_in_backbone
from retarget.lab.figures.training import TrainingSetup
from retarget.lab.runs.compute import torch_threads

HIDDEN = 100
OBJECTS = 50
STAND_IN = "core50_standin.zip"


class Core50Run(BackboneRun):
    """One training of the paper's head on features of CORe50, or of its stand-in.

    Attributes:
        data: By default, the backbone is ResNet-18 for ImageNet for CORe50, and for the stand-in
            its own.
        frames_per_session: Frames of each object in each session.
        network: The paper's head on frozen features, or the backbone itself with a linear layer on
            top, applied to the images.
    """

    data: Core50Source
    frames_per_session: Count
    image_size: Count = 224
    network: Literal["head", "whole"] = "head"

    def setup(self) -> TrainingSetup:
        """Draws the stream and the network from the seed."""
        folder = data_folder(None)
        whole = self.network == "whole"
        sizes = (self.frames_per_session, self.image_size)
        data = _data(folder, self.data, self.backbone, *sizes, whole, self.device)
        stream = classes_in_tasks(data, self.seed, new_classes_tasks(self.seed))
        backbone = _sources(folder, self.data, self.backbone)[1]
        network = (
            self.whole_network(backbone, data.inputs[:1].cpu(), OBJECTS)
            if whole
            else head(data.inputs.shape[1], self.seed)
        )
        pictures = "CORe50" if self.data == "core50" else "stand-in pictures"
        return TrainingSetup(stream, network, f"{pictures}, features of {name_of(backbone)}")


def head(features: int, seed: int) -> nn.Sequential:
    """Returns the paper's two layers, without biases, initialized from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(features, HIDDEN, bias=False),
            nn.ReLU(),
            nn.Linear(HIDDEN, OBJECTS, bias=False),
        )


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
            return all_prepared(images, image_size, device)
        features = image_features(network, images, image_size, device=device)
        return torch.from_numpy(features).to(device)

    with torch_threads(os.cpu_count() or 1):  # computed once and cached for all runs
        train = inputs(frames.train_images)
        test = inputs(frames.test_images)
    train_objects, test_objects = (
        torch.from_numpy(objects).to(device)
        for objects in (frames.train_objects, frames.test_objects)
    )
    return LabeledData(train, train_objects, test, test_objects)


def _sources(folder: Path, source: Core50Source, backbone: str | None) -> tuple[Path, str]:
    """Returns where the frames are, and the backbone that computes their features."""
    if source == "core50":
        return folder, backbone or RESNET18.name
    return folder / STAND_IN, stand_in_backbone(folder, backbone, STAND_IN)
