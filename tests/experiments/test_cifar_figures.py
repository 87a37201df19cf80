"""Fig. 3A, 3C and 6 on made images in CIFAR-10's format; on the real ones where they are."""

import os
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import continual as lab
from retarget.data.cifar10 import CIFAR10
from retarget.data.fetch import data_folder
from retarget.errors import InvalidInputError
from retarget.experiments.experiment import families
from retarget.experiments.figures import cifar10, core50, fig3, fig6, training
from retarget.experiments.figures.cifar10 import cifar_net
from retarget.experiments.figures.over_seeds import mean_and_error, mean_and_sem
from retarget.experiments.figures.training import trained_together
from retarget.experiments.reader import (
    load_experiment,
    named_experiments,
    parse_changes,
    parse_experiment,
)
from retarget.experiments.runs.run import run_experiment
from support.command_line import run as run_command
from support.made_cifar10 import write_images
from support.made_runs import identity_of

REAL_CIFAR = os.environ.get("RETARGET_DATA")  # before the fixtures point it elsewhere
SMALL = ["per_class=8", "test_per_class=3", "evaluate_every=40"]


@pytest.fixture(scope="module")
def made_cifar(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar")
    write_images(folder, per_class=3)
    return folder


@pytest.fixture(autouse=True)
def own_folder(made_cifar, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", str(made_cifar))


def small(name, *changes, seeds=(0, 1)):
    return load_experiment(name).changed(parse_changes([*SMALL, *changes], seeds))


def key(run):
    return identity_of(run.config, families()["cifar curves"]).key


def only(experiment, *cases):
    return experiment.model_copy(update={"cases": {c: experiment.cases[c] for c in cases}})


# The plan of the experiments, without training


def test_fig3a_is_the_papers_cases_for_every_seed():
    experiment = load_experiment("fig3a")
    planned = experiment.planned_runs()
    assert len(planned) == 7 * 10
    assert {run.labels["case"] for run in planned} == set(experiment.cases)
    assert all(set(run.labels) == {"case", "seed"} for run in planned)
    by_case = {run.labels["case"]: run.config for run in planned if run.labels["seed"] == 3}
    assert by_case["vanilla SGD"].model_dump(
        include={"seed", "method", "lr", "reduction", "batch_size", "per_class", "epochs"}
    ) == {
        "seed": 3, "method": "vanilla", "lr": 0.01, "reduction": "mean", "batch_size": 4,
        "per_class": 3000, "epochs": 1,
    }  # fmt: skip
    paper, summed = by_case["corrected"], by_case["corrected, summed loss"]
    assert (paper.reduction, paper.assumed_reduction, paper.refresh) == ("mean", "sum", "task")
    assert (summed.reduction, summed.assumed_reduction) == ("sum", None)
    assert by_case["corrected, fixed kernel"].refresh == "never"
    assert by_case["offline prediction, uncorrected"].kind == "distilled"
    for name in named_experiments("fig3"):  # every case has a line of its own
        lines = [fig3.LINES[case] for case in load_experiment(name).cases]
        assert len(set(lines)) == len(lines) > 0


def test_fig6ad_has_grids_and_seeds_of_single_cases():
    planned = load_experiment("fig6ad").planned_runs()
    counts = {}
    for run in planned:
        counts[run.labels["case"]] = counts.get(run.labels["case"], 0) + 1
        assert set(run.labels) == {"case", "seed", "lr", "strength"}
        assert run.labels["lr"] == run.config.lr
        assert run.labels["strength"] == run.config.strength
    assert counts == {
        "A corrected": 10, "A corrected, fixed kernel": 10, "A vanilla SGD": 10,
        "B vanilla SGD": 70, "C EWC": 60, "D vanilla SGD": 35,
    }  # fmt: skip
    done = {key(run) for run in load_experiment("fig3a").planned_runs()}
    shared = {run.labels["case"] for run in planned if key(run) in done}
    assert shared == set(counts) - {"D vanilla SGD"}  # what fig3a has done is found
    random_order = [run.config for run in planned if run.labels["case"] == "D vanilla SGD"]
    assert {config.seed for config in random_order} == set(range(5))
    assert {config.protocol for config in random_order} == {"shuffled"}


def test_a_setting_is_stronger_than_a_case_and_a_grid():
    experiment = load_experiment("fig6ad").changed(parse_changes(["lr=0.5"], seeds=[7]))
    planned = experiment.planned_runs()
    assert {run.config.lr for run in planned} == {0.5}
    assert {run.config.seed for run in planned} == {7}
    assert len(planned) == 3 + 1 + 6 + 1
    assert all(run.labels["lr"] == 0.5 for run in planned)


def test_the_device_is_a_setting_of_networks_only():
    assert {
        run.device for run in load_experiment("fig3a").where_it_fits(device="cpu:0").runs()
    } == {"cpu:0"}
    toy = load_experiment("fig1")
    assert toy.where_it_fits(device="cpu") is toy


def test_a_device_that_is_not_there(monkeypatch, capsys, tmp_path):
    for device in ("gpu", "cuda:99"):
        arguments = ("reproduce", "fig1", "--quick", "--device", device, "--out", tmp_path)
        code, shown = run_command(monkeypatch, capsys, *arguments)
        assert code == 2
        assert f"Error: the device '{device}' cannot be used here: " in shown
    assert not list(tmp_path.iterdir())


# The parts of a run


@pytest.mark.parametrize(
    ("make", "shapes", "first"),
    [
        (partial(cifar_net, 2), [(32, 3, 3, 3), (64, 32, 3, 3), (2, 3136)], (nn.Conv2d, 3, 32, 3)),
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


def config(**changes):
    known = {
        "seed": 0, "protocol": "domain pairs", "per_class": 8, "test_per_class": 3,
        "evaluate_every": 40, "method": "vanilla", "lr": 0.01, "block_size": 8, "capacity": 6,
    }  # fmt: skip
    return cifar10.CifarRun(**(known | changes))


def test_runs_at_once_are_the_runs_alone():
    """Every seed and rate with its own network, order and randomness, whoever else trains."""
    configs = [config(method="er", seed=seed, lr=lr) for seed, lr in ((0, 0.01), (4, 0.02))]
    together = dict(fig3.CIFAR_CURVES.run(configs))
    assert list(together) == configs
    for one in configs:
        data = cifar10._data(cifar10.data_folder(None), 3, "cpu")
        stream, network = lab.domain_pairs(data, one.seed, 8), cifar_net(2, one.seed)
        learner = rt.SGD(one.lr, 4, reduction="mean")
        history = lab.train(
            network, stream, learner, lab.ER(6), evaluate_every=40, seeds=[one.seed]
        )
        table = together[one]
        assert table["samples"].to_list() == [0, 16, 32, 40, 48, 64, 80]
        assert history.samples.tolist() == table["samples"].to_list()
        assert table["tasks_learned"].to_list() == [0, 1, 2, 2, 3, 4, 5]
        np.testing.assert_allclose(table["accuracy"], history.accuracy[:, 0], atol=1e-12)
        np.testing.assert_allclose(table["loss"], history.loss[:, 0], rtol=1e-4)
        np.testing.assert_allclose(
            fig3.accuracy_matrices(table.with_columns(seed=one.seed)), history.matrix
        )


def test_options_reach_the_methods():
    """By the name of each method, which is that of its class but where it is said here."""
    names = {"er": "ER", "ewc": "EWC", "cumulative": "CumulativeReplay", "led": "Led"}
    for method in ("vanilla", "label smoothing", "der", "der++", "tangent", "last layer", "joint"):
        names[method] = method.title().replace(" ", "").replace("Der", "DER")
    for method, expected in names.items():
        assert [each.name for each in training.methods_of([config(method=method)])] == [expected]
    changes = {"gamma": 7.0, "refresh": "epoch", "parts": "online", "assumed_reduction": "sum"}
    corrected, der = training.methods_of([config(method="der, corrected", **changes)])
    assert (corrected.gamma, corrected.block_size, corrected.assumed_reduction) == (7.0, 8, "sum")
    kernel = corrected.kernel
    assert (kernel.func, kernel.keywords["precision"]) == (rt.EmpiricalNTK, "split")
    assert corrected.options == {
        "refresh": "epoch", "kind": "iterative", "ridge": 0.0, "parts": "online",
        "first_block": "plain",
    }  # fmt: skip
    assert der.capacity == 6
    (ewc,) = training.methods_of([config(method="ewc", strength=s) for s in (1.0, 5.0)])
    assert ewc.strengths == [1.0, 5.0]


def test_more_images_than_there_are():
    with pytest.raises(InvalidInputError, match="test_per_class is 4, but a class here has 3"):
        next(fig3.CIFAR_CURVES.run([config(test_per_class=4)]))
    with pytest.raises(InvalidInputError, match="per_class is 16, but there are 15 samples"):
        next(fig3.CIFAR_CURVES.run([config(per_class=16)]))


def test_on_a_gpu_runs_that_differ_in_seed_rate_or_strength_train_at_once():
    assert trained_together(config()) is None  # on the CPU, alone
    gpu = trained_together(config(device="cuda"))
    for changes in ({"seed": 9}, {"lr": 0.5}, {"strength": 2.0}):
        assert trained_together(config(device="cuda", **changes)) == gpu
    for changes in ({"gamma": 9.0}, {"method": "er"}, {"per_class": 9}):
        assert trained_together(config(device="cuda", **changes)) != gpu


def test_a_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """Alone, and with others: each set of networks has a file of its own."""
    configs, path = [config(seed=1), config(seed=2)], tmp_path / "checkpoint.safetensors"
    whole = [table for _, table in fig3.CIFAR_CURVES.run(configs)]
    list(fig3.CIFAR_CURVES.run(configs, path))
    list(fig3.CIFAR_CURVES.run(configs[:1], path))
    names = sorted(file.name for file in tmp_path.iterdir())
    assert len(names) == 2
    assert names[1] == path.name
    assert names[0].startswith("checkpoint-")

    def refuse(*_):
        raise AssertionError("it was trained again")

    monkeypatch.setattr("retarget.continual.training._learn_task", refuse)
    again = [table for _, table in fig3.CIFAR_CURVES.run(configs, path)]
    for one, other in zip(whole, again, strict=True):
        assert one.equals(other, null_equal=True)
    with pytest.raises(AssertionError, match="it was trained again"):
        list(fig3.CIFAR_CURVES.run(configs[1:], path.with_stem("other")))


def test_a_run_that_diverges_leaves_the_others_as_they_are():
    rates = (0.01, 1e12, 0.02, 1e9)
    configs = [config(method="ewc", lr=lr, strength=0.5) for lr in rates]
    tables = dict(fig3.CIFAR_CURVES.run(configs))
    assert set(tables) == set(configs)
    for one in configs:
        table = tables[one]
        if one.lr > 1:
            assert table["samples"].to_list() == [80]
            assert table["tasks_learned"].to_list() == [5]
            assert table["accuracy"].is_nan().all()
            assert np.isnan(fig3.accuracy_matrices(table.with_columns(seed=0))).all()
        else:
            alone = next(fig3.CIFAR_CURVES.run([one]))[1]
            np.testing.assert_allclose(table["accuracy"], alone["accuracy"], atol=1e-12)
    assert tables[configs[0]].schema == tables[configs[1]].schema


# Whole figures, very small


# Of every grid of fig6ad some values, among them those of fig3a.
FEWER = {
    "B vanilla SGD": {"lr": [0.003, 0.01]},
    "C EWC": {"strength": [10.0, 100.0]},
    "D vanilla SGD": {"lr": [0.003, 0.01]},
}


def test_fig3a_then_fig6ad_on_made_images(tmp_path):
    few = ["per_class=2", "test_per_class=2", "evaluate_every=16", "block_size=4"]
    experiment = load_experiment("fig3a").changed(parse_changes(few, seeds=[0, 1]))
    outcome = run_experiment(experiment, tmp_path)
    assert (outcome.computed, outcome.reused) == (14, 0)
    table = outcome.table
    assert table.columns[:2] == ["case", "seed"]
    assert fig3.task_ends(table) == [4, 8, 12, 16, 20]
    assert table["accuracy"].is_between(0, 1).all()
    for case in experiment.cases:
        part = table.filter(case=case)
        assert fig3.final_accuracies(part).shape == (2,)
        assert fig3.accuracy_matrices(part).shape == (2, 5, 5)
        np.testing.assert_allclose(
            fig3.accuracy_matrices(part)[:, -1].mean(1),
            fig3.final_accuracies(part),
        )
    (shown,) = fig3.summarise(table)
    assert shown.row_count == 7
    assert [column.header for column in shown.columns][2:] == [
        "less vanilla SGD's", "forgetting", "backward transfer",
    ]  # fmt: skip
    gain, plain = (
        fig3.final_accuracies(table.filter(case=case)) for case in ("EWC", "vanilla SGD")
    )
    place = list(experiment.cases).index("EWC")
    assert list(shown.columns[2].cells)[place] == mean_and_error(gain - plain)
    alone = table.filter(pl.col("case") != "vanilla SGD")
    assert [c.header for c in fig3.summarise(alone)[0].columns][2] == "forgetting"
    assert (tmp_path / "fig3a" / "fig3a.png").stat().st_size > 10_000

    sweeps = load_experiment("fig6ad").changed(parse_changes([*few, "epochs=1"], seeds=[1]))
    cases = {
        name: case.model_copy(update={"grid": FEWER.get(name, {})})
        for name, case in sweeps.cases.items()
    }
    sweeps = sweeps.model_copy(update={"cases": cases})
    planned = sweeps.planned_runs()
    again = run_experiment(sweeps, tmp_path)
    different = {key(run) for run in planned}
    # 3 cases of A (one of them also a point of B) and 1 of C are those of fig3a
    assert len(planned) == 3 + 2 + 2 + 2
    assert len(different) == len(planned) - 1
    assert (again.computed, again.reused) == (len(different) - 4, 4)
    assert len(fig6.final_rows(again.table)) == len(planned)
    (shown,) = fig6.summarise(again.table)
    assert shown.row_count == len(planned)
    a, b = (again.table.filter(case=case, lr=0.01) for case in ("A vanilla SGD", "B vanilla SGD"))
    assert a.drop("case").equals(b.drop("case"), null_equal=True)
    assert (tmp_path / "fig6ad" / "fig6ad.pdf").stat().st_size > 5_000


def test_fig3c_repeats_epochs_in_random_order(tmp_path):
    few = ["per_class=2", "test_per_class=2", "evaluate_every=20", "epochs=2", "block_size=4"]
    experiment = load_experiment("fig3c").changed(parse_changes(few, seeds=[0, 1]))
    table = run_experiment(experiment, tmp_path).table
    assert table["samples"].unique().sort().to_list() == [0, 20, 40]
    assert table["passes"].unique().sort().to_list() == [0.0, 1.0, 2.0]
    assert table["tasks_learned"].max() == 1
    (shown,) = fig3.summarise(table)
    assert shown.columns[3].header == "after one pass"
    vanilla = table.filter(case="vanilla SGD")
    once = vanilla.filter(samples=20)["accuracy"].to_numpy()
    np.testing.assert_array_equal(fig3._after_one_pass(vanilla), once)
    assert next(iter(shown.columns[3].cells)).startswith(f"{once.mean():.3f} ± ")


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


@pytest.mark.parametrize("family", ["cifar curves", "cifar sweeps"])
def test_a_rate_that_diverges_is_drawn_and_said(family, tmp_path):
    experiment = parse_experiment("rates", f'family = "{family}"\n{DIVERGING}')
    table = run_experiment(experiment, tmp_path).table
    good, bad = (table.filter(lr=lr) for lr in (0.01, 1e30))
    assert not np.isnan(fig3.final_accuracies(good)).any()
    assert np.isnan(fig3.final_accuracies(bad)).all()
    assert np.isnan(fig3.accuracy_matrices(bad)).all()
    assert fig3.accuracy_matrices(bad).shape == (2, 5, 5)
    (shown,) = families()[family].summarise(table)
    cells = [list(column.cells)[1] for column in shown.columns]
    assert "2 of 2 diverged" in cells
    assert (tmp_path / "rates" / "rates.png").stat().st_size > 5_000
    (axes,) = families()[family].draw(table).axes
    if family == "cifar curves":  # along the samples, a line at the end of each task but the last
        assert [line.get_xdata()[0] for line in axes.lines[2:]] == [8, 16, 24, 32]
    else:  # a cross at the rate that diverged
        (cross,) = (line for line in axes.lines if line.get_label() == "diverged")
        assert list(cross.get_xdata()) == [1e30]


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("fig3a", "block_size=7", "block_size is 7; expected a positive multiple .* 4"),
        ("fig3a", "evaluate_every=3", "evaluate_every is 3; expected a positive multiple"),
        ("fig3a", 'parts="online"', "but kind is 'distilled'; leave them out"),
        ("fig7d", "block_size=7", "block_size is 7; .* 4"),
    ],
)
def test_what_the_lab_would_refuse_is_refused_before_any_training(name, setting, message):
    experiment = load_experiment(name).changed(parse_changes([setting]))
    with pytest.raises(InvalidInputError, match=f"{name}: cases.*parameters.*: .*{message}"):
        experiment.runs()


def test_mean_and_standard_error():
    table = pl.DataFrame({"x": [1, 1, 1, 2, 3, 3], "y": [1.0, 2.0, 6.0, 4.0, 1.0, float("nan")]})
    curve = mean_and_sem(table, ["x"], "y")
    np.testing.assert_allclose(curve["mean"], [3, 4, np.nan])
    np.testing.assert_allclose(curve["sem"], [np.std([1, 2, 6], ddof=1) / np.sqrt(3), 0, np.nan])


@pytest.mark.slow
@pytest.mark.skipif(
    not CIFAR10.files[0].present(data_folder(REAL_CIFAR)),
    reason="RETARGET_DATA names no folder with CIFAR-10",
)
def test_the_correction_forgets_less_on_the_real_images(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", REAL_CIFAR)
    experiment = only(
        load_experiment("fig3a").changed(
            parse_changes(["per_class=200", "test_per_class=200", "evaluate_every=400"], [0, 1, 2])
        ),
        "vanilla SGD", "corrected, summed loss",
    )  # fmt: skip
    table = run_experiment(experiment, tmp_path).table
    final = {c: fig3.final_accuracies(table.filter(case=c)) for c in experiment.cases}
    gain = final["corrected, summed loss"] - final["vanilla SGD"]
    assert gain.min() > 0
    assert gain.mean() > 0.02
