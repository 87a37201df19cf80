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
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from retarget.diagnosis.report import page_tables as tables
from retarget.diagnosis.report import words
from retarget.diagnosis.report.page import (
    FIRST,
    chart_json,
    report_charts,
    report_html,
    write_report,
)
from retarget.diagnosis.result import Stability
from retarget.learners import SGD
from support import real_diagnosis as real

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
    def made(name):
        html = report_html(getattr(real, name)(), command="retarget diagnose a.csv", made=NOON)
        return html, Page(html)

    return made


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def texts(table, column):
    return [row[table.columns.index(column)].text for row in table.rows]


@pytest.mark.parametrize("name", real.PAGES)
class TestEveryPage:
    def test_is_well_formed_with_the_picture_and_the_advice_first(self, pages, name):
        page = pages(name)[1]
        assert not page.open
        assert page.all("html") == [{"lang": "en"}]
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        assert (levels[0], levels.count(1)) == (1, 1)
        assert all(b <= a + 1 for a, b in pairwise(levels))
        ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
        assert len(ids) == len(set(ids))
        assert ids.index("advice") < ids.index("found") < ids.index("scores")
        assert ("model" in ids) == name.startswith("model")
        assert ("#model" in [attrs["href"] for attrs in page.all("a")]) == ("model" in ids)
        first = next(f"chart-{key}" for key in FIRST if f"chart-{key}" in ids)
        assert first == next(i for i in ids if i.startswith("chart-"))
        assert ids.index(first) < ids.index("advice")
        made = ("retarget diagnose a.csv", "2026-11-15 12:00", "retarget 0.")
        assert all(text in page.text for text in made)

    def test_every_chart_has_its_words_and_what_few_need_is_folded(self, pages, name):
        page, inside, folded = pages(name)[1], [], set()
        charts = [attrs for attrs in page.all("div") if attrs.get("class") == "chart"]
        drawn = [attrs["id"] for attrs in charts]
        assert set(drawn) == {f"chart-{key}" for key in page.drawings()}
        assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 30 for attrs in charts)
        assert len(page.all("figcaption")) == len(page.all("figure")) == len(charts)
        for tag, attrs in page.elements:
            if tag in ("section", "details"):
                inside = [*inside[: tag == "details"], attrs.get("id", tag)]
            if attrs.get("class") == "chart" and inside[-1] == "details":
                folded.add(attrs["id"])
        assert folded == {"chart-rate", "chart-ridge", "chart-group-pull"} & set(drawn[1:])

    def test_needs_nothing_from_outside_and_its_policy_allows_these_scripts_only(self, pages, name):
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

    def test_charts_are_valid_plotly_and_not_too_many_points(self, pages, name):
        for key, drawing in pages(name)[1].drawings().items():
            # The names of the style sheet's colours are looked up in the page.
            coloured = json.loads(re.sub(r'"--\w+"', '"#123456"', json.dumps(drawing)))
            figure = go.Figure(data=coloured["data"], layout=coloured["layout"])
            assert len(figure.data) == len(drawing["data"]) > 0
            shown = [t for t in drawing["data"] if t.get("visible", True)]
            assert sum(len(trace.get("x", [])) for trace in shown) <= 5000, key
            for view in drawing["views"]:
                figure.update_layout({k.replace(".", "_"): v for k, v in view["layout"].items()})


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_digits_can_be_read_on_every_colour_of_a_heat_map(pages, theme):
    """With a contrast of 4.5 at least (WCAG 2.1, AA)."""
    style = pages("regression")[1].said["style"][0]
    named = {
        name: np.array([int(colour[k : k + 2], 16) for k in (0, 2, 4)]) / 255
        for name in ("ink", "surface", "warm", "cold")
        for colour in re.findall(rf"--{name}: #(\w{{6}});", style)[theme : theme + 1]
    }

    def luminance(share):
        linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722] + 0.05

    for strongest in (named["warm"], named["cold"]):
        mixed = np.linspace(named["surface"], strongest, 20)
        ratio = luminance(mixed) / luminance(named["ink"])
        assert np.maximum(ratio, 1 / ratio).min() >= 4.5


