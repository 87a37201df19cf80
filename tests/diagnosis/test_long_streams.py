"""Streams that are read in portions and kept in files, beside the same streams in memory."""

import json
import shutil
from functools import partial

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.diagnosis import measuring
from retarget.diagnosis.measure import along, holdout, recall
from retarget.diagnosis.report import export
from retarget.diagnosis.report.export import as_json, shift_table
from retarget.diagnosis.tables import in_order, landing, portions
from retarget.errors import InvalidInputError, RetargetError
from retarget.row_files import RowFiles, shuffled
from support.command_line import run

ROWS = 900
# no memory for features that are kept, which would be rounded to single precision
OPTIONS = {
    "features": 40,
    "gamma": 0.3,
    "block_size": 8,
    "evaluation": "next",
    "max_memory": 1000,
}


@pytest.fixture(autouse=True)
def portions_of_few_rows(monkeypatch):
    """Every table is too long to be held, and comes in many portions."""
    monkeypatch.setattr(portions, "MOST_ROWS_HELD", 100)
    monkeypatch.setattr(portions, "PORTION_ROWS", 128)
    monkeypatch.setattr(in_order, "PORTION_ROWS", 77)
    monkeypatch.setattr(in_order, "BUCKET_ROWS", 200)
    monkeypatch.setattr(in_order, "KEPT_ROWS", 50)
    monkeypatch.setattr(landing, "SAMPLE_ROWS", 300)


@pytest.fixture
def command(monkeypatch, capsys):
    return partial(run, monkeypatch, capsys)


def table_of(rows=ROWS, seed=0):
    """Numbers, a category, a group and a time, in order; the target drifts."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 3))
    color = random.choice(["red", "green", "blue"], rows)
    y = np.sin(X[:, 0]) + 0.5 * (color == "red") + np.linspace(0, 1, rows)
    columns = {f"x{number}": column for number, column in enumerate(X.T)}
    group = random.choice(["a", "b", "c"], rows)
    moment = np.datetime64("2026-01-01T00:00:00", "us") + 60_000_000 * np.arange(rows)
    return pl.DataFrame(columns | {"color": color, "user": group, "at": moment, "y": y})


def in_memory(table, **options):
    return rt.diagnose(table, "y", group="user", time="at", **OPTIONS | options)


def in_portions(table, **options):
    return rt.diagnose(table.lazy(), "y", group="user", time="at", **OPTIONS | options)


def assert_alike(long, short, tolerance=1e-9):
    """Every number of every row, of the scores and of the groups."""
    assert long.all_rows is not None
    assert short.all_rows is None
    assert long.stream.length == len(short.stream)
    for name in ("effective", "corrected", "iterative", "prequential", "density"):
        expected = getattr(short, name)
        scale = np.abs(expected).max()
        got = np.array(getattr(long.all_rows, name))
        assert np.abs(got - expected).max() <= tolerance * scale, name
        assert np.abs(getattr(long, name) - expected).max() <= tolerance * scale, name
    assert long.lr.value == pytest.approx(short.lr.value, rel=1e-9)
    assert long.hindsight == pytest.approx(short.hindsight, rel=tolerance)
    assert long.prequential_error == pytest.approx(short.prequential_error, rel=tolerance)
    assert long.shift_summary == pytest.approx(short.shift_summary, rel=tolerance)
    assert long.target_size == pytest.approx(short.target_size, rel=tolerance)
    for one, other in zip(long.scores, short.scores, strict=True):
        assert one.error == pytest.approx(other.error, rel=tolerance)
    assert long.groups.names == short.groups.names
    assert long.groups.counts.tolist() == short.groups.counts.tolist()
    assert np.allclose(long.groups.size, short.groups.size, rtol=tolerance)
    assert np.allclose(long.groups.own, short.groups.own, rtol=tolerance)


@pytest.mark.parametrize("batch", [1, 4])
def test_in_files_as_in_memory(batch):
    table = table_of()
    learner = rt.SGD(lr=0.05, batch_size=batch, reduction="mean")
    long = in_portions(table, learner=learner)
    short = in_memory(table, learner=learner)
    assert_alike(long, short)
    assert long.stream.feature_names == short.stream.feature_names
    assert long.stream.groups.tolist() == short.stream.groups.tolist()
    assert long.stream.rows.tolist() == short.stream.rows.tolist()
    assert any(note.startswith("Held out 90 rows") for note in long.stream.notes)
    assert long.answer("next").excess.value == pytest.approx(short.answer("next").excess.value)


def test_rows_are_sorted_on_disk():
    table = table_of()
    mixed = table.sample(fraction=1.0, shuffle=True, seed=3)
    long = in_portions(mixed)
    short = in_memory(mixed)
    assert_alike(long, short)
    assert long.stream.rows.tolist() == short.stream.rows.tolist()
    assert [time[:16] for time in long.stream.times[:2]] == ["2026-01-01 00:00", "2026-01-01 00:01"]
    assert any("Sorted the rows" in note for note in long.stream.notes)


def test_equal_times_keep_their_order():
    table = (
        table_of()
        .with_columns(pl.col("at").dt.truncate("1h"))
        .sample(fraction=1.0, shuffle=True, seed=5)
    )
    rows = [in_portions(table).stream.rows.tolist(), in_memory(table).stream.rows.tolist()]
    assert rows[0] == rows[1]


def test_forgetting_is_the_same(monkeypatch):
    # one fold; random orders are other orders in files
    monkeypatch.setattr(recall, "LONG_ROWS", 100)
    monkeypatch.setattr(holdout, "RECALL_WORK", 0)
    monkeypatch.setattr(holdout, "COMPLETE_WORK", 0)
    table = table_of()
    long = in_portions(table, evaluation="both")
    short = in_memory(table, evaluation="both")
    assert_alike(long, short)
    assert long.forgetting.value == pytest.approx(short.forgetting.value, rel=1e-9)
    assert np.allclose(long.forgetting.curve["value"], short.forgetting.curve["value"])
    for one, other in [
        (long.order_cost, short.order_cost),
        (long.one_pass_cost, short.one_pass_cost),
    ]:
        assert other.low <= one.value <= other.high


def test_classes_that_come_late():
    """A class that comes once in the sample's gaps is a class."""
    table = table_of().with_columns(
        pl.when(pl.int_range(ROWS).is_in([701, 707]))
        .then(pl.lit("rare"))
        .when(pl.col("y") > 0.5)
        .then(pl.lit("high"))
        .otherwise(pl.lit("low"))
        .alias("y")
    )
    long = in_portions(table)
    assert long.stream.target_names == ("high", "low", "rare")
    assert_alike(long, in_memory(table))


