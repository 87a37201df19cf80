"""Odd streams: whatever they hold, a diagnosis or the project's own error, and numbers that fit."""

import json
import math
import warnings
from typing import get_args

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.diagnosis.answers import Estimate
from retarget.diagnosis.result import VerdictKind
from support.user_models import OneByOne


def numbers(rows=60, features=3, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features))
    return X, np.sin(2 * X[:, 0]) + X[:, -1] + noise * rng.normal(size=rows)


def labels(rows=60, shares=(0.5, 0.3, 0.2), seed=0):
    rng = np.random.default_rng(seed)
    names = np.array(list("abcdefgh"))[: len(shares)]
    drawn = rng.choice(len(shares), size=rows, p=shares)
    drawn[: len(shares)] = np.arange(len(shares))
    return rng.normal(size=(rows, 3)) + drawn[:, None], names[drawn]


def sorted_by(X, Y, key):
    order = np.argsort(key, kind="stable")
    return X[order], Y[order]


def persons(rows, count):
    return np.array([f"p{k % count}" for k in range(rows)])


def log(rows=80):
    X, y = numbers(rows)
    said = np.append(0.0, y[:-1])
    return (X, y), {"model": {"before": said, "after": 0.9 * y}}


def several(rows=90):
    X, y = numbers(rows)
    return X, np.column_stack([y, 1e4 * X[:, 0] ** 2, np.sign(X[:, 1]) * 1e-3])


def with_group(rows, count, **more):
    return numbers(rows), {"group": persons(rows, count)} | more


