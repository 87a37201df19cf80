"""The commands diagnose and correct: from a file to files, every option, every refusal."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.cli import diagnose as diagnose_command
from retarget.cli import main, sensors
from retarget.cli.diagnose import exceeds
from retarget.diagnosis.answers import Estimate
from support import made_diagnosis as made
from support.diagnosis_options import options_for
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
FILES = {"report.html", "diagnosis.json", "shift.parquet", "corrected.parquet"}
GROUPED = ("--target", "price", "--time", "day", "--group", "user")


def test_what_is_named_is_run(command, tmp_path):
    ran = "--model", "os:system", "--model-options", "command=echo ran > ran.txt"
    code, _ = command("diagnose", "t.csv", "--target", "price", *ran)
    assert (code, (tmp_path / "ran.txt").read_text()) == (
        2,
        "ran\n",
    )  # os.system returned 0, not a model
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    (promise,) = re.findall(r"- \*\*What you name is run\*\*.*?(?=\n- )", page, re.DOTALL)
    for option in ("--model ", "--kernel", "--backbone", "--model os:system --model-options"):
        assert f"`{option}" in promise


@pytest.fixture(autouse=True)
def _the_table_is_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    TABLE.write_csv("t.csv")


@pytest.fixture
def stand(monkeypatch):
    return standing_in(monkeypatch)


LR, GAMMA, WIDTH, LEARNER = 0.3, 0.7, 1.9, rt.SGD(lr=0.3, batch_size=3, reduction="sum")
CHOSEN = ("--lr", LR, "--gamma", GAMMA, "--width", WIDTH, "--batch-size", 3, "--reduction", "sum")
LAST = ("--evaluation", "next", "--test-share", 0.2)


def literal(learned):
    """The rows in order, K, Y, and the target's scale and mean: by the rows learned from."""
    table = TABLE.sort("day", maintain_order=True)
    X, y = table.select("a b", "c").to_numpy(), table["price"].to_numpy()
    X = (X - X[:learned].mean(axis=0)) / X[:learned].std(axis=0)
    mean, scale = y[:learned].mean(), y[:learned].std()
    squares = ((X[:learned, None] - X[None, :learned]) ** 2).sum(axis=2)
    return table, np.exp(-squares / WIDTH**2), (y[:learned] - mean) / scale, mean, scale


def test_shifts_in_the_file(monkeypatch, capsys, tmp_path):
    asked = ["retarget", "diagnose", "t.csv", *GROUPED, "--drop", "label", *CHOSEN, *LAST, "--json"]
    monkeypatch.setattr(sys, "argv", [str(word) for word in asked])
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.err, printed.out.count("\n")) == (0, "", 1)
    found = json.loads(printed.out, parse_constant=pytest.fail)
    assert (found["kind"], found["targets"]) == ("regression", ["price"])
    assert (found["rows"], found["answers"][0]["rows"]) == (48, 12)
    assert set(found["files"]) == {f"results/diagnosis/{name}" for name in FILES}
    shift = pl.read_parquet("results/diagnosis/shift.parquet")
    table, K, y, mean, scale = literal(48)
    effective = rt.effective_targets(K, y, LEARNER, GAMMA)
    np.testing.assert_allclose(shift["effective:price"], effective * scale + mean, rtol=1e-9)
    np.testing.assert_allclose(shift["shift:price"], (effective - y) * scale, atol=1e-8)
    errors = rt.prequential_errors(K, y, LEARNER)
    np.testing.assert_allclose(shift["error:price"], errors * scale, atol=1e-8)
    np.testing.assert_allclose(shift["true:price"], table["price"][:48], rtol=1e-12)
    assert shift["group"].to_list() == table["user"][:48].to_list()
    assert shift["time"].to_list() == table["day"][:48].to_list()
    report = (tmp_path / "results/diagnosis/report.html").read_text()
    assert "<script>alert(1)" not in report
    assert "--width 1.9" in report
    options = {"learner": LEARNER, "gamma": GAMMA, "width": WIDTH, "test_share": 0.2}
    rows = table.drop("day", "label")
    diagnosis = rt.diagnose(rows, "price", group="user", evaluation="next", **options)
    for name in ("effective:price", "shift_size", "density"):  # Python says the same
        np.testing.assert_allclose(diagnosis.table()[name], shift[name], rtol=1e-9)


