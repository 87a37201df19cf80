"""The charts show the diagnosis's numbers; which rows are drawn; numbers and names in words."""

import math
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from retarget.diagnosis.answers import UNKNOWN, Estimate
from retarget.diagnosis.findings import sentences
from retarget.diagnosis.report.charts import Chart, NotDrawn, log_scale, rows, scale
from retarget.diagnosis.report.charts.catalog import CHARTS, report_charts
from retarget.diagnosis.report.page import chart_json
from retarget.diagnosis.result import ChosenValue, GroupShift, Stability
from retarget.diagnosis.words import names, numbers, setting
from retarget.errors import InvalidInputError
from retarget.learners import COLORS
from support import made_diagnosis as made


def traces(diagnosis, key):
    return report_charts(diagnosis)[key].figure.data


def layout(diagnosis, key):
    return report_charts(diagnosis)[key].figure.layout


def days(diagnosis):
    return [str(time)[:10] for time in diagnosis.stream.times]


def drawn(dots):
    """What is drawn at each place along the stream."""
    return {x: y for trace in dots for x, y in zip(trace.x, trace.y, strict=True)}


class TestForgetting:
    """What was forgotten?"""

    def test_error_by_age_with_its_interval(self):
        diagnosis = made.regression()
        curve = diagnosis.forgetting.curve
        band, error, same, doubled = traces(diagnosis, "forgetting")
        assert list(error.x) == [0, *curve["age"]]
        assert error.y == pytest.approx([1, *(1 + curve["value"])])
        assert (list(same.y), same.line.dash) == ([1, 1], "dash")
        assert list(band.x) == [0, *curve["age"], *curve["age"][::-1], 0]
        ends = [1, *(1 + curve["high"]), *(1 + curve["low"])[::-1], 1]
        assert band.y == pytest.approx(ends)
        assert (list(doubled.x), doubled.y[1]) == ([25, 25], 2)
        chart = report_charts(diagnosis)["forgetting"]
        assert "doubled after 25 rows" in chart.caption
        assert "3.5 times (3 to 4.5)" in chart.caption
        assert chart.figure.layout.yaxis.type is None
        never = replace(diagnosis.forgetting, half_life=None)
        assert len(traces(replace(diagnosis, forgetting=never), "forgetting")) == 3

    def test_large_increases_are_drawn_on_a_logarithmic_axis(self):
        diagnosis = replace(made.regression(), forgetting=made.forgetting(400.0))
        axis = layout(diagnosis, "forgetting").yaxis
        assert axis.type == "log"
        assert 10 ** axis.range[1] >= 400
        doubled = traces(diagnosis, "forgetting")[3]
        assert list(doubled.y) == pytest.approx([10 ** axis.range[0], 2])
        lost = diagnosis.forgetting.curve.with_columns(low=pl.lit(-1.5), high=pl.lit(math.inf))
        wide = replace(diagnosis, forgetting=replace(diagnosis.forgetting, curve=lost))
        band = traces(wide, "forgetting")[0]
        assert np.nanmin(band.y) > 0
        assert not np.isinf(band.y).any()
        nothing = diagnosis.forgetting.curve.with_columns(value=pl.Series([-1.0, 300.0, 400.0]))
        right = replace(diagnosis, forgetting=replace(diagnosis.forgetting, curve=nothing))
        assert min(traces(right, "forgetting")[1].y) == 0.01  # an error of 0, later

    def test_of_the_user_s_model(self):
        error = traces(made.model_regression(), "forgetting")[1]
        assert error.y[-1] == 8
        assert "SGDRegressor" in report_charts(made.model_regression())["forgetting"].caption

    def test_the_reason_if_there_is_none(self):
        few = replace(made.forgetting(), curve=made.forgetting().curve.clear())
        for diagnosis, why in (
            (made.progressive(), "no rows of the whole stream are held out"),
            (made.diverged(), "not finite numbers"),
            (made.model_that_failed(), "not finite numbers"),
            (made.logged(), "those at the end"),
            (replace(made.regression(), forgetting=None), "too few held-out rows"),
            (replace(made.regression(), forgetting=few), "too few rows for a curve. Over all"),
        ):
            assert why in report_charts(diagnosis)["forgetting"].why


