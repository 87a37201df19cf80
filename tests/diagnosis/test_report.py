"""The page of a diagnosis: its structure, its tables and cards, and what it never runs or loads."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from datetime import datetime
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from retarget.diagnosis.answers import UNKNOWN
from retarget.diagnosis.metrics import METRICS
from retarget.diagnosis.report import report_tables as tables
from retarget.diagnosis.report.charts import Chart
from retarget.diagnosis.report.charts.catalog import CHARTS, report_charts
from retarget.diagnosis.report.page import chart_json, first_screen, report_html
from retarget.diagnosis.report.scores import score_table, squared_scores
from retarget.diagnosis.result import Stability
from retarget.diagnosis.words import numbers, setting
from support import made_diagnosis as made

NOON = datetime(2026, 11, 15, 12)
PLOTLY = get_plotlyjs()
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """A page as a browser would take it apart: elements, their attributes, and texts."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open = [], []
        self.said = {"script": [], "style": [], "text": []}
        self.feed(html.replace(PLOTLY, "plotly"))
        self.close()
        self.text = " ".join(" ".join(self.said["text"]).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else "text"
        self.said[inside if inside in self.said else "text"].append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    def drawings(self):
        return json.loads(self.said["script"][0])


@pytest.fixture(scope="module")
def pages():
    """The HTML of a diagnosis, by its name, and the page made of it."""

    @cache
    def page_of(name):
        html = report_html(getattr(made, name)(), command="retarget diagnose a.csv", made=NOON)
        return html, Page(html)

    return page_of


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def texts(table, column):
    return [row[table.columns.index(column)].text for row in table.rows]


@pytest.mark.parametrize("name", made.PAGES)
class TestEveryPage:
    def test_what_comes_first(self, pages, name):
        page = pages(name)[1]
        assert not page.open
        assert page.all("html") == [{"lang": "en"}]
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        assert (levels[0], levels.count(1)) == (1, 1)
        assert all(b <= a + 1 for a, b in pairwise(levels))
        ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
        assert len(ids) == len(set(ids))
        named = [attrs["aria-labelledby"] for attrs in page.all("section")]  # by its heading
        assert named == [f"{attrs['id']}-title" for attrs in page.all("section")]
        assert set(named) <= set(ids)
        order = [
            ids.index(part)
            for part in ("forgetting", "advice", "along", "scores", "found", "shift")
        ]
        assert order == sorted(order)
        assert ("model" in ids) == (name.startswith("model") or name == "logged")
        assert ("#model" in [attrs["href"] for attrs in page.all("a")]) == ("model" in ids)
        assert "compared" not in ids
        made_with = ("retarget diagnose a.csv", "2026-11-15 12:00", "retarget 0.")
        assert all(text in page.text for text in made_with)
        assert not re.search("offline", page.text, re.IGNORECASE)

    def test_at_most_eight_charts_each_with_its_words(self, pages, name):
        page, folded, inside = pages(name)[1], set(), ""
        charts = [attrs for attrs in page.all("div") if attrs.get("class") == "chart"]
        drawn = [attrs["id"] for attrs in charts]
        assert [f"chart-{key}" for key in page.drawings()] == drawn
        assert len(drawn) <= len(CHARTS) <= 8
        assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 30 for attrs in charts)
        assert len(page.all("figcaption")) == len(page.all("figure")) == len(charts)
        for tag, attrs in page.elements:
            inside = tag if tag in ("section", "details") else inside
            if attrs.get("class") == "chart" and inside == "details":
                folded.add(attrs["id"])
        assert folded == ({"chart-rate"} if "chart-along" in drawn else set()) & set(drawn)

    def test_it_needs_nothing_from_outside(self, pages, name):
        html, page = pages(name)
        addresses = [
            attrs[key]
            for _, attrs in page.elements
            for key in ("src", "href", "action", "srcset", "data", "poster")
            if key in attrs
        ]
        ids = {attrs.get("id") for _, attrs in page.elements}
        assert all(a == "data:," or (a[0] == "#" and a[1:] in ids) for a in addresses)
        assert not re.search(r"url\(|@import|@font-face", "".join(page.said["style"]))
        policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert "connect-src" not in rules
        expected = {
            f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
            for script in (PLOTLY, page.said["script"][2])
        }
        assert set(rules["script-src"].split()) == expected
        assert ("meta", {"charset": "utf-8"}) in page.elements[:4]
        assert html.count("* plotly.js v") == 1
        assert len(html.encode()) - len(PLOTLY.encode()) < 1_500_000

    def test_no_number_is_shown_that_is_none(self, pages, name):
        assert not re.search(r"\bnan\b|\bNaN\b|\binf\b|\bNone\b", pages(name)[1].text)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_digits_on_a_heat_map(pages, theme):
    """With a contrast of 4.5 at least (WCAG 2.1, AA)."""
    style = pages("regression")[1].said["style"][0]
    ink, surface, warm = (
        np.array([int(color[k : k + 2], 16) for k in (0, 2, 4)]) / 255
        for name in ("ink", "surface", "warm")
        for color in re.findall(rf"--{name}: #(\w{{6}});", style)[theme : theme + 1]
    )

    def luminance(share):
        linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722] + 0.05

    ratio = luminance(np.linspace(surface, warm, 20)) / luminance(ink)
    assert np.maximum(ratio, 1 / ratio).min() >= 4.5


