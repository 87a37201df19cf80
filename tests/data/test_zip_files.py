import io
import stat
import struct
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.data.archives import open_zip
from retarget.errors import InvalidInputError
from support.made_core50 import zipped

FILES = {"folder/one": b"1" * 700, "folder/": b"", "folder/two": b"22", "three": b""}
PLAIN = {name: content for name, content in FILES.items() if not name.endswith("/")}


def read(path, content, largest=1000):
    path.write_bytes(content)
    with open_zip(path) as archive:
        return {name: archive.read(name, largest) for name in archive.names}


def entry(name, mode=0, system=3):
    made = zipfile.ZipInfo(name)
    made.external_attr, made.create_system = mode << 16, system
    return made


def with_field(content, offset, value, form="<H"):
    """The archive with another number in every entry of its directory."""
    content = bytearray(content)
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        struct.pack_into(form, content, place + offset, value)
        place = content.find(b"PK\x01\x02", place + 1)
    return bytes(content)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_files_in_their_order_without_folders(tmp_path, compression):
    found = read(tmp_path / "made.zip", zipped(FILES, compression))
    assert list(found.items()) == list(PLAIN.items())
    assert [path.name for path in tmp_path.iterdir()] == ["made.zip"]


def test_a_file_as_a_stream(tmp_path):
    (tmp_path / "made.zip").write_bytes(zipped(FILES))
    with open_zip(tmp_path / "made.zip") as archive, archive.open("folder/one") as stream:
        assert (stream.read(3), len(stream.read())) == (b"111", 697)


@pytest.mark.parametrize("mode", [0, 0o644, stat.S_IFREG | 0o644])
def test_plain_files_of_any_system(tmp_path, mode):
    assert read(tmp_path / "made.zip", zipped({entry("one", mode): b"1"})) == {"one": b"1"}


