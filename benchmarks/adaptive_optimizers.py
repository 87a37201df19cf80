"""Can corrected targets help a network that is trained by Adam? New classes, task by task.

Run `python benchmarks/adaptive_optimizers.py` (`--loss cross-entropy` takes longer). A network sees
600 images of digits, two digits at a time, each image once, in mini-batches of 16. For each
optimizer the table has the accuracy on 200 other images of all digits, a mean of three seeds:

    plain      the true targets
    auto       gamma="auto"
    best       the best of seven fixed pairs of gamma and ridge, chosen on the test images: more
               than anybody can expect
    off        how far the network was from where the corrected targets of "best" should have led
               it, relative to the way (`NetworkCorrector.linearization_error`)
"""

import argparse
import statistics
import warnings

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import retarget as rt

BATCH = 16
SEEDS = range(3)
# gamma and ridge, in units of the mean of the kernel's diagonal
STRENGTHS = (
    (0.01, 0.01),
    (0.1, 0.1),
    (1.0, 0.1),
    (1.0, 1.0),
    (10.0, 1.0),
    (10.0, 10.0),
    (100.0, 10.0),
)
OPTIMIZERS = ("SGD", 0.05), ("SGD", 0.1), ("Adam", 0.001), ("Adam", 0.003), ("Adam", 0.01)
torch.set_num_threads(1)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """800 images as rows of 64 numbers, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images[:800]).float() / 16, torch.from_numpy(labels[:800])


def run(kind: str, lr: float, loss: str, seed: int, strength: object) -> tuple[float, float]:
    """Trains once; returns the accuracy, and the largest linearization error of a task.

    The strength is None, "auto", or gamma and ridge in units of the kernel's diagonal.
    """
    torch.manual_seed(seed)
    X, y = digits()
    test = torch.arange(len(X)) % 4 == 0
    network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = getattr(torch.optim, kind)(network.parameters(), lr=lr)
    learner = rt.SGD(lr, batch_size=BATCH, reduction="mean")
    given = {} if kind == "SGD" else {"preconditioner": optimizer}
    past: list[tuple[torch.Tensor, torch.Tensor]] = []
    errors = [0.0]
    corrector = rt.NetworkCorrector(network, learner, loss=loss, **given)
    for task in range(5):
        rows = torch.nonzero(~test & (y // 2 == task)).flatten()
        Y = functional.one_hot(y[rows], 10).float()
        Z = Y
        if strength is not None and given and not task:  # no second moments yet
            corrector.resume([(X[rows], Y)], Y)
        elif strength is not None:
            if strength != "auto":
                gamma, ridge = strength
                unit = float(rt.EmpiricalNTK(network, **given).diag(X[rows]).mean())
                corrector = rt.NetworkCorrector(
                    network, learner, gamma * unit, ridge=ridge * unit, loss=loss, **given
                )
                corrector.resume(past, past[-1][1] if past else Y)
            Z = corrector.correct(X[rows], Y)
        past.append((X[rows], Y))
        for x, z in zip(X[rows].split(BATCH), Z.split(BATCH), strict=True):
            outputs = network(x)
            squared = (outputs - z).square().sum(1).mean() / 2
            optimizer.zero_grad()
            (squared if loss == "squared" else functional.cross_entropy(outputs, z)).backward()
            optimizer.step()
        if strength not in (None, "auto") and corrector.samples > len(rows):
            watch = corrector._watch
            watch.compare(network)
            errors.append(watch.off or 0.0)
    with torch.no_grad():
        right = network(X[test]).argmax(1) == y[test]
    return right.double().mean().item(), max(errors)


def main() -> None:
    """Prints a line for each optimizer."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--loss", choices=("squared", "cross-entropy"), default="squared")
    loss = parser.parse_args().loss
    warnings.simplefilter("ignore")
    print("| optimizer | plain | auto | best | off |\n|---|---|---|---|---|")
    for kind, lr in OPTIMIZERS:
        scores = {}
        for strength in (None, "auto", *STRENGTHS):
            try:
                runs = [run(kind, lr, loss, seed, strength) for seed in SEEDS]
            except rt.RetargetError:  # training diverged
                continue
            scores[strength] = [statistics.mean(part) for part in zip(*runs, strict=True)]
        best = max((value for name, value in scores.items() if name not in (None, "auto")))
        cells = scores[None][0], scores["auto"][0], *best
        print(
            f"| {kind}, {lr:g} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True
        )


if __name__ == "__main__":
    main()
