"""Files of torch.save: read as torch reads them; what would run code, or grow, is refused."""

import os
import struct
import subprocess
import tracemalloc
import zipfile
from collections import OrderedDict

import pytest
import torch

from retarget.data import backbones
from retarget.data.backbones import read_torch_file
from retarget.errors import InvalidInputError

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
FORMS = [True, False]  # zip archives, and what was before
REFUSED = "weights.pth is damaged, or holds more than plain tensors, and nothing of it was run: "


def written(folder, content, zipped=True):
    path = folder / "weights.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", FORMS)
def test_every_kind_of_tensor_comes_back(tmp_path, zipped):
    torch.manual_seed(0)
    base = torch.randn(5, 7)
    content = OrderedDict(
        {str(dtype): (100 * torch.randn(3, 4)).to(dtype) for dtype in DTYPES}
        | {
            "scalar": torch.tensor(3.5),
            "empty": torch.zeros(0, 4),
            "transposed": base.T,
            "a part": base[1:4, 2::2],
            "the whole": base,
            "a parameter": torch.nn.Parameter(torch.randn(6)),
        }
    )
    found = read_torch_file(written(tmp_path, content, zipped))
    assert list(found) == list(content)
    for name, tensor in content.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    found["the whole"][2, 2] = 77.0  # shared in the file, shared here
    assert found["transposed"][2, 2] == found["a part"][1, 0] == 77.0


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("zipped", FORMS)
@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"a": torch.zeros(2).to_sparse()}, "asks for 'torch._utils _rebuild_sparse_tensor'"),
        ({"a": torch.zeros(2, device="meta")}, "asks for 'torch._utils _rebuild_meta_tensor_no"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "asks for 'torch ComplexFloatStorage'"),
        ({"a": {1, 2}}, "asks for '.* set'"),
        # what torch itself would call: each of these takes as much memory as it says
        ({"a": Calls(bytearray, 10**10)}, "asks for '.* bytearray'"),
        ({"a": Calls(torch.Tensor, 10**5, 10**5)}, "asks for 'torch Tensor'"),
        (torch.nn.Linear(2, 2), "asks for 'torch.nn.modules.linear Linear'"),
    ],
)
def test_other_objects_are_refused(tmp_path, content, why, zipped):
    with pytest.raises(InvalidInputError, match=REFUSED + f"it {why}"):
        read_torch_file(written(tmp_path, content, zipped))


@pytest.mark.parametrize("zipped", FORMS)
@pytest.mark.parametrize("function", [os.system, eval, subprocess.check_output])
def test_nothing_in_a_hostile_file_runs(tmp_path, function, zipped):
    canary = tmp_path / "canary"
    text = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    argument = text if function is eval else f"touch {canary}"
    argument = argument.split() if function is subprocess.check_output else argument
    path = written(tmp_path, {"a": torch.ones(1), "b": Calls(function, argument)}, zipped)
    with pytest.raises(InvalidInputError, match=REFUSED + "it asks for"):
        read_torch_file(path)
    assert not canary.exists()
    torch.load(path, weights_only=False)
    assert canary.exists()  # it was a real one


def with_pickle(folder, *instructions, storages=((b"0", bytes(8)),), method=zipfile.ZIP_STORED):
    """An archive as torch makes it, with a pickle of our own."""
    path = folder / "weights.pth"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("w/data.pkl", b"\x80\x02" + b"".join(instructions))
        archive.writestr("w/byteorder", b"little")
        archive.writestr("w/version", b"3\n")
        for key, content in storages:
            archive.writestr(f"w/data/{key.decode()}", content)
    return path


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def stored(key=b"0", count=b"K\x02"):
    name = b"(" + text(b"storage") + b"ctorch\nFloatStorage\n"
    return name + text(key) + text(b"cpu") + count + b"tQ"


def tensor(storage=None, offset=b"K\x00", shape=b"K\x02\x85", strides=b"K\x01\x85"):
    rest = offset + shape + strides + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + (storage or stored()) + rest + b"tR"


def named(value):
    return b"}(" + text(b"a") + value + b"u."


MANY = b"".join(b"M" + struct.pack("<H", number) + b"N" for number in range(3000))
BAD_PICKLES = {
    "by its parts": named(text(b"os") + text(b"system") + b"\x93" + text(b"true") + b"\x85R"),
    "nothing to call": b"R.",
    "never remembered": named(b"h\x07"),
    "copies of a copy": b"](" + b"}q\x00(" + MANY + b"u" + 3000 * (
        b"ccollections\nOrderedDict\nh\x00\x85R") + b"e.",
    "a list in itself": b"]q\x00(" + b"h\x00" * 1000 + b"e.",
    "deep": b")" + 10**6 * b"\x85" + b".",
    "a huge text": named(b"X\xff\xff\xff\x7f"),
    "beyond its storage": named(tensor(offset=b"K\x01")),
    "numbers elsewhere": named(tensor(stored(key=b"../0"))),
    "endless numbers": named(tensor(stored(count=b"J\xff\xff\xff\x7f"))),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PICKLES)
def test_what_a_pickle_may_not_do(tmp_path, case):
    path = with_pickle(tmp_path, BAD_PICKLES[case])
    twice = "it uses a value twice" if case in ("copies of a copy", "a list in itself") else ""
    with pytest.raises(InvalidInputError, match=REFUSED + twice):
        read_torch_file(path)


def test_a_huge_number_in_the_memo_takes_no_memory(tmp_path):
    path = with_pickle(tmp_path, named(b"K\x01r\xff\xff\xff\x7f"))
    tracemalloc.start()
    assert read_torch_file(path) == {"a": 1}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e7


def test_one_number_for_many(tmp_path):
    path = with_pickle(tmp_path, named(tensor(shape=b"K\x09\x85", strides=b"K\x00\x85")))
    with pytest.raises(InvalidInputError, match=r"of shape \(9,\) with fewer numbers"):
        read_torch_file(path)
    with pytest.raises(InvalidInputError, match=r"of shape \(1000, 1000\) with fewer numbers"):
        read_torch_file(written(tmp_path, {"a": torch.zeros(1).expand(1000, 1000)}))


def test_archives_that_are_not_torchs(tmp_path):
    zeros = [(b"0", bytes(10**6))]
    path = with_pickle(tmp_path, named(tensor()), storages=zeros, method=zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidInputError, match=REFUSED + ".*w/data/0 of 1000000 bytes; expected"):
        read_torch_file(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", b"hello")
    with pytest.raises(InvalidInputError, match=r"a zip archive without one data\.pkl"):
        read_torch_file(path)


def test_a_changed_number_is_noticed(tmp_path):
    path = written(tmp_path, {"a": torch.arange(100.0)})
    content = bytearray(path.read_bytes())
    content[content.index(torch.arange(100.0).numpy().tobytes()) + 4] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=REFUSED + ".*Bad CRC-32"):
        read_torch_file(path)


def test_many_instructions(tmp_path, monkeypatch):
    path = written(tmp_path, {"a": torch.ones(2)})
    monkeypatch.setattr(backbones, "MOST_INSTRUCTIONS", 20)
    with pytest.raises(InvalidInputError, match=REFUSED + "it has more than 20 instructions"):
        read_torch_file(path)
