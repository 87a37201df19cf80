"""How large the columns of a Parquet file become, from what their pages say, before any is read.

A page of some bytes can hold a gigabyte: packed text, or a number that is repeated. The sizes at
the end of a file are what its writer claims; those before each page are what a reader goes by.
"""

import mmap
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from retarget.diagnosis.thrift_values import ThriftReader
from retarget.errors import InvalidInputError

END = struct.Struct("<I4s")  # the length of what the file says about itself, and its mark
BYTES_A_VALUE = 8
# Numbers of fields in Parquet's definition.
ROW_GROUPS, COLUMNS, ABOUT = 4, 1, 3
PATH, PACKED_SIZE, FIRST_PAGE, DICTIONARY_PAGE = 3, 7, 9, 11
UNPACKED_PAGE, PACKED_PAGE = 2, 3
PAGE_KINDS, VALUES = (5, 7, 8), 1


def loaded_size(path: Path, columns: Collection[str]) -> int:
    """Bytes that the pages of these columns unpack to; a value counts eight at least.

    Raises:
        InvalidInputError: The file is damaged.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return sum(_page_sizes(content, {name.encode() for name in columns}))
    # An empty file has no map; a structure may lack a field, or hold another kind of value in it.
    except (ValueError, AttributeError, LookupError, TypeError, struct.error) as error:
        raise InvalidInputError(
            f"{path} is a Parquet file that is cut short or damaged ({error}); write or copy it "
            "again"
        ) from error


def _page_sizes(content: mmap.mmap, columns: Collection[bytes]) -> Iterator[int]:
    length, _ = END.unpack(content[-END.size :])
    about = ThriftReader(content, max(len(content) - END.size - length, 0)).structure()
    for group in about[ROW_GROUPS]:
        for chunk in group[COLUMNS]:
            if chunk[ABOUT][PATH][0] in columns:
                yield from _pages_of(content, chunk[ABOUT])


def _pages_of(content: mmap.mmap, chunk: dict[int, Any]) -> Iterator[int]:
    place = chunk.get(DICTIONARY_PAGE) or chunk[FIRST_PAGE]
    end = min(place + chunk[PACKED_SIZE], len(content))
    while place < end:
        reader = ThriftReader(content, place)
        page = reader.structure()
        values = max((page[kind][VALUES] for kind in PAGE_KINDS if kind in page), default=0)
        yield max(page[UNPACKED_PAGE], BYTES_A_VALUE * values, 0)
        place = reader.place + max(page[PACKED_PAGE], 0)
