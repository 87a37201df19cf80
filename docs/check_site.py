"""Checks built pages: every link leads somewhere, and nothing is fetched from another host."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that a browser follows by itself; of <link> only the kinds that it loads.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
NAMED_ONLY = {"canonical", "alternate", "prev", "next"}


class Page(HTMLParser):
    """The links, the anchors and the formulas of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []  # address, and whether the page loads it
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what the tag points to and what points to it."""
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        for name in ("href", "src"):
            if values.get(name):
                loaded = (tag, name) in LOADED and values.get("rel") not in NAMED_ONLY
                self.links.append((values[name], loaded))


def problems(site: Path) -> list[str]:
    """A sentence for each link of the site that leads nowhere, or fetches from another host."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    return [
        f"{path.relative_to(site.resolve())}: {problem}"
        for path, page in pages.items()
        if path.name != "404.html"  # its links are relative to whatever was asked for
        for problem in _problems_of(path, page, pages)
    ]


def _problems_of(path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for address, loaded in dict.fromkeys(page.links):
        parts = urlsplit(address)
        if parts.scheme == "data" or parts.scheme == "mailto":
            continue
        if parts.scheme or parts.netloc:
            if loaded:
                yield f"{address} would be fetched from another host."
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.exists():
            yield f"{address} leads nowhere."
        elif parts.fragment and target in pages:
            anchor = unquote(parts.fragment)
            if anchor not in pages[target].anchors and not anchor.startswith("__"):
                yield f"{address} names an anchor that is not there."
