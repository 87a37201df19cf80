"""Computes how large the columns of a Parquet file become, from page headers, before reading them.

A page of a few bytes can unpack to a gigabyte: compressed text, or one number repeated. The sizes
in the footer are only claims; readers use the header before each page. All of these are encoded in
Thrift's compact protocol.
"""

import mmap
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from retarget.errors import InvalidInputError

END = struct.Struct("<I4s")  # the length of the footer, and the magic bytes
BYTES_A_VALUE = 8
# Field numbers in Parquet's Thrift definition.
ROW_GROUPS = 4
COLUMNS = 1
ABOUT = 3
PATH = 3
PACKED_SIZE = 7
FIRST_PAGE = 9
DICTIONARY_PAGE = 11
UNPACKED_PAGE = 2
PACKED_PAGE = 3
PAGE_KINDS = (5, 7, 8)
VALUES = 1
# For Thrift: how deep structures may be nested, and the numbers of its types.
DEEPEST = 16
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
INTEGERS = (I16, I32, I64)
STOP = 0


class ParquetSizes:
    """Reads and checks the sizes that a Parquet file announces.

    Use it before Polars opens the file: Polars allocates memory for all announced columns.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with damage_explained(path), _mapped(path) as content:
            length, _ = END.unpack(content[-END.size :])
            place = len(content) - END.size - length
            if place < 0:
                raise InvalidInputError("its footer claims to be longer than the file")
            groups = ThriftReader(content, place).structure()[ROW_GROUPS]
            self._groups = [[chunk[ABOUT] for chunk in group[COLUMNS]] for group in groups]

    def loaded(self, columns: Collection[str]) -> int:
        """Returns the bytes that these columns unpack to, at least eight for each value."""
        return sum(self._of_groups(columns))

    def largest_group(self, columns: Collection[str]) -> int:
        """Returns the same for the largest row group, which is unpacked as a whole."""
        return max(self._of_groups(columns), default=0)

    def _of_groups(self, columns: Collection[str]) -> list[int]:
        names = {name.encode() for name in columns}
        with damage_explained(self._path), _mapped(self._path) as content:
            return [
                sum(
                    size
                    for chunk in chunks
                    if chunk[PATH][0] in names
                    for size in _page_sizes(content, chunk)
                )
                for chunks in self._groups
            ]


def _page_sizes(content: mmap.mmap, chunk: dict[int, Any]) -> Iterator[int]:
    place = chunk.get(DICTIONARY_PAGE) or chunk[FIRST_PAGE]
    end = min(place + chunk[PACKED_SIZE], len(content))
    while place < end:
        reader = ThriftReader(content, place)
        page = reader.structure()
        counts = [page[kind][VALUES] for kind in PAGE_KINDS if kind in page]
        # Polars would try to allocate that much memory, and abort
        if min(*counts, page[UNPACKED_PAGE], page[PACKED_PAGE]) < 0:
            raise InvalidInputError(f"the page at byte {place} announces a negative size")
        yield max(page[UNPACKED_PAGE], BYTES_A_VALUE * max(counts, default=0))
        place = reader.place + page[PACKED_PAGE]


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


@contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Turns any error that a damaged Parquet file causes, here or in Polars, into one sentence."""
    try:
        yield
    # An empty file cannot be mapped; a field may be missing, or have another type.
    except (
        *(ValueError, AttributeError, LookupError, TypeError, OSError, struct.error),
        *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
    ) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InvalidInputError(
            f"{path} is a Parquet file that is cut short or damaged ({reason}); write or copy it "
            "again"
        ) from error


class ThriftReader:
    r"""Reads Thrift structures from a buffer, as dicts from field number to value.

    The time is linear in the bytes read: every value takes at least one.

    Examples:
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
            kind = head & 0x0F
            step = head >> 4
            number = number + step if step else self._integer()
            # a boolean field stores its value in its type
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
        if kind in (TRUE, FALSE, BYTE):  # in a list, a boolean is a byte
            return self._byte()
        if kind == DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        raise InvalidInputError(f"a value has the type {kind}, which Parquet does not use")

    def _list(self, depth: int) -> list[Any]:
        if depth > DEEPEST:
            raise InvalidInputError(f"lists are nested more than {DEEPEST} deep")
        head = self._byte()
        size = self._natural() if head >> 4 == 15 else head >> 4
        if size > len(self._content) - self.place:
            raise InvalidInputError(f"a list announces {size} values, more than there are bytes")
        return [self._value(head & 0x0F, depth + 1) for _ in range(size)]

    def _integer(self) -> int:
        """Reads a zigzag-encoded integer: 0, -1, 1, -2, ..."""
        natural = self._natural()
        return natural >> 1 if natural % 2 == 0 else -(natural >> 1) - 1

    def _natural(self) -> int:
        """Reads an unsigned integer: seven bits per byte, the lowest first."""
        natural = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            natural |= (byte & 0x7F) << shift
            if byte < 0x80:
                return natural
        raise InvalidInputError("a number is longer than ten bytes")

    def _byte(self) -> int:
        return int(self._bytes(1)[0])

    def _bytes(self, count: int) -> bytes:
        content = self._content[self.place : self.place + count]
        if len(content) < count:
            raise InvalidInputError("it ends within a structure")
        self.place += count
        return bytes(content)
