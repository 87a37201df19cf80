"""The `retarget` command, called as a user would."""

import sys

import pytest

from retarget.cli import main


def run(monkeypatch, capsys, *arguments):
    """Its exit code, and what it printed, each run of blanks and line ends as one blank."""
    monkeypatch.setattr(sys, "argv", ["retarget", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    shown = capsys.readouterr()
    return stopped.value.code, " ".join((shown.out + shown.err).split())
