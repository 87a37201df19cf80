"""The page in a real browser: Debian's Chromium, driven by playwright, with no network."""

import re
import shutil

import numpy as np
import pytest

import retarget as rt
from retarget.engine.stability import largest_stable_lr
from retarget.explore import PAGE
from retarget.lab.data.toy import WIDTH, toy_curve

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
MINUS = "\N{MINUS SIGN}"
TOY = toy_curve(69)  # the seed of lab/configs/fig1.toml
X, Y = TOY.x_train.round(3), TOY.y_train.round(3)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser):
    """Opens the page; at the end, none has complained or asked for anything but its file."""
    seen, contexts = [], []

    def opened(width=1280, height=1000, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda r: r.url == PAGE.as_uri() or seen.append(r.url))
        page.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
        page.goto(PAGE.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [line for line in seen if line != "data:,"] == []


@pytest.fixture
def page(visit):
    return visit(permissions=["clipboard-read", "clipboard-write"])


@pytest.fixture(scope="module")
def functions(browser):
    """A page whose functions are called with numbers."""
    page = browser.new_page()
    page.goto(PAGE.as_uri())
    yield page
    page.close()


def enter(page, field, value):
    page.locator(field).fill(value)
    page.locator(field).blur()


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
        """Where the tips of the arrows are."""
        return self.path("mark.online", r"M\S+ \S+?L(\S+) (\S+?)L")


def drawn(page, curve):
    return page.locator(f"#plot path.curve.{curve}").get_attribute("d")


def first_point(page):
    box = page.locator(".hit").first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def effective_targets(seen=40):
    return rt.effective_targets(rt.RBF(WIDTH)(X[:seen]), Y[:seen], rt.SGD(0.5), 1.0)


def near(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=0.01)  # about a pixel


def same(got, expected):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9 * scale)


# n, width, lr, batch size, momentum, gamma, block size, block ridge
PROBLEMS = [
    (1, 0.7, 0.3, 1, 0.0, 0.2, 1, 0.0),
    (2, 2.0, 1.1, 3, 0.0, 0.05, 3, 0.3),
    (17, 0.25, 0.4, 1, 0.0, 0.3, 5, 0.02),
    (30, 0.1, 0.15, 4, 0.0, 2.5, 8, 0.5),
    (41, 0.6, 0.05, 3, 0.6, 0.7, 9, 0.2),
    (60, 1.3, 0.02, 7, 0.9, 0.01, 14, 0.04),
    (60, 0.05, 0.9, 1, 0.0, 0.4, 1, 0.0),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem[0]} points")
def test_its_functions_give_the_numbers_of_python(functions, problem):
    n, width, lr, batch, momentum, gamma, block, ridge = problem
    rng = np.random.default_rng(n + batch)
    x, y, query = rng.uniform(-1, 2, n), rng.normal(size=n) + 0.5, np.linspace(-2, 3, 11)
    learner, kernel = (
        rt.SGD(lr=lr, batch_size=batch, momentum=momentum, reduction="sum"),
        rt.RBF(width),
    )
    K = kernel(x)
    in_page = """([x, y, query, width, learner, gamma, block, ridge]) => {
        const K = rbf(x, x, width);
        return {
            K, K_query: rbf(query, x, width), offline: offlineCoefficients(K, y, gamma),
            online: onlineCoefficients(K, y, learner), errors: onlineErrors(K, y, learner),
            effective: effectiveTargets(K, y, learner, gamma),
            corrected: correctedTargets(K, y, learner, gamma),
            iterative: iterativeTargets(K, y, learner, gamma, block, ridge),
            rate: largestStableRate(K, learner),
        };
    }"""
    options = {"lr": lr, "batch_size": batch, "momentum": momentum}
    given = [x.tolist(), y.tolist(), query.tolist(), width, options, gamma, block, ridge]
    got = functions.evaluate(in_page, given)
    same(got["K"], K)
    same(got["K_query"], kernel(query, x))
    same(got["offline"], rt.offline_coefficients(K, y, gamma))
    same(got["online"], rt.online_coefficients(K, y, learner))
    same(got["errors"], rt.prequential_errors(K, y, learner))
    same(got["effective"], rt.effective_targets(K, y, learner, gamma))
    same(got["corrected"], rt.corrected_targets(K, y, learner, gamma))
    same(got["iterative"], rt.iterative_targets(K, y, learner, gamma, block, ridge))
    gram = rt.arrays.as_tensor("K", K)
    limit = largest_stable_lr(lambda rows: gram[rows, rows], learner, n)
    assert got["rate"] == pytest.approx(limit, rel=1e-9)


