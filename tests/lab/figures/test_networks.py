"""Networks on made images in the formats of CIFAR-10 and CORe50; on real ones where they are."""

import os
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import retarget as rt
from retarget import lab
from retarget.errors import InvalidInputError, MissingDataError
from retarget.lab.data.cifar10 import CIFAR10
from retarget.lab.data.core50 import load_core50, new_classes_tasks
from retarget.lab.data.features import prepared
from retarget.lab.data.fetch import data_folder
from retarget.lab.figures import cifar10, core50, networks, pretrained
from retarget.lab.figures.over_seeds import mean_and_error, mean_and_sem
from retarget.lab.figures.training import methods_of, train_networks, trained_together
from retarget.lab.reader import (
    load_experiment,
    parse_changes,
)
from retarget.lab.runs.run import run_experiment
from retarget.networks.corrector import CorrectionOptions
from support.core50_backbone import made

REAL_DATA = os.environ.get("RETARGET_DATA")  # before the fixtures point it elsewhere
BACKBONE = "support.core50_backbone:made"
CIFAR_SMALL = ["per_class=2", "test_per_class=2", "evaluate_every=16", "block_size=4"]
CORE50_SMALL = ["frames_per_session=1", "image_size=4", "epochs=1", "replay_passes=1"]
CORE50_SMALL += ["batch_size=20", "block_size=20"]
STAND_IN = "stand-in pictures, features of support.core50_backbone:made"


pytestmark = pytest.mark.usefixtures("not_saved")


def small(name, *changes, seeds):
    small = CORE50_SMALL if "core50" in load_experiment(name).family else CIFAR_SMALL
    changed = load_experiment(name).changed(parse_changes([*small, *changes], seeds))
    return changed.where_it_fits(backbone=BACKBONE)


def only(experiment, grids):
    """The experiment with these cases alone, and with these values in their grids."""
    cases = {
        name: experiment.cases[name].model_copy(update={"grid": grid})
        for name, grid in grids.items()
    }
    return experiment.model_copy(update={"cases": cases})


def cifar(**changes):
    known = {
        "seed": 0, "protocol": "domain pairs", "per_class": 4, "test_per_class": 3,
        "evaluate_every": 20, "method": "vanilla", "lr": 0.01, "block_size": 8, "capacity": 6,
    }  # fmt: skip
    return cifar10.CifarRun(**(known | changes))


def pictures(**changes):
    known = {
        "seed": 0, "data": "core50", "frames_per_session": 1, "image_size": 4, "batch_size": 20,
        "backbone": BACKBONE, "method": "vanilla", "lr": 0.01,
    }  # fmt: skip
    return core50.Core50Run(**(known | changes))


# The parts of a run


def test_the_papers_networks_and_their_seeds():
    images = [(32, 3, 3, 3), (64, 32, 3, 3), (2, 3136)]
    for make, shapes, first in (
        (partial(cifar10.cifar_net, 2), images, partial(nn.Conv2d, 3, 32, 3)),
        (partial(core50.head, 512), [(100, 512), (50, 100)], partial(nn.Linear, 512, 100)),
    ):
        state = torch.random.get_rng_state()
        one, same, other = make(seed=5), make(seed=5), make(seed=6)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert [tuple(p.shape) for p in one.parameters()] == shapes
        assert torch.equal(one[0].weight, same[0].weight)
        assert not torch.equal(one[0].weight, other[0].weight)
        torch.manual_seed(5)
        assert torch.equal(one[0].weight, first(bias=False).weight)


