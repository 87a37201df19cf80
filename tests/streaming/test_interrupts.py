"""Ctrl-C, or memory that runs out, at any moment: a call is complete, or changes nothing.

The signals are real: a timer of the system interrupts the call at random moments.
"""

import contextlib
import signal
import time

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import retarget as rt
from support.interrupts import timed_interrupts
from support.streaming_objects import correction, corrector, feed, shift

INTERRUPTS = 20
pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer sends signals"),
    pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning"),
]


def random_stream(n=60, m=300, c=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, m)), rng.normal(size=(n, c))


@pytest.fixture(autouse=True)
def with_gradients():
    yield
    torch.set_grad_enabled(True)  # an interrupt within torch.no_grad itself may leave them off


@pytest.fixture
def timer():
    with timed_interrupts() as made:
        yield made


def contents(thing):
    """All that a learner knows, bit by bit."""
    if isinstance(thing, rt.StreamingRidgeRegressor | rt.StreamingRidgeClassifier):
        apart = ("learner_", "_turn", "_confidence")
        rest = {k: v for k, v in vars(thing).items() if k not in apart}
        answers = thing.predict(X[:3]).tobytes()
        if isinstance(thing, rt.StreamingRidgeClassifier):  # what its confidence says of its sums
            answers += thing.predict_proba(X[:3]).tobytes()
        return str(rest), answers, *contents(thing.learner_)
    if isinstance(thing, rt.OnlineKernelRegressor):
        known = thing.X_fit_, thing.dual_coef_, thing.targets_, thing._tracker.samples
        return tuple(each.tobytes() for each in known)
    if isinstance(thing, rt.StreamingRidge):
        values, tensors = thing.to_state()
        return str(values), *(each.numpy().tobytes() for each in tensors.values())
    fork = thing.fork()
    feed(fork, *random_stream(5, seed=7))
    ends = [fork.preview()[0]] if isinstance(fork, rt.TargetCorrector) else [fork.coefficients]
    return len(thing), *(np.asarray(each).tobytes() for each in ends)


X, Y = random_stream()
MORE = random_stream(70, seed=1)
LABELS = np.arange(len(X)) % 3
SGD = rt.SGD(lr=1e-4, batch_size=2, reduction="sum")


def ridge():
    learner = rt.StreamingRidge(rt.Linear(), 0.5, intercept=True)
    return learner.learn(X, Y).learn(*MORE)


CALLS = {
    "learn": (ridge, lambda each: each.learn(*random_stream(80, seed=3))),
    "learn one": (ridge, lambda each: each.learn(*random_stream(1, seed=3))),
    "forget": (ridge, lambda each: each.forget(*MORE)),
    "merge": (ridge, lambda each: each.merge(ridge())),
    "discount": (ridge, lambda each: each.discount(0.7)),
    "regressor": (
        lambda: rt.StreamingRidgeRegressor(gamma=0.5).fit(X, Y),
        lambda each: each.partial_fit(*MORE, sample_weight=np.full(70, 0.5)),
    ),
    "classifier": (
        lambda: rt.StreamingRidgeClassifier(gamma=0.5).fit(X, LABELS),
        lambda each: each.partial_fit(MORE[0], np.arange(70) % 5),
    ),
    "online": (
        lambda: rt.OnlineKernelRegressor(width=9.0).fit(X, Y),
        lambda each: each.partial_fit(*MORE),
    ),
    "shift": (lambda: fed(shift(rt.RBF(9.0), SGD)), lambda each: each.update(*MORE)),
    "correction": (lambda: fed(correction(rt.RBF(9.0), SGD)), lambda each: each.update(*MORE)),
    "corrector": (lambda: fed(corrector(rt.RBF(9.0), SGD)), lambda each: each.correct(*MORE)),
}


