"""Fed in any portions, the streaming objects give what the batch functions give."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import retarget as rt
from retarget import arrays
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    StreamTooLargeError,
)
from support.oracles import literal
from support.problems import assert_same, gammas, learners, make_stream, panel_sizes, panels_of


@st.composite
def portions(draw, n):
    """One sample, one block, odd portions or everything at a time."""
    size = draw(st.sampled_from([1, 4, "odd", n]))
    cuts = [0]
    while cuts[-1] < n:
        cuts.append(min(n, cuts[-1] + (draw(st.integers(0, 7)) if size == "odd" else size)))
    return [slice(a, b) for a, b in pairwise(cuts)]


@st.composite
def cases(draw):
    n = draw(st.integers(1, 30))
    stream = make_stream(n, draw(st.integers(1, 3)), draw(st.integers(0, 10**6)))
    return stream, draw(learners(n)), draw(portions(n))


def test_cases_include_empty_portions():
    """An empty portion is one of the odd ones: it is taken, and nothing comes of it."""
    corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), 1.0, 2)
    assert corrector.correct(np.empty((0, 3)), np.empty((0, 2))).shape[0] == 0
    assert len(corrector) == 0
    assert corrector.flush().shape[0] == 0
    tracker = rt.ShiftTracker(rt.Linear(), rt.SGD(lr=0.1), 1.0)
    tracker.update(np.empty((0, 3)), np.empty((0, 2)))
    with pytest.raises(InvalidInputError, match="no samples yet"):
        _ = tracker.effective_targets
    with pytest.raises(InvalidInputError, match="no samples yet"):
        _ = tracker.coefficients
    with pytest.raises(InvalidInputError, match="no samples yet"):
        corrector.preview()
    with pytest.raises(InvalidInputError, match="no samples yet"):
        _ = rt.CorrectionTracker(rt.Linear(), rt.SGD(lr=0.1), 1.0).coefficients


@given(
    case=cases(),
    gamma=gammas,
    blocks=st.integers(1, 5),
    ridge=st.sampled_from([0.0, 0.2]),
    parts=st.sampled_from(["both", "online", "offline"]),
    first_block=st.sampled_from(["corrected", "plain"]),
    panel=panel_sizes,
)
def test_corrector_equals_iterative_targets(case, gamma, blocks, ridge, parts, first_block, panel):
    stream, learner, cuts = case
    block = blocks * learner.batch_size
    options = {"ridge": ridge, "parts": parts, "first_block": first_block}
    expected = rt.iterative_targets(stream.K, stream.Y, learner, gamma, block, **options)
    given_so_far, returned = 0, []
    with panels_of(panel):
        corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, block, **options)
        for rows in cuts:
            returned.append(corrector.correct(stream.features[rows], stream.Y[rows]))
            given_so_far += rows.stop - rows.start
            complete = given_so_far - given_so_far % block
            assert sum(map(len, returned)) == complete
            assert corrector.waiting == given_so_far - complete
            if given_so_far % 4 == 1 or given_so_far == len(stream):
                check_preview(corrector, stream, rows.stop, returned)
        returned.append(corrector.flush())
    assert len(corrector) == len(stream)
    assert_same(np.concatenate(returned), expected, 1e-10 * max(1.0, np.abs(expected).max()))


def check_preview(corrector, stream, n, returned):
    """What the learner is now: it has learned the closed blocks, and the open one as if closed."""
    seen, learner = slice(0, n), corrector.learner
    if isinstance(learner.lr, tuple):
        learner = rt.SGD(**(learner.to_dict() | {"lr": learner.lr[: learner.steps(n)]}))
    options = {"parts": corrector.parts, "first_block": corrector.first_block}
    K, Y = stream.K[seen, seen], stream.Y[seen]
    expected = rt.iterative_targets(
        K, Y, learner, corrector.gamma, corrector.block_size, corrector.ridge, **options
    )
    open_targets, coefficients = corrector.preview()
    tolerance = 1e-10 * max(1.0, np.abs(expected).max())
    assert_same(np.concatenate([*returned, open_targets]), expected, tolerance)
    assert_same(coefficients, rt.online_coefficients(K, expected, learner), tolerance)
    np.testing.assert_array_equal(corrector.samples, stream.features[seen])


@pytest.mark.parametrize("panel", [4, 256])
def test_a_preview_changes_nothing_to_the_last_bit(panel, tmp_path):
    stream = make_stream(19, 2, seed=8)
    with panels_of(panel):
        corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1, momentum=0.5), 0.4, 4)
        for rows in (slice(0, 8), slice(8, 19)):
            corrector.correct(stream.features[rows], stream.Y[rows])
        assert corrector.waiting == 3
        corrector.save(tmp_path / "before")
        corrector.preview()
        corrector.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


@given(case=cases(), gamma=gammas, panel=panel_sizes)
def test_shift_tracker_equals_effective_targets_all_along(case, gamma, panel):
    stream, learner, cuts = case
    if isinstance(learner.lr, tuple):  # a schedule for the whole stream does not fit its parts
        learner = rt.SGD(**(learner.to_dict() | {"lr": learner.lr[0]}))
    with panels_of(panel):
        tracker = rt.ShiftTracker(rt.Linear(), learner, gamma)
        for rows in cuts:
            tracker.update(stream.features[rows], stream.Y[rows])
            if rows.stop % 4 == 1 or rows.stop == len(stream):
                seen = slice(0, rows.stop)
                expected = rt.effective_targets(
                    stream.K[seen, seen], stream.Y[seen], learner, gamma
                )
                assert_same(tracker.effective_targets, expected)
                expected = rt.online_coefficients(stream.K[seen, seen], stream.Y[seen], learner)
                assert_same(tracker.coefficients, expected)
                np.testing.assert_array_equal(tracker.samples, stream.features[seen])
    assert len(tracker) == len(stream)


@given(case=cases(), gamma=gammas, panel=panel_sizes)
def test_correction_tracker_equals_corrected_targets_all_along(case, gamma, panel):
    stream, learner, cuts = case
    if isinstance(learner.lr, tuple):
        learner = rt.SGD(**(learner.to_dict() | {"lr": learner.lr[0]}))
    with panels_of(panel):
        tracker = rt.CorrectionTracker(rt.Linear(), learner, gamma)
        for rows in cuts:
            tracker.update(stream.features[rows], stream.Y[rows])
            if rows.stop % 4 == 1 or rows.stop == len(stream):
                seen = slice(0, rows.stop)
                expected = rt.corrected_targets(
                    stream.K[seen, seen], stream.Y[seen], learner, gamma
                )
                assert_same(
                    tracker.corrected_targets, expected, 1e-10 * max(1.0, np.abs(expected).max())
                )
                expected = rt.offline_coefficients(stream.K[seen, seen], stream.Y[seen], gamma)
                assert_same(tracker.coefficients, expected)
    assert len(tracker) == len(stream)


@given(seed=st.integers(0, 999), n=st.integers(1, 20), eta=st.floats(0.05, 1.0), gamma=gammas)
def test_trackers_follow_equation_11_and_appendix_a5(seed, n, eta, gamma):
    stream = make_stream(n, 2, seed)
    shift = rt.ShiftTracker(rt.Linear(), rt.SGD(lr=eta), gamma)
    correction = rt.CorrectionTracker(rt.Linear(), rt.SGD(lr=eta), gamma)
    for t in range(n):
        shift.update(stream.features[[t]], stream.Y[[t]])
        correction.update(stream.features[[t]], stream.Y[[t]])
    assert_same(shift.effective_targets, literal.effective_by_steps(stream.Y, stream.K, eta, gamma))
    assert_same(
        correction.corrected_targets, literal.corrected_by_steps(stream.Y, stream.K, eta, gamma)
    )


def test_a_start_that_is_not_zero():
    stream = make_stream(17, 2, seed=3)
    initial, learner = np.sin(stream.Y), rt.SGD(lr=0.4, batch_size=2)
    corrector = rt.TargetCorrector(rt.Linear(), learner, 0.6, 4)
    shift = rt.ShiftTracker(rt.Linear(), learner, 0.6)
    correction = rt.CorrectionTracker(rt.Linear(), learner, 0.6)
    returned = []
    for rows in (slice(0, 5), slice(5, 17)):
        data = (stream.features[rows], stream.Y[rows])
        returned.append(corrector.correct(*data, initial=initial[rows]))
        shift.update(*data, initial=initial[rows])
        correction.update(*data, initial=initial[rows])
    returned.append(corrector.flush())
    problem = (stream.K, stream.Y, learner, 0.6)
    assert_same(np.concatenate(returned), rt.iterative_targets(*problem, 4, initial=initial))
    assert_same(shift.effective_targets, rt.effective_targets(*problem, initial=initial))
    assert_same(correction.corrected_targets, rt.corrected_targets(*problem, initial=initial))


def test_the_stream_goes_on_after_a_flush():
    """A flush ends the block and the mini-batch; what follows starts new ones."""
    stream = make_stream(11, 1, seed=5)
    learner = rt.SGD(lr=0.3, batch_size=2)
    corrector = rt.TargetCorrector(rt.Linear(), learner, 0.5, 4)
    first = corrector.correct(stream.features[:5], stream.Y[:5])
    Z = np.concatenate(
        [first, corrector.flush(), corrector.correct(stream.features[5:], stream.Y[5:])]
    )
    assert corrector.waiting == 2
    Z = np.concatenate([Z, corrector.flush()])
    # the online learner on these targets, in the mini-batches 2, 2, 1, 2, 2, 2
    batch = np.array([0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 5])
    past = np.where(batch[:, None] > batch[None, :], stream.K, 0)
    A = np.linalg.solve(np.eye(11) / 0.3 + past, Z)
    for start, stop in [(0, 4), (4, 5), (5, 9), (9, 11)]:
        rows, seen = slice(start, stop), slice(0, stop)
        offline = literal.f_off(stream.Y[seen], stream.K[seen, seen], stream.K[seen, rows], 0.5)
        assert_same(stream.K[rows, seen] @ A[seen], offline)


@pytest.mark.parametrize("kernel", [rt.RBF(2.0), lambda A, B: (1 + A @ B.T) ** 2, "laplacian"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_anything_serves_as_a_kernel(kernel, kind):
    X = np.random.default_rng(0).normal(size=(12, 3))
    Y = np.sin(X)
    expected = rt.iterative_targets(rt.as_kernel(kernel)(X), Y, rt.SGD(lr=0.1), 0.5, 3, ridge=0.1)
    if kind == "torch":
        X, Y = torch.tensor(X), torch.tensor(Y)
    got = rt.TargetCorrector(kernel, rt.SGD(lr=0.1), 0.5, 3, ridge=0.1).correct(X, Y)
    assert isinstance(got, torch.Tensor) == (kind == "torch")
    assert_same(got, expected)


def test_a_block_size_from_numpy_is_saved_as_a_number(tmp_path):
    corrector = rt.TargetCorrector(rt.RBF(1.0), rt.SGD(lr=0.1), 1.0, np.int64(2))
    corrector.save(tmp_path / "state")
    assert rt.TargetCorrector.load(tmp_path / "state").block_size == 2


# --- saving and loading


def make_corrector(kernel):
    return rt.TargetCorrector(
        kernel, rt.SGD(lr=0.05, batch_size=2, momentum=0.9), 0.6, 4, 0.1, first_block="plain"
    )


def corrector_results(corrector, X, Y):
    return np.concatenate([corrector.correct(X, Y), corrector.flush()])


def make_shift(kernel):
    return rt.ShiftTracker(kernel, rt.SGD(lr=0.05, batch_size=2, momentum=0.9), 0.6)


def make_correction(kernel):
    return rt.CorrectionTracker(kernel, rt.SGD(lr=0.2, batch_size=3), 0.6)


def shift_results(tracker, X, Y):
    tracker.update(X, Y)
    return tracker.effective_targets


def correction_results(tracker, X, Y):
    tracker.update(X, Y)
    return tracker.corrected_targets


every_class = pytest.mark.parametrize(
    ("make", "results"),
    [
        (make_corrector, corrector_results),
        (make_shift, shift_results),
        (make_correction, correction_results),
    ],
    ids=["TargetCorrector", "ShiftTracker", "CorrectionTracker"],
)


@every_class
@pytest.mark.parametrize("before", [0, 7, 300])
def test_saved_and_loaded_it_goes_on_to_the_last_bit(make, results, before, tmp_path):
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(before + 9, 3)), rng.normal(size=before + 9)
    one = make(rt.RBF(2.0))
    take = one.correct if isinstance(one, rt.TargetCorrector) else one.update
    take(X[:before], Y[:before])
    path = tmp_path / "state.safetensors"
    one.save(path)
    other = type(one).load(path)
    assert len(other) == before
    np.testing.assert_array_equal(
        results(other, X[before:], Y[before:]), results(one, X[before:], Y[before:])
    )


@every_class
def test_a_kernel_that_no_file_can_hold_is_given_again(make, results, tmp_path):
    def kernel(A, B):
        return (1 + A @ B.T) ** 2

    X = np.random.default_rng(0).normal(size=(9, 3))
    one = make(kernel)
    results(one, X[:5], X[:5, 0])
    one.save(tmp_path / "state")
    with pytest.raises(InvalidInputError, match=r"kernel that a file cannot hold; give it again"):
        type(one).load(tmp_path / "state")
    other = type(one).load(tmp_path / "state", kernel=kernel)
    np.testing.assert_array_equal(results(other, X[5:], X[5:, 0]), results(one, X[5:], X[5:, 0]))


def test_what_cannot_be_loaded(tmp_path):
    path = tmp_path / "state.safetensors"
    tracker = make_shift(rt.RBF(2.0))
    tracker.update(np.ones((3, 2)), np.ones(3))
    tracker.save(path)
    with pytest.raises(InvalidInputError, match="holds a ShiftTracker, not a TargetCorrector"):
        rt.TargetCorrector.load(path)
    with pytest.raises(InvalidInputError, match="saved with the kernel .*'width': 2.0"):
        rt.ShiftTracker.load(path, kernel=rt.RBF(3.0))
    with pytest.raises(InvalidInputError, match="there is no file"):
        rt.ShiftTracker.load(tmp_path / "nowhere")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"\x00" * 100):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInputError, match="damaged or not a safetensors file"):
            rt.ShiftTracker.load(path)
    flipped = bytearray(whole)
    flipped[-3] ^= 1  # within a number
    path.write_bytes(flipped)
    with pytest.raises(InvalidInputError, match="is damaged: its checksum is not that of"):
        rt.ShiftTracker.load(path)
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(InvalidInputError, match="not a retarget state of format 2"):
        rt.ShiftTracker.load(path)
    save_file({"x": torch.ones(1)}, path, metadata={"retarget": json.dumps({"format": 99})})
    with pytest.raises(InvalidInputError, match="not a retarget state of format 2"):
        rt.ShiftTracker.load(path)
    save_file({"x": torch.ones(1)}, path, metadata={"retarget": "{"})
    with pytest.raises(InvalidInputError, match="damaged"):
        rt.ShiftTracker.load(path)


# --- bad portions are refused, and nothing of them is kept


@pytest.fixture
def fed():
    corrector = rt.TargetCorrector(rt.RBF(1.0), rt.SGD(lr=0.1), 1.0, 2)
    corrector.correct(np.arange(6.0).reshape(3, 2), np.ones((3, 2)))
    return corrector


@pytest.mark.parametrize(
    ("X", "Y", "initial", "error", "message"),
    [
        (np.ones((2, 2)), np.ones((3, 2)), None, InvalidInputError, "X has 2 rows and Y 3"),
        (np.float64(1), np.ones((3, 2)), None, InvalidInputError, "X has no rows and Y 3"),
        (np.ones((2, 3)), np.ones((2, 2)), None, InvalidInputError, r"samples of shape \(3,\)"),
        (np.ones((2, 2)), np.ones((2, 1)), None, InvalidInputError, "Y has 1 outputs; .* has 2"),
        (np.ones((2, 2)), np.ones((2, 2), int), None, InvalidTypeError, "Y has dtype int64"),
        (np.full((2, 2), np.nan), np.ones((2, 2)), None, InvalidInputError, "X holds nan in row 3"),
        (np.ones((2, 2)), np.full((2, 2), np.inf), None, InvalidInputError, "Y holds inf in row 3"),
        (np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), InvalidInputError, "a part of the"),
        (np.ones((2, 2)), np.ones((2, 2)), np.ones(2), InvalidInputError, "initial has shape"),
    ],
)
def test_a_bad_portion_leaves_no_trace(fed, X, Y, initial, error, message):
    with pytest.raises(error, match=message):
        fed.correct(X, Y, initial=initial)
    assert len(fed) == 3
    assert fed.waiting == 1
    assert fed.correct(np.array([[9.0, 9.0]]), np.ones((1, 2))).shape == (2, 2)


def test_a_schedule_that_is_too_short_for_the_stream():
    tracker = rt.ShiftTracker(rt.RBF(1.0), rt.SGD(lr=[0.1, 0.1]), 1.0)
    with pytest.raises(InvalidInputError, match="ends after 2 steps"):
        tracker.update(np.arange(3.0), np.ones(3))


def test_a_bad_kernel_is_noticed():
    nan = rt.TargetCorrector(lambda A, B: np.full((len(A), len(B)), np.nan), rt.SGD(0.1), 1.0, 1)
    with pytest.raises(InvalidInputError, match="kernel's result holds nan"):
        nan.correct(np.ones((1, 2)), np.ones(1))
    skew = rt.TargetCorrector(lambda A, B: np.exp(A[:, :1] - B[:, :1].T), rt.SGD(0.1), 1.0, 2)
    with pytest.raises(InvalidInputError, match="kernel's result is not symmetric"):
        skew.correct(np.arange(4.0).reshape(2, 2), np.ones(2))


def test_too_large_for_memory(monkeypatch):
    monkeypatch.setattr(arrays, "free_memory", lambda device: 1000)
    corrector = rt.TargetCorrector(rt.RBF(1.0), rt.SGD(lr=0.1), 1.0, 2)
    with pytest.raises(StreamTooLargeError, match="the factor of 2 samples, grown by 256 rows"):
        corrector.correct(np.arange(2.0), np.ones(2))
