"""Saved states whose checksum is right and whose content is wrong, as if forged."""

import copy
import json
import os
import random
import warnings
from functools import partial

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.errors import RetargetError
from retarget.state_files import read_state, write_state
from support.lab_problems import mlp

pytestmark = pytest.mark.faults
FORGERIES = 150 if "RETARGET_CORRUPTIONS" in os.environ else 12
LEARNER = rt.SGD(0.1, batch_size=2, momentum=0.5, reduction="sum")


def stream(n=23):
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(n, 2)) / 4
    Y[:, 1] = 1 - Y[:, 0]  # as cross-entropy has it
    return rng.normal(size=(n, 3)), Y


def corrector(**options):
    thing = rt.TargetCorrector(rt.RBF(1.3), LEARNER, gamma=0.7, block_size=4, **options)
    thing.correct(*stream())
    return thing


def tracker(kind, **options):
    thing = kind(rt.RBF(1.3), LEARNER, gamma=0.7, **options)
    thing.update(*stream())
    return thing


def network():
    thing = rt.NetworkCorrector(NETWORK(), LEARNER, 2.0, 4, refresh="never")
    thing.correct(*stream(8))
    return thing


def closed_loop():
    learner = rt.SGD(0.1, batch_size=2, reduction="sum")
    thing = rt.ClosedLoopCorrector(NETWORK(), learner, 2.0, 9, 6, replay=3)
    thing.next_block(*stream(6))
    return thing


def ridge(kernel):
    return rt.StreamingRidge(kernel, features=10, intercept=True).learn(*stream())


def features(X):
    return np.hstack([X, X**2])


def track(thing, X, Y):
    thing.update(X, Y)
    return thing.coefficients


def learn(thing, X, Y):
    return thing.learn(X, Y).predict(X)


CORRECT, NETWORK = rt.TargetCorrector.correct, partial(mlp, 1, 3, 2)
ENTROPY = {"loss": "cross-entropy"}
RECENT = {"features": 6, "ridge": 0.1, "aim": "discount:0.8"}
# What makes it, how it goes on, and what makes that which its `load` needs besides the path.
OBJECTS = {
    "TargetCorrector": (corrector, CORRECT),
    "TargetCorrector, cross-entropy": (lambda: corrector(ridge=3.0, **ENTROPY), CORRECT),
    "TargetCorrector, recent and bounded": (lambda: corrector(**RECENT), CORRECT),
    "ShiftTracker": (lambda: tracker(rt.ShiftTracker), track),
    "CorrectionTracker, entropy": (lambda: tracker(rt.CorrectionTracker, **ENTROPY), track),
    "NetworkCorrector": (network, rt.NetworkCorrector.correct, NETWORK),
    "ClosedLoopCorrector": (closed_loop, rt.ClosedLoopCorrector.next_block, NETWORK),
    "StreamingRidge": (lambda: ridge(features), learn, lambda: features),
    "StreamingRidge, random": (lambda: ridge(rt.RBF(1.3)), learn, lambda: rt.RBF(1.3)),
    "TangentLearner": (
        lambda: rt.TangentLearner(NETWORK(), 0.5, 10).learn(*stream()),
        learn,
        NETWORK,
    ),
}


def places(values, path=()):
    """Every entry of the header, however deep."""
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


ODD = [None, True, -1, 0, 3, 10**12, 1e300, "x", "float64", [], [1.0], {}, {"kind": "RBF"}]


def forge(values, tensors, dice):
    """One change somewhere: an entry missing, of another type, shape or value."""
    if dice.random() < 0.5 and tensors:
        name = dice.choice(sorted(tensors))
        tensor = tensors.pop(name)
        other_shapes = [tensor[:-1], torch.cat([tensor, tensor]), tensor[None], tensor[..., :1]]
        other_values = [tensor.to(torch.int32), torch.full_like(tensor, torch.nan)]
        if dice.random() < 0.85:
            tensors[name] = dice.choice([*other_shapes, *other_values]).clone()
        return
    *path, key = dice.choice(list(places(values)))
    owner = values
    for step in path:
        owner = owner[step]
    if dice.random() < 0.3:
        del owner[key]
    else:
        owner[key] = dice.choice(ODD)


