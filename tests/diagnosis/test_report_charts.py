import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from retarget.diagnosis.report.charts import log_scale, plain, scale
from retarget.diagnosis.report.charts.rows import (
    drawn_rows,
    group_of_row,
    mean_by_tenth,
    most_shifted,
    running_mean,
)
from retarget.diagnosis.report.page import chart_json, report_charts
from retarget.diagnosis.report.words import (
    chart_text,
    interval,
    largest_moves,
    name,
    number,
    percent,
    with_interval,
)
from retarget.diagnosis.result import Choice, Estimate, GroupShift, Stability
from retarget.learners import COLOURS
from support import real_diagnosis as real


class TestCharts:
    def test_scores(self):
        diagnosis = real.regression()
        chart = report_charts(diagnosis)["errors"]
        errors = [score.error for score in diagnosis.scores]
        drawn = [trace["x"][0] for trace in chart.traces]
        baselines = [baseline.error.value for baseline in diagnosis.baselines]
        assert drawn == [*(error.value for error in errors), *baselines]
        bars = chart.traces[1]["error_x"]
        assert bars["array"] == pytest.approx([errors[1].high - errors[1].value])
        assert bars["arrayminus"] == pytest.approx([errors[1].value - errors[1].low])
        assert [t["marker"]["color"] for t in chart.traces[:4]] == [
            COLOURS[learner] for learner in ("offline", "online", "corrected", "iterative")
        ]
        far = replace(diagnosis.scores[1], error=Estimate(5e6, 4e6, 6e6))
        scores = (diagnosis.scores[0], far, *diagnosis.scores[2:])
        chart = report_charts(replace(diagnosis, scores=scores))["errors"]
        assert chart.layout["xaxis"]["type"] == "log"

    def test_no_score_no_chart(self):
        diagnosis = real.regression()
        scores = tuple(replace(score, error=real.UNDEFINED) for score in diagnosis.scores)
        assert report_charts(replace(diagnosis, scores=scores, baselines=()))["errors"] is None

    def test_shift_of_every_row(self):
        diagnosis = real.regression()
        chart = report_charts(diagnosis)["shift"]
        drawn = {
            x - 1: y
            for trace in chart.traces[:-1]
            for x, y in zip(trace["x"], trace["y"], strict=True)
        }
        shift = np.sqrt(((diagnosis.effective - diagnosis.stream.Y) ** 2).sum(axis=1))
        assert sorted(drawn) == list(range(160))
        assert [drawn[i] for i in range(160)] == pytest.approx(shift, rel=1e-3)
        harbour = chart.traces[[t["name"] for t in chart.traces].index("harbour")]
        rows = np.array(harbour["x"]) - 1
        assert (diagnosis.stream.groups[rows] == "harbour").all()
        assert harbour["customdata"][0] == f"row {200 - rows[0]}, {diagnosis.stream.times[rows[0]]}"

    def test_many_groups_are_chosen_not_coloured(self):
        chart = report_charts(real.many_groups())["shift"]
        assert chart.layout["showlegend"] is False
        assert len({t["marker"]["color"] for t in chart.traces[:-1]}) == 1
        assert [view.label for view in chart.views][:2] == ["All", "device number 00"]
        strong = [changes["marker.opacity"] for changes in chart.views[5].traces]
        assert np.argmax(strong) == 4

    def test_groups_that_follow_each_other_are_named_in_their_place(self):
        diagnosis = real.classification()
        layout = report_charts(diagnosis)["shift"].layout
        assert [a["text"] for a in layout["annotations"]] == list(diagnosis.groups.names)
        assert layout["showlegend"] is False
        assert report_charts(real.regression())["shift"].layout["showlegend"] is True

    def test_parts_of_a_stream_without_groups_are_not_coloured(self):
        chart = report_charts(real.one_group())["shift"]
        dots, mean = chart.traces
        assert (len(dots["x"]), mean["mode"], chart.views) == (160, "lines", ())

    def test_heat_maps(self):
        diagnosis = real.classification()
        charts = report_charts(diagnosis)
        size, pull = charts["group-size"].traces[0], charts["group-pull"].traces[0]
        np.testing.assert_allclose(size["z"], diagnosis.groups.size, rtol=1e-3, atol=1e-12)
        np.testing.assert_allclose(pull["z"], diagnosis.groups.pull, rtol=1e-3, atol=1e-12)
        assert (
            pull["zmin"]
            == -pull["zmax"]
            == pytest.approx(-np.abs(diagnosis.groups.pull).max(), rel=1e-3)
        )
        assert size["zmin"] == 0
        assert size["hovertext"][0][1].startswith(
            "learning class 1:<br>targets of class 0<br>moved"
        )

    @pytest.mark.parametrize(
        ("factor", "form"), [(1, ".2~f"), (1e60, ".1~e"), (1e-4, ".1~e")], ids=["1", "huge", "tiny"]
    )
    def test_digits_of_a_size_that_fits_a_square(self, factor, form):
        diagnosis = real.classification()
        groups = replace(diagnosis.groups, size=diagnosis.groups.size * factor)
        chart = report_charts(replace(diagnosis, groups=groups))["group-size"]
        assert chart.traces[0]["texttemplate"] == f"%{{z:{form}}}"

    def test_largest_moves(self):
        groups = GroupShift(
            names=("a", "b", "c"),
            counts=np.array([1, 1, 1]),
            size=np.array([[9.0, 0.25, 0.5], [0.0, 9.0, 0.125], [0.0, 0.0, 9.0]]),
            pull=np.array([[0.0, 0.2, -0.5], [0.0, 0.0, np.nan], [0.0, 0.0, 0.0]]),
            own=np.zeros(3),
        )
        assert [move.words("") for move in largest_moves(groups)] == [
            "Learning c moved the targets of a by 0.5 on average, and weakened them.",
            "Learning b moved the targets of a by 0.25 on average, and strengthened them.",
            "Learning c moved the targets of b by 0.125 on average.",
        ]
        still = replace(groups, size=np.diag([1.0, 1.0, 1.0]))
        assert largest_moves(still) == []

    def test_true_against_effective(self):
        diagnosis = real.regression()
        chart = report_charts(diagnosis)["targets"]
        assert [view.label for view in chart.views] == ["temperature", "humidity"]
        kept, crossed, line = chart.traces[3:6]
        assert [t.get("visible", True) for t in chart.traces] == [True] * 3 + [False] * 3
        assert chart.views[1].traces == [{"visible": k >= 3} for k in range(6)]
        stream = diagnosis.stream
        true, effective = (
            stream.in_units(targets)[:, 1] for targets in (stream.Y, diagnosis.effective)
        )
        mean = stream.target_means[1]
        assert sorted(kept["y"] + crossed["y"]) == pytest.approx(np.sort(effective), rel=1e-3)
        assert line["x"] == line["y"] == pytest.approx([true.min(), true.max()], rel=1e-4)
        other = (np.array(crossed["x"]) - mean) * (np.array(crossed["y"]) - mean)
        assert (other <= 1).all()
        assert len(crossed["x"]) == ((true - mean) * (effective - mean) < 0).sum()

    def test_many_targets_share_the_points(self):
        diagnosis = real.large(20_000)
        wide = replace(
            diagnosis,
            stream=replace(
                diagnosis.stream,
                Y=np.repeat(diagnosis.stream.Y, 60, axis=1),
                target_names=tuple(f"t{k}" for k in range(60)),
                target_means=np.zeros(60),
                target_scales=np.ones(60),
            ),
            effective=np.repeat(diagnosis.effective, 60, axis=1),
            prequential=np.repeat(diagnosis.prequential, 60, axis=1),
        )
        charts = report_charts(wide)
        assert len(charts["targets"].views) == 40
        assert "The first 40 of 60 targets" in charts["targets"].caption
        assert len(chart_json(charts.values())) < 1_500_000

    def test_classes_that_changed(self):
        diagnosis = real.classification()
        chart = report_charts(diagnosis)["targets"]
        true = diagnosis.stream.Y.argmax(axis=1)
        changed = diagnosis.effective.argmax(axis=1) != true
        assert chart.traces[0]["x"] == pytest.approx(
            [changed[true == k].mean() for k in range(4)], rel=1e-4
        )
        worst = np.bincount(true[changed]).argmax()
        ours = true == worst
        became = np.bincount(diagnosis.effective.argmax(axis=1)[changed & ours]).argmax()
        assert chart.traces[0]["customdata"][worst] == (
            f"{changed[ours].sum()} of {ours.sum()} rows, most often to class {became}"
        )
        many = real.classification(tuple(f"class {k:02d}" for k in range(40)), 120)
        chart = report_charts(many)["targets"]
        assert len(chart.traces[0]["x"]) == 30
        assert "The 30 classes that changed most, of 40." in chart.caption

    def test_prequential_error(self):
        diagnosis = real.classification()
        chart = report_charts(diagnosis)["prequential"]
        squares = (diagnosis.prequential**2).mean(axis=1)
        assert chart.traces[0]["y"][0] == pytest.approx(squares[:8].mean(), rel=1e-4)
        predicted = (diagnosis.stream.Y - diagnosis.prequential).argmax(axis=1)
        wrong = predicted != diagnosis.stream.Y.argmax(axis=1)
        assert chart.traces[1]["y"][-1] == pytest.approx(wrong[-8:].mean(), rel=1e-4)
        assert [a["text"] for a in chart.layout["annotations"]] == [f"class {k}" for k in range(4)]
        ends = [(band["x0"], band["x1"]) for band in chart.layout["shapes"]]
        counts = np.cumsum(diagnosis.groups.counts)
        assert ends == [(0.5, counts[0] + 0.5), (counts[1] + 0.5, counts[2] + 0.5)]

    def test_no_finite_error_no_chart(self):
        diagnosis = real.regression()
        nothing = np.full_like(diagnosis.prequential, np.nan)
        assert report_charts(replace(diagnosis, prequential=nothing))["prequential"] is None

    def test_candidates(self):
        tried = pl.DataFrame({"value": [2.0, 0.25, 1.0], "score": [None, 0.3, 0.5]})
        diagnosis = replace(
            real.regression(),
            lr=Choice(0.25, True, "the best", tried),
            gamma=Choice(0.0, False, "given", pl.DataFrame({"value": [0.0, 1], "score": [2.0, 1]})),
            stability=Stability(2.0, 2.0),
        )
        charts = report_charts(diagnosis)
        traces = {trace["name"]: trace for trace in charts["rate"].traces}
        assert (traces["used"]["x"], traces["used"]["y"]) == ([0.25], [0.3])
        assert (traces["tried"]["x"], traces["tried"]["y"]) == ([0.25, 1.0], [0.3, 0.5])
        assert traces["diverged"]["x"] == [2.0]
        assert traces["largest stable"]["x"] == [2.0, 2.0]
        assert charts["rate"].layout["xaxis"]["type"] == "log"
        assert "type" not in charts["ridge"].layout["xaxis"]  # there is no logarithm of 0
        elsewhere = replace(diagnosis, lr=replace(diagnosis.lr, value=0.3))
        used = report_charts(elsewhere)["rate"].traces[1]
        assert (used["mode"], used["x"]) == ("lines", [0.3, 0.3])

    def test_json_has_no_nan(self):
        text = chart_json(report_charts(real.undefined()).values())
        assert "NaN" not in text
        assert "Infinity" not in text
        json.loads(text)


