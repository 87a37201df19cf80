"""What `make test` says before it begins."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import how_long
from support.how_long import expected

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("cores", "load", "sentence"),
    [
        (2, 0.1, "Checks and tests: about 3 minutes on 2 cores."),
        (1, 0.0, "Checks and tests: about 6 minutes on 1 core."),
        (64, 1.0, "Checks and tests: about 1 minute on 64 cores."),
        (2, 6.0, "about 12 minutes on 2 cores, which are busy (load 6.0; 3 if they were not)."),
    ],
)
def test_the_estimate_is_for_the_machine_at_hand(cores, load, sentence):
    assert expected(cores, load).endswith(sentence)


def test_make_test_says_it_first():
    done = subprocess.run(
        [sys.executable, how_long.__file__], capture_output=True, text=True, check=True
    )
    assert re.match(r"Checks and tests: about \d+ minutes? on \d+ cores?", done.stdout)
    rule = re.search(r"^test: (.*?)  ##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule[1].split() == ["$(READY)", "how-long", "lint"]
