"""Networks that are written down in a line or two."""

import torch
from torch import nn


class Network(nn.Module):
    """Modules and parameters by name, and a function of the network and a batch."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


def parameter(*shape):
    return nn.Parameter(torch.randn(shape))
