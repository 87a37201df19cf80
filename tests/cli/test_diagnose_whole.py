"""The commands from a file to files, with the computation and the report in their places."""

import json
import sys

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.cli import main

N, LR, GAMMA, WIDTH = 90, 0.3, 0.7, 1.9
LEARNER = rt.SGD(lr=LR, batch_size=3)


@pytest.fixture
def table(tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    columns = {"t": rng.permutation(N), "device": ["=1+1", "<script>alert(1)</script>", "c"] * 30}
    numbers = {"a": rng.normal(3, 2, N), "b": rng.normal(size=N), "price": rng.normal(100, 20, N)}
    made = pl.DataFrame(columns | numbers)
    made.write_csv(tmp_path / "t.csv")
    monkeypatch.chdir(tmp_path)
    return made.sort("t")


def asked(command, *more):
    options = ("--lr", LR, "--gamma", GAMMA, "--width", WIDTH, "--batch-size", 3)
    return (command, "t.csv", "--target", "price", "--time", "t", "--group", "device", *options,
            *more)  # fmt: skip


def literal(table, learned):
    """K, Y and the target's scale and mean, by hand: standardised by the rows learned from."""
    X = table.select("a", "b").to_numpy()
    X = (X - X[:learned].mean(axis=0)) / X[:learned].std(axis=0)
    y = table["price"].to_numpy()
    mean, scale = y[:learned].mean(), y[:learned].std()
    squares = ((X[:learned, None] - X[None, :learned]) ** 2).sum(axis=2)
    return np.exp(-squares / WIDTH**2), (y[:learned] - mean) / scale, mean, scale


def test_the_shifts_in_the_file_are_those_of_the_theory(monkeypatch, capsys, tmp_path, table):
    monkeypatch.setattr(sys, "argv", ["retarget", *map(str, asked("diagnose", "--json"))])
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.err, printed.out.count("\n")) == (0, "", 1)
    found = json.loads(printed.out, parse_constant=pytest.fail)
    assert (found["kind"], found["targets"]) == ("regression", ["price"])
    assert (found["rows"], found["test_rows"]) == (72, 18)
    files = {f"results/diagnosis/{name}" for name in ("shift.parquet", "corrected.parquet")}
    assert set(found["files"]) == files | {"results/diagnosis/report.html"}
    shift = pl.read_parquet(tmp_path / "results/diagnosis/shift.parquet")
    K, y, mean, scale = literal(table, 72)
    effective = rt.effective_targets(K, y, LEARNER, GAMMA)
    np.testing.assert_allclose(shift["effective:price"], effective * scale + mean, rtol=1e-9)
    np.testing.assert_allclose(shift["shift:price"], (effective - y) * scale, atol=1e-8)
    errors = rt.prequential_errors(K, y, LEARNER)
    np.testing.assert_allclose(shift["error:price"], errors * scale, atol=1e-8)
    np.testing.assert_allclose(shift["true:price"], table["price"][:72], rtol=1e-12)
    assert shift["group"].to_list() == table["device"][:72].to_list()
    assert shift["time"].to_list() == [str(time) for time in table["t"][:72]]
    report = (tmp_path / "results/diagnosis/report.html").read_text()
    assert "<script>alert(1)" not in report
    assert "--width 1.9" in report
    options = {"learner": LEARNER, "gamma": GAMMA, "width": WIDTH}
    diagnosis = rt.diagnose(table.drop("t"), "price", groups="device", **options)
    for name in ("effective:price", "shift_size", "density"):  # Python says the same
        np.testing.assert_allclose(diagnosis.table()[name], shift[name], rtol=1e-9)


def test_the_corrected_targets_in_the_file_are_those_of_the_theory(command, tmp_path, table):
    more = ("--out", "c.csv", "--ridge", 0.2, "--block-size", 6)
    assert command(*asked("correct", *more))[0] == 0
    corrected = pl.read_csv(tmp_path / "c.csv")
    K, y, mean, scale = literal(table, N)
    exact = rt.corrected_targets(K, y, LEARNER, GAMMA)
    np.testing.assert_allclose(corrected["corrected:price"], exact * scale + mean, rtol=1e-8)
    block = rt.iterative_targets(K, y, LEARNER, GAMMA, block_size=6, ridge=0.2)
    np.testing.assert_allclose(corrected["iterative:price"], block * scale + mean, rtol=1e-8)
