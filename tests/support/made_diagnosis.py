"""Diagnoses made by hand, for the report's tests: the formulas written out, on small streams."""

import math
from dataclasses import replace

import numpy as np
import polars as pl

from retarget.diagnosis.result import (
    Approximation,
    Choice,
    Diagnosis,
    Estimate,
    GroupShift,
    Score,
    Stability,
    Verdict,
)
from retarget.diagnosis.stream import Stream
from retarget.learners import SGD

NAN = math.nan
UNDEFINED = Estimate(NAN, NAN, NAN)


def classification(n: int = 300, classes: int = 4, features: int = 3) -> Diagnosis:
    """Classes that arrive one after another, each a group of its own."""
    rng = np.random.default_rng(classes)
    label = np.sort(rng.integers(classes, size=n))
    label[:classes] = np.sort(label[:classes])
    X = rng.normal(size=(n, features)) + 1.6 * rng.normal(size=(classes, features))[label]
    names = tuple(f"class {k}" for k in range(classes))
    stream = Stream(
        X=X,
        Y=np.eye(classes)[label],
        kind="classification",
        target_names=names,
        target_means=np.zeros(classes),
        target_scales=np.ones(classes),
        feature_names=tuple(f"x{k}" for k in range(features)),
        rows=np.arange(n),
        groups=np.array([names[k] for k in label]),
        group_column="label",
        notes=("Dropped the column 'id': every value is different text.",),
    )
    return diagnosed(stream, lr=0.4, gamma=0.3)


def regression(n: int = 400) -> Diagnosis:
    """Two targets in units of their own, ordered by a date, with three stations."""
    rng = np.random.default_rng(1)
    time = np.linspace(0, 1, n)
    X = np.column_stack([np.sin(7 * time), time, rng.normal(size=n)]) + rng.normal(size=(n, 3)) / 3
    Y = np.column_stack([X[:, 0] + X[:, 1] ** 2, X[:, 2] - time]) + rng.normal(size=(n, 2)) / 4
    Y = (Y - Y.mean(axis=0)) / Y.std(axis=0)
    days = np.datetime64("2024-01-01") + np.arange(n)
    stream = Stream(
        X=X,
        Y=Y,
        kind="regression",
        target_names=("temperature", "humidity"),
        target_means=np.array([21.5, 640.0]),
        target_scales=np.array([4.25, 125.0]),
        feature_names=("season", "age", "wind"),
        rows=np.arange(n)[::-1].copy(),
        groups=np.array(["north", "south", "harbour"])[rng.integers(3, size=n)],
        group_column="station",
        times=days.astype(str),
        notes=(
            "Filled 12 missing values of 'wind' with its median.",
            "Encoded 'sky' as 3 columns, one for each value.",
        ),
    )
    return diagnosed(stream, lr=0.25, gamma=0.1)


