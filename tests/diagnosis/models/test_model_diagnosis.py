"""A user's model from end to end: run in every way, compared, and never taken on trust."""

import copy
import functools
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Perceptron, SGDRegressor
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPRegressor
from torch import nn

import retarget as rt
from retarget.diagnosis.answers import UNKNOWN
from retarget.diagnosis.measure.holdout import Split, split
from retarget.diagnosis.measure.intervals import Batches, mean_over_runs, ratio
from retarget.diagnosis.models import model_diagnosis, runs
from retarget.diagnosis.models.adapters import seeded
from retarget.diagnosis.models.model_diagnosis import agreement, diagnose_model
from retarget.diagnosis.models.runs import batch_model
from retarget.errors import ModelRunError
from support.diagnosis_options import options_for
from support.diagnosis_streams import as_stream, classes, drifting
from support.oracles import forgetting as oracle
from support.user_models import (
    FailsLater,
    NearestMeans,
    OneByOne,
    RunningMean,
    network,
    opened,
    quietly,
)

WAYS = ["as it came", "random order", "batch", "corrected"]
SGD = {"penalty": None, "learning_rate": "constant", "eta0": 0.04}


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch):
    """Enough of them: what more epochs and orders do is tested with the runs."""
    monkeypatch.setattr(runs, "EPOCHS", 6)
    monkeypatch.setattr(model_diagnosis, "ORDERS", 3)


def sorted_stream(n=160, seed=0, linear=False):
    """A stream sorted by its first feature, and rows from everywhere to test on."""
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(n + 200, 5)), rng.normal(size=5)
    y = X @ w if linear else 2 * np.sin(X @ w) + X[:, 0]
    y += 0.1 * rng.normal(size=len(y))
    y = (y - y.mean()) / y.std()
    order = np.argsort(X[:n, 0])
    stream = as_stream(X[:n][order], y[:n, None][order])
    return Split(stream, {"test": as_stream(X[n:], y[n:, None])})


def progressive(stream):
    return Split(stream, {})


def both_questions(**options):
    """A sorted stream of 200 rows, of which 40 are held out at its end and 40 all over it."""
    return split(
        sorted_stream(n=200, linear=True).stream, None, options_for(test_share=0.2, **options)
    )


def run(model, parted, **options):
    return diagnose_model(parted, options_for(model=model, **options))


def test_a_linear_model_against_plain_loops():
    parted = sorted_stream(seed=1, linear=True)
    X, y = parted.stream.X, parted.stream.Y[:, 0]
    given = SGDRegressor(**SGD)
    kept = copy.deepcopy(vars(given))
    found = run(given, parted, gamma=0.7, ridge=0.02, block_size=8)
    assert vars(given) == kept

    # SGD by hand, with the intercept as a weight of a constant feature
    A, w = np.column_stack([X, np.ones(len(X))]), np.zeros(6)
    before, after = np.empty(len(X)), np.empty(len(X))
    for row, a in enumerate(A):
        before[row] = a @ w
        w = w + 0.04 * (y[row] - a @ w) * a
        after[row] = a @ w
    np.testing.assert_allclose(found.before[:, 0], before, atol=1e-10)
    np.testing.assert_allclose(found.after[:, 0], after, atol=1e-10)
    np.testing.assert_allclose(found.end[:, 0], A @ w, atol=1e-10)
    # the same from the functions of the core
    K, learner = A @ A.T, rt.SGD(lr=0.04)
    errors = rt.prequential_errors(K, y, learner)
    np.testing.assert_allclose(y - found.before[:, 0], errors, atol=1e-9)
    later = np.triu(K, 1) @ rt.online_coefficients(K, y, learner)
    np.testing.assert_allclose(found.theory[:, 0], later, atol=1e-9)
    np.testing.assert_allclose(found.shift, found.theory, atol=1e-9)
    assert found.agreement == pytest.approx(1, abs=1e-9)
    targets = rt.iterative_targets(K, y, learner, 0.7, 8, ridge=0.02)
    np.testing.assert_allclose(found.corrected[:, 0], targets, atol=1e-8)
    size = np.abs(targets - y.mean()).max() / y.std()
    assert found.corrected_size == pytest.approx(size, rel=1e-6)

    assert [score.way for score in found.scores] == WAYS
    test = parted.asked["test"]
    T = np.column_stack([test.X, np.ones(200)])
    with seeded(0):
        batch = SGDRegressor(**SGD).fit(X, y).predict(test.X)
    for way, said in (("as it came", T @ w), ("batch", batch)):
        expected = np.square(test.Y[:, 0] - said).mean()
        assert found.score(way, "test").error.value == pytest.approx(expected, rel=1e-9)
    assert found.prequential.value == pytest.approx(np.square(y - before).mean(), rel=1e-9)
    assert found.remembered.value == pytest.approx(np.square(y - A @ w).mean(), rel=1e-9)
    assert found.closed["test"].value == pytest.approx(1, abs=0.3)
    shuffled = found.score("random order", "test")
    assert shuffled.change.high < 0
    assert len(found.orders["test"]) == 3
    assert (
        shuffled.error.value == shuffled.loss.value == pytest.approx(np.mean(found.orders["test"]))
    )


