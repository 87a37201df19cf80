"""The scripts in examples/ run, and print what the docs say that they print."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_loop_of_ones_own_prints_what_the_docs_say():
    script = ROOT / "examples" / "own_loop.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout in (ROOT / "docs" / "continual.md").read_text()
    assert len(script.read_text().splitlines()) < 40
