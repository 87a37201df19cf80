import gzip
import io
import struct
import tarfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.data import archives
from retarget.data.archives import read_members
from retarget.errors import InvalidInputError
from support.made_cifar10 import tar_gz
from support.made_mnist import gzipped

FILES = {"folder/one": b"1" * 700, "folder/readme.html": b"<html>", "folder/two": b"22"}
WANTED = ("folder/one", "folder/two")


def read(path, content, largest=1000):
    path.write_bytes(content)
    return dict(read_members(path, WANTED, largest))


def member(name, kind=tarfile.REGTYPE, size=0, **more):
    """A header without content, in one of the formats of tar."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    info.pax_headers = more
    return info.tobuf(tarfile.PAX_FORMAT if more else tarfile.GNU_FORMAT)


def test_the_wanted_files_and_no_others(tmp_path):
    wanted = {name: FILES[name] for name in WANTED}
    assert read(tmp_path / "made.tar.gz", tar_gz(FILES)) == wanted
    backwards = dict(reversed(FILES.items()))
    assert list(read(tmp_path / "made.tar.gz", tar_gz(backwards))) == list(reversed(WANTED))
    assert [path.name for path in tmp_path.iterdir()] == ["made.tar.gz"]


def test_what_follows_the_last_file_is_read_for_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "CHUNK", 512)
    content = gzipped(gzip.decompress(tar_gz(FILES)) + bytes(5000))
    assert len(read(tmp_path / "made.tar.gz", content, largest=20_000)) == 2
    with pytest.raises(InvalidInputError, match="CRC check failed"):
        read(tmp_path / "made.tar.gz", content[:-8] + bytes(8), largest=20_000)


ODD_KIND = "holds 'other' as a link or as something other than a plain file"
HARMFUL = {
    "up": (member("../outside"), r"holds '\.\./outside', which leads out of its folder"),
    "up inside": (member("a/../../b"), r"holds 'a/\.\./\.\./b', which leads out"),
    "up, a folder": (member("..", tarfile.DIRTYPE), r"holds '\.\.', which leads out"),
    "absolute": (member("/absolute"), "holds '/absolute', which leads out of its folder"),
    "a drive": (member("C:/file"), "holds 'C:/file', which leads out of its folder"),
    "backslashes": (member("..\\file"), r"holds '\.\.\\\\file', which leads out of its folder"),
    "a long name": (
        member("x", tarfile.GNUTYPE_LONGNAME, 10) + b"../outside" + bytes(502) + member("x"),
        r"holds '\.\./outside', which leads out",
    ),
    "a symbolic link": (
        member("other", tarfile.SYMTYPE),
        ODD_KIND,
    ),
    "a hard link": (member("other", tarfile.LNKTYPE), ODD_KIND),
    "a pipe": (member("other", tarfile.FIFOTYPE), ODD_KIND),
    "a device": (member("other", tarfile.BLKTYPE), ODD_KIND),
    "a kind of its own": (member("other", b"Z"), ODD_KIND),
}


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("case", HARMFUL)
def test_an_archive_with_one_harmful_member_is_refused(tmp_path, case, last):
    """Also where all that is wanted of it is harmless."""
    harmful, message = HARMFUL[case]
    files = gzip.decompress(tar_gz(FILES)).rstrip(b"\0")
    files += bytes(-len(files) % 512)
    content = gzipped((files + harmful if last else harmful + files) + bytes(1024))
    with pytest.raises(InvalidInputError, match=f"made.tar.gz {message}"):
        read(tmp_path / "made.tar.gz", content)
    assert [path.name for path in tmp_path.iterdir()] == ["made.tar.gz"]


def test_folders_beside_the_files_are_harmless(tmp_path):
    files = gzip.decompress(tar_gz(FILES))
    content = gzipped(member("folder", tarfile.DIRTYPE) + files)
    assert set(read(tmp_path / "made.tar.gz", content)) == set(WANTED)


BAD = {
    "not packed": (b"plain text", "is damaged, or not a .tar.gz archive: Not a gzipped file"),
    "empty": (b"", "is damaged, or not a .tar.gz archive: empty file"),
    "no tar": (gzipped(b"plain text " * 99), "is damaged, or not a .tar.gz archive: "),
    "wrong checksum": (
        tar_gz(FILES)[:-8] + bytes(4) + tar_gz(FILES)[-4:],
        "is damaged, or not a .tar.gz archive: CRC check failed",
    ),
    "damaged": (tar_gz(FILES)[:40] + b"\xff" * 20 + tar_gz(FILES)[60:], "is damaged"),
    "cut short": (tar_gz(FILES)[:-20], "is cut short: its gzip data end too early"),
    "tar cut short": (
        gzipped(gzip.decompress(tar_gz(FILES))[:900]),
        "is damaged, or not a .tar.gz archive: unexpected end of data",
    ),
    "lacks one": (tar_gz({"folder/one": b"1"}), "cut short or another .*: folder/two is not in it"),
    "lacks all": (tar_gz({"one": b"1"}), "another archive: folder/one, folder/two is not in it"),
    "too large": (
        tar_gz({**FILES, "folder/two": bytes(1001)}),
        "holds folder/two of 1001 bytes; expected at most 1000",
    ),
    "negative": (gzipped(member("folder/one", size=-512)), "(of -512 bytes; expected|is damaged)"),
    "a link": (
        gzipped(member("folder/one", tarfile.SYMTYPE)),
        "holds 'folder/one' as a link or as something other than a plain file",
    ),
    "a folder": (gzipped(member("folder/one", tarfile.DIRTYPE)), "as something other than a plain"),
    "a device": (gzipped(member("folder/one", tarfile.CHRTYPE)), "as something other than a plain"),
    "sparse": (
        gzipped(member("folder/one", tarfile.GNUTYPE_SPARSE) + bytes(9000)),
        "as something other than a plain file",
    ),
    "sparse, another way": (
        gzipped(member("folder/one", **{"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"})),
        "as something other than a plain file",
    ),
    "a number that is none": (
        gzipped(member("folder/one", **{"GNU.sparse.map": "x", "GNU.sparse.size": "y"})),
        "is damaged, or not a .tar.gz archive: ",
    ),
    "headers for headers": (
        gzipped(member("x", tarfile.GNUTYPE_LONGNAME) * 2000),
        "is damaged, or not a .tar.gz archive: ",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_archives_are_explained(tmp_path, case):
    content, message = BAD[case]
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/made.tar.gz .*{message}"):
        read(tmp_path / "made.tar.gz", content)


def test_a_file_that_is_there_twice(tmp_path):
    twice = gzip.decompress(tar_gz({"folder/one": b"1"}))[:1024] * 2
    with pytest.raises(InvalidInputError, match="made.tar.gz holds folder/one twice"):
        read(tmp_path / "made.tar.gz", gzipped(twice))


@pytest.mark.parametrize(
    "bomb",
    [
        lambda: tar_gz({"folder/other": bytes(30_000_000)}),
        lambda: tar_gz(FILES) + gzipped(bytes(30_000_000)),
        lambda: gzipped(member("x", tarfile.GNUTYPE_LONGNAME, 30_000_000) + bytes(30_000_000)),
    ],
)
def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch, bomb):
    monkeypatch.setattr(archives, "CHUNK", 1 << 16)
    content = bomb()
    assert len(content) < 40_000
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="made.tar.gz unpacks to more than 67536 bytes"):
        read(tmp_path / "made.tar.gz", content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3e6


@given(
    packed=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_changed_bytes_give_an_error_of_ours_or_the_files(tmp_path_factory, packed, changes):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as made:
        for name, text in FILES.items():
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(text), {"comment": "made"}
            made.addfile(info, io.BytesIO(text))
    found = bytearray(gzipped(content.getvalue()) if packed else content.getvalue())
    for place, value in changes:
        found[place % len(found)] = value
    path = tmp_path_factory.getbasetemp() / "changed.tar.gz"
    try:
        files = read(path, found if packed else gzipped(bytes(found)))
    except InvalidInputError:
        return
    assert set(files) == set(WANTED)


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=4), st.binary())
def test_any_extended_header(tmp_path_factory, entries, more):
    names = ["GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.major", "GNU.sparse.minor", "size"]
    headers = dict(entries) | {
        name: value for name, (_, value) in zip(names, entries, strict=False)
    }
    path = tmp_path_factory.getbasetemp() / "header.tar.gz"
    content = member("folder/one", **headers) + struct.pack("512s", more)
    with pytest.raises(InvalidInputError):
        read(path, gzipped(content))
