"""Fig. 1 and Fig. 4: their tables hold what the paper claims."""

import numpy as np
import polars as pl
import pytest

from retarget.lab.data.toy import toy_curve
from retarget.lab.figures import toy
from retarget.lab.reader import load_experiment, parse_changes


def table_of(name, *seeds):
    """The table of one run, not drawn."""
    experiment = load_experiment(name).changed(parse_changes([], seeds))
    ((config, table),) = experiment.kind.run(experiment.runs(), None)
    return table.with_columns(seed=config.seed)


def test_fig1_holds_what_the_paper_claims():
    table = table_of("fig1")

    def values(kind, series):
        return table.filter(kind=kind, series=series)["y"].to_numpy()

    # C: on corrected targets the online learner is the offline learner
    assert np.abs(values("curve", "corrected") - values("curve", "offline")).max() < 1e-12
    # A: on the true ones it is not, and the default seed shows it
    assert np.abs(values("curve", "online") - values("curve", "offline")).mean() > 0.2
    # the offline learner is near the true curve, which the points scatter around
    truth, offline = values("curve", "truth"), values("curve", "offline")
    assert np.sqrt(np.mean((offline - truth) ** 2)) < 0.12
    np.testing.assert_array_equal(truth, toy_curve(461).truth)
    # B: the new sample is not shifted (its rate matches gamma), near ones are, far ones are not
    before, after = values("point", "effective"), values("point", "effective after one step")
    x, target = (table.filter(kind="point", series="target")[c].to_numpy() for c in ("x", "y"))
    assert after[-1] == pytest.approx(target[-1], abs=1e-12)
    moved, distance = np.abs(after[:-1] - before), np.abs(x[:-1] - x[-1])
    assert moved[distance < 0.1].min() > 0.2
    assert moved[distance > 0.7].max() < 0.01
    # as the paper says: downward on the left, and there is nothing to see on the right
    assert (after[:-1] - before)[x[:-1] < 0.4].max() < 0
    # A and C: the left is shifted down and corrected up, the right the other way round
    y, corrected = target[:-1], values("point", "corrected")
    assert len(before) == len(corrected) == 40
    for side, sign in ((x[:-1] < 0.4, -1), (x[:-1] > 0.6, 1)):
        assert sign * (before - y)[side].mean() > 0.1
        assert sign * (corrected - y)[side].mean() < -0.1
    assert any("largest difference" in str(line) for line in toy.summarize_shift(table))


def test_fig4_points_lie_on_their_lines():
    table = table_of("fig4", 11)
    for panel, settings in {"C": {"0.03", "0.3", "3"}, "D": {"2", "4", "8"}}.items():
        part = table.filter(panel=panel)
        assert set(part["setting"]) == settings
        line, points = (part.filter(source=s) for s in ("closed form", "simulation"))
        assert len(line) == len(points) > 0
        np.testing.assert_allclose(line["value"], points["value"], rtol=1e-10)
    bU = table.filter(panel="A", setting="K^{bU}")
    seen = pl.col("row") // 4 < pl.col("column") // 4
    assert bU.filter(seen == pl.col("value").is_nan()).is_empty()
    assert "at all 310 points" in toy.summarize_curves(table)[0]


def test_the_legend_of_fig4():
    experiment = load_experiment("fig4")
    figure = experiment.kind.draw(table_of("fig4"))
    panels = [axes for axes in figure.axes if axes.get_legend() is not None]
    assert len(panels) == 3
    for axes, simulated in zip(panels, (False, True, True), strict=True):
        lines, _ = axes.get_legend_handles_labels()
        markers = [line.get_marker() for line in lines[:3]]
        assert markers == (["o", "s", "^"] if simulated else ["None"] * 3)
