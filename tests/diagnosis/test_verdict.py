"""Each rule of the verdict on a made case, and beside it a case where it must keep silent."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from retarget.diagnosis.measure.choose import better_rate
from retarget.diagnosis.result import (
    Approximation,
    Baseline,
    Choice,
    Estimate,
    GroupShift,
    Stability,
    Trial,
)
from support.real_diagnosis import UNDEFINED, classification, regression

BETTER, WIDER = Estimate(-0.3, -0.4, -0.2), Estimate(-0.5, -0.9, -0.2)
NO_GAP, UNCLEAR = Estimate(0.02, -0.1, 0.1), Estimate(0.1, -0.2, 0.3)
STRONG = [[0.1, 0.2, 0.6], [0, 0.1, 0.3], [0, 0, 9.0]]
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
    return replace(diagnosis, lr=replace(diagnosis.lr, value=lr, automatic=False))


def closing(diagnosis, closed):
    return replace(diagnosis, gap_closed=diagnosis.gap_closed | {"iterative": closed})


def at_gamma(diagnosis, **choices):
    """With a ridge of 0.0464, and choices made here of the correction."""
    chosen = {
        name: Choice(value, automatic, "ends nearest", pl.DataFrame())
        for name, (value, automatic) in choices.items()
    }
    return replace(diagnosis, gamma=replace(diagnosis.gamma, value=0.0464), **chosen)


def with_features(diagnosis, **changes):
    return replace(diagnosis, approximation=replace(NEAR, **changes))


def moved(diagnosis, size, sign=1):
    """Groups that moved each other by these shares of a target's length."""
    found = groups(np.linalg.norm(diagnosis.stream.Y, axis=1).mean() * np.array(size))
    return replace(diagnosis, groups=replace(found, pull=sign * found.pull))


def diverging(diagnosis, lr):
    lost = errors(closing(at_rate(diagnosis, lr), UNDEFINED), online=UNDEFINED)
    nothing, unknown = np.full_like(diagnosis.effective, np.nan), groups([[np.nan] * 2] * 2)
    failures = ("Diverges from row 7 on.",)
    return replace(lost, excess=UNDEFINED, effective=nothing, groups=unknown, failures=failures)


def trying(diagnosis, change, value, effect=BETTER):
    return replace(diagnosis, trials=(Trial(change, value, effect),))


def progressive(diagnosis, **changes):
    return replace(diagnosis, evaluation="progressive", **changes)


def baseline(diagnosis, name, error):
    added = Baseline(name, sure(error), None)
    return replace(diagnosis, baselines=(*diagnosis.baselines, added))


def recent(diagnosis, error, **options):
    return replace(baseline(diagnosis, "batch model of the last 50 rows", error), **options)


