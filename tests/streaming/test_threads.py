"""Several threads use one object: predictions and sums are right, and nobody is disturbed."""

import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import retarget as rt
from retarget.settings import full_precision
from support.problems import assert_same
from support.streaming_objects import correction, corrector, feed, results, shift

# no test is about how large targets are
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")

THREADS = 4


@pytest.fixture(autouse=True)
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*actions):
    """Runs each action in its own thread, all starting at once; raises what one of them raised."""
    barrier, errors = threading.Barrier(len(actions)), []

    def run(action):
        barrier.wait()
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def random_stream(n=120, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    return X, np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2], X[:, 3]], 1)


class Tied(nn.Module):
    """Reaches its layers by a list, a method and a partial function, and has tied weights."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(5, 5), nn.Linear(5, 5)
        self.again.weight = self.first.weight
        self.last = nn.Linear(5, 3)
        self.layers = [self.first, self.again]
        self.act = self.bent

    def bent(self, x):
        return torch.tanh(self.layers[1](x))

    def forward(self, x):
        return self.last(self.act(torch.tanh(self.layers[0](x))))


class Hidden(nn.Module):
    """Reaches its parameters in a way that no copy can follow."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.forward = lambda x: self.last(torch.tanh(self.first(x)))


@pytest.mark.parametrize("module", [network(), Tied().double(), Hidden().double()])
@pytest.mark.parametrize("options", [{}, {"mode": "jacobian"}, {"sketch": 40}])
def test_kernels_of_one_module_from_several_threads(module, options):
    kernel = rt.EmpiricalNTK(module, **options)
    X, _ = random_stream(9)
    grams = [rt.EmpiricalNTK(module, **options)(X[: 5 + i]) for i in range(THREADS)]

    def compute(i):
        for _ in range(12):
            np.testing.assert_array_equal(kernel(X[: 5 + i]), grams[i])

    together(*(lambda i=i: compute(i) for i in range(THREADS)))


@pytest.mark.parametrize("make", [network, lambda: Tied().double()])
def test_training_while_kernels_are_computed(make):
    """Gradients are complete, and the module has its own parameters at every moment."""
    module, (X, Y) = make(), random_stream(30)
    kernel = rt.EmpiricalNTK(module)
    inputs, targets = torch.from_numpy(X), torch.from_numpy(Y)
    own = {name: id(value) for name, value in module.named_parameters()}

    def gradients():
        module.zero_grad()
        (module(inputs) - targets).square().sum().backward()
        return [value.grad.clone() for value in module.parameters()]

    expected, gram, done = gradients(), kernel(X), threading.Event()

    def compute():
        while not done.is_set():
            np.testing.assert_array_equal(kernel(X), gram)

    def train():
        try:
            for _ in range(60):
                for found, wanted in zip(gradients(), expected, strict=True):
                    assert_same(found, wanted, 1e-13)
                assert {name: id(value) for name, value in module.named_parameters()} == own
        finally:
            done.set()

    together(train, compute, compute)


