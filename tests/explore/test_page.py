"""The page in a real browser: Debian's Chromium, driven by playwright."""

import re
import shutil

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.explore.state import file_opening, toy_opening

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
STATE = toy_opening().state
MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def toy(serve):
    with serve(toy_opening()) as server:
        yield server.url


@pytest.fixture
def visit(browser):
    """Opens an address; at the end, no page has complained or asked another machine."""
    seen, contexts = [], []

    def opened(url, width=1280, height=1000, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda r: r.url.startswith(url) or seen.append(r.url))
        page.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
        page.goto(url)
        settled(page)
        return page

    opened.expected = ()
    yield opened
    for context in contexts:
        context.close()
    assert [line for line in seen if not line.startswith(opened.expected)] == []


@pytest.fixture
def page(visit, toy):
    return visit(toy, permissions=["clipboard-read", "clipboard-write"])


def settled(page):
    page.locator('#picture[aria-busy="false"]').wait_for()


def enter(page, field, value):
    page.locator(field).fill(value)
    page.locator(field).blur()
    settled(page)


def press(page, button):
    page.click(button)
    settled(page)


def number(text):
    return float(text.replace(MINUS, "-"))


def attributes(page, selector, *names):
    """(len(names), n) numbers of all such elements, in one question."""
    read = "(all, names) => all.map(one => names.map(name => Number(one.getAttribute(name))))"
    return np.transpose(page.locator(selector).evaluate_all(read, names))


class Drawing:
    """What is drawn, read off the picture with the help of its axes, as a reader would."""

    def __init__(self, page):
        self.page = page
        self.x, self.y = (self._scale(axis) for axis in "xy")

    def _scale(self, axis):
        ticks = f"#plot .{axis}-tick"
        values = [number(text) for text in self.page.locator(ticks).all_text_contents()]
        slope, start = np.polyfit(*attributes(self.page, ticks, "data-at"), values, 1)
        return lambda place: start + slope * np.asarray(place)

    def points(self):
        x, y = attributes(self.page, "#plot .point", "cx", "cy")
        return self.x(x), self.y(y)

    def path(self, name, pattern=r"[ML](\S+?) ([-\d.]+)"):
        d = self.page.locator(f"#plot path.{name}").get_attribute("d")
        x, y = np.array(re.findall(pattern, d), dtype=float).reshape(-1, 2).T
        return self.x(x), self.y(y)

    def effective(self):
        x, y = self.path("mark.online", r"M(\S+) (\S+?)l8")
        return x, y + self.y(4) - self.y(0)  # a cross begins at its upper left corner


def drawn(page, curve):
    return page.locator(f"#plot path.curve.{curve}").get_attribute("d")


def first_point(page):
    box = page.locator(".hit").first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def effective_targets(seen=40):
    x, y = np.array(STATE.x)[:seen], np.array(STATE.y)[:seen]
    return rt.effective_targets(rt.RBF(STATE.width)(x), y, rt.SGD(0.5), STATE.gamma)


def near(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=0.01)  # about a pixel


def test_points_curves_and_targets_are_drawn_where_they_belong(page):
    drawing, y, learner = Drawing(page), np.array(STATE.y), rt.SGD(0.5)
    near(drawing.points(), [STATE.x, y])
    near(drawing.effective()[1], effective_targets())
    kernel, grid = rt.RBF(STATE.width), np.linspace(STATE.low, STATE.high, 201)
    K, K_grid = kernel(np.array(STATE.x)), kernel(grid, np.array(STATE.x))
    offline = K_grid @ rt.offline_coefficients(K, y, STATE.gamma)
    online = K_grid @ rt.online_coefficients(K, y, learner)
    for name, curve in {"offline": offline, "online": online, "corrected": offline}.items():
        near(drawing.path(f"curve.{name}"), [grid, curve])
    expected = {
        "distance": np.sqrt(np.mean((online - offline) ** 2)),
        "discrepancy": rt.discrepancy(K, y, y, learner, STATE.gamma),
    }
    for name, value in expected.items():
        assert number(page.inner_text(f"#{name}-online")) == pytest.approx(value, rel=0.01)
        assert page.inner_text(f"#{name}-corrected") == "0"


