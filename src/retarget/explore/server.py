"""The page's server, reachable only from this machine and with the secret address.

It listens on 127.0.0.1, so that no other machine can reach it. Every address begins with a random
token, which no other page in the same browser can guess. A request must name this server as its
host, so that a domain that is redirected to 127.0.0.1 (DNS rebinding) cannot read the answers.
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
MOST_BYTES = 100_000  # for a setting; 500 points take less than half
SCRIPTS = ("axes", "bars", "controls", "page", "plot", "points", "readings")
KINDS = {"": "text/html", "page.css": "text/css"}
KINDS |= {f"{name}.js": "text/javascript" for name in SCRIPTS}
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
        opening: What the page shows at first.
        port: The port to listen on; 0 takes any free port.
    """

    daemon_threads = True
    allow_reuse_address = True  # allows restarting on the same port at once

    def __init__(self, opening: Opening, port: int = 0) -> None:
        self.opening, self.token = opening, secrets.token_urlsafe(16)
        # one picture at a time: torch uses all cores, and warnings are recorded globally
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
        """Ignores errors from a page that was closed during an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ExploreServer
    protocol_version = "HTTP/1.1"  # one connection for all pictures while dragging
    server_version, sys_version = "retarget", ""
    wbufsize, disable_nagle_algorithm = -1, True  # answers are sent whole and at once
    timeout = 60  # seconds, for an idle connection

    def do_GET(self) -> None:
        name = self._name()
        if name is None:
            return
        if name == "opening":
            opening = self.server.opening
            self._send_json(HTTPStatus.OK, asdict(opening) | {"state": opening.state.model_dump()})
        elif name in KINDS:
            content = (files("retarget.explore") / "static" / (name or "page.html")).read_bytes()
            self._send(HTTPStatus.OK, content, KINDS[name])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    def do_POST(self) -> None:
        name, length = self._name(), self.headers.get("Content-Length", "")
        if name is None:
            return
        if name != "compute":
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        # a form on another site could send other types without a preflight request
        elif self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        elif not length.isascii() or not length.isdigit():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        # count the digits first: Python refuses to convert thousands of them
        elif len(length) > len(str(MOST_BYTES)) or int(length) > MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected up to {MOST_BYTES} bytes")
        else:
            self._compute(self.rfile.read(int(length)))

    def _compute(self, setting: bytes) -> None:
        try:
            state = State.model_validate_json(setting)
        except ValidationError as error:
            found = [(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()[:3]]
            told = [f"{where}: {what}" if where else what for where, what in found]
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(told))
            return
        with self.server.one_at_a_time:
            picture = asdict(draw(state))
        self._send_json(HTTPStatus.OK, picture | {"python": python_code(state)})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Logs nothing: the terminal shows only the address."""

    def _name(self) -> str | None:
        """Returns the requested path without the token; None if the request was refused."""
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "the request names another host")
            return None
        token, _, name = self.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(
                HTTPStatus.FORBIDDEN, "open the complete address that retarget explore printed"
            )
            return None
        return name

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True  # the rest of the request is unread
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
