"""Everything public computes the same wherever torch is told to compute otherwise.

Under autocast a matrix product of float32 would be one of bfloat16; in inference mode nothing can
be differentiated; and another default device is where tensors go that no one gave a device.
"""

import copy
import functools
import inspect
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt

# no test is about how large targets are
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")

N = 12
LEARNER = rt.SGD(0.02, batch_size=2, momentum=0.5, reduction="sum")
PLAIN = rt.SGD(0.02, batch_size=2, reduction="sum")


@contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


SURROUNDINGS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "default device": default_device,
    "gradients": torch.enable_grad,
}


def stream():
    """Samples and targets in single precision, which autocast would convert."""
    random = torch.Generator().manual_seed(0)
    X = torch.randn((N, 5), generator=random, device="cpu")
    return X, torch.stack([X[:, 0].sin(), X[:, 1] * X[:, 2]], 1)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


X, Y = stream()
K, QUERY = X @ X.T + torch.eye(N), X[:4] @ X.T
NETWORK = network()


def kernels(kernel):
    return {"__call__": (kernel(X), kernel(X, X[:3])), "diag": kernel.diag(X)}


def stationary(kind):
    """One of the kernels of differences between samples."""
    kernel = kind(1.5)
    chosen = kind.from_width("auto", X)
    members = {
        "from_width": (chosen.width, kernels(chosen)),
        "features": (kernel.features(8, 1)(X), kind("auto").features(8, 1)(X)),
        "median_distance": kind.median_distance(X),
    }
    return kernels(kernel) | members


def linear(kernel):
    return kernels(kernel) | {"features": kernel.features(8, 1)(X), "values": kernel.values(X)}


def empirical():
    kernel = rt.EmpiricalNTK(NETWORK)
    sketched = rt.EmpiricalNTK(NETWORK, mode="jacobian", sketch=32, seed=2)
    weights = {name: 2.0 for name, _ in NETWORK.named_parameters()}
    return kernels(kernel) | {
        "features": (kernel.features(X), sketched.features(X)),
        "features_and_outputs": kernel.features_and_outputs(X),
        "factors": rt.EmpiricalNTK(NETWORK, preconditioner=weights).factors(),
    }


def features():
    kernel = rt.Features(lambda x: x @ X[:4].T)
    return kernels(kernel) | {
        "values": kernel.values("X", X),
        "features": kernel.features(8, 1)(X),
    }


def corrector():
    results = {}
    for options in ({}, {"features": 8}, {"aim": "window:6"}):
        thing = rt.TargetCorrector(rt.Linear(), LEARNER, 0.7, 4, **options)
        results[str(options)] = thing.correct(X, Y), thing.correct(X[:3], Y[:3]), thing.preview()
        results[str(options)] += thing.fork().flush(), thing.feature_error
    approximate = rt.TargetCorrector(rt.RBF(2.0), LEARNER, 0.7, 4, features=9)
    fed = approximate.correct(X, Y)
    names = "correct", "flush", "preview", "fork"
    return dict.fromkeys(names, results) | {"feature_error": (fed, approximate.feature_error)}


def tracker(kind, result):
    def run():
        results = []
        for kernel in (rt.RBF(2.0), rt.EmpiricalNTK(NETWORK), lambda A, B: A @ B.T):
            thing = kind(kernel, LEARNER, 0.7)
            thing.update(X[:7], Y[:7])
            thing.fork().update(X[7:], Y[7:])
            thing.update(X[7:9], Y[7:9])
            results += [getattr(thing, result), thing.coefficients]
        return dict.fromkeys(("update", "fork", result, "coefficients"), results)

    return run


