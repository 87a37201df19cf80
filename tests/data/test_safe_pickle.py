import builtins
import pickle
import pickletools
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_cifar10 import array_pickle, python2_pickle, python_batch
from retarget.data import safe_pickle
from retarget.data.safe_pickle import read_pickle
from retarget.errors import InvalidInputError

PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 4)
PATHS = [f"s{number % 11}/o{number % 50}/C_{number:05}.png" for number in range(2500)]


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
        {b"data": PIXELS, b"labels": [0, 255, 256, 65536, -5], b"long": b"x" * 300},
        {b"a": {b"b": [[1], [2, [3]]]}, b"empty": [], b"": {}},
        PIXELS[:0],
        np.zeros((70_000, 1), np.uint8),
        b"",
        -(2**31),
    ],
)
def test_files_of_python_2_are_as_pickle_reads_them(value):
    content = python2_pickle(value)
    same(pickle.loads(content, encoding="bytes"), value)
    same(read_pickle(content, "made"), value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value", [PATHS, [], ["é"], {"a": [1, [2], None, True, False]}, "x" * 300, 2**31 - 1]
)
def test_plain_data_of_python_3(value, protocol):
    same(read_pickle(pickle.dumps(value, protocol), "made"), value)


PLAIN_PATHS = [*PATHS, "", "it's \"", "'", '"']


@pytest.mark.parametrize("protocol", range(6))
def test_a_list_of_paths_in_every_protocol_of_python_3(protocol):
    same(read_pickle(pickle.dumps(PLAIN_PATHS, protocol), "made"), PLAIN_PATHS)
    same(read_pickle(pickle.dumps([], protocol), "made"), [])


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_list_of_paths_in_protocol_0_of_python_2(quote):
    lines = [f"S{quote}{path}{quote}\np{number + 1}\na" for number, path in enumerate(PATHS)]
    content = f"(lp0\n{''.join(lines)}.".encode()
    expected = [path.encode() for path in PATHS]
    same(pickle.loads(content, encoding="bytes"), expected)
    same(read_pickle(content, "made"), expected)
    same(read_pickle(b"(S'a'\nS'b'\nl.", "made"), [b"a", b"b"])


def test_bytes_of_python_3():
    assert read_pickle(pickle.dumps([b"short", b"l" * 300], 4), "made") == [b"short", b"l" * 300]


def test_an_array_is_a_view_of_the_file():
    content = python2_pickle(PIXELS)
    found = read_pickle(content, "made")
    assert not found.flags.writeable
    assert np.shares_memory(found, np.frombuffer(content, np.uint8))


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile(canary):
    """Pickles that would create the file `canary`, if anything in them ran."""
    text = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    command = f"touch {canary}".encode()
    evaluate = b"cbuiltins\neval\n"
    argument = b"X" + struct.pack("<I", len(text)) + text.encode()
    short = b"\x8c" + bytes([len(text)]) + text.encode()
    found = {
        "os.system": b"cposix\nsystem\n(S'" + command + b"'\ntR.",
        "eval": b"\x80\x02" + evaluate + argument + b"\x85R.",
        "protocol 0": b"c__builtin__\neval\n(V" + text.encode() + b"\ntR.",
        "in a list": b"\x80\x02](" + evaluate + argument + b"\x85Re.",
        "as a key": b"\x80\x02}" + evaluate + argument + b"\x85RK\x01s.",
        "stack global": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + short + b"\x85R.",
        "instance": b"(" + argument + b"ibuiltins\neval\n.",
        "object": b"(" + evaluate + argument + b"o.",
        "new object": b"\x80\x02" + evaluate + argument + b"\x85\x81.",
        "new object with keywords": b"\x80\x04" + evaluate + argument + b"\x85}\x92.",
        "reduce alone": b"\x80\x02K\x01" + argument + b"\x85R.",
        "build alone": b"\x80\x02}}b.",
        "instead of the array": python2_pickle(PIXELS).replace(
            b"cnumpy.core.multiarray\n_reconstruct\n", evaluate
        ),
        "instead of the array's class": python2_pickle(PIXELS).replace(
            b"cnumpy\nndarray\n", evaluate
        ),
        "instead of the array's type": python2_pickle(PIXELS).replace(b"cnumpy\ndtype\n", evaluate),
        "after the array": python2_pickle(PIXELS)[:-1]
        + b"("
        + argument
        + b"i"
        + evaluate[1:]
        + b".",
    }
    for protocol in range(6):
        call = Calls(builtins.eval, text)
        found[f"by pickle, protocol {protocol}"] = pickle.dumps({"data": [call]}, protocol)
    return found


