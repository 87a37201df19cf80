"""The pages of the site are laid out as they should be, and what is wrong with them is found."""

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import check_site  # noqa: E402
import make_site  # noqa: E402


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


def test_links_lead_to_pages_and_examples_lose_the_marks_of_doctest(monkeypatch, tmp_path):
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


def test_the_reference_shows_what_an_adapter_makes_public(tmp_path):
    module = tmp_path / "framework.py"
    module.write_text('import x\n\n__all__ = [\n    "A",\n    "b",\n]\n')
    assert make_site.of_adapter(module) == (
        "\n## retarget.integrations.framework\n\n"
        "::: retarget.integrations.framework.A\n\n::: retarget.integrations.framework.b\n"
    )
    module.write_text("import x\n")
    assert make_site.of_adapter(module) == ""


def test_every_adapter_with_a_page_says_what_is_public():
    for page in (DOCS / "integrations").glob("*.md"):
        module = make_site.ADAPTERS / f"{page.stem}.py"
        assert not module.exists() or make_site.of_adapter(module), module