SETTINGS = [
    {"seen": 40},
    {"seen": 23, "order": "reversed", "lr": 0.2, "batch_size": 3, "block_size": 6, "start": -0.7},
    {"seen": 1, "order": "left to right", "width": 0.1, "gamma": 0.06, "block_ridge": 0.003},
    {"seen": 31, "order": "shuffled", "seed": 5, "momentum": 0.5, "lr": 0.11, "start": 3},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting['seen']} samples")
def test_its_picture_is_what_python_computes(functions, setting):
    whole = f"{{ ...OPENING, ...{setting!r} }}"
    picture, code = functions.evaluate(f"[pictureOf({whole}), pythonOf({whole})]")
    names = {}
    exec(code, names)
    seen = setting["seen"]
    assert sorted(picture["stream"]) == list(range(40))
    start = setting.get("start", 0)
    same(Y[picture["stream"]], names["y"] + start)
    for curve in ("offline", "online", "corrected", "iterative"):
        same(picture["curves"][curve], names[curve])
    same(picture["targets"]["effective"], names["effective"])
    for kind in ("corrected", "iterative"):
        same(picture["targets"][kind], names[f"{kind}_targets"])
    for kind in ("online", "iterative"):
        distance = np.sqrt(np.mean((names[kind] - names["offline"]) ** 2))
        assert picture["errors"][kind] == pytest.approx(distance, rel=1e-9)
        assert picture["discrepancies"][kind] == pytest.approx(
            names[f"{kind}_discrepancy"], rel=1e-9
        )
    assert picture["discrepancies"]["corrected"] == pytest.approx(
        names["corrected_discrepancy"], abs=1e-9
    )
    K, y, learner = names["K"], names["y"][:seen], names["learner"]
    predicted = y - rt.prequential_errors(K[:seen, :seen], y, learner) + start
    same(picture["predicted"], predicted)
    if seen > 1:
        before = rt.effective_targets(K[: seen - 1, : seen - 1], y[:-1], learner, names["gamma"])
        same(picture["targets"]["before"], before + start)
    assert (picture["terms"] is None) == (learner.momentum > 0)
    if picture["terms"]:
        terms = picture["terms"]
        assert terms["first"] == names["new"].start
        same(terms["modulation"], names["modulation"])
        same(terms["online"], names["online_move"])
        same(terms["offline"], names["offline_move"])


def test_orders_of_the_page(functions):
    orders = [
        functions.evaluate(f"streamOf({{ ...OPENING, order: 'shuffled', seed: {seed} }})")
        for seed in range(20)
    ]
    assert len({tuple(order) for order in orders}) == 20
    assert len({order[0] for order in orders}) > 8
    by_x = functions.evaluate("streamOf({ ...OPENING, order: 'left to right' })")
    assert by_x == np.argsort(X, kind="stable").tolist()


def test_points_and_targets_are_drawn_in_place(page):
    drawing, learner = Drawing(page), rt.SGD(0.5)
    near(drawing.points(), [X, Y])
    near(drawing.effective(), [X, effective_targets()])
    kernel, grid = rt.RBF(WIDTH), np.linspace(-0.05, 1.05, 201)
    K, K_grid = kernel(X), kernel(grid, X)
    offline = K_grid @ rt.offline_coefficients(K, Y, 1.0)
    online = K_grid @ rt.online_coefficients(K, Y, learner)
    for name, curve in {"offline": offline, "online": online, "corrected": offline}.items():
        near(drawing.path(f"curve.{name}"), [grid, curve])
    expected = {
        "error": np.sqrt(np.mean((online - offline) ** 2)),
        "discrepancy": rt.discrepancy(K, Y, Y, learner, 1.0),
    }
    for name, value in expected.items():
        assert number(page.inner_text(f"#{name}-online")) == pytest.approx(value, rel=0.01)
        assert page.inner_text(f"#{name}-corrected") == "0"
    mean = np.abs(effective_targets() - Y).mean()
    assert f"The mean shift of all targets is {mean:.3g}." in page.inner_text("#story")


