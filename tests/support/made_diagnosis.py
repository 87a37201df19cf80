"""Diagnoses for the page: the arrays are those of a small stream, the scores and words invented."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl

from retarget.diagnosis.answers import (
    UNKNOWN,
    Answer,
    Baseline,
    Drift,
    Estimate,
    Forgetting,
    ModelScore,
    Score,
)
from retarget.diagnosis.result import (
    Approximation,
    ChosenValue,
    Diagnosis,
    GroupShift,
    KernelUsed,
    ModelDiagnosis,
    Stability,
    Verdict,
)
from retarget.diagnosis.stream import Stream
from support.diagnosis_options import diagnosed
from support.prepared_streams import make_stream
from support.real_diagnosis import weather

NAN = math.nan
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
    *("model_that_failed", "logged"),
)
ARRAYS = ("effective", "corrected", "iterative", "prequential", "density", "changed")


class Made(Diagnosis):
    """A diagnosis whose verdict is invented, with the user's words in it."""

    @property
    def verdict(self):
        words = self.stream.notes
        return Verdict(
            "forgotten",
            "The online model has forgotten much: its error is 80% higher than the batch model's.",
            ("On average, later rows moved a row's target by 31% of its size.", *words),
            ("Use a batch model: its error is 44% lower (40% to 48%).", *words),
        )


def estimate(value):
    return Estimate(*(float(value) * np.array([1.0, 0.9, 1.2])))


def share(value):
    return Estimate(value, max(value - 0.06, 0.0), min(value + 0.05, 1.0))


def forgetting(top=4.0):
    """The error rises to so many times what it was, and has doubled after some rows."""
    times = np.array([1.5, 2.5, top])
    ages = np.array([10.0, 40.0, 120.0])
    curve = pl.DataFrame(
        {
            "age": ages,
            "value": times - 1,
            "low": 0.8 * times - 1,
            "high": 1.3 * times - 1,
            "rows": [40, 38, 30],
        }
    )
    increase = Estimate(top - 1.5, top - 2, top - 0.5)
    return Forgetting(*increase, rows=40, curve=curve, half_life=25.0, known=estimate(-0.7))


def confusion(classes):
    """Six of ten rows of a class are right, and four are taken for the last class."""
    counts = 6 * np.eye(classes, dtype=int)
    counts[:, -1] += 4
    return tuple(tuple(row) for row in counts.tolist())


def answer_to(question, stream, worse=1.0):
    """Scores 5, 9, 5, 6 of the learners and 12.5 of the mean, times `worse`; 95% to 60% correct."""
    classes = stream.kind == "classification"
    outputs = 0 if classes else stream.Y.shape[1]
    shares = {"offline": 0.95, "online": 0.6, "corrected": 0.95, "iterative": 0.875}
    errors = {"offline": 5, "online": 9, "corrected": 5, "iterative": 6}
    if question == "progressive":
        errors["corrected"] = shares["corrected"] = NAN
    scores = tuple(
        Score(
            learner,
            question,
            estimate(worse * error),
            share(shares[learner] / worse) if classes else None,
            estimate(worse * error),
            tuple(estimate(worse * error * 10**k) for k in range(outputs)) if outputs > 1 else (),
            tuple(share((k + 1) / 100) for k in range(stream.Y.shape[1])) if classes else (),
            confusion(stream.Y.shape[1]) if classes and stream.Y.shape[1] <= 20 else (),
        )
        for learner, error in errors.items()
    )
    error, right = estimate(12.5 * worse), share(0.25) if classes else None
    rest = {"online": estimate(-0.3), "batch": estimate(-0.6)}
    baselines = [Baseline("constant", question, error, right, error, **rest)]
    if question != "test":
        last = Estimate(15.5, 15.1, 16.5)
        baselines.append(Baseline("last", question, last, right, last, **rest))
    closed = {"corrected": Estimate(1.0, 1.0, 1.0), "iterative": Estimate(0.75, 0.7, 0.8)}
    if question == "progressive":
        closed["corrected"] = UNKNOWN
    effect = {"corrected": Estimate(-0.44, -0.5, -0.4), "iterative": Estimate(-0.33, -0.4, -0.3)}
    gap = Estimate(0.35, 0.3, 0.4) if classes else None
    excess = Estimate(0.8, 0.7, 0.9)
    rows = len(stream) if question == "progressive" else 40
    return Answer(question, rows, scores, tuple(baselines), excess, gap, closed, effect)


def diagnosis_of(stream, questions=("whole", "next")):
    """What a diagnosis finds in a stream, with invented scores."""
    options = {"width": 2.0, "lr": 0.5, "gamma": 0.1, "block_size": 16, "ridge": 0.1}
    found = diagnosed(stream, evaluation="progressive", **options)
    tried = pl.DataFrame({"value": [0.1, 0.5, 1.0, 4.0], "score": [3.0, 2.0, 2.5, None]})
    invented = {
        "answers": tuple(answer_to(q, stream, 1 + k) for k, q in enumerate(questions)),
        "lr": ChosenValue(0.5, True, "smallest error on each row before it was learned", tried),
        "stability": Stability(2.0, 12.0),
    }
    if "whole" in questions:
        invented |= {
            "forgetting": forgetting(),
            "order_cost": Estimate(0.5, 0.4, 0.6),
            "one_pass_cost": Estimate(0.2, 0.1, 0.3),
        }
    return Made(**(vars(found) | invented))


