"""skorch on corrected targets ends where the same loop written by hand ends."""

import copy
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError

skorch = pytest.importorskip("skorch")
from skorch.callbacks import GradientNormClipping, LRScheduler  # noqa: E402
from skorch.dataset import ValidSplit  # noqa: E402
from skorch.hf import AccelerateMixin  # noqa: E402

from retarget.integrations.skorch import (  # noqa: E402
    CorrectedClassifier,
    CorrectedRegressor,
    HalfSquaredError,
)

LEARNER = rt.SGD(0.01, batch_size=6, reduction="mean")
OPTIONS = {"gamma": 20.0, "block_size": 12, "ridge": 3.0}
CORRECTOR = partial(rt.NetworkCorrector, **OPTIONS)


def network(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 300), nn.Tanh(), nn.Linear(300, 2)).double()


def digit_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 500, bias=False), nn.ReLU(), nn.Linear(500, 10, bias=False))


def regressor(module=network, corrector=CORRECTOR, **options):
    plain = {"lr": 0.01, "batch_size": 6, "verbose": 0}
    return CorrectedRegressor(module, corrector=corrector, **(plain | options))


def tasks(sizes=(48, 36), seed=0):
    rng = np.random.default_rng(seed)
    for n in sizes:
        x = rng.normal(size=(n, 5))
        yield x, np.stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2]], 1)


def loss(outputs, targets, reduction):
    each = (outputs - targets).square().sum(1) / 2
    return each.mean() if reduction == "mean" else each.sum()


def by_hand(learner=LEARNER, streams=None, epochs=1, **options):
    """The network after the same tasks in a plain loop."""
    module = network()
    optimiser = torch.optim.SGD(
        module.parameters(), learner.lr, learner.momentum, weight_decay=learner.weight_decay
    )
    corrector = rt.NetworkCorrector(module, learner, **(OPTIONS | options))
    for task in streams or tasks():
        x, y = map(torch.from_numpy, task)
        for epoch in range(epochs):
            z = corrector.recorrect() if epoch else corrector.correct(x, y)
            size = learner.batch_size
            for inputs, targets in zip(x.split(size), z.split(size), strict=True):
                optimiser.zero_grad()
                loss(module(inputs), targets, learner.reduction).backward()
                optimiser.step()
    return module


def assert_same(net, expected, tolerance=1e-10):
    for mine, other in zip(net.module_.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance)
    pairs = zip(network().parameters(), net.module_.parameters(), strict=True)
    assert max((a - b).abs().max() for a, b in pairs) > 1e-3  # something was learned


def digits():
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y, np.arange(len(X)) % 4 == 0


