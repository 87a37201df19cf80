"""Every family, whatever of it is swept: the table is computed, drawn and summed up."""

import io
from unittest import mock

import polars as pl
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

import retarget as rt
from retarget.experiments.experiment import Experiment, families
from retarget.experiments.figures import mnist
from retarget.experiments.reader import parse_changes
from retarget.experiments.runs.run import run_experiment
from retarget.experiments.runs.store import labelled

MNIST = {"train": 40, "test": 20, "evaluate_every": 16}
CIFAR = {"protocol": "domain pairs", "per_class": 4, "test_per_class": 2, "lr": 0.01}
CORE50 = {"data": "core50", "backbone": "support.core50_backbone:made", "frames_per_session": 1}
CORE50 |= {"image_size": 4, "lr": 0.01, "batch_size": 20}
VANILLA = {"method": "vanilla"}
# Parameters of a run that takes a second at most: all of them in `parameters`, nothing swept.
SMALL = {
    "cifar curves": CIFAR | VANILLA,
    "cifar memory": CIFAR | {"method": "tangent", "memory": 16, "per_class": 2},
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
# A parameter of each that is a number, and two values of it; one if its figure takes long.
SWEPT = {family: {"lr": [0.01, 0.02]} for family in SMALL} | {
    "mnist curves": {"lr": [0.1]},
    "mnist sweeps": {"lr": [0.1]},
    "toy curves": {"batch_lr": [0.5]},
}


@pytest.fixture(autouse=True)
def quick_kernel(monkeypatch):
    """The kernel of MNIST does not matter here."""
    flat = rt.RBF(20.0)
    monkeypatch.setattr(
        mnist, "cached_gram", lambda _, x: flat(x.reshape(len(x), -1).astype(float))
    )


def small(family, seeds=(0,), **more):
    values = SMALL[family] | more.pop("parameters", {})
    swept = more.get("grid", {})
    parameters = {name: value for name, value in values.items() if name not in swept}
    return Experiment(
        name="small", family=family, title="small", seeds=seeds, parameters=parameters, **more
    )


def drawn(family, table):
    """The figure, of which no panel is empty, and what the terminal shows."""
    kind, before = families()[family], plt.get_fignums()
    figure = kind.draw(table)
    for number in set(plt.get_fignums()).difference(before):
        plt.close(number)
    for axes in figure.axes:
        assert lines_of(axes) or axes.images or axes.collections, axes.get_title()
    console = Console(width=200, file=io.StringIO())
    for part in kind.summarise(table):
        console.print(part)
    shown = console.file.getvalue()
    assert shown.strip()
    assert "nan" not in shown
    return figure, shown


def lines_of(axes):
    """The lines of a panel that have points."""
    return [line for line in axes.lines if len(line.get_xdata())]


# How cases and lists are told apart is the same code in all families whose panels are in rows.
OTHER_WAYS = ("toy shift", "cifar curves", "cifar sweeps")


@pytest.mark.parametrize("family", SMALL)
def test_every_family_is_computed_and_drawn(family, tmp_path):
    """With two values of a parameter; without a grid; with a list of one value; with one case."""
    ((name, values),) = SWEPT[family].items()
    seeds = (0, 1) if family in OTHER_WAYS else (0,)
    save, before = Figure.savefig, plt.get_fignums()

    def coarse(figure, path, **_):  # fine pixels take long; tests/experiments/test_run.py has a PDF
        if path.suffix == ".png":
            save(figure, path, dpi=50)

    with mock.patch.object(Figure, "savefig", coarse):
        outcome = run_experiment(small(family, seeds, grid={name: values}), tmp_path)
    assert (outcome.failed, outcome.not_drawn, plt.get_fignums()) == ([], None, before)
    assert [path.suffix for path in outcome.files] == [".parquet", ".png", ".pdf", ".json"]
    assert imread(outcome.files[1])[..., :3].std() > 0.01
    drawn(family, outcome.table)
    if family in OTHER_WAYS:
        one_value = outcome.table.filter(pl.col(name) == values[0])
        for table in (
            one_value.drop(name),
            one_value,
            one_value.select(pl.lit("mine").alias("case"), pl.all()),
        ):
            drawn(family, table)


def test_what_differs_is_shown_apart_and_never_averaged(tmp_path):
    """Each of two cases has its panels and its numbers, as it has alone."""
    gammas = {"small": 0.5, "large": 6.0}
    cases = {name: {"parameters": {"gamma": gamma}} for name, gamma in gammas.items()}
    experiment = small("toy shift", cases=cases, seeds=(0, 1))
    table = pl.concat(
        labelled(table, run.labels)
        for run in experiment.planned_runs()
        for _, table in experiment.kind.run([run.config], None)
    )
    figure, shown = drawn("toy shift", table)
    assert [row.get_suptitle() for row in figure.subfigs] == list(gammas)
    for row, name in zip(figure.subfigs, gammas, strict=True):
        alone, said = drawn("toy shift", table.filter(case=name))
        assert f"{name}\n{said}" in shown
        for here, there in zip(row.axes[0].lines, alone.axes[0].lines, strict=True):
            assert (here.get_ydata() == there.get_ydata()).all()
    many = pl.concat(table.filter(case="small").with_columns(gamma=0.1 * n) for n in range(1, 8))
    figure, shown = drawn("toy shift", many)
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
    experiment = small("cifar curves", (0, 1), cases=cases, parameters={"per_class": 2})
    with mock.patch.object(Figure, "savefig"):
        table = run_experiment(experiment, tmp_path).table
    figure, shown = drawn("cifar curves", table)
    (axes,) = figure.axes
    names = ["plain, batch_size 2", "plain, batch_size 4", "C EWC"]
    names += ["mine, capacity 2", "mine, capacity 5"]
    lines = [line for line in lines_of(axes) if line.get_label() in names]
    assert [line.get_label() for line in lines] == names
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 5
    assert all(name in shown for name in names)
    figure, shown = drawn("cifar sweeps", table)
    titles = [axes.get_title(loc="left").partition("   ")[2] for axes in figure.axes]
    assert titles == ["nothing swept", "plain", "mine"]
    assert [axes.get_xlabel().strip() for axes in figure.axes[1:]] == ["batch size", "capacity"]
    assert "capacity = 5" in shown
    # the difference to plain SGD is taken over the seeds that both have
    table = table.filter((pl.col("case") == "C EWC") | (pl.col("capacity") == 5))
    name = pl.when(pl.col("case") == "C EWC").then(pl.lit("vanilla SGD")).otherwise(pl.lit("other"))
    table = table.with_columns(case=name, capacity=5, batch_size=4, strength=1.0)
    (shown,) = families()["cifar curves"].summarise(table)
    last = table.group_by("case", "seed", maintain_order=True).last()
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
        ("digits", "width=-1.0", "parameters.width: got -1.0; expected greater than 0"),
        ("toy curves", "gammas=[1.0, 0.0]", "parameters.gammas.1: got 0.0; expected greater"),
        ("toy curves", "gammas=[]", "parameters.gammas: .* at least 1 item"),
        ("core50 memory", 'method="vanilla"', "network is 'whole'"),
        ("core50 memory", "first_epochs=1", "network is 'whole'"),
        ("mnist sweeps", "online_lr_powers=[0.0, 1.0, 2.0]", "got .*, 2.0.; .*at most 2 items"),
        ("mnist sweeps", "online_lr_powers=[0.0, 400.0]", "powers.1: got 400.0; expected less"),
    ],
)
def test_what_is_said_of_them(family, setting, message):
    with pytest.raises(rt.errors.InvalidInputError, match=message):
        small(family).changed(parse_changes([setting])).runs()