@pytest.mark.parametrize("metric", ["auto", "absolute"])
def test_each_change_on_every_question(metric):
    parted = both_questions()
    options = {"lr": 0.006, "batch_size": 4, "seed": 5, "metric": metric}
    found = run(network(5), parted, **options)
    assert found.questions == ("whole", "next")
    assert [(one.question, one.way) for one in found.scores] == [
        (question, way) for question in ("whole", "next") for way in WAYS
    ]

    def trained(targets, order):
        """The module after one pass, by hand."""
        module = network(5)
        sgd = torch.optim.SGD(module.parameters(), lr=0.006)
        for rows in torch.from_numpy(order).split(4):
            sgd.zero_grad()
            X, Y = (torch.from_numpy(part[rows]) for part in (parted.stream.X, targets))
            error = module(X) - Y
            error.square().sum().div(2).backward()
            sgd.step()
        return module

    n, rng = len(parted.stream), np.random.default_rng(5)
    came = trained(parted.stream.Y, np.arange(n))
    corrected = trained(found.corrected, np.arange(n))
    orders = [trained(parted.stream.Y, rng.permutation(n)) for _ in range(3)]
    for question, rows in parted.asked.items():
        batches = Batches.consecutive(np.arange(len(rows)))

        def mean(module, rows=rows, batches=batches):
            said = module(torch.from_numpy(rows.X)).detach().numpy()
            gap = np.abs(rows.Y - said)[:, 0]
            return batches.mean(gap if metric == "absolute" else gap**2)

        constant = np.abs(rows.Y - parted.stream.Y.mean(axis=0))[:, 0]
        simplest = batches.mean(constant if metric == "absolute" else constant**2)
        for way, loss in (
            ("as it came", mean(came)),
            ("corrected", mean(corrected)),
            ("random order", mean_over_runs([mean(one) for one in orders])),
        ):
            score = found.score(way, question)
            np.testing.assert_allclose(score.change, ratio(loss, mean(came)), atol=1e-9)
            np.testing.assert_allclose(score.constant, ratio(loss, simplest), atol=1e-9)
            assert score.loss.value == pytest.approx(loss.value, abs=1e-12)
        each = [mean(one).value for one in orders]
        np.testing.assert_allclose(found.orders[question], each, atol=1e-12)
    assert found.score("corrected", "whole").change.high < 0
    assert found.helped


class PlainSGD:
    """A linear model without an intercept: one step of SGD a row; a fit by least squares."""

    def __init__(self, lr=0.05):
        self.lr, self.w = lr, None

    def partial_fit(self, X, y):
        self.w = np.zeros(X.shape[1]) if self.w is None else self.w
        for x, target in zip(X, y, strict=True):
            self.w = self.w + self.lr * (target - x @ self.w) * x

    def predict(self, X):
        return np.zeros(len(X)) if self.w is None else X @ self.w


