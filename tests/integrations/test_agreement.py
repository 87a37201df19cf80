"""What the adapters share: each check accepts what was described, and refuses the rest."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.integrations import agreement
from support.corrected_training import (
    LEARNER,
    by_hand,
    closed_loop,
    make,
    network,
    sgd,
    step_loss,
    tasks,
)

MOMENTUM = replace(LEARNER, momentum=0.5, nesterov=True)
MOVING = MOMENTUM, MOMENTUM
ROWS = range(12)
X, Y = tasks((18,))[0]


def pair(trains=LEARNER, learner=LEARNER, preconditioned=False, maker=make, **options):
    """The optimizer of a network, by what makes it or a learner, and a corrector of the network."""
    module = network()
    optimizer = sgd(module, trains) if isinstance(trains, rt.SGD) else trains(module)
    given = {"preconditioner": optimizer} if preconditioned else {}
    if preconditioned == "another":
        given = {"preconditioner": sgd(module, LEARNER)}
    return optimizer, maker(module, learner, **given, **options)


def two_rates(module):
    rates = zip((module[0], module[2]), (0.01, 0.02), strict=True)
    return torch.optim.SGD([{"params": part.parameters(), "lr": lr} for part, lr in rates])


def scheduled(module):
    return torch.optim.lr_scheduler.ExponentialLR(sgd(module, LEARNER), 0.9).optimizer


def adam(module):
    return torch.optim.Adam(module.parameters(), lr=0.01, betas=(0.0, 0.999))


def last_layer(module):
    return sgd(module[2], LEARNER)


def then_frozen(module):
    optimizer = sgd(module, LEARNER)
    module[0].requires_grad_(False)
    return optimizer


def stepped(*given, samples=6, anew=None):
    """After a step, of which the corrector knows some samples; perhaps with a new optimizer."""
    optimizer, corrector = pair(*given)
    if samples:
        corrector.correct(X[:samples], Y[:samples])
    step_loss(corrector.module(X[:6]), Y[:6], LEARNER).backward()
    optimizer.step()
    return sgd(corrector.module, anew) if anew else optimizer, corrector


SCHEDULE = replace(LEARNER, lr=[0.01, 0.009, 0.0081])
ACCEPTED = {
    "plain": pair,
    "every option": partial(pair, *[replace(MOMENTUM, weight_decay=0.1)] * 2),
    "steps without momentum": stepped,
    "velocity of the samples": partial(stepped, *MOVING),
    "schedule": partial(pair, scheduled, SCHEDULE),
    "rates as a preconditioner": partial(pair, two_rates, LEARNER, True),
    "Adam as a preconditioner": partial(stepped, adam, LEARNER, True, samples=0),
    "some parameters": partial(pair, last_layer, params="2"),
    "frozen parameters": partial(pair, then_frozen),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_optimizers_that_the_learner_describes(what):
    agreement.require_optimizer(*ACCEPTED[what]())
    agreement.require_parameters(*ACCEPTED[what]())


@pytest.mark.parametrize("trains", [replace(MOMENTUM, weight_decay=0.1), adam], ids=["SGD", "Adam"])
def test_a_learner_as_the_message_advises(trains):
    preconditioned = trains is adam
    wrong = replace(LEARNER, lr=0.3)
    with pytest.raises(InvalidInputError) as caught:
        agreement.require_optimizer(*pair(trains, wrong, preconditioned))
    advice = re.search(r"the optimizer is (SGD\(.*?\)), but", str(caught.value))[1]
    agreement.require_optimizer(*pair(trains, eval(f"rt.{advice}"), preconditioned))


def test_parameters_outside_of_the_network():
    whole = nn.Sequential(network(), nn.Linear(2, 2).double())
    corrector = make(whole[0])
    with pytest.raises(InvalidInputError, match="2 parameters outside"):
        agreement.require_optimizer(sgd(whole, LEARNER), corrector)
    agreement.require_optimizer(sgd(whole, LEARNER), make(whole))
    optimizer = sgd(whole, LEARNER)
    whole[1].requires_grad_(False)
    agreement.require_optimizer(optimizer, corrector)


def rate(value, at, learner=LEARNER):
    return lambda: agreement.require_rate(pair(replace(LEARNER, lr=value))[0], learner, at)


def optimizer(*given, found=pair, **options):
    return lambda: agreement.require_optimizer(*found(*given, **options))


def order(**options):
    return lambda: agreement.require_order(DataLoader(ROWS, **options))


def passes(epochs, **options):
    return lambda: agreement.require_passes(pair(**options)[1], epochs)


def corrector_of(maker, optimizer=sgd):
    module = network()
    optimizer = optimizer(module, LEARNER) if optimizer is sgd else optimizer(module)
    return agreement.made_by(maker, module, LEARNER, optimizer)


def wider(module):
    """An optimizer that trains something beside the network, and something that stays as it is."""
    head, frozen = nn.Linear(2, 3), nn.Linear(2, 7).requires_grad_(False)
    parameters = [*module.parameters(), *head.parameters(), *frozen.parameters()]
    return torch.optim.SGD(parameters, lr=LEARNER.lr)


def another_adam():
    _, corrector = pair(adam, LEARNER, True)
    return adam(corrector.module), corrector


def second_block(batch_size, trains=LEARNER):
    """The second block of the closed loop, which is trained on with stored samples."""
    learner = replace(LEARNER, batch_size=batch_size)
    options = {"maker": closed_loop, "block_size": batch_size, "replay": 8}
    optimizer, corrector = pair(trains, learner, **options)
    agreement.next_block(corrector, optimizer, X[:4], Y[:4])
    return *agreement.next_block(corrector, optimizer, X[4:8], Y[4:8]), corrector


F = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1])
HOT = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
EACH = [4 / 2, 4 / 2, (9 + 0.25) / 2]
RANDOM = RandomSampler(ROWS)
REFUSED = {
    "rate": (optimizer(replace(LEARNER, lr=0.1)), "is SGD.lr=0.1,.*learner is SGD.lr=0.01,"),
    "preconditioner": (optimizer(two_rates, MOMENTUM, True), "learner is SGD.*momentum=0.5"),
    "momentum": (optimizer(replace(MOMENTUM, nesterov=False), MOMENTUM), "nesterov=False"),
    "decay": (
        optimizer(replace(LEARNER, weight_decay=0.1)),
        "weight_decay=0.1.*an rt.SGD that matches",
    ),
    "rates": (optimizer(two_rates), "is SGD with several rates, but .* made for plain SGD"),
    "rates, another preconditioner": (
        optimizer(two_rates, LEARNER, "another"),
        "several rates, but not the one that the corrector was made with; keep one optimizer",
    ),
    "scheduler": (optimizer(scheduled), r"scheduler changes .* one rate; .*SGD\(lr=\[...\]\)"),
    "Adam": (
        optimizer(adam),
        "is Adam, but .* made for plain SGD; make it with preconditioner=opt",
    ),
    "Adam, scheduled": (optimizer(adam, learner=SCHEDULE), "is Adam, but .* made for plain SGD"),
    "another Adam": (
        optimizer(found=another_adam),
        "not the one .* made with; keep one optimizer",
    ),
    "Adam, decay": (
        optimizer(adam, replace(LEARNER, weight_decay=0.1), True),
        "is SGD.*decay=0.0,.*learner is SGD.*decay=0.1",
    ),
    "Adagrad": (
        optimizer(lambda module: torch.optim.Adagrad(module.parameters())),
        "the optimizer is Adagrad; expected torch's SGD, Adam, AdamW or RMSprop",
    ),
    "parameters outside": (optimizer(wider), r"2 parameters outside .* \(3, 2\), \(3,\); make"),
    "velocity": (optimizer(*MOVING, found=stepped, samples=0), "earlier steps, but .* 0 samples"),
    "no velocity": (optimizer(*MOVING, found=stepped, anew=MOMENTUM), "is new, .* 6 samples"),
    "parameters": (optimizer(params="2"), "trains 0.weight, and .* the opposite"),
    "fewer parameters": (optimizer(last_layer), "does not train 0.weight, and"),
    "rate of a step": (rate(0.0101, 7), "rate of step 7 is 0.0101, but .* has 0.01;"),
    "rate of a schedule": (rate(0.01, 1, SCHEDULE), "rate of step 1 is 0.01, but .* has 0.009;"),
    "shuffled": (order(shuffle=True), "has a RandomSampler, but .* use shuffle=False"),
    "shuffled singly": (order(shuffle=True, batch_size=None), "a RandomSampler"),
    "weighted": (order(sampler=WeightedRandomSampler([1.0] * 12, 12)), "a WeightedRandomSampler"),
    "subset": (order(sampler=SubsetRandomSampler([3, 1])), "a SubsetRandomSampler"),
    "random batches": (order(batch_sampler=BatchSampler(RANDOM, 4, False)), "a RandomSampler"),
    "any order": (order(num_workers=1, in_order=False), "use in_order=True"),
    "passes": (passes(2), "2 epochs, but the corrector has refresh='task'"),
    "any number": (passes(-1, refresh="epoch"), "any number of epochs, .*a known number"),
    "closed passes": (passes(2, maker=closed_loop), "closed loop every sample is learned once"),
    "scheduled passes": (
        passes(2, learner=SCHEDULE, refresh="epoch"),
        "2 epochs, but .* schedule, which is for one",
    ),
    "reduction": (lambda: agreement.HalfSquaredError("none"), "reduction is 'none'"),
    "shapes": (lambda: agreement.HalfSquaredError()(F, F.T), r"\(2, 3\), but .* \(3, 2\);"),
    "maker": (lambda: agreement.require_maker(3), "corrector is 3; expected a function that makes"),
    "made": (
        lambda: corrector_of(lambda *_: {}),
        "made a dict; expected a NetworkCorrector or a Cl",
    ),
    "called": (lambda: corrector_of(lambda module: {}), r"corrector\(module, learner\): too many"),
    "called for Adam": (
        lambda: corrector_of(lambda module, learner: {}, adam),
        r"corrector\(module, learner, preconditioner=optimizer\): got an unexpected",
    ),
    "forgotten": (
        lambda: corrector_of(lambda module: None),
        "called as corrector.module, learner.: too",
    ),
    "misspelled": (
        lambda: corrector_of(partial(rt.NetworkCorrector, gama=1.0)),
        "called as corrector.module",
    ),
    "closed rate": (lambda: second_block(8, replace(LEARNER, lr=0.02)), "rate of step 0 is 0.02"),
    "closed batch": (lambda: second_block(7), "4 samples .* 4 stored .*=7.*=8 or more"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    check, message = REFUSED[what]
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        check()


def test_what_is_not_refused():
    agreement.require_maker(make)
    agreement.require_order(iter(ROWS))  # of which nothing is known
    known = (
        passes(1),
        passes(1, maker=closed_loop),
        passes(3, refresh="epoch"),
        passes(1, learner=SCHEDULE),
    )
    for check in (*known, order(batch_size=5), rate(0.01, 7), rate(0.009, 1, SCHEDULE)):
        check()


def test_everything_wrong_is_said_at_once():
    problems = agreement.Problems("Trainer")
    problems.refuse()
    problems.add(False, "a", a=1)
    assert problems.check(lambda *given: sum(given), 3, 4) == 7
    assert not problems
    problems.add(True, "b is wrong", b=None)
    with pytest.raises(InvalidInputError, match=r"^b is wrong; set Trainer\(b=None\)$"):
        problems.refuse()
    assert problems.check(agreement.real_targets, LABELS + 3, 2, c="d") is None
    assert problems
    with pytest.raises(InvalidInputError) as caught:
        problems.refuse()
    first, *lines = str(caught.value).split("\n")
    assert first == "2 things would make corrected targets wrong:"
    assert lines[0] == "- b is wrong"
    assert lines[1].startswith("- the class labels are 3 to 4, and there are 2 outputs")
    assert lines[2:] == ["For a correct run, set Trainer(b=None, c='d')"]


def test_what_a_corrector_is_made_from():
    maker = partial(rt.NetworkCorrector, gamma=2.0, block_size=12)  # as the messages advise
    assert corrector_of(maker).learner == LEARNER
    for optimizer in (adam, two_rates):
        assert isinstance(
            corrector_of(maker, optimizer).kernel.preconditioner, torch.optim.Optimizer
        )


@pytest.mark.parametrize("trains", [LEARNER, SCHEDULE], ids=["one rate", "schedule"])
def test_targets_of_a_task_so_far(trains):
    learner = replace(LEARNER, lr=[0.01, 0.008, 0.005]) if trains is SCHEDULE else LEARNER
    optimizer, corrector = pair(LEARNER, learner)
    noisy = corrector.module.insert(2, nn.Dropout(0.5))
    found = [
        agreement.corrected(corrector, optimizer, X[rows], Y[rows])
        for rows in (slice(0, 12), slice(12, 18))
    ]
    assert corrector.learner == learner
    assert noisy.training
    twin = make(network(), learner)
    for Z, rows in zip(found, (slice(0, 12), slice(12, 18)), strict=True):
        if trains is SCHEDULE:
            twin.learner = replace(learner, lr=learner.lr[: rows.stop // 6])
        expected = twin.correct(X[rows], Y[rows])
        torch.testing.assert_close(Z, expected, rtol=0, atol=1e-12)


def test_a_schedule_needs_full_mini_batches():
    optimizer, corrector = pair(LEARNER, replace(LEARNER, lr=[0.01, 0.008, 0.005]))
    agreement.corrected(corrector, optimizer, X[:10], Y[:10])
    with pytest.raises(InvalidInputError, match="10 samples, .* of 6; .*drop_last"):
        agreement.corrected(corrector, optimizer, X[10:], Y[10:])


def test_a_new_adam_and_its_first_task():
    optimizer, corrector = pair(adam, LEARNER, True, gamma=1e3)
    first = agreement.corrected(corrector, optimizer, X[:12], Y[:12])
    assert torch.equal(first, Y[:12])
    step_loss(corrector.module(X[:6]), Y[:6], LEARNER).backward()
    optimizer.step()
    second = agreement.corrected(corrector, optimizer, X[12:], Y[12:])
    assert corrector.samples == 18
    assert (second - Y[12:]).abs().max() > 1e-3


@pytest.mark.parametrize("targets", [LABELS, HOT, HOT.long()], ids=["labels", "real", "whole"])
@pytest.mark.parametrize(("reduction", "divisor"), [("mean", 3), ("sum", 1)])
def test_half_of_the_squared_error_and_its_gradient(targets, reduction, divisor):
    outputs = F.clone().requires_grad_()
    found = agreement.HalfSquaredError(reduction)(outputs, targets)
    found.backward()
    assert found.item() == pytest.approx(sum(EACH) / divisor, rel=1e-14)
    torch.testing.assert_close(outputs.grad, (F - HOT) / divisor, rtol=1e-14, atol=0)
    theirs = nn.functional.mse_loss(F, HOT.double(), reduction="sum") / 2 / divisor
    assert found.item() == pytest.approx(theirs.item(), rel=1e-14)
    assert agreement.HalfSquaredError()(F[:, :1], F[:, 0] + 3).item() == 4.5  # single numbers


def test_true_targets_of_classes_and_numbers():
    assert torch.equal(agreement.real_targets(LABELS.int(), 2), HOT.double())
    assert torch.equal(agreement.real_targets(F, 7), F)
    assert torch.equal(agreement.real_targets(F[:, 0], 7), F[:, :1])
    assert torch.equal(agreement.real_targets(HOT.long(), 7), HOT.long())
    module = network().float()
    found = agreement.true_targets(module, X.float()[:3], LABELS)
    assert (found.dtype, found.tolist()) == (torch.float32, HOT.tolist())
    assert agreement.true_targets(module, X.float()[:3], LABELS, 4).shape == (3, 4)
    assert torch.equal(agreement.true_targets(module, X, Y), Y.float())


def test_a_block_of_the_closed_loop():
    samples, targets, found, corrector = second_block(8)
    assert found == agreement.Shift().add(targets[:4], Y[4:8]).numbers(corrector)
    twin = closed_loop(network(), corrector.learner, block_size=8, replay=8)
    twin.next_block(X[:4], Y[:4])
    expected = twin.next_block(X[4:8], Y[4:8])
    assert torch.equal(samples, expected[0])
    torch.testing.assert_close(targets, expected[1], rtol=0, atol=1e-12)
    noisy = network().insert(2, nn.Dropout(0.5))
    still = closed_loop(noisy)
    _, found, _ = agreement.next_block(still, sgd(noisy, LEARNER), X[:6], Y[:6])
    same_names = network().insert(2, nn.Identity())  # the projection is drawn from them
    expected = closed_loop(same_names).next_block(X[:6], Y[:6])[1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert noisy.training


def test_the_shift_of_all_portions():
    corrector = pair()[1]
    assert agreement.Shift().numbers(corrector) == {"shift": 0.0, "largest_target": 0.0}
    Z = corrector.correct(X[:12], Y[:12])
    portions = agreement.Shift().add(Z[:5], Y[:5]).add(Z[5:], Y[5:12])
    root = (sum((z - y) ** 2 for z, y in zip(Z.ravel(), Y[:12].ravel(), strict=True)) / 24).sqrt()
    expected = {"shift": root.item(), "largest_target": max(map(abs, Z.ravel().tolist()))}
    assert portions.numbers(corrector) == pytest.approx(expected, rel=1e-12)
    assert agreement.Shift().add(-3 * HOT, HOT).numbers(corrector)["largest_target"] == 3
    trained = pair()[1]
    by_hand(trained.module, trained, tasks())
    error = portions.numbers(trained)["linearization_error"]
    assert error == trained.linearization_error > 0


def test_what_was_tried_is_logged_with_the_shift():
    network = pair()[1].module
    corrector = rt.NetworkCorrector(network, LEARNER)
    true = network(X[:12]).detach()  # nothing can be better than these
    Z = corrector.correct(X[:12], true)
    numbers = agreement.Shift().add(Z, true).numbers(corrector)
    assert numbers["shift"] == numbers["corrected"] == numbers["loss_on_true_targets"] == 0
    assert numbers["loss_on_corrected_targets"] == min(t.error for t in corrector.trials[1:]) > 0
