"""The page in a real browser: Debian's Chromium, driven by playwright."""

import re
import shutil
from contextlib import ExitStack

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.explore.state import file_opening, toy_opening

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, serve):
    """Opens a page; at the end, it must have had no complaint and have asked no other machine."""
    seen = []

    def open_page(opening, **options):
        server = running.enter_context(serve(opening))
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
        running.callback(context.close)
        page = context.new_page()
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
        page.on("request", lambda r: r.url.startswith(server.url) or seen.append(r.url))
        page.goto(server.url)
        settled(page)
        return page

    open_page.expected = ()
    with ExitStack() as running:
        yield open_page
    assert [line for line in seen if not line.startswith(open_page.expected)] == []


def settled(page):
    page.locator('#picture[aria-busy="false"]').wait_for()


def enter(page, field, value):
    page.locator(field).fill(value)
    page.locator(field).blur()
    settled(page)


def press(page, button):
    page.click(button)
    settled(page)


MINUS = "\N{MINUS SIGN}"


def number(text):
    return float(text.replace(MINUS, "-"))


class Drawing:
    """What is drawn, read off the picture with the help of its axes, as a reader would."""

    def __init__(self, page):
        self.page = page
        self.x, self.y = (self._scale(axis) for axis in "xy")

    def _scale(self, axis):
        ticks = self.page.locator(f"#plot .{axis}-tick").all()
        values = [number(tick.text_content()) for tick in ticks]
        places = [float(tick.get_attribute("data-at")) for tick in ticks]
        slope, start = np.polyfit(places, values, 1)
        return lambda place: start + slope * np.asarray(place)

    def points(self):
        dots = self.page.locator("#plot .point").all()
        places = [[float(dot.get_attribute(name)) for name in ("cx", "cy")] for dot in dots]
        x, y = np.transpose(places)
        return self.x(x), self.y(y)

    def path(self, name, pattern=r"[ML](\S+?) ([-\d.]+)"):
        d = self.page.locator(f"#plot path.{name}").get_attribute("d")
        x, y = np.array(re.findall(pattern, d), dtype=float).reshape(-1, 2).T
        return self.x(x), self.y(y)

    def effective(self):
        x, y = self.path("mark.online", r"M(\S+) (\S+?)l8")
        return x, y + self.y(4) - self.y(0)  # a cross begins at its upper left corner


@pytest.fixture
def page(visit):
    return visit(toy_opening(), viewport={"width": 1280, "height": 1000})


@pytest.fixture
def state():
    return toy_opening().state


def effective_targets(state, seen=40):
    x, y = np.array(state.x)[:seen], np.array(state.y)[:seen]
    return rt.effective_targets(rt.RBF(state.width)(x), y, rt.SGD(0.5), state.gamma)


def near(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=0.01)  # about a pixel


def test_points_curves_and_targets_are_drawn_where_they_belong(page, state):
    drawing = Drawing(page)
    x, y = drawing.points()
    near(x, state.x)
    near(y, state.y)
    near(drawing.effective()[1], effective_targets(state))
    kernel, grid = rt.RBF(state.width), np.linspace(state.low, state.high, 201)
    K, K_grid = kernel(np.array(state.x)), kernel(grid, np.array(state.x))
    offline = K_grid @ rt.offline_coefficients(K, np.array(state.y), state.gamma)
    online = K_grid @ rt.online_coefficients(K, np.array(state.y), rt.SGD(0.5))
    for name, curve in {"offline": offline, "online": online, "corrected": offline}.items():
        across, height = drawing.path(f"curve.{name}")
        near(across, grid)
        near(height, curve)
    distance = np.sqrt(np.mean((online - offline) ** 2))
    assert number(page.inner_text("#distance-online")) == pytest.approx(distance, rel=0.01)
    assert page.inner_text("#distance-corrected") == "0"
    y, learner = np.array(state.y), rt.SGD(0.5)
    expected = rt.discrepancy(K, y, y, learner, state.gamma)
    assert number(page.inner_text("#discrepancy-online")) == pytest.approx(expected, rel=0.01)
    assert page.inner_text("#discrepancy-corrected") == "0"