@pytest.mark.parametrize("hold_out", ["rows", "group"])
@pytest.mark.parametrize("metric", ["squared", "absolute"])
def test_what_a_model_forgot_and_why(metric, hold_out):
    stream = sorted_stream(n=150, linear=True, seed=2).stream
    groups = np.array([f"g{k}" for k in np.arange(150) // 7 % 9])
    stream = replace(stream, groups=groups, group_column="g", target_scales=np.array([3.0]))
    options = {"metric": metric, "hold_out": hold_out, "seed": 3}
    parted = split(stream, None, options_for(**options))
    found = run(PlainSGD(), parted, **options)

    def loss(w, rows):
        gap = 3 * (parted.past.Y[rows, 0] - parted.past.X[rows] @ w)
        return np.abs(gap) if metric == "absolute" else gap**2

    def weights(X, y):
        states = [np.zeros(5)]
        for x, target in zip(X, y, strict=True):
            states.append(states[-1] + 0.05 * (target - x @ states[-1]) * x)
        return states

    X, y, held = parted.stream.X, parted.stream.Y[:, 0], parted.folds[0]
    states, n = weights(X, y), len(X)
    learned = np.setdiff1d(np.arange(len(parted.past)), held)
    moments = {round(share * n) for share in (0.2, 0.4, 0.6, 0.8, 0.85, 0.9, 0.95, 1)}
    pairs = [
        oracle.Pair(
            fold=0,
            row=row,
            at_the_end=moment == n,
            age=moment - time,
            late=moment >= 0.8 * n,
            first=loss(states[time], row),
            later=loss(states[moment], row),
        )
        for row in held
        for time in [int((learned < row).sum())]
        for moment in moments
        if moment >= time
    ]
    late = [one for one in pairs if one.late]
    assert found.forgetting.value == pytest.approx(oracle.increase(late), rel=1e-9)
    assert found.forgetting.rows == len(held)
    constant = 3 * (parted.past.Y[:, 0] - y.mean())
    simplest = np.abs(constant) if metric == "absolute" else constant**2
    known = np.mean([one.first for one in late]) / simplest[[one.row for one in late]].mean() - 1
    assert found.forgetting.known.value == pytest.approx(known, rel=1e-9)
    points = [(age, value, rows) for age, value, _, _, rows in oracle.curve(pairs, n)]
    assert len(points) >= 2
    curve = found.forgetting.curve.drop("low", "high").to_numpy()
    np.testing.assert_allclose(curve, points, rtol=1e-9)

    rng = np.random.default_rng(3)
    orders = [rng.permutation(n) for _ in range(3)]
    random = np.mean([loss(weights(X[o], y[o])[-1], held).mean() for o in orders])
    came = loss(states[-1], held).mean()
    assert found.order_cost.value == pytest.approx(came / random - 1, rel=1e-9)
    with seeded(3):
        model = batch_model(opened(PlainSGD(), parted.stream, **options), X, y[:, None], 3, quietly)
    batch = loss(model._models[0].w, held).mean()
    assert found.one_pass_cost.value == pytest.approx(random / batch - 1, rel=1e-9)
    for cost in (found.order_cost, found.one_pass_cost, found.forgetting.increase):
        assert cost.low < cost.value < cost.high


def test_no_held_out_rows_and_no_forgetting():
    for parted in (sorted_stream(n=60), progressive(sorted_stream(n=60).stream)):
        found = run(PlainSGD(), parted)
        assert found.forgetting is found.order_cost is found.one_pass_cost is None
    parted = both_questions()
    diverges = run(PlainSGD(lr=1.0), parted)
    assert diverges.order_cost == diverges.one_pass_cost == UNKNOWN
    assert diverges.forgetting.value > 100 or diverges.forgetting is None


def test_a_batch_fit_that_stops_early():
    """One epoch at a low rate: its own fit is no better, and yet corrected targets help."""
    own_fit = SGDRegressor(penalty=None, learning_rate="constant", eta0=0.004, max_iter=1)
    found = run(own_fit, both_questions())
    for question in found.questions:
        batch, came = (found.score(way, question) for way in ("batch", "as it came"))
        assert batch.change.value > -0.01
        assert came.change == (0, 0, 0)
        assert found.closed[question] == UNKNOWN
    assert found.score("corrected", "whole").change.high < -0.3
    assert found.helped


def test_nothing_closes_more_than_the_whole_gap():
    """A fit of a few epochs is clearly better than one pass, and clearly worse than corrected."""
    few = SGDRegressor(penalty=None, learning_rate="constant", eta0=0.004, max_iter=3)
    found = run(few, both_questions())
    changes = {way: found.score(way, "whole").change for way in WAYS}
    assert changes["corrected"].high < changes["batch"].low < changes["batch"].high < 0
    assert found.closed["whole"] == UNKNOWN


def test_a_batch_fit_that_fails_is_noted():
    """In epochs this model diverges; in one pass it does not."""

    class Fragile(OneByOne):
        steps = 0  # a river pipeline has steps, too, but in a dict

        def learn_one(self, x, y):
            self.steps += 1
            if self.steps > 160:  # the rows of the stream
                raise RuntimeError("too much")
            super().learn_one(x, y)

    found = run(Fragile(0.02), sorted_stream(linear=True))
    assert found.failures == (
        "As a batch model, Fragile failed when learning row 161: RuntimeError: too much.",
    )
    assert found.score("batch", "test").error == UNKNOWN
    assert found.score("batch", "test").change == UNKNOWN
    assert found.closed["test"] == UNKNOWN
    assert math.isfinite(found.score("random order", "test").change.value)


def test_gaps_that_can_be_closed():
    found = run(SGDRegressor(**SGD), both_questions())
    for question in found.questions:
        behind = found.score("batch", question).change.high < 0
        assert math.isfinite(found.closed[question].value) == behind
    assert found.closed["whole"].low > 0.5


def test_corrected_targets_for_a_narrow_network():
    """Its movement is the theory's to 1%, and yet it cannot follow targets of this size."""
    found = run(network(5, hidden=64), sorted_stream(n=100), lr=0.003, gamma=0.3, ridge=0.0)
    assert found.agreement > 0.98
    assert found.corrected_size > 100
    corrected = found.score("corrected", "test")
    # so wrong that it may overflow: then there is no number, and a sentence
    if math.isnan(corrected.error.value):
        assert found.failures[0].startswith(
            "On targets corrected with ridge 0.3 and stabilizer 0, "
        )
    else:
        assert corrected.change.low > 9
    assert not found.helped


@pytest.mark.parametrize("model", [Perceptron(), NearestMeans()])
def test_classes_in_order_and_no_description(model):
    found = run(model, Split(classes(90), {"test": classes(60)}))
    for score in found.scores[:3]:
        assert 0 <= score.accuracy.low <= score.accuracy.high <= 1
        assert score.error.low >= 0
    assert found.description.startswith("No known kernel describes")
    assert found.theory is found.agreement is found.corrected is None
    assert found.closed["test"] == found.score("corrected", "test").error == UNKNOWN
    assert found.scores[3].accuracy is not None
    came, shuffled = (found.score(way, "test") for way in WAYS[:2])
    if isinstance(model, Perceptron):
        assert shuffled.change.value < 0
        assert shuffled.accuracy.value > came.accuracy.value
    else:  # means know no order
        np.testing.assert_allclose(shuffled.change, 0, atol=1e-12)


@pytest.mark.parametrize("wrong", [0, 1])
def test_equal_losses_are_no_change(wrong):
    """With one wrong row of 30, many resamples have none: 0 / 0 is no change, too."""
    stream, rows = classes(60), classes(30)
    names = dict(zip(map(tuple, rows.X), np.repeat(["y0", "y1", "y2"], 10), strict=True))
    names[tuple(rows.X[0])] = f"y{wrong}"

    class Told(RunningMean):
        """It knows the classes of these very rows, but for one."""

        def partial_fit(self, X, y, classes=None):
            pass

        def predict(self, X):
            return [names.get(tuple(x), "y0") for x in X]

    found = run(Told, Split(stream, {"test": rows}), metric="accuracy")
    for way in WAYS[:3]:
        score = found.score(way, "test")
        assert score.loss.value == pytest.approx(wrong / 30)
        assert score.change == (0, 0, 0)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (MLPRegressor(hidden_layer_sizes=(5,), max_iter=5), {}),
        (lambda: nn.Linear(5, 1), {"lr": 0.02, "batch_size": 4}),
    ],
    ids=["scikit-learn", "torch"],
)
def test_a_seed_repeats_everything(model, options):
    parted = sorted_stream(n=20)
    one, two, other = (run(model, parted, seed=seed, **options) for seed in (3, 3, 4))
    for field in fields(one):
        mine, its = getattr(one, field.name), getattr(two, field.name)
        same = (mine.size, its.size) if field.name == "groups" else (mine, its)
        np.testing.assert_equal(*same)
    assert (other.end != one.end).any()
    assert other.orders != one.orders


