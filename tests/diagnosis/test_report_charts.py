"""The charts show the diagnosis's numbers; which rows are drawn; numbers and names in words."""

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from retarget.diagnosis.report import words
from retarget.diagnosis.report.charts import log_scale, rows, scale
from retarget.diagnosis.report.charts.scores import choice_chart
from retarget.diagnosis.report.charts.targets import size_chart
from retarget.diagnosis.report.page import chart_json, report_charts
from retarget.diagnosis.result import Choice, Estimate, GroupShift
from retarget.learners import COLOURS
from support import real_diagnosis as real


def dots(traces):
    """What is drawn at each position of the stream."""
    return {x - 1: y for t in traces for x, y in zip(t["x"], t["y"], strict=True)}


def test_charts_of_numbers():
    diagnosis = real.regression()
    charts, stream = report_charts(diagnosis), diagnosis.stream
    traces = charts["errors"].traces
    scored = (*diagnosis.scores, *diagnosis.baselines)
    assert [trace["x"] for trace in traces] == [[one.error.value] for one in scored]
    error, bars = diagnosis.scores[1].error, traces[1]["error_x"]
    assert bars["array"] == pytest.approx([error.high - error.value])
    assert bars["arrayminus"] == pytest.approx([error.value - error.low])
    learners = ("offline", "online", "corrected", "iterative")
    assert [t["marker"]["color"] for t in traces[:4]] == [COLOURS[one] for one in learners]

    drawn = dots(charts["shift"].traces[:-1])
    shift = np.sqrt(((diagnosis.effective - stream.Y) ** 2).sum(axis=1))
    assert [drawn[i] for i in range(160)] == pytest.approx(shift, rel=1e-3)
    assert charts["shift"].layout["showlegend"] is True
    harbour = next(trace for trace in charts["shift"].traces if trace["name"] == "harbour")
    places = np.array(harbour["x"]) - 1
    assert (stream.groups[places] == "harbour").all()
    assert harbour["customdata"][0] == f"row {200 - places[0]}, {stream.times[places[0]]}"

    traces, views = charts["targets"].traces, charts["targets"].views
    assert [view.label for view in views] == ["temperature", "humidity"]
    assert [t.get("visible", True) for t in traces] == [True] * 3 + [False] * 3
    assert views[1].traces == [{"visible": k >= 3} for k in range(6)]
    kept, crossed, line = traces[3:]
    true, effective = (stream.in_units(part)[:, 1] for part in (stream.Y, diagnosis.effective))
    mean = stream.target_means[1]
    assert sorted(kept["y"] + crossed["y"]) == pytest.approx(np.sort(effective), rel=1e-3)
    assert line["x"] == line["y"] == pytest.approx([true.min(), true.max()], rel=1e-4)
    assert ((np.array(crossed["x"]) - mean) * (np.array(crossed["y"]) - mean) <= 1).all()
    assert len(crossed["x"]) == ((true - mean) * (effective - mean) < 0).sum()