WORDS = {
    "undefined": (
        "not defined it diverged: its predictions are not finite numbers",
        "not defined one of the errors in it is not defined",
        "Shift against density is not drawn",
        "No other rates were tried",
        "non-normality of the online system is not defined",
        "125% of the largest rate at which every",
        "40 rows are left out: their shift is not finite",
        "An empty square is not defined.",
    ),
    "progressive": (
        "200 rows, each just before it was learned",
        "the exact correction needs the whole stream",
    ),
    "large": (
        "1,024 Nyström features instead of the kernel matrix",
        "would need 960.0 GB of memory and may use 4.0 GB",
        "on a sample of 2,000 rows",
        "Kernel entries 3.1% Shifts 8.7% Online predictions 1.9%",
        " of 20,000 are drawn, 20%",
        "(its condition number of the first 2,000 rows)",
    ),
    "diverged": (
        "no row's shift is a finite number",
        "no effective target is a finite number",
        "The movements between groups are not defined",
    ),
    "one_group": ("There is only one group (all rows, 160 rows)",),
}
SILENT = {
    "undefined": r"\bnan\b|\bNaN\b|\binf\b",
    "diverged": "No group's targets were moved|most distorted rows|no later group",
}


class TestWords:
    @pytest.mark.parametrize("name", WORDS)
    def test_unusual_cases(self, pages, name):
        text = pages(name)[1].text
        assert [part for part in WORDS[name] if part not in text] == []
        assert not re.search(SILENT.get(name, "$^"), text)
        if name == "one_group":
            assert not any("group" in key for key in pages(name)[1].drawings())

    def test_verdict_notes_setting_and_moves(self):
        diagnosis = real.regression()
        text = Page(report_html(diagnosis)).text
        for sentence in (
            diagnosis.verdict.headline,
            *diagnosis.verdict.findings,
            *diagnosis.verdict.recommendations,
            *diagnosis.stream.notes,
            *(move.words(" standard deviations") for move in words.largest_moves(diagnosis.groups)),
            diagnosis.kernel,
            "season, age, wind",
            "by station",
            "Made from Python.",
            datetime.now().strftime("%Y-"),
            f"{words.percent(diagnosis.lr.value / 2)} of the largest rate at which every step",
        ):
            assert " ".join(sentence.split()) in text

    def test_the_setting(self):
        learner = SGD(
            lr=0.2, batch_size=8, momentum=0.9, nesterov=True, weight_decay=0.01, reduction="mean"
        )
        given = replace(real.regression().gamma, how="given")
        ridge, aim = replace(given, value=0.5), replace(given, value=given.value * 10)
        plain = replace(real.regression(), ridge=replace(given, value=0.0), aim=given)
        assert dict(words.setting(plain))["Iterative correction"] == "in blocks of 16 rows"
        said = dict(words.setting(replace(plain, learner=learner, ridge=ridge, aim=aim)))
        assert "mini-batches of 8 (loss: mean), Nesterov momentum 0.9" in said["Online learner"]
        assert said["Weight decay"] == "0.01"
        correction = said["Iterative correction"]
        assert correction.endswith("steadied by a ridge of 0.5 (given)")
        assert f"towards the offline learner with ridge {words.number(aim.value)}" in correction

    def test_stability(self):
        diagnosis = real.regression()
        lr = replace(diagnosis.lr, value=0.25)
        for largest, condition, rate, system, safe, share in (
            (np.inf, 1.2, "Every rate is stable", "Steps hardly affect", True, 0),
            (np.nan, 20.0, "not defined", "other moderately", True, 0),
            (0.1, 2e3, "250%", "other strongly", False, 100),
        ):
            stability = Stability(largest, condition)
            found = words.stability_words(replace(diagnosis, lr=lr, stability=stability))
            assert rate in found.rate
            assert system in found.system
            assert (found.safe, found.share) == (safe, share)


