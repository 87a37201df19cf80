import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from retarget.explore.server import ExploreServer


@pytest.fixture
def opened(monkeypatch):
    """What the browser was asked to open; the server stops as if by Ctrl-C."""
    pages = []

    def stop(server):
        pages.append(server.opening)
        raise KeyboardInterrupt

    monkeypatch.setattr(ExploreServer, "serve_forever", stop)
    monkeypatch.setattr("webbrowser.open", pages.append)
    return pages


def test_the_page_of_fig_1_opens_in_the_browser(command, opened):
    code, shown = command("explore")
    assert code == 0
    url, opening = opened
    assert url.startswith("http://127.0.0.1:")
    assert url in shown
    assert shown.endswith("Stopped.")
    assert len(opening.state.x) == 40


def test_a_file_without_a_browser(command, opened, tmp_path):
    path = tmp_path / "heat.csv"
    path.write_text("day,heat\n1,5\n2,7\n")
    arguments = ("explore", path, "--x", "day", "--target", "heat", "--no-browser")
    assert command(*arguments)[0] == 0
    (opening,) = opened
    assert (opening.title, opening.state.y) == ("heat.csv", [5.0, 7.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--x", "a"), "Error: --x and --target name columns of a FILE; give the file as well"),
        (("no-such.csv", "--x", "a", "--target", "b"), "Error: "),
        (("--port", "70000"), "Invalid value for '--port'"),
    ],
)
def test_wrong_use_is_explained_with_exit_code_2(command, arguments, message):
    code, shown = command("explore", *arguments)
    assert code == 2
    assert message in shown
    assert "Traceback" not in shown


def test_a_port_that_is_taken(command):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, shown = command("explore", "--port", port, "--no-browser")
    assert code == 2
    assert f"Error: port {port} of 127.0.0.1 is taken" in shown


def test_it_serves_until_ctrl_c_and_ends_cleanly():
    command = [sys.executable, "-c", "from retarget.cli import main; main()", "explore"]
    with subprocess.Popen(
        [*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            url = process.stdout.readline().split()[-1]
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=20) as page:
                assert b"retarget explore" in page.read()
            process.send_signal(signal.SIGINT)
            shown, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert shown.endswith("Stopped.\n")
