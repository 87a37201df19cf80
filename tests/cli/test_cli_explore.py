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


def test_the_page_opens_in_the_browser_unless_not_asked_to(command, opened, tmp_path):
    code, shown = command("explore")
    assert code == 0
    url, opening = opened
    assert url.startswith("http://127.0.0.1:")
    assert url in shown
    assert shown.endswith("Stopped.")
    assert len(opening.state.x) == 40  # that of Fig. 1
    opened.clear()
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
        (("--port", "taken", "--no-browser"), "Error: port 7 of 127.0.0.1 is taken"),
    ],
)
def test_wrong_use_is_explained_with_exit_code_2(command, arguments, message):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        arguments = [taken if text == "taken" else text for text in arguments]
        code, shown = command("explore", *arguments)
    assert code == 2
    assert message in shown.replace(taken, "7")
    assert "Traceback" not in shown


@pytest.mark.slow
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
