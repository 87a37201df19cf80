"""Files of `torch.save`, read without unpickling: the zip archives of today, and the old form."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retarget.data.torch_pickle import Storage, StoredTensor, TorchMachine
from retarget.data.zip_files import ZipFiles, open_zip
from retarget.errors import InvalidInputError

ZIP_MARK = b"PK\x03\x04"
LARGEST_PICKLE = 100_000_000
PICKLE_NAME = "data.pkl"
# The old form: two pickles that say so, one about the machine, the content, the storages' keys.
OLD_MARKS = (0x1950A86A20F9469CFC6C, 1001)
COUNT_SIZE = 8


def read_torch_file(path: Path) -> Any:
    """What the file holds, its tensors on the CPU.

    Tensors that share their numbers in the file share them here.

    Raises:
        InvalidInputError: It is damaged, no such file, or holds something else than tensors and
            plain values.
    """
    with path.open("rb") as file:
        zipped = file.read(len(ZIP_MARK)) == ZIP_MARK
    return _read_zip(path) if zipped else _read_old(path)


def _read_zip(path: Path) -> Any:
    with open_zip(path) as files:
        pickles = [name for name in files.names if name.split("/")[1:] == [PICKLE_NAME]]
        if len(pickles) != 1:
            raise _damaged(path, f"a zip archive without one {PICKLE_NAME}")
        folder = pickles[0].removesuffix(PICKLE_NAME)
        order = f"{folder}byteorder"
        if order in files.names and files.read(order, COUNT_SIZE) != b"little":
            raise _damaged(path, "its numbers are not little-endian")
        content = files.read(pickles[0], LARGEST_PICKLE)
        described = TorchMachine(content, str(path)).run()
        return _made(described, _ZipStorages(files, f"{folder}data/").read)


class _ZipStorages:
    """Storages that are a file of the archive each."""

    def __init__(self, files: ZipFiles, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._left = files.path.stat().st_size  # torch does not compress: nothing may grow

    def read(self, storage: Storage) -> bytes:
        name, size = f"{self._folder}{storage.key}", storage.count * storage.dtype.itemsize
        self._left -= size
        if name not in self._files.names or self._left < 0:
            raise _damaged(self._files.path, "numbers of a tensor are missing")
        content = self._files.read(name, size)
        if len(content) != size:
            raise _damaged(self._files.path, f"{name} has not the {size} bytes that it should")
        return content


def _read_old(path: Path) -> Any:
    content, source, place = path.read_bytes(), str(path), 0
    values = []
    for mark in (*OLD_MARKS, None, None, None):
        machine = TorchMachine(content, source, place)
        values.append(machine.run())
        place = machine.place
        if mark is not None and (type(values[-1]) is not int or values[-1] != mark):
            raise _damaged(path, "it does not begin as one does")
    about, described, keys = values[2:]
    if not isinstance(about, dict) or about.get("little_endian") is not True:
        raise _damaged(path, "its numbers are not little-endian")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise _damaged(path, "it does not list its storages")
    wanted = {tensor.storage.key: tensor.storage for tensor in _tensors(described)}
    found: dict[str, bytes] = {}
    for key in keys:
        count = int.from_bytes(content[place : place + COUNT_SIZE], "little")
        if key not in wanted or key in found or wanted[key].count != count:
            raise _damaged(path, "its storages are not those of its tensors")
        place += COUNT_SIZE
        size = count * wanted[key].dtype.itemsize
        found[key] = content[place : place + size]
        place += size
    if place != len(content) or found.keys() != wanted.keys():
        raise _damaged(path, "it is cut short, or goes on after its end")
    return _made(described, lambda storage: found[storage.key])


def _tensors(described: Any) -> list[StoredTensor]:
    values = described.values() if isinstance(described, Mapping) else [described]
    return [value for value in values if isinstance(value, StoredTensor)]


def _made(described: Any, read: Callable[[Storage], bytes]) -> Any:
    """The described value with its tensors made, each storage once."""
    numbers = {}
    for storage in dict.fromkeys(tensor.storage for tensor in _tensors(described)):
        content = bytearray(read(storage))
        made = torch.frombuffer(content, dtype=storage.dtype) if content else torch.empty(0)
        numbers[storage] = made.to(storage.dtype)

    def tensor(value: Any) -> Any:
        if not isinstance(value, StoredTensor):
            return value
        return _view(numbers[value.storage], value)

    if isinstance(described, Mapping):
        return {name: tensor(value) for name, value in described.items()}
    return tensor(described)


def _view(numbers: Tensor, stored: StoredTensor) -> Tensor:
    return numbers.as_strided(stored.shape, stored.strides, stored.offset)


def _damaged(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path} is damaged, or no file that torch.save wrote ({why}); get it again"
    )
