"""Banking77: 13,083 questions of a bank's customers, each with one of 77 intents.

I. Casanueva, T. Temcinas, D. Gerz, M. Henderson and I. Vulic, "Efficient intent detection with dual
sentence encoders", 2020 (CC BY 4.0).
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from retarget.errors import InvalidInputError
from retarget.lab.data.fetch import BANKING77, locate

HEADER = ["text", "category"]


@dataclass(frozen=True)
class LabeledTexts:
    """Texts, and the name of the intent of each."""

    texts: tuple[str, ...]
    intents: tuple[str, ...]


def load_banking77(
    folder: str | Path | None = None, *, download: bool = False
) -> tuple[LabeledTexts, LabeledTexts]:
    """Loads the official training set (10,003 questions) and test set (3,080).

    Args:
        folder: Where the files are; by default `RETARGET_DATA`, else the user's cache.
        download: Whether to download the official files first if any are missing.

    Raises:
        MissingDataError: Files are missing; the message says how to get them.
        InvalidInputError: A file is damaged.
        DownloadError: A file could not be downloaded from any mirror.
    """
    train, test = (path for (path,) in locate(BANKING77, folder, download=download))
    return read_questions(train), read_questions(test)


def read_questions(path: Path) -> LabeledTexts:
    """Reads a CSV file with the columns `text` and `category`."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file, strict=True)
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        raise InvalidInputError(f"{path} is damaged: {error}") from error
    wrong = next((row for row in rows if len(row) != len(HEADER)), None)
    if header != HEADER or wrong is not None or not rows:
        raise InvalidInputError(
            f"{path} is damaged or not Banking77: expected the columns text and category and some "
            f"rows, got {header!r:.80}" + (f" and the row {wrong!r:.80}" if wrong else "")
        )
    texts, intents = zip(*rows, strict=True)
    return LabeledTexts(texts, intents)