HOSTILE = list(hostile("canary"))


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_in_a_hostile_file_runs(tmp_path, case):
    canary = tmp_path / "canary"
    with pytest.raises(InvalidInputError, match="made.bin is refused: it .* not unpickled"):
        read_pickle(hostile(canary)[case], "made.bin")
    assert not canary.exists()


@pytest.mark.parametrize("case", ["os.system", "eval", "protocol 0", "by pickle, protocol 5"])
def test_the_hostile_files_are_real(tmp_path, case):
    canary = tmp_path / "canary"
    pickle.loads(hostile(canary)[case])
    assert canary.exists()


OTHER = {
    "extension": (b"\x80\x02\x82\x01.", "the instruction b'.x82'"),
    "extension of 2 bytes": (b"\x80\x02\x83\x01\x00.", "the instruction b'.x83'"),
    "extension of 4 bytes": (b"\x80\x02\x84\x01\x00\x00\x00.", "the instruction b'.x84'"),
    "persistent": (b"P1\n.", "the instruction b'P'"),
    "persistent, binary": (b"K\x01Q.", "the instruction b'Q'"),
    "a tuple": (b"\x80\x02K\x01\x85.", "the instruction b'.x85'"),
    "a set": (b"\x80\x04\x8f.", "the instruction b'.x8f'"),
    "a buffer from outside": (b"\x80\x05\x97.", "the instruction b'.x97'"),
    "a huge number": (b"\x80\x02\x8b\xff\xff\xff\x7f.", "the instruction b'.x8b'"),
    "a float": (b"\x80\x02G" + bytes(8) + b".", "the instruction b'G'"),
    "8-byte length": (b"\x80\x04\x8e" + b"\xff" * 8 + b".", "the instruction b'.x8e'"),
    "a memory": (b"\x80\x02]q\x01h\x01.", "the instruction b'h'"),
    "no name": (b"cabc", "asks for something without a name"),
    "a name": (b"cos\nsystem\n.", "asks for 'os.system'"),
    "a name that is no text": (b"c\xff\x1b\nx\n.", r"asks for '\\xff\\x1b.x'"),
    "numpy's scalar": (b"cnumpy.core.multiarray\nscalar\n.", "'numpy.core.multiarray.scalar'"),
    "no value": (b"\x80\x02.", "does not end with one value"),
    "two values": (b"NN.", "does not end with one value"),
    "an open mark": (b"(N.", "does not end with one value"),
    "more after the end": (b"N.N", "goes on after its end"),
    "no mark": (b"]e.", "from a mark that was not set"),
    "no list below the mark": (b"(e.", "takes more values than there are"),
    "nothing to append to": (b"Na.", "takes more values than there are"),
    "below a mark": (b"](Na.", "takes more values than there are"),
    "below two marks": (b"]((ee.", "takes more values than there are"),
    "half an entry": (b"}(Nu.", "fills a dictionary where there is none, or half an entry"),
    "an entry in a list": (b"](NNu.", "fills a dictionary where there is none"),
    "an item in a dictionary": (b"}(Ne.", "fills a list where there is none"),
    "an item in an array": (array_pickle((1, 1), b"x") + b"Na.", "fills a list where there is"),
    "a list as key": (b"}]Ns.", "keys that are not strings"),
    "text that is none": (b"\x8c\x01\xff.", "a text in it is not UTF-8"),
    "a list without a mark": (b"Nl.", "makes a list from a mark that was not set"),
    "a string to interpret": (b"S'\\x41'\n.", "line of its instruction b'S' is not plain ASCII"),
    "a string without quotes": (b"Sa\n.", "line of its instruction b'S' is not plain ASCII"),
    "a string of two quotes": (b"S'a\"\n.", "line of its instruction b'S' is not plain ASCII"),
    "a string that is left": (b"S'a'+'b'\n.", "line of its instruction b'S' is not plain ASCII"),
    "a string without end": (b"S'a'", "line of its instruction b'S' is not plain ASCII"),
    "text to interpret": (b"V\\u0041\n.", "line of its instruction b'V' is not plain ASCII"),
    "text beyond ASCII": (b"V\xe9\n.", "line of its instruction b'V' is not plain ASCII"),
    "a place that is none": (b"Np-1\n.", "line of its instruction b'p' is not plain ASCII"),
    "array too short": (array_pickle((3, 4), bytes(11)) + b".", "3 x 4 values has 11 bytes"),
    "array too long": (array_pickle((3, 4), bytes(13)) + b".", "3 x 4 values has 13 bytes"),
    "array of no columns": (array_pickle((-1, 0), b"x") + b".", "4294967295 x 0 values has 1 b"),
    "negative sizes": (array_pickle((-3, -4), bytes(12)) + b".", "4294967293 x 4294967292 values"),
    "one dimension": (array_pickle((12,), bytes(12)) + b".", "multiarray._reconstruct'"),
    "three dimensions": (array_pickle((1, 3, 4), bytes(12)) + b".", "multiarray._reconstruct'"),
    "array of objects": (array_pickle((1, 1), b"x", b"O8") + b".", "multiarray._reconstruct'"),
    "array of numbers": (array_pickle((1, 1), b"x", b"i1") + b".", "multiarray._reconstruct'"),
    "byte order": (array_pickle((1, 1), b"x", order=b">") + b".", "multiarray._reconstruct'"),
    "array without end": (array_pickle((1, 1), b"x")[:-1] + b".", "does not end where it should"),
}


