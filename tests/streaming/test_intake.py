"""What all streaming objects promise: files, failed calls that change nothing, types, errors."""

import itertools
import warnings

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.engine import cholesky, dual
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    LargeTargetsWarning,
    NotPositiveDefiniteError,
    ResultOverflowError,
    StreamTooLargeError,
)
from support.problems import assert_same, make_class_stream, make_stream, panels_of
from support.streaming_objects import CE, correction, corrector, feed, results, saved, shift

OBJECTS = {"corrector": corrector, "shift": shift, "correction": correction}
each = pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
large_targets = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")

# --- files


VARIANTS = {
    **{f"{name}, squared": (make, {}) for name, make in OBJECTS.items()},
    **{f"{name}, {CE}": (make, {"loss": CE}) for name, make in OBJECTS.items()},
    **{
        f"{aim}, {parts}, {m}": (corrector, {"features": m, "aim": aim, "parts": parts})
        for aim, parts, m in [
            ("all", "online", None),
            ("all", "both", 20),
            ("all", "offline", 20),
            ("window:9", "both", None),
            ("window:9", "online", 20),
            ("discount:0.9", "offline", None),
            ("discount:0.9", "both", 20),
        ]
    },
}


@large_targets
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("before", [0, 30])
def test_loaded_it_goes_on_bit_by_bit(name, before, tmp_path):
    make, options = VARIANTS[name]
    stream = (make_class_stream if "loss" in options else make_stream)(before + 9, 3, seed=1)
    X, Y = stream.features[:, :3], stream.Y
    kernel = rt.Linear() if "offline" in name else rt.RBF(2.0)
    first = {"first_block": "plain"} if make is corrector else {}
    with panels_of(16):
        one = make(kernel, **first, **options)
        feed(one, X[:before], Y[:before])
        state = saved(one, tmp_path / "state")
        other = type(one).load(tmp_path / "state")
        assert len(other) == before
        assert saved(other, tmp_path / "again") == state
        fork = one.fork() if options.get("features") else other  # such a fork shares nothing
        expected = results(one, X[before:], Y[before:])
        np.testing.assert_array_equal(results(other, X[before:], Y[before:]), expected)
        if fork is not other:
            np.testing.assert_array_equal(results(fork, X[before:], Y[before:]), expected)
            assert other.feature_error == one.feature_error


