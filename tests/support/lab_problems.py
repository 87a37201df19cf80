"""Networks, streams and learners for the tests of the lab: small, float64, not the defaults."""

import copy

import numpy as np
import torch
from torch import nn

import retarget as rt
from retarget import lab
from support.oracles import lab as oracle


def mlp(seed, inputs=5, classes=3):
    """With biases."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, classes)).double()


def conv_net(seed, classes=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.Softplus(),
        nn.Flatten(),
        nn.Linear(4, classes, bias=False),
    ).double()


class Tied(nn.Module):
    """One matrix used twice, under two names."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(5, 3)
        self.double()

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def samples(random, n, shape=(5,), classes=3):
    """Clouds around one center a class."""
    y = random.integers(classes, size=n)
    centers = np.random.default_rng(0).normal(size=(classes, *shape))
    return torch.from_numpy(centers[y] + random.normal(size=(n, *shape))), torch.from_numpy(y)


def stream(seed=0, sizes=(11, 6, 9), shape=(5,), classes=3, test=7):
    """Tasks of different sizes that a mini-batch does not divide, and other test samples."""
    random = np.random.default_rng(seed)
    tasks = [samples(random, n, shape, classes) for n in sizes]
    tested = [samples(random, test + i, shape, classes) for i in range(len(sizes))]
    return lab.TaskStream.from_tasks(tasks, tested, classes)


LEARNERS = {
    "mean": rt.SGD(0.07, batch_size=4, reduction="mean"),
    "sum": rt.SGD(0.03, batch_size=4, reduction="sum"),
    "one at a time": rt.SGD(0.05),
    "momentum": rt.SGD(0.02, batch_size=4, momentum=0.8, reduction="mean"),
    "nesterov and decay": rt.SGD(
        0.01, batch_size=4, momentum=0.7, nesterov=True, weight_decay=0.3, reduction="sum"
    ),
    "decay": rt.SGD(0.05, batch_size=4, weight_decay=0.4, reduction="mean"),
}
# The lab's method, and the oracle's; functions, so that every run has its own.
METHODS = {
    "plain": lambda: ([], []),
    "vanilla": lambda: (lab.Vanilla(), [oracle.Plain()]),
    "label smoothing": lambda: (lab.LabelSmoothing(0.3), [oracle.Smoothed(0.3)]),
    "EWC": lambda: (lab.EWC(2.5), [oracle.Anchored(2.5)]),
    "cumulative": lambda: (lab.CumulativeReplay(2), [oracle.Cumulative(2)]),
    "ER": lambda: (lab.ER(5, 3), [oracle.Replay(5, 3, true=1.0)]),
    "DER": lambda: (lab.DER(5, 3, alpha=0.7), [oracle.Replay(5, 3, stored=0.7)]),
    "DER++": lambda: (
        lab.DER(6, 2, alpha=0.4, beta=0.9),
        [oracle.Replay(6, 2, stored=0.4, true=0.9)],
    ),
    "smoothing, EWC and cumulative": lambda: (
        [lab.LabelSmoothing(0.1), lab.EWC(1.5), lab.CumulativeReplay()],
        [oracle.Smoothed(0.1), oracle.Anchored(1.5), oracle.Cumulative()],
    ),
}


def corrected(gamma=3.0, block=8, **options):
    return lambda: (
        lab.Corrected(gamma, block, **options),
        [oracle.Corrected(gamma, block, **options)],
    )


CORRECTED = {
    "corrected": corrected(),
    "never": corrected(refresh="never"),
    "every epoch": corrected(refresh="epoch", gamma=1.7),
    "distilled": corrected(kind="distilled"),
    "online half": corrected(parts="online", ridge=0.5),
    "offline half": corrected(parts="offline", ridge=0.5),
    "plain first block": corrected(first_block="plain", ridge=0.2),
    "taken for a sum": corrected(assumed_reduction="sum"),
    "taken for a mean": corrected(assumed_reduction="mean"),
    "DER, corrected": lambda: (
        [lab.Corrected(3.0, 8), lab.DER(5, 3, beta=0.5)],
        [oracle.Corrected(3.0, 8), oracle.Replay(5, 3, stored=1.0, true=0.5)],
    ),
}


def led(**changes):
    options = {"gamma": 0.4, "features": 40, "block_size": 8, "damping": 0.6} | changes
    return lambda: (lab.Led(**options), [oracle.Led(**options)])


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def copies(modules):
    return [copy.deepcopy(module) for module in modules]
