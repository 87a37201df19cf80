import pytest

from retarget.data import catalogue
from support import made_cifar10
from support.command_line import run
from support.made_mnist import NAMES, TRAIN_IMAGES, TRAIN_LABELS, made_data_set, write_made_mnist
from support.mirror import Answer


@pytest.fixture
def made(tmp_path, monkeypatch, mirror):
    """Small files take the place of the official ones, on a mirror of this machine."""
    write_made_mnist(tmp_path / "official")
    data_set = made_data_set(tmp_path / "official", [mirror.address])
    monkeypatch.setitem(catalogue.DATA_SETS, "mnist", data_set)
    for name in NAMES:
        mirror.answers[f"/{name}"] = Answer((tmp_path / "official" / name).read_bytes())
    return tmp_path


def test_list_says_what_there_is_and_where(monkeypatch, capsys, made):
    monkeypatch.setenv("COLUMNS", "300")
    code, shown = run(monkeypatch, capsys, "data", "list", "--data-dir", made / "empty")
    assert code == 0
    assert "mnist │ 70,000 handwritten digits, 28 x 28 pixels, 10 classes │" in shown
    assert "kB" in shown
    assert "not here" in shown
    _, shown = run(monkeypatch, capsys, "data", "list", "--data-dir", made / "official")
    assert f"│ {made / 'official'} │" in shown
    (made / "official" / TRAIN_LABELS).unlink()
    monkeypatch.setenv("RETARGET_DATA", str(made / "official"))
    _, shown = run(monkeypatch, capsys, "data", "list")
    assert f"│ 3 of 4 files in {made / 'official'} │" in shown


def test_get_then_check(monkeypatch, capsys, made, mirror):
    folder = made / "a [bold] folder"
    code, shown = run(monkeypatch, capsys, "data", "get", "mnist", "--data-dir", folder)
    assert code == 0
    assert shown.count(": downloaded") == 4
    assert f"mnist is in {folder}" in shown
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    code, shown = run(monkeypatch, capsys, "data", "check", "mnist", "--data-dir", folder)
    assert code == 0
    assert shown == f"mnist in {folder} " + " ".join(f"{name}: ok" for name in NAMES)
    (folder / TRAIN_IMAGES).write_bytes(b"broken")
    _, shown = run(monkeypatch, capsys, "data", "get", "mnist", "--data-dir", folder)
    assert f"{TRAIN_IMAGES}: downloaded" in shown
    assert shown.count(": was here") == 3
    assert len(mirror.asked) == 5


def test_check_says_what_is_wrong_with_exit_code_1(monkeypatch, capsys, made):
    folder = made / "official"
    (folder / TRAIN_IMAGES).write_bytes(b"broken")
    (folder / TRAIN_LABELS).unlink()
    (folder / NAMES[2]).unlink()
    (folder / NAMES[2]).mkdir()
    monkeypatch.setenv("RETARGET_DATA", str(folder))
    code, shown = run(monkeypatch, capsys, "data", "check", "mnist")
    assert code == 1
    assert f"{TRAIN_IMAGES}: wrong checksum ({TRAIN_IMAGES} has 6 bytes, expected " in shown
    assert f"{TRAIN_LABELS}: missing {NAMES[2]}: unreadable (" in shown
    assert f"{NAMES[3]}: ok" in shown
    assert f"Fix it with: retarget data get mnist --data-dir {folder}" in shown


