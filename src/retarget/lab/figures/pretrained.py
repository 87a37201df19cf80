"""A pretrained network that learns new classes: all of it for Fig. 7 C and E, or its features."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from retarget import lab
from retarget.errors import MissingDataError
from retarget.lab import TaskStream
from retarget.lab.data.backbones import SUFFIXES, ResNet18, backbone_checksum, load_backbone
from retarget.lab.data.cache import data_set_checksums
from retarget.lab.data.fetch import CIFAR10, FOLDER_VARIABLE, RESNET18, data_folder
from retarget.lab.experiment import Count
from retarget.lab.figures.cifar10 import CifarRun, cifar_data
from retarget.lab.figures.training import NetworkRun, TrainingSetup, WholeNotNegative
from retarget.streaming.ridge.tangent import TangentLearner

STAND_IN_BACKBONE = "resnet18-tiny150-f16.safetensors"
TUNED_CLASSES = 5


class BackboneRun(NetworkRun):
    """A training that starts from a pretrained network.

    Attributes:
        backbone: The network, as in `load_backbone`; None for the default of the data.
        image_size: Height and width that pictures are resized to.
    """

    backbone: str | None = None
    image_size: Count

    def identifying(self) -> dict[str, Any]:
        """Replaces a path of weights by the file's name: its checksum is part of `data`."""
        known = super().identifying()
        if self.backbone and Path(self.backbone).suffix in SUFFIXES:
            known["backbone"] = Path(self.backbone).name
        return known

    def whole_network(self, backbone: str, image: Tensor, outputs: int) -> "WholeNetwork":
        """Returns the backbone with a new linear layer."""
        known = load_backbone(backbone, data_folder(None))
        network = WholeNetwork(known, image, self.image_size, outputs, self.seed)
        network.trained = self.first_epochs > 0 or self.method not in ("tangent", "last layer")
        return network


class PretrainedRun(BackboneRun, CifarRun):
    """One training of a pretrained network on CIFAR-10, by default the stand-in's.

    Attributes:
        tuned_epochs: Passes of joint training over the images of the first five classes, before the
            stream, which has these images too; 0 for none.
        tuned_on: The targets of that training: the labels, or what is left of them after least
            squares on the tangents of these images.
        batch_statistics: Whether batch normalization is by the statistics of each mini-batch while
            the network is trained, instead of the pretrained ones.
    """

    alone: ClassVar = True
    tuned_epochs: WholeNotNegative = 0
    tuned_on: Literal["labels", "residuals"] = "labels"
    batch_statistics: bool = False

    def setup(self) -> TrainingSetup:
        """Draws the stream and the new layer from the seed, and tunes the network."""
        folder = data_folder(None)
        backbone = stand_in_backbone(folder, self.backbone)
        stream = self.stream(
            cifar_data(folder, self.test_per_class, self.device, for_imagenet=True)
        )
        network = self.whole_network(backbone, stream.train.inputs[:1].cpu(), stream.classes)
        network.train(self.batch_statistics)
        network.to(self.device)
        if self.tuned_epochs:
            first = of_first_classes(stream, TUNED_CLASSES)
            methods: list[lab.Method] = [lab.Joint(self.tuned_epochs)]
            if self.tuned_on == "residuals":
                methods.append(_Residuals(self._residuals(network, first)))
            trained = network.trained
            network.trained = True
            lab.train(network, first, self.learner, methods, views=self.shown, seeds=[self.seed])
            network.trained = trained
        name = f"CIFAR-10 at {self.image_size} pixels, {name_of(backbone)}"
        return TrainingSetup(stream, network, name)

    def _residuals(self, network: "WholeNetwork", stream: TaskStream) -> Tensor:
        """Returns the targets of a stream less the fit of a tangent learner to them."""
        learner = TangentLearner(network, features=self.features, views=self.shown, seed=self.seed)
        X = stream.train.inputs[stream.train.rows]
        Y = stream.targets()
        fitted: Tensor = learner.learn(X, Y).predict(X)
        return Y - fitted


class _Residuals(lab.Method):
    """Trains on given targets (n, c) instead of the true ones."""

    capturable = True

    def __init__(self, given: Tensor) -> None:
        self._given = given

    def on_start(self, run: lab.Run) -> None:
        run.targets = self._given[None]


class WholeNetwork(nn.Module):
    """A backbone with a new linear layer on top, whose weights are drawn from the seed.

    A single `image` determines the number of features.

    Attributes:
        trained: Whether it is to be trained. If not, its scores are zero and their gradients are
            not: so its tangents are those of all layers, and least squares starts from zero.
    """

    trained = False

    def __init__(
        self,
        backbone: nn.Module,
        image: Tensor,
        image_size: int,
        outputs: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.resize = nn.Upsample((image_size, image_size), mode="bilinear")
        self.backbone = backbone.float().eval().requires_grad_(True)
        if isinstance(backbone, ResNet18):
            backbone.fc = nn.Identity()  # type: ignore[assignment]  # to get its features
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            features = self.backbone(self.resize(image)).shape[1]
            self.top = nn.Linear(features, outputs, bias=False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """(n, outputs) scores, or zeros with the gradients of the scores."""
        scores: Tensor = self.top(self.backbone(self.resize(images)))
        return scores if self.trained else scores - scores.detach()


def of_first_classes(stream: TaskStream, count: int) -> TaskStream:
    """Returns the samples of the classes that come first, as one task."""
    train = stream.train
    first = list(dict.fromkeys(train.labels.tolist()))[:count]
    chosen = torch.isin(train.labels, torch.tensor(first, device=train.labels.device))
    rows = train.rows[chosen]
    labels = train.labels[chosen]
    few = replace(train, rows=rows, labels=labels, sizes=(len(rows),))
    return TaskStream(few, replace(stream.test, sizes=(len(stream.test),)), stream.classes)


def pretrained_checksums(backbone: str | None) -> dict[str, str]:
    """Returns the checksums of CIFAR-10 and of the backbone."""
    folder = data_folder()
    weights = backbone_checksum(stand_in_backbone(folder, backbone), folder)
    return {"backbone": weights, **data_set_checksums(CIFAR10)}


def name_of(backbone: str) -> str:
    """Returns what a figure calls a backbone, which may be a file of weights."""
    known = {RESNET18.name: "ResNet-18", STAND_IN_BACKBONE: "a small ResNet-18"}
    name = Path(backbone).name
    return known.get(name, name.removesuffix(".safetensors"))


def stand_in_backbone(folder: Path, backbone: str | None, *pictures: str) -> str:
    """Returns the backbone, by default the stand-in's; raises if it or pictures are missing."""
    needed = [*pictures, *[STAND_IN_BACKBONE] * (backbone is None)]
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        raise MissingDataError(
            f"stand-in: {' and '.join(missing)} not found in {folder}; these are pictures in the "
            "layout of CORe50 and weights of a ResNet-18, which you provide: name their "
            f"folder with --data-dir or {FOLDER_VARIABLE}, other weights with --backbone (after "
            "`retarget data get resnet18`: --backbone resnet18)"
        )
    return backbone or str(folder / STAND_IN_BACKBONE)