def drifting(diagnosis, onset=41):
    """The same with drift from the row of this place in the stream on (counted from 1)."""
    number = int(diagnosis.stream.rows[onset - 1])
    drift = Drift(window=16, refits=8, rows=128, effect=Estimate(-0.4, -0.5, -0.3), onset=number)
    return replace(diagnosis, drift=drift)


@cache
def regression(questions=("whole", "next")):
    """Ordered by a date, the file's last row first; three stations."""
    drawn = np.random.default_rng(2).integers(3, size=160)
    table = weather(160, np.array(["north", "south", "harbour"])[drawn])
    roles = {"time": "day", "group": "station", "impute": "median"}
    return diagnosis_of(make_stream(table, ["temperature", "humidity"], **roles), questions)


@cache
def classification(names=tuple(f"class {k}" for k in range(4)), rows=300):
    """Classes that arrive one after another, each a group of its own; every tenth row held out."""
    rng = np.random.default_rng(len(names))
    label = np.sort(np.arange(rows) % len(names))
    stream = Stream(
        X=rng.normal(size=(rows, 3)) + 1.6 * rng.normal(size=(len(names), 3))[label],
        Y=np.eye(len(names))[label],
        kind="classification",
        target_names=names,
        target_means=np.zeros(len(names)),
        target_scales=np.ones(len(names)),
        feature_names=("length", "width", "weight"),
        rows=np.arange(1, 2 * rows)[np.arange(1, 2 * rows) % 10 > 0][:rows],
        groups=np.array([names[k] for k in label]),
        group_column="class",
    )
    return diagnosis_of(stream)


@cache
def many_groups(groups=30, rows=400):
    """One target, more groups than colors, many features, and a single question."""
    names = [f"device number {row * groups // rows:02d}" for row in range(rows)]
    roles = {"time": "day", "group": "station", "impute": "median", "drop": "humidity"}
    stream = make_stream(weather(rows, names), ["temperature"], **roles)
    stream = replace(stream, rows=np.arange(1, rows + 1), times=None)
    features = tuple(f"sensor {k}" for k in range(100))
    found = diagnosis_of(stream, ("whole",))
    return replace(found, stream=replace(stream, feature_names=features))


def one_group():
    real = regression()
    stream = replace(real.stream, times=None, notes=(), groups=None, group_column=None)
    kept = {name: getattr(real.groups, name)[:1] for name in ("own", "pull")}
    size = real.groups.size[:1, :1]
    return replace(
        real, stream=stream, groups=GroupShift(("all rows",), np.array([160]), size, **kept)
    )


def progressive():
    return regression(("progressive",))


def lost_scores(answer, *learners):
    """The answer without the scores of these learners."""
    none = {"error": Estimate(math.inf, NAN, NAN), "loss": UNKNOWN}
    scores = (replace(one, **none) if one.learner in learners else one for one in answer.scores)
    nothing = dict.fromkeys(("corrected", "iterative"), UNKNOWN)
    return replace(answer, scores=tuple(scores), excess=UNKNOWN, gap_closed=nothing)


def diverged():
    """The online learner's numbers overflow from the start."""
    real = regression()
    groups = replace(real.groups, **dict.fromkeys(("size", "pull"), np.full((3, 3), NAN)))
    lost = pl.lit(NAN)
    return replace(
        real,
        answers=tuple(lost_scores(one, "online", "iterative") for one in real.answers),
        effective=np.full_like(real.effective, np.inf),
        prequential=np.full_like(real.prequential, NAN),
        along=real.along.with_columns(online=lost, online_now=lost),
        groups=replace(groups, own=np.full(3, NAN)),
        stability=Stability(0.2, NAN),
        **dict.fromkeys(("forgetting", "order_cost", "one_pass_cost")),
    )


def undefined():
    """Whatever may be missing is missing: a learner that diverged late, nothing tried."""
    real = regression()
    effective = real.effective.copy()
    effective[120:] = np.inf
    size = real.groups.size.copy()
    size[0, 1] = NAN
    nothing, lost = real.lr.tried.clear(), pl.lit(NAN)
    return replace(
        real,
        answers=tuple(lost_scores(one, "online") for one in real.answers),
        effective=effective,
        along=real.along.with_columns(online=lost, batch=lost, online_now=lost),
        groups=replace(real.groups, size=size),
        lr=ChosenValue(0.25, False, "given", nothing),
        gamma=ChosenValue(0.1, False, "given", nothing),
        stability=Stability(largest_lr=0.2, non_normality=NAN),
    )


