"""Networks by name, file or import path; what is in a file of weights is never run."""

import os
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from retarget.errors import InvalidInputError, InvalidTypeError, MissingDataError
from retarget.lab.data import backbones
from retarget.lab.data.backbones import (
    RESNET18,
    ResNet18,
    load_backbone,
    read_torch_file,
    read_weights,
)
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


def test_backbones_by_name_and_by_file(monkeypatch, tmp_path):
    monkeypatch.setattr(backbones, "resnet18_from", lambda path: path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    path = tmp_path / NAME
    path.touch()
    for given in ((path,), (f"~/{NAME}",), ("resnet18", tmp_path), ("resnet18",)):
        assert load_backbone(*given) == path


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
        "made_networks:number": "returned an int; expected a torch",
        "made_networks:constant": "is an int; expected a function",
        "made_networks:sized": "failed when it .* 'width'",
        "made_networks:other": "cannot be imported: .*no attribute 'other'",
        "no_such.package:net": "cannot be imported: No module",
    } | dict.fromkeys(("resnet19", "", "a b:c", "weights.bin", "3:x"), "; expected 'resnet")
    for name, message in refused.items():
        with pytest.raises((InvalidInputError, InvalidTypeError), match=f"{name}' ?{message}"):
            load_backbone(name)


# Files of weights


@pytest.mark.parametrize(
    ("suffix", "kind"), [("pth", "float"), ("pt", "half"), ("safetensors", "half")]
)
def test_weights_in_every_form_become_float32(tmp_path, weights, suffix, kind):
    torch.manual_seed(1)
    random = torch.rand(3)
    torch.manual_seed(1)
    given = {n: getattr(w, kind)() if w.is_floating_point() else w for n, w in weights.items()}
    network = backbones.resnet18_from(written(tmp_path, given, f"weights.{suffix}"))
    assert torch.equal(torch.rand(3), random)  # loading draws no random number
    assert not network.training
    for name, found in network.state_dict().items():
        assert found.dtype == weights[name].dtype
        assert torch.equal(found, given[name].to(found.dtype))
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 6)


def test_weights_that_do_not_fit_are_named(tmp_path, weights):
    changed = weights | {"head.bias": torch.zeros(6), "conv1.weight": torch.zeros(64, 3, 3, 3)}
    del changed["fc.bias"]
    told = r"Missing.*fc\.bias.*Unexpected.*head\.bias.*size mismatch for conv1\.weight"
    with pytest.raises(InvalidInputError, match=f"not hold the weights of a ResNet-18.*{told}"):
        backbones.resnet18_from(written(tmp_path, changed))
    for name, shape in (("a", 1), ("fc.weight", (0, 512)), ("fc.weight", 3)):
        with pytest.raises(InvalidInputError, match=r'Missing key.*"conv1.weight", .*\[...\]$'):
            backbones.resnet18_from(written(tmp_path, {name: torch.zeros(shape)}))


def test_files_that_hold_no_weights(tmp_path):
    others = {
        "holds a Tensor; expected tensors by name": torch.zeros(3),
        "holds a list; expected tensors by name": [torch.zeros(3)],
        "something other than tensors: 'model', 'epoch'; expected": {"model": {}, "epoch": 3},
    }
    for message, content in others.items():
        with pytest.raises(InvalidInputError, match=message):
            read_weights(written(tmp_path, content))
    with pytest.raises(MissingDataError, match="there is no file .*nothing.pth"):
        read_weights(tmp_path / "nothing.pth")
    with pytest.raises(InvalidInputError, match="the suffix '.bin'; .* .safe"):
        read_weights(tmp_path / "weights.bin")
    for name in ("weights.pth", "weights.safetensors"):
        path = written(tmp_path, {"a": torch.zeros(3)}, name)
        with path.open("rb+") as file:
            file.truncate(5_000_000_000)  # of holes: it takes no space
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
def test_hostile_files_run_nothing(tmp_path, zipped):
    canary = tmp_path / "canary"
    for why, content in {
        "torch.nn.modules.linear Linear": torch.nn.Linear(2, 2),
        "torch ComplexFloatStorage": {"a": torch.zeros(2, dtype=torch.complex64)},
        # what torch itself would call: each of these takes as much memory as it says
        ".* bytearray": {"a": Calls(bytearray, 10**10)},
        "torch Tensor": {"a": Calls(torch.Tensor, 10**5, 10**5)},
        ".* system": {"a": torch.ones(1), "b": Calls(os.system, f"touch {canary}")},
    }.items():
        path = written(tmp_path, content, zipped=zipped)
        with pytest.raises(InvalidInputError, match=REFUSED + f"it asks for '{why}'"):
            read_torch_file(path)
    assert not canary.exists()
    torch.load(path, weights_only=False)
    assert canary.exists()  # it was a real one


