"""Draws what a network knows after each of five tasks: plain SGD, replay, and a tangent learner.

pip install ".[figures]"
python examples/task_by_task.py docs/images/task-by-task.png
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import retarget as rt
from retarget.errors import require_extra

require_extra("this picture", "figures", "matplotlib")
import matplotlib.pyplot as plt

from retarget.lab.figures.over_seeds import figure_style

images, labels = load_digits(return_X_y=True)
X, y = torch.tensor(images / 16).float(), torch.tensor(labels)
Y = nn.functional.one_hot(y).float()
tasks = [torch.nonzero(y[:1300] // 2 == task)[:, 0] for task in range(5)]
STORED, BATCH, LR, SEED = 200, 4, 0.05, 0


def make_network() -> nn.Module:
    """The same network for every method."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def by_task(predict) -> list[float]:
    """Accuracy on the test images of each pair of digits."""
    right = predict(X[1300:]).argmax(1) == y[1300:]
    return [float(right[y[1300:] // 2 == task].float().mean()) for task in range(5)]


def train(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """One pass of SGD."""
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    for x, z in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
        optimizer.zero_grad()
        ((network(x) - z).square().sum(1).mean() / 2).backward()
        optimizer.step()


def plain() -> list[list[float]]:
    """SGD on each task as it comes."""
    network, found = make_network(), []
    for rows in tasks:
        train(network, X[rows], Y[rows])
        found.append(by_task(network))
    return found


def replay() -> list[list[float]]:
    """SGD on each task and equally many stored images, a uniform sample of all so far."""
    network, found, stored = make_network(), [], torch.empty(0, dtype=torch.long)
    for rows in tasks:
        mixed = rows
        if len(stored):
            drawn = stored[torch.randint(len(stored), (len(rows),))]
            mixed = torch.stack([rows, drawn], 1).flatten()
        train(network, X[mixed], Y[mixed])
        stored = torch.cat([stored, rows])
        stored = stored[torch.randperm(len(stored))[:STORED]]
        found.append(by_task(network))
    return found


def tangent() -> list[list[float]]:
    """SGD on the first task, then a tangent learner of this network on all tasks."""
    network, found = make_network(), []
    train(network, X[tasks[0]], Y[tasks[0]])
    learner = rt.TangentLearner(network, features=1024)
    for rows in tasks:
        learner.learn(X[rows], Y[rows])
        found.append(by_task(learner.predict))
    return found


methods = {
    "plain SGD, nothing kept": plain(),
    f"replay, {STORED} images kept": replay(),
    "TangentLearner, nothing kept": tangent(),
}
for name, found in methods.items():
    print(f"{name}: accuracy {sum(found[-1]) / 5:.2f} on all ten digits at the end")

with figure_style():
    figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True)
    for axis, (name, found) in zip(axes, methods.items(), strict=True):
        axis.imshow(found, vmin=0, vmax=1, cmap="Blues")
        axis.set_title(name, fontsize=9)
        digits = [f"{2 * task},{2 * task + 1}" for task in range(5)]
        axis.set_xticks(range(5), digits)
        axis.set_xlabel("tested on digits")
        axis.grid(visible=False)
        for i, row in enumerate(found):
            for j, value in enumerate(row):
                color = "white" if value > 0.6 else "black"
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", color=color, fontsize=7)
    axes[0].set_yticks(range(5), digits)
    axes[0].set_ylabel("after learning digits")
    picture = sys.argv[1] if sys.argv[1:] else "task-by-task.png"
    figure.savefig(picture, dpi=110)
print(f"Written: {picture}")
