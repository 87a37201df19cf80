"""Files out of .tar.gz and zip archives. Any damage: see tests/faults/test_corruption.py."""

import gzip
import io
import stat
import struct
import tarfile
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget import archives
from retarget.archives import open_zip, read_members
from retarget.errors import InvalidInputError
from support.made_cifar10 import tar_gz
from support.made_core50 import zipped
from support.made_mnist import gzipped
from support.peak_memory import at_most

FILES = {"folder/one": b"1" * 700, "folder/readme.html": b"<html>", "folder/two": b"22"}
WANTED = ("folder/one", "folder/two")
TAR = tar_gz(FILES)


def read_tar(path, content, largest=1000):
    path.write_bytes(content)
    return dict(read_members(path, WANTED, largest))


def read_zip(path, content, largest=1000):
    path.write_bytes(content)
    with open_zip(path) as archive:
        return {name: archive.read(name, largest) for name in archive.names}


# .tar.gz


def member(name, kind=tarfile.REGTYPE, size=0, **more):
    """A header without content, in one of the formats of tar."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    info.pax_headers = more
    return info.tobuf(tarfile.PAX_FORMAT if more else tarfile.GNU_FORMAT)


def test_the_wanted_files_and_no_others(tmp_path):
    folder = member("folder", tarfile.DIRTYPE) + gzip.decompress(TAR)
    assert read_tar(tmp_path / "made", gzipped(folder)) == {name: FILES[name] for name in WANTED}
    backwards = dict(reversed(FILES.items()))
    assert list(read_tar(tmp_path / "made", tar_gz(backwards))) == list(reversed(WANTED))


def test_the_checksum_after_the_last_file(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "CHUNK", 512)
    content = gzipped(gzip.decompress(TAR) + bytes(5000))
    assert len(read_tar(tmp_path / "made", content, largest=20_000)) == 2
    with pytest.raises(InvalidInputError, match="CRC check failed"):
        read_tar(tmp_path / "made", content[:-8] + bytes(8), largest=20_000)


OUT, ODD_KIND = "which points outside its folder", "which is a link or another special file"
NO_TAR = "is damaged, or not a .tar.gz archive"
SPARSE = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"}
LONG_NAME = member("x", tarfile.GNUTYPE_LONGNAME, 10) + b"../outside" + bytes(502) + member("x")
# What follows two harmless files, which are all that is wanted.
HARMFUL = {
    "up, a folder": (member("..", tarfile.DIRTYPE), OUT),
    "absolute": (member("/absolute"), OUT),
    "a drive": (member("C:/file"), OUT),
    "backslashes": (member("..\\file"), OUT),
    "a long name": (LONG_NAME, OUT),
    "a hard link": (member("folder/one", tarfile.LNKTYPE), ODD_KIND),
    "a device": (member("folder/one", tarfile.BLKTYPE), ODD_KIND),
    "a kind of its own": (member("other", b"Z"), ODD_KIND),
    "sparse": (member("other", tarfile.GNUTYPE_SPARSE) + bytes(512), ODD_KIND),
    "sparse, another way": (member("other", **SPARSE), ODD_KIND),
}
FOLLOWED = gzip.decompress(TAR).rstrip(b"\0")
FOLLOWED += bytes(-len(FOLLOWED) % 512)
BAD_TARS = {
    case: (gzipped(FOLLOWED + harmful + bytes(1024)), f"holds '.*',? {message}")
    for case, (harmful, message) in HARMFUL.items()
} | {
    "not packed": (b"plain text", f"{NO_TAR}: Not a gzipped file"),
    "no tar": (gzipped(b"plain text " * 99), NO_TAR),
    "wrong checksum": (TAR[:-8] + bytes(4) + TAR[-4:], "CRC check failed"),
    "cut short": (TAR[:-20], "is cut short: its gzip data end too early"),
    "lacks all": (tar_gz({"one": b"1"}), "another archive: it does not have folder/one, folder/t"),
    "a folder": (gzipped(member("folder/one", tarfile.DIRTYPE)), "it does not have folder/one, "),
    "too large": (tar_gz({"folder/two": bytes(1001)}), "folder/two of 1001 bytes; expected at mo"),
    "negative": (gzipped(member("folder/one", size=-512)), "(of -512 bytes; expected|is damaged)"),
    "twice": (gzipped(gzip.decompress(TAR)[:1536] * 2), "holds folder/one twice"),
    "endless headers": (gzipped(member("x", tarfile.GNUTYPE_LONGNAME) * 2000), NO_TAR),
}


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "CHUNK", 1 << 16)
    zeros = bytes(8_000_000)
    honest = zipped({"one": zeros}, zipfile.ZIP_DEFLATED)
    lying = changed(honest, directory_of(honest)[0][0] + 24, "<I", 1000)
    unpacks = "made unpacks to more than 67536 bytes"
    for read, bomb, message in (
        (read_tar, tar_gz({"folder/other": zeros}), unpacks),
        (read_tar, TAR + gzipped(zeros), unpacks),
        (read_tar, gzipped(member("x", tarfile.GNUTYPE_LONGNAME, len(zeros)) + zeros), unpacks),
        (read_zip, honest, "holds one of 8000000 bytes; expected"),
        (read_zip, lying, "its file one cannot be read .*Bad CRC-32"),
    ):
        assert len(bomb) < 40_000
        with at_most(3e6), pytest.raises(InvalidInputError, match=message):
            read(tmp_path / "made", bomb)


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=4), st.binary())
def test_any_extended_header(tmp_path_factory, entries, more):
    names = [*SPARSE, "GNU.sparse.major", "GNU.sparse.minor", "size"]
    headers = dict(entries) | {
        name: value for name, (_, value) in zip(names, entries, strict=False)
    }
    content = member("folder/one", **headers) + struct.pack("512s", more)
    with pytest.raises(InvalidInputError):
        read_tar(tmp_path_factory.getbasetemp() / "header.tar.gz", gzipped(content))


# zip

ZIPPED = {"folder/one": b"1" * 700, "folder/": b"", "folder/two": b"22", "three": b""}
PLAIN = {name: content for name, content in ZIPPED.items() if not name.endswith("/")}


def entry(name, mode=0):
    made = zipfile.ZipInfo(name)
    made.external_attr, made.create_system = mode << 16, 3
    return made


def changed(content, place, form, value):
    content = bytearray(content)
    struct.pack_into(form, content, place, value)
    return bytes(content)


def directory_of(content):
    """Where the entries of the directory begin, and where its end is."""
    places = [place for place in range(len(content)) if content[place : place + 4] == b"PK\1\2"]
    return places, content.rindex(b"PK\5\6")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_files_in_their_order_without_folders(tmp_path, compression):
    found = read_zip(tmp_path / "made", zipped(ZIPPED, compression))
    assert list(found.items()) == list(PLAIN.items())
    with open_zip(tmp_path / "made") as archive, archive.open("folder/one") as stream:
        assert (stream.read(3), len(stream.read())) == (b"111", 697)


class Unseekable(io.BytesIO):
    def seekable(self):
        return False

    def seek(self, *place):
        raise OSError("it cannot seek")


def test_archives_of_any_system(tmp_path, monkeypatch):
    """Modes or none, a comment; files that are followed by their sizes, a directory for many."""
    for mode in (0, 0o644, stat.S_IFREG | 0o644):
        content = io.BytesIO(zipped({entry("one", mode): b"1"}))
        with zipfile.ZipFile(content, "a") as archive:
            archive.comment = b"made"
        assert read_zip(tmp_path / "made", content.getvalue()) == {"one": b"1"}
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    content = Unseekable()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in PLAIN.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(text)
    assert read_zip(tmp_path / "made", content.getvalue()) == PLAIN


DAMAGED = "is cut short, damaged, or not a zip archive"
ONE = zipped({"one": b"1"})
BAD_ZIPS = {
    "no zip": (b"plain text", f"{DAMAGED} .BadZipFile"),
    "cut short": (zipped(ZIPPED)[:-30], f"{DAMAGED} .BadZipFile"),
    "an archive in what is left": (zipped({"a.zip": ONE})[:-70], "directory lists no file between"),
    "wrong checksum": (zipped(ZIPPED).replace(b"111", b"112", 1), "one cannot be read .*CRC-32"),
    "encrypted": (changed(ONE, directory_of(ONE)[0][0] + 8, "<H", 1), "holds one encrypted, or"),
    "bzip2": (zipped({"one": b"1"}, zipfile.ZIP_BZIP2), "with an unsupported compression"),
    "up": (zipped({"../one": b"1"}), f"holds '../one', {OUT}"),
    "no name": (ONE.replace(b"one", b"\0ne"), "is damaged: it holds a file without a name"),
    "twice": (zipped({"one": b"1", "own": b"2"}).replace(b"own", b"one"), "holds 'one' twice"),
    "a link": (zipped({entry("one", stat.S_IFLNK | 0o777): b"/etc/passwd"}), ODD_KIND),
}


@pytest.mark.parametrize(
    ("read", "case"),
    [*((read_tar, case) for case in BAD_TARS), *((read_zip, case) for case in BAD_ZIPS)],
)
def test_a_bad_archive_is_explained(tmp_path, read, case):
    content, message = (BAD_TARS if read is read_tar else BAD_ZIPS)[case]
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/made .*{message}"):
        read(tmp_path / "made", content)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("lost", [0, 2, "hidden"])
def test_a_file_that_no_entry_lists(tmp_path, lost):
    """Its entry is gone, or hides in the comment of the one before."""
    content = zipped(ZIPPED)
    entries, end = directory_of(content)
    if lost == "hidden":
        rest = changed(content, entries[2] + 32, "<H", entries[3] - entries[2])
    else:
        start, stop = entries[lost : lost + 2]
        rest, end = content[:start] + content[stop:], end - (stop - start)
        for offset, form, value in ((8, "<H", 3), (10, "<H", 3), (12, "<L", end - entries[0])):
            rest = changed(rest, end + offset, form, value)
    with zipfile.ZipFile(io.BytesIO(rest)) as archive:
        assert len(archive.namelist()) == 3  # zipfile itself sees nothing wrong
    with pytest.raises(InvalidInputError, match="lists no file between the bytes"):
        read_zip(tmp_path / "made", rest)