class TestWords:
    def test_what_is_not_drawn(self, pages):
        assert "groups" not in pages("one_group")[1].drawings()
        assert set(pages("diverged")[1].drawings()) == {"scores", "rate"}
        assert "predictions for held-out rows are not finite" in pages("diverged")[1].text
        assert "no rows of the whole stream are held out" in pages("progressive")[1].text
        assert "those at the end of the stream" in pages("logged")[1].text
        assert tables.shifted_table(made.diverged()) is None

    def test_verdict_notes_setting_and_definitions(self):
        diagnosis = made.regression()
        page = Page(report_html(diagnosis))
        verdict, text = diagnosis.verdict, page.text
        for part in (
            *(verdict.headline, *verdict.findings, *verdict.recommendations),
            *(*diagnosis.stream.notes, "season, age, wind", "by station"),
            *("Made from Python.", datetime.now().strftime("%Y-")),
        ):
            assert " ".join(part.split()) in text
        places = [text.index(word) for word in (verdict.headline, "What was forg", "Use a batch")]
        assert places == sorted(places)
        for word, meaning in setting.definitions(diagnosis):
            assert f"{word} {meaning}" in text

    def test_compared_with_an_earlier_run(self):
        rows = [("Error, <b>next rows</b>", "0.5", "0.25", "lower"), ("Rows", "10", "12", "2 more")]
        page = Page(report_html(made.regression(), compared=rows))
        assert {"compared", "compared-title"} <= {a.get("id") for _, a in page.elements}
        assert "#compared" in [attrs["href"] for attrs in page.all("a")]
        assert all(text in page.text for row in rows for text in row)
        assert page.all("b") == []

    def test_stability(self):
        diagnosis = made.regression()
        lr = replace(diagnosis.lr, value=0.25)
        for largest, safe, share in ((np.inf, True, 0), (np.nan, True, 0), (0.1, False, 100)):
            for condition in (1.2, 20.0, 2e3, np.nan):
                stability = Stability(largest, condition)
                found = setting.stability_words(replace(diagnosis, lr=lr, stability=stability))
                assert (found.safe, found.share) == (safe, share)


