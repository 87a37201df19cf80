"""A network for features of small made pictures, by import path."""

import torch
from torch import nn


def made():
    """Drawn weights, always the same; six features."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 6), nn.Tanh())


def pooled():
    """For pictures of any size."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), made())


def normalizing():
    """With batch normalization; for pictures of 4 x 4 pixels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