def test_missing_cells_are_filled_in():
    table = table_of().with_columns(
        pl.when(pl.int_range(ROWS) % 7 == 3).then(None).otherwise(pl.col("x1")).alias("x1"),
        pl.when(pl.int_range(ROWS) % 50 == 3).then(None).otherwise(pl.col("y")).alias("y"),
    )
    long = in_portions(table, impute="mean")
    assert_alike(long, in_memory(table, impute="mean"))
    assert any("Left out rows without a target: 18" in note for note in long.stream.notes)


def test_a_learner_that_diverges(tmp_path):
    table = table_of()
    options = {"learner": rt.SGD(lr=1e30), "evaluation": "both"}
    long = in_portions(table, **options)
    short = in_memory(table, **options)
    assert long.verdict.kind == short.verdict.kind == "diverged"
    assert as_json(long)["shift"] == as_json(short)["shift"]
    assert long.target_size == pytest.approx(short.target_size, rel=1e-6, nan_ok=True)
    assert np.isnan(long.hindsight)
    long.to_html(tmp_path / "page.html")


@pytest.mark.parametrize("mixed", [False, True])
def test_a_diagnosis_holds_some_rows(monkeypatch, tmp_path, mixed):
    monkeypatch.setattr(measuring, "MOST_ROWS_SHOWN", 120)
    monkeypatch.setattr(measuring, "THINNED_ROWS", 90)
    monkeypatch.setattr(along, "THINNED_ROWS", 90)
    table = table_of()
    if mixed:
        table = table.sample(fraction=1.0, shuffle=True, seed=3)
    long = in_portions(table, evaluation="both")
    short = in_memory(table, evaluation="both")
    held = long.stream
    assert 120 <= len(held) <= 210
    assert held.length == len(short.stream) == 720
    for place, position in enumerate(held.positions):
        assert held.rows[place] == short.stream.rows[position]
        assert held.times[place] == short.stream.times[position]
        assert long.effective[place] == pytest.approx(np.array(long.all_rows.effective[position]))
    assert [held.nearest(int(position)) for position in held.positions] == list(range(len(held)))
    assert abs(held.positions[held.nearest(700)] - 700) <= 5
    long.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "of 720 rows are drawn" in page
    assert "720 rows were learned once" in page
    assert f"of {len(held)} evenly spaced rows" in page
    described = json.loads(json.dumps(as_json(long)))
    assert described["rows"] == 720
    assert long.along["last"][-1] == 720
    tables = pl.concat([shift_table(some) for some in export.portions(long)])
    assert tables["row"].to_list() == short.stream.rows.tolist()


