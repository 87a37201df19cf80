"""Generated twins of real streams on which earlier versions gave a false all-clear."""

import numpy as np
import pytest

import retarget as rt

LETTERS = np.array(list("abcdefgh"))


def kinds(found, question=None):
    return {one.kind for one in found.findings if question in (None, one.question)}


def three_wines(seed=0):
    """Three kinds of wine, one after the other: the last fifth is one class."""
    rng = np.random.default_rng(seed)
    label = np.repeat([0, 1, 2], [59, 71, 48])
    return rng.normal(size=(178, 6)) + 2.5 * rng.normal(size=(3, 6))[label], LETTERS[label]


def test_sorted_by_its_target():
    """As statsmodels' `fair` is, sorted: the last rows are the largest."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 3))
    y = np.exp(X[:, 0] + 0.3 * X[:, 1]) + 0.1 * rng.normal(size=600)
    order = np.argsort(y)
    found = rt.diagnose(X[order], y[order])
    assert found.answer("whole").excess.low > 0.1
    assert found.verdict.kind in ("forgotten", "behind everywhere", "not clear")
    assert "Nothing needs correcting." not in found.verdict.recommendations


def test_the_last_value_of_a_series_wins():
    """As with co2: a trend and a season, from the date alone."""
    rng = np.random.default_rng(2)
    time = np.arange(700.0)
    y = 0.02 * time + np.sin(2 * np.pi * time / 52) + 0.05 * np.cumsum(rng.normal(size=700))
    found = rt.diagnose(time[:, None], y)
    winner = next(one for one in found.findings if one.kind == "baseline wins")
    assert (winner.subject, winner.question) == ("last", "next")
    assert "predicting the last value is better" in found.verdict.headline.lower()
    assert found.verdict.recommendations[0].startswith("Predict the last value instead")


def test_nothing_to_learn():
    """As with sp500's daily returns."""
    rng = np.random.default_rng(3)
    found = rt.diagnose(rng.normal(size=(700, 4)), rng.normal(size=700))
    assert "nothing learned" in kinds(found)
    assert "predicting the mean" in found.verdict.headline
    assert found.verdict.recommendations[0].startswith("Add features")


def panel(seed=4):
    """Visits of 60 people who hardly change: a row says nearly all about the next."""
    rng = np.random.default_rng(seed)
    people = np.repeat(np.arange(60), 10)
    X = rng.normal(size=(60, 5))[people]
    y = X[:, 0] + rng.normal(size=60)[people] + 0.2 * rng.normal(size=600)
    time = np.tile(np.arange(10), 60)
    order = np.argsort(time, kind="stable")
    return X[order], y[order], np.array([f"p{i}" for i in people])[order]


def test_people_of_whom_new_ones_will_come():
    X, y, person = panel()
    rows = rt.diagnose(X, y, group=person)
    people = rt.diagnose(X, y, group=person, hold_out="group")
    assert "groups left out" in people.gamma.how
    assert people.gamma.value > 20 * rows.gamma.value
    assert len(set(people.stream.groups)) < 60
    known, new = (d.score("offline", "whole").error.value for d in (rows, people))
    assert new > 3 * known  # what a new person costs
    assert "drift" not in kinds(people)


def test_a_batch_model_that_repeats():
    rng = np.random.default_rng(5)
    wave = np.sin(np.arange(900) * 0.9) + 5 * (np.arange(900) > 700)
    found = rt.diagnose(np.arange(900.0)[:, None], wave + 0.1 * rng.normal(size=900), width=1e-4)
    assert {"bad batch model", "nothing learned", "baseline wins"} & kinds(found)
    assert not any("Train on iteratively" in one for one in found.verdict.recommendations)


@pytest.mark.parametrize("rows", [4, 6, 40])
def test_too_few_rows(rows):
    X, _ = three_wines()
    X = X[60 : 60 + rows]
    found = rt.diagnose(X, np.abs(X[:, 0] - X[:, 0].mean()) + X[:, 1])
    assert found.verdict.kind == "not clear"
    # of few rows each is held out in some fold, so 32 of 40 are asked about
    few = found.answer("whole").rows < 30
    assert few == (rows < 40)
    assert found.verdict.headline.startswith("There are too few rows") == few
    *others, last = found.verdict.recommendations
    assert last.startswith("Collect more rows")
    # nothing is said of what was tried where there are too few rows to judge it
    leave = "Leave the learner as it is for now: it is not clear that it is behind."
    assert others == ([] if few else [leave])


def test_a_shuffled_stream_is_fine():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(900, 2))
    y = X @ [1.0, -2.0] + rng.normal(size=900)
    found = rt.diagnose(X, y, kernel="linear", lr=0.005)
    assert found.verdict.kind == "as good"
    assert found.verdict.recommendations == ("Nothing needs correcting.",)


@pytest.mark.parametrize("metric", ["squared", "log-loss", "accuracy", "balanced-accuracy"])
def test_other_measures_of_classes(metric):
    X, labels = three_wines()
    found = rt.diagnose(X, labels, metric=metric)
    assert found.metric.name == metric
    online, batch = (found.score(name, "whole") for name in ("online", "offline"))
    assert (
        found.answer("whole").excess.value
        == pytest.approx(online.loss.value / batch.loss.value - 1)
        or batch.loss.value == 0
    )
    if metric == "accuracy":
        assert online.loss.value == pytest.approx(1 - online.accuracy.value)


def test_other_measures_of_numbers_and_the_wrong_ones():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(200, 2))
    found = rt.diagnose(X, X[:, 0] + rng.normal(size=200), metric="absolute")
    assert found.score("online").loss.value != found.score("online").error.value
    with pytest.raises(rt.errors.InvalidInputError, match="metric .--metric. is 'accuracy'"):
        rt.diagnose(X, X[:, 0] + rng.normal(size=200), metric="accuracy")
