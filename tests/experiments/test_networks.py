"""Networks on made images in the formats of CIFAR-10 and CORe50; on real ones where they are."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import continual as lab
from retarget.data.cifar10 import CIFAR10
from retarget.data.core50 import load_core50, new_classes_tasks
from retarget.data.features import prepared
from retarget.data.fetch import data_folder
from retarget.errors import InvalidInputError, MissingDataError
from retarget.experiments.experiment import families
from retarget.experiments.figures import cifar10, core50, networks
from retarget.experiments.figures.over_seeds import mean_and_error, mean_and_sem
from retarget.experiments.figures.training import methods_of, train_networks, trained_together
from retarget.experiments.reader import (
    load_experiment,
    parse_changes,
    parse_experiment,
)
from retarget.experiments.runs.run import run_experiment
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


@pytest.mark.parametrize(
    ("make", "shapes", "first"),
    [
        (
            partial(cifar10.cifar_net, 2),
            [(32, 3, 3, 3), (64, 32, 3, 3), (2, 3136)],
            (nn.Conv2d, 3, 32, 3),
        ),
        (partial(core50.head, 512), [(100, 512), (50, 100)], (nn.Linear, 512, 100)),
    ],
    ids=["CIFAR-10", "CORe50"],
)
def test_the_networks_are_the_papers_and_their_seeds_own(make, shapes, first):
    state = torch.random.get_rng_state()
    one, same, other = make(seed=5), make(seed=5), make(seed=6)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [tuple(p.shape) for p in one.parameters()] == shapes
    assert torch.equal(one[0].weight, same[0].weight)
    assert not torch.equal(one[0].weight, other[0].weight)
    torch.manual_seed(5)
    layer, *sizes = first
    assert torch.equal(one[0].weight, layer(*sizes, bias=False).weight)


def test_the_stream_is_new_classes_on_features_of_the_frames(made_data):
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


def test_a_stand_in_says_so_and_what_is_missing(tmp_path, monkeypatch):
    standin, official = pictures(data="standin").setup(), pictures().setup()
    assert standin.data == STAND_IN
    assert not torch.equal(standin.stream.train.inputs, official.stream.train.inputs)
    with pytest.raises(MissingDataError, match="stand-in: resnet18-tiny150-.* not found in"):
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
    with pytest.raises(InvalidInputError, match="test_per_class is 4, but a class here has 3"):
        cifar(test_per_class=4).setup()
    with pytest.raises(InvalidInputError, match="per_class is 16, but there are 15 samples"):
        cifar(per_class=16).setup()


def test_options_reach_the_methods():
    """By the name of each method, which is that of its class unless it is given here."""
    names = {"er": "ER", "ewc": "EWC", "cumulative": "CumulativeReplay", "led": "Led"}
    for method in ("vanilla", "label smoothing", "der", "der++", "tangent", "last layer", "joint"):
        names[method] = method.title().replace(" ", "").replace("Der", "DER")
    for method, expected in names.items():
        assert [each.name for each in methods_of([cifar(method=method)])] == [expected]
    changes = {"gamma": 7.0, "refresh": "epoch", "parts": "online", "assumed_reduction": "sum"}
    corrected, der = methods_of([cifar(method="der, corrected", **changes)])
    assert (corrected.gamma, corrected.block_size, corrected.assumed_reduction) == (7.0, 8, "sum")
    kernel = corrected.kernel
    assert (kernel.func, kernel.keywords["precision"]) == (rt.EmpiricalNTK, "split")
    assert corrected.options == {
        "refresh": "epoch", "kind": "iterative", "ridge": 0.0, "parts": "online",
        "first_block": "plain",
    }  # fmt: skip
    assert der.capacity == 6
    (ewc,) = methods_of([cifar(method="ewc", strength=s) for s in (1.0, 5.0)])
    assert ewc.strengths == [1.0, 5.0]


def test_on_a_gpu_runs_that_differ_in_seed_rate_or_strength_train_at_once():
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
        data = cifar10._data(data_folder(None), 3, "cpu")
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


def test_replay_and_correction_reach_the_lab_as_the_case_says():
    """Replay passes over everything as often as asked; the correction keeps its order."""
    setup = pictures().setup()
    replayed = pictures(method="cumulative", replay_passes=2, reshuffle=True)
    ((_, table),) = train_networks([replayed])
    history = lab.train(
        setup.network, setup.stream, rt.SGD(0.01, 20, reduction="mean"),
        lab.CumulativeReplay(2), reshuffle=True,
    )  # fmt: skip
    np.testing.assert_allclose(table["accuracy"], history.accuracy[:, 0], atol=1e-12)
    changes = {"method": "corrected", "epochs": 2, "refresh": "epoch", "gamma": 30.0}
    one, other = (
        table
        for reshuffle in (True, False)
        for _, table in train_networks([pictures(reshuffle=reshuffle, **changes)])
    )
    assert one.equals(other, null_equal=True)


def test_a_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """Alone, and with others: each set of networks has a file of its own."""
    configs, path = [cifar(seed=1), cifar(seed=2)], tmp_path / "checkpoint.safetensors"
    whole = [table for _, table in train_networks(configs, path)]
    list(train_networks(configs[:1], path))
    names = sorted(file.name for file in tmp_path.glob("checkpoint*"))
    assert len(names) == 2
    assert names[0].startswith("checkpoint-")
    assert names[1] == path.name

    def refuse(*_):
        raise AssertionError("it was trained again")

    monkeypatch.setattr("retarget.continual.training._learn_task", refuse)
    again = [table for _, table in train_networks(configs, path)]
    for one, other in zip(whole, again, strict=True):
        assert one.equals(other, null_equal=True)
    with pytest.raises(AssertionError, match="it was trained again"):
        list(train_networks(configs[1:], path.with_stem("other")))


def test_a_run_that_diverges_leaves_the_others_as_they_are():
    configs = [cifar(method="ewc", lr=lr, strength=0.5) for lr in (0.01, 1e12, 0.02, 1e9)]
    tables = dict(train_networks(configs))
    assert set(tables) == set(configs)
    for one in configs:
        table = tables[one]
        if one.lr > 1:
            assert table.select("samples", "tasks_learned").rows() == [(40, 5)]
            assert table["accuracy"].is_nan().all()
            assert np.isnan(networks.accuracy_matrices(table.with_columns(seed=0))).all()
        else:
            ((_, alone),) = train_networks([one])
            np.testing.assert_allclose(table["accuracy"], alone["accuracy"], atol=1e-12)
    assert tables[configs[0]].schema == tables[configs[1]].schema


# Whole figures, very small


def test_fig3a_then_fig6ad_on_made_images(tmp_path):
    experiment = small("fig3a", seeds=[1])
    outcome = run_experiment(experiment, tmp_path)
    assert (outcome.computed, outcome.reused) == (7, 0)
    table = outcome.table
    assert table.columns[:2] == ["case", "seed"]
    assert networks.task_ends(table) == [4, 8, 12, 16, 20]
    assert table["accuracy"].is_between(0, 1).all()
    for case in experiment.cases:
        part = table.filter(case=case)
        matrices, final = networks.accuracy_matrices(part), networks.final_accuracies(part)
        assert matrices.shape == (1, 5, 5)
        np.testing.assert_allclose(matrices[:, -1].mean(1), final)
    (shown,) = networks.summarise_curves(table)
    headers = [column.header for column in shown.columns]
    assert headers[2:] == ["less vanilla SGD's", "forgetting", "backward transfer"]
    gain, plain = (
        networks.final_accuracies(table.filter(case=case)) for case in ("EWC", "vanilla SGD")
    )
    gains = dict(zip(experiment.cases, shown.columns[2].cells, strict=True))
    assert gains["EWC"] == mean_and_error(gain - plain)
    alone = table.filter(pl.col("case") != "vanilla SGD")
    assert [c.header for c in networks.summarise_curves(alone)[0].columns][2] == "forgetting"

    grids = {"A corrected": {}, "A corrected, fixed kernel": {}, "A vanilla SGD": {}}
    grids |= {"B vanilla SGD": {"lr": [0.003, 0.01]}, "C EWC": {"strength": [100.0]}}
    grids |= {"D vanilla SGD": {"lr": [0.01]}}
    sweeps = only(small("fig6ad", "epochs=1", seeds=[1]), grids)
    again = run_experiment(sweeps, tmp_path)
    # the three of A, one of which is a point of B, and the one of C are those of fig3a
    assert (again.computed, again.reused) == (2, 4)
    assert len(networks.final_rows(again.table)) == 7
    (shown,) = networks.summarise_sweeps(again.table)
    assert shown.row_count == 7
    a, b = (again.table.filter(case=case, lr=0.01) for case in ("A vanilla SGD", "B vanilla SGD"))
    assert a.drop("case").equals(b.drop("case"), null_equal=True)


def test_fig3c_repeats_epochs_in_random_order(tmp_path):
    experiment = small("fig3c", "evaluate_every=20", "epochs=2", seeds=[0, 1])
    table = run_experiment(only(experiment, {"vanilla SGD": {}, "corrected": {}}), tmp_path).table
    assert table["samples"].unique().sort().to_list() == [0, 20, 40]
    assert table["passes"].unique().sort().to_list() == [0.0, 1.0, 2.0]
    assert table["tasks_learned"].max() == 1
    assert networks.curve_axis(table)[0] == "passes"
    (shown,) = networks.summarise_curves(table)
    assert shown.columns[3].header == "after one pass"
    once = table.filter(case="vanilla SGD", samples=20)["accuracy"].to_numpy()
    assert next(iter(shown.columns[3].cells)) == mean_and_error(once)


def test_fig3b_then_fig6eh_on_made_pictures(tmp_path):
    experiment = small("fig3b", seeds=[1])
    outcome = run_experiment(experiment, tmp_path)
    assert (outcome.computed, outcome.reused) == (5, 0)
    other_seed = outcome.table.with_columns(seed=pl.lit(2), accuracy=pl.col("accuracy") / 2)
    table = pl.concat([outcome.table, other_seed], how="vertical_relaxed")
    assert networks.curve_axis(table) == ("tasks_learned", "tasks learned")
    assert sorted(table["tasks_learned"].unique()) == list(range(10))
    (shown,) = networks.summarise_curves(table)
    assert shown.row_count == 5
    assert shown.title.startswith("CORe50, features of support.core50_backbone:made: mean ± SEM")
    (axes,) = networks.draw_curves(table).axes
    assert axes.get_title() == "CORe50, features of support.core50_backbone:made"
    axes.set_xlim(1, 5)
    assert all(tick == int(tick) for tick in axes.get_xticks())
    for line, case in zip(axes.get_lines(), experiment.cases, strict=True):
        part = table.filter(pl.col("case") == case, pl.col("tasks_learned") > 0)
        means = part.group_by("tasks_learned", maintain_order=True).agg(pl.col("accuracy").mean())
        np.testing.assert_array_equal(line.get_xdata(), range(1, 10))
        np.testing.assert_allclose(line.get_ydata(), means["accuracy"])

    gammas, rates = [100.0, 300.0], [0.003, 0.01]
    grids = {
        "E vanilla SGD": {"lr": [0.01]},
        "F EWC": {"strength": [100.0]},
        "G corrected": {"lr": rates, "gamma": gammas},
        "H cumulative replay": {"lr": [0.01]},
    }
    again = run_experiment(only(small("fig6eh", seeds=[1]), grids), tmp_path)
    assert (again.computed, again.reused) == (3, 4)  # a point of each panel is done
    (shown,) = networks.summarise_sweeps(again.table)
    assert shown.row_count == 7
    assert "lr = 0.003, gamma = 300" in list(shown.columns[1].cells)
    figure = networks.draw_sweeps(again.table)
    titles = [axes.get_title("left").partition("   ")[2] for axes in figure.axes]
    assert titles == ["vanilla SGD", "EWC", "corrected", "cumulative replay"]
    final = networks.final_rows(again.table).filter(case="G corrected").sort("lr")
    for drawn, gamma in zip(figure.axes[2].containers, gammas, strict=True):
        rate, mean = (np.asarray(values, float) for values in drawn.lines[0].get_data())
        np.testing.assert_array_equal(rate, rates)
        np.testing.assert_allclose(mean, final.filter(gamma=gamma)["accuracy"])
    labels = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert labels == [rf"$\gamma$ = {gamma:g}" for gamma in gammas]


DIVERGING = """
title = "rates"
seeds = [0, 1]
[parameters]
protocol = "domain pairs"
per_class = 4
test_per_class = 2
evaluate_every = 4
method = "vanilla"
[grid]
lr = [0.01, 1e30]
"""


def test_a_rate_that_diverges_is_drawn_and_said(tmp_path):
    experiment = parse_experiment("rates", f'family = "cifar curves"\n{DIVERGING}')
    table = run_experiment(experiment, tmp_path).table
    good, bad = (table.filter(lr=lr) for lr in (0.01, 1e30))
    assert not np.isnan(networks.final_accuracies(good)).any()
    assert np.isnan(networks.final_accuracies(bad)).all()
    assert networks.accuracy_matrices(bad).shape == (2, 5, 5)
    assert np.isnan(networks.accuracy_matrices(bad)).all()
    for view in ("curves", "sweeps", "memory"):
        family = families()[f"cifar {view}"]
        (shown,) = family.summarise(table)
        assert "2 of 2 diverged" in [list(column.cells)[1] for column in shown.columns]
        axes = family.draw(table).axes[0]
        if view == "curves":  # along the samples, a line at the end of each task but the last
            assert [line.get_xdata()[0] for line in axes.lines[2:]] == [8, 16, 24, 32]
        if view == "sweeps":  # a cross at the rate that diverged
            (cross,) = (line for line in axes.lines if line.get_label() == "diverged")
            assert list(cross.get_xdata()) == [1e30]


def test_mean_and_standard_error():
    table = pl.DataFrame({"x": [1, 1, 1, 2, 3, 3], "y": [1.0, 2.0, 6.0, 4.0, 1.0, float("nan")]})
    curve = mean_and_sem(table, ["x"], "y")
    np.testing.assert_allclose(curve["mean"], [3, 4, np.nan])
    np.testing.assert_allclose(curve["sem"], [np.std([1, 2, 6], ddof=1) / np.sqrt(3), 0, np.nan])


# From the command


def test_figures_whose_data_are_missing_do_not_stop_the_others(command, tmp_path, monkeypatch):
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
    sizes = [f"--set={change}" for change in CORE50_SMALL]
    arguments = ("reproduce", "fig3b", "--data", "standin", "--seed=2", *sizes)
    arguments += ("--backbone", BACKBONE, "--out", tmp_path / "out")
    code, shown = command(*arguments)
    assert code == 2
    assert "Error: stand-in: core50_standin.zip not found in" in shown
    code, shown = command(*arguments, "--data-dir", made_data)
    assert code == 0
    assert "Runs computed: 5, found finished: 0" in shown
    assert "fig3b-standin: " in shown
    table = pl.read_parquet(tmp_path / "out" / "fig3b-standin" / "fig3b-standin.parquet")
    assert set(table["data"]) == {STAND_IN}
    for option in ("--data=core51", "--backbone=vgg"):
        code, shown = command("reproduce", "fig3b", option)
        assert code == 2


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
    not (Path(REAL_DATA or "nowhere") / core50.STAND_IN_BACKBONE).is_file(),
    reason="RETARGET_DATA names no folder with the stand-in",
)
def test_the_correction_is_between_plain_sgd_and_replay_on_the_stand_in(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", REAL_DATA)
    experiment = load_experiment("fig3b").where_it_fits(data="standin")
    experiment = experiment.changed(parse_changes(["frames_per_session=4"], [0, 1]))
    table = run_experiment(experiment, tmp_path).table
    final = {c: networks.final_accuracies(table.filter(case=c)) for c in experiment.cases}
    assert (final["corrected"] > final["vanilla SGD"] + 0.03).all()
    assert (final["corrected"] > final["EWC"]).all()
    assert (final["corrected"] < final["cumulative replay"]).all()