class TestAlong:
    """Where did it go wrong?"""

    def test_three_lines_by_chunk(self):
        diagnosis = made.regression()
        along, found = diagnosis.along, traces(diagnosis, "along")
        for trace, column in zip(found, ("online", "batch", "online_now"), strict=True):
            assert trace.y == pytest.approx(along[column].to_numpy())
            # sorted by a date, so the file's numbers do not rise: positions are drawn instead
            assert trace.x == pytest.approx((along["first"] + along["last"]).to_numpy() / 2)
        assert [trace.line.color for trace in found] == [
            COLORS[name] for name in ("online", "offline", "online")
        ]
        assert [trace.line.dash for trace in found] == [None, None, "dash"]
        assert found[0].customdata[1] == "positions 9 to 16 (2024-01-09 to 2024-01-16)"
        axis = layout(diagnosis, "along").xaxis
        assert axis.title.text == "when it came"  # with dates of five rows
        times = diagnosis.stream.times
        assert list(axis.ticktext) == [times[row] for row in (16, 48, 80, 112, 144)]
        assert list(axis.tickvals) == [17, 49, 81, 113, 145]

    def test_dates_are_without_times_where_these_tell_nothing(self):
        diagnosis = made.regression()
        minutes = np.array([f"{day} 07:{row % 60:02d}" for row, day in enumerate(days(diagnosis))])
        shown = replace(diagnosis, stream=replace(diagnosis.stream, times=minutes))
        assert layout(shown, "along").xaxis.ticktext[0] == days(diagnosis)[16]
        same_day = np.array([f"2024-01-01 {row // 60:02d}:{row % 60:02d}" for row in range(160)])
        shown = replace(diagnosis, stream=replace(diagnosis.stream, times=same_day))
        assert layout(shown, "along").xaxis.ticktext[0] == "2024-01-01 00:16"

    def test_drift_is_marked_where_it_begins(self):
        diagnosis = made.drifting(made.regression(), onset=41)
        chart = report_charts(diagnosis)["along"]
        line = chart.figure.data[-1]
        assert (line.name, list(line.x)) == ("drift begins", [41, 41])
        # the time is the user's text: no part of the template, which Plotly would fill in
        assert line.hovertemplate == "the stream drifts from %{customdata} on<extra></extra>"
        assert set(line.customdata) == {f"position 41, {diagnosis.stream.times[40]}"}
        assert f"(position 41, {diagnosis.stream.times[40]})" in chart.caption
        rows_of_file = made.drifting(made.classification(), onset=41)
        number = rows_of_file.stream.rows[40]
        assert number > 41  # held-out rows are counted
        assert f"mostly from row {number} on." in " ".join(sentences(rows_of_file))
        time = diagnosis.stream.times[40]
        found = " ".join(sentences(diagnosis))
        assert f"mostly from row {diagnosis.stream.rows[40]} ({time}) on." in found
        assert list(traces(rows_of_file, "along")[-1].x) == [number, number]
        unclear = replace(diagnosis.drift, effect=Estimate(-0.4, -0.9, 0.1))
        names = [trace.name for trace in traces(replace(diagnosis, drift=unclear), "along")]
        assert "drift begins" not in names

    def test_rows_in_order_have_the_files_numbers(self):
        diagnosis = made.classification()
        first, numbers = traces(diagnosis, "along")[0], diagnosis.stream.rows
        assert first.customdata[1] == f"rows {numbers[15]} to {numbers[29]}"
        assert first.x[1] == (numbers[15] + numbers[29]) / 2
        assert layout(diagnosis, "along").xaxis.title.text == "row"
        assert set(drawn(traces(diagnosis, "shift")[:-1])) == set(numbers)

    def test_the_worst_forgetting_is_named(self):
        diagnosis = made.regression()
        along = diagnosis.along.with_columns(
            online_now=pl.when(pl.col("first") == 33).then(1e6).otherwise("online_now")
        )
        chart = report_charts(replace(diagnosis, along=along))["along"]
        assert "positions 33 to 40 (2024-02-02 to 2024-02-09)" in chart.caption
        assert numbers.number(diagnosis.along["online"][4]) in chart.caption
        assert numbers.number(1e6) in chart.caption
        assert chart.figure.layout.yaxis.type == "log"
        kept = along.with_columns(online_now="online")
        chart = report_charts(replace(diagnosis, along=kept))["along"]
        assert "positions" not in chart.caption
        assert layout(diagnosis, "along").yaxis.type is None

    def test_of_the_user_s_model(self):
        diagnosis = made.model_regression()
        before, batch, now = traces(diagnosis, "along")
        stream, model = diagnosis.stream, diagnosis.model
        for trace, said in ((before, model.before), (now, model.end)):
            errors = np.square(stream.in_units(said) - stream.in_units(stream.Y)).mean(axis=1)
            assert trace.y == pytest.approx(errors.reshape(20, 8).mean(axis=1))
        assert batch.y == pytest.approx(diagnosis.along["batch"].to_numpy())
        assert len(traces(made.logged(), "along")) == 2  # a log does not know the end
        failed = traces(made.model_that_failed(), "along")
        assert failed[0].y == pytest.approx(diagnosis.along["online"].to_numpy())

    def test_without_a_batch_model_it_has_two_lines(self):
        diagnosis = made.regression()
        lost = replace(diagnosis, along=diagnosis.along.with_columns(batch=pl.lit(math.nan)))
        assert len(traces(lost, "along")) == 2
        same = report_charts(diagnosis)["along"].caption  # what was forgotten is known without it
        assert report_charts(lost)["along"].caption == same

    def test_errors_that_overflow_are_left_out(self):
        diagnosis = made.regression()
        ends = pl.when(pl.col("first") < 50).then(math.inf)
        along = diagnosis.along.with_columns(
            online=ends.otherwise("online"), online_now=ends.otherwise("online_now")
        )
        before, _, now = traces(replace(diagnosis, along=along), "along")
        assert np.isnan(before.y[:7]).all()
        assert now.y[7:] == pytest.approx(diagnosis.along["online_now"].to_numpy()[7:])