def test_new_classes_on_features_of_frames(made_data):
    setup = pictures(seed=3).setup()
    stream, tasks = setup.stream, new_classes_tasks(3)
    assert setup.data == "CORe50, features of support.core50_backbone:made"
    assert stream.classes == 50
    assert stream.train.sizes == tuple(8 * len(task) for task in tasks)
    assert stream.test.sizes == tuple(3 * len(task) for task in tasks)
    for span, task in zip(stream.train.spans(), tasks, strict=True):
        assert set(stream.train.labels[span].tolist()) == set(task)
    frames = load_core50(made_data / "core50_128x128.zip", 1)
    row = int(stream.train.rows[7])
    assert frames.train_objects[row] == int(stream.train.labels[7])
    picture = prepared(torch.from_numpy(frames.train_images[row : row + 1]), 4)
    torch.testing.assert_close(stream.train.inputs[row], made()(picture)[0])


def test_who_trains_the_whole_network():
    whole = {"network": "whole", "first_epochs": 0}
    setups = {method: pictures(method=method, **whole).setup() for method in ("vanilla", "tangent")}
    assert {method: setup.network.trained for method, setup in setups.items()} == {
        "vanilla": True,
        "tangent": False,
    }
    assert pictures(method="tangent", network="whole").setup().network.trained  # in a first session
    ((_, table),) = train_networks([pictures(method="joint", replay_passes=3, lr=0.1, **whole)])
    assert table["accuracy"][-1] > table["accuracy"][0]


def test_a_stand_in_says_so(tmp_path, monkeypatch):
    standin, official = pictures(data="standin").setup(), pictures().setup()
    assert standin.data == STAND_IN
    assert not torch.equal(standin.stream.train.inputs, official.stream.train.inputs)
    with pytest.raises(MissingDataError, match="resnet18-tiny150-.* not found"):
        pictures(data="standin", backbone=None).setup()
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    for changes, message in (
        ({"data": "standin", "backbone": None}, "core50_standin.zip and resnet18.* not found"),
        ({}, "core50: .* any of core50_128x128,"),
        ({"backbone": None}, "retarget data get resnet18"),
    ):
        with pytest.raises(MissingDataError, match=message):
            pictures(**changes).setup()


def test_more_images_than_there_are():
    with pytest.raises(InvalidInputError, match="test_per_class is 4, .* has 3"):
        cifar(test_per_class=4).setup()
    with pytest.raises(InvalidInputError, match="per_class is 16, .* 15 samples"):
        cifar(per_class=16).setup()


def test_a_method_by_its_name():
    expected = {
        "vanilla": "Vanilla", "ewc": "EWC", "cumulative": "CumulativeReplay", "er": "ER",
        "der": "DER", "der++": "DER++", "label smoothing": "LabelSmoothing", "led": "Led",
        "tangent": "Tangent", "last layer": "LastLayer", "joint": "Joint",
    }  # fmt: skip
    for method, name in expected.items():
        assert [each.name for each in methods_of([cifar(method=method)])] == [name]


def test_unused_options_may_be_anything():
    unused = {"capacity": 0, "gamma": -1.0, "strength": -1.0}
    assert [each.name for each in methods_of([cifar(method="vanilla", **unused)])] == ["Vanilla"]
    for method, wrong in (
        ("er", "capacity is 0"),
        ("der, corrected", "gamma is -1.0"),
        ("ewc", "strength is -1.0"),
    ):
        with pytest.raises(ValidationError, match=wrong):
            cifar(method=method, **unused)


def test_options_reach_the_methods():
    changes = {"gamma": 7.0, "refresh": "epoch", "parts": "online", "assumed_reduction": "sum"}
    corrected, der = methods_of([cifar(method="der, corrected", **changes)])
    assert corrected.options == CorrectionOptions(
        7.0, 8, refresh="epoch", parts="online", first_block="plain"
    )
    assert corrected.assumed_reduction == "sum"
    kernel = corrected.kernel
    assert (kernel.func, kernel.keywords["precision"]) == (rt.EmpiricalNTK, "split")
    assert der.capacity == 6
    (ewc,) = methods_of([cifar(method="ewc", strength=s) for s in (1.0, 5.0)])
    assert ewc.strengths == [1.0, 5.0]


