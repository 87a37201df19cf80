"""Headline and advice do not contradict each other, whatever was measured."""

import math
from dataclasses import replace
from functools import cache
from itertools import product
from typing import get_args

import polars as pl
import pytest

from retarget.diagnosis.answers import (
    UNKNOWN,
    AlternativeModel,
    Answer,
    Baseline,
    Drift,
    Estimate,
    Forgetting,
    Score,
    TriedChange,
)
from retarget.diagnosis.facts import evidence, facts, verdict_kind
from retarget.diagnosis.findings import advised
from retarget.diagnosis.report.headline import Headline, rows_needed
from retarget.diagnosis.result import Stability, VerdictKind
from support.diagnosis_options import diagnosed
from support.diagnosis_streams import drifting
from support.made_diagnosis import model_of

GAIN, HARM = Estimate(-0.4, -0.5, -0.3), Estimate(0.5, 0.3, 0.7)
UNCLEAR, LEVEL = Estimate(0.1, -0.3, 0.6), Estimate(0.01, -0.05, 0.09)
CURVE = pl.DataFrame({"age": [10.0], "value": [2.0]})
FORGETTING = {
    "yes": Forgetting(1.0, 0.8, 1.3, 100, CURVE, 5.0, GAIN),
    "no": Forgetting(-0.1, -0.2, 0.05, 100, CURVE, None, GAIN),
    "not clear": Forgetting(0.2, -0.1, 0.5, 100, CURVE, None, GAIN),
}
CORRECTS = ("correct", "do not correct")
CONDITIONS = ("If rows like the old ones come again, ", "If only the next rows matter to you, ")


def answer(question, excess, correction, constant=GAIN, batch_constant=GAIN, change=UNCLEAR):
    """How the learners do on one set of rows: the gaps are given, the scores are of no account."""
    one = Estimate(1.0, 0.9, 1.1)
    names = ("offline", "online", "corrected", "iterative")
    simple = Baseline("constant", question, one, None, one, constant, batch_constant)
    return Answer(
        question=question,
        rows=100,
        scores=tuple(Score(name, question, one, None, one) for name in names),
        baselines=(simple,),
        excess=excess,
        accuracy_gap=None,
        gap_closed=dict.fromkeys(("corrected", "iterative"), UNKNOWN),
        effect={"corrected": UNKNOWN, "iterative": correction},
        trials=(TriedChange("order", 4, change),),
    )


@cache
def real():
    found = diagnosed(drifting(120), lr=0.3)
    return replace(
        found,
        lr=replace(found.lr, value=0.5),
        stability=Stability(2.0, 2.0),
        iterative=found.stream.Y,
        corrected=found.stream.Y,
        iterative_ridge=None,
        iterative_gamma=None,
        failures=(),
    )


def measured(
    whole=HARM,
    coming=LEVEL,
    corrections=(GAIN, LEVEL),
    forgot="no",
    costs=(LEVEL, LEVEL),
    drift=False,
    **others,
):
    """A diagnosis of which the facts are given."""
    both = zip(("whole", "next"), (whole, coming), corrections, strict=True)
    drifts = Drift(100, 8, 800, GAIN if drift else UNCLEAR, 40)
    return replace(
        real(),
        answers=tuple(answer(question, *facts, **others) for question, *facts in both),
        forgetting=FORGETTING[forgot],
        order_cost=costs[0],
        one_pass_cost=costs[1],
        drift=drifts,
    )


def every_diagnosis():
    """All combinations of what the facts and the effects of a correction can be."""
    cases = product(
        (HARM, LEVEL, UNCLEAR),
        (HARM, LEVEL, GAIN),
        [(GAIN, GAIN), (GAIN, HARM), (HARM, GAIN), (HARM, HARM), (UNCLEAR, UNCLEAR)],
        FORGETTING,
        [(LEVEL, LEVEL), (LEVEL, HARM), (HARM, HARM)],
        (False, True),
    )
    yield from (measured(*case) for case in cases)
    for case in product((HARM, LEVEL), (HARM, GAIN), [(GAIN, HARM)], FORGETTING):
        yield measured(*case, batch_constant=HARM)
        yield measured(*case, change=GAIN)
        nothing = measured(*case, constant=UNCLEAR, batch_constant=UNCLEAR)
        yield replace(nothing, forgetting=replace(nothing.forgetting, known=LEVEL))


def texts(diagnosis, *kinds):
    return [piece.text for piece in advised(diagnosis) if piece.kind in kinds]


def check_advice(kind, known, advice):
    """Nothing contradicts the verdict, or another piece of advice; something is always said."""
    assert advice
    assert not set(CORRECTS) <= advice
    assert not {"leave", "nothing"} <= advice
    if {"change", "correct", "batch"} & advice:
        assert not {"leave", "nothing"} & advice
    if kind == "nothing learned" or known.bad_batch:
        assert not {"correct", "do not correct", "batch"} & advice
    if kind == "nothing learned":
        assert "change" not in advice
    if kind == "as good":
        assert not {"correct", "do not correct", "leave"} & advice


def check_headline(headline, kind, known):
    """It claims what the facts say, and nothing else."""
    if "has forgotten nothing" in headline:
        assert known.forgot == "no"
    elif "has forgotten:" in headline or "has forgotten, and" in headline:
        assert (known.forgot, kind) == ("yes", "forgotten")
    if "one pass is not enough" in headline:
        assert known.one_pass
        assert known.whole == "behind"
    follows = known.follows and kind != "nothing learned"
    assert ("follows" in headline) == follows
    assert ("as good as" in headline) == (kind == "as good")
    assert ("at least as good" in headline) == (kind == "as good" and known.coming == "ahead")
    assert ("Nothing was learned" in headline) == (kind == "nothing learned")
    if "It is not clear whether" in headline:
        assert "not clear" in (kind, known.forgot)


