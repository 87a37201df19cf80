"""The documents name what there is: pages, sections, files, functions, and who imports whom."""

import inspect
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
    """The addresses of a page's sections, as GitHub makes them, and those that it sets itself."""
    made = {slug(title) for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}
    return made | set(re.findall(r'<a id="([^"]+)">', prose(page)))


def slug(title):
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


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
def test_steps_of_walks_name_code(step):
    content = ""
    for name in re.findall(r"`([^`]+)`", step.partition(":")[0]):
        if name.endswith(".py"):
            content = (SOURCE / name).read_text()
        else:
            last = name.rpartition(".")[2]
            assert re.search(rf"(def|class) {last}\b", content), name


def test_the_tree_shows_every_folder():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = BLOCK.search(text[text.index("## Where things are") :]).group()
    shown, parents = set(), []
    for indent, name in re.findall(r"^( +)(\S+)  ", tree, re.MULTILINE):
        parents[len(indent) // 2 - 1 :] = [name.rstrip("/")]
        shown.add("/".join(parents))
    folders = {path for path in SOURCE.rglob("*") if path.is_dir() and path.name != "__pycache__"}
    there = {*folders, *SOURCE.glob("*.py"), SOURCE / "__init__.pyi"}
    assert shown == {str(path.relative_to(SOURCE)) for path in there}


def test_the_table_of_imports_is_the_contract():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| \d+ \| (.+) \|$", text, re.MULTILINE)
    table = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    contract = [{room.rpartition(".")[2] for room in re.split(r" \| ", layer)} for layer in layers]
    assert table == contract


def reference():
    """The names that the pages of the reference show."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    return re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)


@pytest.mark.parametrize("module", [rt, rt.kernels, rt.errors, lab, distributed])
def test_the_reference_has_every_public_name(module):
    names = (name for name in reference() if not name.startswith("retarget.integrations."))
    shown = [pydoc.locate(name) for name in names]
    errors = [name for name in vars(rt.errors) if name.endswith(("Error", "Warning"))]
    public = errors if module is rt.errors else module.__all__
    values = {name: getattr(module, name) for name in public}
    missing = [name for name, value in values.items() if value not in shown]
    assert [name for name in missing if not inspect.ismodule(values[name])] == []


def test_the_reference_has_what_every_adapter_makes_public():
    public = set()
    for path in (SOURCE / "integrations").glob("*.py"):  # read, as frameworks may not be installed
        listed = re.search(r"^__all__ = \[(.*?)\]", path.read_text(), re.MULTILINE | re.DOTALL)
        names = re.findall(r"\w+", listed[1]) if listed else []
        public |= {f"retarget.integrations.{path.stem}.{name}" for name in names}
    assert public
    assert {name for name in reference() if "integrations" in name} == public


def paper():
    """The rows of the theory page's table of the paper: place, what it says, code, section."""
    text = (ROOT / "docs" / "theory.md").read_text()
    table = text[text.index("## From the paper to the code") : text.index("## 1. Notation")]
    return [row.split(" | ") for row in re.findall(r"^\| (.+) \|$", table, re.MULTILINE)[1:]]


def test_everything_of_the_paper_once():
    places = [place for row in paper() for place in row[0].split(", ")]
    results = ["Lemma 3.1", "Theorem 3.2", "Theorem 4.1", "Proposition 4.2", "Proposition A.1"]
    numbered = [f"Eq. {n}" for n in range(1, 19)] + [f"A.{n}" for n in range(1, 9)]
    figures = ["1", "2", "3A", "3B", "3C", "4", "5", "6A to D", "6E to H"]
    assert sorted(places) == sorted([*results, *numbered, *(f"Fig. {name}" for name in figures)])


@pytest.mark.parametrize("row", paper(), ids=lambda row: row[0])
def test_rows_of_the_paper_name_code(row):
    place, _, code, section = row
    names = re.findall(r"`rt\.(\w+)`", code)
    assert all(hasattr(rt, name) for name in names), code
    figures = re.findall(r"`retarget reproduce (\w+)`", code)
    assert all((SOURCE / "lab" / "configs" / f"{name}.toml").exists() for name in figures), code
    assert names or figures or place == "A.1"
    assert "#" in section  # that it leads somewhere is tested with all other links
    page, _, anchor = LINK.search(section)[1].partition("#")
    if not page and place.startswith(("Eq", "Lemma", "Theorem", "Prop")):
        assert cited(anchor).issuperset(place.split(", ")), f"{place} is not in section {anchor}"


def cited(anchor):
    """What a section of the theory page cites, with "Eqs. 9, 10 and 13" spelled out."""
    sections = re.split(r"^## ", (ROOT / "docs" / "theory.md").read_text(), flags=re.MULTILINE)
    text = next(one for one in sections if slug(one.partition("\n")[0]) == anchor)
    several = re.findall(r"Eqs\. (\d+(?:(?:, | and )\d+)+)", text)
    equations = {f"Eq. {n}" for numbers in several for n in re.findall(r"\d+", numbers)}
    return equations | set(re.findall(r"(?:Eq\.|Lemma|Theorem|Proposition) [\d.]*\d", text))


def test_the_site_lists_every_page():
    text = (ROOT / "docs" / "zensical.toml").read_text()
    listed = set(re.findall(r'"([\w/]+\.md)"', text))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if "docs" in page.parts}
    by_themselves = {page for page in pages if page.startswith("integrations/")}
    from_the_top = {"changelog.md", "contributing.md", "security.md"}
    assert listed - from_the_top == pages - by_themselves