@pytest.fixture
def gap():
    """A real diagnosis with the numbers of a clear gap, and nothing else to remark on."""
    real = regression()
    quiet = replace(
        closing(at_rate(real, 0.5), Estimate(0.84, 0.71, 0.92)),
        test_rows=200,
        excess=Estimate(0.31, 0.2, 0.4),
        baselines=(Baseline("the mean", sure(2.0), None),),
        prequential=np.ones_like(real.prequential) / real.stream.target_scales,
        iterative=real.stream.Y,
        corrected=real.stream.Y,
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
    assert "31% above that of the batch model (20% to 40%); iterative" in found.headline
    assert "closes 84% (71% to 92%) of the gap" in found.headline
    assert len(found.recommendations) == len(at_rate(gap, 1.5).verdict.recommendations) == 1
    assert "they close 84% (71% to 92%)" in found.recommendations[0]
    assert "200 held-out rows: offline 1; online 1.31" in found.findings[0]
    assert "the mean 2" in found.findings[0]
    assert f"by {gap.shift_size.mean():.3g} on average" in found.findings[1]
    assert "12% of the rows changed their sign" in found.findings[1]
    assert "changed their class" in " ".join(classification().verdict.findings)


SAID = {
    "headline": [
        (lambda d: replace(d, excess=Estimate(26, 21.6, 1300)), "27 times that of the batch"),
        (lambda d: replace(d, excess=sure(9.5)), "error is 950% above"),
        (lambda d: replace(d, excess=NO_GAP), "differs by 2.0% (\u221210% to 10%)"),
        (lambda d: replace(d, excess=Estimate(-0.2, -0.3, -0.1)), "20% below that of the batch"),
        (lambda d: replace(d, excess=UNDEFINED), "perform the same"),
        (lambda d: errors(d, offline=UNDEFINED), "There is no batch model"),
        (lambda d: closing(d, UNCLEAR), "not clear that iterative"),
        (lambda d: closing(d, WIDER), "widens the gap by 50%"),
        (lambda d: closing(d, UNDEFINED), "iterative correction could not be computed"),
        (lambda d: diverging(d, 3.0), "diverges at lr = 3"),
        (lambda d: errors(d, online=sure(1e107)), "diverges at lr = 0.5: it is worse than"),
        (lambda d: replace(d, iterative=1e3 * d.iterative), "targets out of all proportion"),
        (lambda d: recent(d, 0.8, reference="window:50"), "that of the batch model of the last 50"),
        (lambda d: with_features(d, reference=BETTER), "As far as 512 Nyström features can tell"),
    ],
    "findings": [
        (lambda d: diverging(d, 3.0), "Diverges from row 7 on."),
        (lambda d: at_gamma(d, aim=(4.64, True)), "with ridge 4.64 instead of 0.0464: it ends"),
        (lambda d: at_gamma(d, ridge=(4.64, True)), "A ridge of 4.64 steadies"),
        (lambda d: moved(d, STRONG), "Learning 'c' moved the targets of 'a' by"),
        (lambda d: moved(d, STRONG), "(60% of a target's length), weakening them"),
        (lambda d: moved(d, STRONG, -1), "strengthening them by"),
        (lambda d: errors(d, corrected=sure(1.2)), "1.2, not with the batch model's 1"),
        (lambda d: progressive(d), "has no score here", "each before its step"),
        (lambda d: progressive(d, hindsight=7.0), "is 7; just before learning each of them, it"),
        (lambda d: errors(d, online=sure(2.5)), "The online model (2.5) is worse than predicting"),
        (lambda d: errors(d, online=sure(2.5)), "Progressive validation hides this: the error"),
        (lambda d: errors(d, online=sure(3), offline=sure(4)), "the online model (3) are worse"),
        (lambda d: recent(d, 0.6), "a batch model of the last 50 rows has 40% less", "window:50"),
        (lambda d: baseline(d, "the last value", 0.5), "Predicting the last value (0.5) is better"),
        (lambda d: replace(d, excess=sure(-0.3), evaluation="last"), "following it pays off more"),
        (lambda d: replace(d, unseen=("c9",)), "WARNING: the held-out rows hold classes that were"),
        (lambda d: replace(d, iterative=1e3 * d.iterative), "iteratively corrected targets reach"),
        (lambda d: with_features(d), "512 Nyström features are used", "would need 28.0 GB"),
        (lambda d: with_features(d), "entries 2.0%, shifts 11%, online predictions 5.0%"),
        (lambda d: with_features(d, kind="linear"), "nothing is approximated"),
        (lambda d: with_features(d, reference=BETTER), "2,000 of the rows alone give 30% less"),
    ],
    "recommendations": [
        (lambda d: diverging(d, 3.0), "Lower the rate: steps are stable up to lr = 2"),
        (lambda d: diverging(d, 1.0), "together they are not"),
        (lambda d: trying(d, "rate", 0.125), "Use lr = 0.125: its error is 30% lower (20% to 40%)"),
        (lambda d: trying(d, "batch", 4), "Use mini-batches of 4 rows at the same rate: the error"),
        (lambda d: trying(d, "order", 10), "random order, if you can: over 10 orders the error"),
        (lambda d: replace(d, unseen=("c9",)), "--evaluation random"),
        (lambda d: replace(d, iterative=1e3 * d.iterative), "Do not use corrected targets here"),
        (lambda d: closing(d, UNCLEAR), "not clearly worthwhile"),
        (lambda d: closing(d, WIDER), "Do not use iterative"),
        (lambda d: closing(d, UNDEFINED), "No change that was tried"),
        (lambda d: closing(replace(d, excess=NO_GAP), UNDEFINED), "there is no clear gap"),
        (lambda d: at_rate(d, 1.7), "is 85% of the largest stable one, 2"),
        (lambda d: at_rate(d, 2.5), "above the largest stable"),
        (lambda d: replace(d, test_rows=20), "with care: 160 rows"),
        (lambda d: with_features(d, shift_error=0.3), "Use more than 512 Nyström features"),
        (lambda d: with_features(d, reference=BETTER), "Use more than 512 Nyström features"),
    ],
}


@pytest.mark.parametrize("part", SAID)
def test_what_is_said(gap, part):
    for changed, *words in SAID[part]:
        said = getattr(changed(gap).verdict, part)
        text = said if part == "headline" else " ".join(said)
        assert [word for word in words if word not in text] == []


def test_classes_that_come_out_right_as_often():
    gap, closed = Estimate(0.01, -0.02, 0.04), Estimate(0.5, 0.4, 0.6)
    alike = replace(closing(classification(), closed), excess=sure(0.3), accuracy_gap=gap)
    assert alike.verdict.headline.endswith(", but its accuracy is about the same.")
    said = " ".join((*alike.verdict.findings, *alike.verdict.recommendations))
    assert "differ by 1.0% (\u22122.0% to 4.0%)" in said
    assert "the accuracy is the same without it" in said


def test_what_is_not_clear_or_not_much_is_not_spoken_of(gap):
    silent = gap.verdict
    for found in (
        trying(gap, "rate", 0.125, Estimate(-0.3, -0.7, 0.1)),
        trying(gap, "rate", 0.125, Estimate(-0.04, -0.05, -0.03)),
        trying(gap, "rate", 0.125, UNDEFINED),
        at_gamma(gap, aim=(0.0464, True), ridge=(0.0, True)),
        at_gamma(gap, aim=(4.64, False), ridge=(4.64, False)),
        moved(gap, [[0.9, 0.2], [0, 0.9]]),
        moved(gap, [[9.0]]),
        errors(gap, corrected=sure(1.005)),
    ):
        said = found.verdict
        assert (said.headline, said.recommendations) == (silent.headline, silent.recommendations)
        assert said.findings[1:] == silent.findings[1:]
    # nor of features that are good enough
    for true_kernel in (Estimate(-0.1, -0.3, 0.1), sure(0.5), sure(-1e-8), None):
        said = with_features(gap, reference=true_kernel).verdict
        assert (said.headline, said.recommendations) == (silent.headline, silent.recommendations)


def test_the_most_useful_change_comes_first(gap):
    trials = (
        Trial("batch", 4, Estimate(-0.1, -0.2, -0.05)),
        Trial("rate", 4, UNDEFINED),
        Trial("order", 0, Estimate(-0.5, -0.6, -0.4)),
    )
    found = replace(gap, trials=trials).verdict
    assert [text.split()[0] for text in found.recommendations] == ["Learn", "Use", "Train"]


def test_a_better_rate_is_one_with_clearly_less_error():
    def choice(value, *rows):
        table = pl.DataFrame(rows, schema={"value": pl.Float64, "score": pl.Float64}, orient="row")
        return Choice(value, False, "given", table)

    assert better_rate(choice(1.0, (1.0, 1.0), (0.5, 0.9))) == 0.5
    assert better_rate(choice(1.0, (1.0, 1.0), (0.5, 0.96))) is None
    assert better_rate(choice(1.0, (1.0, None), (0.5, 0.9))) == 0.5  # its own rate diverged
    assert better_rate(choice(1.0, (1.0, None))) is None
