"""The paper's network for CIFAR-10."""

import torch
from torch import nn


def cifar_net(outputs: int, seed: int) -> nn.Sequential:
    """Two 3 x 3 convolutions of 32 and 64 channels and a linear read-out, all without biases.

    PyTorch's default initialisation, drawn from the seed; the global generator is left as it was.
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
