import json
import re
import shlex
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from retarget.cli import diagnose as diagnose_command
from retarget.cli import main
from retarget.diagnosis.options import Options
from support.hand_made_diagnosis import diagnosis_of, standing_in

rng = np.random.default_rng(0)
TABLE = pl.DataFrame(
    {
        "day": [f"2026-01-{31 - k % 30:02d}" for k in range(60)],
        "user": ["=1+1", "<script>alert(1)</script>"] * 30,
        "a b": rng.normal(size=60),
        "c": rng.normal(size=60),
        "price": rng.normal(size=60),
        "label": ["yes", "no", "no"] * 20,
    }
)
FILES = {"report.html", "shift.parquet", "corrected.parquet"}


@pytest.fixture
def stand(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    TABLE.write_csv(tmp_path / "t.csv")
    return standing_in(monkeypatch)


def names(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_a_diagnosis_from_the_command(command, tmp_path, stand):
    code, shown = command(
        *("diagnose", "t.csv", "--target", "price", "--time", "day", "--group", "user"),
        *("--drop", "label", "--out", "it's here"),
    )  # fmt: skip
    assert code == 0
    assert stand.stream.feature_names == ("a b", "c")
    assert stand.stream.group_column == "user"
    assert stand.test is None
    assert stand.options == Options()
    for words in ("The 10 most distorted rows of 48", "The online mod", "Written:", "report.html"):
        assert words in shown
    assert names(tmp_path / "it's here") == FILES
    assert shlex.split(stand.command) == ["retarget", *sys.argv[1:]]
    shift = pl.read_parquet(tmp_path / "it's here" / "shift.parquet")
    price = TABLE["price"].to_numpy()[shift["row"].to_numpy()]
    np.testing.assert_allclose(shift["true:price"], price, atol=1e-12)
    assert shift["time"].to_list() == sorted(TABLE["day"].to_list())[:48]
    assert set(shift["group"]) == set(TABLE["user"])


def test_every_option_arrives(command, stand):
    TABLE[:7].write_parquet("test.parquet")
    code, _ = command(
        "diagnose", "t.csv",
        *("--target", "price", "--target", "c", "--test", "test.parquet", "--as-they-are"),
        *("--column", "a b", "--column", "label", "--group", "user", "--group-as-feature"),
        *("--kernel", "rbf", "--width", "2", "--gamma", "0.5", "--lr", "0.1"),
        *("--batch-size", "4", "--momentum", "0.9", "--nesterov", "--weight-decay", "0.01"),
        *("--reduction", "mean", "--block-size", "8", "--ridge", "0.1", "--mode", "features"),
        *("--features", "64", "--memory", "1.5GB", "--seed", "5", "--kind", "regression"),
    )  # fmt: skip
    assert code == 0
    assert stand.stream.target_names == ("price", "c")
    assert [name.split("=")[0] for name in stand.stream.feature_names] == [
        *("user", "user", "a b", "label", "label")
    ]
    np.testing.assert_array_equal(stand.stream.X[:, 2], TABLE["a b"].to_numpy())
    assert len(stand.test) == 7
    assert stand.options == Options(
        width=2.0, gamma=0.5, lr=0.1, batch_size=4, momentum=0.9, nesterov=True, weight_decay=0.01,
        reduction="mean", block_size=8, ridge=0.1, mode="features", features=64,
        memory=1_500_000_000, seed=5,
    )  # fmt: skip
    asked = ("diagnose", "t.csv", "--target", "price", "--evaluation")
    assert command(*asked, "progressive")[0] == 0
    assert stand.options.evaluation == "progressive"
    assert command(*asked, "last", "--test-share", ".5")[0] == 0
    assert (stand.options.evaluation, stand.options.test_share) == ("last", 0.5)
    np.testing.assert_allclose(stand.stream.Y[:30].mean(), 0, atol=1e-12)


def test_json_is_one_line_on_stdout_and_nothing_on_stderr(capsys, monkeypatch, stand):
    asked = ["retarget", "diagnose", "t.csv", "--target", "label", "--json"]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.err, printed.out.count("\n")) == (0, "", 1)
    found = json.loads(printed.out, parse_constant=pytest.fail)
    assert (found["kind"], found["targets"]) == ("classification", ["no", "yes"])
    assert {path.rpartition("/")[2] for path in found["files"]} == FILES


def test_the_report_is_opened_on_request(command, stand, monkeypatch):
    opened = []
    monkeypatch.setattr(diagnose_command.typer, "launch", opened.append)
    command("diagnose", "t.csv", "--target", "c")
    assert opened == []
    command("diagnose", "t.csv", "--target", "c", "--open")
    assert opened == ["results/diagnosis/report.html"]


@pytest.mark.parametrize("name", ["diagnose", "correct"])
def test_without_a_file_the_digits_are_diagnosed(command, stand, name):
    assert command(name, "--seed", "3", "--lr", "0.1")[0] == 0
    assert len(stand.stream) == 1348
    assert stand.stream.group_column == "digit"
    assert stand.stream.groups.tolist() == sorted(stand.stream.groups)
    assert stand.stream.target_names == tuple("0123456789")
    assert (stand.stream.X.min(), stand.stream.X.max()) == (0.0, 1.0)
    if name == "diagnose":
        assert len(stand.test) == 449
        assert command(name, "--evaluation", "progressive")[0] == 0
        assert stand.test is None
    else:
        assert stand.options.evaluation == "progressive"


@pytest.mark.parametrize(
    ("out", "read", "path"),
    [
        ("new", pl.read_parquet, "new/corrected.parquet"),
        ("new/my.parquet", pl.read_parquet, "new/my.parquet"),
        ("my.csv", pl.read_csv, "my.csv"),
    ],
)
def test_corrected_targets_from_the_command(command, tmp_path, stand, out, read, path):
    asked = ("correct", "t.csv", "--target", "price", "--time", "day", "--group", "user")
    code, shown = command(*asked, "--out", out)
    about = path.rpartition(".")[0] + ".json"
    assert code == 0
    assert shown.endswith(f"Written: {path} {about}")
    purpose = json.loads((tmp_path / about).read_text())
    assert purpose["learner"] in shown
    assert purpose["sgd"]["batch_size"] == 1
    assert {"kernel", "gamma", "ridge", "block_size", "target_scales", "versions"} < set(purpose)
    assert stand.options.evaluation == "progressive"
    table = read(tmp_path / path)
    assert table.columns == [
        *("row", "time", "group", "true:price", "corrected:price", "iterative:price")
    ]
    assert len(table) == 60
    price = TABLE["price"].to_numpy()[table["row"].to_numpy()]
    np.testing.assert_allclose(table["true:price"], price, atol=1e-12)
    assert set(table["group"]) == set(TABLE["user"])
    assert names(tmp_path) - {"t.csv"} == {path.split("/")[0], about.split("/")[0]}


def test_targets_out_of_proportion_are_not_written_unless_forced(
    command, monkeypatch, tmp_path, stand
):
    def wild(parted, options):
        Y = parted.stream.Y
        found = diagnosis_of(parted.stream, parted.evaluation)
        return replace(found, corrected=1000 * Y, iterative=stand.factor * Y)

    monkeypatch.setattr("retarget.diagnosis.pipeline.diagnose_split", wild)
    asked = ("correct", "t.csv", "--target", "price", "--out", "c.csv")
    stand.factor = 2.0  # one kind is left out
    code, shown = command(*asked)
    assert code == 0
    assert "Left out: the corrected targets" in shown
    columns = pl.read_csv("c.csv").columns
    assert ("iterative:price" in columns, "corrected:price" in columns) == (True, False)
    stand.factor = 500.0
    (tmp_path / "c.csv").unlink()
    code, shown = command(*asked)
    assert code == 2
    assert "out of all proportion" in shown
    assert not (tmp_path / "c.csv").exists()
    assert command(*asked, "--force")[0] == 0
    assert "corrected:price" in pl.read_csv("c.csv").columns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("t.csv",),
            "Error: no target is named; name the column of t.csv .* one of: 'day', 'user'",
        ),
        (("t.csv", "--target", "prize"), "no column 'prize'; did you mean 'price'"),
        (("gone.csv", "--target", "c"), "Error: there is no file gone.csv"),
        (("binary.csv", "--target", "c"), "binary.csv is not text in UTF-8"),
        (("gaps.csv", "--target", "c"), "missing or infinite: 'a' 1 .of 4 rows.; .*--impute mean"),
        (("leak.csv", "--target", "c"), "given away by 'd' .*--drop d, or accept .*--allow-leak"),
        (("t.csv", "--target", "c", "--test", "t2.csv"), "there is no file t2.csv"),
        (("t.csv", "--target", "c", "--test", "gaps.csv"), "feature: there is no column 'day'"),
        (
            ("t.csv", "--target", "c", "--evaluation", "first"),
            "evaluation is 'first'; expected one of last",
        ),
        (
            ("t.csv", "--target", "c", "--evaluation", "last", "--test", "t.csv"),
            "evaluation is 'last' and there is a test set",
        ),
        (("t.csv", "--target", "c", "--test-share", "2"), "test_share is 2.0; expected a share"),
        (("t.csv", "--target", "c", "--out", "t.csv"), "--out is t.csv, which is a file; expected"),
        (("--target", "c"), "give the file of the stream"),
        (("--test", "t.csv"), "give the file of the stream"),
        (("odd.csv", "--target", "x"), "'.red.:rocket:', 'c'"),  # no markup
    ],
)
def test_wrong_use_of_diagnose(command, tmp_path, stand, arguments, message):
    (tmp_path / "binary.csv").write_bytes(rng.bytes(1000))
    (tmp_path / "gaps.csv").write_text("a,c\n1,2.5\n,3.5\n4,5\n2,1.5\n")
    pl.DataFrame({"c": np.arange(20.0) ** 2, "d": 1 - np.arange(20.0) ** 2}).write_csv("leak.csv")
    (tmp_path / "odd.csv").write_text("[red]:rocket:,c\n1,2\n")
    check_refused(command, tmp_path, ("diagnose", *arguments), message)
    assert stand.stream is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernel", "rbg"), "--kernel is 'rbg'; expected rbf, linear, or package.module:factory"),
        (("--kernel", "no_such:net"), "the network 'no_such:net' cannot be imported"),
        (("--lr", "fast"), "--lr is 'fast'; expected auto or a number above 0"),
        (("--gamma", "-1"), "--gamma is '-1'; expected auto or"),
        (("--width", "0"), "--width is '0'; expected auto or"),
        (("--memory", "lots"), "--memory is 'lots'; expected an amount such as 4GB"),
        (("--mode", "fast"), "mode is 'fast'; expected one of auto, exact"),
        (("--reduction", "max"), "reduction is 'max'; expected 'sum' or 'mean'"),
        (("--nesterov",), "nesterov=True needs a momentum"),
        (("--impute", "guess"), "impute is 'guess'; expected one of error, mean"),
        (("--time", "price"), "'price' is both target and time"),
        (("--column", "q"), "column: there is no column 'q'"),
        (("--batch-size", "0"), "Invalid value for '--batch-size'"),
    ],
)
def test_wrong_options(command, tmp_path, stand, arguments, message):
    for name in ("diagnose", "correct"):
        asked = (name, "t.csv", "--target", "price", *arguments)
        check_refused(command, tmp_path, asked, message)