def many_groups(groups: int = 30, n: int = 600) -> Diagnosis:
    """One target, and more groups than colours."""
    made = regression(n)
    names = np.array([f"device number {k:02d}" for k in range(groups)])
    stream = replace(
        made.stream,
        Y=made.stream.Y[:, :1],
        target_names=("load",),
        target_means=np.zeros(1),
        target_scales=np.ones(1),
        groups=names[np.arange(n) * groups // n],
        group_column="device",
        times=None,
    )
    return diagnosed(stream, lr=0.25, gamma=0.1)


def one_group(n: int = 60) -> Diagnosis:
    """A stream without groups, taken as one part."""
    made = regression(n)
    stream = replace(made.stream, groups=None, group_column=None, times=None, notes=())
    return diagnosed(stream, lr=0.2, gamma=0.5)


def progressive() -> Diagnosis:
    """Every row tested before it is learned: there is no score for the exact correction."""
    made = regression(200)
    scores = tuple(
        replace(score, error=UNDEFINED) if score.learner == "corrected" else score
        for score in made.scores
    )
    return replace(
        made,
        evaluation="progressive",
        test_rows=len(made.stream),
        scores=scores,
        gap_closed={"corrected": UNDEFINED, "iterative": made.gap_closed["iterative"]},
    )


def undefined() -> Diagnosis:
    """Whatever may be missing is missing: a learner that diverged, nothing tried."""
    made = regression(80)
    effective = made.effective.copy()
    effective[60:] = np.inf
    prequential = made.prequential.copy()
    prequential[60:] = NAN
    nothing = pl.DataFrame(schema={"value": pl.Float64, "score": pl.Float64})
    diverged = Estimate(math.inf, NAN, NAN)
    size = made.groups.size.copy()
    size[0, 1] = NAN
    return replace(
        made,
        scores=tuple(
            replace(score, error=diverged) if score.learner == "online" else score
            for score in made.scores
        ),
        gap_closed={"corrected": UNDEFINED, "iterative": UNDEFINED},
        effective=effective,
        prequential=prequential,
        density=np.full(80, NAN),
        groups=replace(made.groups, size=size),
        lr=Choice(0.25, False, "given", nothing),
        gamma=Choice(0.1, False, "given", nothing),
        stability=Stability(largest_lr=0.2, non_normality=NAN),
    )


def diverged() -> Diagnosis:
    """A learner whose errors overflow from the first rows on: nothing of it is left."""
    made = regression(80)
    lost = np.full((80, 2), NAN)
    nothing = np.full_like(made.groups.size, NAN)
    return replace(
        made,
        scores=tuple(
            score if score.learner == "offline" else replace(score, error=UNDEFINED)
            for score in made.scores
        ),
        gap_closed={"corrected": UNDEFINED, "iterative": UNDEFINED},
        effective=lost,
        prequential=lost,
        changed=np.zeros(80, bool),
        groups=replace(made.groups, size=nothing, pull=nothing, own=nothing[0]),
        stability=Stability(largest_lr=0.002, non_normality=math.inf),
    )


def large(n: int = 200_000) -> Diagnosis:
    """A stream beyond the exact method's memory, in mode "features"."""
    rng = np.random.default_rng(3)
    small = many_groups(8, 400)
    near = np.sort(rng.integers(400, size=n))
    stream = replace(
        small.stream,
        X=small.stream.X[near],
        Y=small.stream.Y[near] + rng.normal(size=(n, 1)) / 20,
        rows=np.arange(n),
        groups=small.stream.groups[near],
    )
    return replace(
        small,
        stream=stream,
        mode="features",
        kernel="RBF of width 1.83 (the median distance)",
        effective=small.effective[near] + rng.normal(size=(n, 1)) / 20,
        corrected=small.corrected[near],
        iterative=small.iterative[near],
        prequential=small.prequential[near] + rng.normal(size=(n, 1)) / 20,
        density=small.density[near] + rng.normal(size=n) / 100,
        changed=small.changed[near],
        groups=replace(
            small.groups,
            counts=np.bincount(np.arange(400) * 8 // 400, np.bincount(near, minlength=400)),
        ),
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


def hostile() -> Diagnosis:
    """Every text that a user's file can hold tries to be markup, script or a template."""
    texts = (
        "<script>window.hacked=1</script>",
        "</script><script>window.hacked=2</script><!--",
        '"><img src=x onerror="window.hacked=3">',
        '<b>bold</b><a href="javascript:window.hacked=4">link</a>',
        "{{ 7 * 7 }}{% for x in y %}%{x}$x$",
    )
    made = classification(250, len(texts))
    label = made.stream.Y.argmax(axis=1)
    stream = replace(
        made.stream,
        target_names=texts,
        feature_names=texts[:3],
        groups=np.array(texts)[label],
        group_column=texts[2],
        times=np.array([texts[k % 5] + "\u202e" for k in range(250)]),
        notes=texts,
    )
    return replace(
        made,
        stream=stream,
        kernel=texts[0],
        lr=replace(made.lr, how=texts[1]),
        groups=replace(made.groups, names=texts),
        verdict=Verdict(texts[1], texts, texts),
    )


def diagnosed(stream: Stream, lr: float, gamma: float) -> Diagnosis:
    """A diagnosis of a small stream, by the formulas as they stand; its scores are made up."""
    X, Y = stream.X, stream.Y
    n = len(stream)
    K = np.exp(-((X[:, None] - X) ** 2).sum(axis=2) / 8)
    A = np.linalg.solve(np.eye(n) / lr + np.tril(K, -1), Y)
    offline = gamma * np.eye(n) + K
    effective = offline @ A
    corrected = (np.eye(n) / lr + np.tril(K, -1)) @ np.linalg.solve(offline, Y)
    kinds = stream.kind == "classification"
    changed = (
        effective.argmax(axis=1) != Y.argmax(axis=1) if kinds else (effective * Y < 0).any(axis=1)
    )
    return Diagnosis(
        stream=stream,
        test_rows=n // 4,
        evaluation="last part",
        mode="exact",
        kernel="RBF of width 2 (the median distance)",
        learner=SGD(lr=lr),
        block_size=10,
        lr=Choice(lr, True, "the best prequential error among stable rates", rates(lr)),
        gamma=Choice(gamma, True, "the best leave-one-out error of the offline learner", ridges()),
        scores=scores(kinds),
        gap_closed={
            "corrected": Estimate(1.0, 1.0, 1.0),
            "iterative": Estimate(0.731, 0.622, 0.848),
        },
        effective=effective,
        corrected=corrected,
        iterative=0.5 * (corrected + Y),
        prequential=A / lr,
        density=K.mean(axis=1),
        changed=changed,
        groups=group_shift(stream, K, A, gamma, lr),
        stability=Stability(largest_lr=2.0, non_normality=24.68),
        approximation=None,
        verdict=Verdict(
            "The online learner forgets: its error is 1.9 times that of the batch learner, and "
            "corrected targets close 73% of the gap.",
            (
                "Learning once, in this order, cost 0.173 in mean squared error.",
                f"{changed.sum()} of {n} rows have effective targets on the wrong side.",
                "The first tenth of the stream was shifted most.",
            ),
            (
                "Train on the iteratively corrected targets (corrected.parquet).",
                "If the order is yours to choose, shuffle it.",
                "Raise the rate to 0.5: it is stable up to 2.",
            ),
        ),
    )


def scores(classes: bool) -> tuple[Score, ...]:
    errors = {
        "offline": Estimate(0.1873, 0.1652, 0.2107),
        "online": Estimate(0.3604, 0.3211, 0.4018),
        "corrected": Estimate(0.1873, 0.1652, 0.2107),
        "iterative": Estimate(0.2339, 0.2085, 0.2613),
    }
    right = {"offline": 0.912, "online": 0.687, "corrected": 0.912, "iterative": 0.867}
    return tuple(
        Score(name, error, Estimate(right[name], right[name] - 0.04, right[name] + 0.03))
        if classes
        else Score(name, error, None)
        for name, error in errors.items()
    )


def rates(lr: float) -> pl.DataFrame:
    value = lr * 2.0 ** np.arange(-6, 4)
    score = 0.3 + 0.1 * np.log2(value / lr) ** 2 / 4
    return pl.DataFrame({"value": value, "score": [*score[:-1].tolist(), None]})


def ridges() -> pl.DataFrame:
    value = 10.0 ** np.arange(-4, 3)
    return pl.DataFrame({"value": value, "score": 0.2 + 0.05 * np.log10(value / 0.1) ** 2})


def group_shift(
    stream: Stream, K: np.ndarray, A: np.ndarray, gamma: float, lr: float
) -> GroupShift:
    """Row i is moved by k(x_i, x_t) A_t for each later row t, and by its own step."""
    n = len(stream)
    groups = np.full(n, "all rows") if stream.groups is None else stream.groups
    names = tuple(dict.fromkeys(groups.tolist()))
    own = (gamma + np.diag(K) - 1 / lr)[:, None] * A
    size = np.zeros((len(names), len(names)))
    pull = np.zeros_like(size)
    later = np.triu(K, 1)
    for g, learned in enumerate(names):
        moved = later[:, groups == learned] @ A[groups == learned]
        if stream.kind == "classification":
            along = (moved * stream.Y).sum(axis=1)
        else:
            along = (moved * np.sign(stream.Y)).mean(axis=1)
        for h, name in enumerate(names):
            size[h, g] = np.linalg.norm(moved[groups == name], axis=1).mean()
            pull[h, g] = along[groups == name].mean()
    return GroupShift(
        names=names,
        counts=np.array([(groups == name).sum() for name in names]),
        size=size,
        pull=pull,
        own=np.array([np.linalg.norm(own[groups == name], axis=1).mean() for name in names]),
    )
