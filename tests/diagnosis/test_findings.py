"""Each rule on made numbers at its edges, and beside it numbers where it must keep silent."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from retarget.diagnosis.answers import Answer, Baseline, Drift, Estimate, Score, TriedChange
from retarget.diagnosis.facts import compared, judged
from retarget.diagnosis.findings.yardsticks import winning_baseline
from retarget.diagnosis.result import Stability
from support.diagnosis_options import diagnosed
from support.diagnosis_streams import classes, drifting

UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def sure(value):
    return Estimate(value, value, value)


@cache
def real(kind="regression"):
    stream = drifting(200) if kind == "regression" else classes(200)
    return diagnosed(stream, lr=0.3)


def answer(question="whole", rows=100, **changes):
    """Online 1.3, batch 1, the mean 4: a clear gap, which the iterative correction closes."""
    losses = {"offline": 1.0, "online": 1.3, "corrected": 1.0, "iterative": 1.05}
    losses |= changes.pop("losses", {})
    shares = changes.pop("shares", None)
    made = {
        "scores": tuple(
            Score(name, question, sure(loss), shares and sure(shares[name]), sure(loss))
            for name, loss in losses.items()
        ),
        "baselines": (baseline("constant", question, 4.0, losses),),
        "excess": Estimate(0.3, 0.2, 0.4),
        "accuracy_gap": None,
        "gap_closed": {"corrected": sure(1.0), "iterative": Estimate(0.84, 0.71, 0.92)},
        "effect": {"corrected": sure(-0.23), "iterative": Estimate(-0.19, -0.25, -0.15)},
    }
    return Answer(question, rows, **(made | changes))


def baseline(kind, question, loss, losses=None, **changes):
    losses = losses or {"online": 1.3, "offline": 1.0}
    accuracy = changes.pop("accuracy", None)
    against = {
        name: sure(losses[learner] / loss - 1)
        for name, learner in (("online", "online"), ("batch", "offline"))
    }
    return Baseline(kind, question, sure(loss), accuracy, sure(loss), **(against | changes))


def diagnosis(*answers, kind="regression", **changes):
    """A real diagnosis with made answers, and nothing else to remark on."""
    found = real(kind)
    quiet = {
        "lr": replace(found.lr, value=0.5),
        "stability": Stability(2.0, 2.0),
        "iterative": found.stream.Y,
        "corrected": found.stream.Y,
        "iterative_ridge": None,
        "iterative_gamma": None,
        "drift": None,
        **dict.fromkeys(("forgetting", "order_cost", "one_pass_cost")),
        "failures": (),
    }
    return replace(found, answers=answers, **(quiet | changes))


def kinds(found):
    return [one.kind for one in found.findings]


LEVEL, UNCLEAR = Estimate(0.01, -0.05, 0.09), Estimate(-0.1, -0.97, 0.19)
BEHIND, AHEAD = Estimate(0.5, 0.3, 0.7), Estimate(-0.5, -0.7, -0.2)


@pytest.mark.parametrize(
    ("low", "high", "tolerance", "expected"),
    [
        (-0.1, 0.1, 0.1, "level"),
        (-0.1, 0.1001, 0.1, "not clear"),
        (-0.99, 0.19, 0.1, "not clear"),  # once "about as good"
        (0.0, 0.5, 0.1, "not clear"),
        (1e-9, 0.5, 0.1, "behind"),
        (1e-9, 0.05, 0.1, "level"),  # clear, but not worth speaking of
        (-0.5, -1e-9, 0.1, "ahead"),
        (-0.13, -0.045, 0.02, "ahead"),  # once "about as accurate"
        (-0.02, 0.02, 0.02, "level"),
        (math.nan, math.nan, 0.1, "not clear"),
    ],
)
def test_what_an_interval_says(low, high, tolerance, expected):
    assert judged(Estimate((low + high) / 2, low, high), tolerance) == expected


def test_loss_and_accuracy_of_classes():
    shares = dict.fromkeys(("offline", "online", "corrected", "iterative"), 0.5)

    def stands(gap, excess):
        one = answer(shares=shares, accuracy_gap=gap, excess=excess)
        (finding,) = (
            finding
            for finding in diagnosis(one, kind="classification").findings
            if finding.kind == "standing"
        )
        assert finding.standing == compared(one).standing
        return finding.standing

    few_points, wide = Estimate(0.01, -0.01, 0.02), Estimate(0.05, -0.04, 0.15)
    assert stands(few_points, BEHIND) == "behind"  # two points never override a clear difference
    assert stands(wide, UNCLEAR) == "not clear"
    assert stands(Estimate(0.13, 0.045, 0.2), UNCLEAR) == "behind"


def test_a_bad_batch_model_is_no_yardstick():
    losses = {"offline": 9.0, "online": 5.0}
    bad = answer(losses=losses, excess=sure(-0.44))  # "ahead" of a bad model, and bad itself
    found = diagnosis(bad, answer("next"))
    (first,) = (one for one in found.findings if one.kind == "bad batch model")
    assert (first.question, first.value, first.against) == ("whole", 9.0, 4.0)
    assert found.verdict.headline.startswith("A batch model is worse than predicting the mean")
    assert compared(bad).standing == "not clear"
    advice = diagnosis(bad).verdict.recommendations
    assert any(text.startswith("Look for a better batch model first") for text in advice)
    assert not any("corrected targets" in text for text in advice)
    assert "bad batch model" not in kinds(diagnosis(answer()))


def test_a_simple_predictor_that_wins_is_said_first():
    last = (baseline("constant", "next", 4.0), baseline("last", "next", 0.26))
    found = diagnosis(answer(), answer("next", baselines=last))
    (winner,) = (one for one in found.findings if one.kind == "baseline wins")
    assert (winner.subject, winner.value, winner.question) == ("last", 0.26, "next")
    assert found.verdict.headline.startswith("Predicting the last value is better than both")
    assert found.verdict.recommendations[0].startswith("Predict the last value instead")
    for silent in (
        baseline("last", "next", 0.95, batch=Estimate(0.05, -0.1, 0.2)),  # not clearly better
        baseline("last", "next", 1.1),  # the batch model is better
    ):
        one = answer("next", baselines=(last[0], silent))
        assert winning_baseline(one) is None
    # of classes it must be right more often, too: a sorted stream repeats the last class
    shares = dict.fromkeys(("offline", "online", "corrected", "iterative"), 0.99)
    sorted_stream = (last[0], baseline("last", "next", 0.26, accuracy=sure(1.0)))
    assert winning_baseline(answer("next", shares=shares, baselines=sorted_stream)) is None


def test_nothing_was_learned():
    flat = Estimate(-0.01, -0.05, 0.02)
    same = baseline("constant", "whole", 1.0, online=flat, batch=flat)
    found = diagnosis(answer(baselines=(same,), excess=LEVEL))
    assert "nothing learned" in kinds(found)
    assert found.verdict.headline.startswith("Nothing was learned: neither the online model nor")
    assert found.verdict.recommendations[0].startswith("Add features")
    assert "nothing learned" not in kinds(diagnosis(answer()))


def test_few_rows_and_unseen_classes():
    trial = TriedChange("order", 10, Estimate(-0.8, -0.9, -0.7))
    for few in (answer(rows=29, trials=(trial,)), answer(unseen=("e",), trials=(trial,))):
        found = diagnosis(few)
        assert {"few rows", "unseen classes"} & set(kinds(found))
        assert not any("random order" in text for text in found.verdict.recommendations)
        assert any(text.startswith("Collect more") for text in found.verdict.recommendations)
        assert (found.verdict.kind, compared(few).standing) == ("not clear", "not clear")
        assert found.verdict.headline.startswith("There are too few rows")
    half = diagnosis(answer(), answer("next", rows=3))
    assert any("only 3 rows to test on at its end (30 needed)" in text
               for text in half.verdict.recommendations)  # fmt: skip
    enough = diagnosis(answer(rows=30, trials=(trial,))).verdict.recommendations
    assert any(text.startswith("Learn the rows in random order") for text in enough)
    assert any(text.startswith("Train on iteratively corrected") for text in enough)


def test_targets_that_are_too_large_are_found():
    huge = diagnosis(answer(), iterative=1e4 * real().stream.Y)
    assert "large targets" in kinds(huge)
    advice = huge.verdict.recommendations
    assert any(text.startswith("Do not use corrected targets here") for text in advice)


def test_beside_accuracies_an_error_is_called_squared():
    """96% right of 98% is not 84% of the gap: the share is one of squared errors."""
    for kind in ("classification", "regression"):
        found = diagnosis(answer(), kind=kind).verdict
        for text in (found.headline, *found.recommendations):
            if "error" in text:
                assert ("squared error" in text) == (kind == "classification")


def test_scores_are_in_the_table_only():
    found = diagnosis(answer(), answer("next"))
    told = " ".join(found.verdict.findings)
    assert "batch model 1 (" not in told
    assert "mean squared error:" not in told


def test_a_change_that_helps_and_harms():
    gain, harm = Estimate(-0.8, -0.9, -0.7), Estimate(15.0, 11.0, 20.0)
    found = diagnosis(
        answer(
            trials=(
                TriedChange("order", 10, gain),
                TriedChange("rate", 0.1, Estimate(-0.3, -0.7, 0.1)),
            )
        ),
        answer("next", trials=(TriedChange("order", 10, harm), TriedChange("rate", 0.1, UNCLEAR))),
    )
    first = found.verdict.recommendations[0]
    assert first.startswith("If rows like the old ones come again, learn the rows in random order")
    assert "16 times as high (12 to 21)" in first
    assert not any("lr = 0.1" in text for text in found.verdict.recommendations)  # not clear
    small = TriedChange("rate", 0.1, Estimate(-0.04, -0.05, -0.03))
    found = diagnosis(answer(trials=(small,), excess=LEVEL))
    assert found.verdict.recommendations == ("Nothing needs correcting.",)


def test_drift_needs_better_recent_rows():
    def with_drift(effect):
        return diagnosis(answer(), drift=Drift(52, 9, 200, effect, onset=81))

    found = with_drift(Estimate(-0.4, -0.5, -0.3))
    assert "drift" in kinds(found)
    assert any('aim="window:52"' in text for text in found.verdict.recommendations)
    assert any("mostly from row 81 on" in text for text in found.verdict.findings)
    for effect in (Estimate(-0.4, -0.9, 0.1), Estimate(-0.02, -0.03, -0.01), BEHIND):
        assert "drift" not in kinds(with_drift(effect))


def test_a_learner_that_diverges_gets_one_advice():
    lost = diagnosis(
        answer(losses={"online": 1e9}, excess=UNKNOWN),
        lr=replace(real().lr, value=3.0, automatic=False),
    )
    assert lost.verdict.kind == "diverged"
    assert "diverges at lr = 3" in lost.verdict.headline
    (advice,) = lost.verdict.recommendations
    assert advice.startswith("Lower the rate")
    assert "stable up to lr = 2" in advice
    near = diagnosis(answer(), lr=replace(real().lr, value=1.7, automatic=False))
    assert any("85% of the largest" in text for text in near.verdict.recommendations)


def test_every_sentence_has_a_finding_and_an_interval():
    found = diagnosis(answer(), answer("next"))
    (forgot,) = (one for one in real().findings if one.kind == "forgetting")
    assert forgot.effect == real().forgetting.increase
    assert "the error late in the stream is" in " ".join(real().verdict.findings)
    for one in found.findings:
        if one.kind in ("standing", "trial", "correction", "batch"):
            assert one.question in ("whole", "next")
            assert one.standing is not None
            assert np.isfinite(one.effect).all()
