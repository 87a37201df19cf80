"""A call that fails leaves a streaming object exactly as it was."""

import numpy as np
import pytest

import retarget as rt
from retarget.errors import InvalidInputError, NotPositiveDefiniteError, ResultOverflowError
from retarget.theory import cholesky, dual
from support.problems import make_stream, panels_of

LEARNERS = {
    "plain": rt.SGD(lr=0.2, batch_size=2),
    "momentum": rt.SGD(lr=0.05, batch_size=2, momentum=0.7, weight_decay=0.1),
}


class Kernel:
    """The inner product, which fails when it is told to."""

    def __init__(self):
        self.calls_left = None

    def __call__(self, A, B):
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise RuntimeError("the kernel failed")
        with np.errstate(over="ignore", invalid="ignore"):
            return A @ B.T


OBJECTS = {
    "corrector": lambda k, learner: rt.TargetCorrector(k, learner, 0.6, 4, ridge=0.1),
    "corrector, online": lambda k, learner: rt.TargetCorrector(
        k, learner, 0.6, 4, ridge=0.1, parts="online", first_block="plain"
    ),
    "shift": lambda k, learner: rt.ShiftTracker(k, learner, 0.6),
    "correction": lambda k, learner: rt.CorrectionTracker(k, learner, 0.6),
}


def feed(thing, X, Y):
    return (thing.correct if hasattr(thing, "correct") else thing.update)(X, Y)


def saved(thing, path):
    thing.save(path)
    return path.read_bytes()


def failures(kernel, monkeypatch):
    """Ways to fail, each with the rows that are fed to it: inside the kernel, factor, learner."""

    def kernel_fails(after):
        kernel.calls_left = after

    def breaks(owner, name, after):
        whole, calls = getattr(owner, name), iter(range(100))

        def broken(*arguments, **options):
            if next(calls) >= after:
                raise NotPositiveDefiniteError(f"{name} failed", deficit=1.0, jitter=1.0)
            return whole(*arguments, **options)

        monkeypatch.setattr(owner, name, broken)

    for after in range(2):
        yield lambda after=after: kernel_fails(after)
        for owner, name in (
            (cholesky.GrowingCholesky, "extend"),
            (cholesky.GrowingCholesky, "commit"),
            (dual.DualLearner, "learn"),
        ):
            yield lambda args=(owner, name, after): breaks(*args)


@pytest.mark.parametrize(("learner", "panel"), [("plain", 4), ("momentum", 256)])
@pytest.mark.parametrize("name", OBJECTS)
def test_a_failed_update_is_as_if_it_had_not_been_made(name, learner, panel, tmp_path):
    stream = make_stream(40, 2, seed=9)
    X, Y = stream.features, stream.Y
    failed = 0
    with panels_of(panel):
        kernel = Kernel()
        one, other = (OBJECTS[name](kernel, LEARNERS[learner]) for _ in range(2))
        for rows in (slice(0, 7), slice(7, 22)):
            for thing in (one, other):
                feed(thing, X[rows], Y[rows])
            before = saved(one, tmp_path / "state")
            with pytest.MonkeyPatch.context() as patch:
                for start_to_fail in failures(kernel, patch):
                    start_to_fail()
                    try:
                        feed(one, X[22:], Y[22:])
                    except (RuntimeError, NotPositiveDefiniteError):
                        failed += 1
                        assert saved(one, tmp_path / "state") == before
                    else:  # this object does not come by there
                        one = type(one).load(tmp_path / "state", kernel=kernel)
                    patch.undo()
                    kernel.calls_left = None
        for thing in (one, other):
            feed(thing, X[22:], Y[22:])
        assert saved(one, tmp_path / "one") == saved(other, tmp_path / "other")
    assert failed >= 4


@pytest.mark.parametrize("name", OBJECTS)
def test_a_kernel_that_overflows_leaves_no_trace(name, tmp_path):
    stream = make_stream(12, 1, seed=2)
    X, Y = stream.features, stream.Y
    one, other = (OBJECTS[name](Kernel(), LEARNERS["plain"]) for _ in range(2))
    for thing in (one, other):
        feed(thing, X[:3], Y[:3])
    with pytest.raises(InvalidInputError, match="the kernel's result holds inf in row"):
        feed(one, 1e200 * X[3:7], Y[3:7])
    for thing in (one, other):
        feed(thing, X[3:], Y[3:])
    assert saved(one, tmp_path / "one") == saved(other, tmp_path / "other")


def test_the_reported_case_of_the_shift_tracker():
    """Two good rows, a portion with Y = 1.7e308, three good rows: as if there had been five."""
    stream = make_stream(5, 1, seed=1)
    tracker = rt.ShiftTracker(rt.RBF(1.0), rt.SGD(lr=1.8), 1.0)
    tracker.update(stream.features[:2], stream.Y[:2])
    with pytest.raises(ResultOverflowError, match=r"beyond 1\.8e\+308.*scale"):
        tracker.update(np.ones((9, stream.features.shape[1])), np.full((9, 1), 1.7e308))
    tracker.update(stream.features[2:], stream.Y[2:])
    K = rt.RBF(1.0)(stream.features)
    expected = rt.online_coefficients(K, stream.Y, rt.SGD(lr=1.8))
    np.testing.assert_allclose(tracker.coefficients, expected, rtol=0, atol=1e-12)


def test_a_flush_that_fails_leaves_the_block_open(monkeypatch):
    stream = make_stream(10, 1, seed=3)
    corrector, other = (rt.TargetCorrector(rt.RBF(1.0), rt.SGD(0.3), 0.5, 4) for _ in range(2))
    for one in (corrector, other):
        one.correct(stream.features[:6], stream.Y[:6])
    with monkeypatch.context() as patch:
        patch.setattr(rt.RBF, "_gram", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            corrector.flush()
    assert corrector.waiting == 2
    np.testing.assert_array_equal(
        corrector.correct(stream.features[6:], stream.Y[6:]),
        other.correct(stream.features[6:], stream.Y[6:]),
    )
