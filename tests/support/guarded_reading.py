"""Where the files are that tests share."""

from pathlib import Path

HERE = Path(__file__).parent
