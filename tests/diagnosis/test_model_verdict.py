"""What is said and recommended where the user's own model was run, or its predictions logged."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.diagnosis.answers import UNKNOWN, Estimate, Forgetting
from retarget.diagnosis.report.export import as_json, corrected_table
from retarget.diagnosis.report.verdict import verdict
from support import made_diagnosis as made
from support.command_line import run
from support.user_models import OneByOne

BETTER, WORSE = Estimate(-0.2, -0.28, -0.14), Estimate(0.3, 0.1, 0.5)
UNCLEAR = Estimate(0.1, -0.2, 0.3)


def sorted_rows(n=300, seed=0):
    """A steep function, learned from one side to the other."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-2, 2, size=(n, 1)), axis=0)
    return X, 3 * X[:, 0] + np.sin(3 * X[:, 0]) + 0.05 * rng.normal(size=n)


def judged(*, loss=None, **changes):
    """A model whose ways of training changed its loss so on the whole stream and the next rows."""
    found = made.model_regression()
    changes = {"random order": (UNCLEAR,) * 2, "batch": (UNCLEAR,) * 2} | {
        name.replace("_", " "): value for name, value in changes.items()
    }
    scores = []
    for score in found.model.scores:
        change = changes.get(score.way, (BETTER, BETTER))[score.question == "next"]
        error = loss or score.error
        scores.append(replace(score, change=change, error=error))
    unknown = dict.fromkeys(("forgetting", "order_cost", "one_pass_cost"))
    return replace(found, model=replace(found.model, scores=tuple(scores), **unknown))


def behind(**changes):
    """A model that is clearly behind its own batch training, on both questions."""
    return judged(**{"batch": (BETTER, BETTER)} | changes)


def test_each_change_against_the_model_itself():
    helped = verdict(behind(corrected=(BETTER, BETTER)))
    assert helped.kind == "behind"
    assert sorted(text.split(":")[0] for text in helped.recommendations) == [
        "Train SGDRegressor as a batch model, if you can keep the rows",
        "Train SGDRegressor on iteratively corrected targets",
    ]
    mixed = " ".join(verdict(behind(corrected=(BETTER, WORSE))).recommendations)
    assert "If rows like the old ones come again, train SGDRegressor on iteratively" in mixed


def test_a_model_worse_than_the_mean():
    poor = Estimate(0.5, 0.2, 0.9)  # how far it is above the mean
    found = judged(corrected=(UNCLEAR, UNCLEAR))
    scores = tuple(
        replace(one, constant=poor) if (one.way, one.question) == ("as it came", "next") else one
        for one in found.model.scores
    )
    advice = verdict(replace(found, model=replace(found.model, scores=scores))).recommendations
    assert advice[0].startswith("Do not rely on SGDRegressor on the next rows: it is worse than pr")
    assert (
        advice[-1]
        == "Nothing that was tried is clearly better: try another model or other features."
    )


def test_findings_of_kernel_learners_and_models():
    """The online model of the other findings has a kernel of its own, not the model's."""
    found = verdict(judged()).findings
    (border,) = (k for k, text in enumerate(found) if text.startswith("All that follows"))
    assert "not about SGDRegressor" in found[border]
    assert any("prediction of SGDRegressor" in text for text in found[:border])
    assert not any("online model" in text for text in found[:border])
    assert any("later rows moved a row's target" in text for text in found[border:])


def test_what_is_not_clear_is_called_so():
    unclear = verdict(judged(corrected=(UNCLEAR, UNCLEAR)))
    assert unclear.kind == "not clear"
    assert unclear.headline.startswith("It is not clear whether SGDRegressor is behind its own ba")
    assert unclear.recommendations == (
        "Leave SGDRegressor as it is for now: it is not clear that it is behind.",
    )
    advice = verdict(behind(corrected=(UNCLEAR, UNCLEAR))).recommendations
    assert any(text.startswith("It is not clear whether to train SGDReg") for text in advice)
    for effects in ((WORSE, WORSE), (UNCLEAR, WORSE)):
        advice = verdict(behind(corrected=effects)).recommendations
        assert any(text.startswith("Do not train SGDRegressor on corrected") for text in advice)
    none = verdict(behind(corrected=(UNKNOWN, UNKNOWN))).recommendations
    assert not any("corrected" in text for text in none)


def test_compared_with_its_own_batch_training():
    much = Estimate(-0.6, -0.7, -0.5)
    far = verdict(behind(batch=(much, UNCLEAR)))
    assert far.kind == "behind"
    assert "2.5 times that of its own batch training (2 to 3.33)" in far.headline  # 1 / (1 - 0.6)
    for change, kind in ((Estimate(0.0, -0.05, 0.05), "as good"), (WORSE, "as good")):
        assert verdict(judged(batch=(change, change))).kind == kind
    costs = {"one_pass_cost": Estimate(0.9, 0.5, 1.4), "order_cost": Estimate(0.1, -0.2, 0.5)}
    found = behind()
    one_pass = verdict(replace(found, model=replace(found.model, **costs)))
    assert one_pass.kind == "one pass"
    assert "SGDRegressor" in one_pass.headline
    # what the online learner of the diagnosis forgot is not what the model forgot
    forgot = Forgetting(
        2.0, 1.0, 3.0, 50, made.forgetting().curve, 12.0, Estimate(-0.5, -0.6, -0.4)
    )
    assert verdict(replace(found, forgetting=forgot)).kind == "behind"
    its_own = replace(found, model=replace(found.model, forgetting=forgot))
    assert verdict(its_own).kind == "forgotten"
    assert "3 times" in verdict(its_own).headline


