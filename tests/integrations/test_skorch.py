"""skorch on corrected targets ends where the same loop written by hand ends."""

import copy
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import get_scorer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from support.corrected_training import (
    LEARNER,
    OPTIONS,
    Penalty,
    arguments_in,
    assert_same,
    by_hand,
    closed_loop,
    make,
    network,
    tasks,
    trained,
)

skorch = pytest.importorskip("skorch")
from skorch.callbacks import GradientNormClipping, LRScheduler  # noqa: E402
from skorch.dataset import ValidSplit  # noqa: E402
from skorch.hf import AccelerateMixin  # noqa: E402

from retarget.integrations.skorch import TargetCorrectionClassifier, TargetCorrectionRegressor  # noqa: E402

CORRECTOR = partial(rt.NetworkCorrector, **OPTIONS)
PLAIN = {"lr": 0.01, "batch_size": 6, "verbose": 0}
STREAMS = [(x.numpy(), y.numpy()) for x, y in tasks()]
FIRST, SECOND = STREAMS


def learned(net, streams=STREAMS):
    for x, y in streams:
        net.partial_fit(x, y)
    return net


def regressor(module=network, corrector=CORRECTOR, kind=TargetCorrectionRegressor, **options):
    return kind(module, corrector=corrector, **(PLAIN | options))


def assert_learned(net, expected=None):
    assert_same(net.module_, expected or trained(), start=network())


EPOCHS = {"corrector": partial(CORRECTOR, refresh="epoch"), "max_epochs": 3}
MOMENTUM = rt.SGD(0.005, batch_size=6, reduction="mean", momentum=0.5, weight_decay=0.01)
MOVING = {"optimizer__momentum": 0.5, "optimizer__weight_decay": 0.01}
SUM = rt.SGD(0.002, batch_size=4, reduction="sum")
TWELVE = rt.SGD(0.02, batch_size=12, reduction="mean")  # of a batch of 6 and of stored samples
REPLAY, AUTO = {"replay": 30}, {"gamma": "auto", "ridge": 0.0}


def closed(options):
    return {"corrector": lambda module, _: closed_loop(module, TWELVE, **options), "batch_size": 6}


# The learner, the net's options, and what the plain loop is given.
CASES = {
    "mean": (LEARNER, {}, {}),
    "gamma chosen": (LEARNER, {"corrector": partial(CORRECTOR, **AUTO)}, AUTO),
    "sum": (SUM, {"criterion__reduction": "sum"}, {}),
    "momentum": (MOMENTUM, MOVING, {}),
    "epochs": (LEARNER, EPOCHS, {"epochs": 3, "refresh": "epoch"}),
    "closed": (TWELVE, closed({}), {"block": 6}),
    "replay": (TWELVE, closed(REPLAY), REPLAY | {"block": 6}),
}


@pytest.mark.parametrize("what", CASES)
def test_weights_are_those_of_the_plain_loop(what):
    learner, options, by_hand = CASES[what]
    net = regressor(**({"lr": learner.lr, "batch_size": learner.batch_size} | options))
    assert_learned(learned(net), trained(learner, **by_hand))
    assert net.corrector_.learner == learner
    told = net.history[-1]
    assert "shift" in (told["batches"][0] if "block" in by_hand else told)


def test_labels_are_one_hot_targets():
    x, labels = FIRST[0], (FIRST[1][:, 0] > 0).astype(int)
    net = regressor(kind=TargetCorrectionClassifier).partial_fit(x, labels)
    rows = torch.eye(2).double()[labels]
    assert_learned(net, trained(streams=[(torch.from_numpy(x), rows)]))


def test_probabilities_are_distributions_so_that_scorers_work():
    x, labels = FIRST[0], np.arange(48) % 3
    make_network = partial(
        nn.Sequential, nn.Linear(5, 40).double(), nn.Tanh(), nn.Linear(40, 3).double()
    )
    net = regressor(make_network, kind=TargetCorrectionClassifier, lr=0.3).fit(x, labels)
    outputs, found = net.forward(x).numpy(), net.predict_proba(x)
    assert outputs.min() < 0
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(1), 1, rtol=0, atol=1e-12)
    for row, near in zip(outputs, found, strict=True):  # the positive part less a constant
        kept = near > 0
        np.testing.assert_allclose(np.ptp((row - near)[kept]), 0, atol=1e-12)
        assert (row[~kept] <= (row - near)[kept].max() + 1e-12).all()
    assert np.array_equal(net.predict(x), outputs.argmax(1))
    for name in ("roc_auc_ovr", "neg_log_loss"):
        assert np.isfinite(get_scorer(name)(net, x, labels))
    for task in (labels < 2, labels == 2):  # of which the last has one class
        net.partial_fit(x[task], labels[task])
    assert net.classes_.tolist() == [0, 1, 2]
    assert np.isfinite(get_scorer("roc_auc_ovr")(net, x, labels))
    net = net.set_params(classes=["a", "b", "c"])
    assert net.classes_.tolist() == ["a", "b", "c"]
    with pytest.raises(AttributeError, match="classes_inferred_|classes_"):
        regressor(kind=TargetCorrectionClassifier).classes_  # noqa: B018