class TestTables:
    def test_scores_have_a_column_for_each_question(self):
        diagnosis = made.regression()
        table = tables.as_text(score_table(diagnosis))
        assert table.columns == ["Learner", "Whole stream", "Next rows"]
        assert texts(table, "Whole stream") == ["5", "9", "5", "6", "12.5", "15.5"]
        assert texts(table, "Next rows") == ["10", "18", "10", "12", "25", "15.5"]
        assert [row[0].mark for row in table.rows][:2] == ["offline", "online"]
        assert table.rows[1][2].note == "16.2 to 21.6"
        assert "75% (70% to 80%)" in table.rows[3][1].note  # of the gap
        assert squared_scores(diagnosis) is None  # it would say the same again
        lost = tables.as_text(score_table(made.undefined()))
        assert texts(lost, "Next rows")[1] == tables.NOT_DEFINED
        assert "gap" not in lost.rows[3][1].note
        single = tables.as_text(score_table(made.progressive()))
        assert len(single.columns) == 2
        assert texts(single, single.columns[1])[2] == tables.NOT_DEFINED
        assert tables.as_text(score_table(made.many_groups())).columns == [
            "Learner",
            "Whole stream",
        ]

    def test_the_last_value_for_next_rows_only(self):
        diagnosis = made.regression()
        whole, following = diagnosis.answers
        whole = replace(whole, baselines=whole.baselines[:1])  # the mean alone
        table = tables.as_text(score_table(replace(diagnosis, answers=(whole, following))))
        assert table.rows[-1][1] == (tables.NOT_MEASURED, "only for the next rows", "")
        assert table.rows[-1][2].text == "15.5"

    def test_scores_of_classes_and_of_other_metrics(self):
        diagnosis = made.classification()
        assert texts(tables.as_text(score_table(diagnosis)), "Whole stream")[:2] == ["95%", "60%"]
        assert texts(tables.as_text(squared_scores(diagnosis)), "Next rows")[:2] == ["10", "18"]
        by_loss = tables.as_text(score_table(replace(diagnosis, metric=METRICS["log-loss"])))
        assert texts(by_loss, "Whole stream")[:2] == ["5", "9"]

    def test_the_first_screen_has_four_of_the_scores(self):
        diagnosis = made.regression()
        table = tables.first_table(diagnosis)
        assert table.columns == ["Learner", "Whole stream (40 rows)", "Next rows (40 rows)"]
        assert [row[0].text for row in table.rows] == [
            *("Batch model", "Online model", "Online, corrected", "Best simple predictor")
        ]
        assert texts(table, table.columns[1]) == ["5", "9", "6", "12.5"]
        assert texts(table, table.columns[2]) == ["10", "18", "12", "15.5"]
        caption = tables.first_caption(diagnosis)
        assert caption.startswith("Mean squared error, in squared units of 2 targets, with 95%")
        assert caption.endswith("the mean (whole stream), the last value (next rows).")
        # one of them is the best for both, so it is named
        only_mean = [replace(one, baselines=one.baselines[:1]) for one in diagnosis.answers]
        named = replace(diagnosis, answers=tuple(only_mean))
        assert tables.first_table(named).rows[3][0].text == "The mean"
        assert "Best simple" not in tables.first_caption(named)
        # of a batch model of recent rows, if the online one is compared with that
        recent = [
            replace(one, baselines=(*one.baselines, replace(one.baselines[0], kind="recent")))
            for one in diagnosis.answers
        ]
        aimed = tables.first_table(replace(diagnosis, aim="window:9", answers=tuple(recent)))
        assert [row[0].text for row in aimed.rows][:2] == [
            *("Batch model of the last 9 rows", "Online model")
        ]
        assert aimed.rows[0][1].text == "12.5"

    def test_the_first_screen_of_a_model(self):
        table = tables.first_table(made.model_regression())
        assert table.columns[0] == "SGDRegressor"
        assert [row[0].text for row in table.rows][:3] == [
            *("as a batch model", "as it came", "on corrected targets")
        ]
        assert texts(table, table.columns[1]) == ["5", "9", "3", "12.5"]
        # what was not run is left out, but never the model as it came
        failed = tables.first_table(made.model_that_failed())
        assert [row[0].text for row in failed.rows] == ["as it came", "Best simple predictor"]
        assert failed.rows[0][1].text == tables.NOT_DEFINED

    def test_what_was_forgotten_and_the_two_costs(self):
        diagnosis = made.regression()
        costs = tables.cost_table(diagnosis)
        assert texts(costs, "Times") == ["3.5", "1.5", "1.2"]
        assert costs.rows[1][1].note == "1.4 to 1.6"
        assert texts(tables.cost_table(made.model_regression()), "Times") == ["7.5", "1.3", "1.25"]
        assert tables.cost_table(made.progressive()) is None
        unknown = replace(diagnosis, forgetting=None, one_pass_cost=UNKNOWN)
        assert texts(tables.cost_table(unknown), "Times") == ["1.5"]

    def test_recall_by_class(self):
        diagnosis = made.classification()
        recall = tables.recall_table(diagnosis)
        assert recall.columns == ["Class", "Rows learned", "Batch model", "Online model"]
        assert texts(recall, "Rows learned") == ["75"] * 4
        assert texts(recall, "Online model") == ["1.0%", "2.0%", "3.0%", "4.0%"]
        assert tables.recall_table(made.regression()) is None
        many = made.classification(tuple(f"class {k:02d}" for k in range(40)), 120)
        shown = texts(tables.recall_table(many), "Class")
        assert shown == [f"class {k:02d}" for k in range(20)]  # those with the least
        assert "These are the 20 classes of 40 with the least." in Page(report_html(many)).text
        mine = tables.recall_table(made.model_classification())
        assert mine.columns[2].endswith(", as a batch model")
        assert mine.columns[3].endswith(", as it came")
        assert texts(mine, mine.columns[3]) == ["0%", "10%", "20%", "30%"]

    def test_each_target_in_its_own_units(self):
        each = tables.target_table(made.regression())
        assert [row[0].text for row in each.rows] == ["temperature", "humidity"]
        assert [cell.text for cell in each.rows[1][1:]] == ["50", "90", "100", "180"]
        assert each.rows[1][1].note == "45 to 60"
        assert tables.target_table(made.many_groups()) is None  # one target

    def test_most_overwritten_rows(self):
        diagnosis = made.regression()  # ordered by a date, the file's last row first
        stream, shifted = diagnosis.stream, tables.shifted_table(diagnosis)
        order = np.argsort(-np.linalg.norm(diagnosis.effective - stream.Y, axis=1))[:10]
        assert texts(shifted, "Row") == [str(160 - i) for i in order]
        assert texts(shifted, "Position") == [str(i + 1) for i in order]
        assert texts(shifted, "Time") == [str(stream.times[i]) for i in order]
        assert texts(shifted, "Group") == [stream.groups[i] for i in order]
        true = stream.in_units(stream.Y)[order[0]]
        assert texts(shifted, "True target")[0] == ", ".join(numbers.number(y, 4) for y in true)
        shifted = tables.shifted_table(made.classification())  # the file's order, some held out
        assert "Position" not in shifted.columns
        order = np.argsort(-made.classification().shift_size, kind="stable")[:10]
        assert texts(shifted, "Row") == [str(made.classification().stream.rows[i]) for i in order]
        parts = replace(made.classification().stream, groups=None, group_column=None)
        found = replace(made.classification(), stream=parts)
        assert "Group" not in tables.shifted_table(found).columns

    def test_groups(self):
        diagnosis = made.classification()
        groups, size = tables.group_table(diagnosis), diagnosis.groups.size
        assert texts(groups, "Rows") == ["75"] * 4
        assert [row[3].text for row in groups.rows] == [numbers.number(x) for x in np.diag(size)]
        by = int(size[0, 1:].argmax()) + 1
        assert groups.rows[0][-1][:2] == (numbers.number(size[0, by]), f"by class {by}")
        assert groups.rows[3][-1].text == "none"
        mine = tables.group_table(made.with_model(diagnosis))  # as the model moved them
        assert [row[3].text for row in mine.rows] == [numbers.number(2 * x) for x in np.diag(size)]

    def test_the_error_along_the_stream(self):
        diagnosis = made.classification()
        table, along = tables.along_table(diagnosis), diagnosis.along
        for column, name in enumerate(("online", "batch", "online_now"), 1):
            assert [row[column].text for row in table.rows] == [
                numbers.number(error) for error in along[name]
            ]
        first, last = diagnosis.stream.rows[along["first"][2] - 1], diagnosis.stream.rows[44]
        assert table.rows[2][0].text == f"rows {first} to {last}"


