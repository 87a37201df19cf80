"""Fig. 3B and Fig. 6 E to H on made pictures in CORe50's layout; on the stand-in where it is."""

import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import retarget as rt
from retarget import continual as lab
from retarget.data.core50 import load_core50, new_classes_tasks
from retarget.errors import MissingDataError
from retarget.experiments.experiment import families
from retarget.experiments.figures import core50, fig3, fig6
from retarget.experiments.reader import load_experiment, parse_changes
from retarget.experiments.runs.run import run_experiment
from support.command_line import run as run_command
from support.made_core50 import made_frames, picture, write_made_core50, zipped
from support.made_runs import identity_of

REAL_DATA = Path(os.environ.get("RETARGET_DATA", "nowhere"))  # before the fixtures change it
BACKBONE = 'backbone="support.core50_backbone:made"'
SMALL = ["frames_per_session=1", "image_size=4", "epochs=1", "replay_passes=1", "block_size=4"]
SMALL.append(BACKBONE)
MAIN = ["cumulative replay", "vanilla SGD", "EWC", "corrected", "corrected, summed loss"]


@pytest.fixture(scope="module")
def made_folder(tmp_path_factory):
    """A picture of every object in every session; the official layout, and the stand-in's."""
    folder = tmp_path_factory.mktemp("core50")
    frames = made_frames(range(1, 12), range(1, 51), (1,), size=(5, 4))
    write_made_core50(folder, "zip", frames)
    others = made_frames(range(1, 12), range(1, 51), (1,), size=(5, 4), seed=1)
    pictures = {f"core50_128x128/{name}": picture(pixels) for name, pixels in others.items()}
    (folder / core50.STAND_IN).write_bytes(zipped(pictures))
    return folder


@pytest.fixture(autouse=True)
def own_folders(made_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", str(made_folder))
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path / "cache"))
    core50._data.cache_clear()


def small(name, *changes, seeds=(0, 1)):
    return load_experiment(name).changed(parse_changes([*SMALL, *changes], seeds))


# Of every grid of fig6eh some values, among them those of fig3b.
FEWER = {
    "E vanilla SGD": {"lr": [0.003, 0.01]},
    "F EWC": {"strength": [10.0, 100.0]},
    "G corrected": {"lr": [0.003, 0.01], "gamma": [30.0, 100.0, 300.0]},
    "H cumulative replay": {"lr": [0.01, 0.02]},
}


