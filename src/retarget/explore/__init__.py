"""The interactive page: one file that computes in the browser, without a server.

Its mathematics is that of `retarget.theory` in JavaScript; the tests compare the two in a browser.
"""

from pathlib import Path

PAGE = Path(__file__).parent / "static" / "explorer.html"
POINTS = '<textarea id="points-text" spellcheck="false"></textarea>'  # where points are laid in
MOST_POINTS = 200