def test_charts_of_classes():
    diagnosis = real.classification()
    charts, groups, Y = report_charts(diagnosis), diagnosis.groups, diagnosis.stream.Y
    shares = charts["accuracies"].traces
    assert shares[1]["x"] == [diagnosis.scores[1].accuracy.value]
    size, pull = charts["group-size"].traces[0], charts["group-pull"].traces[0]
    np.testing.assert_allclose(size["z"], groups.size, rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(pull["z"], groups.pull, rtol=1e-3, atol=1e-12)
    assert size["zmin"] == 0
    assert pull["zmax"] == -pull["zmin"] == pytest.approx(np.abs(groups.pull).max(), rel=1e-3)
    assert size["hovertext"][0][1].startswith("learning class 1:<br>targets of class 0<br>moved")
    for factor, form in ((1, ".2~f"), (1e60, ".1~e"), (1e-4, ".1~e")):
        chart = size_chart(diagnosis, replace(groups, size=groups.size * factor))
        assert chart.traces[0]["texttemplate"] == f"%{{z:{form}}}"

    (bars,) = charts["targets"].traces
    true, effective = Y.argmax(axis=1), diagnosis.effective.argmax(axis=1)
    changed = effective != true
    assert bars["x"] == pytest.approx([changed[true == k].mean() for k in range(4)], rel=1e-4)
    worst = np.bincount(true[changed]).argmax()
    ours = true == worst
    became = np.bincount(effective[changed & ours]).argmax()
    assert bars["customdata"][worst] == (
        f"{changed[ours].sum()} of {ours.sum()} rows, most often to class {became}"
    )

    squared, wrong = charts["prequential"].traces
    squares = (diagnosis.prequential**2).mean(axis=1)
    assert squared["y"][0] == pytest.approx(squares[:8].mean(), rel=1e-4)
    missed = (Y - diagnosis.prequential).argmax(axis=1) != true
    assert wrong["y"][-1] == pytest.approx(missed[-8:].mean(), rel=1e-4)
    layout, counts = charts["prequential"].layout, np.cumsum(groups.counts)
    for named in (layout, charts["shift"].layout):  # in their place, not in a legend
        assert [a["text"] for a in named["annotations"]] == list(groups.names)
        assert named["showlegend"] is False
    ends = [(band["x0"], band["x1"]) for band in layout["shapes"]]
    assert ends == [(0.5, counts[0] + 0.5), (counts[1] + 0.5, counts[2] + 0.5)]


def test_many_groups_classes_or_targets_or_only_one():
    chart = report_charts(real.many_groups())["shift"]
    assert chart.layout["showlegend"] is False
    assert len({t["marker"]["color"] for t in chart.traces[:-1]}) == 1
    assert [view.label for view in chart.views][:2] == ["All", "device number 00"]
    strong = [changes["marker.opacity"] for changes in chart.views[5].traces]
    assert np.argmax(strong) == 4
    chart = report_charts(real.one_group())["shift"]
    points, mean = chart.traces
    assert (len(points["x"]), mean["mode"], chart.views) == (160, "lines", ())
    many = real.classification(tuple(f"class {k:02d}" for k in range(40)), 120)
    chart = report_charts(many)["targets"]
    assert len(chart.traces[0]["x"]) == 30
    assert "The 30 classes that changed most, of 40." in chart.caption
    diagnosis = real.large()
    stream = replace(
        diagnosis.stream,
        Y=np.repeat(diagnosis.stream.Y, 60, axis=1),
        target_names=tuple(f"t{k}" for k in range(60)),
        target_means=np.zeros(60),
        target_scales=np.ones(60),
    )
    wide = {part: np.repeat(getattr(diagnosis, part), 60, axis=1) for part in real.ARRAYS[:4]}
    charts = report_charts(replace(diagnosis, stream=stream, **wide))
    assert len(charts["targets"].views) == 40
    assert "The first 40 of 60 targets" in charts["targets"].caption
    assert len(chart_json(charts.values())) < 1_500_000


def test_nothing_finite_no_chart():
    diagnosis = real.regression()
    scores = tuple(replace(score, error=real.UNDEFINED) for score in diagnosis.scores)
    nothing = np.full_like(diagnosis.prequential, np.nan)
    lost = replace(diagnosis, scores=scores, baselines=(), prequential=nothing)
    charts = report_charts(lost)
    assert charts["errors"] is charts["prequential"] is charts["accuracies"] is None
    charts = report_charts(real.model_that_failed())
    assert all(charts[key] is None for key in ("model-shift", "model-errors", "model-theory"))
    assert charts["shift"] is not None


def test_largest_moves():
    groups = GroupShift(
        names=("a", "b", "c"),
        counts=np.array([1, 1, 1]),
        size=np.array([[9.0, 0.25, 0.5], [0.0, 9.0, 0.125], [0.0, 0.0, 9.0]]),
        pull=np.array([[0.0, 0.2, -0.5], [0.0, 0.0, np.nan], [0.0, 0.0, 0.0]]),
        own=np.zeros(3),
    )
    assert [move.words("") for move in words.largest_moves(groups)] == [
        "Learning c moved the targets of a by 0.5 on average, and weakened them.",
        "Learning b moved the targets of a by 0.25 on average, and strengthened them.",
        "Learning c moved the targets of b by 0.125 on average.",
    ]
    assert words.largest_moves(replace(groups, size=np.eye(3))) == []


def test_candidates():
    tried = pl.DataFrame({"value": [2.0, 0.25, 1.0], "score": [None, 0.3, 0.5]})
    chart = choice_chart("rate", Choice(0.25, True, "the best", tried), largest=2.0)
    traces = {trace["name"]: trace for trace in chart.traces}
    assert (traces["used"]["x"], traces["used"]["y"]) == ([0.25], [0.3])
    assert (traces["tried"]["x"], traces["tried"]["y"]) == ([0.25, 1.0], [0.3, 0.5])
    assert traces["diverged"]["x"] == [2.0]
    assert traces["largest stable"]["x"] == [2.0, 2.0]
    assert chart.layout["xaxis"]["type"] == "log"
    used = choice_chart("rate", Choice(0.3, False, "given", tried)).traces[1]
    assert (used["mode"], used["x"]) == ("lines", [0.3, 0.3])
    none = pl.DataFrame({"value": [0.0, 1], "score": [2.0, 1]})
    chart = choice_chart("ridge", Choice(0.0, False, "given", none))
    assert "type" not in chart.layout["xaxis"]  # there is no logarithm of 0


def test_a_model_s_charts_are_of_the_model():
    charts, model = report_charts(real.model_regression()), real.model_regression().model
    runs, *ways = charts["model-errors"].traces
    assert runs["x"] == pytest.approx(model.orders, rel=1e-4)
    assert set(runs["y"]) == {"Random order"}
    assert [trace["x"] for trace in ways] == [[9.0], [7.0], [5.0], [3.0]]
    assert [t["marker"]["color"] for t in ways] == [COLOURS[name] for name in words.WAYS.values()]
    traces = charts["model-shift"].traces
    drawn, size = dots(traces[:-2]), np.linalg.norm(model.end - model.after, axis=1)
    assert [drawn[i] for i in range(160)] == pytest.approx(size, rel=1e-3)
    assert [trace["name"] for trace in traces[-2:]] == ["running mean", "theory"]
    window = np.linalg.norm(model.theory[:5], axis=1).mean()
    assert traces[-1]["y"][0] == pytest.approx(window, rel=1e-4)
    against, exact = charts["model-theory"].traces
    assert against["x"] == pytest.approx(model.theory.ravel(), rel=1e-3)
    assert against["y"] == pytest.approx(model.shift.ravel(), rel=1e-3)
    assert against["customdata"][:2] == ["row 200, temperature", "row 200, humidity"]
    assert exact["x"] == exact["y"]
    diagnosis = real.classification()
    groups = replace(diagnosis.groups, size=np.arange(16.0).reshape(4, 4))
    chart = report_charts(real.with_model(diagnosis, groups=groups))["model-groups"]
    assert chart.traces[0]["z"] == groups.size.tolist()


def test_all_rows_of_a_short_stream_and_a_fair_choice_of_a_long_one():
    assert rows.drawn_rows(np.zeros(7, int), np.array([3]), 10).tolist() == list(range(7))
    groups = np.arange(100_000) % 2  # evenly spaced rows would be of one group only
    groups[50_000:50_005] = 2
    chosen = rows.drawn_rows(groups, np.array([77, 99_999]), 4000)
    assert {77, 99_999, *range(50_000, 50_005)} <= set(chosen.tolist())
    assert (np.diff(chosen) > 0).all()
    assert 4000 <= len(chosen) <= 4030
    assert (groups[chosen] == 0).mean() == pytest.approx(0.5, abs=0.01)
    assert np.diff(chosen).max() < 250
    # those that diverged are the most shifted
    assert rows.most_shifted(real.undefined().shift_size).tolist() == list(range(120, 130))


def test_groups_of_rows():
    diagnosis = real.regression()
    names = np.array(diagnosis.groups.names)
    assert (names[rows.group_of_row(diagnosis)] == diagnosis.stream.groups).all()
    others = replace(diagnosis.groups, names=(names[0], "the other 2"))  # the last, as one
    of = rows.group_of_row(replace(diagnosis, groups=others))
    assert ((of == 0) == (diagnosis.stream.groups == names[0])).all()
    assert set(of) == {0, 1}
    diagnosis = real.one_group()
    parts = replace(diagnosis.groups, names=("part 1", "part 2"), counts=np.array([25, 135]))
    of = rows.group_of_row(replace(diagnosis, groups=parts))
    assert of.tolist() == [0] * 25 + [1] * 135


@pytest.mark.parametrize("n", [1, 4, 30, 997])
def test_running_mean_is_the_mean_of_a_window(n):
    values = np.random.default_rng(n).normal(size=n)
    values[n // 2] = np.nan
    where, means, window = rows.running_mean(values, places=50)
    assert where[0] == 1
    assert where[-1] == n
    for place, mean in zip(where - 1, means, strict=True):
        low = min(max(place - window // 2, 0), n - window)
        part = values[low : low + window]
        expected = part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan
        assert mean == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_mean_by_tenth():
    order = np.random.default_rng(0).permutation(200).astype(float)
    where, means = rows.mean_by_tenth(order, 3 * order)
    assert where == pytest.approx(9.5 + 20 * np.arange(10))
    assert means == pytest.approx(3 * where)
    assert len(rows.mean_by_tenth(np.full(3, np.nan), order[:3])[0]) == 0


def test_scales_are_logarithmic_only_if_needed_and_have_few_ticks():
    for values in ([1.0, 2.0, 99.0], [0.0, 2.0, 1e6], [np.nan]):
        assert scale(np.array(values)) == {"rangemode": "tozero"}
    assert scale(np.array([1.0, 2.0, 1e6]))["type"] == "log"
    for high in (3.0, 30.0, 1e3, 1e9, 1e40):
        ticks = np.array(log_scale(np.array([1.0, high]))["tickvals"])
        assert 2 <= len(ticks[(ticks >= 1) & (ticks <= high)]) <= 8


def test_numbers_in_words():
    for value, text in (
        (0.0, "0"), (2.0, "2"), (0.5, "0.5"), (0.36041, "0.360"), (0.99951, "1.00"),
        (1234.5, "1,230"), (-0.0312, "\u22120.0312"), (1.5e-7, "1.50 \u00d7 10\u207b\u2077"),
        (123456789.0, "1.23 \u00d7 10\u2078"), (math.nan, "not defined"),
        (math.inf, "infinite"), (-math.inf, "\u2212infinite"),
    ):  # fmt: skip
        assert words.number(value) == text
    for share, text in (
        (0.5, "50%"), (0.9975, "99.8%"), (1.0, "100%"), (1 - 1e-9, "100%"), (0.0312, "3.1%"),
        (0.0, "0%"), (-1e-9, "0%"), (1.25, "125%"), (-0.2, "\u221220%"), (math.nan, "not defined"),
    ):  # fmt: skip
        assert words.percent(share) == text
    assert words.interval(Estimate(0.5, 0.25, 0.75), share=True) == "25% to 75%"
    assert words.interval(Estimate(1, math.nan, 2)) == "no interval"
    assert words.with_interval(Estimate(2, 1, 3)) == "2 (1 to 3)"
    assert words.with_interval(real.UNDEFINED) == "-"


def test_names_in_words():
    assert words.name("a\n\tb") == "a\ufffdb"
    assert words.name("") == "(empty)"
    assert words.name("x" * 99) == "x" * 30 + "\u2026" + "x" * 29
    assert words.name("\u202eabc\ud800") == "\ufffdabc\ufffd"
    assert words.chart_text("<b>&amp;$x$") == "&lt;b&gt;&amp;amp;&#36;x&#36;"