class TestModel:
    def test_each_way_on_both_questions(self):
        diagnosis = made.model_regression()
        ways = tables.as_text(score_table(diagnosis))
        assert texts(ways, "Whole stream") == ["9", "7", "5", "3", "12.5", "15.5"]
        assert texts(ways, "Next rows") == ["18", "14", "10", "6", "25", "15.5"]
        marks = ["online", "one-step", "offline", "corrected", "baseline"]
        assert [row[0].mark for row in ways.rows][:5] == marks
        changes = tables.change_table(diagnosis.model)
        assert len(changes.rows) == 3  # against the model as it came
        for column in ("Whole stream", "Next rows"):
            assert texts(changes, column) == [
                f"{share}% lower (5.0% to 70%)" for share in (22, 44, 67)
            ]
        assert "81% (70% to 90%)" in changes.rows[2][1].note
        open_gap = replace(diagnosis.model, closed={"whole": UNKNOWN})
        assert tables.change_table(open_gap).rows[2][1].note == ""

    def test_facts_and_the_numbers_in_them(self):
        model = made.model_regression().model
        facts = dict(tables.model_facts(model))
        assert all(part in facts["Memory"] for part in ("8 (7.2 to 9.6)", "11 (9.9 to 13.2)"))
        assert "2.8 standard deviations" in facts["Corrected targets"]
        assert facts["Kernel"] == model.description
        assert "94%" in facts["Agreement"]
        failed = dict(tables.model_facts(made.model_that_failed().model))
        assert set(failed) == {"Corrected targets", "Kernel"}

    def test_the_score_and_shift_of_a_log(self, pages):
        table = tables.as_text(score_table(made.logged()))
        assert [row[1].text for row in table.rows] == ["8", "12.5", "15.5"]
        assert tables.change_table(made.logged().model) is None
        tested = replace(made.logged(), answers=made.regression().answers)  # asked about other rows
        assert [row[1].text for row in tables.as_text(score_table(tested)).rows] == ["8"]
        assert "Effective target" in tables.shifted_table(made.logged()).columns
        shifted = tables.shifted_table(made.model_regression())
        model = made.model_regression().model
        row = int(np.argmax(np.linalg.norm(model.end - model.after, axis=1)))
        assert texts(shifted, "Row")[0] == str(160 - row)
        end = made.regression().stream.in_units(model.end)[row]
        expected = ", ".join(numbers.number(value, 4) for value in end)
        assert texts(shifted, "Predicted at the end")[0] == expected


