"""What the experiments with networks plan, without any training."""

from collections import Counter

import pytest

from retarget.errors import InvalidInputError
from retarget.lab.figures import networks
from retarget.lab.reader import load_experiment, named_experiments, parse_changes
from support.made_runs import identity_of


def cases_of(name, *parameters):
    """The values of some parameters in each case, and the number of its runs."""
    planned = [(run.labels["case"], run.config) for run in load_experiment(name).planned_runs()]
    counts = Counter(case for case, _ in planned)
    return {
        case: (counts[case], *(getattr(config, key) for key in parameters))
        for case, config in planned
    }


def test_fig3a_has_the_papers_cases_for_every_seed():
    names = ("method", "lr", "reduction", "assumed_reduction", "refresh", "kind")
    assert cases_of("fig3a", *names) == {
        "cumulative replay": (10, "cumulative", 0.01, "mean", None, "task", "iterative"),
        "vanilla SGD": (10, "vanilla", 0.01, "mean", None, "task", "iterative"),
        "EWC": (10, "ewc", 0.01, "mean", None, "task", "iterative"),
        "corrected": (10, "corrected", 0.007, "mean", "sum", "task", "iterative"),
        "corrected, fixed kernel": (10, "corrected", 0.007, "mean", "sum", "never", "iterative"),
        "corrected, summed loss": (10, "corrected", 0.007, "sum", None, "task", "iterative"),
        "offline prediction, uncorrected": (
            10, "corrected", 0.007, "sum", None, "task", "distilled",
        ),
    }  # fmt: skip
    sizes = ("batch_size", "per_class", "epochs", "gamma", "block_size", "evaluate_every")
    assert set(cases_of("fig3a", *sizes).values()) == {(10, 4, 3000, 1, 100.0, 20, 500)}
    assert cases_of("fig3a", "strength")["EWC"][1] == 100.0


def test_fig3b_has_the_papers_cases_for_every_seed():
    names = ("lr", "epochs", "replay_passes", "reduction", "assumed_reduction", "refresh")
    assert cases_of("fig3b", *names) == {
        "cumulative replay": (5, 0.01, 1, 10, "mean", None, "task"),
        "vanilla SGD": (5, 0.01, 10, 1, "mean", None, "task"),
        "EWC": (5, 0.01, 10, 1, "mean", None, "task"),
        "corrected": (5, 0.003, 10, 1, "mean", "sum", "epoch"),
        "corrected, summed loss": (5, 0.003, 10, 1, "sum", None, "epoch"),
    }
    sizes = ("data", "frames_per_session", "image_size", "batch_size", "reshuffle", "block_size")
    assert set(cases_of("fig3b", *sizes).values()) == {(5, "core50", 15, 224, 4, True, 20)}
    assert cases_of("fig3b", "strength")["EWC"][1] == 100.0


@pytest.mark.parametrize("name", named_experiments("fig3"))
def test_cases_of_fig3_have_own_lines(name):
    lines = [networks.LINES[case] for case in load_experiment(name).cases]
    assert len(set(lines)) == len(lines) > 0


FIG6AD = {
    "A corrected": 10, "A corrected, fixed kernel": 10, "A vanilla SGD": 10,
    "B vanilla SGD": 70, "C EWC": 60, "D vanilla SGD": 35,
}  # fmt: skip
FIG6EH = {"E vanilla SGD": 35, "F EWC": 30, "G corrected": 45, "H cumulative replay": 35}


@pytest.mark.parametrize(
    ("name", "before", "counts", "swept"),
    [
        ("fig6ad", "fig3a", FIG6AD, {"lr", "strength"}),
        ("fig6eh", "fig3b", FIG6EH, {"gamma", "lr", "strength"}),
    ],
)
def test_fig6_has_the_papers_grids(name, before, counts, swept):
    assert {case: count for case, (count,) in cases_of(name).items()} == counts
    for run in load_experiment(name).planned_runs():
        assert set(run.labels) == {"case", "seed"} | swept
        assert all(run.labels[key] == getattr(run.config, key) for key in swept)
    here = {"backbone": "support.core50_backbone:made", "frames_per_session": 1}
    keys = {}
    for each in (before, name):
        experiment = load_experiment(each).where_it_fits(**here).changed(parse_changes([], [0]))
        keys[each] = [
            (identity_of(run.config, experiment.kind).key, run.labels["case"])
            for run in experiment.planned_runs()
        ]
    found = {case for key, case in keys[name] if key in dict(keys[before])}
    assert found == set(counts) - {"D vanilla SGD"}


def test_what_is_given_wins():
    experiment = load_experiment("fig6ad").changed(parse_changes(["lr=0.5"], seeds=[7]))
    planned = experiment.planned_runs()
    assert {(run.config.lr, run.labels["lr"], run.config.seed) for run in planned} == {
        (0.5, 0.5, 7)
    }
    assert len(planned) == 3 + 1 + 6 + 1
    runs = load_experiment("fig3a").where_it_fits(device="cpu:0").runs()
    assert {run.device for run in runs} == {"cpu:0"}
    toy = load_experiment("fig1")
    assert toy.where_it_fits(device="cpu") is toy  # which trains no network
    experiment = load_experiment("fig3b")
    assert experiment.label == "fig3b-core50"
    assert experiment.where_it_fits(data="standin", device="cpu").label == "fig3b-standin"


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("fig3a", "block_size=7", "block_size is 7; expected a positive multiple .* 4"),
        ("fig3a", "evaluate_every=3", "evaluate_every is 3; expected a positive multiple"),
        ("fig3a", 'parts="online"', "but kind is 'distilled'; leave them out"),
        ("fig7d", "block_size=7", "block_size is 7; .* 4"),
    ],
)
def test_what_the_lab_refuses_is_refused_first(name, setting, message):
    experiment = load_experiment(name).changed(parse_changes([setting]))
    with pytest.raises(InvalidInputError, match=f"{name}: cases.*parameters.*: .*{message}"):
        experiment.runs()


def test_a_device_that_is_not_there(command, tmp_path):
    for device in ("gpu", "cuda:99"):
        code, shown = command("reproduce", "fig1", "--device", device, "--out", tmp_path / "out")
        assert code == 2
        assert f"Error: the device '{device}' cannot be used here: " in shown
    assert not (tmp_path / "out").exists()