def with_pickle(folder, content, stored=bytes(8), method=zipfile.ZIP_STORED):
    """An archive as torch makes it, with a pickle of our own."""
    path = folder / "weights.pth"
    files = {"data.pkl": content, "byteorder": b"little", "version": b"3\n", "data/0": stored}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, each in files.items():
            archive.writestr(f"w/{name}", each)
    return path


def named(value):
    return b"\x80\x02}(X\x01\0\0\0a" + value + b"u."


MANY = b"".join(b"M" + struct.pack("<H", number) + b"N" for number in range(3000))
COPIED = b"ccollections\nOrderedDict\nh\x00\x85R"
BAD_PICKLES = {
    "by its parts": (named(b"\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R"), ""),
    "nothing to call": (b"\x80\x02R.", ""),
    "copies of a copy": (b"\x80\x02](}q\x00(" + MANY + b"u" + 3000 * COPIED + b"e.", "it reuses"),
    "a list in itself": (b"\x80\x02]q\x00(" + b"h\x00" * 1000 + b"e.", "it reuses a value"),
    "deep": (b"\x80\x02)" + 10**6 * b"\x85" + b".", ""),
    "a huge text": (named(b"X\xff\xff\xff\x7f"), ""),
}


@pytest.mark.parametrize("case", BAD_PICKLES)
def test_what_a_pickle_may_not_do(tmp_path, case):
    content, why = BAD_PICKLES[case]
    with pytest.raises(InvalidInputError, match=REFUSED + why):
        read_torch_file(with_pickle(tmp_path, content))


def test_what_is_promised_takes_no_memory(tmp_path, monkeypatch):
    path = with_pickle(tmp_path, named(b"K\x01r\xff\xff\xff\x7f"))  # a huge number in the memo
    with at_most(1e7):
        assert read_torch_file(path) == {"a": 1}
    path = written(tmp_path, {"a": torch.zeros(1).expand(1000, 1000)})
    with pytest.raises(InvalidInputError, match=r"\(1000, 1000\) but stores fewer"):
        read_torch_file(path)
    monkeypatch.setattr(backbones, "MOST_INSTRUCTIONS", 20)
    with pytest.raises(InvalidInputError, match=REFUSED + "it has more than 20 instructions"):
        read_torch_file(path)


def test_archives_that_are_not_torchs(tmp_path):
    path = with_pickle(tmp_path, named(b"N"), bytes(10**6), zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidInputError, match=REFUSED + ".*w/data/0 of 1000000 bytes; expected"):
        read_torch_file(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", b"hello")
    with pytest.raises(InvalidInputError, match=r"a zip archive without a data\.pkl"):
        read_torch_file(path)
    numbers = torch.arange(100.0)
    path = written(tmp_path, {"a": numbers})
    content = bytearray(path.read_bytes())
    content[content.index(numbers.numpy().tobytes()) + 4] ^= 1  # torch would not notice
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=REFUSED + ".*Bad CRC-32"):
        read_torch_file(path)
