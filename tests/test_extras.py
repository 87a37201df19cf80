"""What needs an extra says so in one sentence, and the rest does without."""

import subprocess
import sys

import pytest

EXTRAS = ("PIL", "dask", "distributed", "matplotlib", "numba", "platformdirs", "requests")


def output(code, without):
    """What a process prints in which these packages cannot be imported."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({list(without)!r}))\n"
    found = subprocess.run(
        [sys.executable, "-c", blocked + code], capture_output=True, text=True, timeout=120
    )
    return found.returncode, " ".join((found.stdout + found.stderr).split())


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("matplotlib", "retarget.experiments.figures", "figures"),
        ("platformdirs", "retarget.data.fetch; retarget.data.fetch.cache_folder()", "figures"),
        ("requests", "retarget.data.fetch; retarget.data.fetch._download(*[None] * 3)", "figures"),
        ("PIL", "retarget.data.core50", "figures"),
        ("dask", "retarget.distributed", "dask"),
        ("avalanche", "retarget.integrations.avalanche", "avalanche"),
        ("transformers", "retarget.integrations.huggingface", "huggingface"),
        ("lightning", "retarget.integrations.lightning", "lightning"),
        ("river", "retarget.integrations.river", "river"),
        ("skorch", "retarget.integrations.skorch", "skorch"),
    ],
)
def test_a_missing_package_is_one_sentence_with_the_line_to_type(package, module, extra):
    code = f"import retarget\ntry:\n    import {module}\n"
    code += "except retarget.errors.MissingExtraError as error:\n    print(error)"
    returned, shown = output(code, [package])
    assert returned == 0
    assert shown.endswith(f'; install it with: pip install "retarget[{extra}]"')
    assert package.lower() in shown.lower()


@pytest.mark.parametrize(
    ("command", "extra"), [(["reproduce", "fig1"], "figures"), (["data", "list"], "figures")]
)
def test_a_command_that_needs_an_extra(command, extra):
    code = f"from retarget.cli import main; sys.argv[1:] = {command!r}; main()"
    returned, shown = output(code, EXTRAS)
    assert returned == 2
    assert shown.startswith("Error: ")
    assert f"retarget[{extra}]" in shown
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
    assert 'pip install "retarget[ntk]"' in shown
    assert (tmp_path / "report.html").is_file()
