"""The JSON form: its schema, and comparing two runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

import retarget as rt
from retarget.diagnosis.report.comparison import as_estimate, compared_with, read_earlier
from retarget.diagnosis.report.export import as_json
from retarget.diagnosis.report.schema import DIAGNOSIS_JSON
from retarget.errors import InvalidInputError
from support import made_diagnosis as made
from support.diagnosis_streams import classes

SCHEMA = Path(__file__).parents[2] / "docs" / "diagnosis.schema.json"


@pytest.fixture(scope="module")
def runs():
    stream = classes(200)
    labels = np.array(list("abc"))[stream.Y.argmax(1)]
    return [rt.diagnose(stream.X, labels, lr=lr) for lr in (0.05, 0.8)]


def test_the_schema_in_the_docs():
    assert json.loads(SCHEMA.read_text("utf-8")) == DIAGNOSIS_JSON.model_json_schema(), (
        "write it anew: python -m retarget.diagnosis.report.schema > docs/diagnosis.schema.json"
    )


def test_what_is_written_is_what_the_schema_says(runs, tmp_path):
    path = tmp_path / "found.json"
    runs[0].to_json(path)
    written = json.loads(path.read_text("utf-8"))
    assert written["schema_version"] == 1
    read = DIAGNOSIS_JSON.model_validate(written)

    def unknown(part, where="diagnosis"):
        """Names of fields that the schema does not have."""
        for name in part.model_extra:
            yield f"{where}.{name}"
        for name in type(part).model_fields:
            value = getattr(part, name)
            below = value.values() if isinstance(value, dict) else value
            for one in below if isinstance(value, dict | list) else [value]:
                if isinstance(one, BaseModel):
                    yield from unknown(one, f"{where}.{name}")

    assert list(unknown(read)) == []
    assert written["kernel"]["width"] == runs[0].kernel.width
    assert written["prequential_error"] == pytest.approx(runs[0].prequential_error)
    for answer, found in zip(written["answers"], runs[0].answers, strict=True):
        for score, kept in zip(answer["scores"], found.scores, strict=True):
            assert as_estimate(score["error"]) == pytest.approx(kept.error)
            assert as_estimate(score["accuracy"]) == pytest.approx(kept.accuracy)
    assert written["verdict"]["headline"] == runs[0].verdict.headline
    assert [one["kind"] for one in written["findings"]] == [one.kind for one in runs[0].findings]


def test_flat_numbers(runs):
    numbers = runs[0].numbers()
    assert all(isinstance(value, float) and np.isfinite(value) for value in numbers.values())
    assert all(re.fullmatch(r"[\w/]+", name) for name in numbers)
    online = runs[0].score("online", "next")
    assert numbers["next/online/accuracy"] == online.accuracy.value
    assert numbers["whole/excess"] == runs[0].answer("whole").excess.value


def test_what_was_forgotten_has_the_same_names_everywhere(runs):
    found = runs[0]
    written, numbers = as_json(found), found.numbers()
    for name in ("order_cost", "one_pass_cost"):
        assert written[name] == getattr(found, name)._asdict()
        for end in ("value", "low", "high"):
            assert numbers[f"{name}/{end}"] == written[name][end]
    for end in ("value", "low", "high"):
        assert numbers[f"forgetting/{end}"] == written["forgetting"][end]
        assert written["forgetting"][end] == getattr(found.forgetting, end)
    curve = written["forgetting"]["curve"]
    assert {"age", "value", "low", "high"} <= set(curve[0])
    assert [point["age"] for point in curve] == found.forgetting.curve["age"].to_list()
    assert found.forgetting.half_life is not None
    assert numbers["forgetting/half_life"] == written["forgetting"]["half_life"]
    assert {"kind", "headline", "recommendations"} <= set(written["verdict"])


def test_numbers_of_the_user_s_model():
    found = made.model_regression()
    numbers = found.numbers()
    assert numbers["model/forgetting/value"] == found.model.forgetting.value
    assert numbers["model/order_cost/low"] == found.model.order_cost.low
    assert numbers["forgetting/value"] == found.forgetting.value
    nothing = made.progressive().numbers()
    assert not any("forgetting" in name or "cost" in name for name in nothing)


def test_which_class_was_taken_for_which(runs):
    answer = runs[0].answer("whole")
    for score, written in zip(answer.scores, as_json(runs[0])["answers"][0]["scores"], strict=True):
        counts = np.array(score.confusion)
        assert written["confusion"] == counts.tolist()
        right = np.diag(counts) / counts.sum(axis=1)
        assert right == pytest.approx([one.value for one in score.recall])
        assert counts.trace() / counts.sum() == pytest.approx(score.accuracy.value)


def test_forgetting_is_compared_as_well():
    before, now = made.regression(), made.model_regression()
    later = replace(now, forgetting=made.forgetting(40.0), one_pass_cost=None)
    lines = {line.what: line for line in compared_with(as_json(before), as_json(later))}
    assert lines["forgetting"].before == "3.5 times (3 to 4.5)"
    assert lines["forgetting"].change.endswith("of the error worse")
    assert lines["cost of the order"].change == "the same"
    assert "cost of a single pass" not in lines
    assert not any("SGDRegressor" in what for what in lines)  # there was no model before
    model = replace(now.model, forgetting=made.forgetting(2.0))
    changed = replace(now, model=model)
    lines = {line.what: line for line in compared_with(as_json(now), as_json(changed))}
    assert lines["SGDRegressor, forgetting"].change == "80% of the error better"
    assert lines["SGDRegressor, cost of the order"].change == "the same"


def test_two_runs_are_compared_line_by_line(runs, tmp_path):
    path = tmp_path / "before.json"
    runs[1].to_json(path)
    lines = {line.what: line for line in compared_with(read_earlier(path), as_json(runs[0]))}
    online = lines["online model, accuracy, rows from the whole stream"]
    before, now = (run.score("online", "whole").accuracy for run in (runs[1], runs[0]))
    clear = before.high < now.low or now.high < before.low
    assert online.change.endswith(("better", "worse")) == clear
    assert lines["Verdict"].before == runs[1].verdict.kind
    same = compared_with(read_earlier(path), as_json(runs[1]))
    assert {line.change for line in same} == {"the same", ""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not the result of a diagnosis"),
        ("[]", "is not the result of a diagnosis"),
        ('{"schema_version": 9}', "schema_version"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_no_earlier_run(tmp_path, text, message):
    path = tmp_path / "old.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_earlier(path)


def test_runs_of_other_targets_are_not_compared(runs):
    earlier = as_json(runs[0])
    other = as_json(runs[0]) | {"targets": ["x", "y"]}
    with pytest.raises(InvalidInputError, match="compare runs with the same targets"):
        compared_with(earlier, other)
