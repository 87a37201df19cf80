"""Each rule of the verdict on a made case, and beside it a case where it must keep silent."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.diagnosis.measure.choose import Trial, better_rate
from retarget.diagnosis.measure.compare import UNKNOWN
from retarget.diagnosis.report.verdict import Evidence, interval, percent, verdict
from retarget.diagnosis.result import Approximation, Choice, Estimate, GroupShift


def sure(value):
    return Estimate(value, value, value)


def groups(size):
    names = tuple("abc"[: len(size)])
    size = np.array(size, dtype=float)
    return GroupShift(names, np.full(len(size), 9), size, -size / 2, np.zeros(len(size)))


GAP = Evidence(
    evaluation="last part",
    kind="regression",
    rows=800,
    compared=200,
    learner=rt.SGD(lr=0.5),
    largest_lr=2.0,
    errors={
        "offline": sure(1.0),
        "online": sure(1.31),
        "corrected": sure(1.0),
        "iterative": sure(1.05),
    },
    excess=Estimate(0.31, 0.2, 0.4),
    closed={"corrected": sure(1.0), "iterative": Estimate(0.84, 0.71, 0.92)},
    shift=0.2,
    target=1.0,
    changed=0.125,
    groups=groups([[0.9, 0.1], [0.0, 0.9]]),
)


def said(evidence):
    found = verdict(evidence)
    return " ".join([found.headline, *found.findings, *found.recommendations])


def test_a_gap_that_correction_closes():
    found = verdict(GAP)
    assert found.headline == (
        "The online model's error is 31% above the batch model's (20 to 40%); iterative "
        "correction closes 84% (71 to 92%) of the gap."
    )
    assert found.recommendations == (
        "Train on iteratively corrected targets: they close 84% (71 to 92%) of the gap.",
    )
    assert "batch 1, online 1.31" in found.findings[0]
    assert "200 rows held out" in found.findings[0]
    assert "12% of the rows changed their sign" in found.findings[1]
    assert "changed their class" in said(replace(GAP, kind="classification"))


def test_an_error_many_times_another_is_said_as_a_multiple():
    found = verdict(replace(GAP, excess=Estimate(26.0, 21.6, 1300.0)))
    assert "error is 27 times the batch model's (23 to 1,301 times);" in found.headline
    assert "error is 950% above" in verdict(replace(GAP, excess=sure(9.5))).headline


def test_a_smoother_batch_model_that_is_followed_is_said():
    tried = pl.DataFrame()
    aim = Choice(4.64, True, "ends nearest to it, among 4 ridges", tried)
    followed = said(replace(GAP, aim=aim, gamma=0.0464))
    assert "follows a smoother batch model, of ridge 4.64 instead of 0.0464: it ends" in followed
    for quiet in (replace(aim, value=0.0464), replace(aim, automatic=False), None):
        assert "smoother" not in said(replace(GAP, aim=quiet, gamma=0.0464))


@pytest.mark.parametrize(
    ("closed", "headline", "advice"),
    [
        (Estimate(0.1, -0.2, 0.3), "not clear that iterative", "not clearly worthwhile"),
        (Estimate(-0.5, -0.9, -0.2), "widens it, by 50% of the gap", "Do not use iterative"),
        (UNKNOWN, "there is no iterative correction", None),
    ],
)
def test_a_gap_that_correction_does_not_clearly_close(closed, headline, advice):
    found = verdict(replace(GAP, closed=GAP.closed | {"iterative": closed}))
    assert headline in found.headline
    assert "Train on" not in " ".join(found.recommendations)
    if advice:
        assert advice in found.recommendations[0]
    else:
        assert "Nothing that was tried" in found.recommendations[0]


def test_no_gap_needs_no_correction():
    alike = replace(
        GAP, excess=Estimate(0.02, -0.1, 0.1), closed={"corrected": UNKNOWN, "iterative": UNKNOWN}
    )
    found = verdict(alike)
    assert found.headline == (
        "The online model is about as good as the batch model: its error differs by 2.0% "
        "(-10 to 10%)."
    )
    assert found.recommendations == ("No correction is needed: there is no clear gap to close.",)
    better = verdict(replace(alike, excess=Estimate(-0.2, -0.3, -0.1)))
    assert "is 20% below the batch model's (10 to 30%)" in better.headline
    neither = verdict(replace(alike, excess=UNKNOWN))
    assert "cannot be told apart" in neither.headline


def test_a_learner_that_diverges():
    lost = replace(
        GAP,
        learner=rt.SGD(lr=3.0),
        errors=GAP.errors | {"online": UNKNOWN},
        excess=UNKNOWN,
        closed={"corrected": UNKNOWN, "iterative": UNKNOWN},
        shift=np.nan,
        groups=groups([[np.nan] * 2] * 2),
        failures=("The online learner diverges: from row 7 on.",),
    )
    found = verdict(lost)
    assert found.headline == "The online model diverges at lr = 3."
    assert found.findings[0] == "The online learner diverges: from row 7 on."
    assert found.recommendations[0] == "Lower the rate: steps are stable up to lr = 2."
    assert "moved" not in said(lost)
    assert "together they are not" in said(replace(lost, learner=rt.SGD(lr=1.0)))
    without = replace(GAP, errors=GAP.errors | {"offline": UNKNOWN}, excess=UNKNOWN)
    assert "There is no batch model" in verdict(without).headline


@pytest.mark.parametrize(
    ("change", "value", "words"),
    [
        ("rate", 0.125, "Use lr = 0.125: its error is 30% lower (20 to 40%)."),
        ("batch", 4, "Use mini-batches of 4 rows at the same rate: the error is 30% lower"),
        ("order", 0, "Learn the rows in random order, if you can: the error is 30% lower"),
    ],
)
def test_changes_that_clearly_help_are_recommended(change, value, words):
    clear = Trial(change, value, Estimate(-0.3, -0.4, -0.2))
    found = verdict(replace(GAP, trials=(clear,)))
    assert found.recommendations[0].startswith(words)
    for effect in (Estimate(-0.3, -0.7, 0.1), Estimate(-0.04, -0.05, -0.03), UNKNOWN):
        assert verdict(replace(GAP, trials=(Trial(change, value, effect),))) == verdict(GAP)


def test_the_most_useful_change_comes_first():
    trials = (
        Trial("batch", 4, Estimate(-0.1, -0.2, -0.05)),
        Trial("order", 0, Estimate(-0.5, -0.6, -0.4)),
    )
    found = verdict(replace(GAP, trials=trials))
    assert [text.split()[0] for text in found.recommendations] == ["Learn", "Use", "Train"]


@pytest.mark.parametrize(
    ("lr", "words"),
    [(0.5, None), (1.7, "is 85% of the largest stable one, 2"), (2.5, "above the largest stable")],
)
def test_a_rate_near_the_limit(lr, words):
    text = said(replace(GAP, learner=rt.SGD(lr=lr)))
    assert words in text if words else "largest stable" not in text


def test_interference_between_groups_is_named():
    strong = replace(GAP, groups=groups([[0.1, 0.2, 0.6], [0, 0.1, 0.3], [0, 0, 9.0]]))
    expected = (
        "Learning 'c' moved the targets of 'a' by 0.6 on average (60% of a target's length), "
        "weakening them by 0.3."
    )
    assert expected in verdict(strong).findings
    stronger = replace(strong.groups, pull=-strong.groups.pull)
    assert "strengthening them by 0.3" in said(replace(strong, groups=stronger))
    for quiet in (groups([[0.9, 0.2], [0, 0.9]]), groups([[9.0]])):
        assert "Learning '" not in said(replace(GAP, groups=quiet))


@pytest.mark.parametrize("change", [{"rows": 99}, {"compared": 20}])
def test_few_rows_are_a_reason_for_care(change):
    assert "with care" in said(replace(GAP, **change))
    assert "with care" not in said(GAP)


def test_an_exact_correction_lost_to_rounding():
    lost = replace(GAP, errors=GAP.errors | {"corrected": sure(1.2)})
    assert "does not survive rounding" in said(lost)
    assert "1.2, not with the batch model's 1" in said(lost)
    assert "rounding" not in said(GAP)


def test_progressive_scores_are_explained():
    assert "has no score here" in said(replace(GAP, evaluation="progressive"))
    assert "each before its step" in said(replace(GAP, evaluation="progressive"))
    assert "has no score here" not in said(GAP)


def test_an_automatic_ridge_is_announced():
    table = pl.DataFrame({"value": [0.1], "score": [1.0]})
    chosen = Choice(0.1, True, "ends nearest", table)
    assert "A ridge of 0.1 steadies" in said(replace(GAP, ridge=chosen))
    for other in (replace(chosen, automatic=False), replace(chosen, value=0.0)):
        assert "steadies" not in said(replace(GAP, ridge=other))


def test_what_features_change_is_said_and_judged():
    near = Approximation(512, "nystroem", 28 * 10**9, 4 * 10**9, 2000, 0.02, 0.11, 0.05)
    text = said(replace(GAP, approximation=near))
    assert (
        "512 Nyström features are used instead of the kernel matrix, which would need 28.0 GB"
        in text
    )
    assert "the kernel by 2.0%, the shifts by 11% and the online predictions by 5.0%" in text
    assert "Take more than" not in text
    poor = said(replace(GAP, approximation=replace(near, shift_error=0.3)))
    assert "Take more than 512 Nyström features" in poor


def test_features_that_hold_the_batch_model_back_are_named():
    near = Approximation(512, "nystroem", 28 * 10**9, 4 * 10**9, 2000, 0.02, 0.11, 0.05)
    limited = replace(GAP, approximation=near, reference=Estimate(-0.27, -0.3, -0.25))
    found = verdict(limited)
    assert found.headline.startswith("As far as 512 Nyström features can tell, the online model's")
    assert "2,000 of the rows alone give 27% less error (25 to 30%)" in said(limited)
    assert "Take more than 512 Nyström features" in said(limited)
    rounding = Estimate(-1e-8, -2e-8, -1e-9)
    for fine in (Estimate(-0.1, -0.3, 0.1), Estimate(0.5, 0.4, 0.6), rounding, None):
        text = said(replace(limited, reference=fine))
        assert "As far as" not in text
        assert "Take more" not in text
        assert "hold the batch model back" not in text


def test_shares_in_words():
    assert [percent(x) for x in (0.314, 0.0042, 12.3, -1e-9, np.nan)] == [
        "31%", "0.4%", "12 times", "0.0%", "an unknown share",
    ]  # fmt: skip
    assert interval(Estimate(0, 0.71, 0.92)) == "71 to 92%"
    assert interval(Estimate(0, 0.71, 15)) == "71% to 15 times"
    assert interval(Estimate(0, 11, 15)) == "11 to 15 times"


def test_a_better_rate_is_one_with_clearly_less_error():
    def choice(value, *rows):
        table = pl.DataFrame(rows, schema={"value": pl.Float64, "score": pl.Float64}, orient="row")
        return Choice(value, False, "given", table)

    assert better_rate(choice(1.0, (1.0, 1.0), (0.5, 0.9))) == 0.5
    assert better_rate(choice(1.0, (1.0, 1.0), (0.5, 0.96))) is None
    assert better_rate(choice(1.0, (1.0, None), (0.5, 0.9))) == 0.5  # its own rate diverged
    assert better_rate(choice(1.0, (1.0, None))) is None