def test_a_download_that_fails_has_exit_code_1(monkeypatch, capsys, made, mirror):
    mirror.answers.clear()
    code, shown = run(monkeypatch, capsys, "data", "get", "mnist", "--data-dir", made / "new")
    assert code == 1
    assert f"Error: {TRAIN_IMAGES} could not be downloaded" in shown
    assert "404 Client Error" in shown
    assert "Traceback" not in shown
    assert list((made / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("get", "mnits"), "Error: there is no data set 'mnits'; did you mean 'mnist'?"),
        (("check", "cifar"), "Error: there is no data set 'cifar'; did you mean 'cifar10'?"),
        (("check", "iris"), "Error: there is no data set 'iris'; known: mnist, cifar10"),
        (("get",), "Missing argument 'NAME'"),
        (("fetch", "mnist"), "No such command 'fetch'"),
        ((), "Lists, downloads and checks data sets."),
    ],
)
def test_wrong_use_has_exit_code_2(monkeypatch, capsys, arguments, message):
    code, shown = run(monkeypatch, capsys, "data", *arguments)
    assert code == 2
    assert message in shown


@pytest.fixture
def made_cifar(monkeypatch, mirror):
    """The same for CIFAR-10; returns the archive that the mirror has."""
    data_set = made_cifar10.made_data_set([mirror.address])
    monkeypatch.setitem(catalogue.DATA_SETS, "cifar10", data_set)
    ((name, content),) = made_cifar10.made_files("python archive")[0].items()
    mirror.answers[f"/{name}"] = Answer(content)
    return name


def test_cifar10_get_list_and_check(monkeypatch, capsys, tmp_path, made_cifar):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path / "new"))
    _, shown = run(monkeypatch, capsys, "data", "list")
    assert "cifar10 │ 60,000 colour photographs, 32 x 32 pixels, 10 classes │" in shown
    code, shown = run(monkeypatch, capsys, "data", "get", "cifar10")
    assert code == 0
    assert f"{made_cifar}: downloaded cifar10 is in {tmp_path / 'new'}" in shown
    _, shown = run(monkeypatch, capsys, "data", "get", "cifar10")
    assert f"{made_cifar}: was here" in shown
    assert [path.name for path in (tmp_path / "new").iterdir()] == [made_cifar]
    code, shown = run(monkeypatch, capsys, "data", "check", "cifar10")
    assert (code, shown) == (0, f"cifar10 in {tmp_path / 'new'} {made_cifar}: ok")
    _, shown = run(monkeypatch, capsys, "data", "list")
    assert f"│ {tmp_path / 'new'} │" in shown


@pytest.mark.parametrize(
    ("form", "detail"),
    [
        ("python", " (as cifar-10-batches-py)"),
        ("binary", " (as cifar-10-batches-bin)"),
        ("binary archive", " (as cifar-10-binary.tar.gz)"),
    ],
)
def test_cifar10_check_of_every_form(monkeypatch, capsys, tmp_path, made_cifar, form, detail):
    made_cifar10.write_made_cifar10(tmp_path, form)
    names = list(made_cifar10.made_files(form)[0])
    code, shown = run(monkeypatch, capsys, "data", "check", "cifar10", "--data-dir", tmp_path)
    assert (code, shown) == (0, f"cifar10 in {tmp_path} {made_cifar}: ok{detail}")
    content = bytearray((tmp_path / names[-1]).read_bytes())
    content[-9] ^= 1
    (tmp_path / names[-1]).write_bytes(content)
    code, shown = run(monkeypatch, capsys, "data", "check", "cifar10", "--data-dir", tmp_path)
    assert code == 1
    assert f"{made_cifar}: wrong checksum ({names[-1]} has sha256 " in shown
    (tmp_path / names[-1]).unlink()
    code, shown = run(monkeypatch, capsys, "data", "check", "cifar10", "--data-dir", tmp_path)
    assert code == 1
    lacking = f" (of its parts, {names[-1]} not found)" if len(names) > 1 else ""
    assert f"{made_cifar}: missing{lacking} Fix it with: retarget data get cifar10" in shown


def test_a_data_folder_that_is_a_file(monkeypatch, capsys, made):
    (made / "file").write_text("")
    code, shown = run(monkeypatch, capsys, "data", "get", "mnist", "--data-dir", made / "file")
    assert code == 2
    assert f"Not a directory: '{made / 'file'}" in shown