def test_runs_that_train_at_once_on_gpus():
    assert trained_together(cifar()) is None  # on the CPU, alone
    gpu = trained_together(cifar(device="cuda"))
    for changes in ({"seed": 9}, {"lr": 0.5}, {"strength": 2.0}):
        assert trained_together(cifar(device="cuda", **changes)) == gpu
    for changes in ({"gamma": 9.0}, {"method": "er"}, {"per_class": 9}):
        assert trained_together(cifar(device="cuda", **changes)) != gpu


# Training


def test_runs_at_once_are_the_runs_alone():
    """Every seed and rate with its own network, order and randomness, whoever else trains."""
    configs = [cifar(method="er", seed=seed, lr=lr) for seed, lr in ((0, 0.01), (4, 0.02))]
    together = dict(train_networks(configs))
    assert list(together) == configs
    for one in configs:
        data = cifar10.cifar_data(data_folder(None), 3, "cpu")
        stream, network = lab.domain_pairs(data, one.seed, 4), cifar10.cifar_net(2, one.seed)
        learner = rt.SGD(one.lr, 4, reduction="mean")
        history = lab.train(
            network, stream, learner, lab.ER(6), evaluate_every=20, seeds=[one.seed]
        )
        table = together[one]
        assert table["samples"].to_list() == [0, 8, 16, 20, 24, 32, 40] == history.samples.tolist()
        assert table["tasks_learned"].to_list() == [0, 1, 2, 2, 3, 4, 5]
        np.testing.assert_allclose(table["accuracy"], history.accuracy[:, 0], atol=1e-12)
        np.testing.assert_allclose(table["loss"], history.loss[:, 0], rtol=1e-4)
        matrices = networks.accuracy_matrices(table.with_columns(seed=one.seed))
        np.testing.assert_allclose(matrices, history.matrix)


def test_replay_and_correction_reach_the_lab():
    """Replay passes over everything as often as asked; the correction keeps its order."""
    setup, learner = cifar().setup(), rt.SGD(0.01, 4, reduction="mean")
    ((_, table),) = train_networks([cifar(method="cumulative", replay_passes=2, reshuffle=True)])
    options = {"reshuffle": True, "evaluate_every": 20}
    replay = lab.CumulativeReplay(2)
    history = lab.train(setup.network, setup.stream, learner, replay, **options)
    np.testing.assert_allclose(table["accuracy"], history.accuracy[:, 0], atol=1e-12)
    changes = {"method": "corrected", "epochs": 2, "refresh": "epoch", "gamma": 30.0}
    ((_, one),) = train_networks([cifar(reshuffle=True, **changes)])
    ((_, other),) = train_networks([cifar(reshuffle=False, **changes)])
    assert one.equals(other, null_equal=True)


def test_a_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """Alone, and with others: each set of networks has a file of its own."""
    configs, path = [cifar(seed=1), cifar(seed=2)], tmp_path / "checkpoint.safetensors"
    whole = [table for _, table in train_networks(configs, path)]
    list(train_networks(configs[:1], path))
    one, other = sorted(file.name for file in tmp_path.glob("checkpoint*"))
    assert (one[:11], other) == ("checkpoint-", path.name)
    refuse = Mock(side_effect=AssertionError("it was trained again"))
    monkeypatch.setattr("retarget.lab.training._learn_task", refuse)
    again = [table for _, table in train_networks(configs, path)]
    assert all(a.equals(b, null_equal=True) for a, b in zip(whole, again, strict=True))
    with pytest.raises(AssertionError, match="it was trained again"):
        list(train_networks(configs[1:], path.with_stem("other")))


def test_a_diverging_run_leaves_the_others():
    configs = [cifar(method="ewc", lr=lr, strength=0.5) for lr in (1e12, 0.02, 1e9)]
    tables = dict(train_networks(configs))
    good = tables.pop(configs[1])
    ((_, alone),) = train_networks(configs[1:2])
    np.testing.assert_allclose(good["accuracy"], alone["accuracy"], atol=1e-12)
    assert set(tables) == {configs[0], configs[2]} == set(dict(train_networks(configs[::2])))
    for table in tables.values():
        assert table.schema == good.schema
        assert table.select("samples", "tasks_learned").rows() == [(40, 5)]
        assert table["accuracy"].is_nan().all()
        assert np.isnan(networks.accuracy_matrices(table.with_columns(seed=0))).all()


