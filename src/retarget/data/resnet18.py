"""ResNet-18, written from its description.

K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition", CVPR 2016:
Table 1, column "18-layer"; shortcuts of kind B. Parameters and buffers have the names that
torchvision gives them, so that its files of weights fit.
"""

from torch import Tensor, nn
from torch.nn import functional

FEATURES = 512


class ResNet18(nn.Module):
    """Images (n, 3, height, width) to class scores, and to 512 features on the way.

    Its weights are drawn anew; `retarget.data.backbones.load_backbone` has those of a file.

    Args:
        classes: Length of the output.

    Example:
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
