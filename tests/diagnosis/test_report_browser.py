"""The report in a real browser: Debian's Chromium, driven by playwright, with no network."""

import re
import shutil
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest

from retarget.diagnosis.report.page import write_report
from support import real_diagnosis as real

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install 'retarget[dev]'"
)
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the PATH: apt install chromium"
)
DESKTOP = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 844}


@dataclass
class Opened:
    """A page, and what it did."""

    page: object
    complaints: list = field(default_factory=list)
    requests: list = field(default_factory=list)

    def drawn(self, chart, part="data"):
        return self.page.evaluate(
            "([c, p]) => document.getElementById('chart-' + c)[p]", [chart, part]
        )

    def boxes(self):
        return self.page.evaluate(
            """() => [...document.querySelectorAll(".chart .main-svg:first-child")].map(
                 (svg) => svg.getBoundingClientRect().toJSON())"""
        )

    def unfold(self):
        self.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
        self.page.wait_for_function("() => !document.querySelector('.chart:empty')")

    def resize(self, size):
        self.page.set_viewport_size(size)
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.chart:not(:empty)')].every("
            "(c) => c.layout.width === c.clientWidth || c.closest('details:not([open])'))"
        )

    def requires_no_sideways_scroll(self):
        assert self.page.evaluate("innerWidth") == 390
        assert self.page.evaluate("document.documentElement.scrollWidth") <= 390
        tables = [box.bounding_box() for box in self.page.locator(".box").all()]
        for box in [*self.boxes(), *tables]:  # a wide table scrolls in its box
            assert 0 <= box["x"] <= box["x"] + box["width"] <= 390

    def brightness(self, selector, name="backgroundColor"):
        """The mean of red, green and blue in "rgb(r, g, b)"."""
        style = self.page.evaluate(
            "([s, n]) => getComputedStyle(document.querySelector(s))[n]", [selector, name]
        )
        return np.mean([float(part) for part in re.findall(r"[\d.]+", style)])


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """Opens a report in a window of its own."""
    folder = tmp_path_factory.mktemp("reports")

    @cache
    def written(name):
        write_report(getattr(real, name)(), folder / f"{name}.html", command="<script>hacked=5")
        return (folder / f"{name}.html").as_uri()

    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_report(name, viewport=DESKTOP, **options):
            opened = Opened(browser.new_context(viewport=viewport, **options).new_page())
            opened.page.on("console", lambda message: opened.complaints.append(message.text))
            opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
            opened.page.on("request", lambda request: opened.requests.append(request.url))
            opened.page.goto(written(name))
            opened.page.wait_for_selector("html[data-drawn]", state="attached")
            return opened

        yield open_report
        browser.close()


@pytest.mark.parametrize(
    ("name", "picture"),
    [
        ("classification", "chart-shift"),
        pytest.param("model_regression", "chart-model-shift", marks=pytest.mark.slow),
    ],
)
def test_first_screen_holds_headline_picture_and_advice(visit, name, picture):
    opened = visit(name)
    assert opened.page.locator(".first .chart").get_attribute("id") == picture
    for size in (PHONE, DESKTOP):
        opened.resize(size)
        headline, drawn, advice = (
            opened.page.locator(selector).first.bounding_box()
            for selector in ("h1", ".first .chart .main-svg", "#advice li")
        )
        assert 0 <= headline["y"] < min(drawn["y"], advice["y"])
        assert drawn["y"] + drawn["height"] <= size["height"]
        assert advice["y"] + advice["height"] <= size["height"]
        assert headline["width"] >= 0.77 * size["width"]


def test_hostile_text_is_shown_and_does_not_run(visit):
    opened = visit("hostile")
    legend = opened.page.locator("#chart-shift .legendtext").all_text_contents()
    assert legend[0].startswith("<script>")
    assert opened.page.locator("#chart-shift a, #chart-targets a, .main-svg b").count() == 0
    assert opened.page.locator("option", has_text=real.HOSTILE[3]).count() == 1
    # hovering shows a row's time, which is hostile too
    point = opened.page.locator("#chart-shift .scatterlayer .point").nth(3)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.page.wait_for_selector("#chart-shift .hovertext")
    assert "<b>bold</b>" in opened.page.locator("#chart-shift .hovertext").first.text_content()
    assert opened.page.locator("#chart-shift .hoverlayer a").count() == 0
    for index in (2, 0):  # a group, and all of them again
        opened.page.select_option("select[data-chart=shift]", index=index)
        opacity = [trace["marker"]["opacity"] for trace in opened.drawn("shift")[:-1]]
        assert (np.argmax(opacity), sorted(opacity)[-2] < 0.2) == ((1, True), (0, False))[not index]
    assert opened.page.evaluate("typeof window.hacked") == "undefined"
    assert opened.page.locator("main img").count() == 0
    assert opened.requests == [opened.page.url]
    assert opened.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("name", real.PAGES)
