"""Builds the site: lays out the pages under build/, calls zensical, checks what came out.

`make docs` runs it in an environment of its own. The pages in docs/ are written for GitHub as well,
so they link to files of the repository. Here the changelog, the scripts and the notebooks become
pages too, and links are turned to them.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from check_layout import lost_on_a_phone
from check_search import lost_queries
from check_site import problems
from finish_site import finish
from in_chromium import CHROMIUM

ROOT = Path(__file__).parents[1]
DOCS, BUILD = ROOT / "docs", ROOT / "build"
PAGES, SITE = BUILD / "pages", BUILD / "site"
EXPLORER = ROOT / "src" / "retarget" / "explore" / "static" / "explorer.html"
AT_THE_TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

MATHJAX = "mathjax@3.2.2"  # the last one whose formulas need no further file
MATHJAX_SHA256 = "d4295dc33744836935c1399feece5159577b34c5c8ffb9f1c6324cd82e03a882"

SPELLED = {"pytorch": "PyTorch"}  # names within the names of files

MEMBER = re.compile(r"^::: [\w.]+$(\n    options: \{)?", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
LISTED = re.compile(r'"([\w/]+/\*\.\w+)"')


def page_of(path: Path) -> Path:
    """The page that a file of the repository becomes, relative to the root of the site."""
    name = path.relative_to(ROOT)
    if name.parts[0] == "docs":
        name = name.relative_to("docs")
    elif len(name.parts) == 1:
        name = Path(name.name.lower())
    elif name.suffix == ".html":  # the interactive page
        name = Path(name.name)
    return name.with_suffix(".md") if name.suffix == ".py" else name


def as_page(path: Path) -> str:
    """The text of a page: links lead to pages, and examples are shown without doctest's marks."""
    if path.suffix == ".py":
        front = "---\nsearch: {exclude: true}\n---\n\n"  # the page about it is the better answer
        title = f"# {in_words(path.stem)}\n\n`{path.relative_to(ROOT)}`"
        return f"{front}{title}\n\n```python\n{path.read_text()}```\n"

    def turned(link: re.Match[str]) -> str:
        target = (path.parent / link[1]).resolve()
        if not target.exists():
            sys.exit(f"{path.relative_to(ROOT)}: {link[1]} does not exist.")
        relative = os.path.relpath(page_of(target), page_of(path).parent)
        return f"]({Path(relative).as_posix()}{link[2] or ''})"

    def shown(block: re.Match[str]) -> str:
        text = re.sub(r"\n\n```$", "\n```", block[0])
        return re.sub(r"^```python\n(?=>>>)", "```pycon\n", text)

    text, pieces, last = under_headings(path.read_text()), [], 0
    for block in FENCE.finditer(text):
        pieces += [LINK.sub(turned, text[last : block.start()]), shown(block)]
        last = block.end()
    return "".join([*pieces, LINK.sub(turned, text[last:])])


def in_words(name: str) -> str:
    """The title of a script: the words of its file's name."""
    words = [SPELLED.get(word, word) for word in name.split("_")]
    return " ".join(words)[0].upper() + " ".join(words)[1:]


def under_headings(text: str) -> str:
    """A page of the reference: without sections, its members come right below its title."""

    def raised(member: re.Match[str]) -> str:
        options = "" if member[1] else "\n    options: {"
        return f"{member[0]}{options}heading_level: 2{', ' if member[1] else '}'}"

    return text if re.search(r"^## ", text, re.MULTILINE) else MEMBER.sub(raised, text)


def lay_out() -> None:
    """Writes the pages and their configuration to build/."""
    shutil.rmtree(PAGES, ignore_errors=True)
    pages = [*DOCS.rglob("*.md"), *map(ROOT.joinpath, AT_THE_TOP)]
    scripts = [*(DOCS / "tutorials").glob("*.py"), *(ROOT / "examples").glob("*.py")]
    others = [*(DOCS / "images").glob("*"), *(DOCS / "assets").glob("*"), EXPLORER]
    others += [*DOCS.glob("*.schema.json"), *(ROOT / "examples").glob("*.toml")]
    for path in (*pages, *scripts, *others):
        page = PAGES / page_of(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            page.write_text(as_page(path))
        else:
            shutil.copyfile(path, page)
    index = PAGES / "index.md"  # alone in its tab: the column for other pages would be empty
    index.write_text("---\nhide: [navigation]\n---\n\n" + index.read_text())
    (BUILD / "zensical.toml").write_text(configuration())


def configuration() -> str:
    """zensical.toml with every list of pages filled in, a folder's index first."""

    def filled(pattern: re.Match[str]) -> str:
        base = ROOT if pattern[1].startswith("examples") else DOCS
        pages = sorted(base.glob(pattern[1]), key=lambda path: (path.stem != "index", path.stem))
        return ", ".join(json.dumps(page_of(path).as_posix()) for path in pages)

    text = LISTED.sub(filled, (DOCS / "zensical.toml").read_text())
    return re.sub(r"^.* = \[\] },\n", "", text, flags=re.MULTILINE)  # no page, no section


def lay_in_mathjax() -> None:
    """MathJax from its npm package, which is fetched once and kept in build/."""
    name, version = MATHJAX.split("@")
    package = BUILD / f"{name}-{version}.tgz"
    if not package.exists():
        command = ["npm", "pack", "--silent", "--pack-destination", str(BUILD), MATHJAX]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    folder = PAGES / "assets/mathjax"
    folder.mkdir()
    with tarfile.open(package) as members:
        for member in ("package/es5/tex-svg.js", "package/LICENSE"):
            (folder / Path(member).name).write_bytes(members.extractfile(member).read())
    found = hashlib.sha256((folder / "tex-svg.js").read_bytes()).hexdigest()
    if found != MATHJAX_SHA256:
        sys.exit(f"{package} is not the MathJax that was looked at: its SHA-256 is {found}.")


def build() -> None:
    """Calls zensical, for which every warning is an error."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    done = subprocess.run(
        command,
        cwd=BUILD,
        env=os.environ | {"NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    sys.stdout.write(done.stdout)
    quiet = "No issues found" in done.stdout and "griffe:" not in done.stdout
    if done.returncode or not quiet:  # what griffe says of docstrings is not counted as an issue
        sys.exit("The site was not built: see above.")


if __name__ == "__main__":
    BUILD.mkdir(exist_ok=True)
    lay_out()
    lay_in_mathjax()
    build()
    finish(SITE, (DOCS / "theory.md").read_text())
    found = problems(SITE)
    if CHROMIUM:
        found += lost_on_a_phone(SITE) + lost_queries(SITE)
    if found:
        sys.exit("\n".join([*found, f"{len(found)} problems in the built pages."]))
    count = len(list(SITE.rglob("*.html")))
    sys.stdout.write(f"{count} pages in {SITE.relative_to(ROOT)}; every link leads somewhere.\n")
    seen = "were looked at" if CHROMIUM else "were not looked at: no Chromium here"
    sys.stdout.write(f"Sizes on a phone's screen and the first results of a search {seen}.\n")