X60, Y60 = numbers()
REFUSED = {  # nothing can be learned, or held out; all else is diagnosed
    *("1 rows", "2 rows", "3 rows", "4 rows of classes", "5 rows of classes"),
    *("progressive, 3 rows of classes", "as many classes as rows", "one class"),
    *("a constant target", "a target that is constant until late", "two classes of one row each"),
    *("a target that is constant but for the last row", "a constant feature"),
    "the same row again and again",
}
STREAMS = {
    **{f"{rows} rows": (numbers(rows), {}) for rows in (1, 2, 3, 4, 5, 6, 7, 10, 11, 23, 40, 200)},
    **{f"{rows} rows of classes": (labels(rows), {}) for rows in (4, 5, 8, 12, 30, 150)},
    "progressive, 2 rows": (numbers(2), {"evaluation": "progressive"}),
    "progressive, 3 rows of classes": (labels(3), {"evaluation": "progressive"}),
    "progressive": (numbers(90), {"evaluation": "progressive"}),
    "progressive classes": (labels(90), {"evaluation": "progressive", "aim": "window:20"}),
    "whole": (numbers(70), {"evaluation": "whole"}),
    "next": (numbers(70), {"evaluation": "next"}),
    "next, classes": (sorted_by(*labels(70), labels(70)[1]), {"evaluation": "next"}),
    "a constant target": ((X60, np.ones(60)), {}),
    "a target that is constant but for one row": ((X60, np.eye(60)[0]), {}),
    "a target that is constant but for the last row": ((X60, np.eye(60)[-1]), {}),
    "a target that is constant until late": ((X60, (np.arange(60) > 50) * Y60), {}),
    "a constant feature": ((np.ones((60, 1)), Y60), {}),
    "a class of one row": (labels(90, (0.99, 0.01)), {}),
    "two classes of one row each": ((labels(90)[0], np.array(["a"] * 88 + ["b", "c"])), {}),
    "one class": ((X60, np.array(["a"] * 60)), {}),
    "a class that comes at the end": ((X60, np.array(["a"] * 55 + ["b"] * 5)), {}),
    "as many classes as rows": ((X60, np.array([f"c{k}" for k in range(60)])), {}),
    "sorted by class": (sorted_by(*labels(120), labels(120)[1]), {}),
    "classes, log-loss": (labels(120), {"metric": "log-loss"}),
    "classes, balanced": (labels(120, (0.9, 0.05, 0.05)), {"metric": "balanced-accuracy"}),
    "classes, accuracy": (labels(60, (0.97, 0.03)), {"metric": "accuracy"}),
    "classes in no order, all right": (
        (np.repeat(np.eye(2) * 50, 40, axis=0), np.repeat(["a", "b"], 40)),
        {"metric": "accuracy", "allow_leak": True},
    ),
    "the same row again and again": ((np.tile(X60[:1], (60, 1)), Y60), {}),
    "rows in pairs": ((np.repeat(X60, 2, axis=0), np.repeat(Y60, 2)), {}),
    "whole stream twice": ((np.tile(X60, (2, 1)), np.tile(Y60, 2)), {}),
    "no noise": ((X60, X60[:, 0] ** 2), {"kernel": "linear"}),
    "an exact line": ((X60, X60 @ [1.0, 2.0, 3.0]), {"kernel": "linear"}),
    "huge": ((1e9 * X60, 1e100 * Y60), {}),
    "tiny": ((1e-12 * X60, 1e-100 * Y60), {}),
    "huge, not standardized": ((1e6 * X60, 1e6 * Y60), {"standardize": False}),
    "an outlier": ((X60, np.where(np.arange(60) == 30, 1e8, Y60)), {}),
    "an outlier at the end": ((X60, np.where(np.arange(60) == 59, 1e8, Y60)), {}),
    "outlying features": ((np.where(X60 > 2, 1e7, X60), Y60), {"kernel": "linear"}),
    "heavy tails": ((X60, np.tan(1.57 * np.sin(99 * Y60))), {}),
    "more columns than rows": (numbers(40, 90), {}),
    "one column": (numbers(50, 1), {"kernel": "linear"}),
    "groups": (*with_group(80, 8, hold_out="group"),),
    "groups of one row": (*with_group(70, 70, hold_out="group"),),
    "four groups": (*with_group(60, 4, hold_out="group"),),
    "five groups, asked about as a whole": (
        *with_group(60, 5, hold_out="group", evaluation="whole"),
    ),
    "one group is nearly all": (
        numbers(80),
        {"group": np.array(["big"] * 72 + list("abcdefgh")), "hold_out": "group"},
    ),
    "groups of classes": ((labels(90)), {"group": persons(90, 9), "hold_out": "group"}),
    "the group is the class": (labels(90), {"group": labels(90)[1], "hold_out": "rows"}),
    "ties in time": (numbers(80), {"time": np.arange(80) // 9}),
    "time backwards": (numbers(80), {"time": -np.arange(80)}),
    "lags": (numbers(80), {"lags": 2}),
    "lags by group": (*with_group(90, 3, lags=1),),
    "a window": (numbers(90), {"aim": "window:50"}),
    "a window longer than the stream": (numbers(60), {"aim": "window:5000"}),
    "a discount": (labels(90), {"aim": "discount:0.9"}),
    "several targets": (several(), {}),
    "several targets, absolute": (several(), {"metric": "absolute"}),
    "features": (numbers(150), {"features": 16}),
    "two features": (labels(150), {"features": 2}),
    "little memory": (numbers(300), {"max_memory": "1MB"}),
    "a learner that diverges": (numbers(80), {"lr": 50.0, "kernel": "linear"}),
    "a learner that nearly diverges": (numbers(80), {"lr": 1.99}),
    "a learner that overflows": (numbers(400), {"lr": 1e6, "kernel": "linear"}),
    "classes and a learner that diverges": (labels(80), {"lr": 50.0, "kernel": "linear"}),
    "a learner that learns nothing": (numbers(80), {"lr": 1e-12}),
    "mini-batches": (
        numbers(80),
        {"learner": rt.SGD(0.1, batch_size=7, momentum=0.5, weight_decay=0.01, reduction="sum")},
    ),
    "a mini-batch longer than the stream": (
        numbers(50),
        {"learner": rt.SGD(0.1, batch_size=64, reduction="mean")},
    ),
    "a test set": (numbers(60), {"test": numbers(30, seed=1)}),
    "a test set of one row": (numbers(60), {"test": numbers(1, seed=1)}),
    "a log of predictions": log(),
    "a model": (numbers(60), {"model": OneByOne(0.01)}),
    "a model that diverges": (numbers(60), {"model": OneByOne(9.0)}),
    "a model on four rows": (numbers(4), {"model": OneByOne(0.01)}),
    "no ridge to speak of": (numbers(60), {"gamma": 1e-12}),
    "a huge ridge": (numbers(60), {"gamma": 1e12}),
    "blocks of one row": (numbers(60), {"block_size": 1, "ridge": 0.0}),
    "one block": (numbers(60), {"block_size": 60}),
    "a tiny share": (numbers(90), {"test_share": 0.001}),
    "a large share": (numbers(90), {"test_share": 0.4}),
    "a large share of few": (labels(9), {"test_share": 0.4}),
}


def estimates(part, where="diagnosis"):
    """Yields every number with an interval in a nested result, and where it is."""
    if isinstance(part, Estimate):
        yield where, part
    elif isinstance(part, dict):
        for name, value in part.items():
            yield from estimates(value, f"{where}[{name!r}]")
    elif isinstance(part, list | tuple):
        names = getattr(part, "_fields", range(len(part)))
        for name, value in zip(names, part, strict=True):
            yield from estimates(value, f"{where}[{name}]")
    elif hasattr(part, "__dataclass_fields__"):
        for name in part.__dataclass_fields__:
            yield from estimates(getattr(part, name), f"{where}.{name}")


def check_intervals(found):
    for where, one in estimates(found):
        if math.isnan(one.value):
            assert math.isnan(one.low), (where, one)
            assert math.isnan(one.high), (where, one)
        else:
            slack = 1e-9 * abs(one.value) if math.isfinite(one.value) else 0.0
            assert one.low <= one.value + slack, (where, one)
            assert one.value - slack <= one.high, (where, one)


def check_forgetting(found):
    forgetting = found.forgetting
    if forgetting is None:
        return
    assert forgetting.low <= forgetting.value <= forgetting.high
    assert forgetting.rows >= 10
    curve = forgetting.curve
    assert curve["age"].is_sorted()
    assert (curve["low"] <= curve["value"]).all()
    assert (curve["value"] <= curve["high"]).all()
    assert curve["value"].is_finite().all()
    assert forgetting.half_life is None or forgetting.half_life > 0


@pytest.mark.parametrize("name", STREAMS)
def test_an_odd_stream(name, tmp_path):
    (X, Y), options = STREAMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = rt.diagnose(X, Y, **options)
        except rt.RetargetError as error:
            assert name in REFUSED, error
            assert len(str(error)) > 30
            return
        assert name not in REFUSED
        verdict = found.verdict
        assert verdict.kind in get_args(VerdictKind)
        assert verdict.headline
        assert verdict.headline[-1] in ".)"
        texts = (verdict.headline, *verdict.findings, *verdict.recommendations)
        assert not any("nan" in text.split() for text in texts)
        check_intervals(found)
        check_forgetting(found)
        for one in (found.forgetting, found.model and found.model.forgetting):
            assert one is None or math.isfinite(one.value)
        found.to_json(tmp_path / "d.json")
        told = json.loads((tmp_path / "d.json").read_text(), parse_constant=pytest.fail)
        assert told["verdict"]["kind"] == verdict.kind
        assert isinstance(found.table(), pl.DataFrame)
        assert isinstance(found.numbers(), dict)