def test_orders_and_batch_fits_in_one_table():
    much = Estimate(-0.6, -0.7, -0.5)
    found = verdict(judged(random_order=(BETTER, UNCLEAR), batch=(much, BETTER)))
    starts = [text.split(",")[0] for text in found.recommendations]
    assert starts[:2] == [  # the most useful first
        "Train SGDRegressor as a batch model",
        "Show SGDRegressor the rows in random order",
    ]


def test_large_targets_and_diverging_models():
    found = behind(corrected=(BETTER, BETTER))
    large = replace(found, model=replace(found.model, corrected_size=1e4))
    assert any("they reach 10,000 standard dev" in one for one in verdict(large).recommendations)
    lost = verdict(judged(loss=Estimate(1e9, 1e9, 1e9)))
    assert lost.kind == "diverged"
    assert lost.headline == "SGDRegressor diverges on this stream: its predictions are useless."


def test_divergence_whatever_the_units():
    X, y = sorted_rows(120)
    for units in (1e-4, 1e4):
        found = rt.diagnose(X, units * y, model=OneByOne(0.02))
        assert found.verdict.kind != "diverged"
        assert rt.diagnose(X, units * y, model=OneByOne(5.0)).verdict.kind == "diverged"


def test_the_file_of_a_models_targets():
    helped = judged(corrected=(BETTER, UNCLEAR))
    table = corrected_table(helped)
    in_units = helped.stream.in_units(helped.model.corrected)[:, 1]
    np.testing.assert_allclose(table["SGDRegressor:humidity"], in_units)
    assert not any("iterative" in name for name in table.columns)
    useless = judged(corrected=(UNCLEAR, UNCLEAR))
    assert corrected_table(useless) is None
    assert "SGDRegressor:humidity" in corrected_table(useless, force=True).columns


def test_a_log_of_predictions_tells_what_was_forgotten():
    X, y = sorted_rows(120)
    w, said = 0.0, []
    for x, target in zip(X[:, 0], y, strict=True):
        said.append(w * x)
        w += 0.3 * (target - w * x) * x
    frame = {"x": X[:, 0], "y": y, "said": said, "now": w * X[:, 0]}
    found = rt.diagnose(frame, "y", model={"before": "said", "after": "now"})
    assert [one.question for one in found.answers] == ["progressive"]
    assert found.stream.feature_names == ("x",)
    assert found.model.prequential.value == pytest.approx(np.mean((y - said) ** 2))
    assert found.model.remembered.value == pytest.approx(np.mean((y - w * X[:, 0]) ** 2))
    assert "at the end; just before each row was learned" in found.verdict.headline
    arrays = rt.diagnose(X, y, model={"before": np.array(said), "after": w * X[:, 0]})
    assert arrays.model.remembered == found.model.remembered
    told = as_json(found)["model"]
    assert told["remembered"]["value"] == found.model.remembered.value
    assert not any(isinstance(part, list) and len(part) == 120 for part in told.values())
    for log, message in (
        (
            {"before": ["said", "now"]},
            r"model\['before'\] .--predictions. names 2 columns for",
        ),
        ({"beside": "said"}, "a dict with 'beside'; expected a log of predictions: 'before' each"),
    ):
        with pytest.raises(rt.errors.InvalidInputError, match=message):
            rt.diagnose(frame, "y", model=log)


def test_a_model_from_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    X, y = sorted_rows(120)
    pl.DataFrame({"x": X[:, 0], "y": y}).write_csv("t.csv")
    asked = ("diagnose", "t.csv", "--target", "y", "--out", "out", "--evaluation", "whole")
    model = ("--model", "sklearn.linear_model:SGDRegressor", "--model-options", "eta0=0.02")
    more = ("--model-options", "penalty=null", "--verbose")
    code, shown = run(monkeypatch, capsys, *asked, *model, *more)
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


def test_a_model_that_fails_half_way(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    X, y = sorted_rows(120)
    pl.DataFrame({"x": X[:, 0], "y": y}).write_csv("t.csv")
    asked = ("diagnose", "t.csv", "--target", "y", "--out", "out")
    model = ("--model", "support.user_models:FailsLater", "--model-options", "row=30")
    code, shown = run(monkeypatch, capsys, *asked, *model)
    assert code == 1
    assert "out of order, after it had learned 29 of the stream's 72 rows" in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()
