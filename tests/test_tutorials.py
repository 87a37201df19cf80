"""The notebooks in docs/tutorials run, as scripts and as apps, and find what their words say."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

pytest.importorskip("marimo", reason="marimo (the extra [explore]) is not installed")

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
NAMES = ("shift_in_one_dimension", "your_own_stream", "pytorch_loop")


def run(name):
    """What the notebook's cells define, with every control as it is found."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.app.run()[1]
    plt.close("all")
    return found


def test_all_tutorials_are_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NAMES)


def test_shift_in_one_dimension():
    found = run("shift_in_one_dimension")
    assert found["identity_gap"] < 1e-10
    assert found["mean_shift"] > 0.3
    distances = found["distances"]
    assert distances["exact"] < 1e-10
    assert distances["iterative"] < 0.2 * distances["uncorrected"]


def test_your_own_stream():
    found = run("your_own_stream")
    offline, online = found["accuracy"]["offline"], found["accuracy"]["online"]
    corrected = found["corrected_accuracy"]
    assert offline > 0.95
    assert online < 0.8 * offline
    assert corrected["exactly"] == offline
    assert corrected["as it comes in"] > 0.93
    means = found["class_means"]
    assert means.diagonal()[:9].max() < 0.5  # overwritten
    assert means[:, 9].min() > 0.7  # by the nines, learned last


@pytest.mark.slow
def test_the_pytorch_loop_as_a_script():
    """As a user would; with the numbers of examples/own_loop.py, which docs/continual.md has."""
    script = FOLDER / "pytorch_loop.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=True
    )
    finals = re.findall(r"(\d\.\d\d)$", done.stdout, flags=re.MULTILINE)
    documented = (FOLDER.parent / "continual.md").read_text()
    known = re.findall(r"targets: accuracy (\d\.\d\d)", documented)
    # another CPU or another torch differs by one or two of the 450 images in a hundred
    assert [float(value) for value in finals] == pytest.approx(list(map(float, known)), abs=0.03)