@pytest.fixture(scope="module")
def fig3b(made_folder, tmp_path_factory):
    """Fig. 3B, computed once: the folder of results, and what came of it."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETARGET_DATA", str(made_folder))
        patch.setenv("RETARGET_CACHE", str(folder / "cache"))
        return folder, run_experiment(small("fig3b"), folder)


# The plan, without training


def test_fig3b_is_the_papers_setting_for_every_seed():
    experiment = load_experiment("fig3b")
    assert list(experiment.cases) == MAIN
    planned = experiment.planned_runs()
    assert len(planned) == 5 * 5
    configs = {run.labels["case"]: run.config for run in planned if run.labels["seed"] == 4}
    for config in configs.values():
        assert (config.data, config.frames_per_session, config.image_size) == ("core50", 15, 224)
        assert (config.batch_size, config.reshuffle, config.evaluate_every) == (4, True, None)
    rates = {case: config.lr for case, config in configs.items()}
    assert rates == dict(zip(MAIN, (0.01, 0.01, 0.01, 0.003, 0.003), strict=True))
    epochs = {case: (config.epochs, config.replay_passes) for case, config in configs.items()}
    assert epochs == dict.fromkeys(MAIN, (10, 1)) | {"cumulative replay": (1, 10)}
    paper, summed = configs["corrected"], configs["corrected, summed loss"]
    for config in (paper, summed):
        assert (config.gamma, config.block_size, config.refresh) == (100.0, 20, "epoch")
    assert (paper.reduction, paper.assumed_reduction) == ("mean", "sum")
    assert (summed.reduction, summed.assumed_reduction) == ("sum", None)
    assert configs["EWC"].strength == 100.0
    assert experiment.label == "fig3b-core50"
    assert experiment.where_it_fits(data="standin", device="cpu").label == "fig3b-standin"


def test_the_extra_panel_has_the_other_methods():
    experiment = load_experiment("fig3b-methods")
    configs = {run.labels["case"]: run.config for run in experiment.planned_runs()}
    methods = {case: config.method for case, config in configs.items()}
    assert methods == {
        "ER": "er", "DER": "der", "DER++": "der++", "label smoothing": "label smoothing",
        "DER, corrected": "der, corrected", "corrected, online half": "corrected",
        "corrected, offline half": "corrected", "offline prediction, uncorrected": "corrected",
    }  # fmt: skip
    assert {config.capacity for config in configs.values()} == {600}
    assert configs["corrected, online half"].parts == "online"
    assert configs["corrected, offline half"].parts == "offline"
    assert configs["offline prediction, uncorrected"].kind == "distilled"


def test_fig6eh_has_the_papers_grids_and_finds_what_fig3b_has_done():
    planned = load_experiment("fig6eh").planned_runs()
    counts = {}
    for run in planned:
        counts[run.labels["case"]] = counts.get(run.labels["case"], 0) + 1
        assert set(run.labels) == {"case", "seed", "gamma", "lr", "strength"}
    assert counts == {
        "E vanilla SGD": 35, "F EWC": 30, "G corrected": 45, "H cumulative replay": 35,
    }  # fmt: skip
    family = families()["core50 curves"]
    done, again = (
        {
            identity_of(run.config, family).key: run.labels["case"]
            for run in small(name).planned_runs()
        }
        for name in ("fig3b", "fig6eh")
    )
    assert {case for key, case in again.items() if key in done} == set(counts)


# The parts of a run


def config(**changes):
    known = {
        "seed": 0, "data": "core50", "frames_per_session": 1, "image_size": 4, "block_size": 4,
        "backbone": "support.core50_backbone:made", "method": "vanilla", "lr": 0.01,
    }  # fmt: skip
    return core50.Core50Run(**(known | changes))


def test_the_stream_is_new_classes_on_features_of_the_frames(made_folder):
    setup = core50.core50_setup(config(seed=3))
    stream, tasks = setup.stream, new_classes_tasks(3)
    assert setup.data == "CORe50, features of support.core50_backbone:made"
    assert stream.classes == 50
    assert stream.train.sizes == tuple(8 * len(task) for task in tasks)
    assert stream.test.sizes == tuple(3 * len(task) for task in tasks)
    for span, task in zip(stream.train.spans(), tasks, strict=True):
        assert set(stream.train.labels[span].tolist()) == set(task)
    frames = load_core50(made_folder / "core50_128x128.zip", 1)
    row = int(stream.train.rows[7])
    assert frames.train_objects[row] == int(stream.train.labels[7])
    from retarget.data.features import prepared
    from support.core50_backbone import made

    picture = prepared(torch.from_numpy(frames.train_images[row : row + 1]), 4)
    torch.testing.assert_close(stream.train.inputs[row], made()(picture)[0])


def test_replay_and_correction_reach_the_lab_as_the_case_says():
    """Replay passes over everything as often as asked; the correction keeps its order."""
    setup = core50.core50_setup(config())
    ((_, table),) = fig3.CORE50_CURVES.run(
        [config(method="cumulative", replay_passes=2, reshuffle=True)]
    )
    history = lab.train(
        setup.network, setup.stream, rt.SGD(0.01, 4, reduction="mean"),
        lab.CumulativeReplay(2), reshuffle=True,
    )  # fmt: skip
    np.testing.assert_allclose(table["accuracy"], history.accuracy[:, 0], atol=1e-12)
    changes = {"method": "corrected", "epochs": 2, "refresh": "epoch", "gamma": 30.0}
    tables = [
        table
        for reshuffle in (True, False)
        for _, table in fig3.CORE50_CURVES.run([config(reshuffle=reshuffle, **changes)])
    ]
    assert tables[0].equals(tables[1], null_equal=True)


def test_a_stand_in_says_so_and_what_is_missing(tmp_path, monkeypatch, made_folder):
    standin = core50.core50_setup(config(data="standin"))
    assert standin.data == "stand-in pictures, features of support.core50_backbone:made"
    assert "CORe50" not in standin.data
    official = core50.core50_setup(config())
    assert not torch.equal(standin.stream.train.inputs, official.stream.train.inputs)
    with pytest.raises(MissingDataError, match="stand-in: resnet18-tiny150-.* not found in"):
        core50.core50_setup(config(data="standin", backbone=None))
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match="core50_standin.zip and resnet18.* not found"):
        core50.core50_setup(config(data="standin", backbone=None))
    with pytest.raises(MissingDataError, match="core50: .* none of core50_128x128,"):
        core50.core50_setup(config())
    with pytest.raises(MissingDataError, match="retarget data get resnet18"):
        core50.core50_setup(config(backbone=None))


# Whole figures, very small


def test_fig6eh_after_fig3b_on_made_pictures(fig3b, tmp_path):
    shutil.copytree(fig3b[0], tmp_path, dirs_exist_ok=True)
    sweeps = small("fig6eh", seeds=(1,))
    assert sweeps.cases.keys() == FEWER.keys()
    cases = {
        name: case.model_copy(update={"grid": FEWER[name]}) for name, case in sweeps.cases.items()
    }
    sweeps = sweeps.model_copy(update={"cases": cases})
    again = run_experiment(sweeps, tmp_path)
    planned = sweeps.planned_runs()
    assert len(planned) == 2 + 2 + 6 + 2
    # 4 cases are done
    assert (again.computed, again.reused) == (len(planned) - 4, 4)
    assert len(fig6.final_rows(again.table)) == len(planned)
    (shown,) = fig6.summarise(again.table)
    assert shown.row_count == len(planned)
    settings = list(shown.columns[1].cells)
    assert "lr = 0.003, gamma = 300" in settings
    figure = fig6.draw(again.table)
    assert [axes.get_title("left")[-len(name) :] for axes, name in zip(
        figure.axes, ("vanilla SGD", "EWC", "corrected", "cumulative replay"), strict=True
    )] == ["vanilla SGD", "EWC", "corrected", "cumulative replay"]  # fmt: skip
    final = again.table.filter(pl.col("tasks_learned") == 9)
    corrected = final.filter(pl.col("case") == "G corrected")
    for drawn, gamma in zip(figure.axes[2].containers, (30.0, 100.0, 300.0), strict=True):
        points = corrected.filter(pl.col("gamma") == gamma).group_by("lr").agg(pl.mean("accuracy"))
        rate, mean = (np.asarray(values, float) for values in drawn.lines[0].get_data())
        np.testing.assert_array_equal(rate, sorted(corrected["lr"].unique()))
        np.testing.assert_allclose(mean, points.sort("lr")["accuracy"].to_numpy())
    labels = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert [label for label in labels if "gamma" in label] == [
        rf"$\gamma$ = {gamma}" for gamma in (30, 100, 300)
    ]


def test_the_curve_of_a_figure_is_the_table(fig3b):
    folder, outcome = fig3b
    assert (outcome.computed, outcome.reused) == (10, 0)
    table = outcome.table
    assert fig3._axis(table) == ("tasks_learned", "tasks learned")
    assert sorted(table["tasks_learned"].unique()) == list(range(10))
    (shown,) = fig3.summarise(table)
    assert shown.row_count == 5
    assert shown.title.startswith("CORe50, features of support.core50_backbone:made: mean ± SEM")
    assert (folder / "fig3b-core50" / "fig3b-core50.png").stat().st_size > 10_000
    figure = fig3.draw(table)
    (axes,) = figure.axes
    assert axes.get_title() == "CORe50, features of support.core50_backbone:made"
    axes.set_xlim(1, 5)
    assert all(tick == int(tick) for tick in axes.get_xticks())
    for line, case in zip(axes.get_lines(), MAIN, strict=True):
        part = table.filter(pl.col("case") == case, pl.col("tasks_learned") > 0)
        means = part.group_by("tasks_learned", maintain_order=True).agg(pl.col("accuracy").mean())
        np.testing.assert_array_equal(line.get_xdata(), range(1, 10))
        np.testing.assert_allclose(line.get_ydata(), means["accuracy"])


@pytest.mark.slow
def test_from_the_command(monkeypatch, capsys, tmp_path, made_folder):
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path / "nothing here"))
    sizes = [f"--set={change}" for change in SMALL[:-1]]
    arguments = ("reproduce", "fig3b", "--data", "standin", "--seed=2", *sizes)
    arguments += ("--backbone", "support.core50_backbone:made", "--out", tmp_path / "out")
    code, shown = run_command(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "Error: stand-in: core50_standin.zip not found in" in shown
    code, shown = run_command(monkeypatch, capsys, *arguments, "--data-dir", made_folder)
    assert code == 0
    assert "Runs computed: 5, found finished: 0" in shown
    assert "fig3b-standin: " in shown
    table = pl.read_parquet(tmp_path / "out" / "fig3b-standin" / "fig3b-standin.parquet")
    assert set(table["data"]) == {"stand-in pictures, features of support.core50_backbone:made"}
    code, shown = run_command(monkeypatch, capsys, "reproduce", "fig3b", "--data", "core51")
    assert code == 2
    assert "core51" in shown
    code, shown = run_command(monkeypatch, capsys, "reproduce", "fig3b", "--backbone", "vgg")
    assert code == 2


def test_figures_whose_data_are_missing_do_not_stop_the_others(monkeypatch, capsys, tmp_path):
    """fig6 is one figure of two data sets, of which one is here."""
    arguments = ("reproduce", "fig6", "fig1", "--quick", "--out", tmp_path / "out")
    code, shown = run_command(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "retarget data get cifar10" in shown
    assert "retarget data get resnet18" in shown
    assert (tmp_path / "out" / "fig1" / "fig1.png").is_file()


@pytest.mark.slow
@pytest.mark.skipif(
    not (REAL_DATA / core50.STAND_IN_BACKBONE).is_file(),
    reason="RETARGET_DATA names no folder with the stand-in",
)
def test_the_correction_is_between_plain_sgd_and_replay_on_the_stand_in(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", str(REAL_DATA))
    experiment = load_experiment("fig3b").where_it_fits(data="standin")
    experiment = experiment.changed(parse_changes(["frames_per_session=4"], [0, 1]))
    table = run_experiment(experiment, tmp_path).table
    final = {c: fig3.final_accuracies(table.filter(case=c)) for c in experiment.cases}
    assert (final["corrected"] > final["vanilla SGD"] + 0.03).all()
    assert (final["corrected"] > final["EWC"]).all()
    assert (final["corrected"] < final["cumulative replay"]).all()