def test_no_combination_of_facts_contradicts_itself():
    seen = set()
    for diagnosis in every_diagnosis():
        shown = evidence(diagnosis)
        kind = verdict_kind(shown)
        known = facts(shown)
        seen |= {kind}
        check_advice(kind, known, {piece.kind for piece in advised(diagnosis)})
        check_headline(Headline.of(diagnosis).text(), kind, known)
    assert seen == set(get_args(VerdictKind)) - {"diverged", "undefined"}


@pytest.mark.parametrize(
    ("corrections", "condition"),
    [
        ((GAIN, GAIN), ""),
        ((GAIN, UNCLEAR), ""),
        ((GAIN, HARM), CONDITIONS[0]),
        ((HARM, GAIN), CONDITIONS[1]),
    ],
)
def test_what_harms_on_either_rows_carries_its_condition(corrections, condition):
    (text,) = texts(measured(corrections=corrections), "correct")
    assert text.startswith(condition + ("train" if condition else "Train"))
    assert ("higher" in text) == (HARM in corrections)


@pytest.mark.parametrize("corrections", [(HARM, HARM), (HARM, UNCLEAR), (UNCLEAR, HARM)])
def test_what_only_harms_is_advised_against(corrections):
    (text,) = texts(measured(corrections=corrections), "do not correct")
    assert text.startswith("Do not train")


def test_what_neither_helps_nor_harms_is_not_clear():
    (text,) = texts(measured(corrections=(UNCLEAR, UNCLEAR)), "do not correct")
    assert text.startswith("It is not clear whether to train")


def test_untried_changes_are_not_advised():
    assert not texts(measured(), "change")
    (text,) = texts(measured(change=GAIN), "change")
    assert text.startswith("Learn the rows in random order, if you can: error 40% lower")


def test_another_batch_model_only_if_it_helped():
    bad = measured(batch_constant=HARM)
    (text,) = texts(bad, "bad batch model")
    assert "not clearly better" in text
    linear = AlternativeModel("linear", 0.1, "next", effect=GAIN, constant=GAIN)
    smoother = AlternativeModel("smoother", 30.0, "next", effect=UNCLEAR, constant=HARM)
    (text,) = texts(replace(bad, alternatives=(linear, smoother)), "bad batch model")
    assert text.startswith("Compare with a better batch model, a linear model")
    assert "ridge" not in text


def test_what_helped_after_a_bad_batch_model():
    bad = measured(forgot="yes", corrections=(GAIN, GAIN), batch_constant=HARM)
    assert not texts(bad, "leave", "correct")
    assert texts(bad, "bad batch model")


def test_what_helps_on_the_next_rows_only():
    unclear = measured(whole=UNCLEAR, coming=HARM, corrections=(UNCLEAR, GAIN))
    assert unclear.verdict.kind == "not clear"
    assert texts(unclear, "correct", "batch")
    assert not texts(unclear, "leave")
    nothing = measured(whole=UNCLEAR, corrections=(GAIN, GAIN))
    (text,) = texts(nothing, "leave")
    assert text == "Leave the learner as it is for now: it is not clear that it is behind."


def test_a_model_that_follows_the_drift():
    follows = measured(coming=GAIN, drift=True, batch_constant=HARM)
    assert follows.verdict.kind == "follows the drift"
    assert texts(follows, "leave") == ["Leave the learner as it is: it follows the stream."]


def test_few_rows_are_no_ground_for_advice():
    found = measured()
    few = tuple(replace(one, rows=29) for one in found.answers)
    kinds = [piece.kind for piece in advised(replace(found, answers=few))]
    assert kinds == ["rows"]


def test_a_diverging_rate_is_replaced():
    found = measured()
    lost = Score("online", "whole", Estimate(math.inf, math.nan, math.nan), None, UNKNOWN)
    whole = replace(found.answers[0], scores=(found.answers[0].scores[0], lost))
    tried = pl.DataFrame({"value": [0.25, 1.0, 5.0], "score": [2.0, 1.5, None]})
    diverged = replace(
        found, answers=(whole,), lr=replace(found.lr, value=5.0, automatic=False, tried=tried)
    )
    (text,) = diverged.verdict.recommendations
    assert text == (
        "Lower the rate: at 5 some steps make their own error larger; steps are stable up to lr = "
        "2. Of 3 rates tried, lr = 1 has the smallest error on each row before it was learned."
    )


def test_the_shares_of_order_and_single_pass():
    """1.5 x 2.25: the order is a third of the way on a logarithmic scale, the pass two thirds."""
    costs = Estimate(0.5, 0.3, 0.7), Estimate(1.25, 1.0, 1.5)
    text = measured(forgot="yes", costs=costs).verdict.headline
    assert "33% is due to the order and 67% to the single pass" in text


def test_the_same_advice_for_a_users_model():
    found = measured(forgot="yes")
    model = replace(model_of(found), forgetting=FORGETTING["yes"], order_cost=HARM)
    text = Headline.of(replace(found, model=model)).text()
    assert text.startswith("SGDRegressor has forgotten: on rows from the whole stream")
    assert "online model" not in text


def test_how_many_more_rows_would_tell():
    assert rows_needed(Estimate(0.3, -0.3, 0.9), 0.1) == pytest.approx(4)
    assert rows_needed(Estimate(0.0, -0.3, 0.3), 0.1) == pytest.approx(9)
    assert rows_needed(UNKNOWN, 0.1) == math.inf
