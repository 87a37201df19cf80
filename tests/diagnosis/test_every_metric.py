"""Each metric, and each of a user's own, arrives wherever learners are compared."""

import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import (
    balanced_accuracy_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    zero_one_loss,
)

import retarget as rt
from retarget.cli import main
from retarget.diagnosis.answers import Estimate
from retarget.diagnosis.metrics import METRICS, Metric, as_metric
from retarget.diagnosis.report.comparison import compared_with
from retarget.diagnosis.report.export import as_json
from retarget.diagnosis.report.page import report_html
from retarget.diagnosis.report.terminal import as_text, everything
from retarget.errors import InvalidInputError, InvalidTypeError
from support.diagnosis_streams import as_stream

ROWS = 180


def pinball(truth, predicted):
    """Missing a number from below costs nine times as much as from above."""
    above = truth - predicted
    return np.maximum(0.9 * above, -0.1 * above).mean(axis=1)


def far_off(truth, predicted):
    """1 where a prediction is off by more than a half, (rows, 1)."""
    return np.abs(truth - predicted).max(axis=1, keepdims=True) > 0.5


ROOT = Metric("root-squared", "root mean squared error", METRICS["squared"].loss, score=np.sqrt)
HITS = Metric("hits", "share of misses", far_off, share="share of hits")
EVERY = [*METRICS.values(), as_metric("metric", pinball), ROOT, HITS]
LITERAL = {
    "auto": mean_squared_error,
    "squared": mean_squared_error,
    "absolute": mean_absolute_error,
    "log-loss": lambda y, p: log_loss(y.argmax(1), p, labels=range(y.shape[1])),
    "accuracy": lambda y, p: zero_one_loss(y.argmax(1), p.argmax(1)),
    "balanced-accuracy": lambda y, p: 1 - balanced_accuracy_score(y.argmax(1), p.argmax(1)),
    "pinball": lambda y, p: np.mean(np.where(y > p, 0.9 * (y - p), 0.1 * (p - y))),
    "root-squared": lambda y, p: math.sqrt(mean_squared_error(y, p)),
    "hits": lambda y, p: np.mean([any(abs(a - b) > 0.5) for a, b in zip(y, p, strict=True)]),
}


def table(kind):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(ROWS, 2))
    X = X[X[:, 0].argsort()]
    level = 3 * np.abs(X[:, 0]) + X[:, 1] + 20
    y = level if kind == "regression" else np.array(list("abc"))[np.digitize(level, [21, 23])]
    return pl.DataFrame({"one": X[:, 0], "two": X[:, 1], "y": y})


def cases():
    return [(metric, kind) for metric in EVERY for kind in metric.kinds]


@pytest.mark.parametrize(("metric", "kind"), cases(), ids=lambda one: getattr(one, "name", one))
def test_a_metric_arrives_everywhere(metric, kind):
    given = metric.name if metric.name in METRICS else metric
    found = rt.diagnose(table(kind), "y", metric=given, lr=0.3)
    assert found.metric == metric
    answer = found.answer("whole")
    online, batch = (found.score(name, "whole").loss for name in ("online", "offline"))
    # compared by it
    assert answer.excess.value == pytest.approx(online.value / batch.value - 1)
    squared = answer.score("online").error.value
    assert (online.value == pytest.approx(squared)) == (metric.name in ("auto", "squared"))
    # shown by it, in every form
    written = as_json(found)
    assert written["metric"] == metric.name
    (shown,) = (
        one for one in written["score_table"] if (one["of"], one["question"]) == ("online", "whole")
    )
    accuracy = kind == "classification" and metric.shows_accuracy
    higher = accuracy or bool(metric.share)
    assert shown["higher_is_better"] == higher
    expected = 1 - online.value if metric.share else online.value
    assert shown["value"] == pytest.approx(
        found.score("online", "whole").accuracy.value if accuracy else expected
    )
    words = (metric.share or ("whose class is right" if accuracy else metric.words)).lower()
    page = report_html(found)
    assert words in page[: page.index('id="found"')].lower()
    assert words in " ".join(as_text(everything(found)).split()).lower()
    assert ("right is better" if higher else "left is better") in page
    # and compared with an earlier run
    before, now = (as_json(with_losses_times(found, factor)) for factor in (1, 1.5))
    lines = compared_with(before, now)
    (line,) = (one for one in lines if re.match("online model, .* whole", one.what))
    assert shown["measure"] in line.what
    assert line.change.endswith("worse")


