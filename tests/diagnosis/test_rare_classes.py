"""Streams in which one class is rare: what is said of them, and what is not."""

import numpy as np
import pytest

import retarget as rt
from retarget.diagnosis.facts import compared, judged
from retarget.diagnosis.words.numbers import percent

SEEDS = range(3)


def rare(share, seed, rows=400, noise=1.0, by=None):
    """Rows of which a few are "yes"; sorted by a number, if `by` is one."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 5))
    score = 1.5 * X[:, 0] + np.sin(2 * X[:, 1]) + noise * rng.normal(size=rows)
    labels = np.where(score > np.quantile(score, 1 - share), "yes", "no")
    order = np.arange(rows) if by is None else np.argsort(X @ by, kind="stable")
    return X[order], labels[order]


@pytest.mark.parametrize(
    ("share", "by"), [(0.01, None), (0.03, (0.5, 0, 1, 0, 0)), (0.01, (-1, 0, 0, 0, 0))]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rare_class_is_never_called_divergence(share, by, seed):
    """In the last order nothing but "no" comes at the end: there the mean is hardly ever wrong."""
    X, labels = rare(share, seed, by=by)
    found = rt.diagnose(X, labels)
    assert not found.diverged
    assert found.verdict.kind not in ("diverged", "undefined")
    assert all(one.unseen == () for one in found.answers)  # both classes are learned
    whole = found.answer("whole")
    assert whole.score("online").recall[0].value > 0.97
    asked = found.stream.Y.sum(axis=0)
    assert asked.min() >= 1
    # the loss tells what the accuracy of a model that always says "no" does not
    assert whole.score("online").loss.value > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_accuracy_does_not_override_the_loss(seed):
    """As with 3% of frauds: the squared error is clearly above, hardly a class is wrong."""
    X, labels = rare(0.03, seed, rows=600, noise=0.2)
    found = rt.diagnose(X, labels, lr=0.03)
    whole = found.answer("whole")
    assert whole.excess.low > 0
    assert abs(whole.accuracy_gap.value) < 0.02
    assert found.verdict.kind in ("behind", "one pass", "forgotten")
    assert "as good" not in found.verdict.headline
    # the headline says how often the rare class is right: 97% of all rows are, whoever says "no"
    online, batch = (percent(whole.score(one).recall[1].value) for one in ("online", "offline"))
    assert f", with {online} of 'yes' right against {batch}" in found.verdict.headline
    assert "of the classes right" not in found.verdict.headline


def test_a_chosen_metric_decides_alone():
    X, labels = rare(0.09, 0, rows=300)
    usual = rt.diagnose(X, labels)
    assert all(one.accuracy_gap is not None for one in usual.answers)
    for metric in ("balanced-accuracy", "log-loss", "accuracy"):
        found = rt.diagnose(X, labels, metric=metric)
        assert [one.accuracy_gap for one in found.answers] == [None, None]
        for answer in found.answers:
            expected = "not clear" if compared(answer).bad_batch_model else judged(answer.excess)
            assert compared(answer).standing in (expected, "ahead")


def test_a_learner_that_does_diverge_is_called_so():
    X, labels = rare(0.03, 0)
    found = rt.diagnose(X, labels, kernel="linear", lr=0.6)
    assert found.diverged
    assert found.verdict.kind == "diverged"