class TestErrorsNameTheRow:
    def test_a_missing_value(self, tmp_path, command):
        folder = tmp_path / "logs"
        folder.mkdir()
        table = table_of()
        broken = table.with_columns(
            pl.when(pl.int_range(ROWS) == 640).then(None).otherwise(pl.col("x1")).alias("x1")
        )
        table.write_parquet(folder / "a.parquet")
        broken.write_parquet(folder / "b.parquet")
        code, text = command("diagnose", folder, "--target", "y", "--drop", "user", "--drop", "at")
        assert code == 2
        assert "'x1' is missing or infinite in row 641 of" in text
        assert "b.parquet" in text

    def test_a_missing_target(self):
        table = table_of().with_columns(
            pl.when(pl.int_range(ROWS) == 555).then(None).otherwise(pl.col("y")).alias("y")
        )
        with pytest.raises(InvalidInputError, match="row 556 of the table"):
            in_portions(table)

    def test_text_among_numbers(self, tmp_path, command):
        table = table_of().select("x0", "x1", "y").cast(pl.String)
        broken = table.with_columns(
            pl.when(pl.int_range(ROWS) == 411).then(pl.lit("n.n.")).otherwise("x0").alias("x0")
        )
        folder = tmp_path / "logs"
        folder.mkdir()
        table.write_csv(folder / "a.csv")
        broken.write_csv(folder / "b.csv")
        code, text = command("diagnose", folder, "--target", "y")
        assert code == 2
        assert "'n.n.' in row 412 of" in text
        assert "b.csv" in text

    def test_a_file_with_other_columns(self, tmp_path, command):
        table_of().write_parquet(tmp_path / "a.parquet")
        table_of().rename({"x1": "z"}).write_parquet(tmp_path / "b.parquet")
        code, text = command("diagnose", tmp_path, "--target", "y")
        assert code == 2
        assert "b.parquet has no column 'x1'" in text

    def test_a_truncated_file(self, tmp_path, command):
        table_of().write_parquet(tmp_path / "a.parquet")
        content = (tmp_path / "a.parquet").read_bytes()
        (tmp_path / "b.parquet").write_bytes(content[:-400])
        code, text = command("diagnose", tmp_path, "--target", "y")
        assert code == 2
        assert "b.parquet" in text

    @pytest.mark.parametrize("name", ["x1", "y"])
    def test_spreads_that_overflow(self, monkeypatch, name):
        # in no row of the sample, which has one of each class
        monkeypatch.setattr(landing, "MOST_CLASSES", 10)
        large = pl.when(pl.int_range(ROWS) == 401).then(1e200).otherwise(pl.col(name)).alias(name)
        with pytest.raises(InvalidInputError, match=f"{name}.*overflows"):
            in_portions(table_of().with_columns(large))

    def test_a_portion_without_targets(self):
        gone = pl.when(pl.int_range(ROWS) < 200).then(None).otherwise(pl.col("y")).alias("y")
        table = table_of().with_columns(gone)
        assert_alike(in_portions(table, impute="mean"), in_memory(table, impute="mean"))

    def test_a_row_group_that_unpacks_to_much(self, tmp_path, command, monkeypatch):
        # one number repeated: a few bytes on the disk
        pl.DataFrame({"x": np.zeros(50_000), "y": np.ones(50_000)}).write_parquet(
            tmp_path / "a.parquet"
        )
        monkeypatch.setattr(portions, "MOST_BYTES_HELD", 700_000)
        code, text = command("diagnose", tmp_path, "--target", "y")
        assert code == 2
        assert "row group" in text
        assert "--drop" in text

    def test_a_table_that_changes(self, tmp_path):
        path = tmp_path / "a.parquet"
        table_of().write_parquet(path)
        source = portions.Files([path])
        roles = landing.Roles("y", time="at", group="user")
        found = landing.survey(source, source.columns, roles)
        table_of(seed=1).write_parquet(path)
        with pytest.raises(InvalidInputError, match="changed"):
            landing.land(source, source.columns, roles, found, np.array([5]), RowFiles())

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"lags": 2}, "lags"),
            ({"hold_out": "group", "evaluation": "both"}, "hold_out"),
            ({"evaluation": "progressive"}, "progressive"),
            ({"model": "sklearn.linear_model:SGDRegressor"}, "model"),
            ({"learner": rt.SGD(0.1), "group": np.zeros(ROWS)}, "group"),
        ],
    )
    def test_what_long_streams_lack(self, options, named):
        with pytest.raises(RetargetError, match=named):
            rt.diagnose(table_of().drop("user", "at").lazy(), "y", **OPTIONS | options)


