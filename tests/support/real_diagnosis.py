"""Real diagnoses of small streams, each computed once, and variants of them.

What the diagnoses with a model say of it is invented.
"""

import math
from dataclasses import replace
from datetime import date, timedelta
from functools import cache

import numpy as np
import polars as pl

import retarget as rt
from retarget.diagnosis.result import (
    Approximation,
    Baseline,
    Choice,
    Estimate,
    ModelDiagnosis,
    ModelScore,
    Stability,
)

NAN = math.nan
UNDEFINED = Estimate(NAN, NAN, NAN)
HOSTILE = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=2</script><!--",
    '"><img src=x onerror="window.hacked=3">',
    '<b>bold</b><a href="javascript:window.hacked=4">link</a>',
    "{{ 7 * 7 }}{% for x in y %}%{x}$x$",
)
# The diagnoses of this file of which a page is made.
PAGES = (
    *("classification", "regression", "many_groups", "one_group", "progressive", "undefined"),
    *("diverged", "large", "hostile", "model_regression", "model_classification"),
    "model_that_failed",
)
ARRAYS = ("effective", "corrected", "iterative", "prequential", "density", "changed")


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
    """Ordered by a date, with three stations; 160 rows are learned and 40 held out."""
    drawn = np.random.default_rng(2).integers(3, size=200)
    stations = np.array(["north", "south", "harbour"])[drawn]
    asked = {"groups": "station", "times": "day", "impute": "median", **options}
    return rt.diagnose(weather(200, stations), ["temperature", "humidity"], **asked)


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
    real = regression()
    stream = replace(real.stream, times=None, notes=(), groups=None, group_column=None)
    groups = replace(
        real.groups,
        names=("all rows",),
        counts=np.array([len(stream)]),
        own=real.groups.own[:1],
        size=real.groups.size[:1, :1],
        pull=real.groups.pull[:1, :1],
    )
    return replace(real, stream=stream, groups=groups)


def progressive():
    return regression(evaluation="progressive")


def diverged():
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
def large(rows=20_000):
    """A stream as if beyond the exact method's memory: the rows of a small one."""
    rng = np.random.default_rng(3)
    small = many_groups(8)
    near = np.sort(rng.integers(len(small.stream), size=rows))
    stream = replace(
        small.stream,
        X=small.stream.X[near],
        Y=small.stream.Y[near] + rng.normal(size=(rows, 1)) / 20,
        rows=np.arange(1, rows + 1),
        groups=small.stream.groups[near],
    )
    about = Approximation(1024, "nystroem", 960 * 10**9, 4 * 10**9, 2000, 0.0312, 0.0871, 0.0194)
    arrays = {name: getattr(small, name)[near] for name in ARRAYS}
    return replace(small, stream=stream, mode="features", approximation=about, **arrays)


def hostile():
    """Every text that a user's file can hold tries to be markup, script or a template."""
    real = classification(HOSTILE, 250)
    stream = replace(
        real.stream,
        feature_names=HOSTILE[:3],
        group_column=HOSTILE[2],
        times=np.array([HOSTILE[row % 5] + "\u202e" for row in range(250)]),
        notes=HOSTILE,
    )
    how = replace(real.lr, how=HOSTILE[1])
    return replace(real, stream=stream, kernel=HOSTILE[0], lr=how, failures=HOSTILE)


def estimate(value):
    return Estimate(*(float(value) * np.array([1.0, 0.9, 1.2])))


def model_of(diagnosis, **changes):
    """What a model could have made of a diagnosis's stream."""
    stream, rng = diagnosis.stream, np.random.default_rng(0)
    before, after, end = stream.Y + rng.normal(size=(3, *stream.Y.shape)) / 2
    errors = {"as it came": 9, "random order": 7, "batch": 5, "corrected": 3}
    share = None if stream.kind == "regression" else estimate(0.5)
    made = ModelDiagnosis(
        name="SGDRegressor",
        scores=tuple(ModelScore(way, estimate(error), share) for way, error in errors.items()),
        order=Estimate(-0.22, -0.3, -0.15),
        orders=tuple(7 + rng.normal(size=12)),
        before=before,
        after=after,
        end=end,
        groups=diagnosis.groups,
        description="A linear model with an intercept: its kernel is the rows' inner product.",
        theory=(end - after) + rng.normal(size=stream.Y.shape) / 20,
        agreement=0.94,
        corrected=1.3 * stream.Y - 0.3 * end,
        corrected_size=2.8,
        closed=Estimate(0.81, 0.7, 0.9),
        prequential=estimate(8),
        remembered=estimate(11),
    )
    return replace(made, **changes)


def with_model(diagnosis, **changes):
    """The diagnosis of a stream with a model, baselines, and errors by target if several."""
    classes = diagnosis.stream.kind == "classification"
    share = estimate(0.25) if classes else None
    first = "the most frequent class" if classes else "the mean"
    baselines = (
        Baseline(first, estimate(12.5), share),
        Baseline("the last value", UNDEFINED, share),
    )
    outputs = 0 if classes else diagnosis.stream.Y.shape[1]
    own = tuple(estimate(10.0**k) for k in range(outputs)) if outputs > 1 else ()
    scores = tuple(replace(score, by_target=own) for score in diagnosis.scores)
    model = model_of(diagnosis, **changes)
    return replace(diagnosis, model=model, baselines=baselines, scores=scores)


def model_regression():
    return with_model(regression())


def model_classification():
    return with_model(classification(), name="a net with a long name, " + HOSTILE[0])


def model_that_failed():
    """Nothing of the model is finite, and nothing describes it."""
    diagnosis = regression()
    lost = np.full_like(diagnosis.stream.Y, np.nan)
    ways = (score.way for score in model_of(diagnosis).scores)
    unknown = ("order", "closed", "prequential", "remembered")
    return with_model(
        diagnosis,
        name=HOSTILE[0],
        scores=tuple(ModelScore(way, UNDEFINED, None) for way in ways),
        orders=(),
        **dict.fromkeys(unknown, UNDEFINED),
        **dict.fromkeys(("before", "after", "end"), lost),
        **dict.fromkeys(("theory", "agreement", "corrected")),
        corrected_size=np.nan,
        description="Nothing: " + HOSTILE[2],
        failures=HOSTILE,
    )