def test_loads_without_complaint_or_request_and_fits_a_phone(visit, name):
    opened = visit(name)
    assert opened.page.evaluate("typeof window.hacked") == "undefined"
    opened.unfold()
    assert len(opened.boxes()) == opened.page.locator(".chart").count()
    assert all(box["width"] > 300 and box["height"] > 100 for box in opened.boxes())
    opened.resize(PHONE)
    opened.requires_no_sideways_scroll()
    assert opened.complaints == []
    assert opened.requests == [opened.page.url]
    opened.page.context.close()


@pytest.mark.slow
def test_fits_a_phone_that_says_so(visit):
    opened = visit("many_groups", PHONE, is_mobile=True, has_touch=True)
    opened.requires_no_sideways_scroll()
    assert opened.drawn("shift", "layout")["dragmode"] is False  # a finger scrolls
    assert len(opened.drawn("group-size", "layout")["xaxis"]["ticktext"]) == 12  # of 24
    wide = opened.page.locator(".box.wide")
    assert wide.count() >= 1
    for box in wide.all():  # it says that it scrolls, and keeps its first column in sight
        assert box.evaluate("b => getComputedStyle(b.nextElementSibling).display") == "block"
        box.evaluate("b => { b.scrollLeft = b.scrollWidth }")
        first = box.locator("tbody th").first.bounding_box()
        last = box.locator("tbody tr").first.locator("td").last.bounding_box()
        assert first["x"] == pytest.approx(box.bounding_box()["x"], abs=1)
        assert first["x"] + first["width"] <= last["x"] + 1
        assert last["x"] + last["width"] <= 390
    assert opened.complaints == []


@pytest.mark.slow
def test_folded_charts_are_drawn_when_they_are_opened_and_a_choice_changes_a_picture(visit):
    opened = visit("regression")
    assert opened.page.locator("details .main-svg").count() == 0
    opened.page.locator("nav a[href='#choices']").click()  # a link opens what is folded
    opened.page.wait_for_selector("#chart-ridge .main-svg")
    opened.page.locator("#groups summary").click()
    opened.page.wait_for_selector("#chart-group-pull .main-svg")
    assert all(box["width"] > 400 for box in opened.boxes())
    scores = [trace["x"] for trace in opened.drawn("errors")]
    assert scores[:4] == [[score.error.value] for score in real.regression().scores]
    points = opened.page.locator("#chart-targets .scatterlayer .point")
    before = points.first.get_attribute("transform")
    assert opened.page.locator("#chart-targets .xtitle").text_content() == "true temperature"
    opened.page.select_option("select[data-chart=targets]", label="humidity")
    opened.page.wait_for_function(
        "() => document.querySelector('#chart-targets .xtitle').textContent === 'true humidity'"
    )
    assert points.first.get_attribute("transform") != before
    assert points.count() == 160
    assert opened.complaints == []


@pytest.mark.slow
def test_dark_mode_is_dark_charts_too_and_paper_is_light_and_not_cut(visit):
    opened = visit("classification")
    opened.unfold()
    names = opened.page.locator(".chart").evaluate_all("all => all.map((c) => c.id)")
    drawn = [f"#{name} .main-svg" for name in names]
    opened.page.emulate_media(color_scheme="dark")  # it follows the reader's setting
    opened.page.wait_for_function(
        "() => getComputedStyle(document.querySelector('#chart-errors .main-svg')).backgroundColor"
        " === getComputedStyle(document.querySelector('section')).backgroundColor"
    )
    assert opened.brightness("body") < 60
    assert opened.brightness("body", "color") > 200
    assert all(opened.brightness(chart) < 128 for chart in drawn)
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = false })")
    opened.page.emulate_media(media="print", color_scheme="dark")
    opened.page.wait_for_selector("html[data-printing]", state="attached")
    assert opened.brightness("body") == 255
    assert opened.brightness("body", "color") < 60
    assert not opened.page.locator("nav").is_visible()
    assert opened.page.locator("details:not([open])").count() == 0  # paper cannot be opened
    assert all(box["width"] <= 690 for box in opened.boxes())  # of the 695 pixels of A4
    assert all(opened.brightness(chart) == 255 for chart in drawn)
    opened.page.emulate_media(media="screen", color_scheme="light")
    opened.page.wait_for_selector("html:not([data-printing])", state="attached")
    assert opened.page.locator("details[open]").count() == 0
    assert opened.brightness("#chart-errors .main-svg") > 200
    pdf = opened.page.pdf(format="A4")
    assert 5 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12
