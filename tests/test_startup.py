"""`import retarget`, `retarget --version` and `retarget --help` import nothing heavy."""

import inspect
import pickle
import subprocess
import sys

import pytest

import retarget as rt
from retarget import cli, lab

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


@pytest.mark.parametrize("package", [rt, lab])
def test_public_names_are_found(package):
    for name in package.__all__:
        value = getattr(package, name)
        assert getattr(package, name) is value
        assert inspect.ismodule(value) or pickle.loads(pickle.dumps(value)) is value
    starred: dict = {}
    exec(f"from {package.__name__} import *", starred)
    assert set(package.__all__) <= set(starred)
    assert set(package.__all__) <= set(dir(package))


def test_other_names_are_not_found():
    for package in (rt, lab):
        for name in ("nothing", "_nothing", "__wrapped__"):
            with pytest.raises(AttributeError, match=name):
                getattr(package, name)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_each_command(name):
    told = cli.loaded(name).help.partition("\n\n")[0]
    assert " ".join(told.split()) == cli.COMMANDS[name][1]
