"""A small diagnosis with known numbers, and what stands in for the computation and the report."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import polars as pl

from retarget.diagnosis.result import (
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

LEARNERS = ("offline", "online", "corrected", "iterative")


def a_stream(rows=6, kind="regression", **changes):
    rng = np.random.default_rng(1)
    Y = rng.normal(size=(rows, 2)) if kind == "regression" else np.eye(2)[np.arange(rows) % 2]
    regression = kind == "regression"
    stream = Stream(
        X=rng.normal(size=(rows, 3)),
        Y=Y,
        kind=kind,
        target_names=("price", "<b>size") if regression else ("cat", "[bold]dog"),
        target_means=np.array([10.0, -5.0]) if regression else np.zeros(2),
        target_scales=np.array([2.0, 0.5]) if regression else np.ones(2),
        feature_names=("a", "b", "c"),
        rows=np.arange(rows)[::-1].copy(),
        groups=np.array((["=1+1", ":rocket: [red]x"] * rows)[:rows], dtype=object),
        group_column="user",
        times=np.array([f"2026-01-{day + 1:02d}" for day in range(rows)], dtype=object),
        notes=("Left out, since they hold one value only: 'z'.",),
    )
    return replace(stream, **changes)


def diagnosis_of(stream, test_rows=4, evaluation="last part", learner=None):
    """A diagnosis of the right shapes; row t's shift is t in each target."""
    rows, targets = stream.Y.shape
    moved = np.arange(rows)[:, None] * np.ones(targets)
    numbers = np.arange(rows * targets, dtype=float).reshape(rows, targets)
    tried = pl.DataFrame({"value": [0.1, 1.0], "score": [0.5, None]})
    accuracy = Estimate(0.75, 0.5, 1.0) if stream.kind == "classification" else None
    names = tuple(dict.fromkeys(stream.groups)) if stream.groups is not None else ("first", "last")
    ones = np.ones((len(names), len(names)))
    return Diagnosis(
        stream=stream,
        test_rows=test_rows,
        evaluation=evaluation,
        mode="exact",
        kernel="RBF(width=1)",
        learner=learner or SGD(lr=0.25, batch_size=2),
        block_size=4,
        lr=Choice(0.25, True, "the best of two", tried),
        gamma=Choice(0.5, False, "given", tried[:0]),
        scores=tuple(
            Score(name, Estimate(k + 1.0, k + 0.5, k + 1.5), accuracy)
            for k, name in enumerate(LEARNERS)
        ),
        gap_closed={"corrected": Estimate(1.0, 0.9, 1.1), "iterative": Estimate(0.5, 0.4, np.nan)},
        effective=stream.Y + moved,
        corrected=stream.Y - numbers,
        iterative=stream.Y + 2 * numbers,
        prequential=numbers,
        density=np.linspace(0, 1, rows),
        changed=np.arange(rows) % 2 == 1,
        groups=GroupShift(names, np.ones(len(names), int), ones, -ones, ones[0]),
        stability=Stability(largest_lr=np.inf, non_normality=np.nan),
        approximation=None,
        verdict=Verdict("It forgot.", ("The gap is 1.",), ("Correct the targets.",)),
    )


class Stand:
    """In the place of the computation and the report: notes how they were called."""

    def __init__(self):
        self.stream = self.test = self.options = self.command = None
        self.report_fails = False

    def diagnose_stream(self, stream, test, options):
        self.stream, self.test, self.options = stream, test, options
        return diagnosis_of(stream, evaluation=options.evaluation_with(test))

    def write_report(self, diagnosis, path, *, command=None):
        self.command = command
        path.write_text("<!doctype html>")
        if self.report_fails:
            raise OSError("no space left on device")


def standing_in(monkeypatch):
    """Puts the stand-ins where the functions are looked up."""
    stand = Stand()
    for name, function in (
        ("pipeline", stand.diagnose_stream),
        ("report.page", stand.write_report),
    ):
        module = ModuleType(f"retarget.diagnosis.{name}")
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return stand
