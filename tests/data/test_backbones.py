"""Networks by name, file or import path; what is in a file of weights is never run."""

import os
import struct
import subprocess
import zipfile
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from retarget.data import backbones
from retarget.data.backbones import (
    RESNET18,
    ResNet18,
    load_backbone,
    read_torch_file,
    read_weights,
    resnet18_from,
)
from retarget.errors import InvalidInputError, InvalidTypeError, MissingDataError
from support.peak_memory import at_most

NAME = RESNET18.files[0].download.name
DTYPES = "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool"
REFUSED = "weights.pth is damaged, or holds more than plain tensors, and was not loaded: "
zip_and_old = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 2020"])


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return ResNet18(classes=6).state_dict()


def written(folder, content, name="weights.pth", zipped=True):
    path = folder / name
    if path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def test_by_name_from_the_folder_of_data_and_by_file(monkeypatch, tmp_path, weights):
    path = written(tmp_path, weights, NAME)
    assert isinstance(load_backbone(path), ResNet18)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_backbone(f"~/{NAME}").fc.out_features == 6
    assert load_backbone("resnet18", tmp_path).fc.out_features == 6
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    assert load_backbone("resnet18").fc.out_features == 6


def test_by_import_path(monkeypatch, tmp_path):
    (tmp_path / "made_networks.py").write_text(
        "from torch import nn\n"
        "class Small:\n    flat = nn.Flatten\n"
        "def network():\n    return nn.Flatten()\n"
        "def number():\n    return 3\n"
        "def sized(width):\n    return nn.Linear(width, 1)\n"
        "constant = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(load_backbone("made_networks:network"), nn.Flatten)
    assert isinstance(load_backbone("made_networks:Small.flat"), nn.Flatten)
    refused = {
        "made_networks:number": "returned a int; expected a torch",
        "made_networks:constant": "is a int; expected a function",
        "made_networks:sized": "failed when it .* 'width'",
        "made_networks:other": "cannot be imported: .*no attribute 'other'",
        "no_such.package:net": "cannot be imported: No module",
    }
    for name, message in refused.items():
        with pytest.raises((InvalidInputError, InvalidTypeError), match=f"{name}' {message}"):
            load_backbone(name)


@pytest.mark.parametrize("name", ["resnet19", "", "a b:c", "weights.bin", "3:x"])
def test_other_names(name):
    with pytest.raises(InvalidInputError, match=f"there is no backbone '{name}'; expected 'resnet"):
        load_backbone(name)


# Files of weights


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("suffix", ["pth", "pt", "safetensors"])
def test_weights_in_every_form_become_float32(tmp_path, weights, suffix, half):
    torch.manual_seed(1)
    random = torch.rand(3)
    torch.manual_seed(1)
    given = {n: w.half() if half and w.is_floating_point() else w for n, w in weights.items()}
    network = resnet18_from(written(tmp_path, given, f"weights.{suffix}"))
    assert torch.equal(torch.rand(3), random)  # loading draws no random number
    assert not network.training
    assert network.fc.out_features == 6
    for name, found in network.state_dict().items():
        assert found.dtype == weights[name].dtype
        assert torch.equal(found, given[name].to(found.dtype))
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 6)


def without(weights, *names):
    return {name: tensor for name, tensor in weights.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: without(w, "fc.weight"), "size mismatch for fc.bias|Missing key.*fc.weight"),
        (lambda w: w | {"head.bias": w["fc.bias"].clone()}, "Unexpected key.*head.bias"),
        (lambda w: w | {"conv1.weight": torch.zeros(64, 3, 3, 3)}, "size mismatch for conv1.weig"),
        (lambda w: w | {"fc.weight": torch.zeros(0, 512)}, "size mismatch for fc.weight"),
        (lambda w: {"a": torch.zeros(1)}, 'Missing key.*"conv1.weight", .*\\[...\\]$'),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path, weights, change, message):
    with pytest.raises(InvalidInputError, match=f"not hold the weights of a ResNet-18.*{message}"):
        resnet18_from(written(tmp_path, change(weights)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(3), "holds a Tensor; expected tensors by name"),
        ([torch.zeros(3)], "holds a list; expected tensors by name"),
        ({"model": {}, "epoch": 3}, "something other than tensors: 'model', 'epoch'; expected"),
    ],
)
def test_other_content_is_refused(tmp_path, content, message):
    with pytest.raises(InvalidInputError, match=message):
        read_weights(written(tmp_path, content))