class ArrowDataset:
    """What is used of a pyarrow data set, which is not installed here."""

    __module__ = "pyarrow.dataset"

    def __init__(self, pieces):
        self._pieces = pieces

    def scanner(self):
        raise NotImplementedError

    def to_batches(self):
        return iter(self._pieces)


class TestSources:
    def test_all_kinds_agree(self, tmp_path):
        table = table_of().select("x0", "x1", "color", "y")
        for number in range(3):
            part = table[300 * number : 300 * (number + 1)]
            part.write_parquet(tmp_path / f"{number}.parquet")
            part.write_csv(tmp_path / f"{number}.csv")
        expected = rt.diagnose(table.lazy(), "y", **OPTIONS)
        pieces = [table[start : start + 211] for start in range(0, ROWS, 211)]
        sources = [
            ArrowDataset(pieces),
            lambda: (piece.to_dict(as_series=False) for piece in pieces),
            pl.scan_parquet(tmp_path / "*.parquet"),
            pl.scan_csv(tmp_path / "*.csv"),
            lambda: pieces,
        ]
        for source in sources:
            got = rt.diagnose(source, "y", **OPTIONS)
            assert np.allclose(got.effective, expected.effective, rtol=1e-9, atol=1e-12)

    def test_short_tables_are_held(self, monkeypatch, tmp_path, command):
        monkeypatch.setattr(portions, "MOST_ROWS_HELD", ROWS)
        table = table_of()
        table[:500].write_csv(tmp_path / "a.csv")
        table[500:].write_csv(tmp_path / "b.csv")
        options = ("--target", "y", "--drop", "at", "--group", "user", "--features", "40")
        out = tmp_path / "out"
        code, text = command("diagnose", f"{tmp_path}/*.csv", *options, "--out", out)
        assert code == 0, text
        described = json.loads((out / "diagnosis.json").read_text())
        assert described["rows"] < ROWS
        assert "Read 2 files in the order of their names: a.csv, b.csv." in described["notes"]

    def test_files_without_rows(self, tmp_path):
        table = table_of().select("x0", "x1", "y")
        for name, piece in {"a": table[:0], "b": table[:500], "c": table[:0]}.items():
            piece.write_parquet(tmp_path / f"{name}.parquet")
        table[500:].write_parquet(tmp_path / "d.parquet")
        source = portions.Files(sorted(tmp_path.glob("*.parquet")))
        read = list(source.portions(source.columns))
        assert np.concatenate([one.numbers for one in read]).tolist() == list(range(1, ROWS + 1))
        assert read[-1].row(len(read[-1]) - 1) == f"row 400 of {tmp_path / 'd.parquet'}"

    @pytest.mark.parametrize("names", [[], ["a.parquet", "b.csv"], ["a.txt"]])
    def test_folders_without_tables(self, tmp_path, names, command):
        folder = tmp_path / "logs"
        folder.mkdir()
        for name in names:
            (folder / name).write_text("x,y\n1,2\n")
        code, text = command("diagnose", folder, "--target", "y")
        assert code == 2
        assert ".parquet, .csv, .tsv" in text


