import pytest

from retarget.cli import console
from retarget.lab.data import fetch
from support.made_mnist import NAMES, TRAIN_IMAGES, TRAIN_LABELS, made_data_set, write_made_mnist
from support.mirror import Answer


@pytest.fixture
def data_folder(tmp_path, monkeypatch, mirror):
    """Small files take the place of the official ones, on a mirror of this machine."""
    write_made_mnist(tmp_path / "official")
    data_set = made_data_set(tmp_path / "official", [mirror.address])
    monkeypatch.setitem(fetch.DATA_SETS, "mnist", data_set)
    for name in NAMES:
        mirror.answers[f"/{name}"] = Answer((tmp_path / "official" / name).read_bytes())
    return tmp_path


def test_list_says_what_there_is_and_where(command, monkeypatch, data_folder):
    monkeypatch.setattr(console, "_width", 300)
    code, shown = command("data", "list", "--data-dir", data_folder / "empty")
    assert code == 0
    assert "mnist │ 70,000 handwritten digits, 28 x 28 pixels, 10 classes │" in shown
    assert "kB" in shown
    assert "not downloaded" in shown
    _, shown = command("data", "list", "--data-dir", data_folder / "official")
    assert f"│ {data_folder / 'official'} │" in shown
    (data_folder / "official" / TRAIN_LABELS).unlink()
    monkeypatch.setenv("RETARGET_DATA", str(data_folder / "official"))
    _, shown = command("data", "list")
    assert f"│ 3 of 4 files in {data_folder / 'official'} │" in shown


def test_get_then_check(command, data_folder, mirror):
    folder = data_folder / "a [bold] folder"
    code, shown = command("data", "get", "mnist", "--data-dir", folder)
    assert code == 0
    assert shown.count(": downloaded") == 4
    assert f"mnist is in {folder}" in shown
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    code, shown = command("data", "check", "mnist", "--data-dir", folder)
    assert code == 0
    assert shown == f"mnist in {folder} " + " ".join(f"{name}: ok" for name in NAMES)
    (folder / TRAIN_IMAGES).write_bytes(b"broken")
    _, shown = command("data", "get", "mnist", "--data-dir", folder)
    assert f"{TRAIN_IMAGES}: downloaded" in shown
    assert shown.count(": already downloaded") == 3
    assert len(mirror.asked) == 5


def test_check_names_what_is_wrong(command, monkeypatch, data_folder):
    folder = data_folder / "official"
    (folder / TRAIN_IMAGES).write_bytes(b"broken")
    (folder / TRAIN_LABELS).unlink()
    (folder / NAMES[2]).unlink()
    (folder / NAMES[2]).mkdir()
    monkeypatch.setenv("RETARGET_DATA", str(folder))
    code, shown = command("data", "check", "mnist")
    assert code == 1
    assert f"{TRAIN_IMAGES}: wrong checksum ({TRAIN_IMAGES} has 6 bytes, expected " in shown
    assert f"{TRAIN_LABELS}: missing {NAMES[2]}: unreadable (" in shown
    assert f"{NAMES[3]}: ok" in shown
    assert f"Fix it with: retarget data get mnist --data-dir {folder}" in shown


def test_failed_download_and_a_folder_that_is_none(command, data_folder, mirror):
    mirror.answers.clear()
    code, shown = command("data", "get", "mnist", "--data-dir", data_folder / "new")
    assert code == 1
    assert f"Error: {TRAIN_IMAGES} could not be downloaded" in shown
    assert "404 Client Error" in shown
    assert "Traceback" not in shown
    assert list((data_folder / "new").iterdir()) == []
    (data_folder / "file").write_text("")
    code, shown = command("data", "get", "mnist", "--data-dir", data_folder / "file")
    assert code == 2
    assert f"Not a directory: '{data_folder / 'file'}" in shown


def test_wrong_use_has_exit_code_2(command):
    for arguments, message in (
        (("get", "mnits"), "Error: there is no data set 'mnits'; did you mean 'mnist'?"),
        (("check", "iris"), "Error: there is no data set 'iris'; known: mnist, cifar10"),
        (("get",), "Missing argument 'NAME'"),
        ((), "Lists, downloads and checks data sets."),
    ):
        code, shown = command("data", *arguments)
        assert code == 2
        assert message in shown
