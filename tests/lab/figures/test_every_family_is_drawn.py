"""Every family, whatever of it is swept: the table is computed, drawn and summed up."""

import io

import polars as pl
import pytest
from matplotlib.image import imread
from rich.console import Console

import retarget as rt
from retarget.lab.experiment import Experiment, families
from retarget.lab.figures import mnist
from retarget.lab.reader import parse_changes
from retarget.lab.runs.store import labeled

MNIST = {"train": 30, "test": 20, "evaluate_every": 16}
CIFAR = {"protocol": "domain pairs", "per_class": 2, "test_per_class": 2, "method": "vanilla"}
CORE50 = {"data": "core50", "backbone": "support.core50_backbone:made", "frames_per_session": 1}
CORE50 |= {"image_size": 4, "batch_size": 20, "method": "tangent", "features": 16}
CORE50 |= {"network": "whole", "first_epochs": 0}
PRETRAINED = CIFAR | {"backbone": CORE50["backbone"], "image_size": 4, "lr": 0.01}
# Parameters of a run that takes a second at most: all of them in `parameters`, nothing swept.
SMALL = {
    **{f"cifar {view}": CIFAR | {"lr": 0.01} for view in ("curves", "memory", "sweeps")},
    **{f"core50 {view}": CORE50 | {"lr": 0.01} for view in ("curves", "memory", "sweeps")},
    **{f"pretrained {view}": PRETRAINED for view in ("curves", "memory", "sweeps")},
    "digits": {"width": 4.0, "gamma": 1.0, "lr": 0.01, "block_size": 300, "curve_every": 500},
    "intents": {"data": "clinc150", "learner": "both", "step": 2, "features": 32, "gamma": 0.1},
    "intent tuning": {"data": "banking77", "learner": "replay", "step": 3, "epochs": 1}
    | {"lr": 0.01, "capacity": 7, "batch_size": 8},
    "mnist curves": MNIST
    | dict.fromkeys(("gamma", "class_offline_gamma", "class_corrected_gamma"), 0.1)
    | dict.fromkeys(("lr", "class_online_lr", "class_corrected_lr", "class_iterative_lr"), 0.1)
    | {"class_iterative_gamma": 1.0, "block_size": 16, "shown_samples": 2},
    "mnist sweeps": MNIST
    | {"gamma": 0.1, "lr": 0.1, "sweep_points": 1, "corrected_gammas": [0.1], "block_sizes": [8]}
    | {"offline_gamma_powers": [-1.0, 1.0], "online_lr_powers": [-1.0, 0.0]},
    "toy curves": {"features": 5, "gammas": [1.0], "batch_sizes": [3], "batch_lr": 1.0}
    | {"shown_batch": 4},
    "toy shift": {"gamma": 1.0, "lr": 0.5},
}
# Families of the same runs, which differ in what is drawn of them.
BY_RUNS = {}
for family in SMALL:
    BY_RUNS.setdefault(families()[family].config, []).append(family)
# How a case and a list of one value are told is the same code in all others.
OTHER_WAYS = ("toy shift", "cifar curves", "cifar sweeps")


@pytest.fixture(autouse=True)
def quick_kernel(monkeypatch):
    """The kernel of MNIST does not matter here."""
    flat = rt.RBF(20.0)
    monkeypatch.setattr(
        mnist, "cached_gram", lambda _, x: flat(x.reshape(len(x), -1).astype(float))
    )


def small(family, seeds=(0,), **more):
    swept = more.get("grid", {})
    parameters = {name: value for name, value in SMALL[family].items() if name not in swept}
    return Experiment(
        name="small", family=family, title="small", seeds=seeds, parameters=parameters, **more
    )


def table_of(experiment):
    return pl.concat(
        labeled(table, run.labels)
        for run in experiment.planned_runs()
        for _, table in experiment.kind.run([run.config], None)
    )


