"""The page's file, without a browser."""

import base64
import hashlib
import re

from retarget.explore import PAGE
from retarget.learners import COLORS

TEXT = PAGE.read_text("utf-8")


def digest(tag):
    """The hash of the page's only element of this kind, as a policy writes it."""
    (content,) = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", TEXT, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def test_its_policy_allows_no_connection():
    # after a change of the script or the style, put these hashes into the page's policy
    policy = (
        f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert re.findall(r'Security-Policy" content="(.*?)">', TEXT) == [policy]


def test_it_refers_to_nothing_outside_itself():
    assert re.findall(r'(?:src|href|action)="(.*?)"', TEXT) == ["data:,"]
    assert set(re.findall(r"https?://[^\"]*", TEXT)) == {"http://www.w3.org/2000/svg"}  # a name


def test_its_colors_are_those_of_the_figures():
    colors = dict(re.findall(r"--([a-z]+): (#\w{6})\b", TEXT.partition("@media")[0]))
    names = {"offline", "online", "corrected", "iterative"}
    assert {colors[name].upper() for name in names} == {COLORS[name] for name in names}
    assert colors["newest"].upper() == COLORS["one step"]
