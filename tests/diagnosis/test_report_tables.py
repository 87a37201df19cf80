"""The score cards and tables of the page, and what it shows of a user's own model."""

from dataclasses import replace

import numpy as np
import pytest

from retarget.diagnosis.report.page import report_charts, report_html
from retarget.diagnosis.report.page_tables import (
    agreement_words,
    group_table,
    measure,
    model_facts,
    model_table,
    score_cards,
    score_table,
    shifted_table,
    target_table,
)
from retarget.diagnosis.report.words import WAYS, interval, number, percent
from retarget.diagnosis.result import Estimate
from retarget.learners import COLOURS
from support import hand_made_model as made
from support import real_diagnosis as real


def texts(table, column):
    return [row[table.columns.index(column)].text for row in table.rows]


class TestScores:
    def test_cards_name_their_measure_and_its_unit(self):
        classes, one, two = real.classification(), real.many_groups(), real.regression()
        assert measure(classes.stream) == "share of rows right"
        assert "temperature" in measure(one.stream)
        assert "2 targets" in measure(two.stream)
        for diagnosis in (classes, one, two):
            cards = score_cards(diagnosis, None)
            assert {card.measure for card in cards} == {measure(diagnosis.stream)}
        values = [percent(s.accuracy.value) for s in (*classes.scores, *classes.baselines)]
        assert [card.value for card in score_cards(classes, None)] == values
        errors = [number(s.error.value) for s in (*two.scores, *two.baselines)]
        assert [card.value for card in score_cards(two, None)] == errors

    def test_baselines_stand_beside_the_scores(self):
        diagnosis = made.model_regression()
        table, cards = score_table(diagnosis), score_cards(diagnosis, None)
        assert [card.mark for card in cards][-2:] == ["baseline", "baseline"]
        assert [row[0].mark for row in table.rows] == [card.mark for card in cards]
        assert [row[1].text for row in table.rows][-2:] == ["12.5", "not defined"]
        assert table.rows[-2][1].note == "11.2 to 15"
        assert all(len(row) == len(table.columns) for row in table.rows)
        drawn = [trace["x"] for trace in report_charts(diagnosis)["errors"].traces]
        assert drawn == [*([score.error.value] for score in diagnosis.scores), [12.5]]

    def test_gap(self):
        diagnosis = real.classification()
        gaps = texts(score_table(diagnosis), "Gap closed (95% interval)")
        closed = diagnosis.gap_closed
        assert gaps[:2] == ["", ""]
        assert gaps[2:4] == [percent(closed[k].value) for k in ("corrected", "iterative")]

    def test_each_target_in_its_own_units(self):
        assert target_table(real.many_groups()) is None  # one target
        assert target_table(made.model_classification()) is None
        diagnosis = made.model_regression()
        own = tuple(Estimate(k, k / 2, 2 * k) for k in (3.0, 700.0))
        scores = tuple(replace(score, by_target=own) for score in diagnosis.scores)
        table = target_table(replace(diagnosis, scores=scores))
        assert texts(table, "Target") == ["temperature", "humidity"]
        assert texts(table, "Online") == texts(table, "Offline") == ["3", "700"]
        assert table.rows[1][1].note == interval(own[1])


class TestRows:
    def test_count_as_in_the_file(self):
        """The file's latest day comes first, so its last row is the first of the stream."""
        diagnosis = real.regression()
        table = shifted_table(diagnosis)
        rows = np.array([int(text) for text in texts(table, "Row")])
        places = np.array([int(text) for text in texts(table, "Position")])
        assert (rows == diagnosis.stream.rows[places - 1] + 1).all()
        assert (rows + places == 201).all()
        assert diagnosis.table()["row"].min() >= 0  # of the Parquet file: from 0, as ever
        assert diagnosis.table()["row"].max() == 199

    def test_position_only_where_it_differs(self):
        columns = shifted_table(real.many_groups()).columns
        assert columns == ["Row", "Group", "Shift", "True", "Effective"]
        parts = replace(real.many_groups().stream, groups=None, group_column=None)
        assert "Group" not in shifted_table(replace(real.many_groups(), stream=parts)).columns

    def test_pictures_count_as_the_table(self):
        diagnosis = real.regression()
        charts, row = report_charts(diagnosis), texts(shifted_table(diagnosis), "Row")[0]
        named = [text for trace in charts["shift"].traces[:-1] for text in trace["customdata"]]
        assert sum(text.startswith(f"row {row},") for text in named) == 1
        for key in ("density", "targets"):
            numbers = [n for t in charts[key].traces[:2] for n in t.get("customdata", ())]
            assert sorted(numbers) == sorted(diagnosis.stream.rows + 1)

    def test_groups(self):
        diagnosis = real.classification()
        table, size = group_table(diagnosis), diagnosis.groups.size
        assert texts(table, "Rows") == ["75"] * 4
        assert texts(table, "By later rows of it") == [number(x) for x in np.diag(size)]
        by = int((size[0] - np.diag(np.diag(size))[0]).argmax())
        assert table.rows[0][-1] == (number(size[0, by]), f"by class {by}", "")
        assert table.rows[3][-1].note == "no later group"