def test_a_progressive_evaluation():
    stream = sorted_stream(n=64, linear=True).stream
    found = run(SGDRegressor(eta0=0.1), progressive(stream), block_size=16)
    assert found.score("as it came", "progressive").error == found.prequential
    prequential = np.square(found.before - stream.Y).mean()
    assert found.prequential.value == pytest.approx(prequential)
    assert all(math.isfinite(score.error.value) for score in found.scores)
    # a shuffled stream, predicted row by row
    order = np.random.default_rng(0).permutation(64)
    model, errors = SGDRegressor(eta0=0.1), []
    for row in order:
        x, y = stream.X[[row]], stream.Y[row]
        errors.append(y[0] - (model.predict(x)[0] if errors else 0.0))
        model.partial_fit(x, y)
    assert found.orders["progressive"][0] == pytest.approx(np.square(errors).mean(), rel=1e-9)


@pytest.mark.parametrize("held_out", [True, False])
def test_a_long_stream_is_thinned_for_its_orders(monkeypatch, held_out):
    monkeypatch.setattr(runs, "STEPS", 400)
    parted = sorted_stream() if held_out else progressive(sorted_stream().stream)
    found = run(OneByOne(0.01), parted)
    assert "tried on 40 rows, evenly spaced over the stream's 160" in found.failures[0]
    (question,) = found.questions
    assert len(found.orders[question]) == 3
    # compared with the same 40 rows as they came
    by_hand, errors, names = OneByOne(0.01), [], parted.stream.feature_names
    rows = np.linspace(0, 159, 40).round().astype(int)
    for x, y in zip(parted.stream.X[rows], parted.stream.Y[rows, 0], strict=True):
        row = dict(zip(names, x, strict=True))
        errors.append(y - by_hand.predict_one(row))
        by_hand.learn_one(row, y)
    if held_out:
        test = parted.asked["test"]
        said = [by_hand.predict_one(dict(zip(names, x, strict=True))) for x in test.X]
        errors = test.Y[:, 0] - said
    expected = np.mean(found.orders[question]) / np.square(errors).mean() - 1
    change = found.score("random order", question).change
    assert change.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("evaluation", ["test", "progressive"])