@pytest.mark.parametrize("case", OTHER)
def test_what_is_not_plain_data_is_refused(case):
    content, message = OTHER[case]
    with pytest.raises(InvalidInputError, match=f"made is refused: .*{message}"):
        read_pickle(content, "made")


def test_an_array_is_word_for_word_what_it_must_be():
    content = python2_pickle(PIXELS)
    words = content.index(PIXELS.tobytes())
    accepted = []
    for place in range(2, words):
        for value in {content[place] ^ 1, ord("q"), ord("N"), ord("K"), 0} - {content[place]}:
            try:
                found = read_pickle(content[:place] + bytes([value]) + content[place + 1 :], "made")
            except InvalidInputError:
                continue
            np.testing.assert_array_equal(found, PIXELS)
            accepted.append(place)
    # only the numbers under which Python 2 remembered values mean nothing here
    assert {content[place - 1 : place] for place in accepted} == {b"q"}


def test_every_instruction_of_pickle_is_known_or_refused():
    known = {*safe_pickle.SKIPPED, *safe_pickle.CONSTANTS, *safe_pickle.INTEGERS}
    known |= {*safe_pickle.EMPTY, *safe_pickle.BYTES, *safe_pickle.TEXTS}
    known |= {*safe_pickle.LIST_FILLS, *safe_pickle.DICT_FILLS, *safe_pickle.LINES}
    known |= {b".", b"(", b"c", b"l"}
    every = {opcode.code.encode("latin-1") for opcode in pickletools.opcodes}
    assert known <= every
    for code in {bytes([number]) for number in range(256)} - known:
        with pytest.raises(InvalidInputError, match="it holds the instruction"):
            read_pickle(b"NN" + code + b"NNNN.", "made")


