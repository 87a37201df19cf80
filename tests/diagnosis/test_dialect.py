"""One message, two dialects: options as Python's arguments, and as those of the command."""

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
from retarget.diagnosis.dialect import NEGATED, command_hint, command_line, named, option
from retarget.errors import InvalidInputError
from support.diagnosis_options import ELSEWHERE
from support.prepared_streams import make_stream

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
def test_every_option_has_its_name_in_both_dialects(name):
    if name not in ELSEWHERE:
        assert named(name) in ARGUMENTS
        assert option(name) == f"{named(name)}=..."
    with command_line():
        assert named(name) == option(name) == OPTIONS[name]


def test_options_that_can_be_turned_off():
    params = {each.name: each.secondary_opts for each in loaded("diagnose").params}
    off = {name: opts[0] for name, opts in params.items() if opts and name not in OF_FILES}
    assert off == NEGATED
    for name, opposite in off.items():
        assert option(name, False) == f"{name}=False"
        with command_line():
            assert option(name, False) == opposite


def test_values_are_written_as_each_dialect_takes_them():
    written = {
        ("impute", "mean"): ('impute="mean"', "--impute mean"),
        ("gamma", 0.5): ("gamma=0.5", "--gamma 0.5"),
        ("allow_leak", True): ("allow_leak=True", "--allow-leak"),
        ("aim", "window:52"): ('aim="window:52"', "--aim window:52"),
        ("target", "a b"): ('Y="a b"', "--target 'a b'"),
    }
    for given, (python, command) in written.items():
        assert option(*given) == python
        with command_line():
            assert option(*given) == command
    drop = ["it's", "$y", 'a "b"']
    assert command_hint(("drop", drop)) == ""
    with command_line():
        assert shlex.split(option("drop", drop))[1::2] == drop
        assert command_hint("column", ("drop", drop)) == f" (--column, {option('drop', drop)})"
    assert option("kernel") == "kernel=..."  # as before


FUNCTIONS = ("named", "option", "command_hint")


def strings_and_calls():
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value, None
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in FUNCTIONS:
                for one in (n for each in node.args for n in ast.walk(each)):
                    known = isinstance(one, ast.Constant) and one.value in OPTIONS
                    yield path, None, one.value if known else None


def test_messages_name_options_by_these_functions_alone():
    every = "|".join((*OPTIONS.values(), *NEGATED.values()))
    spelled = re.compile(rf"({every})(?![\w-])")
    called = set()
    for path, text, name in strings_and_calls():
        if text is not None and path.name != "dialect.py":
            assert not spelled.search(text), f"{path}: {text!r}"
        called |= {name} - {None}
    assert {"impute", "drop", "lags", "kernel", "hold_out"} <= called <= OPTIONS.keys()


TABLE = pl.DataFrame({"a": np.arange(40.0), "b": [*range(39), None], "y": np.arange(40.0) ** 2})
LEAKS = TABLE.with_columns(pl.col("y").alias("y too")).drop("b")
# The table, more options, and what is said in each dialect.
SAID = {
    "missing": (TABLE, {}, 'with impute="mean"', "with --impute mean"),
    "drop": (TABLE, {}, "leave the columns out", "columns out (--drop)"),
    "leak": (
        LEAKS,
        {},
        "function of it); leave it out, or",
        "(--drop 'y too'), or",
    ),
    "allowed": (LEAKS, {}, "accept that with allow_leak=True", "accept that with --allow-leak"),
    "lags": (TABLE.select("y"), {}, "values: lags=3 takes", "values: --lags 3 takes"),
    "few lags": (TABLE, {"lags": 40}, "lags is 40 and the", "--lags is 40 and the"),
}


@pytest.mark.parametrize("what", SAID)
def test_the_same_message_in_python_and_from_the_command(what, monkeypatch, capsys, tmp_path):
    table, options, python, command = SAID[what]
    with pytest.raises(InvalidInputError, match=re.escape(python)):
        rt.diagnose(table, "y", **options)
    with command_line(), pytest.raises(InvalidInputError, match=re.escape(command)):
        make_stream(table, "y", **options)
    monkeypatch.chdir(tmp_path)
    table.write_csv("t.csv")
    lists = {k: v if isinstance(v, list) else [v] for k, v in options.items()}
    more = [part for k, v in lists.items() for each in v for part in (f"--{k}", str(each))]
    monkeypatch.setattr(sys, "argv", ["retarget", "diagnose", "t.csv", "--target", "y", *more])
    with pytest.raises(SystemExit):
        main()
    assert command in " ".join(capsys.readouterr().err.split())
    assert option("lags", 3) == "lags=3"  # the command is over


def test_the_advice_of_an_error_is_enough():
    with pytest.raises(InvalidInputError) as caught:
        rt.diagnose(LEAKS, "y")
    leaking, allow = re.search(
        r"given away by '(.*)' \(.*\); leave it out, or accept that with (\w+=True)",
        str(caught.value),
    ).groups()
    rt.diagnose(LEAKS.drop(leaking), "y")
    rt.diagnose(LEAKS, "y", **eval(f"dict({allow})"))
    with pytest.raises(InvalidInputError) as caught:
        rt.diagnose(TABLE, "y")
    impute = re.search(r"with (impute=\"mean\")", str(caught.value))[1]
    rt.diagnose(TABLE, "y", **eval(f"dict({impute})"))