def drawn(family, table):
    """The figure, of which no panel is empty, and what the terminal shows."""
    kind = families()[family]
    figure = kind.draw(table)
    for axes in figure.axes:
        lines = [line for line in axes.lines if len(line.get_xdata())]
        assert lines or axes.images or axes.collections, axes.get_title()
    console = Console(width=200, file=io.StringIO())
    for part in kind.summarize(table):
        console.print(part)
    shown = console.file.getvalue()
    assert shown.strip()
    assert "nan" not in shown
    return figure, shown


@pytest.mark.parametrize("names", BY_RUNS.values(), ids=lambda names: names[0].partition(" c")[0])
def test_every_family_is_computed_and_drawn(names):
    """With two values of a parameter (one, if that takes long); without a grid; with one case."""
    name = {"toy curves": "batch_lr", "intents": "gamma"}.get(names[0], "lr")
    values = [0.01, 0.02] if names[0] in (*OTHER_WAYS, "core50 curves") else [0.01]
    table = table_of(small(names[0], grid={name: values}))
    for family in names:
        figure, saved = drawn(family, table)[0], io.BytesIO()
        figure.savefig(saved, format="png", dpi=30)
        saved.seek(0)
        assert imread(saved)[..., :3].std() > 0.01
        if family in OTHER_WAYS:
            one_value = table.filter(pl.col(name) == values[0])
            mine = one_value.select(pl.lit("mine").alias("case"), pl.all())
            for other in (one_value.drop(name), one_value, mine):
                drawn(family, other)


def test_what_differs_is_shown_apart_and_never_averaged():
    """Each of two cases has its panels and its numbers, as it has alone."""
    gammas = {"small": 0.5, "large": 6.0}
    cases = {name: {"parameters": {"gamma": gamma}} for name, gamma in gammas.items()}
    table = table_of(small("toy shift", cases=cases, seeds=(0, 1)))
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


def numbers(family):
    """Each number among the parameters of a family, with what it must not be."""
    config = families()[family].config
    values = {name: field.default for name, field in config.model_fields.items()} | SMALL[family]
    for name, value in values.items():
        first = value[0] if isinstance(value, list) else value
        wrong = ["-1", "0"] if type(first) is int or name == "evaluate_every" else []
        wrong = wrong[:1] if name in ZERO_IS_NONE else wrong  # 0 is none
        if isinstance(first, float):
            wrong = ["nan", "inf", "-inf"] + ["-1.0"] * (not name.endswith("powers"))
        for text in wrong:
            yield name, f"[{text}]" if isinstance(value, list) else text


ZERO_IS_NONE = ("capacity", "first_epochs", "random_features", "tuned_epochs")


# The options that are checked by the method that uses them.
USED_BY = {"gamma": "corrected", "block_size": "corrected", "strength": "ewc", "capacity": "er"}


@pytest.mark.parametrize("family", [names[0] for names in BY_RUNS.values()])
def test_meaningless_numbers_are_refused_first(family):
    wrong = list(numbers(family))
    assert len(wrong) >= 8
    for name, text in wrong:
        changes = [f"{name} = {text}"]
        if "strength" in families()[family].config.model_fields and name in USED_BY:
            changes.append(f'method = "{USED_BY[name]}"')
        experiment = small(family).changed(parse_changes(changes))
        with pytest.raises(
            rt.errors.InvalidInputError, match=rf"small: parameters.*\b{name}\b.*expected"
        ):
            experiment.runs()


@pytest.mark.parametrize(
    ("family", "setting", "message"),
    [
        ("toy curves", "gammas=[1.0, 0.0]", "parameters.gammas.1: got 0.0"),
        ("toy curves", "gammas=[]", "parameters.gammas: .* at least 1 item"),
        ("mnist sweeps", "online_lr_powers=[0.0, 1.0, 2.0]", "got .*, 2.0.; .*at most 2 items"),
        ("mnist sweeps", "online_lr_powers=[0.0, 400.0]", "powers.1: got 400.0; expected less"),
    ],
)
def test_what_is_said_of_them(family, setting, message):
    with pytest.raises(rt.errors.InvalidInputError, match=message):
        small(family).changed(parse_changes([setting])).runs()
