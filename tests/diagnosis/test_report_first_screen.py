"""The first screen, on the terminal and as Markdown: its size, its words, its letters."""

from dataclasses import replace

import numpy as np
import pytest
from markdown_it import MarkdownIt

from retarget.diagnosis.report import report_tables as tables
from retarget.diagnosis.report.curve import BLOCKS, PLAIN_BLOCKS, curve_in_text
from retarget.diagnosis.report.markdown import INVISIBLE, escaped, summary_markdown
from retarget.diagnosis.report.terminal import LINES, Screen, as_text, everything, first_screen
from retarget.diagnosis.result import Verdict
from support import made_diagnosis as made
from support.real_diagnosis import classification, regression

# words of the theory, which need an explanation
NOT_HERE = ("effective target", "shift", "weakening them by", "gap")
HOSTILE = (
    *made.HOSTILE,
    "| a | b |",
    "**bold** _it_ `code` ~~gone~~ [link](http://x.y) ![picture](http://x.y/z.png)",
    "http://example.com www.example.com <http://example.com> me@example.com",
    "@someone #12 :rocket: $x$ &amp; \\n \\| ^[note]",
)


class Worded(made.Made):
    """A diagnosis with a headline and advice of any length."""

    words = ("x", ())

    @property
    def verdict(self):
        return Verdict("forgotten", self.words[0], (), self.words[1])


def worded(diagnosis, headline, advice):
    found = Worded(**vars(diagnosis))
    object.__setattr__(found, "words", (headline, tuple(advice)))
    return found


def long_names():
    """Targets, groups, the model and the classes have long names."""
    found = made.with_model(made.regression(), name="a model with a long name " * 5)
    stream = replace(found.stream, target_names=("a target with a long name " * 4, "b" * 90))
    return replace(found, stream=stream)


def with_warnings():
    found = regression()
    return replace(found, failures=("Something could not be computed. " * 6,) * 5)


STREAMS = {
    "classes": classification,
    "numbers": regression,
    "model": made.model_regression,
    "model of classes": made.model_classification,
    "long names": long_names,
    "warnings": with_warnings,
    **{name: getattr(made, name) for name in made.PAGES},
}


@pytest.mark.parametrize("name", STREAMS)
def test_it_is_small_and_without_theory(name):
    found = STREAMS[name]()
    lines = found.summary.splitlines()
    assert len(lines) <= LINES <= 28  # the command adds a line or two
    assert max(map(len, lines)) <= 80
    text = " ".join(found.summary.split())
    start = found.verdict.headline.split("(")[0].strip()
    assert text.startswith(" ".join(start.replace("\u2212", "-").split()))
    # what the user calls things is not ours
    ours = text.lower().replace("shift_", "") if name != "hostile" else ""
    if isinstance(found, made.Made):  # its words are invented
        ours = "\n".join(as_text([one]) for one in first_screen(found)[-4:])
    assert [word for word in NOT_HERE if word in ours] == []


@pytest.mark.parametrize("letters", [100, 400, 900])
@pytest.mark.parametrize("pieces", [0, 1, 3, 5])
def test_advice_gives_way_to_a_long_headline(letters, pieces):
    headline = ("forgotten " * 90)[:letters]
    advice = [f"advice {k} " + "and so on " * 22 for k in range(pieces)]
    found = worded(made.regression(), headline, advice)
    lines = found.summary.splitlines()
    assert len(lines) <= LINES
    text = found.summary
    told = [k for k in range(pieces) if f"advice {k}" in text]
    assert told == list(range(len(told)))  # the most useful first
    assert len(told) <= 3
    assert (pieces == 0) == (told == [])
    left_out = pieces - len(told)
    assert (f"{left_out} more in the report" in text) == (left_out > 0)
    assert "Online model" in text
    assert "rows later" in text


def test_fewer_lines_if_others_are_printed():
    found = worded(made.regression(), "x " * 100, ["and so on " * 20] * 3)
    assert len(as_text(first_screen(found, lines=20)).splitlines()) <= 20


def test_blocks_of_the_curve():
    found = made.regression()
    first, second = curve_in_text(found).splitlines()
    assert first == "Error on the same rows, from when they came to 120 rows later:"
    blocks, words = second.split("  ")
    assert words == "1 at first, at most 4, at last 4 times"
    ages, times = [0, 10, 40, 120], [1, 1.5, 2.5, 4]
    expected = np.interp(np.linspace(0, 120, 20), ages, times)
    heights = np.ceil(8 * expected / 4).astype(int)
    assert blocks == "".join(BLOCKS[height - 1] for height in heights)
    falling = made.forgetting(0.25)
    assert "at most 2.5, at last 0.25 times" in curve_in_text(replace(found, forgetting=falling))
    assert curve_in_text(made.progressive()).startswith("Forgetting was not measured")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_without_blocks(encoding):
    screen = Screen(encoding=encoding)
    shown = as_text(first_screen(made.hostile(), screen), screen)
    assert shown.replace("─", "-").encode(encoding)
    assert PLAIN_BLOCKS[-1] * 2 in shown
    assert not set(BLOCKS) & set(shown)
    assert set(BLOCKS) & set(as_text(first_screen(made.regression(), Screen())))


def test_verbose_has_everything_else():
    found = made.model_classification()
    text = " ".join(as_text(everything(found)).split())
    for words in ("Recall by class", "Cost of a single pass", "Scores of the kernel learners"):
        assert words in text
    for part in (*found.verdict.findings, *found.verdict.recommendations):
        assert part[:30] in text


def rendered(text):
    """What Markdown makes of a text: the tokens' types, and the letters that are shown."""
    tokens = MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(text)
    inside = [child for token in tokens for child in token.children or [token]]
    types = {token.type for token in [*tokens, *inside]}
    return types, "".join(child.content for child in inside if child.type.startswith("text"))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_is_markup(text):
    safe = escaped(text)
    types, letters = rendered(f"before {safe} after")
    assert types <= {"paragraph_open", "paragraph_close", "inline", "text", "text_special"} | (
        {"html_inline"} if "$" in text else set()
    )
    assert letters.replace(INVISIBLE, "") == f"before {text} after"
    for looked_for in ("@someone", "#12", ":rocket:", "http://", "www.example", "me@example"):
        assert looked_for not in safe
    html = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(safe)
    assert html.replace("<span>$</span>", "").count("<") == 2  # of the paragraph


def test_the_summary_for_a_pull_request():
    found = made.regression()
    text = summary_markdown(found)
    types, letters = rendered(text)
    assert {"heading_open", "ordered_list_open", "table_open"} <= types
    assert "html_inline" not in types
    for part in (found.verdict.headline, *found.verdict.recommendations[:3]):
        assert part in letters.replace(INVISIBLE, "")
    for row in tables.first_table(found).rows:
        for cell in row:
            assert cell.text in letters
    assert any(block in text for block in BLOCKS)
    many = worded(found, "x", [f"advice {k}" for k in range(5)])
    assert "2 more in the report." in summary_markdown(many)
    assert "advice 3" not in summary_markdown(many)


def test_hostile_names_stay_in_their_cells():
    found = made.with_model(made.hostile(), name="| a | <b>x</b> @you")
    stream = replace(found.stream, kind="regression", target_names=("a|b",))
    types, _ = rendered(summary_markdown(replace(found, stream=stream)))
    assert not {"html_inline", "html_block", "link_open", "image", "strong_open"} & types
    text = summary_markdown(replace(found, stream=stream))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    columns = {line.replace(r"\|", "").count("|") for line in rows}
    assert columns == {4}
