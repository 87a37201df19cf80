"""Real diagnoses of small streams, each computed once."""

from datetime import date, timedelta
from functools import cache

import numpy as np
import polars as pl

import retarget as rt


def weather(rows, groups):
    """Two targets in units of their own, the latest day first, and a group for each row."""
    rng = np.random.default_rng(1)
    time = np.linspace(0, 1, rows)
    X = np.column_stack([np.sin(7 * time), time, rng.normal(size=rows)])
    X += rng.normal(size=(rows, 3)) / 3
    noise = rng.normal(size=(rows, 2)) / 4
    return pl.DataFrame(
        {
            "season": X[:, 0],
            "age": X[:, 1],
            "wind": [None, *X[1:, 2]],
            "temperature": 4 * (X[:, 0] + X[:, 1] ** 2 + noise[:, 0]) + 21.5,
            "humidity": 125 * (X[:, 2] - time + noise[:, 1]) + 640,
            "day": [date(2024, 1, 1) + timedelta(days=day) for day in range(rows)],
            "station": groups,
        }
    ).reverse()


@cache
def regression(**options):
    """Ordered by a date, with three stations; 160 rows are learned, the last 40 held out."""
    drawn = np.random.default_rng(2).integers(3, size=200)
    stations = np.array(["north", "south", "harbour"])[drawn]
    asked = {
        "evaluation": "next",
        "test_share": 0.2,
        "group": "station",
        "time": "day",
        "impute": "median",
        **options,
    }
    return rt.diagnose(weather(200, stations), ["temperature", "humidity"], **asked)


@cache
def classification(names=tuple(f"class {k}" for k in range(4)), rows=300):
    """Classes that arrive one after another, each a group of its own; the test set has them all."""
    rng = np.random.default_rng(len(names))
    centers = 1.6 * rng.normal(size=(len(names), 3))
    label = np.sort(np.arange(rows) % len(names))
    test = np.arange(120) % len(names)
    X, X_test = (rng.normal(size=(len(k), 3)) + centers[k] for k in (label, test))
    groups = [names[k] for k in label]
    return rt.diagnose(X, groups, group=groups, test=(X_test, [names[k] for k in test]))