class TestShift:
    """Which rows were overwritten?"""

    def test_of_each_row_by_group(self):
        diagnosis = made.regression()
        stream, found = diagnosis.stream, traces(diagnosis, "shift")
        shift = np.sqrt(((diagnosis.effective - stream.Y) ** 2).sum(axis=1))
        assert drawn(found[:-1]) == pytest.approx(dict(enumerate(shift, 1)))
        harbour = next(trace for trace in found if trace.name == "harbour")
        places = np.array(harbour.x) - 1
        assert (stream.groups[places] == "harbour").all()
        told = f"row {160 - places[0]}, {stream.times[places[0]]}, harbour"
        assert harbour.customdata[0] == told
        assert layout(diagnosis, "shift").showlegend is True

    def test_bands_and_names_of_groups(self):
        diagnosis = made.classification()
        numbers, groups = diagnosis.stream.rows, diagnosis.groups
        for key in ("shift", "along"):
            found = layout(diagnosis, key)
            assert [note.text for note in found.annotations] == list(groups.names)
            ends = [(band.x0, band.x1) for band in found.shapes]
            assert ends == [(0.5, numbers[74] + 0.5), (numbers[150] - 0.5, numbers[224] + 0.5)]
        assert layout(diagnosis, "shift").showlegend is False

    def test_many_groups_or_only_one(self):
        for diagnosis in (made.many_groups(), made.one_group()):
            points, mean = traces(diagnosis, "shift")
            assert len(points.x) == len(diagnosis.stream)
            assert mean.mode == "lines"
            assert layout(diagnosis, "shift").showlegend is False
        alone = replace(made.classification().stream, groups=None)
        for key in ("shift", "along"):  # parts of a stream are no groups
            assert not layout(replace(made.classification(), stream=alone), key).shapes

    def test_a_users_model_and_the_theory(self):
        diagnosis = made.model_regression()
        model, found = diagnosis.model, traces(diagnosis, "shift")
        size = np.linalg.norm(model.end - model.after, axis=1)
        assert drawn(found[:-2]) == pytest.approx(dict(enumerate(size, 1)))
        window = np.linalg.norm(model.theory[:5], axis=1).mean()
        assert found[-1].y[0] == pytest.approx(window)

    def test_a_long_stream_is_drawn_in_part(self):
        found = traces(made.large(), "shift")
        assert sum(len(trace.x) for trace in found) <= 5000
        assert len(chart_json(report_charts(made.large()))) < 1_000_000


