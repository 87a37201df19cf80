"""Every family, whatever of it is swept: the table is computed, drawn and summed up."""

import io
from dataclasses import replace
from functools import partialmethod
from unittest import mock

import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

import retarget as rt
from retarget.experiments.experiment import Experiment, families
from retarget.experiments.figures import core50
from retarget.experiments.reader import parse_changes
from retarget.experiments.runs.run import run_experiment
from support.made_cifar10 import write_images
from support.made_core50 import made_frames, write_made_core50
from support.made_mnist import write_made_mnist

MNIST = {"train": 40, "test": 20, "evaluate_every": 16}
CIFAR = {"protocol": "domain pairs", "per_class": 4, "test_per_class": 2, "lr": 0.01}
CORE50 = {"data": "core50", "backbone": "support.core50_backbone:made", "frames_per_session": 1}
CORE50 |= {"image_size": 4, "lr": 0.01}
VANILLA = {"method": "vanilla"}
# Parameters of a run that takes a second at most: all of them in `parameters`, nothing swept.
SMALL = {
    "cifar curves": CIFAR | VANILLA,
    "cifar memory": CIFAR | {"method": "tangent", "memory": 16},
    "cifar sweeps": CIFAR | VANILLA,
    "core50 curves": CORE50 | VANILLA,
    "core50 memory": CORE50
    | {"method": "tangent", "memory": 16, "network": "whole", "first_epochs": 0},
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
    core50._data.cache_clear()


def small(family, seeds=(0,), **more):
    values = SMALL[family] | more.pop("parameters", {})
    swept = more.get("grid", {})
    parameters = {name: value for name, value in values.items() if name not in swept}
    return Experiment(
        name="small", family=family, title="small", seeds=seeds, parameters=parameters, **more
    )


def drawn(experiment, folder):
    """The figure and what the terminal shows, of an experiment that leaves out nothing."""
    before, kind, figures = plt.get_fignums(), experiment.kind, []
    watched = replace(kind, draw=lambda table: figures.append(kind.draw(table)) or figures[0])
    coarse = partialmethod(Figure.savefig, dpi=50)  # fine pixels take long
    with (
        mock.patch.dict(families(), {experiment.family: watched}),
        mock.patch.object(Figure, "savefig", coarse),
    ):
        outcome = run_experiment(experiment, folder)
    assert (outcome.failed, outcome.not_drawn) == ([], None)
    assert [path.suffix for path in outcome.files] == [".parquet", ".png", ".pdf", ".json"]
    assert imread(outcome.files[1])[..., :3].std() > 0.01
    assert plt.get_fignums() == before
    console = Console(width=200, file=io.StringIO())
    for part in kind.summarise(outcome.table):
        console.print(part)
    return figures[0], console.file.getvalue()


def lines_of(axes):
    """The lines of a panel that have points."""
    return [line for line in axes.lines if len(line.get_xdata())]


# How cases and lists are told apart is the same code in all families whose panels are in rows.
OTHER_WAYS = [
    (family, how)
    for family in ("toy shift", "cifar curves", "cifar sweeps")
    for how in ("no grid", "lists of one", "one case")
]


@pytest.mark.parametrize(("family", "how"), [(f, "two values") for f in SMALL] + OTHER_WAYS)
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


@pytest.mark.slow
def test_what_differs_is_shown_apart_and_never_averaged(tmp_path):
    """Each of two kernels has its panels and its numbers, as it has alone."""
    widths = {"narrow": 0.5, "wide": 6.0}
    cases = {name: {"parameters": {"width": width}} for name, width in widths.items()}
    figure, shown = drawn(small("digits", cases=cases, seeds=(0, 1)), tmp_path)
    rows = figure.subfigs
    assert [row.get_suptitle() for row in rows] == list(widths)
    for row, (name, width) in zip(rows, widths.items(), strict=True):
        alone, said = drawn(small("digits", seeds=(0, 1), parameters={"width": width}), tmp_path)
        assert f"{name}\n{said}" in shown
        for here, there in zip(row.axes[0].lines, alone.axes[0].lines, strict=True):
            assert (here.get_ydata() == there.get_ydata()).all()


@pytest.mark.slow
def test_more_settings_than_a_figure_has_room_for(tmp_path):
    gammas = [0.1 * place for place in range(1, 8)]
    figure, shown = drawn(small("toy shift", grid={"gamma": gammas}), tmp_path)
    assert figure.get_suptitle() == "the first 6 of 7 settings"
    assert len(figure.subfigs) == 6
    assert shown.count("largest difference") == 7


def test_networks_of_users_own_cases_and_grids(tmp_path):
    """A line for each, told apart by its colour; sweeps along what is a number and swept."""
    cases = {
        "plain": {"parameters": {"method": "vanilla"}, "grid": {"batch_size": [2, 4]}},
        "C EWC": {"parameters": {"method": "ewc", "strength": 1.0}},  # named as in the paper
        "mine": {"parameters": {"method": "er"}, "seeds": [1, 2], "grid": {"capacity": [2, 5]}},
    }
    more = {"cases": cases, "seeds": (0, 1), "parameters": {"per_class": 2}}
    figure, shown = drawn(small("cifar curves", **more), tmp_path)
    (axes,) = figure.axes
    names = ["plain, batch_size 2", "plain, batch_size 4", "C EWC"]
    names += ["mine, capacity 2", "mine, capacity 5"]
    lines = [line for line in lines_of(axes) if line.get_label() in names]
    assert [line.get_label() for line in lines] == names
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 5
    assert all(name in shown for name in names)
    figure, shown = drawn(small("cifar sweeps", **more), tmp_path)
    titles = [axes.get_title(loc="left").partition("   ")[2] for axes in figure.axes]
    assert titles == ["nothing swept", "plain", "mine"]
    assert [axes.get_xlabel().strip() for axes in figure.axes[1:]] == ["batch size", "capacity"]
    assert "capacity = 5" in shown
    # the difference to plain SGD is taken over the seeds that both have
    cases = {"vanilla SGD": {"seeds": [0, 1]}, "other": {"seeds": [1, 2, 3]}}
    outcome = run_experiment(small("cifar curves", cases=cases), tmp_path)
    (shown,) = families()["cifar curves"].summarise(outcome.table)
    last = outcome.table.group_by("case", "seed", maintain_order=True).last()
    both = last.filter(seed=1)["accuracy"].to_list()
    assert list(shown.columns[2].cells)[1] == f"{both[1] - both[0]:.3f} ± 0.000"


def numbers(family):
    """Each number among the parameters of a family, with what it must not be."""
    config = families()[family].config
    values = {name: field.default for name, field in config.model_fields.items()} | SMALL[family]
    for name, value in values.items():
        first = value[0] if isinstance(value, list) else value
        wrong = ["-1", "0"] if type(first) is int or name == "evaluate_every" else []
        wrong = wrong[:1] if name in ("first_epochs", "random_features") else wrong  # 0 is none
        if isinstance(first, float):
            wrong = ["nan", "inf", "-inf"] + ["-1.0"] * (not name.endswith("powers"))
        for text in wrong:
            yield name, f"[{text}]" if isinstance(value, list) else text


@pytest.mark.parametrize("family", families())
def test_numbers_without_a_meaning_are_refused_before_anything_is_computed(family):
    wrong = list(numbers(family))
    assert len(wrong) >= 10
    for name, text in wrong:
        experiment = small(family).changed(parse_changes([f"{name} = {text}"]))
        with pytest.raises(
            rt.errors.InvalidInputError, match=rf"small: parameters.*\b{name}\b.*expected"
        ):
            experiment.runs()


@pytest.mark.parametrize(
    ("family", "setting", "message"),
    [
        ("digits", "width=-1.0", r"parameters.width: got -1.0; expected greater than 0"),
        (
            "toy curves",
            "gammas=[1.0, 0.0]",
            r"parameters.gammas.1: got 0.0; expected greater than 0",
        ),
        ("core50 memory", 'method="vanilla"', "network is 'whole'"),
        ("core50 memory", "first_epochs=1", "network is 'whole'"),
        ("toy curves", "gammas=[]", "parameters.gammas: .* at least 1 item"),
        (
            "mnist sweeps",
            "online_lr_powers=[0.0, 1.0, 2.0]",
            r"got .0.0, 1.0, 2.0.; .*at most 2 items",
        ),
        (
            "mnist sweeps",
            "online_lr_powers=[0.0, 400.0]",
            "powers.1: got 400.0; expected less than",
        ),
    ],
)
def test_what_is_said_of_them(family, setting, message):
    with pytest.raises(rt.errors.InvalidInputError, match=message):
        small(family).changed(parse_changes([setting])).runs()