@pytest.mark.parametrize("out", ["t.csv", "folder.csv"])
def test_corrected_targets_do_not_replace_the_stream(command, tmp_path, stand, out):
    (tmp_path / "folder.csv").mkdir()
    before = (tmp_path / "t.csv").read_bytes()
    message = f"--out would write to {out}, which is a folder or the stream itself"
    check_refused(command, tmp_path, ("correct", "t.csv", "--target", "c", "--out", out), message)
    assert (tmp_path / "t.csv").read_bytes() == before


def check_refused(command, tmp_path, arguments, message):
    before = names(tmp_path)
    code, shown = command(*arguments)
    assert code == 2
    # Typer's own messages stand in a frame
    assert re.search(message, shown.replace("│ ", "").replace(" │", ""))
    assert "Traceback" not in shown
    assert names(tmp_path) == before


def test_if_one_file_fails_none_is_written(command, monkeypatch, tmp_path, stand):
    asked = ("diagnose", "t.csv", "--target", "price", "--out", "out")
    stand.report_fails = True
    code, shown = command(*asked)
    assert (code, shown) == (2, "Error: no space left on device")
    assert names(tmp_path / "out") == set()
    stand.report_fails = False
    assert command(*asked)[0] == 0
    before = {name: (tmp_path / "out" / name).read_bytes() for name in FILES}
    monkeypatch.setattr("retarget.diagnosis.report.export.corrected_table", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command(*asked, "--kernel", "linear")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == before
    assert names(tmp_path / "out") == FILES