class TestGroupsAndTargets:
    """Which group overwrote which? What did it really learn? Which classes were lost?"""

    def test_heat_map(self):
        diagnosis = made.classification()
        groups, (squares,) = diagnosis.groups, traces(diagnosis, "groups")
        np.testing.assert_allclose(squares.z, groups.size)
        assert squares.hovertext[0][1].startswith("learning class 1:<br>targets of class 0<br>")
        for factor, form in ((1, ".2~f"), (1e60, ".1~e"), (1e-4, ".1~e")):
            scaled = replace(diagnosis, groups=replace(groups, size=groups.size * factor))
            assert traces(scaled, "groups")[0].texttemplate == f"%{{z:{form}}}"
        assert traces(made.many_groups(), "groups")[0].texttemplate is None
        size = np.where(groups.size == groups.size.max(), np.inf, groups.size)
        lost = replace(diagnosis, groups=replace(groups, size=size))
        assert traces(lost, "groups")[0].zmax == np.sort(groups.size, axis=None)[-2]
        np.testing.assert_allclose(
            traces(made.with_model(diagnosis), "groups")[0].z, 2 * groups.size
        )

    def test_one_target_and_several(self):
        diagnosis = made.many_groups()
        stream, (points, line) = diagnosis.stream, traces(diagnosis, "targets")
        assert points.x == pytest.approx(stream.in_units(stream.Y)[:, 0])
        assert points.y == pytest.approx(stream.in_units(diagnosis.effective)[:, 0])
        assert list(points.customdata) == list(stream.rows)
        assert list(line.x) == list(line.y) == [min(points.x), max(points.x)]
        first, second, _ = traces(made.regression(), "targets")
        assert (first.name, second.name) == made.regression().stream.target_names
        assert second.x == pytest.approx(made.regression().stream.Y[:, 1])
        assert second.y == pytest.approx(made.regression().effective[:, 1])
        many = made.wide(made.large(), 60)
        assert len(traces(many, "targets")) == 11
        assert "10 of 60 targets" in report_charts(many)["targets"].caption
        assert sum(len(trace.x) for trace in traces(many, "targets")) <= 5000

    def test_classes_that_changed(self):
        diagnosis = made.classification()
        (bars,) = traces(diagnosis, "targets")
        true, effective = (
            part.argmax(axis=1) for part in (diagnosis.stream.Y, diagnosis.effective)
        )
        changed = effective != true
        assert bars.x == pytest.approx([changed[true == k].mean() for k in range(4)])
        worst = np.bincount(true[changed]).argmax()
        ours = true == worst
        became = np.bincount(effective[changed & ours]).argmax()
        told = f"{changed[ours].sum()} of {ours.sum()} rows, most often to class {became}"
        assert bars.customdata[worst] == told
        many = made.classification(tuple(f"class {k:02d}" for k in range(40)), 120)
        assert len(traces(many, "targets")[0].x) == 30


class TestConfusion:
    """Which class was taken for which?"""

    def test_shares_of_each_class(self):
        (squares,) = traces(made.classification(), "confusion")
        expected = 0.6 * np.eye(4)
        expected[:, 3] += 0.4
        np.testing.assert_allclose(squares.z, expected)
        assert squares.hovertext[1][3] == "40% of class 1<br>taken for class 3"
        assert squares.texttemplate == "%{z:.0%}"
        assert "40% of class 0 are taken for class 3" in (
            report_charts(made.classification())["confusion"].alternative
        )
        fifteen = made.classification(tuple(f"class {k:02d}" for k in range(15)), 120)
        assert traces(fifteen, "confusion")[0].texttemplate is None
        mine = report_charts(made.model_classification())["confusion"]
        assert "a net with a long name" in mine.caption

    def test_when_there_is_no_chart(self):
        many = made.classification(tuple(f"class {k:02d}" for k in range(40)), 120)
        lost = made.classification()
        answers = tuple(
            replace(one, scores=tuple(replace(score, confusion=()) for score in one.scores))
            for one in lost.answers
        )
        for diagnosis, why in (
            (made.regression(), "The targets are numbers"),
            (many, "There are 40 classes; .* at most 20"),
            (replace(lost, answers=answers), "not finite"),
        ):
            chart = report_charts(diagnosis)["confusion"]
            assert re.search(why, chart.why)


