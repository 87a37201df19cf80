"""Files of tensors and plain values: what is read is what was written, or an error."""

import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from retarget.errors import DamagedFileError, InvalidInputError
from retarget.state_files import FORMAT, checksum, part_of, read_state, write_state

VALUES = {"a": [1.5, 2**100, float("inf")], "é": {"b": None, "c": "\0"}}
TENSORS = {
    "matrix": torch.linspace(0, 1, 15).reshape(5, 3).T,  # not contiguous
    "whole": torch.arange(4),
    "empty": torch.zeros(0, 3),
    "number": torch.tensor(2.5, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "bytes": torch.arange(7, dtype=torch.uint8),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "state"
    write_state(path, VALUES, TENSORS)
    return path


def test_read_as_it_was_written(path):
    values, tensors = read_state(path)
    assert values == VALUES
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype
    before = path.read_bytes()
    write_state(path, VALUES, dict(reversed(TENSORS.items())))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(sha256="0" * 64),
        lambda header: header.pop("sha256"),
        lambda header: header.pop("values"),
        lambda header: header["values"].update(a=[1.5, 2**100 + 1, float("inf")]),
        lambda header: header.update(values=[1]),
    ],
)
def test_headers_that_were_changed(change, path):
    header = {
        "format": FORMAT,
        "sha256": checksum(json.dumps(VALUES), TENSORS),
        "values": dict(VALUES),
    }
    stored = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    save_file(stored, path, {"retarget": json.dumps(header)})
    read_state(path)
    change(header)
    save_file(stored, path, {"retarget": json.dumps(header)})
    with pytest.raises(DamagedFileError, match="is damaged: its checksum does not match"):
        read_state(path)


DEEP, OLD = (
    "damaged or not a safetensors file",
    f"not a retarget state of format {FORMAT}; expected",
)


@pytest.mark.parametrize(
    ("header", "message"),
    [("[" * 100_000, DEEP), ('{"format": 1}', OLD), ('{"format": 2}', OLD), ("[1]", OLD)],
)
def test_files_of_another_format(header, message, path):
    save_file({"x": torch.ones(1)}, path, {"retarget": header})
    with pytest.raises(DamagedFileError if message == DEEP else InvalidInputError, match=message):
        read_state(path)


def test_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidInputError, match="there is no file"):
            read_state(path)


@pytest.mark.parametrize("error", [OSError("the disk is on fire"), SafetensorError("a bug")])
def test_a_failed_writer_keeps_the_file(error, path, monkeypatch):
    def fail(tensors, file, metadata):
        file.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr("retarget.state_files.save_file", fail)
    with pytest.raises(type(error), match=str(error)) as caught:
        write_state(path, {}, {})
    assert getattr(caught.value, "filename", str(path)) == str(path)
    assert read_state(path)[0] == VALUES


def test_the_checksum_sees_every_difference():
    one = {"x": torch.zeros(4)}
    others = [
        {"y": torch.zeros(4)},
        {"x": torch.zeros(4, dtype=torch.int32)},
        {"x": torch.zeros(2, 2)},
        {"x": -torch.zeros(4)},
        {},
    ]
    sums = {checksum("", one), checksum("a", one), *(checksum("", other) for other in others)}
    assert len(sums) == 7
    assert checksum("", one) == checksum("", {"x": torch.zeros(2, 4)[:, 0].repeat(2)})


def test_a_part_of_a_state():
    state = {"one.a": 1, "one.b.c": 2, "one": 3, "oneself.a": 4}
    assert part_of(state, "one") == {"a": 1, "b.c": 2}
