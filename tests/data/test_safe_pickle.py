import builtins
import pickle
import pickletools
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.data import cifar10
from retarget.data.cifar10 import read_pickle
from retarget.errors import InvalidInputError
from support.made_cifar10 import array_pickle, python2_pickle, python_batch

PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 4)


def same(found, expected):
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)
        for key in found:
            same(found[key], expected[key])
    elif isinstance(found, list):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "value",
    [
        {b"data": PIXELS, b"labels": [0, 255, 256, 65536, -(2**31)], b"long": b"x" * 300},
        {b"names": [b"", b"x" * 300], b"empty": [], b"": PIXELS[:0], b"number": -5},
        {b"data": np.zeros((70_000, 1), np.uint8)},
        {},
    ],
)
def test_files_of_python_2_are_as_pickle_reads_them(value):
    content = python2_pickle(value)
    same(pickle.loads(content, encoding="bytes"), value)
    same(read_pickle(content, "made"), value)


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile(canary):
    """Pickles that would create the file `canary`, if anything in them ran."""
    text = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    evaluate = b"cbuiltins\neval\n"
    argument = b"X" + struct.pack("<I", len(text)) + text.encode()
    short = b"\x8c" + bytes([len(text)]) + text.encode()
    array = python2_pickle(PIXELS)
    found = {
        "os.system": b"cposix\nsystem\n(S'" + f"touch {canary}".encode() + b"'\ntR.",
        "as a key": b"\x80\x02}" + evaluate + argument + b"\x85RK\x01s.",
        "stack global": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + short + b"\x85R.",
        "instance": b"(" + argument + b"ibuiltins\neval\n.",
        "object": b"(" + evaluate + argument + b"o.",
        "new object": b"\x80\x02" + evaluate + argument + b"\x85\x81.",
        "instead of the array": array.replace(b"cnumpy.core.multiarray\n_reconstruct\n", evaluate),
        "instead of the array's class": array.replace(b"cnumpy\nndarray\n", evaluate),
        "instead of the array's type": array.replace(b"cnumpy\ndtype\n", evaluate),
        "after the array": array[:-1] + b"(" + argument + b"ibuiltins\neval\n.",
    }
    for protocol in range(6):
        call = Calls(builtins.eval, text)
        found[f"by pickle, protocol {protocol}"] = pickle.dumps({"data": [call]}, protocol)
    return found


@pytest.mark.parametrize("case", list(hostile("canary")))
def test_nothing_in_a_hostile_file_runs(tmp_path, case):
    canary = tmp_path / "canary"
    content = hostile(canary)[case]
    with pytest.raises(InvalidInputError, match="made.bin is refused: .* not unpickled"):
        read_pickle(content, "made.bin")
    assert not canary.exists()
    if case.startswith(("os.system", "by pickle")):
        pickle.loads(content)
        assert canary.exists()  # it was a real one


def entry(value):
    """A dictionary with one entry, made by these instructions."""
    return b"\x80\x02}(U\x01a" + value + b"u."


OTHER = {
    "a value used twice": (entry(b"]q\x01h\x01"), "BINGET"),
    "a list inside a list": (entry(b"](]e"), "EMPTY_LIST"),
    "no instruction": (b"\xff.", "at position 0, opcode"),
    "a huge number": (entry(b"\x8b\xff\xff\xff\x7f"), "long4"),
    "a promised bytearray": (b"\x96" + struct.pack("<Q", 10**12) + b".", "bytearray8"),
    "no dictionary": (b"\x80\x02K\x01.", "where its data would have EMPTY_DICT"),
    "half an entry": (b"}(U\x01au.", "SETITEMS"),
    "more after the end": (entry(b"K\x01") + b"N", "goes on after its end"),
    "array too short": (entry(array_pickle((3, 4), bytes(11))), "reshape"),
    "negative sizes": (entry(array_pickle((-3, -4), bytes(12))), "reshape"),
    "three dimensions": (entry(array_pickle((1, 3, 4), bytes(12))), "number 4"),
    "array of objects": (entry(array_pickle((1, 1), b"x", b"O8")), "O8"),
}


@pytest.mark.parametrize("case", OTHER)
def test_what_is_not_plain_data_is_refused(case):
    content, message = OTHER[case]
    with pytest.raises(InvalidInputError, match=f"made is refused: .*{message}"):
        read_pickle(content, "made")


def test_every_instruction_of_pickle_is_known_or_refused():
    known = {*cifar10.SKIPPED, *cifar10.PLAIN, "EMPTY_LIST"}
    every = {opcode.name: opcode.code.encode("latin-1") for opcode in pickletools.opcodes}
    for name in every.keys() - known:
        with pytest.raises(InvalidInputError, match="made is refused"):
            read_pickle(entry(every[name] + 9 * b"N" + b"\n"), "made")


def test_a_promised_length_is_not_allocated():
    tracemalloc.start()
    for value in (b"T\xff\xff\xff\x7f", b"X\xff\xff\xff\x7f", array_pickle((65535, 1), b"")):
        with pytest.raises(InvalidInputError, match="made is refused"):
            read_pickle(entry(value), "made")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e5


def test_the_number_of_instructions_is_limited(monkeypatch):
    monkeypatch.setattr(cifar10, "MOST_INSTRUCTIONS", 10)
    read_pickle(entry(b"](K\x01e"), "made")
    with pytest.raises(InvalidInputError, match="it has more than 10 instructions"):
        read_pickle(entry(b"](K\x01K\x01e"), "made")


def plain(value):
    if isinstance(value, list):
        return all(type(part) in (int, bytes) for part in value)
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim == 2
    return type(value) in (int, bytes)


@given(
    start=st.integers(0, 400),
    stop=st.integers(0, 400),
    more=st.binary(max_size=40) | st.sampled_from([b"c", b"R", b"b", b"o", b"\x93", b"(", b"}u."]),
)
def test_changed_files_give_an_error_of_ours_or_plain_data(start, stop, more):
    content = python_batch(PIXELS, [1, 2, 3])
    try:
        value = read_pickle(content[:start] + more + content[stop:], "made")
    except InvalidInputError:
        return
    assert all(type(key) is bytes and plain(part) for key, part in value.items())
