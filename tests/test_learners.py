"""A learner by its options, and read off a torch.optim.SGD, against it step by step."""

import json
import re

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.engine.response import has_memory
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.learners import described_optimizer


def test_a_description_survives_json_and_cannot_be_changed():
    learner = rt.SGD(
        lr=np.array([0.3, 0.1]),
        batch_size=np.int64(4),
        momentum=0.9,
        nesterov=True,
        reduction="sum",
    )
    again = rt.SGD(**json.loads(json.dumps(learner.to_dict())))
    assert again == learner
    assert hash(again) == hash(learner)
    with pytest.raises(AttributeError):
        learner.lr = 0.2


def test_steps_rates_and_memory():
    learner = rt.SGD(lr=0.5, batch_size=3, reduction="mean")
    assert [learner.steps(n) for n in (0, 1, 3, 4, 9)] == [0, 1, 1, 2, 3]
    np.testing.assert_array_equal(learner.rates(7), [0.5, 0.5, 0.5])
    assert learner.rate(1000) == 0.5
    schedule = rt.SGD(lr=[0.3, 0.2, 0.1], batch_size=3, reduction="sum")
    np.testing.assert_array_equal(schedule.rates(7), [0.3, 0.2, 0.1])
    assert schedule.rate(2) == 0.1
    with pytest.raises(InvalidInputError, match="ends after 3 steps, but .* step 4"):
        schedule.rate(3)
    having = learner, rt.SGD(lr=0.1, momentum=0.1), rt.SGD(lr=0.1, weight_decay=0.1)
    assert [has_memory(each) for each in having] == [False, True, True]


INFINITE, MISSING = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", 0.0, "lr is 0.0; expected a positive, finite rate"),
        ("lr", -1, "lr is -1.0"),
        ("lr", MISSING, "lr is nan"),
        ("lr", [0.1, INFINITE], "lr at step 1 is inf"),
        ("lr", [], "the lr schedule is empty"),
        ("batch_size", 0, "batch_size is 0; expected 1 or more"),
        ("batch_size", 2**53 + 1, "batch_size is 9007199254740993"),
        ("momentum", 1.0, "momentum is 1.0; expected 0 <= momentum < 1"),
        ("momentum", -0.1, "momentum is -0.1"),
        ("weight_decay", -0.1, "weight_decay is -0.1; expected 0 or more"),
        ("weight_decay", MISSING, "weight_decay is nan"),
        ("nesterov", True, "nesterov=True needs a momentum above 0"),
        ("reduction", "none", "'none'; expected 'sum' or 'mean'"),
    ],
)
def test_what_has_no_meaning(name, value, message):
    with pytest.raises(InvalidInputError, match=message):
        rt.SGD(**({"lr": 0.1} | {name: value}))


def test_mini_batches_need_a_reduction():
    with pytest.raises(InvalidInputError, match="batch_size is 4, but .*'mean'.* or .*'sum'"):
        rt.SGD(0.1, batch_size=4)
    rates = {each: rt.SGD(0.1, batch_size=4, reduction=each) for each in ("mean", "sum")}
    K, Y = np.ones((4, 4)), np.ones(4)
    mean, summed = (rt.online_coefficients(K, Y, learner) for learner in rates.values())
    np.testing.assert_allclose(summed, 4 * mean)  # as the message says
    assert rt.SGD(0.1) == rt.SGD(0.1, reduction="sum")  # single samples: both are the same


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", "fast"), ("lr", True), ("lr", None), ("batch_size", 2.0), ("batch_size", True)],
)
def test_what_is_no_number(name, value):
    with pytest.raises(InvalidTypeError, match=f"{name} is {value!r}; expected a .*number"):
        rt.SGD(**({"lr": 0.1} | {name: value}))


def test_rates_of_different_lengths():
    with pytest.raises(InvalidTypeError, match="expected a number, or one per step"):
        rt.SGD([[0.1, 0.2], [0.3]])


