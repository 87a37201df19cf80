"""CLINC150: requests to an assistant, 150 intents, and requests that have none of them.

S. Larson and others, "An evaluation dataset for intent classification and out-of-scope prediction",
2019 (CC BY 3.0).
"""

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retarget.errors import InvalidInputError
from retarget.lab.data.banking77 import LabeledTexts
from retarget.lab.data.fetch import CLINC150, locate

LARGEST = 16_000_000  # bytes of the unpacked file; the official one has 2.5 million
PARTS = {"train": "train", "validation": "val", "test": "test", "out_of_scope": "oos_test"}


@dataclass(frozen=True)
class Clinc150:
    """15,000 requests for training, 3,000 and 4,500 others; and 1,000 that are out of scope."""

    train: LabeledTexts
    validation: LabeledTexts
    test: LabeledTexts
    out_of_scope: LabeledTexts


def load_clinc150(folder: str | Path | None = None, *, download: bool = False) -> Clinc150:
    """Loads the full version of the data set.

    Args:
        folder: Where the file is; by default `RETARGET_DATA`, else the user's cache.
        download: Whether to download the official file first if it is missing.

    Raises:
        MissingDataError: The file is missing; the message says how to get it.
        InvalidInputError: The file is damaged.
        DownloadError: The file could not be downloaded from any mirror.
    """
    ((path,),) = locate(CLINC150, folder, download=download)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes")
        known = json.loads(content)
        return Clinc150(**{name: _sentences(known[key]) for name, key in PARTS.items()})
    except (ValueError, TypeError, KeyError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInputError(f"{path} is damaged or not CLINC150: {error!r:.80}") from error


def _sentences(pairs: Any) -> LabeledTexts:
    texts, intents = zip(*pairs, strict=True)
    if not all(isinstance(each, str) for each in (*texts, *intents)):
        raise ValueError("expected pairs of texts")
    return LabeledTexts(texts, intents)