@cache
def large(rows=20_000):
    """A stream as if beyond the exact method's memory: the rows of a small one."""
    rng = np.random.default_rng(3)
    small = many_groups(8)
    near = np.sort(rng.integers(len(small.stream), size=rows))
    stream = replace(small.stream.part(near), rows=np.arange(1, rows + 1))
    along = small.along.with_columns(pl.col("first", "last") * 50)
    about = Approximation(1024, "nystroem", 960 * 10**9, 4 * 10**9, 2000, 0.0312, 0.0871, 0.0194)
    arrays = {name: getattr(small, name)[near] for name in ARRAYS}
    return replace(
        small, stream=stream, along=along, mode="features", approximation=about, **arrays
    )


def wide(diagnosis, targets):
    """The same with so many targets, all alike."""
    stream = diagnosis.stream
    told = {
        "Y": np.repeat(stream.Y, targets, axis=1),
        "target_names": tuple(f"t{k}" for k in range(targets)),
        "target_means": np.zeros(targets),
        "target_scales": np.ones(targets),
    }
    arrays = {name: np.repeat(getattr(diagnosis, name), targets, axis=1) for name in ARRAYS[:4]}
    return replace(diagnosis, stream=replace(stream, **told), **arrays)


def hostile():
    """Every text that a user's file can hold tries to be markup, script or a template."""
    real = classification(HOSTILE, 250)
    stream = replace(
        real.stream,
        feature_names=HOSTILE * 3,
        group_column=HOSTILE[2],
        times=np.array([HOSTILE[row % 5] + "\u202e" for row in range(250)]),
        notes=HOSTILE,
    )
    how = replace(real.lr, how=HOSTILE[1])
    return replace(real, stream=stream, kernel=KernelUsed(HOSTILE[0]), lr=how)


WAYS = {"as it came": 9, "random order": 7, "batch": 5, "corrected": 3}


def model_of(diagnosis, **changes):
    """What a model could have made of a diagnosis's stream."""
    stream, rng = diagnosis.stream, np.random.default_rng(0)
    before, after, end = stream.Y + rng.normal(size=(3, *stream.Y.shape)) / 2
    right = None if stream.kind == "regression" else share(0.5)
    scores = tuple(
        ModelScore(
            way,
            one.question,
            error,
            right,
            error,
            change=Estimate(value / 9 - 1, -0.7, -0.05),
            constant=Estimate(-0.5, -0.6, -0.4),
            recall=() if right is None else tuple(share(k / 10) for k in range(stream.Y.shape[1])),
            confusion=() if right is None else confusion(stream.Y.shape[1]),
        )
        for k, one in enumerate(diagnosis.answers)
        for way, value in WAYS.items()
        for error in [estimate(value * (1 + k))]
    )
    made = ModelDiagnosis(
        name="SGDRegressor",
        scores=scores,
        orders={one.question: tuple(7 + rng.normal(size=12)) for one in diagnosis.answers},
        before=before,
        after=after,
        end=end,
        groups=replace(diagnosis.groups, size=2 * diagnosis.groups.size),
        description="A linear model with an intercept: its kernel is the rows' inner product.",
        theory=(end - after) + rng.normal(size=stream.Y.shape) / 20,
        agreement=0.94,
        corrected=1.3 * stream.Y - 0.3 * end,
        corrected_size=2.8,
        closed={one.question: Estimate(0.81, 0.7, 0.9) for one in diagnosis.answers},
        prequential=estimate(8),
        remembered=estimate(11),
        forgetting=forgetting(8.0),
        order_cost=Estimate(0.3, 0.2, 0.4),
        one_pass_cost=Estimate(0.25, -0.1, 0.6),
    )
    return replace(made, **changes)


def with_model(diagnosis, **changes):
    return replace(diagnosis, model=model_of(diagnosis, **changes))


def model_regression():
    return with_model(regression())


def model_classification():
    return with_model(classification(), name="a net with a long name, " + HOSTILE[0])


def lost_model(diagnosis):
    """The parts of a model of which nothing is known."""
    lost = np.full_like(diagnosis.stream.Y, NAN)
    parts = dict.fromkeys(("after", "end"), lost) | {"closed": {}, "orders": {}}
    nothing = ("theory", "agreement", "corrected", "forgetting", "order_cost", "one_pass_cost")
    return parts | dict.fromkeys(nothing) | {"corrected_size": NAN}


def model_that_failed():
    """Nothing of the model is finite, and nothing describes it."""
    diagnosis = regression()
    scores = tuple(
        replace(one, error=UNKNOWN, loss=UNKNOWN, change=UNKNOWN)
        for one in model_of(diagnosis).scores
    )
    return with_model(
        diagnosis,
        name=HOSTILE[0],
        scores=scores,
        before=np.full_like(diagnosis.stream.Y, NAN),
        prequential=UNKNOWN,
        remembered=UNKNOWN,
        description="Nothing: " + HOSTILE[2],
        failures=HOSTILE,
        **lost_model(diagnosis),
    )


def logged():
    """A log of predictions: it has one score, on each row before it was learned."""
    diagnosis = progressive()
    score = ModelScore(
        "as it came", "progressive", estimate(8), None, estimate(8), UNKNOWN, UNKNOWN
    )
    parts = lost_model(diagnosis)
    return with_model(diagnosis, name="log", scores=(score,), remembered=UNKNOWN, **parts)
