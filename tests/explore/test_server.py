import http.client
import json
import socket
from importlib.resources import files
from unittest.mock import Mock

import numpy as np
import pytest

import retarget as rt
from retarget.errors import InvalidInputError
from retarget.explore.server import ExploreServer
from retarget.explore.state import toy_opening

JSON = {"Content-Type": "application/json"}
STATIC = files("retarget.explore") / "static"


@pytest.fixture(scope="module")
def server(serve):
    with serve(toy_opening()) as running:
        yield running


def ask(server, method, path, body=None, headers=None):
    """Status, headers and text; the token goes before a path that does not begin with a slash."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=10)
    address = path if path.startswith("/") else f"/{server.token}/{path}"
    connection.request(method, address, body, headers or {})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, reply.headers, text


def settings(**changes):
    return json.dumps(toy_opening().state.model_dump() | changes)


def test_it_listens_to_this_machine_only_at_an_address_nobody_guesses(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/{server.token}/"
    assert len(server.token) >= 22  # 128 bits
    with ExploreServer(toy_opening()) as other:
        assert other.token != server.token


def test_the_files_of_the_page_and_the_opening(server):
    scripts = [file.name for file in STATIC.iterdir() if file.name.endswith(".js")]
    kinds = {"": "html", "page.css": "css"} | dict.fromkeys(scripts, "javascript")
    for path, kind in kinds.items():
        status, headers, text = ask(server, "GET", path)
        assert (status, len(text) > 500) == (200, True)
        assert headers["Content-Type"] == f"text/{kind}; charset=utf-8"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    status, _, text = ask(server, "GET", "opening")
    assert status == 200
    assert json.loads(text)["state"] == toy_opening().state.model_dump()


def test_pictures_one_after_the_other_on_one_connection(server):
    connection = http.client.HTTPConnection(*server.server_address, timeout=10)
    state = toy_opening().state
    for seen in (3, 30):
        body = settings(lr=0.25, seen=seen)
        connection.request("POST", f"/{server.token}/compute", body, JSON)
        answer = json.loads(connection.getresponse().read())
        x, y = np.array(state.x)[:seen], np.array(state.y)[:seen]
        effective = rt.effective_targets(rt.RBF(state.width)(x), y, rt.SGD(0.25), state.gamma)
        np.testing.assert_allclose(answer["targets"]["effective"], effective, atol=1e-12)
        assert "rt.SGD(lr=0.25" in answer["python"]
    connection.close()


def test_a_setting_without_a_meaning(server):
    for body, message in (
        ("", "Invalid JSON"),
        ("[]", "Input should be an object"),
        (settings(x=[float("nan")] * 40, lr=-1), "x.0: Input should be"),
        (settings(script="<script>"), "Extra inputs are not permitted"),
    ):
        status, _, text = ask(server, "POST", "compute", body, JSON)
        assert (status, message in json.loads(text)["error"]) == (422, True)


def test_localhost_is_a_name_of_this_machine_and_other_methods_are_not_known(server):
    host = f"localhost:{server.server_address[1]}"
    assert ask(server, "GET", "", headers={"Host": host})[0] == 200
    for method in ("PUT", "DELETE", "OPTIONS", "HEAD"):
        assert ask(server, method, "")[0] == 501


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "message"),
    [
        ("GET", "/", {}, 403, "open the complete address that retarget explore printed"),
        ("GET", "/wrong-token/opening", {}, 403, "open the complete address"),
        ("POST", "/wrong-token/compute", JSON, 403, "open the complete address"),
        ("GET", "", {"Host": "evil.example"}, 403, "names another host"),
        ("POST", "compute", {"Host": "127.0.0.1", **JSON}, 403, "names another host"),
        ("GET", "nothing", {}, 404, "nothing at this address"),
        ("GET", "../picture.py", {}, 404, "nothing at this address"),
        ("GET", "compute", {}, 404, "nothing at this address"),
        ("POST", "opening", JSON, 404, "nothing at this address"),
        ("POST", "compute", {"Content-Type": "text/plain"}, 415, "expected application/json"),
        ("POST", "compute", {"Content-Length": "x", **JSON}, 411, "expected a Content-Length"),
        ("POST", "compute", {"Content-Length": "100001", **JSON}, 413, "up to 100000 bytes"),
        ("POST", "compute", {"Content-Length": "9" * 5000, **JSON}, 413, "up to 100000 bytes"),
    ],
)
def test_refusals(server, method, path, headers, status, message):
    got, headers, text = ask(server, method, path, "{}" if method == "POST" else None, headers)
    assert got == status
    assert message in json.loads(text)["error"]
    assert headers["Connection"] == "close"


def test_a_port_that_cannot_be_had(server, monkeypatch):
    port = server.server_address[1]
    with pytest.raises(InvalidInputError, match=f"port {port} of 127.0.0.1 is taken.*--port"):
        ExploreServer(toy_opening(), port)
    monkeypatch.setattr(socket.socket, "bind", Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError):  # the system's own error
        ExploreServer(toy_opening(), 80)


def test_a_page_that_is_closed_is_let_go_and_a_defect_is_shown(server, capsys):
    for error, shown in ((BrokenPipeError("gone"), ""), (ZeroDivisionError("oh"), "oh")):
        try:
            raise error
        except Exception:
            server.handle_error(None, ("127.0.0.1", 1))
        printed = capsys.readouterr().err
        assert (shown in printed) if shown else printed == ""
