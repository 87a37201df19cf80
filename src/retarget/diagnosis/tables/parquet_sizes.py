"""How large the columns of a Parquet file become, from what their pages say, before any is read.

A page of some bytes can hold a gigabyte: packed text, or a number that is repeated. The sizes at
the end of a file are what its writer claims; those before each page are what a reader goes by.
"""

import mmap
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retarget.diagnosis.tables.thrift_values import ThriftReader
from retarget.errors import InvalidInputError

END = struct.Struct("<I4s")  # the length of what the file says about itself, and its mark
BYTES_A_VALUE = 8
# Numbers of fields in Parquet's definition.
ROW_GROUPS, COLUMNS, ABOUT = 4, 1, 3
PATH, PACKED_SIZE, FIRST_PAGE, DICTIONARY_PAGE = 3, 7, 9, 11
UNPACKED_PAGE, PACKED_PAGE = 2, 3
PAGE_KINDS, VALUES = (5, 7, 8), 1


class ParquetSizes:
    """What a Parquet file says about itself, all of it read and found in order.

    Made before Polars sees the file: it takes memory for as many columns as are announced.

    Args:
        path: The file.

    Raises:
        InvalidInputError: The file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _damage_explained(path), _mapped(path) as content:
            length, _ = END.unpack(content[-END.size :])
            place = len(content) - END.size - length
            if place < 0:
                raise InvalidInputError("its description is longer than the file")
            groups = ThriftReader(content, place).structure()[ROW_GROUPS]
            self._chunks = [chunk[ABOUT] for group in groups for chunk in group[COLUMNS]]

    def loaded(self, columns: Collection[str]) -> int:
        """Bytes that the pages of these columns unpack to; a value counts eight at least."""
        names = {name.encode() for name in columns}
        with _damage_explained(self._path), _mapped(self._path) as content:
            return sum(
                size
                for chunk in self._chunks
                if chunk[PATH][0] in names
                for size in _page_sizes(content, chunk)
            )


def _page_sizes(content: mmap.mmap, chunk: dict[int, Any]) -> Iterator[int]:
    place = chunk.get(DICTIONARY_PAGE) or chunk[FIRST_PAGE]
    end = min(place + chunk[PACKED_SIZE], len(content))
    while place < end:
        reader = ThriftReader(content, place)
        page = reader.structure()
        counts = [page[kind][VALUES] for kind in PAGE_KINDS if kind in page]
        # Polars would ask for that much memory, and end the process
        if min(*counts, page[UNPACKED_PAGE], page[PACKED_PAGE]) < 0:
            raise InvalidInputError(f"the page at byte {place} announces less than nothing")
        yield max(page[UNPACKED_PAGE], BYTES_A_VALUE * max(counts, default=0))
        place = reader.place + page[PACKED_PAGE]


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    try:
        yield
    # An empty file has no map; a structure may lack a field, or hold another kind of value in it.
    except (ValueError, AttributeError, LookupError, TypeError, struct.error) as error:
        raise InvalidInputError(
            f"{path} is a Parquet file that is cut short or damaged ({error}); write or copy it "
            "again"
        ) from error
