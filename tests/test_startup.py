"""`import retarget`, `retarget --version` and `retarget --help` import nothing heavy."""

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import retarget as rt
from retarget import cli

HEAVY = {
    "dask", "jinja2", "joblib", "matplotlib", "numba", "numpy", "pandas", "PIL", "plotly", "polars",
    "pydantic", "requests", "safetensors", "scipy", "sklearn", "torch",
}  # fmt: skip
# what Typer imports itself for the options of a command
TYPERS_OWN = {"pydantic"}


STEPS = [  # what is run, in one process, what it shows, and what it may import
    ("import retarget; dir(retarget); hasattr(retarget, 'nothing')", "", set()),
    ("--version", f"retarget {rt.__version__}", set()),
    ("--help", "Computes experiments and draws", set()),
    ("diagnose --help", "--target", TYPERS_OWN),
    ("correct --help", "--target", TYPERS_OWN),
    ("explore --help", "--no-open", TYPERS_OWN),
    ("reproduce --help", "fig6ad", TYPERS_OWN),
    ("runs --help", "export", TYPERS_OWN),
    ("data --help", "check", TYPERS_OWN),
    ("data list", "cifar10", TYPERS_OWN),
]
RUN = """
import sys
for step in {steps}:
    if step.startswith("import"):
        exec(step)
    else:
        from retarget.cli import main
        sys.argv[1:] = step.split()
        try:
            main()
        except SystemExit:
            pass
    sys.stderr.flush()
    print("MODULES", *sys.modules, flush=True)
    print("END OF STEP")
"""


def test_nothing_heavy_is_imported():
    code = RUN.format(steps=[step for step, _, _ in STEPS])
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    *parts, rest = found.stdout.split("END OF STEP\n")
    assert not rest
    for (step, shown, allowed), part in zip(STEPS, parts, strict=True):
        output, _, modules = part.rpartition("MODULES ")
        assert shown in output, (step, found.stderr)
        imported = {name.partition(".")[0] for name in modules.split()}
        assert "retarget" in imported
        assert imported & HEAVY <= allowed, step


@pytest.mark.parametrize("name", rt.__all__)
def test_every_public_name_is_that_of_its_module(name):
    found = getattr(rt, name)
    assert found is getattr(import_module(f"retarget.{rt._MODULE_OF[name]}"), name)
    assert found is getattr(rt, name)
    assert pickle.loads(pickle.dumps(found)) is found


def test_the_names_are_the_same_everywhere():
    assert set(rt._MODULE_OF) == set(rt.__all__)
    assert len(rt.__all__) == len(set(rt.__all__))
    assert set(rt.__all__) <= set(dir(rt))
    starred: dict = {}
    exec("from retarget import *", starred)
    assert set(rt.__all__) <= set(starred)


def test_type_checkers_see_what_is_imported():
    tree = ast.parse(Path(rt.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module.removeprefix("retarget.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == rt._MODULE_OF


def test_rooms_are_found_and_other_names_are_not():
    for name in ("errors", "theory", "lab"):
        assert rt.__getattr__(name) is import_module(f"retarget.{name}")
    for name in ("nothing", "_nothing", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"'retarget' has no attribute '{name}'"):
            getattr(rt, name)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_says_of_each_command_what_it_says_itself(name):
    told = cli.loaded(name).help.partition("\n\n")[0]
    assert " ".join(told.split()) == cli.COMMANDS[name][1]
