"""Whatever is sent to the page's server: an answer, never a traceback, never a wait."""

import json
import os
import socket
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retarget.explore.state import LARGEST, MOST_POINTS, toy_opening

pytestmark = pytest.mark.faults
PATIENCE = 20  # seconds
TIMES = 300 if "RETARGET_CORRUPTIONS" in os.environ else 1


@pytest.fixture(scope="module")
def server(serve):
    """A server that keeps its defects instead of showing them on the terminal."""
    with serve(toy_opening()) as running:
        running.defects = []
        running.handle_error = lambda *_: running.defects.append(repr(sys.exception()))
        yield running


def sent(server, request):
    """The whole answer to raw bytes."""
    with socket.create_connection(server.server_address, timeout=PATIENCE) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    assert server.defects == []
    return answer


def posted(server, body, length=None, host=None):
    head = (
        f"POST /{server.token}/compute HTTP/1.1\r\nContent-Type: application/json\r\n"
        f"Host: {host or f'127.0.0.1:{server.server_address[1]}'}\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return sent(server, head.encode("latin-1", "replace") + body)


def status(answer):
    return int(answer.split(b" ", 2)[1])


def content(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])


LETTERS = st.characters(max_codepoint=255, exclude_characters="\r\n")
NUMBERS = st.floats(-2 * LARGEST, 2 * LARGEST) | st.sampled_from([0.0, 1e-300, -LARGEST, LARGEST])
POSITIVES = st.floats(1 / LARGEST, 2 * LARGEST) | st.sampled_from([1 / LARGEST, 2 * LARGEST])


@settings(max_examples=10 * TIMES)
@given(st.data())
def test_every_setting_in_range_has_a_picture(server, data):
    """The extremes of all numbers together: what overflows is a problem that is named, in JSON."""
    count = data.draw(st.integers(1, 12))
    points = st.lists(NUMBERS, min_size=count, max_size=count)
    low, high = sorted(
        data.draw(st.tuples(NUMBERS, NUMBERS).filter(lambda ends: ends[0] != ends[1]))
    )
    setting = {
        "x": data.draw(points), "y": data.draw(points), "low": low, "high": high,
        "order": data.draw(st.sampled_from(["as given", "reversed", "by x", "random"])),
        "seed": data.draw(st.integers(0, 2**31 - 1)), "lr": data.draw(POSITIVES),
        "batch_size": data.draw(st.integers(1, MOST_POINTS)),
        "momentum": data.draw(st.floats(0, 0.999)), "gamma": data.draw(POSITIVES),
        "width": data.draw(POSITIVES), "block_size": data.draw(st.integers(1, MOST_POINTS)),
        "block_ridge": data.draw(st.floats(0, LARGEST)), "start": data.draw(NUMBERS),
        "seen": data.draw(st.integers(0, count)),
    }  # fmt: skip
    answer = posted(server, json.dumps(setting).encode())
    assert status(answer) == 200, content(answer)
    assert np.isfinite(content(answer)["grid"]).all()


@settings(max_examples=20 * TIMES)
@given(st.binary(max_size=300))
@example(b"[" * 50_000)
@example(b'{"x":' * 15_000)
@example(b'{"x": [' + b"1," * 40_000 + b"1]}")
@example(b'{"seed": ' + b"9" * 90_000 + b"}")
@example(b'{"order": "\\ud800"}')
@example(b'{"x": [1e999], "__proto__": {}}')
@example(b'{"x": NaN}')
def test_any_bytes_as_a_body(server, body):
    assert status(posted(server, body)) == 422


@settings(max_examples=20 * TIMES)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_request(server, request_bytes):
    answer = sent(server, request_bytes + b"\r\n\r\n")
    assert b"Traceback" not in answer
    assert not answer.startswith(b"HTTP/1.1 200")


@settings(max_examples=10 * TIMES)
@given(
    length=st.integers() | st.text(LETTERS, max_size=9),
    host=st.text(LETTERS, max_size=30),
)
def test_odd_headers(server, length, host):
    assert status(posted(server, b"{}", length=length)) in (400, 411, 413, 422)
    assert status(posted(server, b"{}", host=host or "x")) == 403


def test_a_body_that_does_not_come_and_one_that_does(server):
    """The other side has closed: what was announced will never be there."""
    assert status(posted(server, b'{"x": [', length=90_000)) == 422
    state = toy_opening().state.model_dump()
    assert status(posted(server, json.dumps(state).encode())) == 200