class TestNotebook:
    """The same charts as figures: `Diagnosis.plot`."""

    @pytest.mark.parametrize("name", CHARTS)
    def test_each_by_its_name(self, name):
        diagnosis = made.classification()
        found, chart = diagnosis.plot(name), report_charts(diagnosis)[name]
        assert found.layout.title.text == chart.title
        assert found.data == chart.figure.data
        assert found.layout.height > chart.figure.layout.height
        assert chart.figure.layout.title.text is None  # a copy was changed

    def test_all_that_are_drawn(self):
        assert list(made.classification().plot()) == list(CHARTS)
        drawn = made.progressive().plot()
        assert set(CHARTS) - set(drawn) == {"forgetting", "confusion"}

    def test_missing_names_and_undefined_numbers(self):
        with pytest.raises(InvalidInputError, match=r"no chart 'forgeting'"):
            made.regression().plot("forgeting")
        with pytest.raises(InvalidInputError, match=r"'forgetting' .* no rows"):
            made.progressive().plot("forgetting")


class TestScores:
    """Which learner predicts best? Which way of training your model? Was the rate a good choice?"""

    def test_each_learner_on_both_questions(self):
        whole, coming = traces(made.regression(), "scores")
        assert list(whole.x) == [5, 9, 5, 6, 12.5, 15.5]
        assert list(coming.x) == [10, 18, 10, 12, 25, 15.5]
        assert coming.error_x.array[1] == pytest.approx(21.6 - 18)
        assert coming.error_x.arrayminus[1] == pytest.approx(18 - 16.2)
        assert whole.marker.symbol != coming.marker.symbol
        endless = Estimate(9.0, math.nan, math.inf)
        answer = made.regression().answers[0]
        scores = tuple(replace(score, loss=endless) for score in answer.scores)
        (bars,) = traces(
            replace(made.progressive(), answers=(replace(answer, scores=scores),)), "scores"
        )
        assert not np.isinf([*bars.error_x.array, *bars.error_x.arrayminus]).any()
        colors = [COLORS[name] for name in ("offline", "online", "corrected", "iterative")]
        assert list(whole.marker.color[:4]) == list(coming.marker.color[:4]) == colors
        assert (np.subtract(coming.y, whole.y) > 0).all()
        assert layout(made.regression(), "scores").showlegend is True
        assert layout(made.progressive(), "scores").showlegend is False
        assert list(traces(made.progressive(), "scores")[0].x) == [5, 9, 6, 12.5, 15.5]
        assert len(layout(made.progressive(), "scores").yaxis.ticktext) == 5  # of 6 lines
        assert list(traces(made.classification(), "scores")[0].x)[:2] == [0.95, 0.6]

    def test_each_way_of_training(self):
        whole, coming = traces(made.model_regression(), "scores")
        assert list(whole.x) == [9, 7, 5, 3, 12.5, 15.5]
        assert list(coming.x) == [18, 14, 10, 6, 25, 15.5]
        assert list(whole.marker.color)[:4] == [COLORS[name] for name in names.WAYS.values()]
        assert report_charts(made.model_regression())["scores"].title.startswith("Which way of")

    def test_rates(self):
        tried = pl.DataFrame({"value": [2.0, 0.25, 1.0], "score": [None, 0.3, 0.5]})
        diagnosis = replace(
            made.regression(),
            lr=ChosenValue(0.25, True, "the best", tried),
            stability=Stability(2.0, 1.0),
        )
        found = {trace.name: trace for trace in traces(diagnosis, "rate")}
        assert (list(found["tried"].x), list(found["tried"].y)) == ([0.25, 1.0], [0.3, 0.5])
        assert list(found["diverged"].x) == [2.0]
        assert list(found["used"].x) == [0.25, 0.25]
        assert list(found["largest stable"].x) == [2.0, 2.0]
        assert layout(diagnosis, "rate").xaxis.type == "log"
        zero = pl.DataFrame({"value": [0.0, 1], "score": [2.0, 1]})
        diagnosis = replace(diagnosis, lr=ChosenValue(0.0, False, "given", zero))
        assert layout(diagnosis, "rate").xaxis.type is None  # there is no logarithm of 0