def with_losses_times(found, factor):
    """The diagnosis with losses so many times as large, accuracies as small, and no intervals."""

    def sure(score):
        loss = Estimate(*3 * [factor * score.loss.value])
        share = score.accuracy and Estimate(*3 * [score.accuracy.value / factor])
        return replace(score, loss=loss, accuracy=share)

    answers = (replace(one, scores=tuple(map(sure, one.scores))) for one in found.answers)
    return replace(found, answers=tuple(answers))


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_losses_are_those_of_scikit_learn(metric):
    rng = np.random.default_rng(9)
    Y, scales = rng.normal(size=(40, 3)), [2.0, 0.5, 1.0]
    stream = as_stream(rng.normal(size=(40, 2)), Y, scales=scales)
    predicted = rng.normal(size=(40, 3))
    if metric.kinds == ("classification",):
        Y = np.eye(3)[rng.integers(3, size=40)]
        predicted = rng.dirichlet([1, 1, 1], size=40)
        stream = replace(stream, Y=Y, kind="classification", target_scales=np.ones(3))
    losses = metric.losses(predicted, stream)
    truth, said = stream.in_units(stream.Y), stream.in_units(predicted)
    assert metric.scored(losses.mean()) == pytest.approx(
        LITERAL[metric.name](truth, said), abs=1e-12
    )
    predicted[3, 1] = np.nan
    assert np.flatnonzero(np.isnan(metric.losses(predicted, stream))).tolist() == [3]


def test_a_function_of_the_mean():
    """The root of a mean: relative changes of it are smaller, and every interval follows."""
    by_mean = rt.diagnose(table("regression"), "y", metric="squared", lr=0.3)
    by_root = rt.diagnose(table("regression"), "y", metric=ROOT, lr=0.3)
    mean, root = (one.answer("whole").excess for one in (by_mean, by_root))
    assert 1 + root.value == pytest.approx(math.sqrt(1 + mean.value))
    for name in ("forgetting", "order_cost", "one_pass_cost"):
        mean, root = getattr(by_mean, name), getattr(by_root, name)
        assert 1 + root.value == pytest.approx(math.sqrt(1 + mean.value))
        width = (root.high - root.low) / (1 + root.value)
        assert width == pytest.approx((mean.high - mean.low) / (1 + mean.value) / 2, rel=0.25)
    mean, root = (one.score("online", "whole") for one in (by_mean, by_root))
    assert root.loss.value == pytest.approx(math.sqrt(mean.error.value))
    assert root.error == mean.error


def test_an_own_function_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_costs.py").write_text(
        "def cubed(truth, predicted):\n    return (abs(truth - predicted) ** 3).mean(axis=1)\n"
    )
    table("regression").write_csv("stream.csv")
    arguments = ["stream.csv", "--target", "y", "--lr", "0.3", "--json"]
    command = ["retarget", "diagnose", *arguments, "--metric", "my_costs:cubed"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    written = json.loads(capsys.readouterr().out)
    assert written["metric"] == "cubed"
    page = (tmp_path / "results/diagnosis/report.html").read_text("utf-8")
    assert "Mean of cubed" in page


def own(losses):
    return lambda truth, predicted: losses(truth)


@pytest.mark.parametrize(
    ("metric", "error", "words"),
    [
        ("mean", InvalidInputError, "metric .--metric. is 'mean'; expected one of auto, squared"),
        (3, InvalidTypeError, "metric .--metric. is an int"),
        ("nowhere:loss", InvalidInputError, "cannot be imported"),
        (own(lambda Y: -np.ones(len(Y))), InvalidInputError, "returned -1 for a row"),
        (own(lambda Y: 0.5), InvalidInputError, "one loss for each row"),
        (own(lambda Y: Y[0, 5]), InvalidInputError, "failed on targets .* IndexError"),
    ],
)
def test_what_is_no_metric(metric, error, words):
    with pytest.raises(error, match=words):
        rt.diagnose(table("regression"), "y", metric=metric, lr=0.3)


def test_a_metric_of_classes_is_not_for_numbers():
    with pytest.raises(InvalidInputError, match="is 'log-loss', which is for classes"):
        rt.diagnose(table("regression"), "y", metric="log-loss")


def test_runs_with_different_metrics_are_not_compared():
    found = rt.diagnose(table("regression"), "y", lr=0.3)
    with pytest.raises(InvalidInputError, match="compared by 'auto', this one by 'hits'"):
        compared_with(as_json(found), as_json(replace(found, metric=HITS)))
