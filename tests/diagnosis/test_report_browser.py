"""The report in a real browser: Debian's Chromium, driven by playwright, with no network."""

import re
import shutil
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest

from retarget.diagnosis.report.page import write_report
from support import hand_made_model as made
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
QUICK = ("undefined",)  # and what other tests open
SLOW = (
    *("classification", "regression", "many_groups", "one_group", "progressive", "diverged"),
    *("large", "hostile", "model_regression", "model_that_failed"),
)


@dataclass
class Opened:
    """A page, and what it did."""

    page: object
    complaints: list = field(default_factory=list)
    requests: list = field(default_factory=list)

    def data(self, chart):
        return self.page.evaluate("c => document.getElementById('chart-' + c).data", chart)

    def layout(self, chart):
        return self.page.evaluate("c => document.getElementById('chart-' + c).layout", chart)

    def charts(self):
        return self.page.evaluate(
            "() => Object.keys(JSON.parse(document.getElementById('chart-data').textContent))"
        )

    def boxes(self):
        return self.page.evaluate(
            """() => [...document.querySelectorAll(".chart .main-svg:first-child")].map(
                 (svg) => svg.getBoundingClientRect().toJSON())"""
        )

    def box(self, selector):
        return self.page.locator(selector).first.bounding_box()

    def unfold(self):
        """Opens whatever is folded, and gives the charts that were."""
        self.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
        self.page.wait_for_function("() => !document.querySelector('.chart:empty')")
        return self.page.locator("details .chart").evaluate_all("all => all.map((c) => c.id)")

    def requires_no_sideways_scroll(self):
        assert self.page.evaluate("innerWidth") == 390
        assert self.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert all(box["left"] >= 0 and box["right"] <= 390 for box in self.boxes())
        for table in self.page.locator(".box").all():  # a wide one scrolls in its box
            box = table.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390

    def style(self, selector, name):
        return self.page.evaluate(
            "([s, n]) => getComputedStyle(document.querySelector(s))[n]", [selector, name]
        )


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")

    @cache
    def written(name):
        path = folder / f"{name}.html"
        diagnosis = getattr(made if name.startswith("model") else real, name)()
        write_report(diagnosis, path, command="<script>hacked=5")
        return path.as_uri()

    return written