def test_a_state_with_other_panels(tmp_path):
    """They are longer on a GPU, whose states can be loaded on a CPU, and the other way round."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    for saved_with, loaded_with in ((16, 4), (4, 16)):
        one = correction(rt.RBF(2.0))
        with panels_of(saved_with):
            for rows in np.split(np.arange(18), 6):  # the last panel has room for more
                feed(one, X[rows], X[rows, 0])
            one.save(tmp_path / "state")
        with panels_of(loaded_with):
            other = rt.CorrectionTracker.load(tmp_path / "state")
            expected = results(one, X[18:], X[18:, 0])
            assert_same(results(other, X[18:], X[18:, 0]), expected, 1e-12)


def test_a_kernel_is_given_again(tmp_path):
    def kernel(A, B):
        return (1 + A @ B.T) ** 2

    X = np.random.default_rng(0).normal(size=(9, 3))
    one = shift(kernel, rt.SGD(lr=0.01, batch_size=2, reduction="sum"))
    results(one, X[:5], X[:5, 0])
    one.save(tmp_path / "state")
    with pytest.raises(InvalidInputError, match="kernel that a file cannot contain"):
        rt.ShiftTracker.load(tmp_path / "state")
    other = rt.ShiftTracker.load(tmp_path / "state", kernel=kernel)
    np.testing.assert_array_equal(results(other, X[5:], X[5:, 0]), results(one, X[5:], X[5:, 0]))


def test_what_cannot_be_loaded(tmp_path):
    path = tmp_path / "state.safetensors"
    shift(rt.RBF(2.0)).save(path)
    with pytest.raises(InvalidInputError, match="holds a ShiftTracker"):
        rt.TargetCorrector.load(path)
    with pytest.raises(InvalidInputError, match="saved with the kernel .*'width': 2.0"):
        rt.ShiftTracker.load(path, kernel=rt.RBF(3.0))
    path.write_bytes(path.read_bytes()[:99])  # damage of all kinds: see test_state_files.py
    with pytest.raises(InvalidInputError, match="damaged or not a safetensors file"):
        rt.ShiftTracker.load(path)


# --- a call that fails leaves the object exactly as it was


class Kernel:
    """The inner product, or the samples as features."""

    def __call__(self, A, B=None):
        with np.errstate(over="ignore", invalid="ignore"):
            return A if B is None else A @ B.T


FAILING = {
    "corrector": (corrector, {}),
    "corrector, online": (corrector, {"parts": "online", "first_block": "plain"}),
    "corrector, bounded": (corrector, {"features": 100}),
    "shift": (shift, {}),
    "correction": (correction, {}),
}
PLAIN = rt.SGD(lr=0.2, batch_size=2, reduction="sum")
MOMENTUM = rt.SGD(lr=0.05, batch_size=2, momentum=0.7, weight_decay=0.1, reduction="sum")


def break_it(patch, owner, name, after):
    """From a later call on, this method fails."""
    whole, calls = getattr(owner, name), itertools.count()

    def broken(*arguments, **options):
        if next(calls) >= after:
            raise NotPositiveDefiniteError(f"{name} failed", deficit=1.0, jitter=1.0)
        return whole(*arguments, **options)

    patch.setattr(owner, name, broken)


PLACES = [
    (Kernel, "__call__"),
    (cholesky.GrowingCholesky, "extend"),
    (cholesky.GrowingCholesky, "commit"),
    (dual.DualLearner, "learn"),
]


@pytest.mark.parametrize(("learner", "panel"), [(PLAIN, 4), (MOMENTUM, 256)], ids=["4", "256"])
@pytest.mark.parametrize("name", FAILING)
def test_a_failed_update_changes_nothing(name, learner, panel, tmp_path):
    stream = make_stream(25, 2, seed=9)
    X, Y, path, (make, options) = stream.features, stream.Y, tmp_path / "state", FAILING[name]
    used, failed = rt.Features(Kernel()) if "features" in options else Kernel(), 0
    with panels_of(panel):
        one, other = (make(used, learner, **options) for _ in range(2))
        for thing in (one, other):
            feed(thing, X[:7], Y[:7])
        before = saved(one, path)
        for place, after in itertools.product(PLACES, range(2)):
            with pytest.MonkeyPatch.context() as patch:
                break_it(patch, *place, after)
                try:
                    feed(one, X[7:], Y[7:])
                except NotPositiveDefiniteError:
                    failed += 1
            if len(one) > 7:  # this object does not come by there
                one = type(one).load(path, kernel=used)
            assert saved(one, path) == before
        with pytest.raises(InvalidInputError, match="kernel.* holds (inf|nan) in row"):
            feed(one, 1e200 * X[7:], Y[7:])
        for thing in (one, other):
            feed(thing, X[7:], Y[7:])
        assert saved(one, path) == saved(other, tmp_path / "other")
    assert failed >= (1 if "features" in options else 2)


def test_targets_that_overflow_leave_no_trace():
    stream, learner = make_stream(5, 1, seed=1), rt.SGD(lr=1.8)
    tracker = rt.ShiftTracker(rt.RBF(1.0), learner, 1.0)
    tracker.update(stream.features[:2], stream.Y[:2])
    with pytest.raises(ResultOverflowError, match=r"beyond 1\.8e\+308.*scale"):
        tracker.update(np.ones((9, stream.features.shape[1])), np.full((9, 1), 1.7e308))
    tracker.update(stream.features[2:], stream.Y[2:])
    expected = rt.online_coefficients(rt.RBF(1.0)(stream.features), stream.Y, learner)
    np.testing.assert_allclose(tracker.coefficients, expected, rtol=0, atol=1e-12)


def test_a_flush_that_fails_leaves_the_block_open(monkeypatch, tmp_path):
    stream = make_stream(6, 1, seed=3)
    one = corrector(rt.RBF(1.0))
    one.correct(stream.features, stream.Y)
    before = saved(one, tmp_path / "state")
    monkeypatch.setattr(rt.RBF, "_gram", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        one.flush()
    assert one.waiting == 2
    assert saved(one, tmp_path / "state") == before


# --- bad portions are refused, and nothing of them is kept

ONES = np.ones((2, 3))
LABEL = [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("X", "Y", "more", "error", "message"),
    [
        (ONES, np.ones((3, 3)), {}, InvalidInputError, "X has 2 rows and Y has 3"),
        (np.float64(1), np.ones((3, 3)), {}, InvalidInputError, "X has no rows and Y has 3"),
        (ONES[:, :2], ONES, {}, InvalidInputError, r"samples in X is \(2,\); expected \(3,\)"),
        (ONES, ONES[:, :1], {}, InvalidInputError, "outputs of Y is 1; expected 3"),
        (ONES, ONES.astype(int), {}, InvalidTypeError, "Y has dtype int64"),
        (np.nan * ONES, ONES, {}, InvalidInputError, "X holds nan in row 3"),
        (ONES, ONES, {"initial": ONES}, InvalidInputError, "a part of the"),
        (ONES, ONES, {"initial": np.ones(2)}, InvalidInputError, "initial has shape"),
        (ONES, [*LABEL, [1.0] * 3], {}, InvalidInputError, "Y sums to 3 in row 4"),
        (np.arange(6.0).reshape(2, 3), ONES, {}, InvalidInputError, "ends after 3 steps"),
    ],
)
def test_a_bad_portion_leaves_no_trace(X, Y, more, error, message, tmp_path):
    loss = CE if "sums to" in message else "squared"
    thing = rt.ShiftTracker(rt.RBF(1.0), rt.SGD(lr=[0.1] * 3), 0.6, loss=loss)
    feed(thing, np.arange(9.0).reshape(3, 3), np.array(LABEL * 3))
    before = saved(thing, tmp_path / "state")
    with pytest.raises(error, match=message):
        feed(thing, X, Y, **more)
    assert saved(thing, tmp_path / "state") == before


@each
def test_a_bad_kernel_is_noticed(make):
    for kernel, message in (
        (lambda A, B: np.full((len(A), len(B)), np.nan), "kernel's result holds nan"),
        (lambda A, B: np.exp(A[:, :1] - B[:, :1].T), "kernel's result is not symmetric"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            feed(make(kernel), np.arange(8.0).reshape(4, 2), np.ones(4))


def test_too_large_for_memory(monkeypatch):
    monkeypatch.setattr("retarget.arrays.free_memory", lambda device: 1000)
    with pytest.raises(StreamTooLargeError, match="4 samples, grown by 256 rows"):
        corrector(rt.RBF(1.0)).correct(np.arange(4.0), np.ones(4))


def test_large_targets_are_said_once():
    stream = make_class_stream(30, 2, seed=3, certain=True)
    one = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.01), 0.1, 5, loss=CE)
    with pytest.warns(LargeTargetsWarning, match="the targets reach"):
        one.correct(stream.features[:15], stream.Y[:15])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.correct(stream.features[15:], stream.Y[15:])


# --- samples of several types in one stream: promoted without loss, or refused; never rounded


@pytest.mark.parametrize(
    ("first", "second", "stored"),
    [
        ("int64", "float64", "float64"),
        ("int8", "uint8", "int16"),
        ("int64", "float32", "float64"),
        ("float32", "float16", "float32"),
        ("bool", "int32", "int32"),
    ],
)
def test_the_least_type_that_holds_both(first, second, stored):
    X = np.array([[1], [0], [1], [3]])
    parts = [X[:2].astype(first), (X[2:] + 0.75 * (second == "float64")).astype(second)]
    thing, whole = corrector("laplacian"), corrector("laplacian")  # which take whole numbers
    found = [feed(thing, part, np.ones(2)) for part in parts]
    assert thing.samples.dtype == stored
    np.testing.assert_array_equal(thing.samples, np.concatenate(parts))
    expected = feed(whole, np.concatenate(parts).astype(float), np.ones(4))
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-13)


def test_whole_numbers_that_float64_does_not_hold():
    thing = shift("cosine", rt.SGD(lr=0.3))
    feed(thing, np.array([[2**53 + 1]]), np.ones(1) * 1e-9)
    with pytest.raises(InvalidInputError, match=r"int64 and in float64.*beyond 2\*\*53"):
        feed(thing, np.array([[0.5]]), np.ones(1))
    assert thing.samples.tolist() == [[2**53 + 1]]


def test_kernels_keep_their_precision():
    thing, wide, half = shift(rt.RBF(1.0)), shift(rt.RBF(1.0)), shift(rt.Linear())
    ones = np.ones((1, 1), np.float32)
    feed(thing, ones, ones[0])
    for X, Y in ((np.array([[0.1]]), ones[0]), (ones, np.ones(1))):
        with pytest.raises(InvalidInputError, match="float32 and continues in float64"):
            feed(thing, X, Y)
    assert len(thing) == 1
    feed(wide, ones, np.ones(1))  # float64 by its targets
    feed(wide, np.array([[0.1]]), np.ones(1))
    np.testing.assert_array_equal(wide.samples, [[1.0], [0.1]])
    feed(half, torch.ones(1, 1, dtype=torch.bfloat16), torch.ones(1))
    feed(half, torch.full((1, 1), 0.1, dtype=torch.float16), torch.ones(1))
    assert half.samples.dtype == torch.float32


def test_a_float32_kernel_is_symmetric_enough():
    """Float64 targets make the stream float64; the kernel's entries are still of float32."""

    def kernel(A, B):  # as a library's code path may round it
        noise = np.float32(1.2e-7) * (np.arange(len(A))[:, None] > np.arange(len(B)))
        return np.float32(1e-2) * (A @ B.T) + np.float32(1e-2) * noise

    thing = shift(kernel)
    feed(thing, np.ones((4, 2), np.float32), np.ones(4))
    assert thing.coefficients.dtype == np.float64
