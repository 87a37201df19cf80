"""Draws how far tangent kernels are from their limit, and change in training, by width.

pip install ".[figures]"
python examples/tangent_kernel.py docs/images/tangent-kernel.png
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import retarget as rt
from retarget.errors import require_extra
from retarget.learners import COLORS

require_extra("this picture", "figures", "matplotlib")
import matplotlib.pyplot as plt

from retarget.lab.figures.over_seeds import figure_style

WIDTHS, SEEDS, LR, STEPS = (16, 32, 64, 128, 256, 512), range(5), 0.5, 100

images, labels = load_digits(return_X_y=True)
X = torch.tensor(images[:100] / 16)
Y = torch.tensor(labels[:100] % 2 * 2.0 - 1)[:, None].double()  # odd or even


class Scaled(nn.Linear):
    """A linear layer in the NTK parameterization: weights of size 1, divided by sqrt(inputs)."""

    def reset_parameters(self) -> None:
        """Draws the weights."""
        nn.init.normal_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's outputs."""
        return super().forward(x) / self.in_features**0.5


def network(width: int, seed: int) -> nn.Module:
    """Two hidden layers of one width."""
    torch.manual_seed(seed)
    sizes = (64, width), (width, width), (width, 1)
    first, second, last = (Scaled(*size, bias=False) for size in sizes)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last).double()


def distance(K: torch.Tensor, reference: torch.Tensor) -> float:
    """The relative distance, in the Frobenius norm."""
    return float(torch.linalg.norm(K - reference) / torch.linalg.norm(reference))


layers = nn.Linear(64, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)
limit = rt.InfiniteNTK(nn.Sequential(*layers))(X)  # widths do not matter there
apart, moved = np.zeros((2, len(WIDTHS), len(SEEDS)))
for w, width in enumerate(WIDTHS):
    for s, seed in enumerate(SEEDS):
        trained = network(width, seed)
        before = rt.EmpiricalNTK(trained)(X)
        optimizer = torch.optim.SGD(trained.parameters(), lr=LR)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (0.5 * (trained(X) - Y).square().mean()).backward()
            optimizer.step()
        apart[w, s] = distance(before, limit)
        moved[w, s] = distance(rt.EmpiricalNTK(trained)(X), before)
for width, a, m in zip(WIDTHS, apart.mean(1), moved.mean(1), strict=True):
    print(f"width {width}: distance {a:.2f} from the limit, changed by {m:.2f} in training")

with figure_style():
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4))
    for axes, values, title in zip(
        panels,
        (apart, moved),
        ("distance from the infinite-width kernel", f"change by {STEPS} steps of training"),
        strict=True,
    ):
        axes.loglog(WIDTHS, values, ".", color=COLORS["online"])
        axes.loglog(WIDTHS, values.mean(1), color=COLORS["online"], label="mean of 5 seeds")
        line = values.mean(1)[-1] * np.sqrt(WIDTHS[-1] / np.array(WIDTHS))
        axes.loglog(WIDTHS, line, "k--", lw=1, label="as 1 / square root of the width")
        axes.set(xlabel="width of the hidden layers", ylabel="relative", title=title)
        axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
        axes.minorticks_off()
        axes.legend()
    picture = sys.argv[1] if sys.argv[1:] else "tangent-kernel.png"
    figure.savefig(picture, dpi=110)
print(f"Written: {picture}")
