"""Every family, whatever of it is swept: the table is computed, drawn and summed up."""

import io

import pytest
from matplotlib import pyplot as plt
from matplotlib.image import imread
from rich.console import Console

from made_cifar10 import write_images
from made_core50 import made_frames, write_made_core50
from made_mnist import write_made_mnist
from retarget.experiments import core50_training
from retarget.experiments.experiment import Changes, Experiment, families
from retarget.experiments.runner import run_experiment

MNIST = {"train": 40, "test": 20, "evaluate_every": 16}
CIFAR = {"protocol": "domain pairs", "per_class": 4, "test_per_class": 2, "lr": 0.01}
CORE50 = {"data": "core50", "backbone": "core50_backbone:made", "frames_per_session": 1}
CORE50 |= {"image_size": 4, "lr": 0.01}
VANILLA, EWC = {"method": "vanilla"}, {"method": "ewc"}
# Parameters of a run that takes a second at most: all of them in `parameters`, nothing swept.
SMALL = {
    "cifar curves": CIFAR | VANILLA,
    "cifar sweeps": CIFAR | VANILLA,
    "core50 curves": CORE50 | VANILLA,
    "core50 sweeps": CORE50 | VANILLA,
    "digits": {"width": 4.0, "gamma": 1.0, "lr": 0.01, "block_size": 300, "curve_every": 500},
    "mnist curves": MNIST
    | dict.fromkeys(("gamma", "class_offline_gamma", "class_corrected_gamma"), 0.1)
    | dict.fromkeys(("lr", "class_online_lr", "class_corrected_lr", "class_iterative_lr"), 0.1)
    | {"class_iterative_gamma": 1.0, "block_size": 16, "shown_samples": 2},
    "mnist sweeps": MNIST
    | {"gamma": 0.1, "lr": 0.1, "sweep_points": 1, "corrected_gammas": [0.1], "block_sizes": [8]}
    | {"offline_gamma_powers": [-1.0, 1.0], "online_lr_powers": [-1.0, 0.0]},
    "toy curves": {"features": 5, "gammas": [1.0], "batch_sizes": [3], "batch_lr": 1.0}
    | {"shown_batch": 4},
    "toy shift": {"gamma": 1.0, "lr": 0.5, "shown_points": 1, "apart": 0.05},
}
# A parameter of each that is a number, and two values of it.
SWEPT = {family: {"lr": [0.01, 0.02]} for family in SMALL} | {
    "toy curves": {"batch_lr": [0.5, 1.0]},
}


@pytest.fixture(scope="module")
def made_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_made_mnist(folder, train=80, test=40)
    write_images(folder, per_class=2)
    write_made_core50(folder, "zip", made_frames(range(1, 12), range(1, 51), (1,), size=(5, 4)))
    return folder


@pytest.fixture(autouse=True)
def own_folders(made_data, tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", str(made_data))
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path / "cache"))
    core50_training._data.cache_clear()


def small(family, seeds=(0,), **more):
    values = SMALL[family] | more.pop("parameters", {})
    swept = more.get("grid", {})
    parameters = {name: value for name, value in values.items() if name not in swept}
    return Experiment(
        name="small", family=family, title="small", seeds=seeds, parameters=parameters, **more
    )


def drawn(experiment, folder):
    """The figure and what the terminal shows, of an experiment that leaves out nothing."""
    outcome = run_experiment(experiment, folder)
    assert (outcome.failed, outcome.not_drawn) == ([], None)
    assert [path.suffix for path in outcome.files] == [".parquet", ".png", ".pdf", ".json"]
    assert imread(outcome.files[1])[..., :3].std() > 0.01
    assert plt.get_fignums() == []
    figure = experiment.kind.draw(outcome.table)
    plt.close(figure)
    console = Console(width=200, file=io.StringIO())
    for part in experiment.kind.summarise(outcome.table):
        console.print(part)
    return figure, console.file.getvalue()


def lines_of(axes):
    """The lines of a panel that have points."""
    return [line for line in axes.lines if len(line.get_xdata())]


def test_all_families_are_here():
    assert SMALL.keys() == families().keys()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("how", ["no grid", "lists of one", "one case", "two values"])
def test_every_family_is_drawn(family, how, tmp_path):
    ((name, values),) = SWEPT[family].items()
    more = {
        "no grid": {},
        "lists of one": {"grid": {name: values[:1]}},
        "one case": {"cases": {"mine": {"parameters": {name: values[0]}}}},
        "two values": {"grid": {name: values}, "seeds": (0, 1)},
    }[how]
    experiment = small(family, **more)
    figure, shown = drawn(experiment, tmp_path)
    for axes in figure.axes:
        assert lines_of(axes) or axes.images or axes.collections, axes.get_title()
    assert shown.strip()
    assert "nan" not in shown