# Figures and tables of made numbers


def evaluated(case, tasks=3, per_task=1, **labels):
    """What two runs of a case leave: their accuracies, `per_task` times in each task."""
    tables, steps = [], np.arange(per_task * tasks + 1)
    for seed in (0, 1):
        rng = np.random.default_rng([seed, len(case), *(int(1e6 * v) for v in labels.values())])
        of_tasks = rng.uniform(size=(len(steps), tasks))
        columns = {"case": case, "seed": seed, **labels, "data": "made", "samples": 4 * steps}
        columns |= {"passes": 2 * steps / steps[-1], "tasks_learned": steps // per_task}
        columns |= {"accuracy": of_tasks.mean(1), "task_accuracy": of_tasks.tolist()}
        tables.append(pl.DataFrame(columns | {"kept_bytes": 1000}))
    return pl.concat(tables)


def last_of(table):
    return table["accuracy"].to_numpy().reshape(2, -1)[:, -1]


def test_curves_are_drawn_and_summed_up():
    cases = {case: evaluated(case) for case in ("vanilla SGD", "EWC", "mine")}
    table = pl.concat(cases.values())
    (shown,) = networks.summarize_curves(table)
    assert shown.title == "made: mean ± SEM over 2 seeds, at the end"
    headers = ["case", "accuracy", "less vanilla SGD's", "forgetting", "backward transfer"]
    assert [column.header for column in shown.columns] == headers
    rows = list(zip(*(column.cells for column in shown.columns), strict=True))
    for row, (case, part) in zip(rows, cases.items(), strict=True):
        matrices = np.array(part["task_accuracy"].to_list()).reshape(2, 4, 3)[:, 1:]
        np.testing.assert_array_equal(networks.accuracy_matrices(part), matrices)
        gain = last_of(part) - last_of(cases["vanilla SGD"])
        measured = lab.forgetting(matrices), lab.backward_transfer(matrices)
        assert row == (case, *map(mean_and_error, (last_of(part), gain, *measured)))
    alone = networks.summarize_curves(table.filter(pl.col("case") != "vanilla SGD"))[0]
    assert [column.header for column in alone.columns][2] == "forgetting"
    assert networks.task_ends(table) == [4, 8, 12]
    (axes,) = networks.draw_curves(table).axes
    assert (axes.get_title(), axes.get_xlabel()) == ("made", "tasks learned")
    axes.set_xlim(1, 3)
    assert all(tick == int(tick) for tick in axes.get_xticks())
    for line, part in zip(axes.get_lines(), cases.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), range(1, 4))  # nothing before the first
        accuracies = part["accuracy"].to_numpy().reshape(2, 4)
        np.testing.assert_allclose(line.get_ydata(), accuracies.mean(0)[1:])


def test_axes_of_curves():
    table = evaluated("vanilla SGD", tasks=1, per_task=4)  # two passes
    (shown,) = networks.summarize_curves(table)
    assert shown.columns[2].header == "after one pass"
    once = table.filter(samples=8)["accuracy"].to_numpy()
    assert list(shown.columns[2].cells) == [mean_and_error(once)]
    assert networks.draw_curves(table).axes[0].get_xlabel() == "passes over the data"
    (axes,) = networks.draw_curves(evaluated("mine", per_task=2)).axes
    assert axes.get_xlabel().startswith("samples seen")
    # a line at the end of each task but the last
    assert [line.get_xdata()[0] for line in axes.lines[1:]] == [8, 16]