K, Y, RBF, NETWORK = np.eye(4), np.ones(4), rt.RBF(1.0), torch.nn.Linear(3, 2)
TAKES_A_LEARNER = {
    "online_coefficients": lambda learner: rt.online_coefficients(K, Y, learner),
    "prequential_errors": lambda learner: rt.prequential_errors(K, Y, learner),
    "effective_targets": lambda learner: rt.effective_targets(K, Y, learner, 1.0),
    "corrected_targets": lambda learner: rt.corrected_targets(K, Y, learner, 1.0),
    "discrepancy": lambda learner: rt.discrepancy(K, Y, Y, learner, 1.0),
    "online_learning_curve": lambda learner: rt.online_learning_curve(K, Y, K, learner, [4]),
    "ShiftTracker": lambda learner: rt.ShiftTracker(RBF, learner, 1.0),
    "CorrectionTracker": lambda learner: rt.CorrectionTracker(RBF, learner, 1.0),
    "iterative_targets": lambda learner: rt.iterative_targets(K, Y, learner, 1.0, 2),
    "correction_terms": lambda learner: rt.correction_terms(K, learner, 1.0, 2),
    "TargetCorrector": lambda learner: rt.TargetCorrector(RBF, learner, 1.0, 2),
    "NetworkCorrector": lambda learner: rt.NetworkCorrector(NETWORK, learner, 1.0, 2),
    "ClosedLoopCorrector": lambda learner: rt.ClosedLoopCorrector(NETWORK, learner, 1.0, 16, 2),
}


@pytest.mark.parametrize("name", TAKES_A_LEARNER)
def test_an_optimizer_is_no_description_but_has_one(name):
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    told = (
        r"learner is a torch.optim.sgd.SGD; expected rt.SGD\(.*rt.SGD.from_torch\(optimizer, batc"
    )
    with pytest.raises(InvalidTypeError, match=told):
        TAKES_A_LEARNER[name](optimizer)
    with pytest.raises(InvalidTypeError, match="learner is a float; expected rt.SGD"):
        TAKES_A_LEARNER[name](0.1)
    TAKES_A_LEARNER[name](rt.SGD.from_torch(optimizer, 1, "sum"))


@pytest.mark.parametrize("value", ["no", 1, None, [1.0]])
def test_what_is_neither_true_nor_false(value):
    with pytest.raises(InvalidTypeError, match=re.escape(f"nesterov is {value!r}; expected True")):
        rt.SGD(0.1, momentum=0.5, nesterov=value)
    assert rt.SGD(0.1, momentum=0.5, nesterov=np.True_).nesterov is True


N, BATCH = 17, 3
DECAY = {"lr": 0.03, "weight_decay": 0.4}


def weights(*shapes):
    return [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({"lr": 0.07}, [{}]),
        ({"lr": torch.tensor(0.07), "dampening": 0.5}, [{}]),  # without momentum it is not used
        ({"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.3}, [{}]),
        ({"lr": 0.05, "momentum": 0.7}, [{}, {"lr": 0.02}, {"lr": 0.0}]),
        ({"lr": 0.06, "weight_decay": 0.2}, [{"momentum": 0.4}, DECAY | {"momentum": 0.4}]),
    ],
    ids=["plain", "tensor rate", "nesterov", "three rates", "decay in proportion"],
)  # fmt: skip
def test_the_description_takes_the_steps_that_torch_takes(options, groups, reduction):
    random = np.random.default_rng(3)
    parts = [torch.from_numpy(random.normal(size=(N, 2 + i))) for i in range(len(groups))]
    Y = torch.from_numpy(random.normal(size=(N, 2)))
    W = weights(*[(part.shape[1], 2) for part in parts])
    optimizer = torch.optim.SGD(
        [{"params": [w], **group} for w, group in zip(W, groups, strict=True)], **options
    )
    learner = rt.SGD.from_torch(optimizer, BATCH, reduction)
    rate = float(optimizer.param_groups[0]["lr"])
    ratios = [float(group["lr"]) / rate for group in optimizer.param_groups]

    def predictions():
        return sum(part @ w for part, w in zip(parts, W, strict=True))

    for start in range(0, N, BATCH):
        rows = slice(start, start + BATCH)
        optimizer.zero_grad()
        loss = 0.5 * (Y[rows] - predictions()[rows]).square().sum()
        (loss / len(Y[rows]) if reduction == "mean" else loss).backward()
        optimizer.step()

    K = sum(ratio * part @ part.T for ratio, part in zip(ratios, parts, strict=True))
    A = rt.online_coefficients(K, Y, learner)
    torch.testing.assert_close(K @ A, predictions().detach(), rtol=1e-10, atol=1e-10)


def stepped(momentum):
    (w,) = weights(2)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=momentum)
    w.square().sum().add(w.sum()).backward()
    optimizer.step()
    return optimizer


def test_it_reads_every_option():
    every = {"lr": 0.3, "momentum": 0.5, "nesterov": True, "weight_decay": 0.01, "foreach": True}
    optimizer = torch.optim.SGD(weights(2), **every)
    assert rt.SGD.from_torch(optimizer, 7, "mean") == rt.SGD(0.3, 7, 0.5, True, 0.01, "mean")
    assert rt.SGD.from_torch(stepped(0.0), 1, "sum") == rt.SGD(0.1)