def test_corrected_targets_in_the_file(command):
    more = ("--drop", "label", "--out", "c.csv", "--ridge", 0.2, "--block-size", 6)
    assert command("correct", "t.csv", *GROUPED, *CHOSEN, *more)[0] == 0
    corrected = pl.read_csv("c.csv")
    _, K, y, mean, scale = literal(60)
    exact = rt.corrected_targets(K, y, LEARNER, GAMMA)
    np.testing.assert_allclose(corrected["corrected:price"], exact * scale + mean, rtol=1e-8)
    block = rt.iterative_targets(K, y, LEARNER, GAMMA, block_size=6, ridge=0.2)
    np.testing.assert_allclose(corrected["iterative:price"], block * scale + mean, rtol=1e-8)


def names(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_a_diagnosis_from_the_command(command, monkeypatch, tmp_path, stand):
    opened = []
    monkeypatch.setattr(diagnose_command.typer, "launch", opened.append)
    asked = ("diagnose", "t.csv", *GROUPED, "--drop", "label")
    code, shown = command(*asked, "--out", "it's here")
    assert code == 0
    assert stand.stream.feature_names == ("a b", "c")
    assert (stand.stream.group_column, stand.test, stand.options) == ("user", None, options_for())
    assert shown.endswith("Report: it's here/report.html (--verbose prints all of it)")
    assert "What was found" not in shown
    assert names(tmp_path / "it's here") == FILES
    assert shlex.split(stand.command) == ["retarget", *sys.argv[1:]]
    assert opened == []
    command(*asked, "--open")
    assert opened == ["results/diagnosis/report.html"]
    _, shown = command(*asked, "--verbose")
    for words in ("The most overwritten rows of 36", "What was found", "Written:", "report.html"):
        assert words in shown


def test_the_first_screen_is_small(monkeypatch, capsys, tmp_path, stand):
    for asked in (
        ("--example", "sensors"),
        ("--example", "sensors"),  # again: earlier results are kept
        ("t.csv", *GROUPED),
        ("t.csv", "--target", "label", "--group", "user"),
    ):
        monkeypatch.setattr(sys, "argv", ["retarget", "diagnose", *asked])
        with pytest.raises(SystemExit) as stopped:
            main()
        lines = capsys.readouterr().out.splitlines()
        assert stopped.value.code == 0
        assert 10 < len(lines) <= 30
        assert max(map(len, lines)) <= 80


def test_the_first_screen_as_markdown(command, tmp_path, stand):
    asked = ("diagnose", "t.csv", "--target", "price")
    assert command(*asked, "--summary", "new/summary.md")[0] == 0
    written = (tmp_path / "new" / "summary.md").read_text("utf-8")
    assert written.startswith("### ")
    assert "| Batch model |" in written
    found = json.loads(command(*asked, "--json", "--summary", "s.md")[1])
    assert found["files"][-1] == "s.md"
    assert (tmp_path / "s.md").read_text("utf-8") == written


def test_the_workflow_in_the_docs_runs(command, tmp_path, stand):
    """Its shell lines, with a stand-in for GitHub's own command."""
    page = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text("utf-8")
    (workflow,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (line,) = re.findall(r"^ +(retarget diagnose.*)$", workflow.replace("\\\n", ""), re.MULTILINE)
    (tmp_path / "data").mkdir()
    TABLE.write_csv("data/stream.csv")
    assert command(*shlex.split(line)[1:])[0] in (0, 3)
    first, *posting = re.findall(r"^ +((?:cat|gh) .*)$", workflow, re.MULTILINE)
    gh = tmp_path / "gh"
    gh.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > asked.txt\n')
    gh.chmod(0o755)
    (tmp_path / "step.md").write_text("before\n")
    github = {
        "GITHUB_STEP_SUMMARY": "step.md",
        "PULL_REQUEST": "7",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    script = "\n".join([first, *posting])
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=github, check=True)
    summary = (tmp_path / "summary.md").read_text("utf-8")
    assert (tmp_path / "step.md").read_text("utf-8") == f"before\n{summary}"
    asked = (tmp_path / "asked.txt").read_text().split()
    assert asked[:3] == ["pr", "comment", "7"]
    assert asked[-2:] == ["--body-file", "summary.md"]


def test_every_option_arrives(command, stand):
    TABLE[:7].write_parquet("test.parquet")
    code, _ = command(
        "diagnose", "t.csv",
        *("--target", "price", "--target", "c", "--test", "test.parquet", "--as-they-are"),
        *("--column", "a b", "--column", "label", "--group", "user", "--group-as-feature"),
        *("--kernel", "rbf", "--width", "2", "--gamma", "0.5", "--lr", "0.1"),
        *("--batch-size", "4", "--momentum", "0.9", "--nesterov", "--weight-decay", "0.01"),
        *("--reduction", "mean", "--block-size", "8", "--ridge", "0.1", "--features", "64"),
        *("--max-memory", "1.5GB", "--seed", "5", "--kind", "regression"),
    )  # fmt: skip
    assert code == 0
    assert stand.stream.target_names == ("price", "c")
    assert [name.split("=")[0] for name in stand.stream.feature_names] == [
        *("user", "user", "a b", "label", "label")
    ]
    np.testing.assert_array_equal(stand.stream.X[:, 2], TABLE["a b"].to_numpy())
    assert len(stand.test) == 7
    assert stand.options == options_for(
        width=2.0, gamma=0.5, lr=0.1, batch_size=4, momentum=0.9, nesterov=True, weight_decay=0.01,
        reduction="mean", block_size=8, ridge=0.1, features=64,
        max_memory=1_500_000_000, seed=5,
    )  # fmt: skip
    asked = ("diagnose", "t.csv", "--target", "price", "--evaluation")
    assert command(*asked, "progressive")[0] == 0
    assert stand.options.evaluation == "progressive"
    more = ("--test-share", ".4", "--metric", "absolute", "--aim", "window:9")
    assert command(*asked, "next", *more)[0] == 0
    assert stand.options == options_for(
        evaluation="next", test_share=0.4, metric="absolute", aim="window:9"
    )
    assert len(stand.stream) == 36
    np.testing.assert_allclose(stand.stream.Y.mean(), 0, atol=1e-12)
    people = ("--group", "day", "--hold-out", "group", "--drop", "label")
    assert command("diagnose", "t.csv", "--target", "price", *people)[0] == 0
    held = set(stand.asked["whole"].groups)
    assert held.isdisjoint(stand.stream.groups)


def test_points_between_thousands_or_before_decimals(command, stand):
    TABLE.with_columns(euros=pl.format("{}.{}", pl.lit(7), pl.int_range(100, 160))).write_csv(
        "euro.csv", separator=";"
    )
    asked = ("diagnose", "euro.csv", "--target", "euros", "--test", "euro.csv", "--as-they-are")
    for thousands, unit in (("point", 1), ("none", 1000)):
        assert command(*asked, "--thousands", thousands)[0] == 0
        for stream in (stand.stream, stand.test):
            np.testing.assert_allclose(stream.Y[:, 0] * unit, np.arange(7100, 7160))


def test_without_a_file_the_digits_are_diagnosed(command, stand):
    for name in ("correct", "diagnose"):
        assert command(name, "--seed", "3", "--lr", "0.1")[0] == 0
        stream = stand.stream
        rows = 1797 if name == "correct" else 1482
        assert (len(stream), stream.group_column) == (rows, "digit")
        assert stream.groups.tolist() == sorted(stream.groups)
        assert stream.target_names == tuple("0123456789")
        assert (stream.X.min(), stream.X.max()) == (0.0, 1.0)
        assert list(stand.asked) == ([] if name == "correct" else ["whole", "next"])
    assert command("diagnose", "--evaluation", "progressive")[0] == 0
    assert stand.asked == {}


def test_the_example_is_written_and_diagnosed(command, tmp_path, stand):
    code, shown = command("diagnose", "--example", "sensors")
    assert (code, sensors.SAME_AS in shown.replace("\\ ", "")) == (0, True)
    learned, content = stand.stream, (tmp_path / "sensors.csv").read_bytes()
    assert (learned.group_column, learned.target_names) == ("device", ("power",))
    assert learned.feature_names == ("temperature", "humidity")
    table = pl.read_csv("sensors.csv")
    missing = {column.name: column.null_count() for column in table if column.null_count()}
    assert list(missing) == ["humidity"]
    assert 20 < missing["humidity"] < 60
    assert (len(table), table["device"].n_unique()) == (480, 3)
    assert table["temperature"][-160:].mean() > table["temperature"][:160].mean() + 15  # drift
    assert command(*shlex.split(sensors.SAME_AS)[1:])[0] == 0
    np.testing.assert_array_equal(stand.stream.X, learned.X)
    np.testing.assert_array_equal(stand.stream.Y, learned.Y)
    # again: the same file, and with --json nothing but the object
    code, shown = command("diagnose", "--example", "sensors", "--json")
    assert (code, json.loads(shown)["targets"]) == (0, ["power"])
    assert (tmp_path / "sensors.csv").read_bytes() == content


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_commands_of_a_page(command, tmp_path, stand, page):
    (tmp_path / "t.csv").unlink()
    text = (Path(__file__).parents[2] / page).read_text().replace("\\\n", " ")
    lines = re.findall(r"^retarget (diagnose.*)$", text, re.MULTILINE)
    assert len(lines) >= 3
    assert sensors.SAME_AS in text
    for line in lines:
        assert command(*shlex.split(line, comments=True))[0] == 0, line


def test_the_example_replaces_no_file_of_the_user(command, tmp_path, stand):
    (tmp_path / "sensors.csv").write_text("mine,too\n1,2\n")
    code, shown = command("diagnose", "--example", "sensors")
    assert (code, stand.stream) == (2, None)
    assert "has another sensors.csv; move that one" in shown
    assert (tmp_path / "sensors.csv").read_text() == "mine,too\n1,2\n"


@pytest.mark.slow
def test_on_the_example_corrected_targets_help(command):
    code, shown = command("diagnose", "--example", "sensors", "--json")
    found = json.loads(shown)
    assert (code, found["verdict"]["kind"]) == (0, "one pass")
    assert "Train on iteratively corrected targets" in " ".join(found["verdict"]["recommendations"])


def test_corrected_targets_from_the_command(command, tmp_path, stand):
    for out, read, path in (
        ("new", pl.read_parquet, "new/corrected.parquet"),
        ("new/my.parquet", pl.read_parquet, "new/my.parquet"),
        ("my.csv", pl.read_csv, "my.csv"),
    ):
        code, shown = command("correct", "t.csv", *GROUPED, "--out", out)
        about = path.rpartition(".")[0] + ".json"
        assert code == 0
        assert shown.endswith(f"Written: {path} {about}")
        purpose = json.loads((tmp_path / about).read_text())
        assert purpose["learner"] in shown
        assert purpose["sgd"]["batch_size"] == 1
        assert {"kernel", "gamma", "iterative_ridge", "block_size"} < set(purpose)
        assert {"target_scales", "versions"} < set(purpose)
        assert stand.options.evaluation == "progressive"
        table = read(tmp_path / path)
        prices = [f"{part}:price" for part in ("true", "corrected", "iterative")]
        assert table.columns == ["row", "time", "group", *prices]
        assert len(table) == 60
        price = TABLE["price"].to_numpy()[table["row"].to_numpy() - 1]
        np.testing.assert_allclose(table["true:price"], price, atol=1e-12)
    assert names(tmp_path) == {"t.csv", "new", "my.csv", "my.json"}


def test_large_targets_are_written_only_when_forced(command, monkeypatch, tmp_path, stand):
    def wild(parted, options):
        Y = parted.stream.Y
        found = diagnosis_of(parted.stream)
        return replace(found, corrected=1000 * Y, iterative=stand.factor * Y)

    monkeypatch.setattr("retarget.diagnosis.pipeline.diagnose_split", wild)
    asked = ("correct", "t.csv", "--target", "price", "--out", "c.csv")
    stand.factor = 2.0  # one kind is left out
    code, shown = command(*asked)
    assert code == 0
    assert "Not written: the corrected targets" in shown
    columns = pl.read_csv("c.csv").columns
    assert ("iterative:price" in columns, "corrected:price" in columns) == (True, False)
    stand.factor = 500.0
    (tmp_path / "c.csv").unlink()
    code, shown = command(*asked)
    assert code == 2
    assert "more than 100 standard deviations from your targets" in shown
    assert not (tmp_path / "c.csv").exists()
    assert command(*asked, "--force")[0] == 0
    assert "corrected:price" in pl.read_csv("c.csv").columns


PRICE = ("t.csv", "--target", "price")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("t.csv",),
            "Error: no target is named; name the column of t.csv .* one of: 'day', 'user'",
        ),
        (("t.csv", "--target", "prize"), "no column 'prize'; did you mean 'price'"),
        (("gone.csv", "--target", "c"), "Error: there is no file gone.csv"),
        (("--target", "c"), "give the file of the stream"),
        (("odd.csv", "--target", "x"), "'.red.:rocket:', 'c'"),  # no markup
        ((*PRICE, "--kernel", "rbg"), "--kernel is 'rbg'; expected affine, laplace, linear"),
        ((*PRICE, "--kernel", "no_such:net"), "the kernel 'no_such:net' cannot be imported"),
        ((*PRICE, "--lr", "fast"), "--lr is 'fast'; expected auto or a number"),
        ((*PRICE, "--width", "0"), "width .--width. is 0; expected a positive"),
        (
            (*PRICE, "--max-memory", "lots"),
            "max_memory .--max-memory. is 'lots'; expected an amount such",
        ),
        ((*PRICE, "--features", "1"), "features .--features. is 1; expected a whole number, 2"),
        (
            (*PRICE, "--batch-size", "4"),
            "--batch-size is 4, .*--reduction mean .*--reduction sum",
        ),
        ((*PRICE, "--group-as-feature"), "--group-as-feature is set without a group; name it"),
        ((*PRICE, "--column", "c", "--drop", "c"), "'c' is dropped and also used"),
        ((*PRICE, "--column", "price"), "'price' is chosen .*--column.* target or time"),
        ((*PRICE, "--column", "c", "--group", "c"), "'c' .* without --group-as-feature"),
        ((*PRICE, "--kind", "both"), "'both' is not one of 'auto', 'regression'"),
        ((*PRICE, "--model", "a:b", "--predictions", "c"), "a model and a log .* are both given"),
        ((*PRICE, "--model-options", "a=1"), "there is no model; give model .--model. as well"),
        ((*PRICE, "--nesterov"), "nesterov=True needs a momentum"),
        (
            ("euro.csv", "--target", "a"),
            "'a' holds '1.234' and '2.345'.*--thousands none or --thousands point",
        ),
        (("--thousands", "point"), "need a FILE; give the file of the stream as well"),
        ((*PRICE, "--column", "q"), "--column: there is no column 'q'"),
        ((*PRICE, "--drop", "users"), "--drop: there is no column 'users'; did you mean 'user'"),
        ((*PRICE, "--batch-size", "0"), "Invalid value for '--batch-size'"),
        (("diagnose", "--test", "t.csv"), "give the file of the stream"),
        (("diagnose", "t.csv", "--example", "sensors"), "give t.csv or --example, not both"),
        (("diagnose", "--example", "sensors", "--target", "c"), "give the file of the stream"),
        (("diagnose", "--example", "sensor"), "'sensor' is not"),
        (("diagnose", *PRICE, "--test", "gaps.csv"), "Y .--target.: there is no column 'price'"),
        (("diagnose", *PRICE, "--test", "gone.csv"), "Error: there is no file gone.csv"),
        # before the file is read: there is none
        (("diagnose", "gone.csv", "--target", "c", "--evaluation", "test"), "there is no test set"),
        (
            ("diagnose", *PRICE, "--test-share", "2"),
            ".--test-share. is 2.0; expected a share",
        ),
        (
            ("diagnose", *PRICE, "--hold-out", "group"),
            "names the groups; give group .--group.",
        ),
        (("diagnose", *PRICE, "--compare", "gone.json"), "--compare is gone.json, which cannot be"),
        (("diagnose", *PRICE, "--fail-above", "much"), "--fail-above is 'much'; expected a perc"),
        (("diagnose", *PRICE, "--out", "t.csv"), "--out is t.csv, which is a file; expected"),
        (("diagnose", *PRICE, "--summary", "t.csv"), "--summary would write to t.csv, which is a"),
        (("diagnose", *PRICE, "--summary", "folder.csv"), "--summary would write to folder.csv"),
        (("correct", *PRICE, "--out", "t.csv"), "--out would write to t.csv, which is a folder or"),
        (("correct", *PRICE, "--out", "folder.csv"), "--out would write to folder.csv, which is a"),
    ],
)
def test_wrong_use_is_explained_and_nothing_is_written(
    command, tmp_path, stand, arguments, message
):
    """Of both commands, unless one is named."""
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "gaps.csv").write_text("a,c\n1,2.5\n,3.5\n4,5\n2,1.5\n")
    (tmp_path / "euro.csv").write_text("a;b\n1.234;x\n2.345;y\n")
    (tmp_path / "odd.csv").write_text("[red]:rocket:,c\n1,2\n")
    before, stream = names(tmp_path), (tmp_path / "t.csv").read_bytes()
    one = arguments[0] in ("diagnose", "correct")
    for asked in [arguments] if one else [(name, *arguments) for name in ("diagnose", "correct")]:
        code, shown = command(*asked)
        assert code == 2
        # Typer's own messages stand in a frame
        assert re.search(message, shown.replace("│ ", "").replace(" │", ""))
        assert "Traceback" not in shown
    assert names(tmp_path) == before
    assert (tmp_path / "t.csv").read_bytes() == stream
    assert stand.stream is None