class TestTables:
    def test_of_numbers(self):
        diagnosis = real.model_regression()
        stream, cards = diagnosis.stream, tables.score_cards(diagnosis, None)
        assert "2 targets" in tables.measure(stream)
        assert "temperature" in tables.measure(real.many_groups().stream)
        errors = [words.number(score.error.value) for score in diagnosis.scores]
        assert [card.value for card in cards] == [*errors, "12.5", "not defined"]
        scores = tables.score_table(diagnosis)
        assert [row[0].mark for row in scores.rows] == [card.mark for card in cards]
        assert [row[1].text for row in scores.rows] == [card.value for card in cards]
        assert scores.rows[-2][1].note == "11.2 to 15"
        none = {"corrected": real.UNDEFINED, "iterative": real.UNDEFINED}
        gap = tables.score_table(replace(diagnosis, gap_closed=none)).rows[2][-1]
        behind = "the online learner is not clearly behind the offline one"
        assert gap[:2] == ("not defined", behind)
        each = tables.target_table(diagnosis)  # in its own units
        assert texts(each, "Target") == ["temperature", "humidity"]
        assert texts(each, "Online") == texts(each, "Offline") == ["1", "10"]
        assert each.rows[1][1].note == "9 to 12"
        assert tables.target_table(real.many_groups()) is None  # one target

        # The file's latest day comes first, so its last row is the first of the stream.
        shifted = tables.shifted_table(diagnosis)
        order = np.argsort(-np.linalg.norm(diagnosis.effective - stream.Y, axis=1))[:10]
        assert texts(shifted, "Position") == [str(i + 1) for i in order]
        assert texts(shifted, "Row") == [str(stream.rows[i]) for i in order]
        assert stream.rows[order[0]] + order[0] == 200
        assert texts(shifted, "Time") == [str(stream.times[i]) for i in order]
        assert texts(shifted, "Group") == [stream.groups[i] for i in order]
        true = stream.in_units(stream.Y)[order[0]]
        assert texts(shifted, "True")[0] == ", ".join(words.number(y, 4) for y in true)
        for key in ("density", "targets"):
            traces = report_charts(diagnosis)[key].traces[:2]
            numbers = [n for trace in traces for n in trace.get("customdata", ())]
            assert sorted(numbers) == sorted(stream.rows)
        diagnosis = real.many_groups()  # columns only if they tell something
        columns = ["Row", "Group", "Shift", "True", "Effective"]
        assert tables.shifted_table(diagnosis).columns == columns
        parts = replace(diagnosis.stream, groups=None, group_column=None)
        assert "Group" not in tables.shifted_table(replace(diagnosis, stream=parts)).columns

    def test_of_classes(self):
        diagnosis = real.classification()
        assert tables.measure(diagnosis.stream) == "share of rows predicted correctly"
        first, *others = diagnosis.scores
        lost = replace(first, error=real.UNDEFINED, accuracy=real.UNDEFINED)
        cards = tables.score_cards(replace(diagnosis, scores=(lost, *others)), None)
        shares = [words.percent(score.accuracy.value) for score in others]
        assert [card.value for card in cards[:4]] == ["not defined", *shares]
        assert [len(card.notes) for card in cards[:4]] == [1, 2, 2, 2]
        gaps = [row[-1].text for row in tables.score_table(diagnosis).rows[:4]]
        closed = [diagnosis.gap_closed[learner].value for learner in ("corrected", "iterative")]
        assert gaps == ["", "", *(words.percent(share) for share in closed)]
        groups, size = tables.group_table(diagnosis), diagnosis.groups.size
        assert texts(groups, "Rows") == ["75"] * 4
        assert texts(groups, "By its own later rows") == [words.number(x) for x in np.diag(size)]
        by = int(size[0, 1:].argmax()) + 1
        assert groups.rows[0][-1] == (words.number(size[0, by]), f"by class {by}", "")
        assert groups.rows[3][-1].note == "no later group"

    def test_of_a_model(self):
        diagnosis, classes = real.model_regression(), real.model_classification()
        model = diagnosis.model
        cards = tables.score_cards(diagnosis, model)
        assert [card.value for card in cards] == ["9", "7", "5", "3", "12.5", "not defined"]
        assert [card.mark for card in cards][:4] == ["online", "one-step", "offline", "corrected"]
        known, *others = model.scores  # what is known of a log of predictions
        scores = (known, *(replace(score, error=real.UNDEFINED) for score in others))
        cards = tables.score_cards(diagnosis, replace(model, scores=scores, orders=()))
        assert [card.value for card in cards] == ["9", "12.5", "not defined"]
        ways = tables.model_table(classes, classes.model)
        assert texts(ways, "Way of training")[:4] == [way.capitalize() for way in words.WAYS]
        assert {row[2].text for row in ways.rows} == {"50%", "25%"}
        facts = dict(tables.model_facts(model))
        for term, *told in (
            ("Order", "\u221222% (\u221230% to \u221215%)", "12 orders"),
            ("Corrected targets", "81% (70% to 90%)", "2.8 standard deviations"),
            ("Described by", model.description),
            ("Agreement", "94%"),
            ("Memory", "8 (7.2 to 9.6)", "11 (9.9 to 13.2)"),
        ):
            assert all(part in facts[term] for part in told)
        open_gap = dict(tables.model_facts(replace(model, closed=real.UNDEFINED)))
        assert "%" not in open_gap["Corrected targets"]
        failed = dict(tables.model_facts(real.model_that_failed().model))
        assert set(failed) == {"Corrected targets", "Described by"}
        said = [tables.agreement_words(share) for share in (0.9, 0.89, 0.5, 0.49, np.nan)]
        found = [re.findall(" well:| roughly:|does not|cannot", text)[0] for text in said]
        assert found == [" well:", " roughly:", " roughly:", "does not", "cannot"]


