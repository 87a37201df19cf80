"""Forgetting, the cost of the order and of one pass: fold by fold, row by row, moment by moment."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import scipy.linalg
from scipy.stats import t as student

LATE = (0.8, 0.85, 0.9, 0.95, 1.0)
AGES = (0.0, 0.04, 0.08, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)


def sgd_states(K, Y, learner):
    """The dual coefficients before the first step of SGD, and after each."""
    A, velocity, rates = np.zeros_like(Y), np.zeros_like(Y), learner.rates(len(Y))
    states = [A]
    for step, start in enumerate(range(0, len(Y), learner.batch_size)):
        batch = slice(start, start + learner.batch_size)
        gradient = learner.weight_decay * A
        errors = K[batch] @ A - Y[batch]
        gradient[batch] += errors / (len(errors) if learner.reduction == "mean" else 1)
        velocity = learner.momentum * velocity + gradient
        nesterov = gradient + learner.momentum * velocity
        A = A - rates[step] * (nesterov if learner.nesterov else velocity)
        states.append(A)
    return states


def state_at(states, learner, moment, rows):
    """The coefficients after `moment` of the rows; an unfinished mini-batch is not learned yet."""
    return states[-1 if moment == rows else moment // learner.batch_size]


def late_moments(rows):
    return sorted({max(1, round(share * rows)) for share in LATE})


def curve_moments(rows):
    spread = {round(share * rows) for share in np.linspace(0, 1, 13)[1:]}
    return sorted(spread | {*late_moments(rows)})


def squared(truth, said, scales):
    return np.mean(((truth - said) * scales) ** 2)


def absolute(truth, said, scales):
    return np.mean(np.abs((truth - said) * scales))


@dataclass
class Pair:
    """A held-out row at a moment, with the loss of everyone who was asked."""

    fold: int
    row: int
    at_the_end: bool
    age: int
    late: bool
    first: float
    later: float
    losses: dict = field(default_factory=dict)
    orders: float | None = None


def pairs_of_fold(
    number, held, X, Y, kernel, learner, gamma, loss, seed=0, changes=None, correction=None
):
    """All pairs of one fold; `changes` are other learners, `correction` makes (targets, block)."""
    learned = [row for row in range(len(X)) if row not in set(held)]
    n = len(learned)
    K, Yl = kernel(X[learned], X[learned]), Y[learned]
    learners = {"online": (learner, Yl, 1)}
    learners |= {name: (other, Yl, 1) for name, other in (changes or {}).items()}
    if correction is not None:
        targets, block = correction
        learners["iterative"] = (learner, targets(K, Yl), block)
    runs = {
        name: (sgd_states(K, targets, one), one, block)
        for name, (one, targets, block) in learners.items()
    }
    random = np.random.default_rng([seed, number])
    orders = {}
    for moment in late_moments(n):
        orders[moment] = []
        for _ in range(4 if number == 0 and moment == n else 2):
            order = random.permutation(moment)
            end = sgd_states(K[np.ix_(order, order)], Yl[order], learner)[-1]
            orders[moment].append((order, end))
    batch = {
        moment: scipy.linalg.solve(
            K[:moment, :moment] + gamma * np.eye(moment), Yl[:moment], assume_a="pos"
        )
        for moment in late_moments(n)
    }
    pairs = []
    for row in held:
        query, truth = kernel(X[[row]], X[learned])[0], Y[row]
        time = sum(one < row for one in learned)

        def asked(name, moment, query=query, truth=truth):
            states, one, block = runs[name]
            whole = moment if moment == n else moment // block * block
            return loss(truth, query @ state_at(states, one, whole, n))

        first = asked("online", time)
        for moment in curve_moments(n):
            if moment < time:
                continue
            late = moment in late_moments(n)
            now = asked("online", moment)
            pair = Pair(number, int(row), moment == n, moment - time, late, first, now)
            if late:
                pair.losses = {name: asked(name, moment) for name in runs}
                pair.losses["offline"] = loss(truth, query[:moment] @ batch[moment])
                pair.losses["mean"] = loss(truth, Yl[:moment].mean(axis=0))
                made = [loss(truth, query[order] @ end) for order, end in orders[moment]]
                pair.orders = np.mean(made)
            pairs.append(pair)
    return pairs, n


def increase(pairs):
    """The loss of the pairs over that of the same rows at their own time, minus 1."""
    return sum(one.later for one in pairs) / sum(one.first for one in pairs) - 1


def curve(pairs, learned):
    """(age, value, low, high, rows) of each bin of ages with at least ten rows."""
    points = []
    for low, high in pairwise(AGES):
        some = [one for one in pairs if low * learned < one.age <= high * learned]
        rows = {one.row for one in some}
        if len(rows) >= 10:
            age = np.mean([one.age for one in some])
            points.append((age, increase(some), *interval_within_strips(some), len(rows)))
    return points


def doubled(points):
    """The age at which the line through the points, from (0, 0) on, reaches 1; else None."""
    ages, values = [0.0], [0.0]
    for age, value, *_ in points:
        ages.append(age)
        values.append(value)
        if value >= 1:
            return np.interp(1.0, values[-2:], ages[-2:])
    return None


def interval_within_strips(pairs):
    """The 95% interval of the increase: five strips of two batches of rows each.

    The variance of a sum over batches is, in each strip, that of the two parts around their mean.
    """
    rows = np.array([one.row for one in pairs])
    above, below = (np.array([getattr(one, when) for one in pairs]) for when in ("later", "first"))
    names = np.unique(rows)
    batches = [np.isin(rows, some) for some in _shared(names, 10)]
    a, b = above.mean(), below.mean()
    # what the mean of all rows but those of a batch is, relative to the mean of all
    logs = [above[~some].mean() / a - below[~some].mean() / b for some in batches]
    variance = 0.0
    for first, second in zip(logs[::2], logs[1::2], strict=True):
        variance += 2 * np.var([0.9 * first, 0.9 * second], ddof=1)
    reach = student.ppf(0.975, 5) * np.sqrt(variance)
    return a / b * np.exp(-reach) - 1, a / b * np.exp(reach) - 1


def _shared(names, count):
    """The names in so many runs, the k-th of n in run k * count // n."""
    run = [place * count // len(names) for place in range(len(names))]
    return [names[np.array(run) == number] for number in range(count)]
