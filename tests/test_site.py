"""The pages of the site are laid out as they should be, and what is wrong with them is found."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import check_layout  # noqa: E402
import check_search  # noqa: E402
import check_site  # noqa: E402
import finish_site  # noqa: E402
import in_chromium  # noqa: E402
import make_site  # noqa: E402

NO_CHROMIUM = pytest.mark.skipif(
    in_chromium.CHROMIUM is None, reason="there is no chromium on this machine"
)


@pytest.fixture
def site(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "index.html").write_text(
        """<a href="folder/page.html#here">x</a> <a href="#top">x</a> <h1 id="top">x</h1>
        <a href="https://elsewhere.example/">x</a> <img src="data:image/png;base64,AA">"""
    )
    (tmp_path / "folder" / "page.html").write_text("""<a href="..">x</a> <p id="here">x</p>""")
    return tmp_path


def test_good_pages_have_no_problems(site):
    assert check_site.problems(site) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("""<a href="folder/none.html">x</a>""", "folder/none.html leads nowhere."),
        ("""<a href="folder/page.html#gone">x</a>""", "#gone names an anchor that is not there."),
        ("""<a href="#gone">x</a>""", "#gone names an anchor that is not there."),
        ("""<img src="none.png">""", "none.png leads nowhere."),
        ("""<script src="https://elsewhere.example/x.js"></script>""", "from another host."),
        ("""<script src="//elsewhere.example/x.js"></script>""", "from another host."),
        (
            """<link rel="stylesheet" href="https://elsewhere.example/x.css">""",
            "from another host.",
        ),
    ],
)
def test_a_bad_link_is_named_with_its_page(site, line, problem):
    index = site / "index.html"
    index.write_text(index.read_text() + line)
    (found,) = check_site.problems(site)
    assert found.startswith("index.html: ")
    assert found.endswith(problem)


def test_links_and_doctest_marks(monkeypatch, tmp_path):
    monkeypatch.setattr(make_site, "ROOT", tmp_path)
    files = (
        "CHANGELOG.md examples/loop.py docs/core.md docs/tutorials/net.py src/room/explorer.html"
    )
    for name in files.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    page = tmp_path / "docs" / "tutorials" / "index.md"
    page.write_text(
        "[a](../../CHANGELOG.md) [b](../../examples/loop.py) [c](../core.md#part) [d](net.py)\n"
        "[e](https://elsewhere.example/x.md) [f](#here) [g](../../src/room/explorer.html)\n\n"
        "```python\n>>> f[0](1)\n2\n\n```\n\n```python\nx = 1\n```\n"
    )
    assert make_site.as_page(page) == (
        "[a](../changelog.md) [b](../examples/loop.md) [c](../core.md#part) [d](net.md)\n"
        "[e](https://elsewhere.example/x.md) [f](#here) [g](../explorer.html)\n\n"
        "```pycon\n>>> f[0](1)\n2\n```\n\n```python\nx = 1\n```\n"
    )
    page.write_text("[a](none.md)")
    with pytest.raises(SystemExit, match=r"index\.md: none\.md does not exist"):
        make_site.as_page(page)


def test_a_section_without_pages_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(make_site, "ROOT", tmp_path)
    monkeypatch.setattr(make_site, "DOCS", tmp_path / "docs")
    for name in ("b.md", "index.md", "a.md"):
        (tmp_path / "docs" / "folder").mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / "folder" / name).write_text("x")
    lines = ["nav = [", '  { "X" = ["folder/*.md"] },', '  { "Y" = ["none/*.md"] },', "]", ""]
    (tmp_path / "docs" / "zensical.toml").write_text("\n".join(lines))
    assert make_site.configuration().splitlines() == [
        "nav = [",
        '  { "X" = ["folder/index.md", "folder/a.md", "folder/b.md"] },',
        "]",
    ]


# What the theme does to a formula on a phone, and an svg as MathJax makes it.
THEME = """.md-typeset div.arithmatex > * { width: min-content; display: block }
.md-typeset svg { max-width: 100%; height: auto }"""
FORMULA = """<div class="arithmatex"><span><svg width="20ex" height="3ex" viewBox="0 0 200 30">
</svg></span></div>"""


@NO_CHROMIUM
def test_what_has_no_size_on_a_phone(tmp_path):
    ours = (DOCS / "assets" / "retarget.css").read_text()
    bodies = {
        "good": f"<style>{ours}</style>{FORMULA}<table><tr><td>x</table>",
        "theme": FORMULA,
        "untouched": '<span class="arithmatex">x</span>',
        "empty": "<table></table><img>",
        "wide": "<p style='width: 500px'>x</p>",
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.html").write_text(
            f"<!doctype html><style>{THEME} body {{ margin: 0 }}</style>"
            f"<body class='md-typeset'><div class='md-content'>{body}"
        )
    found = check_layout.lost_on_a_phone(tmp_path)
    assert {sentence.partition(".")[0] for sentence in found} == {*bodies} - {"good"}
    for start in (
        "empty.html: a table is 0 x 0 pixels",
        "empty.html: a img is 0 x 0 pixels",
        "theme.html: a formula is 0 x 0 pixels",
        "untouched.html: a formula is 0 x 0 pixels",
        "wide.html: the page is 500 pixels wide",
    ):
        assert any(sentence.startswith(start) for sentence in found), (start, found)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (r"(\tfrac1\eta I + K^L_{nn})^{-1}\, Y^\top", "(1/eta I + K^L_nn)⁻¹ Yᵀ"),
        (r"w + \tfrac{\eta\mu}{1-\mu} v", "w + eta mu/(1- mu) v"),
        (r"\bigl\lVert f \bigr\rVert_{\mathcal H}^2 \le 10^{-10}", "‖f ‖_H² ≤ 10⁻¹⁰"),
        (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "(a, b ; c, d)"),
        (r"\sum_{i<t} A_i", "Σ_i<t A_i"),
    ],
)
def test_a_formula_as_text(formula, words):
    assert finish_site.in_words(formula) == words


def test_copies_have_neither_prompts_nor_outputs():
    lines = [
        '<span class="gp">&gt;&gt;&gt; </span><span class="k">for</span> x <span>in</span> y:',
        '<span class="gp">... </span>    f(x, <span class="s">&quot;a&lt;b&quot;</span>)',
        '<span class="go">... an output</span>',
        '<span class="go">2</span>',
        '<span class="gp">&gt;&gt;&gt; </span>g()',
    ]
    start, end = "<pre><span></span><code>", "</code></pre></div>"
    session = '<div class="highlight">' + start + "\n".join(lines) + end
    script = '<div class="highlight">' + start + "x = 1\n" + end
    copied = "for x in y:&#10;    f(x, &quot;a&lt;b&quot;)&#10;g()"
    assert finish_site.with_copies(session + script) == (
        session.replace('highlight">', f'highlight" data-copy="{copied}">', 1) + script
    )


def test_short_options_stay_on_one_line():
    page = "<p>--out</p> <code>run -v --hold-out group</code> <code>a-b</code> <code>x--y</code>"
    marked = page.replace("-v", '<span class="word">-v</span>')
    marked = marked.replace("--hold-out", '<span class="word">--hold-out</span>')
    assert finish_site.with_whole_options(page) == marked


def test_reference_pages_without_sections():
    text = "# Title\n\n::: a.B\n\n::: a.C\n    options: {members: false}\n"
    assert make_site.under_headings(text) == (
        "# Title\n\n::: a.B\n    options: {heading_level: 2}\n\n"
        "::: a.C\n    options: {heading_level: 2, members: false}\n"
    )
    with_sections = text.replace("::: a.C", "## Section\n\n::: a.C")
    assert make_site.under_headings(with_sections) == with_sections


def test_search_leads_to_the_theory(tmp_path):
    item = {"title": r"The ridge \(\gamma\)", "text": r"<p>\(i &lt; t\), and \[ K^2 \]</p>"}
    (tmp_path / "search.json").write_text(json.dumps({"config": {}, "items": [item]}))
    finish_site.finish(tmp_path, (DOCS / "theory.md").read_text())
    first, *others = json.loads((tmp_path / "search.json").read_text())["items"]
    assert first == {"title": "The ridge gamma", "text": "<p>i &lt; t, and K²</p>"}
    by_title = {place: entry for entry in others for place in entry["title"].split(", ")}
    assert {f"Eq. {n}" for n in range(1, 19)} <= by_title.keys()
    assert by_title["Eq. 16"]["location"].startswith("theory.html#4-")
    assert by_title["A.7"]["location"].startswith("theory_proofs.html#")
    assert not any("\\" in entry["text"] for entry in others)


def test_a_script_is_a_page(monkeypatch, tmp_path):
    monkeypatch.setattr(make_site, "ROOT", tmp_path)
    for name, title in (("own_loop", "Own loop"), ("pytorch_loop", "PyTorch loop")):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
        page = make_site.as_page(tmp_path / f"{name}.py").partition("---\n\n")[2]
        assert page == f"# {title}\n\n`{name}.py`\n\n```python\nx = 1\n```\n"


# A search box as the theme has it: in a shadow tree, with results that come later.
BOX = """<button class="md-search__button">Search</button><div id="host"></div><script>
const pages = {"one": "folder/page.html?h=one#here", "two": "index.html"};
const tree = document.getElementById("host").attachShadow({ mode: "open" });
tree.innerHTML = "<input><ol></ol>";
const input = tree.querySelector("input");
input.addEventListener("input", () => setTimeout(() => {
  const page = pages[input.value];
  tree.querySelector("ol").innerHTML = page ? `<li><a href="${page}">x</a></li>` : "";
}, 50));
</script>"""


@NO_CHROMIUM
def test_a_query_that_finds_another_page_is_named(site):
    index = site / "index.html"
    index.write_text(index.read_text() + BOX)
    assert check_search.lost_queries(site, {"one": "folder/page.html", "two": "index.html"}) == []
    assert check_search.lost_queries(site, {"one": "index.html"}) == [
        "search for 'one': folder/page.html comes first; expected index.html."
    ]


@NO_CHROMIUM
def test_a_query_that_finds_nothing_is_named(site, monkeypatch):
    monkeypatch.setattr(check_search, "TRIES", 3)
    index = site / "index.html"
    index.write_text(index.read_text() + BOX)
    assert check_search.lost_queries(site, {"three": "index.html"}) == [
        "search for 'three': nothing comes first; expected index.html."
    ]


def test_ten_queries_are_searched_on_every_built_site():
    assert len(check_search.QUERIES) >= 10
    asked = {"catastrophic forgetting", "unlearn user data", "choose gamma", "shuffle"}
    assert asked <= set(check_search.QUERIES)
    for page in check_search.QUERIES.values():
        assert (DOCS / page).with_suffix(".md").exists(), page


@pytest.mark.parametrize("entry", finish_site.looked_for(), ids=lambda entry: entry["title"])
def test_what_people_look_for_is_there(entry):
    name, _, section = entry["location"].partition("#")
    text = (DOCS / name).with_suffix(".md").read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    anchors |= set(re.findall('<a id="(.+?)">', text))
    assert section in anchors | {""}


@pytest.mark.parametrize("size", [{"width": 390, "height": 844}, {"width": 1280, "height": 800}])
@NO_CHROMIUM
def test_nothing_scrolls_inside_the_frame(tmp_path, size):
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    shutil.copyfile(make_site.EXPLORER, tmp_path / "explorer.html")
    for name in ("explorer.js", "retarget.css"):
        shutil.copyfile(DOCS / "assets" / name, tmp_path / name)
    (tmp_path / "index.html").write_text(
        """<!doctype html><link rel="stylesheet" href="retarget.css">
        <iframe class="explorer" src="explorer.html"></iframe><script src="explorer.js"></script>"""
    )
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=in_chromium.CHROMIUM, args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=size)
        page.goto((tmp_path / "index.html").as_uri())
        frame = page.frames[1]
        grown = "document.querySelector('iframe').clientHeight > "
        heights = []
        for unfold in (
            "",
            "document.querySelectorAll('details').forEach((d) => { d.open = true })",
        ):
            frame.evaluate(unfold)
            page.wait_for_function(grown + str(heights[-1] if heights else 1000))
            page.wait_for_timeout(100)
            heights += frame.evaluate("[document.documentElement.scrollHeight, innerHeight]")
        browser.close()
    assert heights[0] == heights[1] < heights[2] == heights[3]
