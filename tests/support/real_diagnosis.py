"""Real diagnoses of small streams, each computed once, and variants of them."""

import math
from dataclasses import replace
from datetime import date, timedelta
from functools import cache

import numpy as np
import polars as pl

import retarget as rt
from retarget.diagnosis.result import Approximation, Choice, Estimate, Stability

NAN = math.nan
UNDEFINED = Estimate(NAN, NAN, NAN)
HOSTILE = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=2</script><!--",
    '"><img src=x onerror="window.hacked=3">',
    '<b>bold</b><a href="javascript:window.hacked=4">link</a>',
    "{{ 7 * 7 }}{% for x in y %}%{x}$x$",
)


def weather(rows, groups):
    """Two targets in units of their own, the latest day first, and a group for each row."""
    rng = np.random.default_rng(1)
    time = np.linspace(0, 1, rows)
    X = np.column_stack([np.sin(7 * time), time, rng.normal(size=rows)])
    X += rng.normal(size=(rows, 3)) / 3
    noise = rng.normal(size=(rows, 2)) / 4
    wind = [None, *X[1:, 2]]
    return pl.DataFrame(
        {
            "season": X[:, 0],
            "age": X[:, 1],
            "wind": wind,
            "temperature": 4 * (X[:, 0] + X[:, 1] ** 2 + noise[:, 0]) + 21.5,
            "humidity": 125 * (X[:, 2] - time + noise[:, 1]) + 640,
            "day": [date(2024, 1, 1) + timedelta(days=day) for day in range(rows)],
            "station": groups,
        }
    ).reverse()


@cache
def regression(**options):
    """Ordered by a date, with three stations; 160 rows are learned and 40 held out."""
    stations = np.array(["north", "south", "harbour"])[
        np.random.default_rng(2).integers(3, size=200)
    ]
    targets = ["temperature", "humidity"]
    asked = {"groups": "station", "times": "day", "impute": "median", **options}
    return rt.diagnose(weather(200, stations), targets, **asked)


@cache
def classification(names=tuple(f"class {k}" for k in range(4)), rows=300):
    """Classes that arrive one after another, each a group of its own; the test set has them all."""
    rng = np.random.default_rng(len(names))
    centres = 1.6 * rng.normal(size=(len(names), 3))
    label = np.sort(np.arange(rows) % len(names))
    test = np.arange(120) % len(names)
    X, X_test = (rng.normal(size=(len(k), 3)) + centres[k] for k in (label, test))
    groups = [names[k] for k in label]
    return rt.diagnose(X, groups, groups=groups, test=(X_test, [names[k] for k in test]))


@cache
def many_groups(groups=30, rows=400):
    """One target, and more groups than colours."""
    names = [f"device number {row * groups // rows:02d}" for row in range(rows)]
    table = weather(rows, names[::-1])
    return rt.diagnose(table, "temperature", groups="station", drop=["day", "wind", "humidity"])


def one_group():
    stream = replace(regression().stream, times=None, notes=(), groups=None, group_column=None)
    diagnosis = regression()
    groups = replace(
        diagnosis.groups,
        names=("all rows",),
        counts=np.array([len(stream)]),
        **{part: getattr(diagnosis.groups, part)[:1] for part in ("own",)},
        **{part: getattr(diagnosis.groups, part)[:1, :1] for part in ("size", "pull")},
    )
    return replace(diagnosis, stream=stream, groups=groups)


def progressive():
    return regression(evaluation="progressive")


def diverged():
    """A learner whose errors overflow: nothing of it is left."""
    return regression(lr=1e4)


def undefined():
    """Whatever may be missing is missing: a learner that diverged late, nothing tried."""
    real = regression()
    effective, prequential = real.effective.copy(), real.prequential.copy()
    effective[120:], prequential[120:] = np.inf, NAN
    size = real.groups.size.copy()
    size[0, 1] = NAN
    nothing = real.lr.tried.clear()
    lost = replace(real.scores[1], error=Estimate(math.inf, NAN, NAN))
    return replace(
        real,
        scores=(real.scores[0], lost, *real.scores[2:]),
        gap_closed={"corrected": UNDEFINED, "iterative": UNDEFINED},
        effective=effective,
        prequential=prequential,
        density=np.full(len(real.stream), NAN),
        groups=replace(real.groups, size=size),
        lr=Choice(0.25, False, "given", nothing),
        gamma=Choice(0.1, False, "given", nothing),
        stability=Stability(largest_lr=0.2, non_normality=NAN),
    )


@cache
def large(rows=200_000):
    """A stream beyond the exact method's memory, in mode "features": the rows of a small one."""
    rng = np.random.default_rng(3)
    small = many_groups(8)
    near = np.sort(rng.integers(len(small.stream), size=rows))
    arrays = ("effective", "corrected", "iterative", "prequential", "density", "changed")
    stream = replace(
        small.stream,
        X=small.stream.X[near],
        Y=small.stream.Y[near] + rng.normal(size=(rows, 1)) / 20,
        rows=np.arange(rows),
        groups=small.stream.groups[near],
    )
    return replace(
        small,
        stream=stream,
        mode="features",
        **{name: getattr(small, name)[near] for name in arrays},
        approximation=Approximation(
            features=1024,
            kind="nystroem",
            exact_memory=960_000_000_000,
            memory_limit=4_000_000_000,
            sample=2000,
            kernel_error=0.0312,
            shift_error=0.0871,
            prediction_error=0.0194,
        ),
    )


def hostile():
    """Every text that a user's file can hold tries to be markup, script or a template."""
    real = classification(HOSTILE, 250)
    times = np.array([HOSTILE[row % 5] + "\u202e" for row in range(250)])
    stream = replace(
        real.stream,
        feature_names=HOSTILE[:3],
        group_column=HOSTILE[2],
        times=times,
        notes=HOSTILE,
    )
    how = replace(real.lr, how=HOSTILE[1])
    return replace(real, stream=stream, kernel=HOSTILE[0], lr=how, failures=HOSTILE)
