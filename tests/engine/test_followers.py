"""Several learners that follow one stream."""

from dataclasses import replace

import pytest
import torch

import retarget as rt
from retarget.engine.dual import DualLearner
from retarget.engine.followers import Exact, Iterative, Online, SideBySide, Steps, follow
from retarget.engine.primal import FeatureRows, PrimalLearner
from retarget.engine.stream import SampleStream
from support.oracles import simulation
from support.problems import assert_same, make_stream

MOMENTUM = rt.SGD(lr=0.07, batch_size=3, momentum=0.6, reduction="sum")


def stream_of(stream):
    return SampleStream.of_matrix(torch.from_numpy(stream.K), torch.from_numpy(stream.Y))


def test_learners_that_follow_together():
    stream = make_stream(40, 2, seed=3)
    other = rt.SGD(lr=0.03, batch_size=2, reduction="sum")
    online = [Online(DualLearner(learner)) for learner in (MOMENTUM, other)]
    follow(stream_of(stream).windows(6), online)
    for learner, follower in zip((MOMENTUM, other), online, strict=True):
        weights = simulation.train(stream.features, stream.Y, learner).weights
        assert_same(stream.features.T @ follower.learner.coefficients.numpy(), weights)


def test_exact_finds_the_targets_of_online():
    stream = make_stream(40, 2, seed=4)
    Y = torch.from_numpy(stream.Y)
    online = Online(DualLearner(MOMENTUM), errors=torch.empty_like(Y))
    follow(stream_of(stream).windows(3), [online])
    exact = Exact(DualLearner(MOMENTUM), online.errors)
    follow(stream_of(stream).windows(3), [exact])
    assert_same(exact.targets, stream.Y)


def test_without_an_offline_learner_targets_are_the_aim():
    stream = make_stream(30, 1, seed=5)
    Y = torch.from_numpy(stream.Y)
    iterative = Iterative(DualLearner(MOMENTUM), None, 0.3, parts="online")
    iterative.targets = torch.empty_like(Y)
    follow(stream_of(stream).windows(6), [iterative])
    expected = rt.iterative_targets(stream.K, stream.Y, MOMENTUM, 1.0, 6, 0.3, parts="online")
    assert_same(iterative.targets, expected)


def test_a_failed_follower_stops_alone():
    taught = []

    class Failing(Online):
        def teach(self, window, lesson):
            taught.append(window.rows.start)
            if window.rows.start:
                self.failure = "enough"
            return Steps(window.targets, torch.ones_like(window.targets))

    stream = make_stream(900, 1, seed=6)  # in three windows
    failing, whole = Failing(DualLearner(MOMENTUM)), Online(DualLearner(MOMENTUM))
    failing.errors = torch.zeros(900, 1, dtype=torch.float64)
    follow(stream_of(stream).windows(3), [failing, whole])
    assert taught == [0, 300]
    assert len(failing) == failing.errors.sum() == 300
    assert len(whole) == 900


def test_a_fork_goes_on_by_itself():
    stream = make_stream(24, 1, seed=7)
    windows = list(stream_of(stream).windows(3, stop=12))
    online = Online(DualLearner(MOMENTUM))
    follow(windows, [online])
    before = online.learner.coefficients.clone()
    fork = online.fork(lambda rows: stream.K[rows, rows])
    follow(stream_of(stream).windows(3, begin=12), [fork])
    assert len(online) == 12
    assert torch.equal(online.learner.coefficients, before)
    assert_same(fork.learner.coefficients, rt.online_coefficients(stream.K, stream.Y, MOMENTUM))


@pytest.mark.parametrize("kind", [DualLearner, PrimalLearner])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_rates_side_by_side_are_those_one_by_one(kind, reduction):
    stream = make_stream(700, 2, seed=8)  # in windows that are longer than what is solved at once
    learner = rt.SGD(lr=1.0, batch_size=3, reduction=reduction)
    rates = torch.tensor([0.03, 0.001, 1e6, 0.01], dtype=torch.float64)  # one diverges alone
    features, Y = torch.from_numpy(stream.features), torch.from_numpy(stream.Y)
    samples = stream_of(stream)
    if kind is PrimalLearner:
        samples = SampleStream(lambda rows: FeatureRows(features[rows]), Y)
    errors = torch.empty(len(Y), len(rates), 2, dtype=torch.float64)

    def note(window, of_window):
        errors[window.rows] = of_window

    together = SideBySide(kind(learner), rates, note)
    follow(samples.windows(3), [together])
    ends = together.learner.coefficients.unflatten(1, (4, 2))
    for place in (0, 1, 3):
        alone = Online(kind(replace(learner, lr=rates[place].item())), errors=torch.empty_like(Y))
        follow(samples.windows(3), [alone])
        assert_same(errors[:, place], alone.errors, 1e-12)
        assert_same(ends[:, place], alone.learner.coefficients, 1e-12)
    assert not errors[:, 2].isfinite().all()


def test_only_rates_without_a_memory_go_side_by_side():
    with pytest.raises(ValueError, match="expected rate 1 and no memory, got SGD"):
        SideBySide(DualLearner(replace(MOMENTUM, lr=1.0)), torch.ones(1), lambda *_: None)
    with pytest.raises(ValueError, match="expected rate 1"):
        SideBySide(DualLearner(rt.SGD(lr=0.5)), torch.ones(1), lambda *_: None)
