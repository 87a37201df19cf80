"""The diagnosis of streams that are longer than memory: time and memory as they grow.

    python benchmarks/long_streams.py [--rows 2000000 20000000] [--folder FOLDER]

Files of two million rows and 20 columns are written to the folder (340 MB each, left there), and
each stream is diagnosed in a process of its own, so that its peak memory is its own. Beside it:
reading the files alone, and the products of the features alone (one pass over the rows). The first
stream is what the others are compared with.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch

import retarget as rt
from retarget.diagnosis.measure.approximation import feature_count
from retarget.diagnosis.tables.portions import Files
from retarget.engine.stream_kernel import FeatureKernel
from retarget.kernels.feature_maps import nystroem_map

COLUMNS = 20
ROWS_A_FILE = 2_000_000
ROW_GROUP = 250_000
TIMED_ROWS = 200_000  # for the products alone, scaled to the stream


def file_of(folder: Path, number: int) -> Path:
    """A file of rows that drift slowly; written unless it exists."""
    path = folder / f"part-{number:02}.parquet"
    if path.exists():
        return path
    rng = np.random.default_rng(number)
    directions = np.random.default_rng(0).normal(size=(COLUMNS, 4)) / np.sqrt(COLUMNS)
    X = rng.normal(size=(ROWS_A_FILE, COLUMNS))
    y = np.sin(X @ directions).sum(1) + 0.1 * number + 0.3 * rng.normal(size=ROWS_A_FILE)
    columns = {f"x{place}": column for place, column in enumerate(X.T)}
    pl.DataFrame(columns | {"y": y}).write_parquet(path, row_group_size=ROW_GROUP)
    return path


def run_case(paths: list[Path]) -> dict[str, float | str]:
    """One diagnosis, its time and the peak memory of this process; then the two limits."""
    start, busy = time.perf_counter(), time.process_time()
    diagnosis = rt.diagnose(pl.scan_parquet(paths), "y")
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = Files(paths)
    start = time.perf_counter()
    rows = sum(len(portion) for portion in source.portions(source.columns))
    reading = time.perf_counter() - start
    return {
        "rows": rows,
        "seconds": seconds,
        "busy": busy,
        "peak": peak * 1024 / 1e9,
        "reading": reading,
        "products": products_alone(rows),
        "features": feature_count("auto", rows),
        "headline": diagnosis.verdict.headline,
    }


def products_alone(rows: int) -> float:
    """Seconds for the features of so many rows and the products of these, once."""
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(TIMED_ROWS, COLUMNS, generator=rng, dtype=torch.float64)
    features = nystroem_map(rt.RBF(6.0), X[: feature_count("auto", rows)])
    start = time.perf_counter()
    FeatureKernel(features, X, X[:, :1])
    return (time.perf_counter() - start) * rows / TIMED_ROWS


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 20_000_000])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "long_streams")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.case:
        count = -(-options.case // ROWS_A_FILE)
        print(json.dumps(run_case([file_of(options.folder, number) for number in range(count)])))
        return
    print(
        f"retarget {rt.__version__}, torch {torch.__version__}, {platform.machine()}, "
        f"{torch.get_num_threads()} threads; {COLUMNS} columns"
    )
    titles = ("rows", "features", "seconds", "s a million", "CPU sec.", "peak GB", "of first")
    print("".join(f"{title:>13}" for title in (*titles, "reading", "products")))
    first = None
    for rows in options.rows:
        for number in range(-(-rows // ROWS_A_FILE)):
            file_of(options.folder, number)
        command = [sys.executable, __file__, "--case", str(rows), "--folder", options.folder]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        got = json.loads(done.stdout)
        first = got if first is None else first
        cells = (
            f"{got['rows']:,}",
            f"{got['features']}",
            f"{got['seconds']:.0f}",
            f"{got['seconds'] / got['rows'] * 1e6:.1f}",
            f"{got['busy']:.0f}",
            f"{got['peak']:.2f}",
            f"{got['peak'] / first['peak']:.2f}",
            f"{got['reading']:.1f}",
            f"{got['products']:.1f}",
        )
        print("".join(f"{cell:>13}" for cell in cells), flush=True)
        print(f"{'':>13}{got['headline']}")


if __name__ == "__main__":
    main()
