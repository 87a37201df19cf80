import json

import matplotlib.image
import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.errors import DamagedFileWarning
from retarget.experiments.figures import digits, toy
from retarget.experiments.reader import load_experiment, parse_changes, parse_experiment
from retarget.experiments.runs.run import run_experiment
from support.made_runs import SMALL_DIGITS


@pytest.fixture(scope="module")
def small():
    return parse_experiment("small", SMALL_DIGITS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def seen():
    return []


@pytest.fixture(scope="module")
def written(small, folder, seen):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["/usr/bin/retarget", "x"])
        return run_experiment(
            small,
            folder,
            watch=lambda schedule: seen.append((len(schedule.done), len(schedule.runs))),
        )


def test_everything_is_written_and_found_again(small, folder, written, seen):
    outcome, tmp_path = written, folder
    assert (outcome.computed, outcome.reused, outcome.failed) == (4, 0, [])
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert [path.name for path in outcome.files] == [
        "small.parquet",
        "small.png",
        "small.pdf",
        "run.json",
    ]
    table = pl.read_parquet(tmp_path / "small" / "small.parquet")
    assert table.equals(outcome.table)
    assert matplotlib.image.imread(outcome.files[1]).std() > 0.01
    assert outcome.files[2].read_bytes().startswith(b"%PDF")
    record = json.loads(outcome.files[3].read_text())
    assert record["command"] == "retarget x"
    assert record["experiment"]["seeds"] == [3, 4]
    keys = record["runs"].pop("keys")
    assert record["runs"] == {"all": 4, "computed": 4, "found finished": 0}
    assert sorted(keys) == sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert record["versions"]["retarget"] == rt.__version__

    again = run_experiment(small, tmp_path)
    assert (again.computed, again.reused) == (0, 4)
    assert again.table.equals(outcome.table)
    (tmp_path / "runs" / keys[2] / "result.parquet").write_bytes(b"PAR1")
    with pytest.warns(DamagedFileWarning, match=keys[2]):
        mended = run_experiment(small, tmp_path)
    assert (mended.computed, mended.reused) == (1, 3)
    assert mended.table.equals(outcome.table)


def table_of(name, tmp_path, seeds=None):
    experiment = load_experiment(name)
    return run_experiment(experiment.changed(parse_changes([], seeds or ())), tmp_path).table


def test_fig1_holds_what_the_paper_claims(tmp_path):
    table = table_of("fig1", tmp_path)

    def values(kind, series):
        return table.filter(kind=kind, series=series)["y"].to_numpy()

    # C: on corrected targets the online learner is the offline learner
    assert np.abs(values("curve", "corrected") - values("curve", "offline")).max() < 1e-12
    # A: on the true ones it is not, and the default seed shows it
    assert np.abs(values("curve", "online") - values("curve", "offline")).mean() > 0.2
    # B: the new sample is not shifted (its rate matches gamma), near ones are, far ones are not
    before, after = values("point", "effective"), values("point", "effective after one step")
    x, target = (table.filter(kind="point", series="target")[c].to_numpy() for c in ("x", "y"))
    assert after[-1] == pytest.approx(target[-1], abs=1e-12)
    moved, distance = np.abs(after[:-1] - before), np.abs(x[:-1] - x[-1])
    assert moved[distance < 0.1].min() > 0.2
    assert moved[distance > 0.7].max() < 0.01
    shown = table.filter(kind="point", series="effective").filter("shown")["x"].sort()
    assert len(shown) == 10
    assert shown.diff().min() >= 0.05 - 1e-9
    assert any("largest difference" in str(line) for line in toy.summarise_shift(table))


def test_fig4_simulated_points_lie_on_the_closed_form_lines(tmp_path):
    table = table_of("fig4", tmp_path, seeds=[11])
    for panel, settings in {"C": {"0.03", "0.3", "3"}, "D": {"2", "4", "8"}}.items():
        part = table.filter(panel=panel)
        assert set(part["setting"]) == settings
        line, points = (part.filter(source=s) for s in ("closed form", "simulation"))
        assert len(line) == len(points) > 0
        np.testing.assert_allclose(line["value"], points["value"], rtol=1e-10)
    bU = table.filter(panel="A", setting="K^{bU}")
    assert bU.filter(
        (pl.col("row") // 4 < pl.col("column") // 4) == pl.col("value").is_nan()
    ).is_empty()
    assert "at all 310 points" in toy.summarise_curves(table)[0]


def test_digits_show_the_effect(written):
    table = written.table
    final = {
        (row["learner"], row["lr"]): row["mean"]
        for row in digits.final_accuracies(table).iter_rows(named=True)
    }
    assert final["offline", 0.1] > 0.95
    assert final["corrected", 0.1] == final["corrected", 0.001] == final["offline", 0.1]
    assert final["iterative", 0.1] == pytest.approx(final["iterative", 0.001], abs=0.01)
    assert final["iterative", 0.1] > final["online", 0.001] + 0.1 > final["online", 0.1]
    shown, meaning = digits.summarise(table)
    assert shown.row_count == 4
    assert meaning.count(". ") == 1  # two sentences