def test_if_one_file_fails_none_is_written(command, monkeypatch, tmp_path, stand):
    asked = ("diagnose", "t.csv", "--target", "price", "--out", "out")
    stand.report_fails = True
    code, shown = command(*asked, "--summary", "summary.md")
    assert (code, shown) == (2, "Error: no space left on device")
    assert names(tmp_path / "out") == set()
    assert not (tmp_path / "summary.md").exists()
    stand.report_fails = False
    assert command(*asked)[0] == 0
    before = {name: (tmp_path / "out" / name).read_bytes() for name in FILES}
    assert not (tmp_path / "out-1").exists()
    monkeypatch.setattr("retarget.diagnosis.report.export.corrected_table", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command(*asked, "--kernel", "linear")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == before
    assert names(tmp_path / "out") == FILES
    assert not (tmp_path / "out-1").exists()


def test_earlier_results_are_kept_and_compared(command, tmp_path, stand):
    asked = ("diagnose", "t.csv", "--target", "price", "--out", "out")
    assert "kept" not in command(*asked)[1]
    (tmp_path / "out" / "mine.txt").write_text("not ours")
    first = (tmp_path / "out" / "diagnosis.json").read_bytes()
    code, shown = command(*asked, "--compare", "out/diagnosis.json")
    assert code == 0
    assert "Nothing has clearly changed since the earlier run." in shown
    assert stand.compared[0].what == "Verdict"
    assert (tmp_path / "out-1" / "diagnosis.json").read_bytes() == first
    assert names(tmp_path / "out-1") == FILES
    assert names(tmp_path / "out") == FILES | {"mine.txt"}
    _, shown = command(*asked, "--compare", "out/diagnosis.json", "--verbose")
    assert "Compared with an earlier run" in shown
    assert "Rows learned" in shown
    assert names(tmp_path / "out-2") == FILES
    other = json.loads(first) | {"rows": 7}
    other["verdict"]["kind"] = "diverged"
    (tmp_path / "other.json").write_text(json.dumps(other))
    _, shown = command(*asked, "--compare", "other.json")
    assert "Compared with an earlier run" in shown  # what clearly changed
    assert "diverged" in shown
    assert "Rows learned" not in shown


def test_exit_code_for_a_large_gap(command, monkeypatch, stand):
    def with_gap(parted, options):
        found = diagnosis_of(parted.stream)
        return replace(found, answers=(replace(found.answers[0], excess=stand.gap),))

    monkeypatch.setattr("retarget.diagnosis.pipeline.diagnose_split", with_gap)
    asked = ("diagnose", "t.csv", "--target", "price", "--fail-above")
    for gap, limit, code in (
        (Estimate(0.3, 0.1, 0.5), "20%", 3),
        (Estimate(0.3, 0.1, 0.5), "30", 0),
        (Estimate(0.3, -0.1, 0.5), "20%", 0),  # not clear
    ):
        stand.gap = gap
        result, shown = command(*asked, limit)
        assert result == code
        said = f"Exit code 3, by --fail-above {limit}: the error is 30% above that of the batch"
        assert (said in shown) == (code == 3)


def test_the_limit_is_for_the_users_model():
    found = made.model_regression()
    kernel_learner = tuple(replace(one, excess=Estimate(9.0, 8.0, 10.0)) for one in found.answers)
    model = replace(
        found.model,
        scores=tuple(
            replace(one, change=Estimate(-0.5, -0.6, -0.4)) if one.way == "batch" else one
            for one in found.model.scores
        ),
    )
    found = replace(found, answers=kernel_learner, model=model)
    assert exceeds(found, 0.9) == (
        "the error is 2 times that of the batch model (1.67 to 2.5)"  # 1 / (1 - .5)
    )
    assert exceeds(found, 1.1) == ""


def test_the_file_says_what_targets_are_for(command, stand):
    assert command("diagnose", "t.csv", "--target", "price", "--out", "out")[0] == 0
    purpose = json.loads(pl.read_parquet_metadata("out/corrected.parquet")["retarget"])
    assert purpose["sgd"]["batch_size"] == 1
    assert "SGD, one pass" in purpose["learner"]
