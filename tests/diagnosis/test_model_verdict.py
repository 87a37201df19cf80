"""What is said and recommended where the user's own model was run, or its predictions logged."""

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import SGDRegressor

import retarget as rt
from retarget.diagnosis.report.export import as_json, corrected_table
from support.command_line import run
from support.user_models import network


def sorted_rows(n=300, seed=0):
    """A steep function, learned from one side to the other."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-2, 2, size=(n, 1)), axis=0)
    return X, 3 * X[:, 0] + np.sin(3 * X[:, 0]) + 0.05 * rng.normal(size=n)


def test_corrected_targets_are_recommended_where_the_model_was_seen_to_follow_them():
    X, y = sorted_rows()
    model = SGDRegressor(penalty=None, learning_rate="constant", eta0=0.05)
    found = rt.diagnose(X, y, kernel="linear", lr=0.05, model=model, evaluation="random")
    assert found.model.agreement == pytest.approx(1, abs=1e-6)
    assert found.verdict.headline.startswith("SGDRegressor, row by row, has")
    assert found.model.helped
    assert any(text.startswith("Train SGDRegressor") for text in found.verdict.recommendations)
    assert any(text.startswith("Show SGDRegressor") for text in found.verdict.recommendations)
    targets = corrected_table(found)["model:y"].to_numpy()
    np.testing.assert_allclose(targets, found.stream.in_units(found.model.corrected)[:, 0])


def test_targets_that_do_not_transfer_to_the_network_are_not_recommended():
    X, y = sorted_rows(200)
    options = {"lr": 0.003, "gamma": 0.3, "ridge": 0.0, "width": 1.0, "evaluation": "random"}
    found = rt.diagnose(X, y, model=network(1, hidden=64), **options)
    assert found.model.agreement > 0.9  # the theory describes it, and yet
    assert not found.model.helped
    assert not any("Train" in text.split()[0] for text in found.verdict.recommendations)
    assert "model:y" not in corrected_table(found).columns
    assert "model:y" in corrected_table(found, force=True).columns


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
    assert "Asked again at the end" in found.verdict.headline
    arrays = rt.diagnose(X, y, predictions=np.array(said), predictions_after=w * X[:, 0])
    assert arrays.model.remembered == found.model.remembered
    told = as_json(found)["model"]
    assert told["remembered"]["value"] == found.model.remembered.value
    assert not any(isinstance(part, list) and len(part) == 120 for part in told.values())
    with pytest.raises(rt.errors.InvalidInputError, match="names 2 columns for 1 target"):
        rt.diagnose(frame, "y", predictions=["said", "now"])
    with pytest.raises(rt.errors.InvalidInputError, match="a model and a log"):
        rt.diagnose(frame, "y", predictions="said", model=SGDRegressor())


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
        (("--model", "sklearn.linear_model:Nothing"), "cannot be imported"),
        ((*model[:2], "--model-options", "eta=1"), "failed when it was called with eta=1"),
        ((*model[:2], "--model-options", "eta0"), "expected NAME=VALUE"),
        (("--model-options", "eta0=1"), "there is no model"),
        ((*model[:2], "--predictions", "x"), "expected one of them"),
        (("--predictions", "said"), "there is no column 'said'"),
    ):
        code, shown = run(monkeypatch, capsys, *asked, *wrong)
        assert (code, message in shown) == (2, True), shown