@pytest.mark.parametrize("name", OBJECTS)
def test_forged_states(name, tmp_path):
    path, forged = tmp_path / "state", tmp_path / "forged"
    make, go_on, *to_load = OBJECTS[name]
    made = make()
    made.save(path)
    values, tensors = read_state(path)
    dice, refused = random.Random(7), 0
    for _ in range(FORGERIES):
        header, held = copy.deepcopy(values), dict(tensors)
        forge(header, held, dice)
        write_state(forged, header, held)
        told = json.dumps(header, sort_keys=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                go_on(type(made).load(forged, *(give() for give in to_load)), *stream(6))
        except RetargetError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} from {told:.2000}") from error
    assert refused > FORGERIES / 2


BEYOND = {
    "TargetCorrector, cross-entropy": [
        ("options.gamma", 1e308, "gamma is 1e[+]308; expected at most 1e[+]100 with loss='cross-"),
        (
            "options.gamma",
            5e-324,
            "gamma = 4.94066e-324 is too small next to the kernel",
        ),
    ],
    "TargetCorrector, recent and bounded": [
        ("state.intake.released", -1, "released is -1, features is 6 and error is"),
        ("state.intake.features", 0, "released is 20, features is 0 and error is"),
        ("state.intake.error", [1.0, float("inf")], r"and error is \[1.0, inf\]"),
        ("state.intake.error", [-1.0, 1.0], r"and error is \[-1.0, 1.0\]"),
    ],
    "CorrectionTracker, entropy": [
        ("options.gamma", 1e308, "gamma is 1e[+]308; expected at most"),
    ],
    "ShiftTracker": [
        ("learner.batch_size", 2**70, "batch_size is 1180591620717411303424; expected 1 or more"),
    ],
    "ClosedLoopCorrector": [
        ("state.replay.offered", 2**70, "offered is 1180591620717411303424, but 3 .* at most"),
        ("learner.batch_size", 2**70, "batch_size is 1180591620717411303424; expected 1 or more"),
    ],
    "StreamingRidge": [
        ("weight", 1e308, "weight is 1e[+]308, .*; expected at least 1 sample, and positive weig"),
        ("squared_weight", 1e308, "squared_weight is 1e[+]308; expected at least 1 sample"),
        ("count", 0, "count is 0, .*; expected at least 1 sample"),
    ],
    "TangentLearner": [("weight", 1e308, "weight is 1e[+]308, .*; expected at least 1 sample")],
}


@pytest.mark.parametrize(
    ("name", "place", "number", "message"),
    [(name, *each) for name, forgeries in BEYOND.items() for each in forgeries],
)
@pytest.mark.filterwarnings("ignore")
def test_numbers_beyond_what_can_be_computed_with(name, place, number, message, tmp_path):
    make, go_on, *to_load = OBJECTS[name]
    made, path = make(), tmp_path / "state"
    made.save(path)
    values, tensors = read_state(path)
    top, *rest = place.split(".", 1)
    owner, key = (values[top], rest[0]) if rest else (values, top)
    assert key in owner
    owner[key] = number
    write_state(path, values, tensors)
    with pytest.raises(RetargetError, match=message):
        go_on(type(made).load(path, *(give() for give in to_load)), *stream(6))


@pytest.mark.parametrize("name", ["StreamingRidge", "StreamingRidge, random", "TangentLearner"])
def test_sums_that_no_samples_have(name, tmp_path):
    make, go_on, *to_load = OBJECTS[name]
    made, path = make(), tmp_path / "state"
    made.save(path)
    values, tensors = read_state(path)
    for entry in ("triangle", "cross", "mean"):
        forged = {**tensors, entry: torch.full_like(tensors[entry], 1e308)}
        write_state(path, values, forged)
        with pytest.raises(RetargetError, match=f"{entry} is not .*, or larger than sums can be"):
            go_on(type(made).load(path, *(give() for give in to_load)), *stream(6))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", "nowhere", 1.5])
def test_a_device_that_is_not_there(device, tmp_path):
    path = tmp_path / "state"
    corrector().save(path)
    with pytest.raises(rt.errors.InvalidInputError, match=f"device is '{device}'"):
        rt.TargetCorrector.load(path, device=device)