def test_values_of_a_case_are_compared_over_seeds():
    values = (("mine", 2), ("mine", 5), ("vanilla SGD", 5))
    two, five, plain = parts = [evaluated(case, capacity=number) for case, number in values]
    table = pl.concat([two, five.filter(seed=1), plain])
    lines = networks.draw_curves(table).axes[0].lines
    names = ["mine, capacity 2", "mine, capacity 5", "vanilla SGD"]
    assert [line.get_label() for line in lines] == names
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(parts)
    (shown,) = networks.summarize_curves(table)
    assert list(shown.columns[0].cells) == names
    gain = last_of(five)[1] - last_of(plain)[1]
    assert list(shown.columns[2].cells)[1] == f"{gain:.3f}"


def test_sweeps_have_panels_and_crosses():
    rates, gammas = [0.003, 0.01], [100.0, 300.0]

    def runs(case, **values):
        return evaluated(
            case, **{"lr": 0.01, "gamma": 1.0, "strength": 0.0, "capacity": 5} | values
        )

    swept = [runs("G corrected", lr=lr, gamma=gamma) for lr in rates for gamma in gammas]
    lost = runs("F EWC", strength=1e3).with_columns(accuracy=np.nan).group_by("seed").last()
    parts = [runs("plain"), runs("F EWC", strength=1.0), lost, *swept]
    parts += [runs("mine", capacity=number) for number in (2, 5)]
    table = pl.concat(part.select(parts[0].columns) for part in parts)
    (shown,) = networks.summarize_sweeps(table)
    assert list(shown.columns[1].cells) == [
        "lr = 0.01", "strength = 1", "strength = 1000", "lr = 0.003, gamma = 100",
        "lr = 0.003, gamma = 300", "lr = 0.01, gamma = 100", "lr = 0.01, gamma = 300",
        "capacity = 2", "capacity = 5",
    ]  # fmt: skip
    assert list(shown.columns[2].cells) == ["2"] * 9
    cells = list(shown.columns[3].cells)
    assert cells[2:4] == ["2 of 2 diverged", mean_and_error(last_of(swept[0]))]
    figure = networks.draw_sweeps(table)
    titles = [axes.get_title("left").partition("   ")[2] for axes in figure.axes]
    assert titles == ["nothing swept", "EWC", "corrected", "mine"]
    assert figure.axes[3].get_xlabel().strip() == "capacity"
    (cross,) = (line for line in figure.axes[1].lines if line.get_label() == "diverged")
    assert list(cross.get_xdata()) == [1e3]
    for place, drawn in enumerate(figure.axes[2].containers):
        rate, mean = (np.asarray(values, float) for values in drawn.lines[0].get_data())
        np.testing.assert_array_equal(rate, rates)
        np.testing.assert_allclose(mean, [last_of(part).mean() for part in swept[place::2]])
    labels = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert labels == [rf"$\gamma$ = {gamma:g}" for gamma in gammas]
    for view in (networks.summarize_curves, networks.summarize_memory):
        (shown,) = view(table)
        assert "2 of 2 diverged" in [list(column.cells)[2] for column in shown.columns]
    assert len(networks.draw_memory(table).axes) == 2


@pytest.mark.slow
def test_fig3b_then_fig6eh_very_small(tmp_path):
    outcome = run_experiment(small("fig3b", seeds=[1]), tmp_path)
    assert (outcome.computed, outcome.reused) == (5, 0)
    assert outcome.table["accuracy"].is_between(0, 1).all()
    grids = {"E vanilla SGD": {"lr": [0.01]}, "F EWC": {"strength": [100.0]}}
    grids |= {"G corrected": {"lr": [0.003, 0.01], "gamma": [100.0, 300.0]}}
    grids |= {"H cumulative replay": {"lr": [0.01]}}
    again = run_experiment(only(small("fig6eh", seeds=[1]), grids), tmp_path)
    assert (again.computed, again.reused) == (3, 4)  # a point of each panel is done
    assert len(networks.final_rows(again.table)) == 7