def test_digits_two_at_a_time():
    X, y, test = digits()
    options = {"lr": 0.1, "batch_size": 4, "verbose": 0}
    true = skorch.NeuralNetClassifier(
        digit_network, criterion=HalfSquaredError, train_split=None, max_epochs=1, **options
    )
    make = partial(rt.NetworkCorrector, gamma=30.0, block_size=20, ridge=3.0)
    corrected = CorrectedClassifier(digit_network, corrector=make, **options)
    for task in range(5):
        mine = ~test & (y // 2 == task)
        true.partial_fit(X[mine], y[mine])
        corrected.partial_fit(X[mine], y[mine])
    assert round(true.score(X[test], y[test]), 2) == 0.20
    assert round(corrected.score(X[test], y[test]), 2) == 0.88


def test_digits_in_the_closed_loop():
    X, y, test = digits()

    def led(module, learner):
        learner = replace(learner, batch_size=40)  # 20 of the batch, 20 of the stored ones
        return rt.NetworkCorrector(module, learner, 1.0, 40, memory=1024, replay=300)

    net = CorrectedClassifier(
        digit_network, corrector=led, lr=0.1, batch_size=20, verbose=0, iterator_train__shuffle=True
    )
    for task in range(5):
        mine = ~test & (y // 2 == task)
        net.partial_fit(X[mine], y[mine])
    assert net.score(X[test], y[test]) > 0.94
    assert "shift" in net.history[-1]["batches"][0]


@pytest.mark.parametrize(
    ("learner", "options"),
    [
        (LEARNER, {}),
        (rt.SGD(0.002, batch_size=4, reduction="sum"), {"criterion__reduction": "sum"}),
        (
            rt.SGD(0.005, batch_size=6, reduction="mean", momentum=0.5, weight_decay=0.01),
            {"optimizer__momentum": 0.5, "optimizer__weight_decay": 0.01},
        ),
    ],
    ids=["mean", "sum", "momentum"],
)
def test_weights_are_those_of_the_plain_loop(learner, options):
    net = regressor(lr=learner.lr, batch_size=learner.batch_size, **options)
    for x, y in tasks():
        net.partial_fit(x, y)
    assert net.corrector_.learner == learner
    assert_same(net, by_hand(learner))


def test_labels_are_one_hot_targets():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(48, 5)), rng.integers(2, size=48)
    net = CorrectedClassifier(network, corrector=CORRECTOR, lr=0.01, batch_size=6, verbose=0)
    net.partial_fit(x, labels)
    assert_same(net, by_hand(streams=[(x, np.eye(2)[labels])]))


def test_fit_begins_anew_and_a_warm_start_does_not():
    (first, second), net = tasks(), regressor()
    net.fit(*first).fit(*second)
    assert_same(net, by_hand(streams=[second]))
    warm = regressor(warm_start=True)
    warm.fit(*first).fit(*second)
    assert_same(warm, by_hand())


def test_several_epochs_are_corrected_each():
    make = partial(CORRECTOR, refresh="epoch")
    net = regressor(corrector=make, max_epochs=3)
    for x, y in tasks():
        net.partial_fit(x, y)
    assert_same(net, by_hand(epochs=3, refresh="epoch"))


def test_what_is_held_out_or_left_out_is_not_corrected():
    net = regressor(train_split=ValidSplit(4), iterator_train__drop_last=True)
    streams = []
    for x, y in tasks((67, 52)):
        net.partial_fit(x, y)
        kept = len(x) - -(-len(x) // 4)
        rows = np.arange(len(x))[-kept:][: kept // 6 * 6]
        streams.append((x[rows], y[rows]))
    assert_same(net, by_hand(streams=streams))
    assert "valid_loss" in net.history[-1]


def test_several_workers_and_named_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, left, right):
            return self.network(torch.cat([left, right], 1))

    net = regressor(Two, iterator_train__num_workers=2)
    for x, y in tasks():
        net.partial_fit({"left": x[:, :2], "right": x[:, 2:]}, y)
    for mine, other in zip(net.module_.parameters(), by_hand().parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


def test_the_history_tells_of_the_correction(capsys):
    net = regressor(verbose=1)
    for x, y in tasks():
        net.partial_fit(x, y)
    x, y = next(tasks())
    corrector = CORRECTOR(network(), LEARNER)
    z = corrector.correct(x, y)
    assert net.history[0, "shift"] == pytest.approx(np.sqrt(np.mean((z - y) ** 2)), 1e-9)
    assert net.history[0, "largest_target"] == pytest.approx(np.abs(z).max(), 1e-9)
    assert net.history[1, "linearisation_error"] == net.corrector_.linearisation_error
    assert "shift" in capsys.readouterr().out


def test_pickled_and_copied_it_goes_on_as_if_nothing_had_been():
    (first, second), net = tasks(), regressor()
    net.partial_fit(*first)
    others = pickle.loads(pickle.dumps(net)), copy.deepcopy(net)
    expected = by_hand()
    for each in (net, *others):
        each.partial_fit(*second)
        assert_same(each, expected)


def test_the_corrector_is_saved_beside_the_parameters(tmp_path):
    (first, second), net = tasks(), regressor()
    net.partial_fit(*first)
    files = {"f_params": tmp_path / "params.pt", "f_optimizer": tmp_path / "optimizer.pt"}
    net.save_params(**files)
    net.corrector_.save(tmp_path / "corrector.safetensors")
    other = regressor().initialize()
    other.load_params(**files)
    path = tmp_path / "corrector.safetensors"
    other.corrector_ = rt.NetworkCorrector.load(path, other.module_)
    assert_same(other.partial_fit(*second), by_hand())


def test_pipelines_searches_and_clones():
    x, y = next(tasks((60,)))
    pipeline = make_pipeline(StandardScaler(), regressor())
    grid = {"correctedregressor__corrector": [partial(CORRECTOR, ridge=r) for r in (1.0, 3.0)]}
    search = GridSearchCV(pipeline, grid, cv=TimeSeriesSplit(2)).fit(x, y)
    assert np.isfinite(search.best_score_)
    net = search.best_estimator_[-1]
    again = clone(net)
    assert again.get_params()["corrector"].keywords == net.corrector.keywords
    again.set_params(lr=0.02)
    assert again.fit(x, y).corrector_.learner.lr == 0.02
    assert not any(name.startswith("corrector_") for name in net.get_params())


def other_loss():
    return nn.MSELoss(reduction="sum")


REFUSED = {
    "shuffle": ({"iterator_train__shuffle": True}, "RandomSampler.*use shuffle=False"),
    "epochs": ({"max_epochs": 2}, "max_epochs is 2.*refresh='task'"),
    "loss": ({"criterion": other_loss}, "half of the squared error"),
    "Adam": ({"optimizer": torch.optim.Adam}, "optimizer is a Adam"),
    "schedule": (
        {"callbacks": [LRScheduler("ExponentialLR", gamma=0.9)]},
        "a scheduler changes the rate",
    ),
    "clipping": ({"callbacks": [GradientNormClipping(1.0)]}, "GradientNormClipping"),
    "blocks": ({"batch_size": 5}, "block_size"),
    "corrector": ({"corrector": 3}, "corrector is 3; expected a function"),
    "made": ({"corrector": lambda module, learner: 3}, "corrector made a int"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    options, message = REFUSED[what]
    net = regressor(**options)
    before = network()
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        net.partial_fit(*next(tasks()))
    for mine, other in zip(net.module_.parameters(), before.parameters(), strict=True):
        assert torch.equal(mine, other)


class Accumulating(CorrectedRegressor):
    def train_step(self, batch, **fit_params):
        return super().train_step(batch, **fit_params)


class Accelerated(CorrectedRegressor, AccelerateMixin):
    pass


@pytest.mark.parametrize("kind", [Accumulating, Accelerated])
def test_nets_that_step_otherwise_are_refused(kind):
    net = kind(network, corrector=CORRECTOR, lr=0.01, batch_size=6, verbose=0)
    with pytest.raises(InvalidInputError, match="own train_step|has a AccelerateMixin"):
        net.partial_fit(*next(tasks()))


def test_other_mini_batches_are_refused():
    class Drawn(torch.utils.data.DataLoader):
        def __init__(self, dataset, batch_size):
            drawn = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
            super().__init__(dataset, batch_sampler=drawn)

    class Pairs(BatchSampler):
        pass

    x, y = next(tasks())
    with pytest.raises(InvalidInputError, match="one size"):
        regressor(
            iterator_train=lambda data, batch_size: torch.utils.data.DataLoader(
                data, batch_sampler=Pairs(range(len(data)), 6, False)
            )
        ).partial_fit(x, y)
    with pytest.raises(InvalidTypeError, match="batch_size is None"):
        regressor(iterator_train=Drawn).partial_fit(x, y)
    net = regressor().partial_fit(x, y).set_params(batch_size=3)
    with pytest.raises(InvalidInputError, match="batch_size is 3, but the corrector's learner has"):
        net.partial_fit(x, y)


def test_changes_between_calls_are_refused():
    (first, second), net = tasks(), regressor()
    net.partial_fit(*first)
    net.optimizer_.param_groups[0]["lr"] = 0.02
    with pytest.raises(InvalidInputError, match="optimiser is SGD\\(lr=0.02"):
        net.partial_fit(*second)
    with pytest.raises(InvalidInputError, match="fit parameters \\['weight'\\]"):
        regressor().partial_fit(*first, weight=3)


def test_a_rate_that_changes_within_a_call_is_refused():
    class Warm(CorrectedRegressor):
        def on_batch_begin(self, net, batch=None, training=False, **kwargs):
            self.optimizer_.param_groups[0]["lr"] *= 1.01

    net = Warm(network, corrector=CORRECTOR, lr=0.01, batch_size=6, verbose=0)
    with pytest.raises(InvalidInputError, match="rate of step 0 is 0.0101"):
        net.partial_fit(*next(tasks()))


def test_a_call_that_was_interrupted_is_not_gone_on_from():
    class Impatient(CorrectedRegressor):
        def on_batch_end(self, net, batch=None, training=False, **kwargs):
            if self.trained_ == 3:
                raise KeyboardInterrupt

    (first, second) = tasks()
    net = Impatient(network, corrector=CORRECTOR, lr=0.01, batch_size=6, verbose=0)
    net.partial_fit(*first)  # skorch takes it for the end of training
    with pytest.raises(InvalidInputError, match="ended after 3 of 8 batches"):
        net.partial_fit(*second)


@pytest.mark.parametrize("change", ["epochs", "replay"])
def test_what_the_closed_loop_refuses(change):
    make = partial(rt.NetworkCorrector, gamma=1.0, block_size=6, memory=16, replay=12)
    options = {"max_epochs": 2} if change == "epochs" else {}
    message = {"epochs": "every sample is learned once", "replay": "batch_size=12 or more, not 6"}
    with pytest.raises(InvalidInputError, match=message[change]):
        regressor(corrector=make, **options).partial_fit(*next(tasks()))