def test_nothing_finite_no_chart():
    names = ("offline", "online", "corrected", "iterative")
    lost = tuple(
        replace(made.lost_scores(one, *names), baselines=()) for one in made.diverged().answers
    )
    charts = report_charts(replace(made.diverged(), answers=lost))
    assert {key for key, chart in charts.items() if isinstance(chart, Chart)} == {"rate"}
    assert isinstance(report_charts(made.undefined())["along"], NotDrawn)


def test_largest_moves():
    groups = GroupShift(
        names=("a", "b", "c"),
        counts=np.array([1, 1, 1]),
        size=np.array([[9.0, 0.25, 0.5], [0.0, 9.0, 0.125], [0.0, 0.0, 9.0]]),
        pull=np.array([[0.0, 0.2, -0.5], [0.0, 0.0, np.nan], [0.0, 0.0, 0.0]]),
        own=np.zeros(3),
    )
    assert [move[:3] for move in groups.largest_moves()] == [
        ("c", "a", 0.5), ("b", "a", 0.25), ("c", "b", 0.125)
    ]  # fmt: skip
    said = [setting.move_words(move, " units") for move in groups.largest_moves()]
    assert [("weakened" in one, "strengthened" in one) for one in said] == [
        (True, False), (False, True), (False, False)
    ]  # fmt: skip
    assert "0.25 units" in said[1]
    assert replace(groups, size=np.eye(3)).largest_moves() == []


def test_rows_of_short_and_long_streams():
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
    assert rows.most_shifted(made.undefined().shift_size).tolist() == list(range(120, 130))


@pytest.mark.parametrize("n", [1, 4, 30, 997])
def test_running_mean_is_the_mean_of_a_window(n):
    values = np.random.default_rng(n).normal(size=n)
    values[n // 2] = np.nan
    where, means, window = rows.running_mean(values, places=50)
    assert (where[0], where[-1]) == (0, n - 1)
    for place, mean in zip(where, means, strict=True):
        low = min(max(place - window // 2, 0), n - window)
        part = values[low : low + window]
        expected = part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan
        assert mean == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_logarithmic_scales_and_ticks():
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
        assert numbers.number(value) == text
    for share, text in (
        (0.5, "50%"), (0.9975, "99.8%"), (1.0, "100%"), (1 - 1e-9, "100%"), (0.0312, "3.1%"),
        (0.0, "0%"), (-1e-9, "0%"), (1.25, "125%"), (-0.2, "\u221220%"), (math.nan, "not defined"),
    ):  # fmt: skip
        assert numbers.percent(share) == text
    for effect, text in (
        (Estimate(-0.5, -0.6, -0.4), "50% lower (40% to 60%)"),
        (Estimate(-0.9996, -0.9999, -0.98), "more than 99.9% lower (at least 98%)"),
        (Estimate(-0.9998, -0.9999, -0.9996), "more than 99.9% lower"),
        (Estimate(-1.0, -1.0, -1.0), "more than 99.9% lower"),  # 1 - 1e-32 is 1, too
        (Estimate(0.9998, 0.5, 1.5), "100% higher (50% to 150%)"),
        (Estimate(1.5, 1.2, 1.8), "2.5 times as high (2.2 to 2.8)"),
    ):
        assert numbers.change_words(effect) == text
    assert numbers.interval(Estimate(0.5, 0.25, 0.75), share=True) == "25% to 75%"
    assert numbers.interval(Estimate(1, math.nan, 2)) == "no interval"
    assert numbers.with_interval(Estimate(2, 1, 3)) == "2 (1 to 3)"
    assert numbers.with_interval(UNKNOWN) == "-"


def test_names_in_words():
    assert names.name("a\n\tb") == "a\ufffdb"
    assert names.name("") == "(empty)"
    assert names.name("x" * 99) == "x" * 30 + "\u2026" + "x" * 29
    assert names.name("\u202eabc\ud800") == "\ufffdabc\ufffd"
    assert names.chart_text("<b>&amp;$x$") == "&lt;b&gt;&amp;amp;&#36;x&#36;"
