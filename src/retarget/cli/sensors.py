"""The small stream of `retarget diagnose --example sensors`, made in code."""

import math
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from retarget.errors import InvalidInputError
from retarget.storage import atomic_file

if TYPE_CHECKING:
    import polars as pl

    from retarget.diagnosis.tables.roles import Roles

FILE = Path("sensors.csv")
SAME_AS = f"retarget diagnose {FILE} --target power --time time --group device --impute mean"
ROWS = 480
DEVICES = ("cellar", "office", "roof")


def sensors_table() -> "tuple[pl.DataFrame, Roles]":
    """Writes the stream to a file in the current folder; returns its table and columns' roles.

    Raises:
        InvalidInputError: There is another file of that name, which stays as it is.
    """
    from retarget.diagnosis.tables.read import read_table
    from retarget.diagnosis.tables.roles import Roles

    content = sensors_csv().encode()
    if not FILE.exists():
        with atomic_file(FILE) as partial:
            partial.write_bytes(content)
    elif not FILE.is_file() or FILE.read_bytes() != content:
        raise InvalidInputError(
            f"--example writes {FILE} to the current folder, which has another {FILE}; move that "
            "one, or run the command in another folder"
        )
    return read_table(FILE), Roles(("power",), time="time", group="device", impute="mean")


def sensors_csv() -> str:
    """Returns four months of readings of three heated rooms, as the text of a CSV file.

    The days grow warmer, so a model that learns row by row sees winter first and summer last.
    Power falls with the temperature and rises again where rooms are cooled; each device adds
    its own share. One reading of humidity in twelve is missing.

    Examples:
        >>> for line in sensors_csv().splitlines()[:3]:
        ...     print(line)
        time,device,temperature,humidity,power
        2026-01-05 00:00,office,-5.75,51.7,2.94
        2026-01-05 06:00,office,-4.30,75.3,2.46
    """
    chance = random.Random(0)  # the same numbers in every version of Python
    lines = ["time,device,temperature,humidity,power"]
    for row in range(ROWS):
        time = datetime(2026, 1, 5) + timedelta(hours=6 * row)
        season = -4 + 30 * row / ROWS
        temperature = season + 4 * math.sin(math.pi * time.hour / 12 - 2) + chance.gauss(0, 2)
        humidity = 60 - temperature / 2 + chance.gauss(0, 8)
        device = chance.randrange(len(DEVICES))
        heating = max(18 - temperature, 0)
        cooling = max(temperature - 21, 0)
        power = 0.4 + 0.15 * device + 0.09 * heating + 0.2 * cooling + chance.gauss(0, 0.1)
        shown = "" if chance.random() < 1 / 12 else f"{humidity:.1f}"
        lines.append(
            f"{time:%Y-%m-%d %H:%M},{DEVICES[device]},{temperature:.2f},{shown},{power:.2f}"
        )
    return "\n".join(lines) + "\n"
