"""Checks built pages as a phone shows them: no formula, table or picture has lost its size.

Chromium opens every page in a frame as wide as a phone, measures, and sends what it found to the
server that gave it the pages.
"""

import json
from pathlib import Path

from in_chromium import reports

WIDTH = 390  # of a phone

# A formula that was never typeset has no svg in it, and so no size.
MEASURE = """<!doctype html><body><script>
const shown = ".arithmatex, .md-content table, .md-content img, .md-content iframe";
const size = (one) => {
  const drawn = one.matches(".arithmatex") ? one.querySelector("svg") : one;
  const box = drawn?.getBoundingClientRect() ?? { width: 0, height: 0 };
  return [box.width, box.height].map(Math.round);
};
const name = (one) => one.matches(".arithmatex") ? "formula" : one.tagName.toLowerCase();
const measured = (page) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style = "width: WIDTHpx; height: 800px; border: 0";
  frame.onload = async () => {
    const inside = frame.contentDocument;
    await frame.contentWindow.MathJax?.startup?.promise;
    const lost = [...inside.querySelectorAll(shown)].map((one) => [name(one), ...size(one)])
      .filter(([, width, height]) => width <= 1 || height <= 1);
    const wide = inside.scrollingElement.scrollWidth;
    frame.remove();
    done({ page, lost, wide });
  };
  frame.src = page;
  document.body.append(frame);
});
(async () => {
  for (const page of PAGES)
    await fetch("/", { method: "POST", body: JSON.stringify(await measured(page)) });
})();
</script>"""


def lost_on_a_phone(site: Path) -> list[str]:
    """A sentence for each thing without size, and for each page that is wider than a phone."""
    pages = sorted(
        path.relative_to(site).as_posix()
        for path in site.rglob("*.html")
        if path.name not in {"404.html", "explorer.html"}  # the latter has tests of its own
    )
    looking = MEASURE.replace("WIDTH", str(WIDTH)).replace("PAGES", json.dumps(pages))
    measured = reports(site, looking, len(pages))
    return [sentence for page in measured for sentence in _sentences(page)]


def _sentences(measured: dict) -> list[str]:
    page = measured["page"]
    lost = [
        f"{page}: a {name} is {width} x {height} pixels on a phone."
        for name, width, height in measured["lost"]
    ]
    if measured["wide"] > WIDTH:
        lost.append(f"{page}: the page is {measured['wide']} pixels wide on a phone of {WIDTH}.")
    return lost
