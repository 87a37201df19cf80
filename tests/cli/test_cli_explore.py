import pytest

from retarget.explore import MOST_POINTS, PAGE, POINTS


@pytest.fixture
def opened(monkeypatch):
    """What the browser was asked to open."""
    addresses = []
    monkeypatch.setattr("webbrowser.open", lambda url: not addresses.append(url))
    return addresses


def test_the_page_opens_in_the_browser(command, opened):
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


def test_points_of_a_file_in_a_copy(command, opened, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("t,y,word\n0.5,1,a\n2,-3.25,b\n")
    code, _ = command("explore", "t.csv", "--x", "t", "--target", "y")
    assert code == 0
    copy = tmp_path / "results" / "explorer.html"
    assert opened == [copy.as_uri()]
    page = copy.read_text("utf-8")
    assert ">0.5, 1.0\n2.0, -3.25</textarea>" in page
    assert page.replace(">0.5, 1.0\n2.0, -3.25<", "><") == PAGE.read_text("utf-8")
    assert POINTS in PAGE.read_text("utf-8")
    assert f"MOST_POINTS = {MOST_POINTS}" in PAGE.read_text("utf-8")


def test_points_between_thousands(command, opened, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("t;y\n1.234;1\n2.345;2\n")
    asked = ("explore", "t.csv", "--x", "t", "--target", "y")
    code, shown = command(*asked)
    assert code == 2
    assert "say which with --thousands none or --thousands point" in shown
    assert command(*asked, "--thousands", "point")[0] == 0
    assert ">1234.0, 1.0\n" in (tmp_path / "results" / "explorer.html").read_text("utf-8")
    assert "has the columns 't', 'y'; choose" in command("explore", "t.csv")[1]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("--x", "t"), "name columns of a FILE"),
        (("t.csv",), "has the columns 't', 'y', 'word', 'gap'; choose two of them"),
        (("t.csv", "--x", "t", "--target", "z"), "t.csv has no column 'z'"),
        (("t.csv", "--x", "t", "--target", "word"), "'word' of t.csv holds String; expected num"),
        (("t.csv", "--x", "t", "--target", "gap"), "a value of row 2 is missing"),
        (("long.csv", "--x", "t", "--target", "y"), "long.csv has 201 rows; the page shows 1 to"),
    ],
)
def test_points_that_cannot_be_shown(command, opened, monkeypatch, tmp_path, asked, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("t,y,word,gap\n0.5,1,a,1\n2,-3.25,b,\n")
    (tmp_path / "long.csv").write_text("t,y\n" + "1.5,2\n" * 201)
    code, shown = command("explore", *asked)
    assert code == 2
    assert message in shown
    assert opened == []
