"""Ten seeds of a network trained at once, against one after the other.

    python benchmarks/continual.py [--device cuda] [--steps 7500] [--members 10]

The paper's network on made images of CIFAR-10's shape, mini-batches of 4, one pass, plain SGD.
Printed, from one run: all members at once; the same loop one member after the other; the plain
PyTorch loop that one would write (torch.optim.SGD), one after the other; and, as the limit, what
one member alone takes.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from retarget import SGD
from retarget.lab import LabeledData, TaskStream, shuffled, train
from retarget.lab.figures.cifar10 import cifar_net

LEARNER = SGD(lr=0.01, batch_size=4, reduction="mean")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=7500)
    parser.add_argument("--members", type=int, default=10)
    options = parser.parse_args()
    device = torch.device(options.device)

    generator = torch.Generator().manual_seed(0)
    n = options.steps * LEARNER.batch_size
    inputs = torch.randn(n, 3, 32, 32, generator=generator)
    labels = torch.randint(2, (n,), generator=generator)
    data = LabeledData(inputs.to(device), labels.to(device), inputs[:64], labels[:64])
    streams = [shuffled(data, seed) for seed in range(options.members)]

    def networks() -> list[nn.Module]:
        return [cifar_net(2, seed).to(device) for seed in range(options.members)]

    def together() -> list[nn.Module]:
        trained = networks()
        train(trained, streams, LEARNER)
        return trained

    def in_turn(record: bool) -> list[nn.Module]:
        trained = networks()
        for network, stream in zip(trained, streams, strict=True):
            train(network, stream, LEARNER, record=record)
        return trained

    def by_hand() -> list[nn.Module]:
        trained = networks()
        for network, stream in zip(trained, streams, strict=True):
            plain_loop(network, stream, device)
        return trained

    train(networks()[:1], streams[:1], LEARNER)  # the libraries set themselves up
    alone, _ = timed(lambda: train(networks()[:1], streams[:1], LEARNER), device)
    at_once, ours = timed(together, device)
    one_by_one, theirs = timed(lambda: in_turn(record=True), device)
    print(f"{options.members} members, {options.steps} steps of {LEARNER.batch_size}, {device}")
    print(f"{'all at once':38}{at_once:8.2f} s")
    rows = [("one after the other, the same loop", one_by_one)]
    if device.type == "cuda":
        unrecorded, _ = timed(lambda: in_turn(record=False), device)
        rows.append(("one after the other, not recorded", unrecorded))
    plain, _ = timed(by_hand, device)
    rows += [("one after the other, torch.optim.SGD", plain), ("limit: one member alone", alone)]
    for name, seconds in rows:
        print(f"{name:38}{seconds:8.2f} s   {seconds / at_once:6.2f} x")
    gap = max(
        float((p - q).detach().abs().max())
        for a, b in zip(ours, theirs, strict=True)
        for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )
    print(f"largest difference of a trained weight, at once and in turn: {gap:.1e}")


def plain_loop(network: nn.Module, stream: TaskStream, device: torch.device) -> None:
    """The loop that everybody writes."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    inputs, rows = stream.train.inputs, stream.train.rows.to(device)
    targets = stream.targets().to(device)
    for start in range(0, len(rows), LEARNER.batch_size):
        batch = slice(start, start + LEARNER.batch_size)
        optimizer.zero_grad()
        loss = (network(inputs[rows[batch]]) - targets[batch]).square().sum(1).mean() / 2
        loss.backward()
        optimizer.step()


def timed(work: Callable[[], object], device: torch.device) -> tuple[float, object]:
    """Seconds, and what came of it."""
    start = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