class TestHostileText:
    def test_nothing_becomes_markup(self):
        diagnosis, command = real.hostile(), "</code><script>window.hacked=9</script>"
        page = Page(report_html(diagnosis, command=command))
        assert [len(page.all(tag)) for tag in ("script", "img", "b")] == [3, 0, 0]
        assert all(attrs["href"].startswith("#") for attrs in page.all("a"))
        assert not any(key.startswith("on") for _, attrs in page.elements for key in attrs)
        for text in (*diagnosis.stream.notes, command):
            assert text in page.text
        assert "<script>window.hacked" not in report_html(real.model_that_failed())

    def test_plotly_sees_no_tags_but_ours(self):
        charts = [chart for chart in report_charts(real.hostile()).values() if chart]
        assert not set("<>&\u2028\u2029") & set(chart_json(charts))  # it stays in place
        ours = re.compile(r"</?extra>|<br>")
        for chart in charts:
            for text in strings(chart.drawing()):
                assert "<" not in ours.sub("", text)
                assert "\u202e" not in text
            for trace in chart.traces:
                assert not re.search(r"hacked|7 \* 7", trace.get("hovertemplate", ""))


def test_the_file_is_whole_or_as_before_and_the_same_each_time(tmp_path):
    path = tmp_path / "new" / "report.html"
    write_report(real.one_group(), str(path), command="diagnose \udcff.csv", made=NOON)
    written = path.read_text("utf-8")
    assert "diagnose \\udcff.csv" in written  # bytes that are no text
    assert written == report_html(real.one_group(), command="diagnose \udcff.csv", made=NOON)
    with pytest.raises(AttributeError):
        write_report(None, path)
    assert path.read_text("utf-8") == written
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
