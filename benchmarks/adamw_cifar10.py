"""CIFAR-10 in pairs with AdamW: true targets against targets corrected with the kernel J P J^T.

$ python benchmarks/adamw_cifar10.py --device cuda --loss squared --seeds 5
$ python benchmarks/adamw_cifar10.py --device cuda --loss cross-entropy --seeds 5
$ python benchmarks/adamw_cifar10.py --quick      # made images, to see that it runs

The paper's network meets five tasks of two classes on two outputs, one pass each. The first task is
trained on true targets, as AdamW has no second moments before its first step; each later task is
corrected iteratively with the kernel of all samples so far, at the weights and the second moments
of that moment. The kernel is exact for second moments that stand still and for beta_1 = 0; this
measures what is left of the correction where neither holds.
"""

import argparse
import statistics

import torch
from torch import Tensor
from torch.nn import functional

import retarget as rt
from retarget.lab import LabeledData, TaskStream, domain_pairs
from retarget.lab.data.cifar10 import load_cifar10, normalized
from retarget.lab.data.fetch import data_folder
from retarget.lab.figures.cifar10 import cifar_net
from retarget.networks.linearization import tangent_kernel


def images(device: str, quick: bool) -> LabeledData:
    """All images on the device; with `quick` a few random ones."""
    if quick:
        labels = torch.arange(400, device=device) % 10
        pictures = torch.randn(400, 3, 32, 32, device=device) + labels[:, None, None, None] / 5
        return LabeledData(pictures, labels, pictures, labels)
    cifar = load_cifar10(data_folder(None))
    return LabeledData(
        torch.from_numpy(normalized(cifar.train_images)).to(device),
        torch.from_numpy(cifar.train_labels).to(device),
        torch.from_numpy(normalized(cifar.test_images)).to(device),
        torch.from_numpy(cifar.test_labels).to(device),
    )


def loss_of(outputs: Tensor, targets: Tensor, loss: str) -> Tensor:
    """The mean over the mini-batch."""
    if loss == "squared":
        return (outputs - targets).square().sum(1).mean() / 2
    return functional.cross_entropy(outputs, targets)


def run(stream: TaskStream, seed: int, corrected: bool, options: argparse.Namespace) -> float:
    """Accuracy on all test images after the last task."""
    train, test = stream.train, stream.test
    network = cifar_net(stream.classes, seed).to(train.inputs.device)
    optimizer = torch.optim.AdamW(
        network.parameters(),
        lr=options.lr,
        betas=(options.beta1, 0.999),
        eps=options.eps,
        weight_decay=0.0,
    )
    learner = rt.SGD(options.lr, options.batch, reduction="mean")
    kernel = rt.EmpiricalNTK(network, precision="split", preconditioner=optimizer)
    extra = {} if options.loss == "squared" else {"loss": options.loss}
    X = train.inputs[train.rows]
    Y = functional.one_hot(train.labels, stream.classes).to(X)
    stop = 0
    for task, size in enumerate(train.sizes):
        start, stop = stop, stop + size
        targets = Y[start:stop]
        if corrected and task:
            K = tangent_kernel(kernel, X[:stop])
            settings = learner, options.gamma, options.block, options.ridge
            targets = rt.iterative_targets(K, Y[:stop].double(), *settings, **extra)[start:].to(X)
            del K
        samples = X[start:stop].split(options.batch)
        for x, z in zip(samples, targets.split(options.batch), strict=True):
            optimizer.zero_grad()
            loss_of(network(x), z, options.loss).backward()
            optimizer.step()
    with torch.no_grad():
        parts = test.inputs[test.rows].split(1000)
        guesses = torch.cat([network(part).argmax(1) for part in parts])
    return (guesses == test.labels).float().mean().item()


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--loss", choices=["squared", "cross-entropy"], default="squared")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--eps", type=float, default=1e-8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--block", type=int, default=20)
    parser.add_argument("--gamma", type=float, default=1e4)
    parser.add_argument("--ridge", type=float, default=1e4)
    parser.add_argument("--per-class", type=int, default=3000)
    parser.add_argument("--quick", action="store_true", help="few made images")
    options = parser.parse_args()
    data = images(options.device, options.quick)
    per_class = 20 if options.quick else options.per_class
    print(vars(options))
    found: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(options.seeds):
        stream = domain_pairs(data, seed, per_class)
        for corrected, scores in found.items():
            scores.append(run(stream, seed, corrected, options))
        print(f"seed {seed}: true {found[False][-1]:.3f}, corrected {found[True][-1]:.3f}")
    for corrected, scores in found.items():
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        name = "corrected" if corrected else "true targets"
        print(f"{name:12} mean {statistics.mean(scores):.3f}, standard deviation {spread:.3f}")


if __name__ == "__main__":
    main()
