"""A corrector that keeps nothing of the past gives what the one that keeps everything gives."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.kernels.feature_maps import RandomFourier
from support.lab_problems import mlp
from support.oracles import literal, simulation
from support.oracles.empirical_ntk import gram
from support.problems import assert_same, gammas, learners, make_stream, panel_sizes, panels_of

LINEAR = rt.Linear()
LEARNER = rt.SGD(0.05, batch_size=2, momentum=0.5)


def stream(n=40, d=5, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(n, outputs))


def in_portions(corrector, X, Y, size, **more):
    parts = []
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        given_more = {name: value[rows] for name, value in more.items()}
        parts.append(corrector.correct(X[rows], Y[rows], **given_more))
    return np.concatenate([*parts, corrector.flush()])


@st.composite
def cases(draw):
    n = draw(st.integers(1, 30))
    made = make_stream(n, draw(st.integers(1, 3)), draw(st.integers(0, 10**6)))
    return made, draw(learners(n)), draw(st.integers(1, 12))


@given(
    case=cases(),
    gamma=gammas,
    blocks=st.integers(1, 5),
    ridge=st.sampled_from([0.0, 0.2]),
    parts=st.sampled_from(["both", "online", "offline"]),
    first_block=st.sampled_from(["corrected", "plain"]),
    panel=panel_sizes,
)
def test_exact_features_give_the_targets_of_the_kernel(
    case, gamma, blocks, ridge, parts, first_block, panel
):
    made, learner, size = case
    block = blocks * learner.batch_size
    options = {"ridge": ridge, "parts": parts, "first_block": first_block}
    expected = rt.iterative_targets(made.K, made.Y, learner, gamma, block, **options)
    with panels_of(panel):
        bounded = rt.TargetCorrector(
            rt.Linear(), learner, gamma, block, memory=made.features.shape[1], **options
        )
        got = in_portions(bounded, made.features, made.Y, size)
        assert_same(got, expected, 1e-9 * max(1.0, np.abs(expected).max()))
        assert bounded.feature_error == 0.0
        assert (len(bounded), bounded.waiting) == (len(made), 0)
        _, weights = bounded.preview()
    # what the optimiser itself is taught with them
    assert_same(weights, simulation.train(made.features, got, learner).weights, 1e-9)


def test_fewer_features_than_samples_in_a_block_and_a_start():
    X, Y = stream(n=61, d=3)
    start = np.sin(X[:, :2])
    arguments = rt.Features(lambda x: np.hstack([x, x**2])), rt.SGD(0.02, batch_size=4), 0.3, 12
    kept, bounded = rt.TargetCorrector(*arguments), rt.TargetCorrector(*arguments, memory=6)
    expected = in_portions(kept, X, Y, 7, initial=start)
    assert_same(in_portions(bounded, X, Y, 7, initial=start), expected, 1e-9)


def test_against_the_literal_formula():
    X, Y = stream(n=22)
    expected = literal.iterative(Y, X @ X.T, 0.04, 0.6, 4, batch=2)
    bounded = rt.TargetCorrector(rt.Linear(), rt.SGD(0.04, batch_size=2), 0.6, 4, memory=5)
    assert_same(in_portions(bounded, X, Y, 9), expected, 1e-9)


def test_random_features_and_their_error():
    X, Y = stream(n=48)
    errors = []
    for memory in (40, 4000):
        bounded = rt.TargetCorrector(rt.RBF(3.0), LEARNER, 0.6, 4, memory=memory, seed=3)
        got = bounded.correct(X, Y)
        features = RandomFourier(rt.RBF(3.0), memory, 3)(X).numpy()
        expected = rt.iterative_targets(features @ features.T, Y, LEARNER, 0.6, 4)
        assert_same(got, expected, 1e-9)
        K, approximate = rt.RBF(3.0)(X[:32]), features[:32] @ features[:32].T
        errors.append(bounded.feature_error)
        expected_error = np.linalg.norm(approximate - K) / np.linalg.norm(K)
        assert errors[-1] == pytest.approx(expected_error, rel=1e-9)
    assert errors[1] < errors[0] / 3
    assert rt.TargetCorrector(rt.RBF(3.0), LEARNER, 0.6, 4).feature_error == 0.0
    alone = rt.TargetCorrector(rt.RBF(3.0), rt.SGD(0.1), 0.6, 1, memory=8)
    alone.correct(X[:1], Y[:1])
    assert np.isnan(alone.feature_error)


def test_a_network_as_it_is_now(tmp_path):
    network, (X, Y) = mlp(1), stream(n=24, outputs=3)
    kernel = rt.EmpiricalNTK(network)
    features = rt.EmpiricalNTK(network, sketch=50, seed=4).features(X)
    expected = rt.iterative_targets(features @ features.T, Y, LEARNER, 0.6, 4)
    K = gram(network, torch.tensor(X), torch.tensor(X)).numpy()
    bounded = rt.TargetCorrector(kernel, LEARNER, 0.6, 4, memory=50, seed=4)
    first = bounded.correct(X[:12], Y[:12])
    bounded.save(tmp_path / "state")
    loaded = rt.TargetCorrector.load(tmp_path / "state", kernel=kernel)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3)
    assert_same(np.concatenate([first, bounded.correct(X[12:], Y[12:])]), expected, 1e-9)
    assert_same(loaded.correct(X[12:], Y[12:]), expected[12:], 1e-9)
    halves = [slice(0, 12), slice(12, 24)]
    gap = sum(np.sum((features[r] @ features[r].T - K[r, r]) ** 2) for r in halves)
    size = sum(np.sum(K[r, r] ** 2) for r in halves)
    assert bounded.feature_error == pytest.approx(np.sqrt(gap / size), rel=1e-9)
    with pytest.raises(rt.errors.InvalidInputError, match="saved with the features"):
        rt.TargetCorrector.load(tmp_path / "state", kernel=rt.EmpiricalNTK(network))


def storages(thing, found=None):
    """Bytes of every tensor that can be reached from an object."""
    found = {} if found is None else found
    if isinstance(thing, torch.Tensor):
        found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, dict):
        [storages(value, found) for value in thing.values()]
    elif isinstance(thing, tuple | list):
        [storages(value, found) for value in thing]
    elif type(thing).__module__.startswith("retarget"):
        storages(vars(thing), found)
    return found


@pytest.mark.parametrize("learner", [rt.SGD(0.02, batch_size=2), LEARNER], ids=["plain", "memory"])
def test_no_tensor_grows_with_the_stream(learner):
    X, Y = stream(n=6000)
    bounded = rt.TargetCorrector(rt.RBF(2.0), learner, 1.0, 4, ridge=0.1, memory=16)
    sizes = []
    for start in range(0, len(X), 50):  # an open block of two samples every other time
        bounded.correct(X[start : start + 50], Y[start : start + 50])
        sizes.append(sum(storages(bounded).values()))
    assert len(set(sizes[2:])) <= 2
    assert max(sizes[2:4]) == max(sizes[-2:]) < 50_000
    bounded.correct(X, Y)  # all at once: neither does the portion stay
    assert sum(storages(bounded).values()) in sizes


def test_saved_and_loaded_it_goes_on_to_the_same_bits(tmp_path):
    X, Y = stream()
    for kernel in (rt.Linear(), rt.RBF(2.0)):
        one = rt.TargetCorrector(kernel, LEARNER, 0.6, 4, ridge=0.1, memory=20, seed=2)
        one.save(tmp_path / "new")
        assert len(rt.TargetCorrector.load(tmp_path / "new")) == 0
        one.correct(X[:19], Y[:19])
        one.save(tmp_path / "state")
        other = rt.TargetCorrector.load(tmp_path / "state")
        other.save(tmp_path / "again")
        assert (tmp_path / "state").read_bytes() == (tmp_path / "again").read_bytes()
        fork = one.fork()  # which shares nothing: it goes on whatever becomes of the other
        expected = one.correct(X[19:], Y[19:])
        np.testing.assert_array_equal(other.correct(X[19:], Y[19:]), expected)
        np.testing.assert_array_equal(fork.correct(X[19:], Y[19:]), expected)
        assert other.feature_error == one.feature_error


def test_a_preview_changes_nothing_and_says_what_flush_will(tmp_path):
    X, Y = stream()
    one = rt.TargetCorrector(rt.RBF(2.0), LEARNER, 0.6, 4, memory=8)
    one.correct(X[:19], Y[:19])
    one.save(tmp_path / "before")
    targets, weights = one.preview()
    one.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    assert weights.shape == (8, 2)
    np.testing.assert_array_equal(one.flush(), targets)
    flat = rt.TargetCorrector(rt.RBF(2.0), LEARNER, 0.6, 4, memory=8)
    flat.correct(X[:4], Y[:4, 0])
    assert flat.preview()[1].shape == (8,)


@pytest.mark.parametrize("panel", [4, 256])
def test_a_call_that_fails_changes_nothing(panel, tmp_path):
    X, Y = stream()
    calls = {"left": None}

    def features(x):
        if calls["left"] is not None:
            calls["left"] -= 1
            if calls["left"] < 0:
                raise RuntimeError("the map failed")
        return x

    def saved(thing):
        thing.save(tmp_path / "state")
        return (tmp_path / "state").read_bytes()

    with panels_of(panel):
        one = rt.TargetCorrector(rt.Features(features), LEARNER, 0.6, 4, memory=5)
        one.correct(X[:10], Y[:10])
        before, failed = saved(one), 0
        for after in range(8):
            calls["left"] = after
            try:
                one.fork().correct(X[10:], Y[10:])
                one.correct(X[10:], Y[10:])
                break
            except RuntimeError:
                failed += 1
            calls["left"] = None
            assert saved(one) == before
        assert failed >= (5 if panel == 4 else 1)
        calls["left"] = None
        bad = Y[10:].copy()
        bad[-1] = np.nan
        before = saved(one)
        with pytest.raises(rt.errors.InvalidInputError, match="Y holds nan"):
            one.correct(X[10:], bad)
        assert saved(one) == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_single_precision_is_computed_in_double(dtype):
    X, Y = (torch.tensor(part, dtype=dtype) for part in stream())
    one = rt.TargetCorrector(rt.Linear(), LEARNER, 0.6, 4, memory=5)
    got = one.correct(X, Y)
    wide = rt.TargetCorrector(rt.Linear(), LEARNER, 0.6, 4).correct(X.double(), Y.double())
    assert isinstance(got, torch.Tensor)
    assert got.dtype == dtype
    assert_same(got, wide.to(dtype), 0)


def test_a_rate_that_is_too_large_is_told_with_one_that_is_not():
    X, Y = stream(n=1500)
    learner = rt.SGD(20.0, batch_size=2, reduction="mean")
    told = {}
    for memory in (None, 5):
        corrector = rt.TargetCorrector(
            rt.Linear(), learner, 0.6, 2, parts="offline", ridge=0.1, memory=memory
        )
        with pytest.warns(rt.errors.DivergenceWarning) as caught:
            corrector.correct(X[:40], Y[:40])
        with pytest.raises(rt.errors.DivergedError) as error:
            corrector.correct(X[40:], Y[40:])
        told[memory] = str(caught[0].message).split("below")[1], error.value.step
    assert told[5] == told[None]


def test_normal_equations_that_mean_nothing_are_told():
    X, Y = stream()
    one = rt.TargetCorrector(rt.Linear(), rt.SGD(0.01), 1e-15, 1, memory=5)
    one.correct(10 * X[:1], Y[:1])
    with pytest.warns(rt.errors.PrecisionWarning, match="normal equations of the features"):
        one.correct(X[1:2], Y[1:2])


REFUSED = {
    "gamma": (lambda: bounded(gamma=0.0), "gamma is 0 with memory"),
    "function": (lambda: bounded(kernel=lambda a, b: a @ b.T), r"rt\.Features of a feature map"),
    "matrix": (lambda: bounded(kernel=np.eye(3)), r"rt\.Features of a feature map"),
    "none": (lambda: bounded(memory=0), "memory is 0; expected 1 or more"),
    "a word": (lambda: bounded(memory="much"), "memory is 'much'; expected a whole number"),
    "huge": (lambda: bounded(kernel=rt.RBF(1.0), memory=10**7), "use a smaller memory"),
    "few": (lambda: bounded(memory=4).correct(*stream()), r"has 5 features, and memory is 4"),
    "samples": (lambda: bounded().samples, "not kept with memory=9"),
}


def bounded(kernel=LINEAR, gamma=0.6, memory=9):
    return rt.TargetCorrector(kernel, LEARNER, gamma, 4, memory=memory)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused(name):
    call, words = REFUSED[name]
    with pytest.raises(rt.RetargetError, match=words):
        call()


def test_other_features_on_the_way_are_refused():
    X, Y = stream()
    width = {"now": 3}
    one = bounded(rt.Features(lambda x: x[:, : width["now"]]))
    one.correct(X, Y)
    width["now"] = 4
    with pytest.raises(rt.errors.InvalidInputError, match="4 features; the stream so far has 3"):
        one.correct(X, Y)


def test_without_the_offline_half_no_ridge_is_needed():
    X, Y = stream(d=30)
    got = rt.TargetCorrector(rt.Linear(), LEARNER, 0.0, 4, parts="online", memory=30).correct(X, Y)
    assert_same(got, rt.iterative_targets(X @ X.T, Y, LEARNER, 0.0, 4, parts="online"), 1e-9)
