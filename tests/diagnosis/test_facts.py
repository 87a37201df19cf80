"""The verdict follows from the facts, and each fact from its own interval."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.diagnosis.answers import UNKNOWN, Drift, Estimate, Forgetting
from retarget.diagnosis.facts import (
    Comparison,
    Evidence,
    Facts,
    has_forgotten,
    inverted,
    verdict_kind,
    verdict_of,
)

STANDINGS = (None, "behind", "level", "ahead", "not clear")
BEHIND, AHEAD = Estimate(0.5, 0.3, 0.7), Estimate(-0.5, -0.7, -0.2)
LEVEL, UNCLEAR = Estimate(0.01, -0.05, 0.09), Estimate(0.1, -0.3, 0.6)
NO_CURVE = pl.DataFrame()


def increase(value, low, high, knowable=UNKNOWN, known=AHEAD):
    """What was forgotten: the loss rose by so much."""
    return Forgetting(value, low, high, 100, NO_CURVE, None, known, knowable)


FORGOT, NOT_FORGOT = increase(1.0, 0.8, 1.3), increase(-0.1, -0.2, 0.05)
UNSURE = increase(0.2, -0.1, 0.5)


def comparison(excess, **changes):
    """A learner and a batch model of which both are better than a constant."""
    usual = Comparison(excess, None, constant=AHEAD, batch_constant=AHEAD, enough=True)
    return replace(usual, **changes)


def evidence(whole=BEHIND, coming=LEVEL, **changes):
    """What was measured, about rows from the whole stream and the next ones."""
    measured = {
        "forgetting": NOT_FORGOT,
        "order_cost": LEVEL,
        "one_pass_cost": LEVEL,
        "drift": None,
    }
    asked = {"whole": comparison(whole), "next": comparison(coming)}
    return Evidence(asked=asked, **(measured | changes))


def every_fact():
    """All combinations of what the facts can be."""
    flags = product([False, True], repeat=5)
    for learned, one_pass, follows, together, bad_batch in flags:
        for forgot, whole, coming in product(
            (None, "yes", "no", "not clear"), STANDINGS, STANDINGS
        ):
            yield Facts(
                learned=learned,
                forgot=forgot,
                whole=whole,
                coming=coming,
                other=None,
                one_pass=one_pass,
                follows=follows,
                together=together,
                bad_batch=bad_batch,
            )


def test_the_verdict_of_every_combination():
    """docs/diagnosis.md has the table; its first row that fits is the verdict."""
    for known in every_fact():
        standing = known.coming if known.whole is None else known.whole
        if not known.learned:
            expected = "nothing learned"
        elif known.follows and not (known.forgot == "yes" and known.together):
            expected = "follows the drift"
        elif known.forgot == "yes":
            expected = "forgotten"
        elif known.whole == "behind" and known.one_pass:
            expected = "one pass"
        elif standing == "behind":
            expected = "behind"
        elif standing in (None, "not clear"):
            expected = "not clear"
        elif known.coming == "behind":
            expected = "behind on the next rows"
        else:
            expected = "as good"
        assert verdict_of(known) == expected, known


def test_forgotten_is_never_said_without_forgetting():
    for known in every_fact():
        if verdict_of(known) == "forgotten":
            assert known.forgot == "yes"


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.051, 1e-9, 0.2, "yes"),
        (0.05, 1e-9, 0.2, "not clear"),  # clear, but too little to be called forgetting
        (0.05, 0.01, 0.0999, "no"),
        (0.3, 0.0, 0.6, "not clear"),
        (-0.2, -0.3, 0.0999, "no"),
        (-0.2, -0.5, 0.1, "not clear"),
    ],
)
def test_forgetting_at_the_edges(value, low, high, expected):
    assert has_forgotten(increase(value, low, high)) == expected


def test_no_held_out_rows_and_no_forgetting():
    assert has_forgotten(None) is None


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (evidence(forgetting=FORGOT), "forgotten"),
        (evidence(forgetting=FORGOT, one_pass_cost=BEHIND), "forgotten"),
        (evidence(one_pass_cost=BEHIND), "one pass"),
        (evidence(forgetting=UNSURE, one_pass_cost=BEHIND), "one pass"),
        (evidence(one_pass_cost=Estimate(0.04, 0.03, 0.05)), "behind"),
        (evidence(one_pass_cost=UNCLEAR), "behind"),
        (evidence(whole=LEVEL), "as good"),
        (evidence(whole=LEVEL, coming=BEHIND), "behind on the next rows"),
        (evidence(whole=UNCLEAR), "not clear"),
        (evidence(diverged=True), "diverged"),
        (evidence(undefined=True), "undefined"),
    ],
)
def test_the_verdict_of_what_was_measured(measured, expected):
    assert verdict_kind(measured) == expected


def drifts(effect=AHEAD):
    return Drift(window=100, refits=8, rows=800, effect=effect, onset=400)


def test_when_drift_is_followed():
    followed = evidence(coming=AHEAD, drift=drifts())
    assert verdict_kind(followed) == "follows the drift"
    assert verdict_kind(evidence(coming=LEVEL, drift=drifts())) == "behind"
    assert verdict_kind(evidence(coming=AHEAD, drift=drifts(UNCLEAR))) == "behind"
    poor = dict(followed.asked, next=comparison(AHEAD, constant=UNCLEAR))
    assert verdict_kind(replace(followed, asked=poor)) == "behind"


def test_a_drift_that_forgets():
    """A batch model knows old and new rows together: then following is no excuse."""
    followed = evidence(coming=AHEAD, drift=drifts(), forgetting=FORGOT)
    assert verdict_kind(followed) == "forgotten"
    unknowable = comparison(BEHIND, batch_constant=Estimate(-0.04, -0.05, -0.03))
    followed = replace(followed, asked=followed.asked | {"whole": unknowable})
    assert verdict_kind(followed) == "follows the drift"
    for knowable, expected in (
        (Estimate(-0.05, -0.2, 0.1), "forgotten"),
        (Estimate(-0.04, -0.05, -0.03), "follows the drift"),  # clear, but hardly better
    ):
        known = replace(followed, forgetting=replace(FORGOT, knowable=knowable))
        assert verdict_kind(known) == expected


def test_rows_that_contradict_each_other():
    """It is far better than a constant on rows of the whole stream, most of which are old ones."""
    whole = comparison(BEHIND, batch_constant=AHEAD)
    for next_rows, expected in ((BEHIND, "follows the drift"), (UNCLEAR, "forgotten")):
        asked = {"whole": whole, "next": comparison(AHEAD, batch_constant=next_rows)}
        followed = evidence(drift=drifts(), forgetting=replace(FORGOT, knowable=AHEAD))
        assert verdict_kind(replace(followed, asked=asked)) == expected


@pytest.mark.parametrize("share", [0.5, 0.6])
def test_labels_that_flip_are_drift(share):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(700, 2))
    flipped = np.arange(700) >= share * 700
    y = (X @ [1.0, -1.0] > 0) ^ flipped
    found = rt.diagnose(X, np.where(y, "yes", "no"))
    assert found.forgetting.low > 1  # and yet it is drift: what it has let go of is out of date
    assert found.verdict.kind == "follows the drift"
    assert "It has let go of the past" in found.verdict.headline
    assert "but on the next rows a batch model is worse than predicting" in found.verdict.headline
    assert not any("corrected targets" in text for text in found.verdict.recommendations)
    assert share * 700 < found.drift.onset < share * 700 + 100


def test_when_nothing_was_learned():
    nothing = {"constant": UNCLEAR, "batch_constant": LEVEL}
    asked = {name: comparison(LEVEL, **nothing) for name in ("whole", "next")}
    never = replace(NOT_FORGOT, known=LEVEL)
    assert verdict_kind(Evidence(never, LEVEL, LEVEL, asked, None)) == "nothing learned"
    once = replace(FORGOT, known=AHEAD)
    assert verdict_kind(Evidence(once, LEVEL, LEVEL, asked, None)) == "forgotten"
    trifle = {
        name: replace(one, constant=Estimate(-0.009, -0.01, -0.008)) for name, one in asked.items()
    }
    assert verdict_kind(Evidence(never, LEVEL, LEVEL, trifle, None)) == "nothing learned"
    few = {name: replace(one, enough=False) for name, one in asked.items()}
    assert verdict_kind(Evidence(never, LEVEL, LEVEL, few, None)) == "not clear"


def test_the_loss_decides_before_accuracy():
    """3% positives: the error is clearly larger, while the accuracy hardly differs."""
    same = Estimate(0.0, -0.01, 0.01)
    assert comparison(BEHIND, accuracy_gap=same).standing == "behind"
    assert comparison(AHEAD, accuracy_gap=same).standing == "ahead"
    assert comparison(UNCLEAR, accuracy_gap=same).standing == "not clear"
    assert comparison(UNCLEAR, accuracy_gap=Estimate(0.1, 0.05, 0.2)).standing == "behind"


def test_a_bad_batch_model_is_no_yardstick():
    bad = {"batch_constant": BEHIND}
    assert comparison(BEHIND, **bad).standing == "not clear"
    assert comparison(AHEAD, **bad).standing == "ahead"
    assert comparison(AHEAD, **bad, constant=UNCLEAR).standing == "not clear"


def test_few_rows_tell_nothing():
    assert comparison(BEHIND, enough=False).standing == "not clear"


def test_the_converse_of_an_excess():
    """From (a / b - 1) to (b / a - 1), the ends of the interval exchanged."""
    found = inverted(Estimate(0.25, -0.5, 3.0))
    assert found == pytest.approx((-0.2, -0.75, 1.0))
    assert inverted(Estimate(-1.0, -1.0, 0.0)).high == math.inf
