import gzip
import socket
from dataclasses import replace

import pytest

from retarget.data.fetch import DataSet, get
from retarget.errors import DownloadError
from support.made_mnist import made_file
from support.mirror import Answer

CONTENT = bytes(range(256)) * 1000  # several chunks


def data_set(*mirrors):
    addresses = [f"{mirror}/file.bin" for mirror in mirrors]
    return DataSet("made", "for tests", (made_file("file.bin", CONTENT, addresses),))


def nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_download_is_whole_and_readable(tmp_path, mirror):
    mirror.answers["/file.bin"] = Answer(CONTENT)
    folder, arrived = tmp_path / "new" / "folder", []
    wanted = data_set(mirror.address)
    got = get(wanted, folder, lambda file, count: arrived.append((file.download.name, count)))
    assert got == list(wanted.files)
    assert [path.name for path in folder.iterdir()] == ["file.bin"]
    assert (folder / "file.bin").read_bytes() == CONTENT
    assert (folder / "file.bin").stat().st_mode & 0o777 == 0o644
    assert arrived == sorted(arrived)
    assert len(arrived) > 2
    assert arrived[-1] == ("file.bin", len(CONTENT))
    assert mirror.encodings == ["identity"]


def test_what_is_there_is_not_downloaded_again(tmp_path, mirror):
    mirror.answers["/file.bin"] = Answer(CONTENT)
    get(data_set(mirror.address), tmp_path)
    assert get(data_set(mirror.address), tmp_path) == []
    assert mirror.asked == ["/file.bin"]


def test_what_is_there_unpacked_is_not_downloaded(tmp_path, mirror):
    (tmp_path / "inside").write_bytes(b"inside")
    inside = made_file("inside", b"inside").download
    file = replace(data_set(mirror.address).files[0], unpacked=(inside,))
    assert get(DataSet("made", "for tests", (file,)), tmp_path) == []
    assert mirror.asked == []


def test_a_wrong_file_is_replaced(tmp_path, mirror):
    mirror.answers["/file.bin"] = Answer(CONTENT)
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    assert get(data_set(mirror.address), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_without_a_length_and_after_a_redirection(tmp_path, mirror):
    elsewhere = {"Location": f"{mirror.address}/elsewhere"}
    mirror.answers["/file.bin"] = Answer(b"look there", status=302, headers=elsewhere)
    mirror.answers["/elsewhere"] = Answer(CONTENT, announced=None)
    get(data_set(mirror.address), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_packed_for_the_way_although_we_asked_not_to(tmp_path, mirror):
    packed = gzip.compress(CONTENT)
    mirror.answers["/file.bin"] = Answer(packed, None, headers={"Content-Encoding": "gzip"})
    get(data_set(mirror.address), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


BAD = {
    "wrong checksum": (Answer(CONTENT[::-1]), "sent a file of sha256 [0-9a-f]{64}, expected"),
    "too large": (Answer(CONTENT + b"x"), "announces 256001 bytes, expected 256000"),
    "too large, not announced": (
        Answer(CONTENT * 3, announced=None),
        "sends more than the expected 256000 bytes",
    ),
    "too small": (Answer(CONTENT[:9]), "announces 9 bytes, expected 256000"),
    "a length that is none": (Answer(CONTENT, announced="many"), "announces many bytes"),
    "interrupted": (Answer(CONTENT[:100_000], announced=len(CONTENT)), "IncompleteRead"),
    "interrupted, not announced": (
        Answer(CONTENT[:100_000], announced=None),
        "sent 100000 bytes, expected 256000; interrupted?",
    ),
    "said to be packed": (
        Answer(CONTENT, headers={"Content-Encoding": "gzip"}),
        "failed to decode",
    ),
    "not found": (Answer(b"sorry " * 99, status=404), "404 Client Error"),
    "down": (Answer(status=503), "503 Server Error"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_mirror_is_explained_and_leaves_nothing(tmp_path, mirror, case):
    mirror.answers["/file.bin"], message = BAD[case]
    with pytest.raises(DownloadError, match=message) as failed:
        get(data_set(mirror.address), tmp_path)
    start = f"file.bin could not be downloaded, and nothing of it was kept; .* put it in {tmp_path}"
    failed.match(start)
    failed.match(f"\n  {mirror.address}/file.bin: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", BAD)
def test_the_second_mirror_is_asked_when_the_first_fails(tmp_path, mirror, other_mirror, case):
    mirror.answers["/file.bin"], _ = BAD[case]
    other_mirror.answers["/file.bin"] = Answer(CONTENT)
    get(data_set(mirror.address, other_mirror.address), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_nobody_there(tmp_path, mirror):
    one, two = nobody_there(), nobody_there()
    with pytest.raises(DownloadError, match="(?s)file.bin: .*refused.*file.bin: .*refused"):
        get(data_set(one, two), tmp_path)
    mirror.answers["/file.bin"] = Answer(CONTENT)
    assert get(data_set(one, mirror.address), tmp_path)


def test_a_failure_keeps_the_old_file(tmp_path, mirror):
    (tmp_path / "file.bin").write_bytes(b"old")
    with pytest.raises(DownloadError, match="404"):
        get(data_set(mirror.address), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"old"


def test_a_full_disk_is_not_the_mirrors_fault(tmp_path, mirror, other_mirror):
    for running in (mirror, other_mirror):
        running.answers["/file.bin"] = Answer(CONTENT)

    def full(*_):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        get(data_set(mirror.address, other_mirror.address), tmp_path, full)
    assert other_mirror.asked == []
    assert list(tmp_path.iterdir()) == []


def test_stopped_by_the_user(tmp_path, mirror):
    mirror.answers["/file.bin"] = Answer(CONTENT)

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(data_set(mirror.address), tmp_path, stop)
    assert list(tmp_path.iterdir()) == []


def test_a_redirection_that_goes_on_and_on(tmp_path, mirror):
    elsewhere = {"Location": f"{mirror.address}/elsewhere"}
    mirror.answers["/file.bin"] = Answer(bytes(1 << 20), status=302, headers=elsewhere)
    mirror.answers["/elsewhere"] = Answer(CONTENT)
    with pytest.raises(DownloadError, match="redirects with more than 65536 bytes of text"):
        get(data_set(mirror.address), tmp_path)
    assert mirror.asked == ["/file.bin"]
    assert not list(tmp_path.iterdir())
