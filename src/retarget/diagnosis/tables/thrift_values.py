"""Thrift's compact protocol, in which Parquet writes what it says about itself."""

import struct
from typing import Any

from retarget.errors import InvalidInputError

DEEPEST = 16
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
INTEGERS = (I16, I32, I64)
STOP = 0


class ThriftReader:
    r"""Reads structures from a buffer; of each, the fields by their number.

    The work is linear in what is read: every value takes at least a byte.

    Args:
        content: The buffer.
        place: Where the first structure begins.

    Example:
        >>> ThriftReader(b"\x15\x0e\x18\x02ab\x00").structure()
        {1: 7, 2: b'ab'}
    """

    def __init__(self, content: Any, place: int = 0) -> None:
        self._content = content
        self.place = place

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """The next structure."""
        if depth > DEEPEST:
            raise InvalidInputError(f"structures are nested more than {DEEPEST} deep")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != STOP:
            kind, step = head & 0x0F, head >> 4
            number = number + step if step else self._integer()
            # the value of a truth is in its kind
            fields[number] = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in INTEGERS:
            return self._integer()
        if kind == BINARY:
            return self._bytes(self._natural())
        if kind == STRUCT:
            return self.structure(depth + 1)
        if kind in (LIST, SET):
            return self._list(depth)
        if kind in (TRUE, FALSE, BYTE):  # in a list, a truth is a byte
            return self._byte()
        if kind == DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        raise InvalidInputError(f"a value is of the kind {kind}, which Parquet does not use")

    def _list(self, depth: int) -> list[Any]:
        if depth > DEEPEST:
            raise InvalidInputError(f"lists are nested more than {DEEPEST} deep")
        head = self._byte()
        size = self._natural() if head >> 4 == 15 else head >> 4
        if size > len(self._content) - self.place:
            raise InvalidInputError(f"a list announces {size} values, more than there are bytes")
        return [self._value(head & 0x0F, depth + 1) for _ in range(size)]

    def _integer(self) -> int:
        """Zigzag: the signs alternate."""
        natural = self._natural()
        return natural >> 1 if natural % 2 == 0 else -(natural >> 1) - 1

    def _natural(self) -> int:
        """Seven bits a byte, the lowest first."""
        natural = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            natural |= (byte & 0x7F) << shift
            if byte < 0x80:
                return natural
        raise InvalidInputError("a number goes on after ten bytes")

    def _byte(self) -> int:
        return int(self._bytes(1)[0])

    def _bytes(self, count: int) -> bytes:
        found = self._content[self.place : self.place + count]
        if len(found) < count:
            raise InvalidInputError("it ends within a structure")
        self.place += count
        return bytes(found)
