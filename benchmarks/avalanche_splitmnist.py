"""Avalanche's SplitMNIST, class by class in five experiences: our adapters beside its strategies.

$ RETARGET_DATA=... .venv-avalanche/bin/python benchmarks/avalanche_splitmnist.py
$ RETARGET_DATA=... .venv-avalanche/bin/python benchmarks/avalanche_splitmnist.py --tune

One MLP, one pass in mini-batches of ten, the same network and order of classes for all methods of a
seed. The images are the first 300 of each digit to train on, and the first 100 to test on, so that
it takes minutes. Accuracy and forgetting are Avalanche's own metrics, after the last experience.

Every method was tuned on seed 0, which is not among those reported: `--tune` prints what was
tried. The options in METHODS are the best of it, except for EWC, whose best diverged on another
seed (docs/integrations/avalanche.md). SLDA has no training of its own; it works on the hidden layer
of the network as it is after one pass over the first experience, as TangentStrategy does.
"""

import argparse
import functools
import itertools
import statistics
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.torchvision_operators import declare_missing_operators

declare_missing_operators()  # Avalanche imports torchvision
warnings.filterwarnings("ignore")  # Avalanche's own: no QP solver, no loggers

from avalanche.benchmarks.classic import SplitMNIST  # noqa: E402
from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402
from avalanche.training.supervised import EWC, LwF, Naive, Replay, StreamingLDA  # noqa: E402

import retarget as rt  # noqa: E402
from retarget.integrations.avalanche import (  # noqa: E402
    SquaredError,
    TangentStrategy,
    TargetCorrectionPlugin,
)
from retarget.lab.data.mnist import load_mnist  # noqa: E402

BATCH, BLOCK, HIDDEN = 10, 50, 100
TESTED = 100  # images of a digit
STORED = 500  # images, for the methods that store some
RATES = {"lr": [0.001, 0.003, 0.01, 0.03, 0.1]}
# What each method was run with, and what was tried for it.
METHODS: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "Naive": ({"lr": 0.001}, RATES),
    "EWC": ({"lr": 0.001, "ewc_lambda": 100.0}, RATES | {"ewc_lambda": [10.0, 100.0, 1000.0]}),
    "LwF": ({"lr": 0.001, "alpha": 10.0}, RATES | {"alpha": [1.0, 10.0]}),
    "Replay": ({"lr": 0.03}, RATES),
    "SLDA": ({"lr": 0.001, "shrinkage": 1e-4}, RATES | {"shrinkage": [1e-4, 1e-2]}),
    "corrected": (
        {"lr": 0.03, "gamma": 300.0, "ridge": 10.0},
        {"lr": [0.003, 0.01, 0.03], "gamma": [100.0, 300.0, 1000.0], "ridge": [10.0, 30.0]},
    ),
    "closed loop": ({"lr": 0.01, "gamma": 100.0}, {"lr": [0.003, 0.01, 0.03], "gamma": [100.0]}),
    "closed loop, replay": (
        {"lr": 0.03, "gamma": 100.0},
        {"lr": [0.003, 0.01, 0.03], "gamma": [100.0, 1000.0]},
    ),
    "Tangent": ({"lr": 0.001}, {"lr": [0.0003, 0.001, 0.003]}),
}
KEPT = {
    "EWC": "weights, Fisher",
    "LwF": "the last network",
    "Replay": f"{STORED} images",
    "SLDA": f"{HIDDEN}² sums",
    "corrected": "all images",
    "closed loop": "1,024² sums",
    "closed loop, replay": f"1,024² sums, {STORED} images",
    "Tangent": "1,024² sums",
}


def lay_files(folder: Path, per_class: int) -> None:
    """MNIST where torchvision looks for it, with the first images of each digit."""
    mnist = load_mnist()
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, images, labels, number in (
        ("train", mnist.train_images, mnist.train_labels, per_class),
        ("t10k", mnist.test_images, mnist.test_labels, TESTED),
    ):
        chosen = [np.flatnonzero(labels == digit)[:number] for digit in range(10)]
        rows = np.sort(np.concatenate(chosen))
        images, labels = images[rows], labels[rows]
        head = struct.pack(">IIII", 0x803, *images.shape)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">II", 0x801, len(labels))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.astype(np.uint8).tobytes())


