"""Opens a page in Chromium beside the built site, and returns what the page reports."""

import functools
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 300  # seconds without a report, after which something hangs


class _Server(SimpleHTTPRequestHandler):
    """Gives the site's files and the page that looks at them, and takes what it reports."""

    reported: queue.SimpleQueue[dict]
    looking: bytes

    def do_GET(self) -> None:
        """A file of the site; at /looking the page that looks at them."""
        if self.path == "/looking":
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(self.looking)
        else:
            super().do_GET()

    def do_POST(self) -> None:
        """One report."""
        length = int(self.headers["Content-Length"])
        self.reported.put(json.loads(self.rfile.read(length)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def reports(site: Path, looking: str, count: int) -> list[dict]:
    """So many reports of the page, which may open the site's pages and posts each report to /."""
    state = {"reported": queue.SimpleQueue(), "looking": looking.encode()}
    handler = functools.partial(type("Server", (_Server,), state), directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            return list(_reported(server.server_port, state["reported"], count))
        finally:
            server.shutdown()


def _reported(port: int, reported: queue.SimpleQueue[dict], count: int) -> Iterator[dict]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        options += ["--disable-background-networking", f"--user-data-dir={profile}"]
        options += ["--remote-debugging-port=0", f"http://127.0.0.1:{port}/looking"]
        browser = subprocess.Popen(
            [str(CHROMIUM), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            for _ in range(count):
                yield reported.get(timeout=PATIENCE)
        finally:
            browser.terminate()
            browser.wait()
