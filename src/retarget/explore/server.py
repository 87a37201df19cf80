"""The page's server: on this machine only, and only for those who were given its address.

Three locks. It listens on 127.0.0.1, so that no other machine reaches it. Every address begins with
a random token, so that no other page in the same browser can guess one. A request must name this
server as its host, so that no name that was pointed at 127.0.0.1 afterwards (DNS rebinding) reads
the answers.
"""

import errno
import json
import secrets
import socketserver
import sys
import threading
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from typing import Any

import numpy as np
from pydantic import ValidationError

from retarget.errors import InvalidInputError
from retarget.explore.picture import draw, python_code
from retarget.explore.state import Opening, State

HOST = "127.0.0.1"
MOST_BYTES = 100_000  # of a setting: 500 points take less than half of it
SCRIPTS = ("axes", "controls", "page", "plot", "points", "readings", "shifts", "terms")
FILES = {"": ("page.html", "text/html"), "page.css": ("page.css", "text/css")} | {
    f"{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ExploreServer(socketserver.ThreadingTCPServer):
    """Serves one page, and computes what it shows.

    Args:
        opening: What the page opens with.
        port: Where it listens; 0 takes any free port.
    """

    daemon_threads = True
    allow_reuse_address = True  # after a stop, at once again on the same port

    def __init__(self, opening: Opening, port: int = 0) -> None:
        self.opening, self.token = opening, secrets.token_urlsafe(16)
        # torch uses all cores for one picture, and recorded warnings belong to one at a time
        self.one_at_a_time = threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise InvalidInputError(
                f"port {port} of {HOST} is taken by another program; choose another with --port, "
                "or leave it out to get a free one"
            ) from error
        self.hosts = {f"{name}:{self.server_address[1]}" for name in (HOST, "localhost")}

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Lets a page go that was closed while it was being answered."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def answer(self, state: State) -> dict[str, Any]:
        """All that the page shows of a setting, as JSON values."""
        with self.one_at_a_time:
            picture = asdict(draw(state))
        return picture | {"python": python_code(state)}


class _Handler(BaseHTTPRequestHandler):
    server: ExploreServer
    protocol_version = "HTTP/1.1"  # one connection for all pictures of a drag
    server_version, sys_version = "retarget", ""
    wbufsize, disable_nagle_algorithm = -1, True  # an answer goes out whole, and at once
    timeout = 60  # seconds, for a connection that says nothing

    def do_GET(self) -> None:
        name = self._name()
        if name == "opening":
            opening = self.server.opening
            self._send_json(HTTPStatus.OK, asdict(opening) | {"state": opening.state.model_dump()})
        elif name in FILES:
            file, kind = FILES[name]
            content = (files("retarget.explore") / "static" / file).read_bytes()
            self._send(HTTPStatus.OK, content, kind)
        elif name is not None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    def do_POST(self) -> None:
        name = self._name()
        if name is None:
            return
        if name != "compute":
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")
            return
        if self.headers.get_content_type() != "application/json":
            # what a form of another site could send without asking
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
            return
        # by its digits first: Python makes no number of thousands of them
        if len(length) > len(str(MOST_BYTES)) or int(length) > MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected up to {MOST_BYTES} bytes")
            return
        try:
            state = State.model_validate_json(self.rfile.read(int(length)))
        except ValidationError as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, _explained(error))
            return
        self._send_json(HTTPStatus.OK, self.server.answer(state))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Says nothing: the terminal shows the address only."""

    def _name(self) -> str | None:
        """What is asked for, without the token; None if the request was refused."""
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "this server is not called so")
            return None
        token, _, name = self.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(
                HTTPStatus.FORBIDDEN, "open the address that retarget explore printed, all of it"
            )
            return None
        return name

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True  # the rest of the request has not been read
        self._send_json(status, {"error": reason})

    def _send_json(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        text = json.dumps(value, allow_nan=False, default=np.ndarray.tolist)
        self._send(status, text.encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def _explained(error: ValidationError) -> str:
    """The first things that are wrong with a setting, in a line each."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False)[:3]:
        where = ".".join(str(part) for part in problem["loc"])
        lines.append(f"{where}: {problem['msg']}" if where else problem["msg"])
    return "; ".join(lines)
