import pytest

from retarget.explore import PAGE


@pytest.fixture
def opened(monkeypatch):
    """What the browser was asked to open."""
    addresses = []
    monkeypatch.setattr("webbrowser.open", lambda url: not addresses.append(url))
    return addresses


def test_the_page_of_the_package_opens_in_the_browser(command, opened):
    code, shown = command("explore")
    assert (code, shown) == (0, str(PAGE))
    assert opened == [PAGE.as_uri()]


def test_no_open_only_prints_where_it_is(command, opened):
    assert command("explore", "--no-open") == (0, str(PAGE))
    assert opened == []


def test_without_a_browser_the_user_is_told(command, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    code, shown = command("explore")
    assert code == 0
    assert "No browser could be started: open this file in one." in shown


def test_a_copy_is_written(command, opened, tmp_path):
    path = tmp_path / "new" / "page.html"
    code, shown = command("explore", "--out", path)
    assert (code, shown) == (0, f"Wrote {path}")
    assert path.read_bytes() == PAGE.read_bytes()
    assert opened == []


def test_a_copy_cannot_replace_a_folder(command, tmp_path):
    code, shown = command("explore", "--out", tmp_path)
    assert code == 2
    assert str(tmp_path) in shown
    assert "Traceback" not in shown