@pytest.mark.parametrize(
    ("nan", "what"),
    [
        (
            False,
            r"FailsLater failed when learning row 30: RuntimeError: out of order, after it had "
            r"learned 29 of the stream's 60 rows as they came \(the next is row 76 of your data\); "
            r"it was given features of shape \(1, 5\) and numbers as targets, of shape \(1, 1\); "
            r"train it on these rows yourself to see why",
        ),
        (
            True,
            "FailsLater gave predictions that are not finite numbers after 30 rows, after it had "
            "learned 30 of the stream's 60 rows",
        ),
    ],
)
def test_a_model_that_fails_over_the_stream(nan, what, evaluation):
    parted = sorted_stream(n=60)
    stream = replace(parted.stream, rows=np.arange(60) + 47)
    parted = progressive(stream) if evaluation == "progressive" else parted._replace(stream=stream)
    with pytest.raises(ModelRunError, match=what):
        run(FailsLater(30, nan=nan), parted)


def test_a_model_that_fails_on_held_out_rows():
    class Narrow(RunningMean):
        def predict(self, X):
            if np.abs(X).max() > 50:
                raise ValueError("out of range")
            return super().predict(X)

    parted = sorted_stream(n=60)
    far = as_stream(100 + parted.stream.X, parted.stream.Y)
    what = (
        "predicting after 60 rows: ValueError: out of range, .* learned 60 of the stream's 60 rows"
    )
    with pytest.raises(ModelRunError, match=f"{what} as they came; it was given"):
        run(Narrow(), Split(parted.stream, {"test": far}))