def fed(thing):
    feed(thing, X, Y)
    return thing


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_is_complete_or_changes_nothing(name, timer):
    make, call = CALLS[name]
    thing, rng = make(), np.random.default_rng(5)
    before = contents(thing)
    started = time.perf_counter()
    call(thing)
    took, after = time.perf_counter() - started, contents(thing)
    assert before != after
    interrupted = 0
    for _ in range(4 * INTERRUPTS):
        thing = make()
        contents(thing)  # adds rows that wait, as above
        delay = max(1e-5, took * rng.uniform(0, 1))
        if timer.interrupts(lambda each=thing: call(each), delay):
            interrupted += 1
        else:  # the machine was busy when it was measured
            took *= 0.9
        assert contents(thing) in (before, after)
        if interrupted == INTERRUPTS:
            break
    assert interrupted


def network_corrector(**options):
    return rt.NetworkCorrector(network(), SGD, 1.0, 4, **options)


def with_a_task(corrector):
    learn = (
        corrector.correct if isinstance(corrector, rt.NetworkCorrector) else corrector.next_block
    )
    learn(*SMALL)
    with torch.no_grad():  # as if it had been trained: there is something to compare
        corrector.module[0].weight += 0.01
    return corrector


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def closed_loop():
    return rt.ClosedLoopCorrector(network().double(), SGD, 1.0, 16, 8, replay=6)


SMALL = random_stream(8, m=3, c=2)
CORRECTORS = {
    "first": (network_corrector, lambda each: each.correct(*SMALL)),
    "second": (lambda: with_a_task(network_corrector()), lambda each: each.correct(*SMALL)),
    "again": (
        lambda: with_a_task(network_corrector(refresh="epoch")),
        lambda each: each.recorrect(),
    ),
    "closed loop": (lambda: with_a_task(closed_loop()), lambda each: each.next_block(*SMALL)),
}


@pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")
@pytest.mark.parametrize("name", CORRECTORS)
@pytest.mark.parametrize("moment", ["corrector.tangent_kernel", "base.Corrector._in_given_form"])
def test_an_interrupted_correction_for_a_network_changes_nothing(name, moment, monkeypatch):
    """Early, when the network was compared with what was expected, and at the very end."""
    make, call = CORRECTORS[name]
    thing, twin = make(), make()
    if name == "closed loop":
        moment = moment.replace("corrector.", "closed_loop.")

    def interrupt(*_):
        raise KeyboardInterrupt

    def known(each):
        values, tensors = each.to_state()
        sums = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
        return each.linearization_error, sums, _without_warned(values)

    before = known(thing)
    with monkeypatch.context() as patched:
        patched.setattr(f"retarget.networks.{moment}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            call(thing)
    assert known(thing) == before
    for each in (thing, twin):
        call(each)
    assert known(thing) == known(twin)


def _without_warned(values):
    """A warning is given once, and that of an interrupted call was given."""
    state = {key: value for key, value in values["state"].items() if key != "watch.warned"}
    return str(values | {"state": state})


class Interrupted(torch.nn.Linear):
    """Is interrupted while torch has put its mode aside, which it puts back later."""

    def forward(self, x):
        self.aside = torch._C._pop_torch_function_stack()
        raise KeyboardInterrupt


def test_an_interrupted_kernel_leaves_parameters_alone():
    module, X = Interrupted(3, 2).double(), SMALL[0]
    kept = {}
    module.register_forward_pre_hook(lambda each, _: kept.setdefault("copy", each) and None)
    with pytest.raises(KeyboardInterrupt):
        rt.EmpiricalNTK(module)(X)
    with kept["copy"].aside:
        assert torch.equal(module.weight + 0, module.state_dict()["weight"])


class Exhausted(TorchFunctionMode):
    """Has memory for this many operations of torch."""

    def __init__(self, operations):
        super().__init__()
        self.left = operations

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not torch._C._set_grad_enabled:  # which takes no memory
            self.left -= 1
            if self.left < 0:
                raise MemoryError
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CALLS)
def test_memory_that_runs_out_changes_nothing(name):
    make, call = CALLS[name]
    thing, done, operations = make(), make(), 0
    before = contents(thing)
    contents(done)
    call(done)
    while contents(thing) == before:
        with contextlib.suppress(MemoryError), Exhausted(operations):
            call(thing)
        operations += 1 + operations // 20
    assert operations > 5
    assert contents(thing) == contents(done)
