"""How long `ClosedLoopCorrector` takes on new classes, and how well the network ends.

Run `RETARGET_DATA=FOLDER python benchmarks/closed_loop.py`, where the folder holds MNIST, on a
quiet machine. A small conv net sees 2,000 images, two digits at a time, each image once. The table
has the seconds of CPU time, the accuracy of the network on 2,000 other images of all ten digits,
and that of the tangent learner that it follows.
"""

import time
import warnings

import torch
from torch import Tensor, nn

import retarget as rt
from retarget.lab.data.mnist import load_mnist

LR = 0.05
BATCH = 10
IMAGES = 2000
# Features and stored samples; the defaults come first.
SETTINGS = (None, (512, 0), (256, 300), (1024, 300), (512, 100))
torch.set_num_threads(1)


def conv_net() -> nn.Module:
    """Two convolutions of 16 and 32 channels, and a linear layer."""
    torch.manual_seed(0)
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 9, 10))


def step(network: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, z: Tensor) -> None:
    """Trains on one mini-batch."""
    optimizer.zero_grad()
    loss = (network(x) - z).square().sum(1).mean() / 2
    loss.backward()
    optimizer.step()


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Returns the share of samples whose largest output is that of their class."""
    return (outputs.argmax(1) == labels).double().mean().item()


def main() -> None:
    """Prints a line for plain training, and one for each setting."""
    warnings.simplefilter("ignore", rt.errors.LinearizationWarning)
    data = load_mnist()
    images = torch.as_tensor(data.train_images[: 2 * IMAGES]).float().reshape(-1, 1, 28, 28)
    images = images / images.max()
    labels = torch.as_tensor(data.train_labels[: 2 * IMAGES]).long()
    X, y = images[:IMAGES], labels[:IMAGES]
    test_X, test_y = images[IMAGES:], labels[IMAGES:]
    tasks = [torch.nonzero(y // 2 == task).flatten() for task in range(5)]
    print(f"{'features':>8} {'replay':>6} {'CPU s':>6}  network  tangent learner")
    network = conv_net()
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    start = time.process_time()
    for rows in tasks:
        for mine in rows.split(BATCH):
            step(network, optimizer, X[mine], nn.functional.one_hot(y[mine], 10).float())
    seconds = time.process_time() - start
    with torch.no_grad():
        print(f"{'plain training':15} {seconds:6.1f}  {accuracy(network(test_X), test_y):7.3f}")
    for setting in SETTINGS:
        network = conv_net()
        optimizer = torch.optim.SGD(network.parameters(), lr=LR)
        learner = rt.SGD(LR, batch_size=BATCH, reduction="mean")
        options = {} if setting is None else {"features": setting[0], "replay": setting[1]}
        corrector = rt.ClosedLoopCorrector(network, learner, **options)
        leader = rt.TangentLearner(network, features=corrector.options.features)
        start = time.process_time()
        for rows in tasks:
            for block in rows.split(corrector.block_size):
                x, z = corrector.next_block(X[block], y[block])
                for mine, wanted in zip(x.split(BATCH), z.split(BATCH), strict=True):
                    step(network, optimizer, mine, wanted)
        seconds = time.process_time() - start
        leader.learn(X, y)
        with torch.no_grad():
            reached = accuracy(network(test_X), test_y)
        led = accuracy(leader.predict(test_X), test_y)
        used = corrector.options
        numbers = f"{seconds:6.1f}  {reached:7.3f}  {led:15.3f}"
        print(f"{used.features:8} {used.replay:6} {numbers}", flush=True)


if __name__ == "__main__":
    main()
