import gzip
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retarget.data.mnist import open_idx
from retarget.errors import InvalidInputError
from support.made_mnist import gzipped, idx

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def read(path, content, dimensions=3):
    path.write_bytes(content)
    with open_idx(path, dimensions) as file:
        return file.read()


@pytest.mark.parametrize("pack", [bytes, gzipped])
@pytest.mark.parametrize("shape", [(24,), (2, 12), (2, 3, 4), (0, 28, 28), (1, 1, 1, 24)])
def test_values_come_back_in_their_shape(tmp_path, pack, shape):
    values = IMAGES.ravel()[: np.prod(shape)].reshape(shape)
    found = read(tmp_path / "file", pack(idx(values)), len(shape))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, values)
    found[...] = 1  # its own memory,
    torch.from_numpy(found)  # which torch warns about if it cannot be written to


def test_the_shape_is_known_before_the_values_are_read(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(gzipped(idx(IMAGES)))
    with open_idx(path, 3) as file:
        assert file.shape == (2, 3, 4)
        assert file.path == path


def test_several_gzip_members_are_one_file(tmp_path):
    content = idx(IMAGES)
    found = read(tmp_path / "file.gz", gzipped(content[:9]) + gzipped(content[9:]))
    np.testing.assert_array_equal(found, IMAGES)


@pytest.mark.parametrize("pack", [bytes, gzipped])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is cut short: it ends within its header"),
        (b"\0\0\x08\x03\0\0", "is cut short: it ends within its header"),
        (b"PK\3\4" + bytes(20), "is not an idx file: it starts with the bytes 50 4b 03 04"),
        (b"\0\1\x08\3" + bytes(20), "is not an idx file: it starts with the bytes 00 01 08 03"),
        (idx(IMAGES, kind=0x0D), "holds values of the idx type 0x0d; expected 0x08"),
        (idx(IMAGES[0]), "holds values of 2 dimensions; expected 3; perhaps images and labels"),
        (idx(IMAGES) + b"\0", "goes on after the 24 values that its header promises"),
        (b"\0\0\x08\3" + b"\xff" * 12 + bytes(50), "promises values of shape \\(4294967295, 4294"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, pack, content, message):
    path = tmp_path / "file-idx3-ubyte"
    with pytest.raises(InvalidInputError, match=f"^{path} .*{message}"):
        read(path, pack(content))


def with_crc_off_by_one(packed):
    return packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(IMAGES)[:-1], "is cut short: its header promises 24 values, it holds 23"),
        (idx(IMAGES)[:20], "is damaged or cut short: .* than a file of 20 bytes can hold"),
        (gzipped(idx(IMAGES)[:-1]), "is cut short: its header promises 24 values, it holds 23"),
        (gzipped(idx(IMAGES))[:-9], "is cut short: its gzip data end too early"),
        (with_crc_off_by_one(gzipped(idx(IMAGES))), "is damaged: CRC check failed"),
        (gzipped(idx(IMAGES)) + b"more", "is damaged: Not a gzipped file"),
        (b"\x1f\x8b\x08\x00\0\0\0\0\x02\xff" + b"\xff" * 30, "is damaged: Error -3 while"),
    ],
)
def test_damage_is_said(tmp_path, content, message):
    path = tmp_path / "file-idx3-ubyte"
    with pytest.raises(InvalidInputError, match=f"^{path} {message}"):
        read(path, content)


@pytest.mark.parametrize("pack", [bytes, gzipped])
def test_cut_at_any_byte(tmp_path, pack):
    whole = pack(idx(IMAGES))
    for length in range(len(whole)):
        with pytest.raises(InvalidInputError, match="cut short"):
            read(tmp_path / "file", whole[:length])


def test_a_gzip_bomb_is_not_inflated(tmp_path):
    path = tmp_path / "bomb.gz"
    bomb = zlib.compressobj(9, wbits=31)
    size = 1 << 26
    path.write_bytes(bomb.compress(idx(IMAGES) + bytes(size)) + bomb.flush())
    tracemalloc.start()
    try:
        with (
            pytest.raises(InvalidInputError, match="goes on after"),
            open_idx(path, 3) as file,
        ):
            file.read()
        assert tracemalloc.get_traced_memory()[1] < size / 30
    finally:
        tracemalloc.stop()


def test_a_header_that_promises_too_much_costs_no_memory(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(idx(IMAGES).replace(b"\0\0\0\2", b"\x7f\0\0\0", 1)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match="can hold"), open_idx(path, 3):
            pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def assert_clean(path, dimensions):
    """Values of the promised shape, or an error that names the file; no other exception."""
    complaint = str(path)
    try:
        with open_idx(path, dimensions) as file:
            assert file.read().shape == file.shape
    except InvalidInputError as error:
        complaint = str(error)
    assert complaint.startswith(str(path))


@given(
    packed=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
)
def test_changed_bytes_give_an_error_or_values_of_the_promised_shape(
    tmp_path_factory, packed, changes
):
    content = bytearray(gzipped(idx(IMAGES)) if packed else idx(IMAGES))
    for place, value in changes:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "changed-idx3-ubyte"
    path.write_bytes(content)
    assert_clean(path, dimensions=3)


@given(content=st.binary(max_size=60), start=st.sampled_from([b"", b"\0\0\x08", b"\x1f\x8b\x08"]))
def test_any_bytes_give_an_error_or_values_of_the_promised_shape(tmp_path_factory, content, start):
    path = tmp_path_factory.getbasetemp() / "any-idx1-ubyte"
    path.write_bytes(start + content)
    assert_clean(path, dimensions=1)
