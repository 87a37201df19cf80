"""The scripts in examples/ run, and print what the docs say that they print."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "page", "picture"),
    [
        ("correction_terms", "theory.md", "correction-terms"),
        *(
            pytest.param(name, f"{page}.md", picture, marks=pytest.mark.slow)
            for name, page, picture in [
                ("drift", "training", None),
                ("own_loop", "continual", None),
                ("influence", "tutorials/influence", "influence"),
                ("unlearning", "tutorials/unlearning", "unlearning"),
                ("tangent_kernel", "tutorials/tangent_kernel", "tangent-kernel"),
                ("task_by_task", "tutorials/task_by_task", "task-by-task"),
            ]
        ),
    ],
)
def test_its_numbers_are_those_of_the_docs(name, page, picture, tmp_path, monkeypatch, capsys):
    script, drawn = ROOT / "examples" / f"{name}.py", tmp_path / "drawn.png"
    monkeypatch.setattr(sys, "argv", [str(script), *([str(drawn)] if picture else [])])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    docs = (ROOT / "docs" / page).read_text()
    assert printed
    assert printed in docs or all(f"    {line}\n" in docs for line in printed.splitlines())
    if picture:
        assert drawn.read_bytes().startswith(b"\x89PNG")
        assert (ROOT / "docs" / "images" / f"{picture}.png").stat().st_size < 150_000


def test_the_loop_of_ones_own_is_short():
    assert len((ROOT / "examples" / "own_loop.py").read_text().splitlines()) < 40
