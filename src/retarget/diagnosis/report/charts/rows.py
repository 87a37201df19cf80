"""Which rows of a stream are drawn, and the means along it, for streams of any length."""

import math

import numpy as np

from retarget.diagnosis.result import Diagnosis

POINTS = 4000  # drawn in a chart, at most about; a browser stays quick with 5,000
FEWEST = 20  # of each group, however small its share


def group_of_row(diagnosis: Diagnosis) -> np.ndarray:
    """(n,) the place of each row's group in `diagnosis.groups.names`.

    These are the stream's own groups (if they are many, the last place is for those without one
    of their own), or its consecutive parts.
    """
    names, groups = diagnosis.groups.names, diagnosis.stream.groups
    if groups is None:
        return np.repeat(np.arange(len(names)), diagnosis.groups.counts.astype(int))
    found, which = np.unique(groups.astype(str), return_inverse=True)
    places = {name: place for place, name in enumerate(names)}
    return np.array([places.get(str(name), len(names) - 1) for name in found])[which]


def drawn_rows(groups: np.ndarray, keep: np.ndarray, limit: int = POINTS) -> np.ndarray:
    """The rows to draw, in order: all, or `limit` of them and those to `keep`.

    One row is drawn at random (always the same) out of each stretch of its group: evenly
    spaced rows would miss whatever comes in a rhythm.
    """
    n = len(groups)
    if n <= limit:
        return np.arange(n)
    rng = np.random.default_rng(0)
    chosen = [keep]
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        wanted = min(len(rows), max(math.ceil(limit * len(rows) / n), FEWEST))
        edges = np.linspace(0, len(rows), wanted + 1)
        chosen.append(rows[(edges[:-1] + rng.random(wanted) * np.diff(edges)).astype(int)])
    return np.unique(np.concatenate(chosen))


def most_shifted(diagnosis: Diagnosis, rows: int = 10) -> np.ndarray:
    """The rows whose targets moved farthest, the farthest first."""
    size = np.where(np.isnan(diagnosis.shift_size), np.inf, diagnosis.shift_size)
    return np.argsort(-size, kind="stable")[:rows]


def running_mean(values: np.ndarray, places: int = 300) -> tuple[np.ndarray, np.ndarray, int]:
    """The mean over a window of a 40th of the rows, at `places` places along the stream.

    Returns:
        Where (counted from 1), the means over the rows whose value is finite, and the window.
    """
    n = len(values)
    window = min(n, max(5, math.ceil(n / 40)))
    finite = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    number = np.concatenate([[0], np.cumsum(finite)])
    middle = np.unique(np.linspace(0, n - 1, min(places, n)).round().astype(int))
    low = np.clip(middle - window // 2, 0, n - window)
    seen = number[low + window] - number[low]
    means = (total[low + window] - total[low]) / np.where(seen > 0, seen, np.nan)
    return middle + 1, means, window


def mean_by_tenth(order: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means of both over tenths of the rows (fewer for few rows), by rising `order`."""
    both = np.isfinite(order) & np.isfinite(values)
    order, values = order[both], values[both]
    if not len(order):
        return np.empty(0), np.empty(0)
    rows = np.argsort(order, kind="stable")
    tenths = np.array_split(rows, min(10, max(len(rows) // 5, 1)))
    return (
        np.array([order[tenth].mean() for tenth in tenths]),
        np.array([values[tenth].mean() for tenth in tenths]),
    )
