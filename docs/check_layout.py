"""Checks built pages as a phone shows them: no formula, table or picture has lost its size.

Chromium opens every page in a frame as wide as a phone, measures, and sends what it found to the
server that gave it the pages.
"""

import functools
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTH = 390  # of a phone
PATIENCE = 300  # seconds without a page measured, after which something hangs

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


class _Server(SimpleHTTPRequestHandler):
    """Gives the site's files, the page that measures them, and takes what it measured."""

    found: queue.SimpleQueue[dict]
    measure: bytes

    def do_GET(self) -> None:
        """A file of the site; at /measure the page that looks at them."""
        if self.path == "/measure":
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(self.measure)
        else:
            super().do_GET()

    def do_POST(self) -> None:
        """What was measured on one page."""
        length = int(self.headers["Content-Length"])
        self.found.put(json.loads(self.rfile.read(length)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def lost_on_a_phone(site: Path) -> list[str]:
    """A sentence for each thing without size, and for each page that is wider than a phone."""
    pages = sorted(
        path.relative_to(site).as_posix()
        for path in site.rglob("*.html")
        if path.name not in {"404.html", "explorer.html"}  # the latter has tests of its own
    )
    text = MEASURE.replace("WIDTH", str(WIDTH)).replace("PAGES", json.dumps(pages))
    state = {"found": queue.SimpleQueue(), "measure": text.encode()}
    handler = functools.partial(type("Server", (_Server,), state), directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        measured = _measured(server.server_port, state["found"], len(pages))
        server.shutdown()
    return [sentence for page in measured for sentence in _sentences(page)]


def _measured(port: int, found: queue.SimpleQueue[dict], count: int) -> list[dict]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        options += ["--disable-background-networking", f"--user-data-dir={profile}"]
        options += ["--remote-debugging-port=0", f"http://127.0.0.1:{port}/measure"]
        browser = subprocess.Popen(
            [str(CHROMIUM), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            return [found.get(timeout=PATIENCE) for _ in range(count)]
        finally:
            browser.terminate()
            browser.wait()


def _sentences(measured: dict) -> list[str]:
    page = measured["page"]
    lost = [
        f"{page}: a {name} is {width} x {height} pixels on a phone."
        for name, width, height in measured["lost"]
    ]
    if measured["wide"] > WIDTH:
        lost.append(f"{page}: the page is {measured['wide']} pixels wide on a phone of {WIDTH}.")
    return lost
