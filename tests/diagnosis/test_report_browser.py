"""The report in a real browser: Debian's Chromium, driven by playwright, with no network."""

import re
import shutil
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from support import made_diagnosis as made

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'"
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
        getattr(made, name)().to_html(folder / f"{name}.html", command="<script>hacked=5")
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
    "name", ["classification", pytest.param("model_regression", marks=pytest.mark.slow)]
)
def test_first_screen_holds_headline_forgetting_and_advice(visit, name):
    opened = visit(name)
    for size in (PHONE, DESKTOP):
        opened.resize(size)
        headline, curve, advice, along = (
            opened.page.locator(selector).bounding_box()
            for selector in ("h1", "#chart-forgetting", "#advice", "#chart-along")
        )
        assert headline["y"] >= 0
        assert max(curve["y"], advice["y"]) < along["y"]
        for place in (headline, curve):
            assert place["y"] + place["height"] <= size["height"]
        if size is DESKTOP:  # beside the headline
            assert headline["x"] + headline["width"] < curve["x"]
            assert curve["y"] < advice["y"]
            assert advice["y"] + advice["height"] <= size["height"]
        else:  # between headline and advice
            assert headline["y"] + headline["height"] <= curve["y"]
            assert curve["y"] + curve["height"] <= advice["y"]


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_curves_colors_and_dates(visit, dark):
    opened = visit("regression", PHONE, color_scheme="dark" if dark else "light")
    assert opened.page.locator("#chart-forgetting .js-line").count() >= 3
    paper = opened.brightness("#chart-forgetting .main-svg")
    assert (paper < 60) == dark
    # dates that do not fit beside each other are left out
    ticks = opened.page.locator("#chart-along .xtick text").all()
    boxes = sorted((tick.bounding_box() for tick in ticks), key=lambda box: box["x"])
    assert 2 <= len(boxes) <= 3
    assert all(a["x"] + a["width"] < b["x"] for a, b in pairwise(boxes))


def test_hostile_text_is_shown_and_does_not_run(visit):
    opened = visit("hostile")
    legend = opened.page.locator("#chart-shift .legendtext").all_text_contents()
    assert legend[0].startswith("<script>")
    assert opened.page.locator("#chart-shift a, #chart-targets a, .main-svg b").count() == 0
    # hovering shows a row's time, which is hostile too
    point = opened.page.locator("#chart-shift .scatterlayer .point").nth(3)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.page.wait_for_selector("#chart-shift .hovertext")
    assert "<b>bold</b>" in opened.page.locator("#chart-shift .hovertext").first.text_content()
    assert opened.page.locator("#chart-shift .hoverlayer a").count() == 0
    assert opened.page.evaluate("typeof window.hacked") == "undefined"
    assert opened.page.locator("main img").count() == 0
    assert opened.requests == [opened.page.url]
    assert opened.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("name", made.PAGES)
def test_it_loads_and_fits_a_phone(visit, name):
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
    assert len(opened.drawn("groups", "layout")["xaxis"]["ticktext"]) == 10  # of 30
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
def test_folded_charts_are_drawn_when_they_are_opened(visit):
    opened = visit("regression")
    assert opened.page.locator("details .main-svg").count() == 0
    opened.page.locator("nav a[href='#rate']").click()  # a link opens what is folded
    opened.page.wait_for_selector("#chart-rate .main-svg")
    assert all(box["width"] > 400 for box in opened.boxes())
    lines = opened.page.locator("#chart-along .scatterlayer .js-line")
    assert lines.count() == 3
    drawn = opened.page.evaluate(
        "() => document.getElementById('chart-along').calcdata.map((t) => t.map((p) => p.y))"
    )
    along = made.regression().along
    for trace, column in zip(drawn, ("online", "batch", "online_now"), strict=True):
        assert trace == pytest.approx(along[column].to_list())
    opened.page.locator("#along summary").click()
    assert opened.page.locator("#along tbody tr").count() == len(along)
    assert opened.complaints == []


@pytest.mark.slow
def test_dark_mode_and_paper(visit):
    opened = visit("classification")
    opened.unfold()
    names = opened.page.locator(".chart").evaluate_all("all => all.map((c) => c.id)")
    drawn = [f"#{name} .main-svg" for name in names]
    opened.page.emulate_media(color_scheme="dark")  # it follows the reader's setting
    opened.page.wait_for_function(
        "() => getComputedStyle(document.querySelector('#chart-scores .main-svg')).backgroundColor"
        " === getComputedStyle(document.querySelector('section')).backgroundColor"
    )
    assert opened.brightness("body") < 60
    assert opened.brightness("body", "color") > 200
    number = "#chart-groups .heatmaplayer text"  # legible on every color of the heat map
    assert opened.brightness(number, "fill") == opened.brightness("body", "color")
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
    assert opened.brightness("#chart-scores .main-svg") > 200
    pdf = opened.page.pdf(format="A4")
    assert 5 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12
