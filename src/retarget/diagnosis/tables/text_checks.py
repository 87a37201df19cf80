"""Whether a file is text at all, and a table: each way in which it is not has its own sentence."""

import codecs
import csv
import io
from pathlib import Path
from typing import IO

from retarget.errors import InvalidInputError

CHUNK = 1 << 20
# Control characters beyond which a file is no text: some of them, and a share of all.
MOST_CONTROL = 10
MOST_CONTROL_SHARE = 0.02
CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f"))
# What else people save, or find, under the name .csv.
MARKS = {
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a zip archive (an Excel file or an .npz, perhaps)",
    b"\x1f\x8b": "packed with gzip (its name should end in .gz)",
    # what Polars would unpack without a limit
    b"x\x01": "packed with zlib",
    b"x\x9c": "packed with zlib",
    b"x\xda": "packed with zlib",
    b"\x28\xb5\x2f\xfd": "packed with zstd",
    b"\x93NUMPY": "a NumPy array",
    b"\xd0\xcf\x11\xe0": "an old Excel file",
    b"\x89PNG": "an image",
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"SQLite format 3": "an SQLite database",
    codecs.BOM_UTF16_LE: "text in UTF-16 (Excel's 'Unicode text')",
    codecs.BOM_UTF16_BE: "text in UTF-16",
}


def decoded(path: Path, start: bytes) -> str:
    """The start of a file as text.

    Raises:
        InvalidInputError: It is something else, not in UTF-8, or has no line ends that are known.
    """
    for mark, what in MARKS.items():
        if start.startswith(mark):
            raise InvalidInputError(
                f"{path} is {what}, not a table in text; expected UTF-8 text: save it as CSV, or "
                "give it the name that says what it is"
            )
    require_utf8(path, io.BytesIO(start), whole=False)
    control = len(start) - len(start.translate(None, CONTROL))
    if control > max(MOST_CONTROL, MOST_CONTROL_SHARE * len(start)):
        raise InvalidInputError(
            f"{path} is binary: {control:,} of its first {len(start):,} bytes are control "
            "characters; expected a table in UTF-8 text"
        )
    text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)
    if not text.strip():
        raise InvalidInputError(f"{path} is empty: it holds blanks only; expected a table")
    if "\r" in text and "\n" not in text:
        raise InvalidInputError(
            f"{path} ends its lines with a carriage return alone, as old Macs did; save it again "
            "with usual line ends"
        )
    return text


def require_utf8(path: Path, file: IO[bytes], whole: bool = True) -> None:
    """Refuses text in another encoding, naming the line.

    Args:
        path: The file's name, for the message.
        file: Its content.
        whole: Whether it ends where the text ends, so that no character may be cut.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    while True:
        chunk = file.read(CHUNK)
        try:
            decoder.decode(chunk, final=whole and not chunk)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            raise InvalidInputError(
                f"{path} is not text in UTF-8: line {line} holds the byte "
                f"0x{error.object[error.start]:02x}; save it as CSV in UTF-8 (if it is a table)"
            ) from error
        if not chunk:
            return
        line += chunk.count(b"\n")


def require_even_rows(path: Path, file: IO[bytes], separator: str, width: int) -> None:
    """Refuses rows with more or fewer cells than the header, naming the first one's line."""
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, delimiter=separator)
        try:
            for row in rows:
                if row and len(row) != width:
                    raise InvalidInputError(
                        f"{path} has {len(row)} cells in line {rows.line_num} and {width} columns "
                        "in the header; expected as many: put cells with a separator in quotes"
                    )
        except csv.Error:
            return  # a cell beyond what Python's reader takes: no table to compare with
