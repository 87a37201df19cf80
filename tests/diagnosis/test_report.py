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

from retarget.diagnosis.report.page import (
    FIRST,
    chart_json,
    report_charts,
    report_html,
    write_report,
)
from retarget.diagnosis.report.page_tables import score_cards
from retarget.diagnosis.report.words import (
    largest_moves,
    number,
    percent,
    setting,
    stability_words,
    with_interval,
)
from retarget.diagnosis.result import Stability
from retarget.learners import SGD
from support import hand_made_model as made
from support import real_diagnosis as real

NOON = datetime(2026, 11, 15, 12)
CASES = (
    *("classification", "regression", "many_groups", "one_group", "progressive", "undefined"),
    *("diverged", "large", "hostile", "model_regression", "model_classification"),
    "model_that_failed",
)
PLOTLY = get_plotlyjs()
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """A page as a browser would take it apart: elements, their attributes, and texts."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self.raw, self.open = [], [], [], []
        self.feed(html.replace(PLOTLY, "plotly"))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.raw.append((self.open[-1], data))
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    def scripts(self):
        return [data for tag, data in self.raw if tag == "script"]


@pytest.fixture(scope="module", params=CASES)
def case(request):
    diagnosis = getattr(made if request.param.startswith("model") else real, request.param)()
    html = report_html(diagnosis, command="retarget diagnose a.csv", made=NOON)
    return html, Page(html)


def page_of(diagnosis, **options):
    return Page(report_html(diagnosis, **options))


def drawings(page):
    return json.loads(page.scripts()[0])


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


class TestPage:
    def test_is_well_formed_with_headings_in_order(self, case):
        page = case[1]
        assert not page.open
        assert page.all("html") == [{"lang": "en"}]
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in pairwise(levels))
        ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
        assert len(ids) == len(set(ids))

    def test_begins_with_the_picture_and_what_to_do(self, case):
        page = case[1]
        ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
        assert ids.index("advice") < ids.index("found") < ids.index("scores")
        if "model" in ids:
            assert ids.index("found") < ids.index("model") < ids.index("scores")
        first = [key for key in FIRST if f"chart-{key}" in ids][:1]
        assert [f"chart-{key}" for key in first] == [i for i in ids if i.startswith("chart-")][:1]
        if first:
            assert ids.index(f"chart-{first[0]}") < ids.index("advice")

    def test_what_few_need_is_folded(self, case):
        page, inside, folded = case[1], [], set()
        for tag, attrs in page.elements:
            if tag in ("section", "details"):
                inside = [*inside[: tag == "details"], attrs.get("id", tag)]
            if attrs.get("class") == "chart" and inside[-1] == "details":
                folded.add(attrs["id"])
        drawn = [attrs["id"] for attrs in page.all("div") if attrs.get("class") == "chart"]
        assert folded == {"chart-rate", "chart-ridge", "chart-group-pull"} & set(drawn[1:])

    def test_every_chart_has_its_words(self, case):
        page = case[1]
        charts = [attrs for attrs in page.all("div") if attrs.get("class") == "chart"]
        assert {attrs["id"] for attrs in charts} == {f"chart-{key}" for key in drawings(page)}
        assert all(len(attrs["aria-label"]) > 30 for attrs in charts)
        assert all(attrs["role"] == "img" for attrs in charts)
        assert len(page.all("figcaption")) == len(page.all("figure")) == len(charts)

    def test_needs_nothing_from_outside(self, case):
        page = case[1]
        addresses = [
            attrs[key]
            for _, attrs in page.elements
            for key in ("src", "href", "action", "srcset", "data", "poster")
            if key in attrs
        ]
        assert all(a.startswith("#") or a == "data:," for a in addresses)
        styles = "".join(data for tag, data in page.raw if tag == "style")
        assert not re.search(r"url\(|@import|@font-face", styles)
        targets = {a[1:] for a in addresses if a.startswith("#")}
        assert targets <= {attrs.get("id") for _, attrs in page.elements}

    def test_policy_allows_these_scripts_and_nothing_else(self, case):
        page = case[1]
        policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert "connect-src" not in rules
        expected = {
            f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
            for script in (PLOTLY, page.scripts()[2])
        }
        assert set(rules["script-src"].split()) == expected
        assert len(expected) == 2
        assert page.elements.index(("meta", {"charset": "utf-8"})) < next(
            i for i, (tag, _) in enumerate(page.elements) if tag == "script"
        )

    def test_is_plotly_once_and_little_more(self, case):
        html = case[0]
        assert html.count("* plotly.js v") == 1
        assert len(html.encode()) - len(PLOTLY.encode()) < 1_500_000

    def test_charts_are_valid_plotly_and_not_too_many_points(self, case):
        for key, drawing in drawings(case[1]).items():
            # The names of the style sheet's colours are looked up in the page.
            coloured = json.loads(re.sub(r'"--\w+"', '"#123456"', json.dumps(drawing)))
            figure = go.Figure(data=coloured["data"], layout=coloured["layout"])
            assert len(figure.data) == len(drawing["data"]) > 0
            shown = [t for t in drawing["data"] if t.get("visible", True)]
            assert sum(len(trace.get("x", [])) for trace in shown) <= 5000, key
            for view in drawing["views"]:
                assert len(view["traces"]) <= len(drawing["data"])
                figure.update_layout({k.replace(".", "_"): v for k, v in view["layout"].items()})

    def test_ends_with_how_it_was_made(self, case):
        text = case[1].text
        assert "retarget diagnose a.csv" in text
        assert "2026-11-15 12:00" in text
        assert "retarget 0." in text


WORDS = {
    "undefined": (
        "not defined its predictions are not finite numbers, so it diverged",
        "not defined one of the errors in it is not defined",
        "Shift against density is not drawn",
        "No other rates were tried",
        "non-normality of the online system is not defined",
        "125% of the largest at which every step is stable",
        "40 rows are left out: the shift is not finite",
        "An empty square is not defined.",
    ),
    "progressive": (
        "200 rows, each just before it was learned",
        "the exact correction has to know the whole stream",
    ),
    "large": (
        "1,024 Nyström features instead of the kernel matrix",
        "would need 960.0 GB of memory, and may have 4.0 GB",
        "on a sample of 2,000 rows",
        "Kernel entries 3.1% Shifts 8.7% Online predictions 1.9%",
        " of 200,000 are drawn, 2.0%",
        "(its condition number of the first 2,000 rows)",
    ),
    "diverged": (
        "no row's shift is a finite number",
        "no effective target is a finite number",
        "The movements between groups are not defined",
    ),
    "one_group": ("There is one group only (all rows, 160 rows)",),
}


@pytest.fixture(scope="module")
def pages():
    return cache(lambda name: page_of(getattr(real, name)()).text)


class TestContent:
    def test_scores_with_intervals_and_gap(self):
        diagnosis = real.classification()
        text = page_of(diagnosis).text
        row = text[text.index("Gap closed") :]
        for label, score in zip(("Offline", "Online"), diagnosis.scores, strict=False):
            cells = with_interval(score.error), with_interval(score.accuracy, share=True)
            assert f"{label} {' '.join(cells)}".replace("(", "").replace(")", "") in row
        closed = with_interval(diagnosis.gap_closed["iterative"], share=True)
        assert closed.replace("(", "").replace(")", "") in row

    def test_verdict_notes_setting_and_moves(self):
        diagnosis = real.regression()
        text = page_of(diagnosis).text
        for sentence in (
            diagnosis.verdict.headline,
            *diagnosis.verdict.findings,
            *diagnosis.verdict.recommendations,
            *diagnosis.stream.notes,
            *(move.words(" standard deviations") for move in largest_moves(diagnosis.groups)),
            diagnosis.kernel,
            "season, age, wind",
            "by station",
            "Made from Python.",
            f"{percent(diagnosis.lr.value / 2)} of the largest at which every step is stable, 2.",
        ):
            assert " ".join(sentence.split()) in text

    def test_most_distorted_rows(self):
        diagnosis = real.regression()
        text, stream = page_of(diagnosis).text, diagnosis.stream
        size = np.sqrt(((diagnosis.effective - stream.Y) ** 2).sum(axis=1))
        order = np.argsort(-size)
        first = order[0]
        true = stream.Y[first] * stream.target_scales + stream.target_means
        expected = (
            f"{stream.rows[first] + 1} {first + 1} {stream.times[first]} {stream.groups[first]} "
            f"{number(size[first])} {number(true[0], 4)}, {number(true[1], 4)}"
        )
        assert expected in text
        rows = [f"{stream.rows[i] + 1} {i + 1} {stream.times[i]}" for i in order[:11]]
        places = [text.index(row) for row in rows[:10]]
        assert places == sorted(places)
        assert rows[10] not in text

    @pytest.mark.parametrize(("name", "words"), [(n, w) for n in WORDS for w in WORDS[n]])
    def test_words_of_unusual_cases(self, pages, name, words):
        assert words in pages(name)

    def test_what_is_not_said(self, pages):
        assert not re.search(r"\bnan\b|\bNaN\b|\binf\b", pages("undefined"))
        for words in ("No group's targets were moved", "most distorted rows", "no later group"):
            assert words not in pages("diverged")
        drawn = {f'id="chart-{key}"' for key in report_charts(real.one_group()) if "group" in key}
        assert not any(key in report_html(real.one_group()) for key in drawn)

    def test_gap_that_is_none(self):
        closed = {"corrected": real.UNDEFINED, "iterative": real.UNDEFINED}
        text = page_of(replace(real.regression(), gap_closed=closed)).text
        assert "not defined the online learner is not clearly behind the offline one" in text

    def test_rows_right_of_a_learner_that_has_no_score(self):
        classes = real.classification()
        lost = {"error": real.UNDEFINED, "accuracy": real.UNDEFINED}
        scores = (replace(classes.scores[0], **lost), *classes.scores[1:])
        cards = score_cards(replace(classes, scores=scores), None)
        assert [card.value == "not defined" for card in cards[:4]] == [True, False, False, False]
        assert [len(card.notes) for card in cards[:4]] == [1, 2, 2, 2]

    def test_the_correction_in_words(self):
        given = replace(real.regression().gamma, how="given")
        plain = replace(real.regression(), ridge=replace(given, value=0.0), aim=given)

        def words(**changes):
            return dict(setting(replace(plain, **changes)))["Iterative correction"]

        assert words() == "in blocks of 16 rows"
        ridge, aim = replace(given, value=0.5), replace(given, value=given.value * 10)
        assert words(ridge=ridge).endswith("rows, steadied by a ridge of 0.5 (given)")
        assert f"towards the offline learner of ridge {number(aim.value)}" in words(aim=aim)

    def test_the_learner_in_words(self):
        learner = SGD(
            lr=0.2, batch_size=8, momentum=0.9, nesterov=True, weight_decay=0.01, reduction="mean"
        )
        words = dict(setting(replace(real.regression(), learner=learner)))
        assert "mini-batches of 8 (loss: mean), Nesterov momentum 0.9" in words["Online learner"]
        assert words["Weight decay"] == "0.01"

    @pytest.mark.parametrize(
        ("condition", "words"),
        [(1.2, "Steps hardly act"), (20.0, "other moderately"), (2e3, "other strongly")],
    )
    def test_non_normality_in_words(self, condition, words):
        diagnosis = replace(real.regression(), stability=Stability(0.5, condition))
        assert words in stability_words(diagnosis).system

    @pytest.mark.parametrize(
        ("largest", "words", "safe"),
        [
            (np.inf, "Every rate is stable", True),
            (np.nan, "not defined", True),
            (0.1, "250%", False),
        ],
    )
    def test_stability_in_words(self, largest, words, safe):
        diagnosis = real.regression()
        diagnosis = replace(diagnosis, lr=replace(diagnosis.lr, value=0.25))
        found = stability_words(replace(diagnosis, stability=Stability(largest, 2.0)))
        assert words in found.rate
        assert found.safe is safe
        assert 0 <= found.share <= 100


class TestHostileText:
    def test_nothing_becomes_markup(self):
        diagnosis = real.hostile()
        texts = diagnosis.stream.notes
        html = report_html(diagnosis, command="</code><script>window.hacked=9</script>")
        page = Page(html)
        assert len(page.all("script")) == 3
        assert not page.all("img")
        assert not page.all("b")
        assert all(attrs["href"].startswith("#") for attrs in page.all("a"))
        assert not any(key.startswith("on") for _, attrs in page.elements for key in attrs)
        for text in texts:
            assert text in page.text
        assert "</code><script>window.hacked=9</script>" in page.text

    def test_json_cannot_leave_its_element(self):
        data = chart_json(report_charts(real.hostile()).values())
        assert not set("<>&\u2028\u2029") & set(data)

    def test_plotly_sees_no_tags_but_ours(self):
        ours = re.compile(r"</?extra>|<br>")
        for text in strings(drawings(page_of(real.hostile()))):
            assert "<" not in ours.sub("", text)
            assert "\u202e" not in text

    def test_plotly_templates_hold_no_text_of_the_user(self):
        data = drawings(page_of(real.hostile()))
        for drawing in data.values():
            for trace in drawing["data"]:
                assert "hacked" not in trace.get("hovertemplate", "")
                assert "7 * 7" not in trace.get("hovertemplate", "")

    def test_bytes_that_are_no_text(self, tmp_path):
        write_report(real.one_group(), tmp_path / "r.html", command="diagnose \udcff.csv")
        assert "diagnose \\udcff.csv" in (tmp_path / "r.html").read_text("utf-8")


class TestWriting:
    def test_the_same_diagnosis_gives_the_same_page(self):
        first, second = (report_html(real.large(), made=NOON) for _ in range(2))
        assert first == second
        assert first != report_html(real.large(), made=datetime(2026, 11, 16))

    def test_date_is_today_if_not_given(self):
        before = datetime.now().strftime("%Y-%m-%d")
        text = page_of(real.one_group()).text
        assert before in text or datetime.now().strftime("%Y-%m-%d") in text

    def test_file_is_whole_or_as_before(self, tmp_path, monkeypatch):
        path = tmp_path / "new" / "report.html"
        write_report(real.one_group(), str(path), made=NOON)
        assert path.read_text("utf-8") == report_html(real.one_group(), made=NOON)
        with pytest.raises(AttributeError):
            write_report(None, path)
        assert path.read_text("utf-8").endswith("</html>")
        assert [p.name for p in path.parent.iterdir()] == ["report.html"]
