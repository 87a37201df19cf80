"""What is said and recommended where the user's own model was run, or its predictions logged."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.diagnosis.report.export import as_json, corrected_table
from retarget.diagnosis.result import Estimate
from support import real_diagnosis as real
from support.command_line import run
from support.real_diagnosis import UNDEFINED

WORSE, DOUBTFUL = Estimate(0.2, 0.1, 0.3), Estimate(0.1, -0.2, 0.3)


def sorted_rows(n=300, seed=0):
    """A steep function, learned from one side to the other."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-2, 2, size=(n, 1)), axis=0)
    return X, 3 * X[:, 0] + np.sin(3 * X[:, 0]) + 0.05 * rng.normal(size=n)


def scoring(**errors):
    """The scores of a model, with other errors of some ways."""
    scores = real.model_regression().model.scores
    return {"scores": tuple(replace(s, error=errors.get(s.way, s.error)) for s in scores)}


SAID = [
    ({}, "headline", "80% more error than as a batch model; in random order its error is 2"),
    (scoring(batch=UNDEFINED), "headline", "SGDRegressor, row by row: in random order"),
    (scoring(**{"as it came": UNDEFINED}), "headline", "diverges on this stream"),
    ({"order": WORSE}, "headline", "in random order its error is 20% higher (10% to 30%)"),
    ({"orders": ()}, "headline", "The error of SGDRegressor on the rows learned is"),
    ({"orders": (), "remembered": UNDEFINED}, "headline", "The error of SGDRegressor is 9"),
    ({"failures": ("It failed.",)}, "findings", "It failed."),
    ({}, "findings", "Mean squared error of SGDRegressor: as it came 9; random order 7;"),
    ({"agreement": -1.0}, "findings", "agrees with SGDRegressor to 0%"),
    ({}, "recommendations", "random order, if you can: over 12 orders its error is 22% lower"),
    ({}, "recommendations", "Train SGDRegressor on iteratively corrected targets: trained on"),
    ({"corrected_size": 1e4}, "recommendations", "targets: they reach 10,000 standard dev"),
    ({"closed": DOUBTFUL}, "recommendations", "Do not train SGDRegressor on corrected targets"),
]


def test_what_is_said_of_a_model():
    for changes, part, words in SAID:
        said = getattr(real.with_model(real.regression(), **changes).verdict, part)
        assert words in (said if part == "headline" else " ".join(said))


def test_targets_that_did_not_help_the_model_are_not_given():
    helped = real.with_model(real.regression())
    targets = corrected_table(helped)["model:humidity"].to_numpy()
    in_units = helped.stream.in_units(helped.model.corrected)[:, 1]
    np.testing.assert_allclose(targets, in_units)
    found = real.with_model(real.regression(), closed=DOUBTFUL)
    assert not any("Train" in text.split()[0] for text in found.verdict.recommendations)
    assert "model:humidity" not in corrected_table(found).columns
    assert "model:humidity" in corrected_table(found, force=True).columns


def test_a_log_of_predictions_tells_what_was_forgotten():
    X, y = sorted_rows(120)
    w, said = 0.0, []
    for x, target in zip(X[:, 0], y, strict=True):
        said.append(w * x)
        w += 0.3 * (target - w * x) * x
    frame = {"x": X[:, 0], "y": y, "said": said, "now": w * X[:, 0]}
    found = rt.diagnose(frame, "y", predictions="said", predictions_after="now")
    assert found.evaluation == "progressive"
    assert found.stream.feature_names == ("x",)
    assert found.model.prequential.value == pytest.approx(np.mean((y - said) ** 2))
    assert found.model.remembered.value == pytest.approx(np.mean((y - w * X[:, 0]) ** 2))
    assert "on the rows learned is" in found.verdict.headline
    arrays = rt.diagnose(X, y, predictions=np.array(said), predictions_after=w * X[:, 0])
    assert arrays.model.remembered == found.model.remembered
    told = as_json(found)["model"]
    assert told["remembered"]["value"] == found.model.remembered.value
    assert not any(isinstance(part, list) and len(part) == 120 for part in told.values())
    with pytest.raises(rt.errors.InvalidInputError, match="names 2 columns for 1 target"):
        rt.diagnose(frame, "y", predictions=["said", "now"])


def test_a_model_from_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    X, y = sorted_rows(120)
    pl.DataFrame({"x": X[:, 0], "y": y}).write_csv("t.csv")
    asked = ("diagnose", "t.csv", "--target", "y", "--out", "out", "--evaluation", "random")
    model = ("--model", "sklearn.linear_model:SGDRegressor", "--model-options", "eta0=0.02")
    code, shown = run(monkeypatch, capsys, *asked, *model, "--model-options", "penalty=null")
    assert code == 0
    assert "SGDRegressor" in shown
    assert "0.02 / t^0.25" in shown
    for wrong, message in (
        ((*model[:2], "--model-options", "eta=1"), "failed when it was called with eta=1"),
        ((*model[:2], "--model-options", "eta0"), "expected NAME=VALUE"),
        (("--model-options", "eta0=1"), "there is no model"),
        ((*model[:2], "--predictions", "x"), "give one of them"),
        (("--predictions", "said"), "there is no column 'said'"),
    ):
        code, shown = run(monkeypatch, capsys, *asked, *wrong)
        assert (code, message in shown) == (2, True), shown
