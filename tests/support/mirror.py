"""A mirror of files on this machine, for tests of downloads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    """What the mirror says to one path; without `announced`, no Content-Length is sent."""

    content: bytes = b""
    announced: int | str | None = "as it is"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Mirror:
    """A running mirror: change what it answers, read what it was asked for."""

    address: str
    answers: dict[str, Answer]
    asked: list[str] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)


@contextmanager
def running_mirror() -> Iterator[Mirror]:
    """A mirror on a free port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            mirror.asked.append(self.path)
            mirror.encodings.append(self.headers["Accept-Encoding"])
            answer = mirror.answers.get(self.path, Answer(b"no such file here", status=404))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.announced is not None:
                as_it_is = answer.announced == "as it is"
                length = len(answer.content) if as_it_is else answer.announced
                self.send_header("Content-Length", str(length))
            self.end_headers()
            try:
                self.wfile.write(answer.content)
            except ConnectionError:  # the other side had enough: that is what some tests are about
                self.close_connection = True

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        mirror = Mirror(f"http://127.0.0.1:{server.server_port}", {})
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield mirror
        finally:
            server.shutdown()
            thread.join()
