"""Nothing in the package runs what a file holds, and nothing of it listens to other machines."""

import ast
import re
from pathlib import Path

import pytest

import retarget

ROOT = Path(retarget.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
# Modules whose readers run what they read.
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "joblib.load", "os.system", "pd.read_pickle"}
# The one place that unpickles, and only files of known SHA-256.
UNPICKLES = "lab/data/cifar10.py"
# import_path.py imports what the user names on the command line (see SECURITY.md); the others
# import modules of the package itself.
IMPORTS_BY_NAME = {
    "import_path.py",
    "cli/__init__.py",
    "kernels/__init__.py",
    "lab/methods/__init__.py",
    "kernels/infinite/ntk.py",
}


def name_of(node):
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_runs_nothing_out_of_files(path):
    allowed = {"pickle"} if path.relative_to(ROOT).as_posix() == UNPICKLES else set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            named = {alias.name.partition(".")[0] for alias in node.names}
            assert not named & (FORBIDDEN_IMPORTS - allowed)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in FORBIDDEN_IMPORTS
        elif isinstance(node, ast.Call):
            called = name_of(node.func)
            assert called not in FORBIDDEN_CALLS
            if called.endswith("import_module"):
                assert path.relative_to(ROOT).as_posix() in IMPORTS_BY_NAME
            for keyword in node.keywords:
                if keyword.arg in ("allow_pickle", "shell"):
                    assert isinstance(keyword.value, ast.Constant)
                    assert keyword.value.value is False
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if called in ("np.load", "numpy.load"):
                assert "allow_pickle" in given
            if called == "torch.load":
                assert path.relative_to(ROOT).as_posix() == "lab/data/backbones.py"
                assert ast.unparse(given["weights_only"]) == "True"
        elif isinstance(node, ast.Constant):
            assert node.value not in ("0.0.0.0", "::")  # all machines, to a server


def test_the_pages_make_no_html_of_texts():
    scripts = [*ROOT.rglob("static/*.html"), *ROOT.rglob("templates/*.js")]
    assert len(scripts) > 1
    for path in scripts:
        text = path.read_text("utf-8")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert way not in text, path


def test_the_security_page_names_the_modules_that_read():
    page = (ROOT.parents[1] / "SECURITY.md").read_text("utf-8")
    table = page.partition("## What is read")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    named = [name for row in rows[1:] for name in re.findall("`([a-z0-9_.]+)`", row)]
    assert len(named) > 10
    for name in named:
        assert (ROOT / f"{name.replace('.', '/')}.py").is_file(), name
