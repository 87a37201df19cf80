"""The documents name what there is: pages, sections, files, functions, and who imports whom."""

import pydoc
import re
import tomllib
from pathlib import Path

import pytest

import retarget as rt
from retarget import distributed, lab

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "retarget"
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "CHANGELOG.md"  # which tells what there was
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|md|toml|yaml|json))`")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(page):
    """The page without its blocks of code."""
    return BLOCK.sub("", page.read_text())


def anchors(page):
    """The addresses of a page's sections, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(prose(page)):
        address, _, section = link.partition("#")
        if address.startswith("http"):
            continue
        target = page.parent / address if address else page
        assert target.exists(), link
        if section:
            assert section in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page):
    for name in NAMED.findall(prose(page)):
        if "NAME" not in name and not name.startswith("results/"):
            folders = ROOT, SOURCE, SOURCE.parent, SOURCE / "experiments"
            assert any((folder / name).exists() for folder in folders), name


def walks():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text[text.index("## Walks through") : text.index("## What we ask")]


@pytest.mark.parametrize("step", re.findall(r"^\d+\. (.+)$", walks(), re.MULTILINE))
def test_every_step_of_a_walk_names_functions_that_the_file_has(step):
    content = ""
    for name in re.findall(r"`([^`]+)`", step.partition(":")[0]):
        if name.endswith(".py"):
            content = (SOURCE / name).read_text()
        else:
            last = name.rpartition(".")[2]
            assert re.search(rf"(def|class) {last}\b", content), name


def test_the_tree_shows_every_folder_and_every_file_at_the_top():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = BLOCK.search(text[text.index("## Where things are") :]).group()
    shown, parents = set(), []
    for indent, name in re.findall(r"^( +)(\S+)  ", tree, re.MULTILINE):
        parents[len(indent) // 2 - 1 :] = [name.rstrip("/")]
        shown.add("/".join(parents))
    folders = {path for path in SOURCE.rglob("*") if path.is_dir() and path.name != "__pycache__"}
    there = {*folders, *SOURCE.glob("*.py")}
    assert shown == {str(path.relative_to(SOURCE)) for path in there}


def test_the_table_of_imports_is_the_contract():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| \d+ \| (.+) \|$", text, re.MULTILINE)
    table = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    contract = [{room.rpartition(".")[2] for room in re.split(r" \| ", layer)} for layer in layers]
    assert table == contract


@pytest.mark.parametrize("module", [rt, rt.kernels, rt.errors, lab, distributed])
def test_the_reference_has_every_public_name(module):
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = [pydoc.locate(name) for name in re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)]
    assert [name for name in module.__all__ if getattr(module, name) not in shown] == []


def test_the_site_lists_every_page():
    text = (ROOT / "docs" / "zensical.toml").read_text()
    listed = set(re.findall(r'"([\w/]+\.md)"', text))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if "docs" in page.parts}
    by_themselves = {page for page in pages if page.startswith("integrations/")}
    from_the_top = {"changelog.md", "contributing.md", "security.md"}
    assert listed - from_the_top == pages - by_themselves
