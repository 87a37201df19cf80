"""The pickle inside a file of `torch.save`: tensors by name, described and not yet made.

torch's own way, `weights_only`, unpickles with a list of what is allowed, and was broken twice
(CVE-2025-32434, CVE-2026-24747). Here nothing is called: of the instructions that would import and
call, those few that every state dict has are known, and stand for a description.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from retarget.data.safe_pickle import IMPORT, IMPORTED_NAME, Machine
from retarget.errors import InvalidInputError

DTYPES = {
    ("torch", f"{kind}Storage"): dtype
    for kind, dtype in {
        "Float": torch.float32,
        "Double": torch.float64,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Long": torch.int64,
        "Int": torch.int32,
        "Short": torch.int16,
        "Char": torch.int8,
        "Byte": torch.uint8,
        "Bool": torch.bool,
    }.items()
}
ORDERED_DICT = ("collections", "OrderedDict")
TENSOR = ("torch._utils", "_rebuild_tensor_v2")
PARAMETER = ("torch._utils", "_rebuild_parameter")
KNOWN = {ORDERED_DICT, TENSOR, PARAMETER, *DTYPES}

REMEMBER = {b"q": 1, b"r": 4}
RECALL = {b"h": 1, b"j": 4}
TUPLES = {b")": 0, b"\x85": 1, b"\x86": 2, b"\x87": 3}
TUPLE, LONG, CALL, STORED, ATTRIBUTES = b"t", b"\x8a", b"R", b"Q", b"b"


@dataclass(frozen=True)
class Storage:
    """Numbers in a row, somewhere in the file."""

    dtype: torch.dtype
    key: str
    count: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor: which numbers of a storage it consists of. It fits into the storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Imported(NamedTuple):
    name: tuple[str, str]


class TorchMachine(Machine):
    """Follows one of the pickles of a file, from a place in it on.

    Args:
        content: The whole file.
        source: What to call it in errors.
        place: Where the pickle begins.
    """

    def __init__(self, content: bytes, source: str, place: int = 0) -> None:
        super().__init__(content, source)
        self._place = place
        self._memo: dict[int, object] = {}

    @property
    def place(self) -> int:
        """Where the pickle ended."""
        return self._place

    def _follow(self, instruction: bytes) -> None:
        if instruction in REMEMBER:
            number = int.from_bytes(self._take(REMEMBER[instruction]), "little")
            self._memo[number] = self._top(1)[0]
        elif instruction in RECALL:
            number = int.from_bytes(self._take(RECALL[instruction]), "little")
            if number not in self._memo:
                raise self._error("it recalls a value that it never remembered")
            self._stack.append(self._memo[number])
        elif instruction in TUPLES:
            self._stack.append(tuple(self._popped(TUPLES[instruction])))
        elif instruction == TUPLE:
            self._stack.append(tuple(self._since_mark()))
        elif instruction == LONG:
            size = self._take(1)[0]
            self._stack.append(int.from_bytes(self._take(size), "little", signed=True))
        elif instruction == IMPORT:
            self._stack.append(self._imported())
        elif instruction == CALL:
            self._stack.append(self._called(*self._popped(2)))
        elif instruction == STORED:
            self._stack.append(self._storage(*self._popped(1)))
        elif instruction == ATTRIBUTES:
            self._without_attributes()
        else:
            super()._follow(instruction)

    def _top(self, count: int) -> list[object]:
        """The last values; nothing below the last mark may be touched."""
        if len(self._stack) - count < (self._marks[-1] if self._marks else 0):
            raise self._error("it takes more values than there are")
        return self._stack[len(self._stack) - count :]

    def _popped(self, count: int) -> list[object]:
        values = self._top(count)
        del self._stack[len(self._stack) - count :]
        return values

    def _imported(self) -> _Imported:
        found = IMPORTED_NAME.match(self._content, self._place)
        module, name = (part.decode("latin-1") for part in found.groups()) if found else ("", "")
        if found is None or (module, name) not in KNOWN:
            raise self._error(f"it asks for {self._imported_name()}")
        self._place = found.end()
        return _Imported((module, name))

    def _called(self, what: object, arguments: object) -> object:
        """What a call stands for: an empty dictionary, a tensor, or the tensor of a parameter."""
        name = what.name if isinstance(what, _Imported) else None
        match name, arguments:
            case tuple(), () if name == ORDERED_DICT:
                return {}
            case tuple(), (StoredTensor() as tensor, bool(), dict()) if name == PARAMETER:
                return tensor
            case tuple(), (Storage() as storage, int(offset), tuple(shape), tuple(strides), *_):
                if name == TENSOR:
                    return self._tensor(storage, offset, shape, strides)
        raise self._error("it makes something else than tensors")

    def _storage(self, described: object) -> Storage:
        match described:
            case ("storage", _Imported(name), str(key), str(), int(count), *view):
                if name in DTYPES and count >= 0 and view in ([], [None]):
                    return Storage(DTYPES[name], key, count)
        raise self._error("a tensor in it is stored in a way that is not known here")

    def _tensor(
        self, storage: Storage, offset: int, shape: tuple[object, ...], strides: tuple[object, ...]
    ) -> StoredTensor:
        sizes = tuple(size for size in shape if type(size) is int and size >= 0)
        steps = tuple(step for step in strides if type(step) is int and step >= 0)
        if not len(sizes) == len(shape) == len(strides) == len(steps):
            raise self._error("a tensor in it has a shape that is none")
        pairs = zip(sizes, steps, strict=True)
        last = offset + sum((size - 1) * step for size, step in pairs) if all(sizes) else 0
        # no more numbers than are stored: not the same ones again and again
        if offset < 0 or last >= max(storage.count, 1) or math.prod(sizes) > storage.count:
            raise self._error(f"a tensor in it of shape {sizes} does not fit its storage")
        return StoredTensor(storage, offset, sizes, steps)

    def _without_attributes(self) -> None:
        """A state dict has one, `_metadata`, with the versions of its layers: not needed."""
        container, attributes = self._top(2)
        if not isinstance(container, dict) or not isinstance(attributes, dict):
            raise self._error("it sets attributes of something else than a state dict")
        self._popped(1)

    def _result(self) -> object:
        if len(self._stack) != 1 or self._marks:
            raise self._error("it does not end with one value")
        return self._stack[0]

    def _error(self, what: str) -> InvalidInputError:
        return InvalidInputError(
            f"{self._source} is damaged, or holds more than plain tensors, and was not run: {what} "
            f"(near byte {self._place}); expected what torch.save(model.state_dict(), path) writes"
        )