def test_no_file_other_files_and_files_of_holes(tmp_path):
    with pytest.raises(MissingDataError, match="there is no file .*nothing.pth"):
        read_weights(tmp_path / "nothing.pth")
    with pytest.raises(InvalidInputError, match="has the suffix '.bin'; expected weights in .safe"):
        read_weights(tmp_path / "weights.bin")
    for name in ("weights.pth", "weights.safetensors"):
        path = written(tmp_path, {"a": torch.zeros(3)}, name)
        with path.open("rb+") as file:
            file.truncate(5_000_000_000)  # it takes no space
        with pytest.raises(InvalidInputError, match=f"{name} has 5000000000 bytes; expected"):
            read_weights(path)


# Files of torch.save


@zip_and_old
def test_every_kind_of_tensor_comes_back(tmp_path, zipped):
    torch.manual_seed(0)
    base = torch.randn(5, 7)
    content = OrderedDict(
        {name: (100 * torch.randn(3, 4)).to(getattr(torch, name)) for name in DTYPES.split()}
        | {
            "scalar": torch.tensor(3.5),
            "empty": torch.zeros(0, 4),
            "transposed": base.T,
            "a part": base[1:4, 2::2],
            "the whole": base,
            "a parameter": torch.nn.Parameter(torch.randn(6)),
        }
    )
    found = read_torch_file(written(tmp_path, content, zipped=zipped))
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


@zip_and_old
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
        read_torch_file(written(tmp_path, content, zipped=zipped))


@zip_and_old
@pytest.mark.parametrize("function", [os.system, eval, subprocess.check_output])
def test_nothing_in_a_hostile_file_runs(tmp_path, function, zipped):
    canary = tmp_path / "canary"
    text = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    argument = text if function is eval else f"touch {canary}"
    argument = argument.split() if function is subprocess.check_output else argument
    path = written(tmp_path, {"a": torch.ones(1), "b": Calls(function, argument)}, zipped=zipped)
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
    twice = "it reuses a value" if case in ("copies of a copy", "a list in itself") else ""
    with pytest.raises(InvalidInputError, match=REFUSED + twice):
        read_torch_file(path)


def test_a_huge_number_in_the_memo_takes_no_memory(tmp_path):
    path = with_pickle(tmp_path, named(b"K\x01r\xff\xff\xff\x7f"))
    with at_most(1e7):
        assert read_torch_file(path) == {"a": 1}


def test_one_number_for_many(tmp_path):
    path = with_pickle(tmp_path, named(tensor(shape=b"K\x09\x85", strides=b"K\x00\x85")))
    with pytest.raises(InvalidInputError, match=r"of shape \(9,\) but stores fewer"):
        read_torch_file(path)
    with pytest.raises(InvalidInputError, match=r"of shape \(1000, 1000\) but stores fewer"):
        read_torch_file(written(tmp_path, {"a": torch.zeros(1).expand(1000, 1000)}))


def test_archives_that_are_not_torchs(tmp_path):
    zeros = [(b"0", bytes(10**6))]
    path = with_pickle(tmp_path, named(tensor()), storages=zeros, method=zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidInputError, match=REFUSED + ".*w/data/0 of 1000000 bytes; expected"):
        read_torch_file(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", b"hello")
    with pytest.raises(InvalidInputError, match=r"a zip archive without a data\.pkl"):
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