SGD = rt.SGD(0.01, 2, reduction="sum")
WORK = {
    "correct": lambda module: rt.NetworkCorrector(module, SGD, 1.0, 4).correct(*random_stream(6)),
    "auto": lambda module: rt.NetworkCorrector(module, SGD, "auto", 4).correct(*random_stream(8)),
    "closed loop": lambda module: rt.ClosedLoopCorrector(module, SGD, 1.0, 16, replay=0).correct(
        *random_stream(6)
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_correctors_replace_no_parameter_of_the_callers_module(name):
    """Whoever else uses the module during a call finds its own parameters, at every function."""
    module, seen = network(), []
    own = {name: id(value) for name, value in module.named_parameters()}

    class Looking(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append({name: id(value) for name, value in module.named_parameters()} == own)
            return function(*args, **(kwargs or {}))

    with Looking():
        WORK[name](module)
    assert seen
    assert all(seen)


@pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")
def test_modules_that_cannot_be_copied():
    """Weight decay needs outputs with other weights, which `Hidden` has nowhere but in place."""
    plain, hidden, decaying = network(), Hidden().double(), rt.SGD(0.01, weight_decay=0.1)
    hidden.first, hidden.last = plain[0], plain[2]
    X, Y = random_stream(6)
    found, wanted = (rt.NetworkCorrector(each, decaying, 1.0, 2) for each in (hidden, plain))
    assert_same(found.correct(X, Y), wanted.correct(X, Y))
    with torch.no_grad():
        plain[0].weight += 1e-3
    assert_same(found.correct(X, Y), wanted.correct(X, Y))
    assert found.linearization_error == pytest.approx(wanted.linearization_error)


class Attention(nn.Module):
    """Uses attention, for which torch has several ways."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        parts = self.first(x).view(len(x), 1, 4, 2)
        seen = nn.functional.scaled_dot_product_attention(parts, parts, parts)
        return self.last(seen.flatten(1))


def ways_of_attention():
    backends = torch.backends.cuda
    return backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled()


# torch's own, when it first loads the rules of forward-mode products
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
@pytest.mark.parametrize("outputs", [1, 3], ids=["directions", "gradients"])
def test_a_deployed_module_from_several_threads(outputs):
    X, Y = random_stream(20)
    learner = rt.TangentLearner(Attention().double(), 0.3, features=32).learn(X, Y[:, :outputs])
    module, inputs = learner.as_module(), torch.from_numpy(X)
    expected = [module(inputs[i : i + 9]) for i in range(THREADS)]
    before = ways_of_attention()

    def predict(i):
        for _ in range(8):
            assert_same(module(inputs[i : i + 9]), expected[i], 1e-12)

    together(*(lambda i=i: predict(i) for i in range(THREADS)))
    assert ways_of_attention() == before == (True, True)


def test_attention_after_several_threads():
    kernel, (X, _) = rt.EmpiricalNTK(Attention().double(), mode="jacobian"), random_stream(5)
    gram, before = kernel(X), ways_of_attention()

    def compute():
        for _ in range(12):
            np.testing.assert_array_equal(kernel(X), gram)

    together(*[compute] * THREADS)
    assert ways_of_attention() == before == (True, True)


def learners():
    return {
        "ridge": rt.StreamingRidge(rt.RBF(2.0), 0.3, features=24, intercept=True),
        "network": rt.StreamingRidge(network(), 0.3),
        "tangent": rt.TangentLearner(network(), 0.3, features=32),
        "regressor": rt.StreamingRidgeRegressor("rbf", 0.3, features=24),
    }


@pytest.mark.parametrize("name", learners())
def test_predictions_and_learning_from_several_threads(name):
    learner, (X, Y) = learners()[name], random_stream()
    learn = learner.partial_fit if name == "regressor" else learner.learn

    def part(i):
        for row in range(i, len(X), THREADS):
            learn(X[row : row + 1], Y[row : row + 1])

    together(*(lambda i=i: part(i) for i in range(THREADS)))
    alone = learners()[name]
    (alone.fit if name == "regressor" else alone.learn)(X, Y)
    expected = alone.predict(X)
    assert getattr(learner, "samples", len(X)) == len(X)

    def predict(i):
        rows = slice(i, i + 40)
        for _ in range(15):
            assert_same(learner.predict(X[rows]), expected[rows], 1e-8)

    together(*(lambda i=i: predict(i) for i in range(THREADS)))


@pytest.mark.parametrize("name", learners())
def test_every_prediction_is_that_of_a_complete_state(name):
    learner, twin, (X, Y) = learners()[name], learners()[name], random_stream(30)
    learn, again = (
        each.partial_fit if name == "regressor" else each.learn for each in (learner, twin)
    )
    learn(X[:3], Y[:3])
    again(X[:3], Y[:3])
    states = [twin.predict(X)]
    for row in range(3, len(X)):
        again(X[row : row + 1], Y[row : row + 1])
        states.append(twin.predict(X))
    done, found = threading.Event(), []

    def teach():
        try:
            for row in range(3, len(X)):
                learn(X[row : row + 1], Y[row : row + 1])
        finally:
            done.set()

    def predict():
        while not done.is_set():
            found.append(learner.predict(X))

    together(teach, predict, predict)
    for each in [*found, learner.predict(X)]:
        assert min(np.abs(each - state).max() for state in states) < 1e-9


def test_a_classifier_meets_new_classes_while_others_predict():
    X, _ = random_stream(90)
    labels = np.repeat(np.arange(30), 3)
    model, done = (
        rt.StreamingRidgeClassifier(gamma=0.1).partial_fit(X[:9], labels[:9]),
        threading.Event(),
    )

    def teach():
        try:
            for first in range(9, 90, 3):
                model.partial_fit(X[first : first + 3], labels[first : first + 3])
        finally:
            done.set()

    def predict():
        while not done.is_set():
            assert set(model.predict(X)) <= set(range(30))
            assert model.decision_function(X).shape[1] >= 3
            assert model.coef_.shape[1] == model.n_features_in_

    together(teach, predict, predict)
    assert_same(model.coef_, rt.StreamingRidgeClassifier(gamma=0.1).fit(X, labels).coef_, 1e-9)


@pytest.mark.parametrize("make", [shift, correction, corrector])
def test_trackers_take_samples_one_after_the_other(make):
    """In the order that they have kept, in which one thread gets the same."""
    X, Y = random_stream(24)
    thing, alone = make(rt.RBF(2.0)), make(rt.RBF(2.0))

    def part(i):
        for row in range(i, len(X), THREADS):
            feed(thing, X[row : row + 1], Y[row : row + 1])

    def look():
        for _ in range(20):
            if len(thing):
                assert len(thing.fork().samples) > 0

    together(*(lambda i=i: part(i) for i in range(THREADS)), look)
    order = [int(np.flatnonzero((sample == X).all(1))[0]) for sample in thing.samples]
    assert sorted(order) == list(range(len(X)))
    feed(alone, X[order], Y[order])
    more = random_stream(4, seed=2)
    if make is shift:
        assert_same(thing.effective_targets, alone.effective_targets)
    assert_same(results(thing, *more), results(alone, *more), 1e-8)


def test_first_calls_from_several_threads():
    X, Y = random_stream(40)
    model = rt.OnlineKernelRegressor(width=2.0, lr=0.1)

    def part(i):
        for row in range(i, len(X), THREADS):
            model.partial_fit(X[row : row + 1], Y[row : row + 1])

    together(*(lambda i=i: part(i) for i in range(THREADS)))
    assert len(model.X_fit_) == len(X)


def test_precision_is_set_back_last():
    torch.set_float32_matmul_precision("high")
    first, second = threading.Event(), threading.Event()

    def one():
        with full_precision(torch.device("cpu")):
            first.set()
            second.wait()

    def other():
        first.wait()
        with full_precision(torch.device("cpu")):
            second.set()
            leaver.join(1)
            assert torch.get_float32_matmul_precision() == "highest"

    leaver = threading.Thread(target=one)
    try:
        leaver.start()
        together(other)
        leaver.join()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("make", [shift, correction, corrector])
def test_copies_and_pickles_never_change(make):
    X, Y = np.random.default_rng(0).normal(size=(2, 8, 3))
    thing = make(rt.RBF(2.0))
    feed(thing, X[:4], Y[:4])
    read = vars(thing)  # as copy.deepcopy and pickle in another thread do
    kept = dict(read)
    feed(thing, X[4:], Y[4:])
    assert all(read[name] is kept[name] for name in kept)