class TestModel:
    def test_cards_are_the_model_s(self):
        diagnosis = made.model_regression()
        cards = score_cards(diagnosis, diagnosis.model)
        assert [card.value for card in cards] == ["9", "7", "5", "3", "12.5", "not defined"]
        assert [card.mark for card in cards][:4] == ["online", "one-step", "offline", "corrected"]

    def test_cards_of_a_log_are_of_what_is_known(self):
        diagnosis = made.model_regression()
        known, *others = diagnosis.model.scores
        scores = (known, *(replace(score, error=real.UNDEFINED) for score in others))
        cards = score_cards(diagnosis, replace(diagnosis.model, scores=scores, orders=()))
        assert [card.value for card in cards] == ["9", "12.5", "not defined"]

    def test_table(self):
        diagnosis = made.model_classification()
        table = model_table(diagnosis, diagnosis.model)
        assert texts(table, "Way of training")[:4] == [way.capitalize() for way in WAYS]
        assert {row[2].text for row in table.rows} == {"50%", "25%"}

    def test_errors_and_every_order(self):
        model = made.model_regression().model
        runs, *ways = report_charts(made.model_regression())["model-errors"].traces
        assert runs["x"] == pytest.approx(model.orders, rel=1e-4)
        assert set(runs["y"]) == {"Random order"}
        assert [trace["x"] for trace in ways] == [[9.0], [7.0], [5.0], [3.0]]
        assert [t["marker"]["color"] for t in ways] == [COLOURS[name] for name in WAYS.values()]

    def test_shift_is_what_the_model_said_at_the_end(self):
        diagnosis = made.model_regression()
        model, chart = diagnosis.model, report_charts(diagnosis)["model-shift"]
        drawn = {x: y for t in chart.traces[:-2] for x, y in zip(t["x"], t["y"], strict=True)}
        size = np.sqrt(((model.end - model.after) ** 2).sum(axis=1))
        assert [drawn[x] for x in range(1, 161)] == pytest.approx(size, rel=1e-3)
        names = [trace["name"] for trace in chart.traces]
        assert names[-2:] == ["running mean", "theory"]
        window = np.sqrt((model.theory[:5] ** 2).sum(axis=1)).mean()
        assert chart.traces[-1]["y"][0] == pytest.approx(window, rel=1e-4)

    def test_theory_against_what_happened(self):
        model = made.model_regression().model
        dots, exact = report_charts(made.model_regression())["model-theory"].traces
        assert dots["x"] == pytest.approx(model.theory.ravel(), rel=1e-3)
        assert dots["y"] == pytest.approx(model.shift.ravel(), rel=1e-3)
        assert dots["customdata"][:2] == ["row 200, temperature", "row 200, humidity"]
        assert exact["x"] == exact["y"]

    def test_groups_are_the_model_s(self):
        diagnosis = real.classification()
        groups = replace(diagnosis.groups, size=np.arange(16.0).reshape(4, 4))
        chart = report_charts(made.with_model(diagnosis, groups=groups))["model-groups"]
        assert chart.traces[0]["z"] == groups.size.tolist()

    def test_facts(self):
        model = made.model_regression().model
        facts = dict(model_facts(model))
        assert "\u221222% (\u221230% to \u221215%)" in facts["Order"]
        assert "12 orders" in facts["Order"]
        assert "81% (70% to 90%)" in facts["Corrected targets"]
        assert "2.8 standard deviations" in facts["Corrected targets"]
        assert model.description in facts["Described by"]
        assert "94%" in facts["Agreement"]
        assert "8 (7.2 to 9.6)" in facts["Memory"]
        assert "11 (9.9 to 13.2)" in facts["Memory"]
        open_gap = dict(model_facts(replace(model, closed=real.UNDEFINED)))
        assert "%" not in open_gap["Corrected targets"]

    def test_agreement_in_words(self):
        words = [agreement_words(share) for share in (0.9, 0.89, 0.5, 0.49, -2.0, np.nan)]
        assert [" well:" in w for w in words] == [True, False, False, False, False, False]
        assert [" roughly:" in w for w in words] == [False, True, True, False, False, False]
        assert ["does not" in w for w in words] == [False, False, False, True, True, False]

    def test_one_that_failed(self):
        diagnosis = made.model_that_failed()
        charts, facts = report_charts(diagnosis), dict(model_facts(diagnosis.model))
        assert all(charts[key] is None for key in ("model-shift", "model-errors", "model-theory"))
        assert set(facts) == {"Corrected targets", "Described by"}
        page = report_html(diagnosis)
        assert 'id="chart-shift"' in page  # the kernel's shift is the first picture then
        assert "<script>window.hacked" not in page

    def test_no_model_no_section(self):
        page = report_html(real.regression())
        assert 'id="model"' not in page
        assert 'href="#model"' not in page