def test_fig3c_repeats_epochs_in_random_order(tmp_path):
    experiment = small("fig3c", "evaluate_every=20", "epochs=2", seeds=[0])
    table = run_experiment(only(experiment, {"vanilla SGD": {}, "corrected": {}}), tmp_path).table
    assert table["samples"].unique().sort().to_list() == [0, 20, 40]
    assert table["passes"].unique().sort().to_list() == [0.0, 1.0, 2.0]
    assert table["tasks_learned"].max() == 1


def test_mean_and_standard_error():
    table = pl.DataFrame({"x": [1, 1, 1, 2, 3, 3], "y": [1.0, 2.0, 6.0, 4.0, 1.0, float("nan")]})
    curve = mean_and_sem(table, ["x"], "y")
    np.testing.assert_allclose(curve["mean"], [3, 4, np.nan])
    np.testing.assert_allclose(curve["sem"], [np.std([1, 2, 6], ddof=1) / np.sqrt(3), 0, np.nan])


# From the command


def test_missing_data_do_not_stop_other_figures(command, tmp_path, monkeypatch):
    """fig6 is one figure of two data sets."""
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path / "nothing here"))
    code, shown = command("reproduce", "fig6", "fig1", "--quick", "--out", tmp_path / "out")
    assert code == 2
    assert "retarget data get cifar10" in shown
    assert "retarget data get resnet18" in shown
    assert (tmp_path / "out" / "fig1" / "fig1.png").is_file()


@pytest.mark.slow
def test_a_stand_in_from_the_command(command, monkeypatch, tmp_path, made_data):
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path / "nothing here"))
    arguments = ["reproduce", "fig3b", "--data", "standin", "--seed=2", "--out", tmp_path / "out"]
    arguments += [f"--set={change}" for change in CORE50_SMALL] + ["--backbone", BACKBONE]
    code, shown = command(*arguments)
    assert code == 2
    assert "Error: stand-in: core50_standin.zip not found in" in shown
    code, shown = command(*arguments, "--data-dir", made_data)
    assert code == 0
    assert "Runs computed: 5, already done: 0" in shown
    assert "fig3b-standin: " in shown
    table = pl.read_parquet(tmp_path / "out" / "fig3b-standin" / "fig3b-standin.parquet")
    assert set(table["data"]) == {STAND_IN}
    for option in ("--data=core51", "--backbone=vgg"):
        assert command("reproduce", "fig3b", option)[0] == 2


# The real data


@pytest.mark.slow
@pytest.mark.skipif(
    not CIFAR10.files[0].present(data_folder(REAL_DATA)),
    reason="RETARGET_DATA names no folder with CIFAR-10",
)
def test_the_correction_forgets_less_on_the_real_images(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", REAL_DATA)
    sizes = parse_changes(["per_class=200", "test_per_class=200", "evaluate_every=400"], [0, 1, 2])
    experiment = load_experiment("fig3a").changed(sizes)
    experiment = only(experiment, {"vanilla SGD": {}, "corrected, summed loss": {}})
    table = run_experiment(experiment, tmp_path).table
    final = {c: networks.final_accuracies(table.filter(case=c)) for c in experiment.cases}
    gain = final["corrected, summed loss"] - final["vanilla SGD"]
    assert gain.min() > 0
    assert gain.mean() > 0.02


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(REAL_DATA or "nowhere") / pretrained.STAND_IN_BACKBONE).is_file(),
    reason="RETARGET_DATA names no folder with the stand-in",
)
def test_the_correction_on_the_stand_in(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", REAL_DATA)
    experiment = load_experiment("fig3b").where_it_fits(data="standin")
    experiment = experiment.changed(parse_changes(["frames_per_session=4"], [0, 1]))
    table = run_experiment(experiment, tmp_path).table
    final = {c: networks.final_accuracies(table.filter(case=c)) for c in experiment.cases}
    assert (final["corrected"] > final["vanilla SGD"] + 0.03).all()
    assert (final["corrected"] > final["EWC"]).all()
    assert (final["corrected"] < final["cumulative replay"]).all()