def test_the_command_writes_all_rows(tmp_path, monkeypatch, command):
    table = table_of()
    path = tmp_path / "long.parquet"
    table.write_parquet(path)
    options = ("--target", "y", "--time", "at", "--group", "user", "--features", "40")
    options += ("--max-memory", "1000", "--gamma", "0.3")
    done = command("diagnose", path, *options, "--evaluation", "next", "--out", tmp_path / "long")
    targets = command("correct", path, *options, "--out", tmp_path / "long-targets.csv")
    monkeypatch.setattr(portions, "MOST_ROWS_HELD", ROWS)
    short = command("diagnose", path, *options, "--evaluation", "next", "--out", tmp_path / "short")
    command("correct", path, *options, "--out", tmp_path / "short-targets.csv")
    assert [done[0], short[0], targets[0]] == [0, 0, 0], done[1]
    for name in ("shift.parquet", "corrected.parquet"):
        one = pl.read_parquet(tmp_path / "long" / name)
        other = pl.read_parquet(tmp_path / "short" / name)
        assert one.columns == other.columns
        assert len(one) == len(other) > 100
        assert one.select(pl.exclude(pl.Float64)).equals(other.select(pl.exclude(pl.Float64)))
        numbers = one.select(pl.col(pl.Float64)).to_numpy()
        assert np.allclose(numbers, other.select(pl.col(pl.Float64)).to_numpy(), rtol=1e-8)
    written = [pl.read_csv(tmp_path / f"{kind}-targets.csv") for kind in ("long", "short")]
    assert len(written[0]) == len(written[1]) == ROWS
    assert np.allclose(written[0]["iterative:y"], written[1]["iterative:y"], rtol=1e-8)
    page = (tmp_path / "long" / "report.html").read_text()
    assert "kept on the disk" in page
    assert not list(tmp_path.glob("**/interrupted-*"))


class TestRowFiles:
    def test_values_outlive_release(self, tmp_path):
        files = RowFiles()
        array = files.array((1000, 3))
        array[:] = np.arange(3000).reshape(1000, 3)
        files.release()
        assert array.sum() == 2999 * 1500
        folder = files.folder
        assert folder.exists()
        del array, files
        assert not folder.exists()

    @pytest.mark.parametrize(("kept", "advice"), [(True, "--out"), (False, "TMPDIR")])
    def test_a_full_disk_is_an_error(self, tmp_path, monkeypatch, kept, advice):
        files = RowFiles(tmp_path if kept else None)
        left = shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: left)
        with pytest.raises(InvalidInputError, match=advice):
            files.array((1000, 3))

    def test_shuffled_rows_stay_together(self, tmp_path, monkeypatch):
        monkeypatch.setattr("retarget.row_files.BUCKET_ROWS", 90)
        monkeypatch.setattr("retarget.row_files.PIECE_ROWS", 64)
        numbers = np.arange(1000)
        pairs = np.stack([numbers, -numbers], axis=1)
        files = RowFiles()
        one, two = shuffled(files, [numbers, pairs], np.random.default_rng(0))
        assert sorted(one.tolist()) == numbers.tolist()
        assert (two == np.stack([one, -one], axis=1)).all()
        # every row may go anywhere: places before and after are not related
        assert abs(np.corrcoef(one, numbers)[0, 1]) < 0.1

    def test_every_order_is_equally_likely(self, tmp_path, monkeypatch):
        monkeypatch.setattr("retarget.row_files.BUCKET_ROWS", 2)
        monkeypatch.setattr("retarget.row_files.PIECE_ROWS", 3)
        random = np.random.default_rng(1)
        counts = {}
        for _ in range(720):
            files = RowFiles()
            (order,) = shuffled(files, [np.arange(4)], random)
            counts[tuple(order)] = counts.get(tuple(order), 0) + 1
        assert len(counts) == 24
        assert max(abs(count - 30) for count in counts.values()) < 25
