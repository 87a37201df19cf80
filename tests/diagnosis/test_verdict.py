"""Each rule of the verdict on a made case, and beside it a case where it must keep silent."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from retarget.diagnosis.measure.choose import better_rate
from retarget.diagnosis.result import Approximation, Choice, Estimate, GroupShift, Stability, Trial
from support.real_diagnosis import UNDEFINED, classification, regression

NEAR = Approximation(512, "nystroem", 28 * 10**9, 4 * 10**9, 2000, 0.02, 0.11, 0.05)


def sure(value):
    return Estimate(value, value, value)


def errors(diagnosis, **changed):
    scores = (replace(s, error=changed.get(s.learner, s.error)) for s in diagnosis.scores)
    return replace(diagnosis, scores=tuple(scores))


def groups(size):
    names = tuple("abc"[: len(size)])
    size = np.array(size, dtype=float)
    return GroupShift(names, np.full(len(size), 9), size, -size / 2, np.zeros(len(size)))


def at_rate(diagnosis, lr):
    return replace(diagnosis, lr=replace(diagnosis.lr, value=lr))


def closing(diagnosis, closed):
    return replace(diagnosis, gap_closed=diagnosis.gap_closed | {"iterative": closed})


def said(diagnosis):
    found = diagnosis.verdict
    return " ".join([found.headline, *found.findings, *found.recommendations])


@pytest.fixture
def gap():
    """A real diagnosis with the numbers of a clear gap, and nothing else to remark on."""
    real = regression()
    quiet = replace(
        closing(at_rate(real, 0.5), Estimate(0.84, 0.71, 0.92)),
        test_rows=200,
        excess=Estimate(0.31, 0.2, 0.4),
        stability=Stability(2.0, 2.0),
        changed=np.arange(160) % 8 == 0,
        groups=groups([[0.9, 0.1], [0.0, 0.9]]),
        ridge=None,
        aim=None,
        trials=(),
        failures=(),
    )
    same = {"offline": sure(1.0), "corrected": sure(1.0)}
    return errors(quiet, online=sure(1.31), iterative=sure(1.05), **same)


def test_a_gap_that_correction_closes(gap):
    found = gap.verdict
    assert "31% above the batch model's (20% to 40%); iterative" in found.headline
    assert "closes 84% (71% to 92%) of the gap" in found.headline
    assert len(found.recommendations) == 1
    assert "they close 84% (71% to 92%)" in found.recommendations[0]
    assert "200 rows held out: offline 1; online 1.31" in found.findings[0]
    assert f"by {gap.shift_size.mean():.3g} on average" in found.findings[1]
    assert "12% of the rows changed their sign" in found.findings[1]
    assert "changed their class" in said(classification())


def test_an_error_many_times_another_is_said_as_a_multiple(gap):
    found = replace(gap, excess=Estimate(26.0, 21.6, 1300.0)).verdict
    assert "error is 27 times the batch model's (23 to 1,301 times);" in found.headline
    assert "error is 950% above" in replace(gap, excess=sure(9.5)).verdict.headline


def test_choices_of_the_correction_are_announced(gap):
    gap = replace(gap, gamma=replace(gap.gamma, value=0.0464))
    aim = Choice(4.64, True, "ends nearest to it, among 4 ridges", pl.DataFrame())
    assert "batch model, of ridge 4.64 instead of 0.0464: it ends" in said(replace(gap, aim=aim))
    for quiet in (replace(aim, value=0.0464), replace(aim, automatic=False)):
        assert "smoother" not in said(replace(gap, aim=quiet))
    assert "A ridge of 4.64 steadies" in said(replace(gap, ridge=aim))
    for quiet in (replace(aim, automatic=False), replace(aim, value=0.0), None):
        assert "steadies" not in said(replace(gap, ridge=quiet))


@pytest.mark.parametrize(
    ("closed", "headline", "advice"),
    [
        (Estimate(0.1, -0.2, 0.3), "not clear that iterative", "not clearly worthwhile"),
        (Estimate(-0.5, -0.9, -0.2), "widens it, by 50% of the gap", "Do not use iterative"),
        (UNDEFINED, "there is no iterative correction", "Nothing that was tried"),
    ],
)
def test_a_gap_that_correction_does_not_clearly_close(gap, closed, headline, advice):
    found = closing(gap, closed).verdict
    assert headline in found.headline
    assert advice in found.recommendations[0]
    assert "Train on" not in " ".join(found.recommendations)


def test_no_gap_needs_no_correction(gap):
    alike = closing(replace(gap, excess=Estimate(0.02, -0.1, 0.1)), UNDEFINED)
    assert "differs by 2.0% (\u221210% to 10%)" in alike.verdict.headline
    assert alike.verdict.recommendations[0].startswith("No correction is needed")
    better = replace(alike, excess=Estimate(-0.2, -0.3, -0.1)).verdict
    assert "is 20% below the batch model's (10% to 30%)" in better.headline
    assert "cannot be told apart" in replace(alike, excess=UNDEFINED).verdict.headline


def test_a_learner_that_diverges(gap):
    lost = errors(closing(at_rate(gap, 3.0), UNDEFINED), online=UNDEFINED)
    lost = replace(
        lost,
        excess=UNDEFINED,
        effective=np.full_like(gap.effective, np.nan),
        groups=groups([[np.nan] * 2] * 2),
        failures=("The online learner diverges: from row 7 on.",),
    )
    assert "diverges at lr = 3" in lost.verdict.headline
    assert lost.verdict.findings[0] == lost.failures[0]
    assert "steps are stable up to lr = 2" in lost.verdict.recommendations[0]
    assert "moved" not in said(lost)
    assert "together they are not" in said(at_rate(lost, 1.0))
    without = errors(replace(gap, excess=UNDEFINED), offline=UNDEFINED)
    assert "There is no batch model" in without.verdict.headline


@pytest.mark.parametrize(
    ("change", "value", "words"),
    [
        ("rate", 0.125, "Use lr = 0.125: its error is 30% lower (20% to 40%)"),
        ("batch", 4, "Use mini-batches of 4 rows at the same rate: the error is 30% lower"),
        ("order", 0, "Learn the rows in random order, if you can: the error is 30% lower"),
    ],
)
def test_changes_that_clearly_help_are_recommended(gap, change, value, words):
    clear = Trial(change, value, Estimate(-0.3, -0.4, -0.2))
    assert replace(gap, trials=(clear,)).verdict.recommendations[0].startswith(words)
    for effect in (Estimate(-0.3, -0.7, 0.1), Estimate(-0.04, -0.05, -0.03), UNDEFINED):
        assert replace(gap, trials=(Trial(change, value, effect),)).verdict == gap.verdict


def test_the_most_useful_change_comes_first(gap):
    trials = (
        Trial("batch", 4, Estimate(-0.1, -0.2, -0.05)),
        Trial("rate", 4, UNDEFINED),
        Trial("order", 0, Estimate(-0.5, -0.6, -0.4)),
    )
    found = replace(gap, trials=trials).verdict
    assert [text.split()[0] for text in found.recommendations] == ["Learn", "Use", "Train"]


@pytest.mark.parametrize(
    ("lr", "words"),
    [(0.5, None), (1.7, "is 85% of the largest stable one, 2"), (2.5, "above the largest stable")],
)
def test_a_rate_near_the_limit(gap, lr, words):
    text = said(at_rate(gap, lr))
    assert words in text if words else "largest stable" not in text


def test_interference_between_groups_is_named(gap):
    length = np.linalg.norm(gap.stream.Y, axis=1).mean()
    size = length * np.array([[0.1, 0.2, 0.6], [0, 0.1, 0.3], [0, 0, 9.0]])
    strong = replace(gap, groups=groups(size))
    assert "Learning 'c' moved the targets of 'a' by" in said(strong)
    assert f"(60% of a target's length), weakening them by {0.3 * length:.3g}" in said(strong)
    stronger = replace(strong.groups, pull=-strong.groups.pull)
    assert "strengthening them by" in said(replace(strong, groups=stronger))
    for quiet in (groups([[0.9, 0.2], [0, 0.9]]), groups([[9.0]])):
        assert "Learning '" not in said(replace(gap, groups=quiet))


def test_few_rows_are_a_reason_for_care(gap):
    assert "with care: 160 rows" in said(replace(gap, test_rows=20))
    assert "with care" not in said(gap)


def test_an_exact_correction_lost_to_rounding(gap):
    assert "rounding: on its" in said(errors(gap, corrected=sure(1.2)))
    assert "1.2, not with the batch model's 1" in said(errors(gap, corrected=sure(1.2)))
    assert "rounding" not in said(gap)


def test_progressive_scores_are_explained(gap):
    progressive = said(replace(gap, evaluation="progressive"))
    assert "has no score here" in progressive
    assert "each before its step" in progressive
    assert "has no score here" not in said(gap)


def test_what_features_change_is_said_and_judged(gap):
    text = said(replace(gap, approximation=NEAR))
    assert "512 Nyström features are used" in text
    assert "would need 28.0 GB" in text
    assert "kernel entries 2.0%, shifts 11%, online predictions 5.0%" in text
    assert "Take more than" not in text
    poor = said(replace(gap, approximation=replace(NEAR, shift_error=0.3)))
    assert "Take more than 512 Nyström features" in poor
    exact = said(replace(gap, approximation=replace(NEAR, kind="linear")))
    assert "512 exact linear features" in exact
    assert "nothing is approximated" in exact


def test_features_that_hold_the_batch_model_back_are_named(gap):
    def with_reference(estimate):
        return replace(gap, approximation=replace(NEAR, reference=estimate))

    limited = with_reference(Estimate(-0.27, -0.3, -0.25))
    assert limited.verdict.headline.startswith("As far as 512 Nyström features can tell, the onl")
    assert "2,000 of the rows alone give 27% less error (25% to 30%)" in said(limited)
    assert "Take more than 512 Nyström features" in said(limited)
    rounding = Estimate(-1e-8, -2e-8, -1e-9)
    for fine in (Estimate(-0.1, -0.3, 0.1), Estimate(0.5, 0.4, 0.6), rounding, None):
        text = said(with_reference(fine))
        for words in ("As far as", "Take more", "hold the batch model back"):
            assert words not in text


def test_a_better_rate_is_one_with_clearly_less_error():
    def choice(value, *rows):
        table = pl.DataFrame(rows, schema={"value": pl.Float64, "score": pl.Float64}, orient="row")
        return Choice(value, False, "given", table)

    assert better_rate(choice(1.0, (1.0, 1.0), (0.5, 0.9))) == 0.5
    assert better_rate(choice(1.0, (1.0, 1.0), (0.5, 0.96))) is None
    assert better_rate(choice(1.0, (1.0, None), (0.5, 0.9))) == 0.5  # its own rate diverged
    assert better_rate(choice(1.0, (1.0, None))) is None