def test_fit_begins_anew_and_a_warm_start_does_not():
    assert_learned(regressor().fit(*FIRST).fit(*SECOND), trained(streams=tasks()[1:]))
    assert_learned(regressor(warm_start=True).fit(*FIRST).fit(*SECOND))


def test_what_is_held_out_or_left_out_is_not_corrected():
    net = regressor(train_split=ValidSplit(4), iterator_train__drop_last=True)
    streams = []
    for x, y in tasks((67, 52)):
        net.partial_fit(x.numpy(), y.numpy())
        kept = len(x) - -(-len(x) // 4)
        rows = torch.arange(len(x))[-kept:][: kept // 6 * 6]
        streams.append((x[rows], y[rows]))
    assert_learned(net, trained(streams=streams))
    assert "valid_loss" in net.history[-1]


class Two(nn.Sequential):
    def forward(self, left, right):
        return super().forward(torch.cat([left, right], 1))


def test_several_workers_and_named_inputs():
    net = regressor(lambda: Two(*network()), iterator_train__num_workers=2)
    learned(net, [({"left": x[:, :2], "right": x[:, 2:]}, y) for x, y in STREAMS])
    assert_learned(net)


def test_the_history_tells_of_the_correction(capsys):
    net, (x, y) = learned(regressor(verbose=1)), FIRST
    z = make(network()).correct(x, y)
    assert net.history[0, "shift"] == pytest.approx(np.sqrt(np.mean((z - y) ** 2)), 1e-9)
    assert net.history[1, "linearization_error"] == net.corrector_.linearization_error
    assert "shift" in capsys.readouterr().out


def test_pickled_copied_or_saved_it_goes_on_as_if_nothing_had_been(tmp_path):
    net = regressor().partial_fit(*FIRST)
    files = {"f_params": tmp_path / "params.pt", "f_optimizer": tmp_path / "optimizer.pt"}
    net.save_params(**files)
    path = tmp_path / "corrector.safetensors"
    net.corrector_.save(path)
    loaded = regressor().initialize()
    loaded.load_params(**files)
    loaded.corrector_ = rt.NetworkCorrector.load(path, loaded.module_)
    expected = trained()
    for each in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net), loaded, net):
        assert_learned(each.partial_fit(*SECOND), expected)


def test_clones_have_the_parameters_and_nothing_that_was_learned():
    net = regressor().partial_fit(*FIRST)
    again = clone(net).set_params(lr=0.02)  # searches in pipelines: docs/integrations/skorch.md
    assert again.get_params()["corrector"].keywords == net.corrector.keywords
    assert again.fit(*FIRST).corrector_.learner.lr == 0.02
    assert not any(name.startswith("corrector_") for name in net.get_params())


def by_optimizer(optimizer, learner, **options):
    """The plain loop with this kind of optimizer, of which the first task is not corrected."""
    same = network()
    made = optimizer(same.parameters(), learner.lr)
    by_hand(
        same,
        make(same, learner, preconditioner=made, **options),
        tasks(),
        optimizer=made,
        first_true=True,
    )
    return same


def test_adam_is_described_as_the_message_advises():
    options = {"gamma": 1e3, "block_size": 12, "ridge": 1e3}
    net = regressor(lr=0.001, optimizer=torch.optim.Adam, corrector=partial(CORRECTOR, **options))
    learner = replace(LEARNER, lr=0.001)
    assert_learned(learned(net), by_optimizer(torch.optim.Adam, learner, **options))


def test_a_scheduler_is_described_as_the_message_advises():
    decay = LRScheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9, step_every="batch")
    with pytest.raises(InvalidInputError, match=r"one rate; make the corrector from SGD\(lr=\["):
        regressor(callbacks=[decay]).partial_fit(*FIRST)
    rates = [0.01 * 0.9**step for step in range(8)]

    def decaying(module, learner):
        return CORRECTOR(module, replace(learner, lr=rates))

    net = regressor(callbacks=[decay], corrector=decaying).partial_fit(*FIRST)
    assert_learned(net, trained(replace(LEARNER, lr=rates), streams=tasks()[:1]))


