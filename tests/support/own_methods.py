"""Methods as a user may write them, in a file of their own."""

import torch

from retarget import lab


class Clipped(lab.Method):
    """Steps along gradients that are at most this long, for each network on its own."""

    def __init__(self, longest=1.0):
        self.longest = longest

    def gradients(self, run, batch, gradients):
        squares = [g.square().flatten(1).sum(1) for g in gradients.values()]
        length = torch.stack(squares).sum(0).sqrt()
        factor = (self.longest / length).clamp(max=1.0)
        return {name: g * factor.reshape(-1, *[1] * (g.ndim - 1)) for name, g in gradients.items()}


class Halved(lab.Method):
    """Steps along half the gradient, but for biases."""

    def gradients(self, run, batch, gradients):
        return {name: g if "bias" in name else g / 2 for name, g in gradients.items()}


class FromTheRun(lab.Method):
    """Takes a parameter of the run."""

    def __init__(self, capacity, factor=1.0):
        self.capacity = capacity
        self.factor = factor

    @classmethod
    def arguments(cls, runs):
        return {"capacity": runs[0].capacity}


class Broken(lab.Method):
    def __init__(self):
        raise KeyError("lost")


def no_class():
    return Clipped()