def test_cut_short_anywhere():
    content = python_batch(PIXELS, [1, 2, 3])
    read_pickle(content, "made")
    for length in range(len(content)):
        with pytest.raises(InvalidInputError, match="made is (cut short|refused)"):
            read_pickle(content[:length], "made")
    with pytest.raises(InvalidInputError, match="made is cut short: it ends within a pickle"):
        read_pickle(content[:50], "made")
    with pytest.raises(InvalidInputError, match="made is cut short: it ends within its array"):
        read_pickle(python2_pickle(PIXELS)[:-5], "made")


def test_a_promised_length_is_not_allocated():
    tracemalloc.start()
    for content in (b"T\xff\xff\xff\xff", b"X\xff\xff\xff\x7f", array_pickle((65535, 1), b"")):
        with pytest.raises(InvalidInputError):
            read_pickle(content, "made")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e5


@pytest.mark.parametrize("open_one", [b"](", b"]", b"}U\x01k"])
def test_deep_nesting_is_refused(open_one):
    close = {b"](": b"e", b"]": b"a", b"}U\x01k": b"s"}[open_one]
    nested = open_one * 7 + b"]" + close * 7 + b"."
    read_pickle(nested, "made")
    for depth in (8, 100_000):
        with pytest.raises(InvalidInputError, match="made nests lists .* more than 8 deep"):
            read_pickle(open_one * depth + b"]" + close * depth + b".", "made")


def test_billion_laughs_and_cycles_need_a_memory_that_is_not_there():
    laughs = b"\x80\x02]q\x00(K\x01e" + b"".join(
        b"]q" + bytes([number]) + b"(" + (b"h" + bytes([number - 1])) * 10 + b"e"
        for number in range(1, 30)
    )
    cycle = b"\x80\x02]q\x00h\x00a."
    for content in (laughs + b".", cycle):
        with pytest.raises(InvalidInputError, match="it holds the instruction b'h'"):
            read_pickle(content, "made")


def test_the_number_of_instructions_is_limited(monkeypatch):
    monkeypatch.setattr(safe_pickle, "MOST_INSTRUCTIONS", 6)
    read_pickle(b"](NNe.", "made")
    with pytest.raises(InvalidInputError, match="made is refused: it has more than 6 instructions"):
        read_pickle(b"](NNNe.", "made")


CONTENT = python_batch(PIXELS, [1, 2, 3])
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "cut", "repeat"]),
        st.integers(0, len(CONTENT) - 1),
        st.one_of(st.integers(0, 255), st.sampled_from(list(b"cRboiQPh\x93\x81\x92\x82(]}teasu."))),
    ),
    min_size=1,
    max_size=6,
)


def changed(content, changes):
    content = bytearray(content)
    for what, place, value in changes:
        match what:
            case "set":
                content[place : place + 1] = bytes([value])
            case "insert":
                content[place:place] = bytes([value])
            case "delete":
                del content[place : place + 1 + value % 8]
            case "cut":
                del content[len(content) - value :]
            case "repeat":
                content[place:place] = content[place : place + value]
    return bytes(content)


def plain(value):
    if isinstance(value, dict):
        return all(isinstance(key, bytes | str) and plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim == 2
    return value is None or type(value) in (bool, int, bytes, str)


def error_of_ours_or_plain_data(content):
    try:
        value = read_pickle(content, "made")
    except InvalidInputError:
        return True
    return plain(value)


@given(CHANGES)
def test_changed_files_give_an_error_of_ours_or_plain_data(changes):
    assert error_of_ours_or_plain_data(changed(CONTENT, changes))


@given(st.binary(max_size=40))
def test_any_bytes_give_an_error_of_ours_or_plain_data(content):
    assert error_of_ours_or_plain_data(content)