class TestHostileText:
    def test_nothing_becomes_markup(self):
        diagnosis, command = made.hostile(), "</code><script>window.hacked=9</script>"
        page = Page(report_html(diagnosis, command=command))
        assert [len(page.all(tag)) for tag in ("script", "img", "b")] == [3, 0, 0]
        assert all(attrs["href"].startswith("#") for attrs in page.all("a"))
        assert not any(key.startswith("on") for _, attrs in page.elements for key in attrs)
        for text in (*diagnosis.stream.notes, command):
            assert text in page.text
        assert "<script>window.hacked" not in report_html(made.model_that_failed())

    def test_plotly_sees_no_tags_but_ours(self):
        charts = report_charts(made.hostile())
        assert not set("<>&\u2028\u2029") & set(chart_json(charts))  # it stays in place
        ours = re.compile(r"</?extra>|<br>")
        for chart in (one for one in charts.values() if isinstance(one, Chart)):
            for text in strings(json.loads(chart.figure.to_json())):
                assert "<" not in ours.sub("", text)
                assert "\u202e" not in text
            for trace in chart.figure.data:
                template = getattr(trace, "hovertemplate", None) or ""
                assert not re.search(r"hacked|7 \* 7", template)


class TestNotebook:
    def test_shows_headline_advice_and_scores_without_scripts(self):
        diagnosis = made.regression()
        html = diagnosis._repr_html_()
        assert html == first_screen(diagnosis)
        page = Page(html)
        assert not page.open
        tags = {tag for tag, _ in page.elements}
        allowed = ("div", "p", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "br")
        assert tags <= {*allowed, "small", "span", "style"}
        for text in (diagnosis.verdict.headline, *diagnosis.verdict.recommendations):
            assert text in page.text
        assert "Whole stream" in page.text
        assert "16.2 to 21.6" in page.text
        assert "from when they came to 120 rows later" in page.text
        assert len(html) < 5000

    def test_text_stays_text(self):
        page = Page(first_screen(made.hostile()))
        assert [len(page.all(tag)) for tag in ("script", "img", "b", "a")] == [0, 0, 0, 0]
        assert all(text in page.text for text in made.HOSTILE)


def test_the_file_is_whole_or_as_before(tmp_path):
    path = tmp_path / "new" / "report.html"
    made.one_group().to_html(str(path), command="diagnose \udcff.csv")
    written = path.read_text("utf-8")
    assert "diagnose \\udcff.csv" in written  # bytes that are no text
    one, two = (report_html(made.one_group(), made=NOON) for _ in range(2))
    assert one == two
    with pytest.raises(AttributeError):
        replace(made.one_group(), stream=None).to_html(path)
    assert path.read_text("utf-8") == written
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