@pytest.fixture(scope="module", autouse=True)
def processes():
    """One process, for `all_merge`."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def ridge(make):
    """All verbs of a learner."""
    one, other = make(), make()
    one.learn(X[:8], Y[:8]).learn(X[8:], Y[8:]).discount(0.9).forget(X[8:], Y[8:], 0.9)
    one.merge(other.learn(X[8:], Y[8:])).all_merge()
    verbs = one.predict(X), one.predict(one.prepare(X)), one.solution(), one.gamma_
    verbs += one.predict(X, return_std=True), one.noise_, one.spread(X)
    # one target, as learning would start from the network's outputs if there were two
    wider = one.empty().learn(X, Y[:, :1]).widened(3).predict(X)
    again = one.empty().learn(X, Y).predict(X)
    tangent = isinstance(one, rt.TangentLearner)
    fewer = one.empty().learn(X, Y).forget_batches([(X[:2], Y[:2], None), (X[5:6], Y[5:6], None)])
    restored = type(one).from_state(*one.to_state(), NETWORK if tangent else rt.Linear())
    names = {"learn", "discount", "forget", "merge", "all_merge", "predict", "prepare", "solution"}
    return dict.fromkeys(names | {"gamma_", "noise_", "spread"}, verbs) | {
        "widened": wider,
        "rearranged": one.rearranged([0, 1] if tangent else [1, None]).predict(X),
        "forget_batches": fewer.predict(X),
        "left_out": [],
        "empty": again,
        "from_state": restored.predict(X),
        "to_state": list(one.to_state()[1].values()),
    }


def streaming_ridge():
    by_features = ridge(lambda: rt.StreamingRidge(rt.Linear(), 0.5, intercept=True))
    for kernel in (rt.RBF(2.0), NETWORK, rt.EmpiricalNTK(NETWORK)):
        learner = rt.StreamingRidge(kernel, "auto", 16, precision="float32")
        learner.learn(X, Y).learn(X[:4], Y[:4]).forget(X[:4], Y[:4])
        by_features["predict"] += (learner.predict(X), learner.gamma_)
    keeping = rt.StreamingRidge(rt.Linear(), 0.5, calibration=9).learn(X, Y)
    return by_features | {"left_out": list(keeping.left_out())}


def tangent_learner():
    results = ridge(lambda: rt.TangentLearner(NETWORK, 0.5, 64))
    module = rt.TangentLearner(NETWORK, 0.5, 64).learn(X, Y).as_module()
    return results | {"as_module": (module.weights, module.mixes)}


def estimators(kind, members, options):
    """Fits an estimator with each of these options, and calls or reads its members."""
    results = []
    for each in options:
        thing = kind(**each)
        target = (Y[:, 0] > 0).long().numpy() if "Classifier" in kind.__name__ else Y.numpy()
        thing.fit(X.numpy(), target).partial_fit(X.numpy()[:3], target[:3])
        for name in members:
            member = getattr(thing, name)
            given = () if name == "effective_targets" else (X.numpy(),)
            results.append(member(*given) if callable(member) else member)
    return dict.fromkeys([*members, "fit", "partial_fit", "score"], results)


def classifier(make):
    """All verbs of a ridge classifier."""
    rows, labels = X.numpy(), (Y[:, 0] > 0).long().numpy()
    one = make().fit(rows[:8], labels[:8]).partial_fit(rows[8:], labels[8:])
    one.merge(make().fit(rows[:4], labels[:4] + 1)).forget(rows[:2], labels[:2])
    rejected = [label is None for label in one.predict(rows, reject=0.2)]
    results = [one.predict(rows), one.predict_proba(rows), one.decision_function(rows), rejected]
    results += [one.coef_, one.intercept_, one.gamma_, one.score(rows, labels)]
    names = {"fit", "partial_fit", "merge", "forget", "predict", "predict_proba", "score"}
    return dict.fromkeys(names | {"decision_function", "coef_", "intercept_", "gamma_"}, results)


def online(kind, *members, **more):
    corrections = ("none", "iterative", "exact")
    options = [{"width": 2.0, "lr": 0.1, "block_size": 4, "correction": c} for c in corrections]
    return lambda: estimators(kind, members, [each | more for each in options])


def network_corrector():
    module, results = copy.deepcopy(NETWORK), []
    for options in ({}, {"kind": "distilled"}, {"gamma": "auto"}):
        options = {"gamma": 1.0, "block_size": 4, "refresh": "epoch"} | options
        thing = rt.NetworkCorrector(module, PLAIN, **options)
        results += [thing.correct(X[:8], Y[:8]), thing.correct(X[8:], Y[8:]), thing.recorrect()]
        results += [thing.linearization_error, [trial[:3] for trial in thing.trials]]
        twin = rt.NetworkCorrector(module, PLAIN, **options)
        twin.restore(*thing.to_state())
        results.append(twin.recorrect())
        resumed = rt.NetworkCorrector(module, PLAIN, **options)
        resumed.resume([(X, Y)], Y)
    names = {"correct", "recorrect", "linearization_error", "trials", "restore", "resume"}
    return dict.fromkeys(names | {"to_state"}, results)


def closed_loop():
    results = []
    for replay in (0, 3):
        thing = rt.ClosedLoopCorrector(NETWORK, PLAIN, 1.0, 32, 4, replay)
        for i in (0, 4, 8):
            call = thing.next_block if replay else thing.correct
            results.append(call(X[i : i + 4], Y[i : i + 4]))
        results.append(thing.linearization_error)
    twin = rt.ClosedLoopCorrector(NETWORK, PLAIN, 1.0, 32, 4, replay)
    twin.restore(*thing.to_state())
    results.append(twin.next_block(X[:4], Y[:4]))
    names = ["correct", "next_block", "linearization_error", "restore", "to_state"]
    return dict.fromkeys(names, results)


def diagnosis():
    rows = X.repeat(5, 1).numpy() + np.arange(60)[:, None] % 7 * 0.1
    found = rt.diagnose(rows, rows[:, 0] * 2 + rows[:, 1], seed=1)
    return [found.numbers(), found.shift]


USES = {
    "offline_coefficients": lambda: rt.offline_coefficients(K, Y, 0.5),
    "online_coefficients": lambda: rt.online_coefficients(K, Y, LEARNER, epochs=2),
    "prequential_errors": lambda: rt.prequential_errors(K, Y, LEARNER),
    "effective_targets": lambda: rt.effective_targets(K, Y, LEARNER, 0.5),
    "corrected_targets": lambda: (
        rt.corrected_targets(K, Y, LEARNER, 0.5), rt.corrected_targets(K, Y, LEARNER, 0.5, epochs=2)
    ),
    "iterative_targets": lambda: rt.iterative_targets(K, Y, LEARNER, 0.5, 4, 0.1),
    "distilled_targets": lambda: rt.distilled_targets(K, Y, 0.5, 4),
    "correction_terms": lambda: [
        [terms.rows, terms.online, terms.offline]
        for terms in rt.correction_terms(K, PLAIN, 0.5, 4)
    ],
    "discrepancy": lambda: rt.discrepancy(K, Y + 1, Y, LEARNER, 0.5),
    "offline_learning_curve": lambda: rt.offline_learning_curve(K, Y, QUERY, 0.5, [4, N]),
    "online_learning_curve": lambda: rt.online_learning_curve(K, Y, QUERY, LEARNER, [4, N]),
    "diagnose": diagnosis,
    "as_kernel": lambda: kernels(rt.as_kernel(lambda A, B: A @ B.T)),
    "RBF": lambda: stationary(rt.RBF),
    "Linear": lambda: linear(rt.Linear()),
    "Affine": lambda: linear(rt.Affine()),
    "Laplace": lambda: stationary(rt.Laplace),
    "Matern32": lambda: stationary(rt.Matern32),
    "Matern52": lambda: stationary(rt.Matern52),
    "Features": features,
    "InfiniteNTK": lambda: kernels(
        rt.InfiniteNTK(nn.Sequential(nn.Linear(5, 4, device="cpu"), nn.ReLU(),
                                     nn.Linear(4, 1, device="cpu")))
    ),
    "EmpiricalNTK": empirical,
    "TargetCorrector": corrector,
    "ShiftTracker": tracker(rt.ShiftTracker, "effective_targets"),
    "CorrectionTracker": tracker(rt.CorrectionTracker, "corrected_targets"),
    "StreamingRidge": streaming_ridge,
    "TangentLearner": tangent_learner,
    "NetworkCorrector": network_corrector,
    "ClosedLoopCorrector": closed_loop,
    "OnlineKernelRegressor": online(rt.OnlineKernelRegressor, "predict", "effective_targets"),
    "OnlineKernelClassifier": online(
        rt.OnlineKernelClassifier, "predict", "decision_function", "effective_targets",
        "predict_proba", loss="cross-entropy",
    ),
    "StreamingRidgeRegressor": lambda: estimators(
        rt.StreamingRidgeRegressor, ["predict", "coef_", "intercept_", "gamma_"], [{}]
    ),
    "StreamingRidgeClassifier": lambda: classifier(rt.StreamingRidgeClassifier),
    "TangentClassifier": lambda: classifier(
        lambda: rt.TangentClassifier(NETWORK, features=24, gamma=0.5)
    ),
}  # fmt: skip
# Public names that compute nothing with torch: descriptions, counts, files (of what is tested).
QUIET_NAMES = {"Kernel", "SGD", "CorrectionTerms", "Diagnosis", "RetargetError"}
QUIET_MEMBERS = {
    *("to_dict", "from_dict", "samples", "waiting", "views", "nbytes", "save", "load", "fork"),
    *(
        "weights",
        "from_width",
        "explicit_features",
        "estimated_by",
        "usual_width",
        "width_for",
        "frequencies",
    ),
    *("with_learned", "trust", "get_params", "get_metadata_routing"),
}


def public(kind):
    return {
        name
        for name in dir(kind)
        if not name.startswith(("_", "set_"))
        and (callable(getattr(kind, name)) or isinstance(getattr(kind, name), property))
    }


@functools.cache
def as_usual(name):
    return USES[name]()


def test_no_public_name_is_left_out():
    rooms = {name for name in rt.__all__ if inspect.ismodule(getattr(rt, name))}
    assert set(rt.__all__) - rooms == USES.keys() | QUIET_NAMES


@pytest.mark.parametrize("name", [name for name in USES if inspect.isclass(getattr(rt, name))])
def test_no_public_method_is_left_out(name):
    assert public(getattr(rt, name)) <= as_usual(name).keys() | QUIET_MEMBERS


def numbers(value):
    """All numbers in a nest of results."""
    if isinstance(value, dict):
        return [each for part in value.values() for each in numbers(part)]
    if isinstance(value, list | tuple):
        return [each for part in value for each in numbers(part)]
    return [value]


@pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")
@pytest.mark.parametrize("where", SURROUNDINGS)
@pytest.mark.parametrize("name", USES)
def test_the_same_wherever_it_is_called(name, where):
    expected = numbers(as_usual(name))
    with SURROUNDINGS[where]():
        results = numbers(USES[name]())
    assert len(results) == len(expected) > 0
    for result, other in zip(results, expected, strict=True):
        if not isinstance(result, torch.Tensor | np.ndarray | float):
            assert result == other
            continue
        given, wanted = (np.asarray(each) for each in (result, other))
        assert given.dtype == wanted.dtype
        np.testing.assert_allclose(given, wanted, 1e-12, 1e-12 * np.abs(wanted).max(initial=0))
        if isinstance(result, torch.Tensor):
            assert not result.requires_grad
            assert not result.is_inference()


def test_inference_mode_and_outside():
    """Samples, networks, learners and files: nothing is left that cannot be changed later."""
    with torch.inference_mode():
        samples, targets = X * 1, Y * 1
        module = network()
        learner = rt.TangentLearner(module, 0.5, 64).learn(samples[:8], targets[:8])
        ridge = rt.StreamingRidge(rt.Linear(), 0.5).learn(samples[:8], targets[:8])
        trackers = [
            kind(rt.RBF(2.0), LEARNER, 0.7) for kind in (rt.ShiftTracker, rt.CorrectionTracker)
        ]
        for each in trackers:
            each.update(samples[:7], targets[:7])
        targets_ahead = rt.TargetCorrector(rt.Linear(), LEARNER, 0.7, 4, features=8)
        first = targets_ahead.correct(samples[:7], targets[:7])
        K_inside = rt.EmpiricalNTK(module)(samples)
        corrected = rt.NetworkCorrector(module, PLAIN, 1.0, 4).correct(samples, targets)
        frozen = rt.NetworkCorrector(module, PLAIN, 1.0, 4, refresh="never")
        led = rt.ClosedLoopCorrector(module, PLAIN, 1.0, 32, 12, 0).correct(samples, targets)
    assert samples.is_inference()
    ordinary = network()
    same = rt.TangentLearner(ordinary, 0.5, 64).learn(X, Y)
    np.testing.assert_allclose(learner.learn(X[8:], Y[8:]).predict(X), same.predict(X), 1e-4, 1e-5)
    np.testing.assert_allclose(
        ridge.learn(X[8:], Y[8:]).predict(X),
        rt.StreamingRidge(rt.Linear(), 0.5).learn(X, Y).predict(X),
        1e-5,
        1e-6,
    )
    for each in trackers:
        each.update(X[7:], Y[7:])
        whole = type(each)(rt.RBF(2.0), LEARNER, 0.7)
        whole.update(X, Y)
        np.testing.assert_allclose(each.coefficients, whole.coefficients, 1e-4, 1e-5)
    later = torch.cat([first, targets_ahead.correct(X[7:], Y[7:])])
    whole = rt.TargetCorrector(rt.Linear(), LEARNER, 0.7, 4, features=8).correct(X, Y)
    np.testing.assert_allclose(later, whole, 1e-4, 1e-5)
    assert torch.equal(K_inside, rt.EmpiricalNTK(ordinary)(X))
    assert torch.equal(corrected, rt.NetworkCorrector(ordinary, PLAIN, 1.0, 4).correct(X, Y))
    saved = rt.NetworkCorrector(ordinary, PLAIN, 1.0, 4, refresh="never")
    saved.correct(X, Y)
    frozen.restore(*saved.to_state())  # which writes to its copy of the network
    assert torch.equal(frozen.recorrect(), saved.recorrect())
    again = rt.ClosedLoopCorrector(ordinary, PLAIN, 1.0, 32, 12, 0).correct(X, Y)
    assert torch.equal(led, again)


@pytest.mark.parametrize("where", SURROUNDINGS)
def test_functions_find_torch_as_it_starts(where):
    """Functions and networks of the user's: no graph that takes memory, no autocast, and so on."""
    seen = []

    def note(*samples):
        grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        seen.append((grad, autocast, torch.is_inference_mode_enabled()))
        return samples[0] @ samples[-1].T if len(samples) > 1 else samples[0]

    with SURROUNDINGS[where]():
        rt.as_kernel(note)(X)
        rt.Features(note)(X)
        rt.Features(note).values("X", X)
        tracker = rt.ShiftTracker(note, LEARNER, 0.7)
        tracker.update(X, Y)
        ridge = rt.StreamingRidge(note, 0.7).learn(X, Y)
        ridge.predict(X)
        assert torch.is_inference_mode_enabled() == (where == "inference")
        assert torch.is_autocast_enabled("cpu") == (where == "autocast")
    assert len(seen) > 5
    assert set(seen) == {(False, False, False)}


