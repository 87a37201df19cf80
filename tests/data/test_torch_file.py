"""Files of torch.save against torch's own reader, and everything that is refused."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retarget.data.torch_file import read_torch_file
from retarget.errors import InvalidInputError

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
FORMS = [True, False]  # zip archives, and what was before


def written(folder, content, zipped=True):
    path = folder / "weights.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", FORMS)
def test_every_kind_of_tensor_is_as_torch_reads_it(tmp_path, zipped):
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
    path = written(tmp_path, content, zipped)
    found, expected = read_torch_file(path), torch.load(path, weights_only=True)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)
    found["the whole"][2, 2] = 77.0  # shared in the file, shared here
    assert found["transposed"][2, 2] == found["a part"][1, 0] == 77.0


@pytest.mark.parametrize("zipped", FORMS)
def test_a_whole_state_dict(tmp_path, zipped):
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    found = read_torch_file(written(tmp_path, layers.state_dict(), zipped))
    layers.load_state_dict(found)
    assert list(found) == list(layers.state_dict())


@pytest.mark.parametrize("zipped", FORMS)
@pytest.mark.parametrize(
    "content",
    [
        {"a": torch.zeros(2).to_sparse()},
        {"a": torch.zeros(2, device="meta")},
        {"a": torch.zeros(2, dtype=torch.complex64)},
        {"a": torch.zeros(1).expand(1000, 1000)},  # one number stored, a million wanted
        {"a": {1, 2}},
        torch.nn.Linear(2, 2),
    ],
)
def test_other_objects_are_refused(tmp_path, content, zipped):
    with pytest.raises(InvalidInputError, match="weights.pth is damaged, or holds more than plain"):
        read_torch_file(written(tmp_path, content, zipped))


def with_pickle(folder, *instructions, storages=((b"0", bytes(8)),), order=b"little"):
    """An archive as torch makes it, with a pickle of our own."""
    path = folder / "weights.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/data.pkl", b"\x80\x02" + b"".join(instructions))
        archive.writestr("w/byteorder", order)
        for key, content in storages:
            archive.writestr(f"w/data/{key.decode()}", content)
    return path


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def stored(kind=b"Float", key=b"0", count=b"K\x02", more=b""):
    return (
        b"(" + text(b"storage") + b"ctorch\n" + kind + b"Storage\n" + text(key) + text(b"cpu")
        + count + more + b"tQ"
    )  # fmt: skip


def tensor(storage=None, offset=b"K\x00", shape=b"K\x02\x85", strides=b"K\x01\x85"):
    rest = offset + shape + strides + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + (storage or stored()) + rest + b"tR"


def named(value):
    return b"}(" + text(b"a") + value + b"u."


def test_a_pickle_of_our_own(tmp_path):
    numbers = struct.pack("<2f", 1.5, -2.0)
    found = read_torch_file(with_pickle(tmp_path, named(tensor()), storages=[(b"0", numbers)]))
    assert found["a"].tolist() == [1.5, -2.0]


MINUS = b"J\xff\xff\xff\xff"
REFUSED = {
    "an import": (named(b"cos\nsystem\n" + text(b"true") + b"\x85R"), "asks for 'os.system'"),
    "a name without an end": (named(b"cos"), "asks for something without a name"),
    "a call of a value": (named(b"K\x01)R"), "makes something else than tensors"),
    "a class alone": (
        named(b"ccollections\nOrderedDict\n" + text(b"x") + b"\x85R"),
        "else than te",
    ),
    "nothing to call": (b"R.", "takes more values than there are"),
    "below a mark": (b"K\x01K\x02(\x86.", "takes more values than there are"),
    "nothing to remember": (b"q\x00.", "takes more values than there are"),
    "never remembered": (named(b"h\x07"), "recalls a value that it never remembered"),
    "attributes": (named(b"K\x01}b"), "sets attributes of something else"),
    "an unknown instruction": (named(b"\x81"), "holds the instruction"),
    "two values": (b"K\x01K\x02.", "does not end with one value"),
    "a storage of nothing": (named(b"K\x01Q"), "stored in a way that is not known"),
    "a storage of less than nothing": (named(tensor(stored(count=MINUS))), "stored in a way"),
    "a view of a storage": (named(tensor(stored(more=b"K\x01"))), "stored in a way that is not"),
    "another class of storage": (named(tensor(stored(b"Complex"))), "asks for 'torch.ComplexSto"),
    "beyond its storage": (named(tensor(offset=b"K\x01")), r"of shape \(2,\) does not fit its"),
    "before its storage": (named(tensor(offset=MINUS)), "does not fit its storage"),
    "one number often": (named(tensor(shape=b"K\x09\x85", strides=b"K\x00\x85")), "does not fit"),
    "no shape": (named(tensor(shape=text(b"x") + b"\x85")), "a shape that is none"),
    "a shape below zero": (named(tensor(shape=MINUS + b"\x85")), "a shape that is none"),
    "shape and strides": (named(tensor(strides=b")")), "a shape that is none"),
    "numbers elsewhere": (named(tensor(stored(key=b"../0"))), "numbers of a tensor are missing"),
    "more numbers": (named(tensor(stored(count=b"K\x03"))), "w/data/0 has not the 12 bytes"),
    "endless numbers": (named(tensor(stored(count=b"J\xff\xff\xff\x7f"))), "tensor are missing"),
    "fewer numbers": (
        named(tensor(stored(count=b"K\x01"), shape=b"K\x01\x85")),
        "w/data/0 of 8 bytes; expected at most 4",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_pickle_may_not_do(tmp_path, case):
    instructions, message = REFUSED[case]
    with pytest.raises(InvalidInputError, match=message) as raised:
        read_torch_file(with_pickle(tmp_path, instructions))
    assert str(tmp_path / "weights.pth") in str(raised.value)


def test_archives_that_are_not_torchs(tmp_path):
    path = with_pickle(tmp_path, named(tensor()), order=b"big")
    with pytest.raises(InvalidInputError, match="numbers are not little-endian"):
        read_torch_file(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", b"hello")
    with pytest.raises(InvalidInputError, match=r"a zip archive without one data\.pkl"):
        read_torch_file(path)


def test_a_list_in_itself_is_no_endless_work(tmp_path):
    path = with_pickle(tmp_path, b"]q\x00(" + b"h\x00" * 1000 + b"e.")
    assert isinstance(read_torch_file(path), list)


def old(content):
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


OLD = old({"a": torch.arange(3.0), "b": torch.ones(2)})
OLD_REFUSED = {
    "no mark": (pickle.dumps(3, 2) + OLD, "does not begin as one does"),
    "a mark of another type": (pickle.dumps("x", 2) + OLD, "does not begin as one does"),
    "big-endian": (OLD.replace(b"\x88", b"\x89", 1), "numbers are not little-endian"),
    "cut short": (OLD[:-3], "cut short, or goes on"),
    "going on": (OLD + b"\0", "cut short, or goes on"),
    "another length": (OLD[:-16] + struct.pack("<q", 1) + OLD[-8:], "storages are not those of"),
    "no keys": (OLD[: OLD.rindex(b"\x80\x02]")] + b"\x80\x02K\x01.", "does not list its storages"),
    "fewer keys": (OLD[: OLD.rindex(b"\x80\x02]")] + b"\x80\x02].", "cut short, or goes on"),
}


@pytest.mark.parametrize("case", OLD_REFUSED)
def test_damaged_files_of_the_old_form(tmp_path, case):
    content, message = OLD_REFUSED[case]
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"weights.pth is damaged, or .*{message}"):
        read_torch_file(tmp_path / "weights.pth")


@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from(DTYPES),
    zipped=st.booleans(),
    turned=st.booleans(),
)
def test_any_shape_is_as_torch_reads_it(tmp_path_factory, shape, dtype, zipped, turned):
    made = (10 * torch.rand(shape)).to(dtype)
    path = written(
        tmp_path_factory.getbasetemp(),
        {"a": made.mT if turned and len(shape) > 1 else made},
        zipped,
    )
    expected = torch.load(path, weights_only=True)["a"]
    found = read_torch_file(path)["a"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found, expected)