@pytest.mark.slow
def test_points_are_moved_in_every_way(page):
    code, before, (x, y) = page.text_content("#code"), drawn(page, "online"), first_point(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 120, y - 150, steps=4)
    page.mouse.up()
    assert drawn(page, "online") != before
    points = Drawing(page).points()
    shown = float(page.input_value("#point-x")), float(page.input_value("#point-y"))
    near((points[0][0], points[1][0]), shown)
    assert first_point(page)[0] == pytest.approx(x - 120, abs=2)
    page.click("#add")
    assert page.locator("#plot .point").count() == 41
    assert page.inner_text("#seen-text") == "41 of 41"
    enter(page, "#point-y", "1.5")
    assert Drawing(page).points()[1][40] == pytest.approx(1.5, abs=0.01)
    enter(page, "#point-y", "")
    assert page.input_value("#point-y") == "1.5"
    page.click("#remove")
    box = page.locator("#plot").bounding_box()
    page.mouse.dblclick(box["x"] + 0.9 * box["width"], box["y"] + 40)
    assert page.locator("#plot .point").count() == 41
    page.click("#reset")
    assert page.text_content("#code") == code
    page.locator('.hit[tabindex="0"]').focus()
    for key in ("PageDown", "Shift+ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    x, y = Drawing(page).points()
    assert x[1] == pytest.approx(X[1] - 0.011, abs=0.003)  # of a picture 1.1 wide
    assert y[1] > Y[1] + 0.3
    near(np.delete(y, 1), np.delete(Y, 1))
    page.keyboard.press("Delete")
    near(Drawing(page).points()[0], np.delete(X, 1))


@pytest.mark.slow
def test_stepping_through_the_stream(page):
    enter(page, "#seen", "23")
    assert page.inner_text("#seen-text") == "23 of 40"
    assert page.locator(".point.unseen").count() == 17
    near(Drawing(page).effective()[1], effective_targets(seen=23))
    page.click("#forward")
    near(Drawing(page).effective()[1], effective_targets(seen=24))
    target = f"{Y[23]:g}".replace("-", MINUS)
    assert f"Sample 24 came with the target {target};" in page.inner_text("#story")
    page.click("#first")
    assert "Nothing has been learned yet" in page.inner_text("#story")
    page.click("#play")
    page.locator("#seen-text", has_text="2 of 40").wait_for()
    page.click("#play")
    assert page.locator("#plot .point:not(.unseen)").count() >= 2


@pytest.mark.slow
def test_sliders_change_the_setting(page):
    enter(page, "#lr", "0.25")
    assert float(page.input_value("#lr-number")) == pytest.approx(0.01 * 400**0.25, rel=0.01)
    page.select_option("#order", "shuffled")
    page.click("#shuffle")
    page.locator("#gamma").fill("0.8")
    page.locator("#batch_size").fill("3")
    assert page.input_value("#block_size-number") == "9"  # whole mini-batches
    enter(page, "#seen", "31")
    page.click("#python summary")
    page.click("#copy")
    page.get_by_text("Copied.").wait_for()
    names = {}
    exec(page.evaluate("navigator.clipboard.readText()"), names)
    drawing = Drawing(page)
    near(drawing.effective(), [names["x"][:31], names["effective"]])
    near(drawing.path("curve.online")[1], names["online"])
    assert names["learner"].batch_size == 3
    assert names["gamma"] == pytest.approx(0.001 * 1e5**0.8, rel=0.01)


def test_divergence_and_singular_blocks_are_explained(page):
    assert "stable up to the rate 2." in page.inner_text("#stable")
    assert page.locator("#notice").is_hidden()
    enter(page, "#lr-number", "300")
    assert "Every step is stable up to the rate 2." in page.inner_text("#notice")
    assert "Not drawn (online model; " in page.inner_text("#notice")
    assert drawn(page, "online") == ""
    assert drawn(page, "offline") != ""
    page.click("#notice button")
    assert page.input_value("#lr-number") == "1"
    assert page.locator("#notice").is_hidden()
    enter(page, "#block_ridge-number", "0")
    enter(page, "#width-number", "10")
    assert "two points are too much alike" in page.inner_text("#notice")
    assert page.inner_text("#error-iterative") == "\N{EN DASH}"
    enter(page, "#block_ridge-number", "0.01")
    assert page.locator("#notice").is_hidden()
    enter(page, "#point-y", "1e20")
    assert page.input_value("#point-y") == "1000000000000"


@pytest.mark.slow
def test_terms_of_the_newest_block_are_shown(page):
    path, times = page.locator("#plot path.mark.iterative"), "\N{MULTIPLICATION SIGN} "
    assert path.get_attribute("d") == ""
    assert page.locator("#terms").is_hidden()
    page.uncheck("#curve-online")
    assert drawn(page, "online") == ""
    page.check("#targets-iterative")
    assert path.get_attribute("d").count("M") == 40
    enter(page, "#seen", "13")
    assert "targets of samples 9 to 16" in page.inner_text("#terms-title")
    block = rt.correction_terms(rt.RBF(WIDTH)(X), rt.SGD(0.5), 1.0, 8, 0.1)[1]
    texts = page.locator("#moves text").all_text_contents()
    factors = [number(text.removeprefix(times)) for text in texts if text.startswith(times)]
    np.testing.assert_allclose(factors, block.modulation.diagonal(), rtol=0.01)
    assert page.locator("#moves .bar.online").get_attribute("d").count("M") == 8
    assert page.locator("#moves .dot").count() == 8
    assert page.locator("#moves[aria-labelledby=terms-title]").is_visible()
    enter(page, "#momentum-number", "0.5")
    assert "set the momentum to 0" in page.inner_text("#terms-text")
    assert page.locator("#moves").is_hidden()
    page.click("#first")
    assert page.locator("#terms").is_hidden()


def test_own_points_are_pasted(page):
    when, heat = 1.7e9 + 1e5 * np.arange(12), 1000 + 5 * np.sin(np.arange(12))
    page.click("#own summary")
    playwright.expect(page.locator("#points-text")).not_to_have_value("")  # when it has opened
    assert page.input_value("#points-text").splitlines()[1] == "0.72, -1.928"
    lines = [f"{x:.0f}\t{y!r}" for x, y in zip(when, heat.tolist(), strict=True)]
    page.fill("#points-text", "\n".join(["time heat", *lines]))
    page.click("#use")
    got = Drawing(page).points()
    np.testing.assert_allclose(got[0], when, rtol=0, atol=3e3)
    np.testing.assert_allclose(got[1], heat, rtol=0, atol=0.1)
    assert page.input_value("#start-number") == f"{float(f'{heat.mean():.4g}'):g}"
    hostile = "<img src=x onerror=alert(1)>"
    for text, message in {
        f"1 2\n{hostile}": f'Line 2 is "{hostile}"; expected two numbers.',
        "time heat\n\n1 2\n\n3,": 'Line 5 is "3,"; expected two numbers.',
        "3 x": 'Line 1 is "3 x"; expected two numbers.',
        "a b": "There are 0 points; expected 1 to 200.",
        "\n".join("1 2" for _ in range(201)): "There are 201 points; expected 1 to 200.",
    }.items():
        page.fill("#points-text", text)
        page.click("#use")
        assert page.inner_text("#refused") == message
    assert page.locator("img").count() == 0
    near(Drawing(page).points()[1], got[1])


@pytest.mark.slow
def test_it_fits_a_phone(visit):
    page = visit(width=390, height=844, has_touch=True, color_scheme="dark")
    x, y = first_point(page)
    touch = page.context.new_cdp_session(page)
    for kind, far in [("touchStart", 0), *(("touchMove", 5 * i) for i in range(1, 13))]:
        places = [{"x": x - far, "y": y - far}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert first_point(page)[0] == pytest.approx(x - 60, abs=3)
    enter(page, "#lr-number", "300")
    for summary in page.locator("summary").all():
        summary.click()
    page.click("#notice button")
    page.check("#curve-iterative")
    assert page.locator("#moves").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#gamma").scroll_into_view_if_needed()
    assert page.locator("#plot").bounding_box()["y"] >= 0  # still in sight
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert np.mean([float(part) for part in re.findall(r"\d+", background)]) < 60


def test_no_number_is_cut_on_a_phone(visit):
    page = visit(width=349, height=844)  # what the site's front page leaves it, 390 pixels wide
    table, card = (page.locator(part).bounding_box() for part in ("#legend", "#reading"))
    assert table["x"] + table["width"] <= card["x"] + card["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == 349


def test_everything_has_a_name_and_is_in_sight(visit):
    page = visit(width=1400, height=900)
    table, words = (page.locator(part).bounding_box() for part in ("#legend", "header p"))
    assert table["y"] + table["height"] <= 900
    assert words["y"] + words["height"] < page.locator("#plot").bounding_box()["y"]
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    page.select_option("#order", "shuffled")
    unnamed = """() => [...document.querySelectorAll("input, select, textarea, button, .hit")]
        .filter((one) => !(one.labels?.length || one.getAttribute("aria-label") || one.innerText))
        .map((one) => one.outerHTML)"""
    assert page.evaluate(unnamed) == []


def test_the_title_is_left_out_in_a_page(visit, browser, tmp_path):
    around = tmp_path / "around.html"
    around.write_text(f"<iframe src='{PAGE.as_uri()}' width=900 height=700></iframe>")
    page = browser.new_page()
    page.goto(around.as_uri())
    frame = page.frame_locator("iframe")
    assert frame.locator("#plot .point").count() == 40
    assert frame.locator("h1").is_hidden()
    page.close()
    assert visit().locator("h1").is_visible()