def test_dragging_a_point_moves_it_and_the_curves(page):
    before, (x, y) = drawn(page, "online"), first_point(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 120, y - 150, steps=8)
    page.mouse.up()
    settled(page)
    assert drawn(page, "online") != before
    shown = float(page.input_value("#point-x")), float(page.input_value("#point-y"))
    points = Drawing(page).points()
    near((points[0][0], points[1][0]), shown)
    assert first_point(page)[0] == pytest.approx(x - 120, abs=2)


def first_point(page):
    box = page.locator(".hit").first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drawn(page, curve):
    return page.locator(f"#plot path.curve.{curve}").get_attribute("d")


def test_a_finger_drags_a_point(visit):
    page = visit(toy_opening(), viewport={"width": 390, "height": 844}, has_touch=True)
    x, y = first_point(page)
    touch = page.context.new_cdp_session(page)
    for kind, far in [("touchStart", 0), *(("touchMove", 5 * i) for i in range(1, 13))]:
        places = [{"x": x - far, "y": y - far}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    settled(page)
    assert first_point(page)[0] == pytest.approx(x - 60, abs=3)


def test_stepping_through_the_stream(page, state):
    enter(page, "#seen", "23")
    assert page.inner_text("#seen-text") == "23 of 40"
    assert page.locator(".point.unseen").count() == 17
    near(Drawing(page).effective()[1], effective_targets(state, seen=23))
    press(page, "#forward")
    near(Drawing(page).effective()[1], effective_targets(state, seen=24))
    target = f"{state.y[23]:g}".replace("-", MINUS)
    assert f"Sample 24 came with the target {target};" in page.inner_text("#story")
    press(page, "#first")
    assert "Nothing has been learned yet" in page.inner_text("#story")
    page.click("#play")
    page.locator("#seen-text", has_text="2 of 40").wait_for()
    press(page, "#play")
    assert page.locator("#plot .point:not(.unseen)").count() >= 2


def test_the_copied_python_gives_the_numbers_of_the_page(page):
    enter(page, "#lr", "0.25")
    assert float(page.input_value("#lr-number")) == pytest.approx(0.01 * 400**0.25, rel=0.01)
    page.select_option("#order", "random")
    page.click("#shuffle")
    page.locator("#gamma").fill("0.8")
    page.locator("#batch_size").fill("3")
    enter(page, "#seen", "31")
    page.click("#copy")
    page.get_by_text("Copied.").wait_for()
    names = {}
    exec(page.evaluate("navigator.clipboard.readText()"), names)
    drawing = Drawing(page)
    x, effective = drawing.effective()
    near(x, names["x"][:31])
    near(effective, names["effective"])
    near(drawing.path("curve.online")[1], names["online"])
    assert names["learner"].batch_size == 3
    distance = np.sqrt(np.mean((names["iterative"] - names["offline"]) ** 2))
    assert number(page.inner_text("#distance-iterative")) == pytest.approx(distance, rel=0.01)


def test_points_are_added_and_removed_and_all_is_reset(page):
    before = page.locator("#code").text_content()
    press(page, "#add")
    assert page.locator("#plot .point").count() == 41
    assert page.inner_text("#seen-text") == "41 of 41"
    enter(page, "#point-y", "1.5")
    assert Drawing(page).points()[1][40] == pytest.approx(1.5, abs=0.01)
    page.click("#remove")
    box = page.locator("#plot").bounding_box()
    page.mouse.dblclick(box["x"] + 0.9 * box["width"], box["y"] + 40)
    settled(page)
    assert page.locator("#plot .point").count() == 41
    press(page, "#reset")
    assert page.locator("#code").text_content() == before


def test_the_keyboard_moves_chooses_and_removes(page, state):
    page.locator('.hit[tabindex="0"]').focus()
    page.keyboard.press("PageDown")
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("ArrowLeft")
    settled(page)
    x, y = Drawing(page).points()
    assert x[1] == pytest.approx(state.x[1] - 0.011, abs=0.003)  # of a picture 1.1 wide
    assert y[1] > state.y[1] + 0.3
    near(np.delete(y, 1), np.delete(state.y, 1))
    page.keyboard.press("Delete")
    settled(page)
    near(Drawing(page).points()[0], np.delete(state.x, 1))


def test_a_diverging_rate_is_explained(page):
    enter(page, "#lr-number", "300")
    assert "Every step is stable up to the rate 2." in page.inner_text("#notice")
    assert "the online learner diverged" in page.inner_text("#notice")
    assert drawn(page, "online") == ""
    assert drawn(page, "offline") != ""
    press(page, "#notice button")
    assert page.input_value("#lr-number") == "1"
    assert page.locator("#notice").is_hidden()


def test_a_setting_that_is_refused_says_why_and_can_be_mended(page, visit):
    visit.expected = ("Failed to load resource: the server responded with a status of 422",)
    enter(page, "#point-y", "1e20")
    assert "This setting cannot be computed: y.0: " in page.inner_text("#notice")
    enter(page, "#point-y", "1")
    assert page.locator("#notice").is_hidden()


def test_the_terms_of_the_newest_block_are_shown_with_the_iterative_correction(page, state):
    path = page.locator("#plot path.mark.iterative")
    assert path.get_attribute("d") == ""
    assert page.locator("#terms").is_hidden()
    page.uncheck("#curve-online")
    assert drawn(page, "online") == ""
    page.check("#targets-iterative")
    assert path.get_attribute("d").count("M") == 40
    enter(page, "#seen", "13")
    assert "targets of samples 9 to 16" in page.inner_text("#terms-title")
    K = rt.RBF(state.width)(np.array(state.x))
    block = rt.correction_terms(K, rt.SGD(0.5), state.gamma, 8, 0.1)[1]
    shown = [number(text.removeprefix("\N{MULTIPLICATION SIGN} ")) for text in factors(page)]
    np.testing.assert_allclose(shown, block.modulation.diagonal(), rtol=0.01)
    assert page.locator("#moves .bar.online").get_attribute("d").count("M") == 8
    assert page.locator("#moves .dot").count() == 8
    enter(page, "#momentum-number", "0.5")
    assert "set the momentum to 0" in page.inner_text("#terms-text")
    assert page.locator("#moves").is_hidden()
    press(page, "#first")
    assert page.locator("#terms").is_hidden()


def factors(page):
    texts = page.locator("#moves text").all_text_contents()
    return [text for text in texts if text.startswith("\N{MULTIPLICATION SIGN}")]


def test_hostile_names_are_shown_and_do_not_run(visit, tmp_path):
    x, y = "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>"
    path = tmp_path / "a<b onclick=alert(3)>.csv"
    pl.DataFrame({x: [1.0, 2.0, 4.0], y: [0.5, 0.1, 0.9]}).write_csv(path)
    page = visit(file_opening(path, x, y))
    assert page.text_content("#x-name") == x
    assert page.text_content("#y-name") == y
    assert path.name in page.text_content("#title")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1


def test_a_stream_in_large_units_is_read_off_its_axes(visit, tmp_path):
    when = 1.7e9 + 1e5 * np.arange(12)
    heat = 1000 + 5 * np.sin(np.arange(12))
    pl.DataFrame({"when": when, "heat": heat}).write_csv(tmp_path / "heat.csv")
    page = visit(file_opening(tmp_path / "heat.csv", "when", "heat"))
    x, y = Drawing(page).points()
    np.testing.assert_allclose(x, when, rtol=0, atol=3e3)
    np.testing.assert_allclose(y, heat, rtol=0, atol=0.1)
    assert page.input_value("#start-number") == f"{float(f'{heat.mean():.4g}'):g}"


def test_learners_and_the_meaning_of_sticks_are_in_sight(visit):
    page = visit(toy_opening(), viewport={"width": 1400, "height": 900})
    table, words = (page.locator(part).bounding_box() for part in ("#legend", "#sticks"))
    assert table["y"] + table["height"] <= 900
    assert words["y"] + words["height"] < page.locator("#plot").bounding_box()["y"]
    assert words["height"] < 30  # one line
    assert page.locator("#sticks em").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(visit, scheme):
    page = visit(toy_opening(), viewport={"width": 390, "height": 844}, color_scheme=scheme)
    enter(page, "#lr-number", "300")
    for summary in page.locator("summary").all():
        summary.click()
    page.click("#notice button")
    page.check("#curve-iterative")
    settled(page)
    assert page.locator("#moves").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#gamma").scroll_into_view_if_needed()
    assert page.locator("#plot").bounding_box()["y"] >= 0  # still in sight


def test_a_server_that_has_stopped_is_said(browser, serve):
    context = browser.new_context()
    page = context.new_page()
    with serve(toy_opening()) as server:
        page.goto(server.url)
        settled(page)
    context.set_offline(True)
    page.click("#back")
    page.get_by_text("The server does not answer").wait_for()
    context.close()