DAMAGED = "is cut short, damaged, or not a zip archive"
BAD = {
    "no zip": (b"plain text", f"{DAMAGED} .BadZipFile"),
    "empty": (b"", f"{DAMAGED} .BadZipFile"),
    "cut short": (zipped(FILES)[:-30], f"{DAMAGED} .BadZipFile"),
    "start only": (zipped(FILES)[:500], f"{DAMAGED} .BadZipFile"),
    "wrong checksum": (
        zipped(FILES).replace(b"1" * 700, b"1" * 699 + b"2"),
        f"{DAMAGED}: its file folder/one cannot be read .BadZipFile: Bad CRC-32",
    ),
    "too large": (zipped({"one": bytes(1001)}), "holds one of 1001 bytes; expected at most 1000"),
    "encrypted": (
        with_field(zipped({"one": b"1"}), 8, 1),
        "holds one encrypted, or compressed in a way that is not read here; expected it stored",
    ),
    "bzip2": (
        zipped({"one": b"1"}, zipfile.ZIP_BZIP2),
        "holds one encrypted, or compressed in a way that is not read here; expected it stored",
    ),
    "up": (zipped({"../one": b"1"}), "holds '../one', which leads out of its folder"),
    "up inside": (zipped({"a/../../one": b"1"}), "holds 'a/../../one', which leads out of"),
    "absolute": (zipped({"/one": b"1"}), "holds '/one', which leads out of its folder"),
    "a drive": (zipped({"C:/one": b"1"}), "holds 'C:/one', which leads out of its folder"),
    "backslashes": (
        zipped({"a.bone": b"1"}).replace(b"a.bone", b"..\\one"),
        r"holds '\.\.\\\\one', which leads out of its folder",
    ),
    "no name": (
        zipped({"aone": b"1"}).replace(b"aone", b"\0one"),
        "is damaged: it holds a file without a name",
    ),
    "a link": (
        zipped({entry("one", stat.S_IFLNK | 0o777): b"/etc/passwd"}),
        "holds 'one' as a link or as something other than a plain file",
    ),
    "a device": (
        zipped({entry("one", stat.S_IFCHR): b""}),
        "holds 'one' as a link or as something",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_archives_are_explained(tmp_path, case):
    content, message = BAD[case]
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/made.zip {message}"):
        read(tmp_path / "made.zip", content)


def test_a_file_that_is_there_twice(tmp_path):
    content = zipped({"one": b"1", "own": b"2"}).replace(b"own", b"one")
    with pytest.raises(InvalidInputError, match="made.zip holds 'one' twice"):
        read(tmp_path / "made.zip", content)


def directory_of(content):
    """Where the entries of the directory begin, and where its end is."""
    places = [place for place in range(len(content)) if content[place : place + 4] == b"PK\1\2"]
    return places, content.rindex(b"PK\5\6")


def changed(content, place, form, value):
    content = bytearray(content)
    struct.pack_into(form, content, place, value)
    return bytes(content)


def test_an_entry_that_hides_the_next_one(tmp_path):
    content = zipped(FILES)
    entries, _ = directory_of(content)
    hiding = changed(content, entries[2] + 32, "<H", entries[3] - entries[2])  # as its comment
    with pytest.raises(InvalidInputError, match="directory announces 4 files, and lists 3"):
        read(tmp_path / "made.zip", hiding)


@pytest.mark.parametrize("lost", range(4))
def test_a_file_that_no_entry_lists(tmp_path, lost):
    content = zipped(FILES)
    entries, end = directory_of(content)
    start, stop = (*entries, end)[lost : lost + 2]
    rest = bytearray(content[:start] + content[stop:])
    struct.pack_into("<HHL", rest, end - (stop - start) + 8, 3, 3, end - entries[0] - stop + start)
    with zipfile.ZipFile(io.BytesIO(rest)) as archive:
        assert len(archive.namelist()) == 3  # zipfile itself sees nothing wrong
    with pytest.raises(InvalidInputError, match="lists nothing between the bytes"):
        read(tmp_path / "made.zip", bytes(rest))


def test_bytes_after_the_end(tmp_path):
    """An end that is not the last thing there may be that of an archive within the archive."""
    with pytest.raises(InvalidInputError, match=f"{DAMAGED} .BadZipFile: bytes follow its end"):
        read(tmp_path / "made.zip", zipped(FILES) + b"more")


def test_a_comment_at_the_end(tmp_path):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("one", b"1")
        archive.comment = b"made"
    assert read(tmp_path / "made.zip", content.getvalue()) == {"one": b"1"}


class Unseekable(io.BytesIO):
    def seekable(self):
        return False

    def seek(self, *place):
        raise OSError("it cannot seek")


def test_files_that_are_followed_by_their_sizes(tmp_path):
    content = Unseekable()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in PLAIN.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(text)
    assert read(tmp_path / "made.zip", content.getvalue()) == PLAIN


def test_a_count_in_the_larger_form(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    content = zipped(FILES)
    end = content.rindex(b"PK\5\6")
    many = changed(content, end + 10, "<H", 0xFFFF)
    assert read(tmp_path / "made.zip", many) == PLAIN
    wrong = changed(many, content.rindex(b"PK\6\6") + 32, "<Q", 70_000)
    with pytest.raises(InvalidInputError, match="directory announces 70000 files, and lists 4"):
        read(tmp_path / "made.zip", wrong)


def test_a_count_that_could_be_in_the_larger_form(tmp_path):
    content = zipped(FILES)
    many = changed(content, content.rindex(b"PK\5\6") + 10, "<H", 0xFFFF)
    with pytest.raises(InvalidInputError, match="directory announces 65535 files, and lists 4"):
        read(tmp_path / "made.zip", many)


def test_a_bomb_is_not_unpacked(tmp_path):
    honest = zipped({"one": bytes(30_000_000)}, zipfile.ZIP_DEFLATED)
    lying = with_field(honest, 24, 1000, "<I")
    assert len(honest) < 40_000
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="holds one of 30000000 bytes; expected at most"):
        read(tmp_path / "made.zip", honest)
    with pytest.raises(InvalidInputError, match="its file one cannot be read .*Bad CRC-32"):
        read(tmp_path / "made.zip", lying)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3e6


@given(
    deflated=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_changed_bytes_give_an_error_of_ours_or_the_files(tmp_path_factory, deflated, changes):
    compression = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    content = bytearray(zipped(FILES, compression))
    for place, value in changes:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "changed.zip"
    try:
        found = read(path, bytes(content))
    except InvalidInputError:
        return
    # Names may have been changed in both of their places, contents have a checksum.
    assert set(found.values()) <= set(PLAIN.values())