def tensors_of(thing, seen=None):
    """All tensors that an object keeps."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
    parts = thing.values() if isinstance(thing, dict) else thing
    if not isinstance(thing, dict | list | tuple):
        parts = vars(thing).values() if type(thing).__module__.startswith("retarget") else ()
    for part in parts:
        yield from tensors_of(part, seen)


def going_on(thing, rows):
    if isinstance(thing, rt.StreamingRidge):
        return thing.learn(X[rows], Y[rows]).predict(X)
    if isinstance(thing, rt.TargetCorrector):
        return torch.cat([thing.correct(X[rows], Y[rows]), thing.fork().flush()])
    thing.update(X[rows], Y[rows])
    return thing.coefficients


@pytest.mark.parametrize("where", SURROUNDINGS)
def test_states_that_are_loaded_there_go_on_elsewhere(where, tmp_path):
    learner = rt.StreamingRidge(rt.Linear(), 0.5).learn(X[:8], Y[:8])
    trackers = [kind(rt.RBF(2.0), LEARNER, 0.7) for kind in (rt.ShiftTracker, rt.CorrectionTracker)]
    for each in trackers:
        each.update(X[:8], Y[:8])
    ahead = rt.TargetCorrector(rt.Linear(), LEARNER, 0.7, 4)
    bounded = rt.TargetCorrector(rt.Linear(), LEARNER, 0.7, 4, features=8)
    for each in (ahead, bounded):
        each.correct(X[:7], Y[:7])
    with SURROUNDINGS[where]():
        loaded = []
        for i, each in enumerate((learner, *trackers, ahead, bounded)):
            each.save(tmp_path / str(i))
            loaded.append(
                type(each).load(tmp_path / str(i), rt.RBF(2.0) if i in (1, 2) else rt.Linear())
            )
    for one, other in zip((learner, *trackers, ahead, bounded), loaded, strict=True):
        assert not any(part.is_inference() for part in tensors_of(other))
        for rows in (slice(8, 9), slice(9, N)):
            results = [going_on(each, rows) for each in (one, other)]
            assert torch.equal(*results)
