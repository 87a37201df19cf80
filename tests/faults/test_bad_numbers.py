"""NaN and infinity in the middle of a stream: refused by row, and the stream goes on without."""

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.continual.corrector import NetworkCorrector
from retarget.errors import InvalidInputError
from support.lab_problems import mlp

pytestmark = pytest.mark.faults

BAD = [np.nan, np.inf, -np.inf]
PARTS = [slice(0, 7), slice(7, 16), slice(16, 30)]
LEARNER = rt.SGD(0.2, batch_size=2, momentum=0.5)


def stream(seed=3, n=30):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)), rng.normal(size=(n, 2))


def corrected(parts):
    corrector = rt.TargetCorrector(rt.RBF(1.4), LEARNER, gamma=0.6, block_size=4, ridge=0.2)
    for X, Y in parts(corrector.correct):
        yield corrector.correct(X, Y)
    yield corrector.flush()


def shifted(parts):
    tracker = rt.ShiftTracker(rt.RBF(1.4), LEARNER, gamma=0.6)
    for X, Y in parts(tracker.update):
        tracker.update(X, Y)
        yield tracker.effective_targets


def exactly_corrected(parts):
    tracker = rt.CorrectionTracker(rt.RBF(1.4), LEARNER, gamma=0.6)
    for X, Y in parts(tracker.update):
        tracker.update(X, Y)
        yield tracker.corrected_targets


STREAMING = {"corrector": corrected, "shift": shifted, "correction": exactly_corrected}


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("place", ["X", "Y"])
@pytest.mark.parametrize("kind", STREAMING)
def test_a_stream_goes_on_as_if_the_bad_portion_had_not_been(kind, place, value):
    X, Y = stream()

    def with_a_bad_one(feed):
        for rows in PARTS:
            bad = {"X": X[rows].copy(), "Y": Y[rows].copy()}
            bad[place][3, 1] = value
            with pytest.raises(InvalidInputError, match=f"{place} holds {value} in row") as raised:
                feed(bad["X"], bad["Y"])
            assert f"row {rows.start + 3};" in str(raised.value)  # counted over the whole stream
            yield X[rows], Y[rows]

    def without(feed):
        return ((X[rows], Y[rows]) for rows in PARTS)

    for found, expected in zip(
        STREAMING[kind](with_a_bad_one), STREAMING[kind](without), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("place", ["X", "Y"])
def test_a_network_corrector_goes_on(place, value):
    X, Y = stream(n=24)
    one, other = (NetworkCorrector(mlp(1, 4, 2), LEARNER, 2.0, 4) for _ in range(2))
    for rows in (slice(0, 8), slice(8, 24)):
        bad = {"X": X[rows].copy(), "Y": Y[rows].copy()}
        bad[place][5, 0] = value
        with pytest.raises(InvalidInputError, match=f"[AXY] holds {value} in row"):
            one.correct(bad["X"], bad["Y"])
        np.testing.assert_array_equal(
            one.correct(X[rows], Y[rows]), other.correct(X[rows], Y[rows])
        )


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("correction", ["none", "exact", "iterative"])
def test_an_estimator_goes_on(correction, value):
    X, Y = stream()
    options = {"width": 1.4, "lr": 0.2, "gamma": 0.6, "correction": correction}
    one, other = (rt.OnlineKernelRegressor(**options) for _ in range(2))
    for rows in PARTS:
        bad = X[rows].copy()
        bad[2, 2] = value
        with pytest.raises(ValueError, match="Input X contains (NaN|infinity)"):
            one.partial_fit(bad, Y[rows])
        one.partial_fit(X[rows], Y[rows])
        other.partial_fit(X[rows], Y[rows])
    np.testing.assert_array_equal(one.predict(X), other.predict(X))


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("place", ["X", "Y"])
def test_a_diagnosis_names_the_column(place, value):
    X, Y = stream()
    bad = {"X": X, "Y": Y}
    bad[place][17, 1] = value
    told = {"X": "infinite: 'x1' 1", "Y": "'y1' (in 1; the first is row 17|is infinite in 1 rows)"}
    with pytest.raises(InvalidInputError, match=told[place]):
        rt.diagnose(X, Y, lr=0.1, gamma=1.0)


@pytest.mark.parametrize("text", ["inf", "-inf", "1e999"])
def test_a_cell_of_a_file_that_is_not_finite_is_named(command, monkeypatch, tmp_path, text):
    monkeypatch.chdir(tmp_path)
    X, _ = stream()
    table = pl.DataFrame({"a": X[:, 0], "y": X[:, 1]}).write_csv().splitlines()
    table[18] = f"{text},0.5"
    (tmp_path / "t.csv").write_text("\n".join(table) + "\n")
    code, shown = command("diagnose", "t.csv", "--target", "y")
    assert code == 2
    assert "Traceback" not in shown
    assert "values are missing or infinite: 'a' 1 (of 30 rows)" in shown
    assert not (tmp_path / "results").exists()