def network(seed: int) -> nn.Sequential:
    """The MLP of all methods."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def strategy(name: str, seed: int, first: Any, evaluator: Any, lr: float, **options: Any) -> Any:
    """A method, ready for the stream; `first` is the first experience."""
    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    common = {"train_mb_size": BATCH, "eval_mb_size": 1000, "evaluator": evaluator}
    learned = {"model": model, "optimizer": optimizer, "criterion": nn.CrossEntropyLoss()}
    if name == "Naive":
        return Naive(**learned, **common)
    if name == "EWC":
        return EWC(**learned, **common, **options)
    if name == "LwF":
        return LwF(**learned, **common, temperature=2.0, **options)
    if name == "Replay":
        return Replay(**learned, **common, mem_size=STORED)
    if name == "SLDA":
        silent = common | {"evaluator": EvaluationPlugin(loggers=[])}
        Naive(**learned, **silent).train(first)
        return StreamingLDA(
            slda_model=model,
            criterion=nn.CrossEntropyLoss(),
            input_size=HIDDEN,
            num_classes=10,
            output_layer_name="2",
            shrinkage_param=options["shrinkage"],
            **common,
        )
    learned["criterion"] = SquaredError()
    if name == "Tangent":

        def make(module: nn.Module) -> rt.TangentLearner:
            return rt.TangentLearner(module, "auto", 1024, seed=seed)

        return TangentStrategy(**learned, **common, make_learner=make)
    kind: Callable[..., Any] = rt.NetworkCorrector
    if name.startswith("closed loop"):
        kind = rt.ClosedLoopCorrector
        options = options | {"features": 1024, "seed": seed}
        options["replay"] = STORED if name == "closed loop, replay" else 0
    make_corrector = functools.partial(kind, block_size=BLOCK, **options)
    return Naive(**learned, **common, plugins=[TargetCorrectionPlugin(make_corrector)])


def run(name: str, seed: int, folder: Path, options: dict[str, Any]) -> tuple[float, float, float]:
    """Final accuracy and forgetting on the test stream, and seconds of training."""
    stream = SplitMNIST(5, seed=seed, dataset_root=folder)
    metrics = accuracy_metrics(stream=True), forgetting_metrics(stream=True)
    evaluator = EvaluationPlugin(*metrics, loggers=[])
    method = strategy(name, seed, stream.train_stream[0], evaluator, **options)
    torch.manual_seed(seed)
    seconds, result = 0.0, {}
    for experience in stream.train_stream:
        start = time.perf_counter()
        method.train(experience)
        seconds += time.perf_counter() - start
        result = method.eval(stream.test_stream)
    accuracy = result["Top1_Acc_Stream/eval_phase/test_stream/Task000"]
    return accuracy, result["StreamForgetting/eval_phase/test_stream"], seconds


def tune(names: list[str], folder: Path) -> None:
    """Prints what each choice of options gives on seed 0."""
    for name in names:
        tried = METHODS[name][1]
        for values in itertools.product(*tried.values()):
            options = dict(zip(tried, values, strict=True))
            try:
                accuracy = f"{run(name, 0, folder, options)[0]:.3f}"
            except rt.RetargetError as error:
                accuracy = f"{type(error).__name__}"
            print(f"{name:12} {options} {accuracy}", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--per-class", type=int, default=300, help="Training images of a digit.")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--tune", action="store_true", help="Try options on seed 0 instead.")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # Avalanche has turned its deprecations on
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        lay_files(Path(folder), options.per_class)
        if options.tune:
            tune(options.methods, Path(folder))
            return
        print("| method | options | kept | accuracy | forgetting | seconds |")
        print("|---|---|---|---|---|---|")
        for name in options.methods:
            chosen = METHODS[name][0]
            results = [run(name, seed, Path(folder), chosen) for seed in options.seeds]
            accuracies, forgotten, seconds = zip(*results, strict=True)
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            print(
                f"| {name} | {', '.join(f'{k}={v:g}' for k, v in chosen.items())} "
                f"| {KEPT.get(name, 'nothing')} | {statistics.mean(accuracies):.3f} ± {spread:.3f} "
                f"| {statistics.mean(forgotten):.3f} | {statistics.mean(seconds):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
