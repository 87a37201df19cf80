"""What Polars is given to read."""

import os
from pathlib import Path


def polars_source(path: Path) -> Path | bytes:
    """The file; its content where its name is not UTF-8, which Polars takes for no name at all."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return path.read_bytes()
    return path