def test_a_row_that_cannot_be_learned():
    stream = classes(40)
    X = np.abs(stream.X)
    X[25, 1] = -0.5
    parted = progressive(replace(stream, X=X))
    needs = (
        "row 26: ValueError: Negative .* learned 25 of .* some of them negative, .*standardize=Fa"
    )
    with pytest.raises(ModelRunError, match=needs):
        run(MultinomialNB(), parted)


def test_failing_in_another_order_is_noted():
    class Sorted(RunningMean):
        """It takes rows in the order of their first feature only, and exits otherwise."""

        def partial_fit(self, X, y):
            super().partial_fit(X, y)
            if len(self.seen) > 1 and self.seen[-2][0][0, 0] > X[0, 0]:
                raise SystemExit("not sorted")

    found = run(Sorted(), sorted_stream(n=60))
    said = "|".join(found.failures)
    assert (
        "3 of 3 runs in random order failed, so the cost of the order is unknown: Sorted f" in said
    )
    assert "As a batch model, Sorted failed when learning row 3: SystemExit: not sorted." in said
    assert math.isfinite(found.score("as it came", "test").error.value)
    for way in WAYS[1:]:
        assert found.score(way, "test").change == UNKNOWN
    assert found.orders == {"test": ()}


def test_a_model_that_diverges_keeps_its_error():
    fast, slow = (SGDRegressor(eta0=eta, learning_rate="constant") for eta in (1.0, 0.03))
    found = run(fast, sorted_stream(n=20))
    assert found.failures[0].startswith(
        "Over the stream as it came, SGDRegressor diverges: its err"
    )
    assert "If it has a learning rate, lower that." in found.failures[0]
    assert found.score("as it came", "test").error.value > 1e3
    assert all(score.change == UNKNOWN for score in found.scores)
    assert found.closed["test"] == UNKNOWN
    assert not any("diverges" in said for said in run(slow, sorted_stream(n=20)).failures)


def test_what_a_model_prints_goes_to_standard_error(capsys, monkeypatch, tmp_path):
    (tmp_path / "talks.py").write_text(
        "from support.user_models import RunningMean\n"
        "print('imported')\n"
        "class Talks(RunningMean):\n"
        "    def __init__(self):\n        super().__init__()\n        print('made')\n"
        "    def partial_fit(self, X, y):\n        super().partial_fit(X, y)\n"
        "        print('learns')\n"
        "    def predict(self, X):\n        print('says')\n        return super().predict(X)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run("talks:Talks", sorted_stream(n=20))
    said = capsys.readouterr()
    assert said.out == ""
    assert {"imported", "made", "learns", "says"} <= set(said.err.split())


def test_weight_decay_from_a_start():
    stream = drifting(40, outputs=2, dimensions=3)
    found = run(network(3, 2), progressive(stream), lr=0.02, batch_size=4, weight_decay=0.1)
    assert found.shift.shape == (40, 2)
    assert found.groups.names[0] == "part 1"
    assert found.agreement == pytest.approx(1, abs=1e-9)
    assert found.corrected is None
    assert found.failures[0].startswith("There are no corrected targets: weight decay")


def test_agreement():
    theory = np.array([[3.0], [4.0]])
    pairs = ((1.1 * theory, theory), (0 * theory, theory), (0 * theory,) * 2, (theory, 0 * theory))
    found = [agreement(shift, predicted) for shift, predicted in pairs]
    assert found == pytest.approx([0.9, 0, 1, -math.inf])


def test_the_model_runs_on_the_same_rows():
    stream = sorted_stream(n=80, linear=True).stream
    names = np.array(["north", "south"])[np.arange(80) // 40]
    found = rt.diagnose(
        3 + 2 * stream.X, 7 * stream.Y[:, 0], group=names, kernel="linear", lr=0.01,
        model=functools.partial(SGDRegressor, eta0=0.05),
    )  # fmt: skip
    model = found.model
    assert model.name == "SGDRegressor"
    assert model.groups.names == ("north", "south")
    by_hand = SGDRegressor(eta0=0.05)
    for x, y in zip(found.stream.X, found.stream.Y, strict=True):
        by_hand.partial_fit(x[None], y)
    np.testing.assert_allclose(model.end[:, 0], by_hand.predict(found.stream.X), atol=1e-10)