@pytest.mark.slow
def test_points_are_dragged_typed_added_removed_and_moved_by_keys_and_all_is_reset(page):
    code, before, (x, y) = page.text_content("#code"), drawn(page, "online"), first_point(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 120, y - 150, steps=4)
    page.mouse.up()
    settled(page)
    assert drawn(page, "online") != before
    points = Drawing(page).points()
    shown = float(page.input_value("#point-x")), float(page.input_value("#point-y"))
    near((points[0][0], points[1][0]), shown)
    assert first_point(page)[0] == pytest.approx(x - 120, abs=2)
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
    assert page.text_content("#code") == code
    page.locator('.hit[tabindex="0"]').focus()
    for key in ("PageDown", "Shift+ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    settled(page)
    x, y = Drawing(page).points()
    assert x[1] == pytest.approx(STATE.x[1] - 0.011, abs=0.003)  # of a picture 1.1 wide
    assert y[1] > STATE.y[1] + 0.3
    near(np.delete(y, 1), np.delete(STATE.y, 1))
    page.keyboard.press("Delete")
    settled(page)
    near(Drawing(page).points()[0], np.delete(STATE.x, 1))


@pytest.mark.slow
def test_stepping_through_the_stream(page):
    enter(page, "#seen", "23")
    assert page.inner_text("#seen-text") == "23 of 40"
    assert page.locator(".point.unseen").count() == 17
    near(Drawing(page).effective()[1], effective_targets(seen=23))
    press(page, "#forward")
    near(Drawing(page).effective()[1], effective_targets(seen=24))
    target = f"{STATE.y[23]:g}".replace("-", MINUS)
    assert f"Sample 24 came with the target {target};" in page.inner_text("#story")
    press(page, "#first")
    assert "Nothing has been learned yet" in page.inner_text("#story")
    page.click("#play")
    page.locator("#seen-text", has_text="2 of 40").wait_for()
    press(page, "#play")
    assert page.locator("#plot .point:not(.unseen)").count() >= 2


@pytest.mark.slow
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
    near(drawing.effective(), [names["x"][:31], names["effective"]])
    near(drawing.path("curve.online")[1], names["online"])
    assert names["learner"].batch_size == 3
    distance = np.sqrt(np.mean((names["iterative"] - names["offline"]) ** 2))
    assert number(page.inner_text("#distance-iterative")) == pytest.approx(distance, rel=0.01)


@pytest.mark.slow
def test_a_diverging_rate_and_a_refused_setting_are_explained_and_can_be_left(page, visit):
    enter(page, "#lr-number", "300")
    assert "Every step is stable up to the rate 2." in page.inner_text("#notice")
    assert "the online learner diverged" in page.inner_text("#notice")
    assert drawn(page, "online") == ""
    assert drawn(page, "offline") != ""
    press(page, "#notice button")
    assert page.input_value("#lr-number") == "1"
    assert page.locator("#notice").is_hidden()
    visit.expected = ("Failed to load resource: the server responded with a status of 422",)
    enter(page, "#point-y", "1e20")
    assert "This setting cannot be computed: y.0: " in page.inner_text("#notice")
    enter(page, "#point-y", "1")
    assert page.locator("#notice").is_hidden()


@pytest.mark.slow
def test_the_terms_of_the_newest_block_are_shown_with_the_iterative_correction(page):
    path, times = page.locator("#plot path.mark.iterative"), "\N{MULTIPLICATION SIGN} "
    assert path.get_attribute("d") == ""
    assert page.locator("#terms").is_hidden()
    page.uncheck("#curve-online")
    assert drawn(page, "online") == ""
    page.check("#targets-iterative")
    assert path.get_attribute("d").count("M") == 40
    enter(page, "#seen", "13")
    assert "targets of samples 9 to 16" in page.inner_text("#terms-title")
    K = rt.RBF(STATE.width)(np.array(STATE.x))
    block = rt.correction_terms(K, rt.SGD(0.5), STATE.gamma, 8, 0.1)[1]
    texts = page.locator("#moves text").all_text_contents()
    factors = [number(text.removeprefix(times)) for text in texts if text.startswith(times)]
    np.testing.assert_allclose(factors, block.modulation.diagonal(), rtol=0.01)
    assert page.locator("#moves .bar.online").get_attribute("d").count("M") == 8
    assert page.locator("#moves .dot").count() == 8
    enter(page, "#momentum-number", "0.5")
    assert "set the momentum to 0" in page.inner_text("#terms-text")
    assert page.locator("#moves").is_hidden()
    press(page, "#first")
    assert page.locator("#terms").is_hidden()


def test_a_file_with_hostile_names_and_large_units(visit, serve, tmp_path):
    when, heat = 1.7e9 + 1e5 * np.arange(12), 1000 + 5 * np.sin(np.arange(12))
    x, y = "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>"
    path = tmp_path / "a<b onclick=alert(3)>.csv"
    pl.DataFrame({x: when, y: heat}).write_csv(path)
    with serve(file_opening(path, x, y)) as server:
        page = visit(server.url)
        assert page.text_content("#x-name") == x
        assert page.text_content("#y-name") == y
        assert path.name in page.text_content("#title")
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1
        got = Drawing(page).points()
        np.testing.assert_allclose(got[0], when, rtol=0, atol=3e3)
        np.testing.assert_allclose(got[1], heat, rtol=0, atol=0.1)
        assert page.input_value("#start-number") == f"{float(f'{heat.mean():.4g}'):g}"


@pytest.mark.slow
def test_on_a_phone_it_fits_and_a_finger_drags_a_point(visit, toy):
    page = visit(toy, width=390, height=844, has_touch=True, color_scheme="dark")
    x, y = first_point(page)
    touch = page.context.new_cdp_session(page)
    for kind, far in [("touchStart", 0), *(("touchMove", 5 * i) for i in range(1, 13))]:
        places = [{"x": x - far, "y": y - far}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    settled(page)
    assert first_point(page)[0] == pytest.approx(x - 60, abs=3)
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


@pytest.mark.slow
def test_the_table_is_in_sight_and_a_server_that_has_stopped_is_said(visit, serve):
    with serve(toy_opening()) as server:
        page = visit(server.url, width=1400, height=900)
    table, words = (page.locator(part).bounding_box() for part in ("#legend", "#sticks"))
    assert table["y"] + table["height"] <= 900
    assert words["y"] + words["height"] < page.locator("#plot").bounding_box()["y"]
    assert words["height"] < 30  # one line
    assert page.locator("#sticks em").count() == 2
    visit.expected = ("Failed to load resource",)
    page.context.set_offline(True)
    page.click("#back")
    page.get_by_text("The server does not answer").wait_for()
