"""The scripts in examples/ run, and print what the docs say that they print."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_loop_of_ones_own_prints_what_the_docs_say():
    script = ROOT / "examples" / "own_loop.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout in (ROOT / "docs" / "continual.md").read_text()
    assert len(script.read_text().splitlines()) < 40


def test_the_figure_of_the_terms_is_drawn_and_its_numbers_are_those_of_the_docs(tmp_path):
    script, picture = ROOT / "examples" / "correction_terms.py", tmp_path / "terms.png"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(picture)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    docs = (ROOT / "docs" / "theory.md").read_text()
    assert all(f"    {line}\n" in docs for line in lines)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (ROOT / "docs" / "images" / "correction-terms.png").stat().st_size < 150_000


def test_the_errors_under_drift_are_those_of_the_docs():
    script = ROOT / "examples" / "drift.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    docs = (ROOT / "docs" / "training.md").read_text()
    assert all(f"    {line}\n" in docs for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["influence", "unlearning", "tangent_kernel", "task_by_task"])
def test_the_pictures_of_the_tutorials_are_drawn_and_their_numbers_are_those_of_the_page(
    name, tmp_path
):
    script, picture = ROOT / "examples" / f"{name}.py", tmp_path / f"{name}.png"
    command = [sys.executable, "-W", "error", str(script), str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()
    assert done.stdout
    assert all(f"    {line}\n" in page for line in done.stdout.splitlines())
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (ROOT / "docs" / "images" / f"{name.replace('_', '-')}.png").stat().st_size < 150_000
