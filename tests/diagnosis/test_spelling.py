"""One message for both: each option as the argument in Python, and as that of the command."""

import ast
import inspect
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget import diagnosis
from retarget.cli import loaded, main
from retarget.diagnosis.spelling import OF_COMMAND, TURNED_OFF, spelled
from retarget.errors import InvalidInputError
from support.diagnosis_options import ELSEWHERE

SOURCE = Path(diagnosis.__path__[0])
ARGUMENTS = inspect.signature(rt.diagnose).parameters
# Of the command alone: where files are, and what is printed.
OF_FILES = {
    *("file", "example", "out", "as_object", "open_report", "compare", "fail_above"),
    *("summary", "verbose"),
}
OPTIONS = {
    each.name: each.opts[0]
    for each in loaded("diagnose").params
    if each.name not in OF_FILES and each.name != "help"
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_both_names(name):
    if name in OF_COMMAND:
        assert spelled(name) == OPTIONS[name]
        return
    python, command = re.fullmatch(r"(.+) \((--[a-z-]+)\)", spelled(name)).groups()
    assert command == OPTIONS[name]
    if name not in ELSEWHERE:
        assert python in ARGUMENTS


def test_options_that_can_be_turned_off():
    params = {each.name: each.secondary_opts for each in loaded("diagnose").params}
    off = {name: opts[0] for name, opts in params.items() if opts and name not in OF_FILES}
    assert off == TURNED_OFF
    for name, opposite in off.items():
        assert spelled(name, False) == f"{name}=False ({opposite})"


@pytest.mark.parametrize(
    ("name", "value", "python", "command"),
    [
        ("impute", "mean", 'impute="mean"', "--impute mean"),
        ("gamma", 0.5, "gamma=0.5", "--gamma 0.5"),
        ("allow_leak", True, "allow_leak=True", "--allow-leak"),
        ("aim", "window:52", 'aim="window:52"', "--aim window:52"),
        ("kind", "classification", "Y.astype(str)", "--kind classification"),
        ("batch_size", 8, "learner=rt.SGD(..., batch_size=8, reduction=...)", "--batch-size 8"),
    ],
)
def test_values(name, value, python, command):
    assert spelled(name, value) == f"{python} ({command})"


def test_columns_with_odd_names_can_be_pasted():
    columns = ["it's", "$y", 'a "b"']
    assert shlex.split(spelled("drop", columns))[1::2] == columns


def strings_and_calls():
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value, None
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "spelled":
                for one in (n for each in node.args for n in ast.walk(each)):
                    known = isinstance(one, ast.Constant) and one.value in OPTIONS
                    yield path, None, one.value if known else None


def test_messages_name_options_by_this_function_alone():
    every = "|".join((*OPTIONS.values(), *TURNED_OFF.values()))
    typed = re.compile(rf"({every})(?![\w-])")
    called = set()
    for path, text, name in strings_and_calls():
        if text is not None and path.name != "spelling.py":
            assert not typed.search(text), f"{path}: {text!r}"
        called |= {name} - {None}
    assert {"impute", "drop", "lags", "kernel", "hold_out"} <= called <= OPTIONS.keys()


TABLE = pl.DataFrame({"a": np.arange(40.0), "b": [*range(39), None], "y": np.arange(40.0) ** 2})
LEAKS = TABLE.with_columns(pl.col("y").alias("y too")).drop("b")
# The table, more options, and what is said.
SAID = {
    "missing": (TABLE, {}, 'with impute="mean" (--impute mean), median or zero, or leave'),
    "drop": (TABLE, {}, "columns out (--drop)"),
    "leak": (LEAKS, {}, "leave it out (--drop 'y too'), or accept"),
    "allowed": (LEAKS, {}, "accept that with allow_leak=True (--allow-leak)"),
    "lags": (TABLE.select("y"), {}, "values: lags=3 (--lags 3) takes"),
    "few lags": (TABLE, {"lags": 40}, "lags (--lags) is 40 and the"),
}


@pytest.mark.parametrize("what", SAID)
def test_the_same_message_in_python_and_command(what, monkeypatch, capsys, tmp_path):
    table, options, words = SAID[what]
    with pytest.raises(InvalidInputError, match=re.escape(words)):
        rt.diagnose(table, "y", **options)
    monkeypatch.chdir(tmp_path)
    table.write_csv("t.csv")
    more = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["retarget", "diagnose", "t.csv", "--target", "y", *more])
    with pytest.raises(SystemExit):
        main()
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_advice_of_an_error_is_enough():
    with pytest.raises(InvalidInputError) as caught:
        rt.diagnose(LEAKS, "y")
    leaking, allow = re.search(
        r"given away by '(.*)' \(.*\); leave it out .*, or accept that with (\w+=True)",
        str(caught.value),
    ).groups()
    rt.diagnose(LEAKS.drop(leaking), "y")
    rt.diagnose(LEAKS, "y", **eval(f"dict({allow})"))
    with pytest.raises(InvalidInputError) as caught:
        rt.diagnose(TABLE, "y")
    impute = re.search(r"with (impute=\"mean\")", str(caught.value))[1]
    rt.diagnose(TABLE, "y", **eval(f"dict({impute})"))