SCHEDULE = tuple(0.09 / (1 + i) for i in range(-(-N // BATCH)))
# a value for every field of the description that is not its default
OTHER_VALUES = {
    "lr": SCHEDULE,
    "batch_size": BATCH,
    "momentum": 0.6,
    "nesterov": True,
    "weight_decay": 0.2,
    "reduction": "mean",
}


def test_to_torch_takes_the_steps_of_every_field():
    learner = rt.SGD(**OTHER_VALUES)
    random = np.random.default_rng(8)
    X = torch.from_numpy(random.normal(size=(N, 3)))
    Y = torch.from_numpy(random.normal(size=(N, 2)))
    (w,) = weights((3, 2))
    optimizer = learner.to_torch([w])
    for step in range(learner.steps(N)):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.param_groups[0]["lr"] = learner.rate(step)
        optimizer.zero_grad()
        (0.5 * (Y[rows] - X[rows] @ w).square().sum() / len(Y[rows])).backward()
        optimizer.step()
    A = rt.online_coefficients(X @ X.T, Y, learner)
    torch.testing.assert_close(X @ X.T @ A, X @ w.detach(), rtol=1e-10, atol=1e-10)


def test_to_torch_and_back():
    for name in ("momentum", "weight_decay"):  # each alone, and none
        learner = rt.SGD(0.3, **{name: OTHER_VALUES[name]})
        assert rt.SGD.from_torch(learner.to_torch(weights(2)), 1, "sum") == learner
    assert rt.SGD(SCHEDULE).to_torch(weights(2), 2).param_groups[0]["lr"] == SCHEDULE[2]


def scheduled():
    optimizer = torch.optim.SGD(weights(2), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 5)
    return optimizer


def in_groups(*groups):
    parts = [{"params": weights(2), **group} for group in groups]
    return torch.optim.SGD(parts, lr=0.1)


class OfMyOwn(torch.optim.SGD):
    def step(self, closure=None):
        pass


MOVING, DECAYING = {"momentum": 0.5}, {"weight_decay": 0.1}
REFUSED = {
    "optimizer is Adam .of torch.optim.adam.; expected torch.optim.SGD": lambda: torch.optim.Adam(
        weights(2)
    ),
    "is OfMyOwn .of .*; expected torch.optim.SGD": lambda: OfMyOwn(weights(2)),
    "is SGD .of retarget.learners.; expected torch.optim.SGD": lambda: rt.SGD(0.1),
    "group 1 maximize": lambda: in_groups({}, {"maximize": True}),
    "group 0 dampening is 0.2": lambda: in_groups(MOVING | {"dampening": 0.2}),
    "a scheduler changes the rate of the optimizer": scheduled,
    "group 1 momentum is 0.5, but 0 in group 0": lambda: in_groups({}, MOVING),
    "group 1 nesterov is True, but False in group 0": (
        lambda: in_groups(MOVING, MOVING | {"nesterov": True})
    ),
    "group 1 lr . weight_decay is 0.02, but 0.01 in group 0": (
        lambda: in_groups(DECAYING, DECAYING | {"lr": 0.2})
    ),
    "velocity from earlier steps": lambda: stepped(0.5),
    "lr is 0.0; expected a positive": lambda: in_groups({"lr": 0.0}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_description_fits_is_refused(message):
    kind = "expected torch" in message
    with pytest.raises(InvalidTypeError if kind else InvalidInputError, match=message):
        rt.SGD.from_torch(REFUSED[message](), 1, "sum")


def test_adam_and_schedules_by_their_settings():
    plain = rt.SGD(0.1, 6, momentum=0.5, reduction="mean")
    moving = stepped(0.5)
    assert described_optimizer(moving, 6, "mean") == (plain, False)
    assert moving.state  # it keeps its velocity
    assert described_optimizer(scheduled(), 1, "sum") == (rt.SGD(0.1), False)  # as it starts
    decayed = torch.optim.AdamW(weights(2), 0.01, weight_decay=0.2)
    assert described_optimizer(decayed, 1, "sum") == (rt.SGD(0.01, weight_decay=0.2), True)
    assert described_optimizer(torch.optim.RMSprop(weights(2), 0.3), 1, "sum")[1]
    assert described_optimizer(in_groups({}, {"lr": 0.2}), 1, "sum") == (rt.SGD(0.1), True)


def test_a_group_without_parameters_does_not_count():
    groups = [{"params": [], "weight_decay": 0.3, "lr": 0.7}, {"params": weights(2), "lr": 0.2}]
    assert described_optimizer(torch.optim.SGD(groups), 1, "sum") == (rt.SGD(0.2), False)