def open_report(browser, reports, name, viewport, **options):
    opened = Opened(browser.new_context(viewport=viewport, **options).new_page())
    opened.page.on("console", lambda message: opened.complaints.append(message.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.goto(reports(name))
    opened.page.wait_for_selector("html[data-drawn]", state="attached")
    return opened


@pytest.fixture
def visit(browser, reports):
    """Opens a report in a window of its own."""
    visits = []

    def visit_report(name, viewport=DESKTOP, **options):
        visits.append(open_report(browser, reports, name, viewport, **options))
        return visits[-1]

    yield visit_report
    for opened in visits:
        opened.page.context.close()


@pytest.fixture(scope="module")
def desk(browser, reports):
    """Reports that stay open, for tests each of which touches a chart of its own."""
    return cache(lambda name: open_report(browser, reports, name, DESKTOP))


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_loads_without_complaint_or_request_and_fits_a_phone(visit, reports, name):
    opened = visit(name)
    assert opened.page.evaluate("typeof window.hacked") == "undefined"
    opened.unfold()
    assert len(opened.boxes()) == len(opened.charts())
    for box in opened.boxes():
        assert box["width"] > 300
        assert box["height"] > 100
    opened.page.set_viewport_size(PHONE)
    opened.page.wait_for_function(
        "() => document.getElementById('chart-errors').layout.width < 390"
    )
    opened.requires_no_sideways_scroll()
    assert opened.complaints == []
    assert opened.requests == [reports(name)]


def test_fits_a_phone_that_says_so(visit):
    opened = visit("many_groups", PHONE, is_mobile=True, has_touch=True)
    opened.requires_no_sideways_scroll()
    assert opened.layout("shift")["dragmode"] is False  # a finger on a chart scrolls the page
    assert len(opened.layout("group-size")["xaxis"]["ticktext"]) == 12  # of 24
    requires_tables_that_scroll(opened)
    assert opened.complaints == []


@pytest.mark.parametrize("name", ["classification", "model_regression"])
def test_first_screen_holds_headline_picture_and_advice(visit, name):
    opened = visit(name)
    for size in (DESKTOP, PHONE):
        opened.page.set_viewport_size(size)
        opened.page.wait_for_function(
            "() => document.querySelector('.first .chart').layout.width < innerWidth"
        )
        headline, picture, advice = (
            opened.box(selector) for selector in ("h1", ".first .chart .main-svg", "#advice li")
        )
        assert 0 <= headline["y"] < min(picture["y"], advice["y"])
        assert picture["y"] + picture["height"] <= size["height"]
        assert advice["y"] + advice["height"] <= size["height"]
        assert headline["width"] >= 0.77 * size["width"]
    chart = opened.page.locator(".first .chart").get_attribute("id")
    assert chart == ("chart-model-shift" if name.startswith("model") else "chart-shift")


def test_folded_charts_are_drawn_when_they_are_opened_and_can_be_read(visit):
    opened = visit("classification")
    folded = ["chart-group-pull", "chart-rate", "chart-ridge"]
    for chart in folded:
        assert opened.page.locator(f"#{chart} .main-svg").count() == 0
    opened.page.locator("#choices summary").click()
    opened.page.wait_for_selector("#chart-ridge .main-svg")
    opened.page.locator("#groups summary").click()
    opened.page.wait_for_selector("#chart-group-pull .main-svg")
    assert opened.unfold() == folded
    for chart in folded:
        place, drawn = opened.box(f"#{chart}"), opened.box(f"#{chart} .main-svg")
        assert drawn["width"] == pytest.approx(place["width"], abs=1)
        assert drawn["width"] > 400
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        opened.page.wait_for_timeout(100)
        for chart in ("group-size", "group-pull"):
            requires_readable_digits(opened, chart)
    assert opened.complaints == []


def requires_readable_digits(opened, chart):
    """Every digit has a contrast of 4.5 at least (WCAG AA), whatever colour its square has."""
    squares = opened.data(chart)[0]
    ends, colours = zip(*squares["colorscale"], strict=True)
    values = np.array(squares["z"]).ravel()
    place = (values - squares["zmin"]) / (squares["zmax"] - squares["zmin"])
    parts = np.transpose([hexadecimal(colour) for colour in colours])
    under = np.transpose([np.interp(place, ends, part) for part in parts])
    fills = opened.page.locator(f"#chart-{chart} .heatmap-label text").evaluate_all(
        "all => all.map((text) => getComputedStyle(text).fill)"
    )
    assert len(fills) == len(values)
    assert len(set(fills)) == 1
    ink = [float(part) for part in re.findall(r"[\d.]+", fills[0])[:3]]
    assert min(contrast(ink, colour) for colour in under) >= 4.5


def test_links_open_what_is_folded(desk):
    opened = desk("regression")
    opened.page.locator("nav a[href='#stability']").click()
    assert opened.page.locator("#stability details[open]").count() == 1


def requires_tables_that_scroll(opened):
    """They say so, and keep their first column in sight."""
    wide = opened.page.locator(".box.wide")
    assert wide.count() >= 1
    for box in wide.all():
        assert box.evaluate("b => getComputedStyle(b.nextElementSibling).display") == "block"
        box.evaluate("b => { b.scrollLeft = b.scrollWidth }")
        first = box.locator("tbody th").first.bounding_box()
        last = box.locator("tbody tr").first.locator("td").last.bounding_box()
        assert first["x"] == pytest.approx(box.bounding_box()["x"], abs=1)
        assert first["x"] + first["width"] <= last["x"] + 1
        assert last["x"] + last["width"] <= 390


def test_policy_stops_other_scripts_and_connections(desk):
    opened = desk("many_groups")
    blocked = opened.page.evaluate(
        """async () => {
          const blocked = [];
          addEventListener("securitypolicyviolation", (e) => blocked.push(e.effectiveDirective));
          const script = document.createElement("script");
          script.textContent = "window.hacked = 1";
          document.body.append(script);
          const image = new Image();
          image.src = "http://127.0.0.1:9/x.png";
          document.body.append(image);
          await fetch("http://127.0.0.1:9/").catch(() => {});
          await new Promise((done) => setTimeout(done, 200));
          return blocked;
        }"""
    )
    assert {"script-src-elem", "img-src", "connect-src"} <= set(blocked)
    assert opened.page.evaluate("typeof window.hacked") == "undefined"


def test_charts_show_the_numbers(desk):
    diagnosis = real.classification()
    opened = desk("classification")
    errors = opened.data("errors")
    scored = (*diagnosis.scores, *diagnosis.baselines)
    assert [trace["x"] for trace in errors] == [[s.error.value] for s in scored]
    assert [trace["name"] for trace in errors][:2] == ["Offline", "Online"]
    size = opened.data("group-size")[0]["z"]
    assert np.array(size) == pytest.approx(diagnosis.groups.size, rel=1e-3)
    shift = opened.data("shift")
    assert [len(trace["x"]) for trace in shift[:-1]] == diagnosis.groups.counts.tolist()
    texts = opened.page.locator("#chart-group-size .hm text, #chart-group-size .heatmap-label")
    assert f"{diagnosis.groups.size[0, 1]:.2f}" in texts.all_text_contents()


def test_bars_and_dots_are_where_the_numbers_are(desk):
    opened = desk("regression")
    dots = opened.page.locator("#chart-errors .scatterlayer .point")
    centres = [dot.bounding_box() for dot in dots.all()]
    x = np.array([box["x"] + box["width"] / 2 for box in centres])
    diagnosis = real.regression()
    scored = (*diagnosis.scores, *diagnosis.baselines)
    values = np.array([score.error.value for score in scored])
    slope, start = np.polyfit(values, x, 1)
    assert slope > 0
    assert x == pytest.approx(start + slope * values, abs=1.0)  # a pixel


def test_choosing_a_target_changes_the_picture(desk):
    opened = desk("regression")
    title = opened.page.locator("#chart-targets .xtitle")
    points = opened.page.locator("#chart-targets .scatterlayer .point")
    assert title.text_content() == "true temperature"
    before = points.first.get_attribute("transform")
    opened.page.select_option("select[data-chart=targets]", label="humidity")
    opened.page.wait_for_function(
        "() => document.querySelector('#chart-targets .xtitle').textContent === 'true humidity'"
    )
    assert points.first.get_attribute("transform") != before
    assert [trace["visible"] for trace in opened.data("targets")] == [False] * 3 + [True] * 3
    shown = [x for trace in opened.data("targets")[3:5] for x in trace["x"]]
    assert len(shown) == points.count() == 160
    assert opened.complaints == []


def test_choosing_a_group_brings_it_forward(desk):
    opened = desk("many_groups")
    opened.page.select_option("select[data-chart=shift]", label="device number 07")
    opacity = [t["marker"]["opacity"] for t in opened.data("shift")[:-1]]
    assert np.argmax(opacity) == 7
    assert sorted(opacity)[-2] < 0.2
    opened.page.select_option("select[data-chart=shift]", label="All")
    assert len({t["marker"]["opacity"] for t in opened.data("shift")[:-1]}) == 1


def test_choosing_wrong_classes(desk):
    opened = desk("classification")
    opened.page.select_option("select[data-chart=prequential]", label="Wrong class")
    title = opened.page.locator("#chart-prequential .ytitle").text_content()
    assert title == "share whose class was wrong"
    assert [trace["visible"] for trace in opened.data("prequential")] == [False, True]


def test_legend_hides_a_group(desk):
    opened = desk("regression")
    points = opened.page.locator("#chart-shift .scatterlayer .point")
    before = points.count()
    opened.page.locator("#chart-shift .legendtoggle").first.click()
    opened.page.wait_for_function(
        "n => document.querySelectorAll('#chart-shift .scatterlayer .point').length < n", arg=before
    )
    counts = real.regression().groups.counts
    assert before - points.count() == counts[0]


def test_hostile_text_is_shown_and_does_not_run(visit, reports):
    opened = visit("hostile")
    assert opened.requests == [reports("hostile")]
    texts = real.hostile().stream.target_names
    legend = opened.page.locator("#chart-shift .legendtext").all_text_contents()
    assert legend[0].startswith("<script>")
    assert opened.page.locator("#chart-shift a, #chart-targets a, .main-svg b").count() == 0
    assert opened.page.locator("option", has_text=texts[3]).count() == 1
    # hovering shows a row's time, which is hostile too
    point = opened.page.locator("#chart-shift .scatterlayer .point").nth(3)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.page.wait_for_selector("#chart-shift .hovertext")
    assert "<b>bold</b>" in opened.page.locator("#chart-shift .hovertext").first.text_content()
    assert opened.page.locator("#chart-shift .hoverlayer a").count() == 0
    opened.page.select_option("select[data-chart=shift]", index=2)
    assert opened.page.evaluate("typeof window.hacked") == "undefined"
    assert opened.page.locator("main img").count() == 0
    assert opened.complaints == []


def test_dark_mode_is_dark_charts_too(visit):
    opened = visit("regression", color_scheme="dark")
    opened.unfold()
    assert brightness(opened.style("body", "backgroundColor")) < 60
    assert brightness(opened.style("body", "color")) > 200
    for chart in opened.charts():
        assert brightness(opened.style(f"#chart-{chart} .main-svg", "backgroundColor")) < 128
    # and it follows the reader's setting while the page is open
    opened.page.emulate_media(color_scheme="light")
    opened.page.wait_for_function(
        "() => getComputedStyle(document.querySelector('#chart-errors .main-svg')).backgroundColor"
        " === getComputedStyle(document.querySelector('section')).backgroundColor"
    )
    assert brightness(opened.style("body", "backgroundColor")) > 200
    assert brightness(opened.style("#chart-errors .main-svg", "backgroundColor")) > 200


def test_printing_from_dark_mode_is_light_and_not_cut(visit):
    opened = visit("classification", color_scheme="dark")
    opened.page.emulate_media(media="print")
    opened.page.wait_for_selector("html[data-printing]", state="attached")
    assert brightness(opened.style("body", "backgroundColor")) == 255
    assert brightness(opened.style("body", "color")) < 60
    assert opened.style("nav", "display") == "none"
    assert opened.page.locator("details:not([open])").count() == 0  # paper cannot be opened
    assert all(box["width"] <= 690 for box in opened.boxes())  # of the 695 pixels of A4
    for chart in opened.charts():
        assert brightness(opened.style(f"#chart-{chart} .main-svg", "backgroundColor")) == 255
    opened.page.emulate_media(media="screen")
    opened.page.wait_for_selector("html:not([data-printing])", state="attached")
    assert opened.page.locator("details[open]").count() == 0
    assert brightness(opened.style("#chart-errors .main-svg", "backgroundColor")) < 60


@pytest.mark.slow
def test_prints_to_paper(visit):
    pdf = visit("regression").page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 5 <= pages <= 12


def hexadecimal(colour):
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def luminance(colour):
    """Relative luminance of sRGB (WCAG 2.1)."""
    share = np.array(colour) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(first, second):
    dark, light = sorted([luminance(first), luminance(second)])
    return (light + 0.05) / (dark + 0.05)


def brightness(colour):
    """The mean of red, green and blue in "rgb(r, g, b)"."""
    return np.mean([float(part) for part in re.findall(r"[\d.]+", colour)[:3]])
