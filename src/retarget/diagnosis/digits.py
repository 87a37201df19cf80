"""The embedded digits as tables: what there is to diagnose when there is no file."""

import numpy as np
import polars as pl

from retarget.data.digits import digits_stream
from retarget.diagnosis.tables.roles import Roles

# Pixels are numbers between 0 and 1 already; most of them vary little, which scaling would undo.
DIGITS_ROLES = Roles(target=("digit",), group="digit", standardise=False)


def digits_tables(seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A stream of handwritten digits, class by class, and a test set.

    Example:
        >>> stream, test = digits_tables(seed=0)
        >>> len(stream), len(test), stream["digit"][0], stream["digit"][-1]
        (1348, 449, '0', '9')
    """
    digits = digits_stream(seed)
    return (
        _table(digits.x_train, digits.labels_train),
        _table(digits.x_test, digits.labels_test),
    )


def _table(images: np.ndarray, labels: np.ndarray) -> pl.DataFrame:
    pixels = {f"pixel{number}": column for number, column in enumerate(images.T)}
    return pl.DataFrame({**pixels, "digit": [str(label) for label in labels]})
