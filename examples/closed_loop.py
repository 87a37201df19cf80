"""A network follows a tangent learner over ten digits, two at a time, each image seen once."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import retarget as rt

X, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
X, Y = X.float() / 16, nn.functional.one_hot(y, 10).float()
test = torch.arange(len(X)) % 4 == 0  # every fourth image
LR, BATCH, BLOCK = 0.02, 4, 20


def train(**options: int) -> tuple[float, float]:
    """The accuracies, on all ten digits, of the network and of the tangent learner it follows."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(64, 500, bias=False), nn.ReLU(), nn.Linear(500, 10, bias=False)
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    learner = rt.SGD(LR, batch_size=BATCH, reduction="mean")
    corrector = rt.ClosedLoopCorrector(network, learner, **options)
    tangents = rt.TangentLearner(network, features=512)
    for task in range(5):
        mine = ~test & (y // 2 == task)
        tangents.learn(X[mine], Y[mine])
        for x, target in zip(X[mine].split(BLOCK), Y[mine].split(BLOCK), strict=True):
            x, target = corrector.next_block(x, target)
            for one, wanted in zip(x.split(BATCH), target.split(BATCH), strict=True):
                optimizer.zero_grad()
                loss = (network(one) - wanted).square().sum(1).mean() / 2
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        found = network(X[test]).argmax(1), tangents.predict(X[test]).argmax(1)
    return tuple((each == y[test]).float().mean().item() for each in found)


for replay in (0, 300):
    network, tangents = train(replay=replay)
    print(f"accuracy with replay={replay}: network {network:.2f}, tangent learner {tangents:.2f}")
