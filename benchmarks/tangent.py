"""TangentLearner on the paper's network for CIFAR-10: what learning costs, beside plain SGD.

Made-up images and a linear teacher (the time hardly depends on what they show). All from one run:

* a pass of plain SGD in mini-batches of 4, which is what the stream costs without it;
* TangentLearner: forward and backward passes, the projection, the sums, and one solution with a
  ridge chosen by cross-validation at the end;
* the solution with its ridge after a stream of 30,000 images, next to one Cholesky factorization of
  the sums (goal: three), and 80 images from nothing to the first prediction (goal: half a second on
  two cores);
* the limit: the products of the sums alone, by BLAS (dsyrk on a CPU, a matrix product elsewhere).

Each is measured several times in turn, and the median taken, so that a moment of other work on the
machine does not decide.

    python benchmarks/tangent.py [--samples 2000] [--stream 30000] [--features 4096] [--rounds 5]
        [--device cpu]
"""

import argparse
import time

import numpy as np
import torch
from scipy.linalg.blas import dsyrk
from torch import nn

import retarget as rt
from retarget.lab.figures.cifar10 import cifar_net


def sgd_pass(module: nn.Module, X: torch.Tensor, Y: torch.Tensor) -> None:
    """One pass in mini-batches of 4."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    for x, y in zip(X.split(4), Y.split(4), strict=True):
        optimizer.zero_grad()
        ((module(x) - y).square().sum(1) / 2).mean().backward()
        optimizer.step()


def seconds(work, device: str) -> float:
    """The time of one call, once what it started on the device has ended."""
    started = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def blas(columns: np.ndarray) -> np.ndarray:
    """The products of the sums, by the routine that is made for them."""
    return dsyrk(1.0, columns, trans=True)


def main() -> None:
    """Measures, and prints ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--stream", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    n, m, device = asked.samples, asked.features, asked.device
    random = torch.Generator().manual_seed(1)
    X = torch.randn((n, 3, 32, 32), generator=random).to(device)
    module = cifar_net(2, seed=0).to(device)
    teacher = nn.Linear(3 * 32 * 32, 2).to(device)
    with torch.no_grad():  # something that can be learned, so that there is a ridge to be found
        Y = teacher(X.flatten(1)).sign()
    few = max(4, n // 10)
    sgd_pass(cifar_net(2, seed=0).to(device), X[:few], Y[:few])  # libraries set themselves up
    rt.TangentLearner(module, 1.0, m).learn(X[:few], Y[:few]).predict(X[:1])

    learner = rt.TangentLearner(module, "auto", m).learn(X[:1], Y[:1])
    phi = torch.randn((n, m), generator=random, dtype=torch.float64).to(device)
    sums = rt.StreamingRidge(rt.Linear(), 1.0).learn(phi[:1], Y[:1])  # the sums alone
    columns = np.asfortranarray(phi.numpy()) if device == "cpu" else None
    measured = [
        (
            seconds(lambda: sgd_pass(cifar_net(2, seed=0).to(device), X, Y), device) / n,
            seconds(lambda: learner.prepare(X), device) / n,
            seconds(lambda: learner.learn(X, Y), device) / n,
            seconds(lambda: sums.learn(phi, Y), device) / n,
            seconds(lambda: phi.T @ phi if columns is None else blas(columns), device) / n,
        )
        for _ in range(asked.rounds)
    ]
    plain, features, learn, adding, limit = np.median(measured, axis=0)
    learner = rt.TangentLearner(module, "auto", m)
    for _ in range(0, asked.stream, n):  # other images, because copies need no ridge
        images = torch.randn((n, 3, 32, 32), generator=random).to(device)
        with torch.no_grad():
            learner.learn(images, teacher(images.flatten(1)).sign())
    solutions, matrix = [], phi.T @ phi + torch.eye(m, dtype=phi.dtype, device=device)
    for _ in range(asked.rounds):
        learner.learn(X[:1], Y[:1])  # so that the solution has to be found again
        cholesky = seconds(lambda: torch.linalg.cholesky(matrix), device)
        solutions.append((seconds(lambda: learner.gamma_, device), cholesky))
    solve, cholesky = np.median(solutions, axis=0)
    total = learn + solve / asked.stream
    ratios = [(row[2] + solve / asked.stream) / row[0] for row in measured]
    print(
        f"{device}, {torch.get_num_threads()} threads, m = {m}, {n} images, "
        f"medians of {asked.rounds} rounds, ms an image:"
    )
    print(f"  plain SGD, batch 4                 {1e3 * plain:8.3f}")
    print(f"  tangent features                   {1e3 * features:8.3f}")
    print(f"  learn (features and sums)          {1e3 * learn:8.3f}")
    print(f"  the sums' products by BLAS         {1e3 * limit:8.3f}")
    print(f"  solution with its ridge, once      {1e3 * solve:8.0f}")
    print(
        f"for {asked.stream:,} images: {total * asked.stream:.1f} s, {total / plain:.2f} times a "
        "pass of SGD "
        f"({min(ratios):.2f} to {max(ratios):.2f} in single rounds)"
    )
    print(f"the sums take {adding / limit:.2f} times their limit")
    print(
        f"the solution with its ridge takes {solve / cholesky:.2f} times one Cholesky factorization"
    )
    first = [
        seconds(
            lambda: rt.TangentLearner(module, "auto", m).learn(X[:80], Y[:80]).predict(X[:1]),
            device,
        )
        for _ in range(asked.rounds)
    ]
    print(f"80 images, from nothing to the first prediction: {np.median(first):.2f} s")


if __name__ == "__main__":
    main()