class Anchored(TargetCorrectionRegressor):
    penalty_ = None

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return super().get_loss(y_pred, y_true, *args, **kwargs) + self.penalty_(self.module_)


@pytest.mark.parametrize("options", [(1.0,), (2.0, True)], ids=["L2-SP", "EWC"])
def test_penalties_that_start_at_zero_are_found(options):
    net = regressor(kind=Anchored)
    net.penalty_ = Penalty(*options)
    with pytest.raises(InvalidInputError, match="at step 1 of the task the gradients differ by"):
        net.partial_fit(*FIRST)


def test_everything_that_is_wrong_is_said_at_once_and_the_advice_is_enough():
    wrong = {"iterator_train__shuffle": True, "max_epochs": 3}
    clipping = {"callbacks": [GradientNormClipping(1.0)]}
    with pytest.raises(InvalidInputError, match="^3 things .*\n- the net has a Gradient") as caught:
        regressor(**wrong, **clipping).partial_fit(*FIRST)
    right = arguments_in(str(caught.value), "TargetCorrectionRegressor")
    assert right == {"max_epochs": 1, "iterator_train__shuffle": False}
    assert_learned(learned(regressor(**(wrong | right))))


def warming_up(net, *given, **kwargs):
    net.optimizer_.param_groups[0]["lr"] *= 1.01


ACCUMULATING = type("Own", (TargetCorrectionRegressor,), {"train_step": lambda *_, **__: None})
ACCELERATED = type("Accelerated", (TargetCorrectionRegressor, AccelerateMixin), {})
WARM = type("Warm", (TargetCorrectionRegressor,), {"on_batch_begin": warming_up})


class Pairs(BatchSampler):
    pass


def in_pairs(dataset, batch_size):
    return DataLoader(dataset, batch_sampler=Pairs(range(len(dataset)), 6, False))


STORING = partial(rt.ClosedLoopCorrector, gamma=1.0, block_size=6, features=16, replay=12)
REFUSED = {
    # by the checks that all adapters share
    "shuffle": ({"iterator_train__shuffle": True}, "RandomSampler.*use shuffle=False"),
    "epochs": ({"max_epochs": 2}, "2 epochs.*refresh='task'"),
    "loss": ({"criterion": partial(nn.MSELoss, reduction="sum")}, "step 0 .* are 2 times those"),
    "Adam, called": (
        {"optimizer": torch.optim.Adam, "corrector": lambda module, learner: CORRECTOR},
        "corrector cannot be called as corrector.module, learner, preconditioner=optimizer",
    ),
    "warm-up": ({"kind": WARM}, "rate of step 0 is 0.0101"),
    "corrector": ({"corrector": 3}, "corrector is 3; expected a function"),
    "made": ({"corrector": lambda module, learner: 3}, "corrector made a int"),
    "closed replay": ({"corrector": STORING}, "batch_size=6; expected batch_size=12 or more"),
    # by skorch's own
    "clipping": ({"callbacks": [GradientNormClipping(1.0)]}, "GradientNormClipping"),
    "own step": ({"kind": ACCUMULATING}, "own train_step"),
    "accelerate": ({"kind": ACCELERATED}, "has a AccelerateMixin"),
    "own sampler": ({"iterator_train": in_pairs}, "one size"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_before_anything_is_trained(what):
    options, message = REFUSED[what]
    net = regressor(**options)
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        net.partial_fit(*FIRST)
    if hasattr(net, "module_") and what != "closed replay":  # nothing is stored before a batch
        assert_same(net.module_, network(), tolerance=0)


class Impatient(TargetCorrectionRegressor):
    def on_batch_end(self, net, batch=None, training=False, **kwargs):
        if self.trained_ == 3:
            raise KeyboardInterrupt  # which skorch takes for the end of training


CHANGES = {
    "optimizer is SGD\\(lr=0.02": lambda net: net.optimizer_.param_groups[0].update(lr=0.02),
    "batch_size is 3, but the corrector's": lambda net: net.set_params(batch_size=3),
    "fit parameters \\['weight'\\]": lambda net: {"weight": 3},
    "ended after 3 of 8 batches": lambda net: None,
}


@pytest.mark.parametrize("message", CHANGES)
def test_changes_between_calls_and_interrupted_ones_are_refused(message):
    kind = Impatient if "ended" in message else TargetCorrectionRegressor
    net = regressor(kind=kind).partial_fit(*FIRST)
    given = CHANGES[message](net)
    with pytest.raises(InvalidInputError, match=message):
        net.partial_fit(*SECOND, **(given if isinstance(given, dict) else {}))
