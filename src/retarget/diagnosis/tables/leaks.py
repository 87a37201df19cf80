"""Features that give the target away: an online learner that is fed these learns nothing else."""

import shlex
from collections.abc import Sequence

import numpy as np
import polars as pl

from retarget.diagnosis.tables.names import listed
from retarget.diagnosis.tables.targets import TargetColumns, class_text
from retarget.errors import InvalidInputError

CERTAIN = 1 - 1e-9  # correlation of an exact affine function, but for rounding
FEWEST_ROWS = 10  # in fewer, a perfect match may be chance


def require_no_leak(
    table: pl.DataFrame,
    columns: Sequence[str],
    X: np.ndarray,
    Y: np.ndarray,
    targets: TargetColumns,
) -> None:
    """Refuses features that are the target in another form.

    Args:
        table: The rows that are learned from.
        columns: The column that each feature was made of.
        X: (n, d) features of these rows.
        Y: (n, c) their targets.
        targets: What the targets are.

    Raises:
        InvalidInputError: Some are, with their names.
    """
    if len(X) < FEWEST_ROWS:
        return
    if targets.kind == "regression":
        leaking = [
            name
            for name, feature in zip(columns, X.T, strict=True)
            if (np.abs(_correlations(feature, Y)) > CERTAIN).any()
        ]
        how = "an exact linear function of it"
    else:
        labels = class_text(table[targets.columns[0]])
        leaking = [name for name in dict.fromkeys(columns) if _names_classes(table[name], labels)]
        how = "each class has one value of its own there"
    leaking = list(dict.fromkeys(leaking))
    if leaking:
        options = " ".join(f"--drop {shlex.quote(name)}" for name in leaking)
        raise InvalidInputError(
            f"the target {listed(targets.columns)} is given away by {listed(leaking)} ({how}); "
            f"leave it out with {options if len(options) < 200 else '--drop'}, or accept that with "
            "--allow-leak"
        )


def _correlations(feature: np.ndarray, Y: np.ndarray) -> np.ndarray:
    feature, Y = feature - feature.mean(), Y - Y.mean(axis=0)
    lengths = np.linalg.norm(feature) * np.linalg.norm(Y, axis=0)
    lengths[lengths == 0] = np.inf  # what does not vary is not given away
    return np.asarray(feature @ Y / lengths)


def _names_classes(column: pl.Series, labels: pl.Series) -> bool:
    """Whether the column's values and the classes go together one to one."""
    pairs = pl.DataFrame({"value": column, "class": labels}).drop_nulls()
    values, classes = pairs["value"].n_unique(), pairs["class"].n_unique()
    return values == classes > 1 and pairs.n_unique() == classes
