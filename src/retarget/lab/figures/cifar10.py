"""The paper's network on CIFAR-10: Fig. 3A, Fig. 3C, Fig. 6 A to D and Fig. 7 A and B."""

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from retarget.errors import InvalidInputError
from retarget.lab import LabeledData, TaskStream, class_incremental, domain_pairs, shuffled
from retarget.lab.data.cifar10 import load_cifar10, normalized
from retarget.lab.data.features import all_prepared
from retarget.lab.data.fetch import data_folder
from retarget.lab.experiment import Count
from retarget.lab.figures.training import NetworkRun, TrainingSetup

CLASSES_A_TASK = 2


class CifarRun(NetworkRun):
    """One training of the paper's network on CIFAR-10.

    Attributes:
        protocol: Five tasks of two classes, on two outputs (domain pairs) or on ten (class
            incremental), or all ten classes in random order.
        per_class: Training images of each class.
        test_per_class: Test images of each class.
    """

    protocol: Literal["domain pairs", "class incremental", "shuffled"]
    per_class: Count
    test_per_class: Count

    def setup(self) -> TrainingSetup:
        """Draws the stream and the network from the seed."""
        stream = self.stream(cifar_data(data_folder(None), self.test_per_class, self.device))
        return TrainingSetup(stream, cifar_net(stream.classes, self.seed), "CIFAR-10")

    def stream(self, data: LabeledData) -> TaskStream:
        """Returns the tasks of these images."""
        if self.protocol == "class incremental":
            return class_incremental(data, self.seed, CLASSES_A_TASK, self.per_class)
        make = {"domain pairs": domain_pairs, "shuffled": shuffled}[self.protocol]
        return make(data, self.seed, self.per_class)


def cifar_net(outputs: int, seed: int) -> nn.Sequential:
    """Two 3 x 3 convolutions of 32 and 64 channels and a linear read-out, all without biases.

    Initialized as PyTorch does by default, from the seed; the global generator is not affected.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, outputs, bias=False),
        )


@lru_cache(maxsize=1)
def cifar_data(
    folder: Path, test_per_class: int, device: str, for_imagenet: bool = False
) -> LabeledData:
    """Returns all images on the device, and the first test images of each class.

    They are normalized by the means and deviations of CIFAR-10, or of ImageNet.
    """
    cifar = load_cifar10(folder)
    labels = cifar.test_labels
    there = int(np.bincount(labels).min())
    if not 1 <= test_per_class <= there:
        raise InvalidInputError(
            f"test_per_class is {test_per_class}, but a class here has {there} test images; "
            f"expected 1 to {there}"
        )
    chosen = np.concatenate(
        [np.flatnonzero(labels == label)[:test_per_class] for label in np.unique(labels)]
    )

    def inputs(images: np.ndarray) -> Tensor:
        if for_imagenet:
            return all_prepared(images, images.shape[-1], device)
        return torch.from_numpy(normalized(images)).to(device)

    return LabeledData(
        inputs(cifar.train_images),
        torch.from_numpy(cifar.train_labels).to(device),
        inputs(cifar.test_images[chosen]),
        torch.from_numpy(labels[chosen]).to(device),
        sample_bytes=int(cifar.train_images[0].size),
    )