class TestRows:
    def test_all_rows_of_a_short_stream(self):
        assert drawn_rows(np.zeros(7, int), np.array([3]), 10).tolist() == list(range(7))

    def test_rows_of_a_long_stream(self):
        groups = np.arange(100_000) % 2  # evenly spaced rows would be of one group only
        groups[50_000:50_005] = 2
        rows = drawn_rows(groups, np.array([77, 99_999]), 4000)
        assert {77, 99_999, *range(50_000, 50_005)} <= set(rows.tolist())
        assert (np.diff(rows) > 0).all()
        assert 4000 <= len(rows) <= 4030
        assert (groups[rows] == 0).mean() == pytest.approx(0.5, abs=0.01)
        assert np.diff(rows).max() < 250

    def test_groups_of_rows(self):
        diagnosis = real.regression()
        names = np.array(diagnosis.groups.names)
        assert (names[group_of_row(diagnosis)] == diagnosis.stream.groups).all()

    def test_groups_without_a_name_of_their_own_are_the_last(self):
        diagnosis = real.regression()
        groups = replace(diagnosis.groups, names=(*diagnosis.groups.names[:1], "the other 2"))
        of = group_of_row(replace(diagnosis, groups=groups))
        assert ((of == 0) == (diagnosis.stream.groups == groups.names[0])).all()
        assert set(of) == {0, 1}

    def test_parts_of_the_stream(self):
        diagnosis = real.one_group()
        parts = replace(diagnosis.groups, names=("part 1", "part 2"), counts=np.array([25, 135]))
        of = group_of_row(replace(diagnosis, groups=parts))
        assert of.tolist() == [0] * 25 + [1] * 135

    def test_most_shifted_puts_what_diverged_first(self):
        diagnosis = real.undefined()
        assert most_shifted(diagnosis.shift_size).tolist() == list(range(120, 130))

    @pytest.mark.parametrize("n", [1, 4, 30, 997])
    def test_running_mean_is_the_mean_of_a_window(self, n):
        values = np.random.default_rng(n).normal(size=n)
        values[n // 2] = np.nan
        where, means, window = running_mean(values, places=50)
        assert where[0] == 1
        assert where[-1] == n
        for place, mean in zip(where - 1, means, strict=True):
            low = min(max(place - window // 2, 0), n - window)
            part = values[low : low + window]
            expected = part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan
            assert mean == pytest.approx(expected, abs=1e-12, nan_ok=True)

    def test_mean_by_tenth(self):
        order = np.random.default_rng(0).permutation(200).astype(float)
        where, means = mean_by_tenth(order, 3 * order)
        assert where == pytest.approx(9.5 + 20 * np.arange(10))
        assert means == pytest.approx(3 * where)
        assert len(mean_by_tenth(np.full(3, np.nan), order[:3])[0]) == 0


class TestScales:
    def test_logarithmic_only_if_needed(self):
        assert scale(np.array([1.0, 2.0, 99.0])) == {"rangemode": "tozero"}
        assert scale(np.array([0.0, 2.0, 1e6]))["rangemode"] == "tozero"
        assert scale(np.array([1.0, 2.0, 1e6]))["type"] == "log"
        assert scale(np.array([np.nan]))["rangemode"] == "tozero"

    @pytest.mark.parametrize("high", [3.0, 30.0, 1e3, 1e9, 1e40])
    def test_few_ticks_that_cover_the_values(self, high):
        ticks = np.array(log_scale(np.array([1.0, high]))["tickvals"])
        inside = ticks[(ticks >= 1) & (ticks <= high)]
        assert 2 <= len(inside) <= 8

    def test_plain(self):
        assert plain(np.array([1.23456789, np.nan, np.inf]), 3) == [1.23, None, None]
        assert plain(np.array([3, 4])) == [3, 4]
        assert plain(np.eye(2)) == [[1.0, 0.0], [0.0, 1.0]]


class TestWords:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0.0, "0"), (2.0, "2"), (0.5, "0.5"), (0.36041, "0.360"), (0.99951, "1.00"),
            (1234.5, "1,230"), (-0.0312, "\u22120.0312"), (1.5e-7, "1.50 \u00d7 10\u207b\u2077"),
            (123456789.0, "1.23 \u00d7 10\u2078"), (float("nan"), "not defined"),
            (float("inf"), "infinite"), (float("-inf"), "\u2212infinite"),
        ],
    )  # fmt: skip
    def test_number(self, value, text):
        assert number(value) == text

    @pytest.mark.parametrize(
        ("share", "text"),
        [(0.5, "50%"), (0.9975, "99.8%"), (1.0, "100%"), (1 - 1e-9, "100%"), (0.0312, "3.1%"),
         (0.0, "0%"), (-1e-9, "0%"), (1.25, "125%"), (-0.2, "\u221220%"),
         (float("nan"), "not defined")],
    )  # fmt: skip
    def test_percent(self, share, text):
        assert percent(share) == text

    def test_interval(self):
        assert interval(Estimate(1, 0.5, 2)) == "0.5 to 2"
        assert interval(Estimate(0.5, 0.25, 0.75), share=True) == "25% to 75%"
        assert interval(Estimate(1, float("nan"), 2)) == "no interval"
        assert with_interval(Estimate(2, 1, 3)) == "2 (1 to 3)"
        assert with_interval(real.UNDEFINED) == "-"

    def test_names(self):
        assert name("a\n\tb") == "a\ufffdb"
        assert name("") == "(empty)"
        assert name("x" * 99) == "x" * 30 + "\u2026" + "x" * 29
        assert name("\u202eabc\ud800") == "\ufffdabc\ufffd"
        assert chart_text("<b>&amp;$x$") == "&lt;b&gt;&amp;amp;&#36;x&#36;"
