"""Fed in any portions, the streaming objects give what the batch functions give."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import InvalidInputError
from support.oracles import literal, simulation
from support.problems import (
    assert_same,
    class_streams,
    fewer_examples,
    gammas,
    learners,
    make_stream,
    panel_sizes,
    panels_of,
    streams,
)
from support.streaming_objects import CE

pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")


@st.composite
def cases(draw, schedules=True):
    """A stream, its learner, the options of both losses, a start, and portions of any size."""
    loss = draw(st.sampled_from(["squared", "squared", CE]))
    stream = draw(streams if loss == "squared" else class_streams)
    n, learner = len(stream), draw(learners(len(stream)))
    if isinstance(learner.lr, tuple) and not schedules:  # one of the stream does not fit its parts
        learner = rt.SGD(**(learner.to_dict() | {"lr": learner.lr[0]}))
    start = None
    if learner.weight_decay == 0 and draw(st.booleans()):
        start = np.random.default_rng(n).normal(size=stream.Y.shape)
    size = draw(st.sampled_from([1, 4, "odd", n]))
    cuts = [0]
    while cuts[-1] < n:
        cuts.append(min(n, cuts[-1] + (draw(st.integers(0, 7)) if size == "odd" else size)))
    return stream, learner, loss, start, [slice(a, b) for a, b in pairwise(cuts)]


def part(start, rows):
    return None if start is None else start[rows]


def looked_at(rows, stream, loss):
    """Where results are compared; with cross-entropy, which is slow, at fewer places."""
    return rows.stop % (8 if loss == "squared" else 32) == 1 or rows.stop == len(stream)


@given(
    case=cases(),
    gamma=gammas,
    blocks=st.integers(1, 5),
    ridge=st.sampled_from([0.0, 0.2]),
    parts=st.sampled_from(["both", "online", "offline"]),
    first_block=st.sampled_from(["corrected", "plain"]),
    panel=panel_sizes,
    bounded=st.booleans(),
)
def test_corrector_equals_iterative_targets(
    case, gamma, blocks, ridge, parts, first_block, panel, bounded
):
    """With exact features in bounded memory, too."""
    stream, learner, loss, start, cuts = case
    block, n = blocks * learner.batch_size, len(stream)
    options = {"ridge": ridge, "first_block": first_block, "loss": loss}
    if loss == "squared":
        options["parts"] = parts
    bounded = bounded and loss == "squared"
    expected = rt.iterative_targets(
        stream.K, stream.Y, learner, gamma, block, initial=start, **options
    )
    tolerance = 1e-9 if bounded or loss == CE else 1e-10
    returned = []
    with panels_of(panel):
        kept = stream.features.shape[1] if bounded else None
        corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, block, features=kept, **options)
        for rows in cuts:
            X, Y = stream.features[rows], stream.Y[rows]
            returned.append(corrector.correct(X, Y, initial=part(start, rows)))
            assert corrector.waiting == rows.stop % block == rows.stop - sum(map(len, returned))
            if bounded:
                preview = corrector.preview() if rows.stop else None  # which changes nothing
            elif looked_at(rows, stream, loss):
                check_preview(corrector, stream, start, rows.stop, returned, tolerance)
        returned.append(corrector.flush())
        if bounded:
            np.testing.assert_array_equal(preview[0], returned[-1])
        assert (len(corrector), corrector.waiting, corrector.feature_error) == (n, 0, 0.0)
        assert_same(np.concatenate(returned), expected, tolerance)
        if bounded and start is None:  # what the optimizer itself is taught with them
            run = simulation.train(stream.features, np.concatenate(returned), learner)
            assert_same(corrector.preview()[1], run.weights, tolerance)


def check_preview(corrector, stream, start, n, returned, tolerance):
    """What the learner is now: it has learned the closed blocks, and the open one as if closed."""
    seen, learner = slice(0, n), corrector.learner
    if isinstance(learner.lr, tuple):
        learner = rt.SGD(**(learner.to_dict() | {"lr": learner.lr[: learner.steps(n)]}))
    K, Y, loss = stream.K[seen, seen], stream.Y[seen], corrector.loss
    options = {name: getattr(corrector, name) for name in ("parts", "first_block", "loss", "ridge")}
    options["initial"] = part(start, seen)
    expected = rt.iterative_targets(K, Y, learner, corrector.gamma, corrector.block_size, **options)
    open_targets, coefficients = corrector.preview()
    assert_same(np.concatenate([*returned, open_targets]), expected, tolerance)
    A = rt.online_coefficients(K, expected, learner, initial=options["initial"], loss=loss)
    assert_same(coefficients, A, tolerance * max(1.0, np.abs(expected).max()))
    np.testing.assert_array_equal(corrector.samples, stream.features[seen])


@fewer_examples
@given(case=cases(schedules=False), gamma=gammas, panel=panel_sizes)
def test_trackers_equal_the_batch_functions_all_along(case, gamma, panel):
    stream, learner, loss, start, cuts = case
    tolerance = 1e-9 if loss == CE else 1e-10
    with panels_of(panel):
        shift = rt.ShiftTracker(rt.Linear(), learner, gamma, loss=loss)
        correction = rt.CorrectionTracker(rt.Linear(), learner, gamma, loss=loss)
        for rows in cuts:
            for tracker in (shift, correction):
                tracker.update(stream.features[rows], stream.Y[rows], initial=part(start, rows))
                np.testing.assert_array_equal(tracker.samples, stream.features[: rows.stop])
            if looked_at(rows, stream, loss):
                seen = slice(0, rows.stop)
                K, Y = stream.K[seen, seen], stream.Y[seen]
                options = {"initial": part(start, seen), "loss": loss}
                expected = rt.effective_targets(K, Y, learner, gamma, **options)
                assert_same(shift.effective_targets, expected)
                assert_same(shift.coefficients, rt.online_coefficients(K, Y, learner, **options))
                expected = rt.corrected_targets(K, Y, learner, gamma, **options)
                assert_same(correction.corrected_targets, expected, tolerance)
                expected = rt.offline_coefficients(K, Y, gamma, **options)
                assert_same(correction.coefficients, expected, tolerance)
    assert len(shift) == len(correction) == len(stream)


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


def test_nothing_comes_of_no_samples():
    corrector, *trackers = (
        made(rt.Linear(), rt.SGD(lr=0.1), 1.0, *block)
        for made, *block in ((rt.TargetCorrector, 2), (rt.ShiftTracker,), (rt.CorrectionTracker,))
    )
    assert len(corrector.correct(np.empty((0, 3)), np.empty((0, 2)))) == len(corrector.flush()) == 0
    for tracker in trackers:
        tracker.update(np.empty((0, 3)), np.empty((0, 2)))
    for ask in (
        corrector.preview,
        lambda: trackers[0].effective_targets,
        *(lambda tracker=tracker: tracker.coefficients for tracker in trackers),
    ):
        with pytest.raises(InvalidInputError, match="no samples yet"):
            ask()


def test_the_stream_goes_on_after_a_flush():
    """A flush ends the block and the mini-batch; what follows starts new ones."""
    stream = make_stream(11, 1, seed=5)
    learner = rt.SGD(lr=0.3, batch_size=2, reduction="sum")
    corrector = rt.TargetCorrector(rt.Linear(), learner, 0.5, 4)
    Z = [corrector.correct(stream.features[:5], stream.Y[:5]), corrector.flush()]
    Z.append(corrector.correct(stream.features[5:], stream.Y[5:]))
    assert corrector.waiting == 2
    Z = np.concatenate([*Z, corrector.flush()])
    # the online learner on these targets, in the mini-batches 2, 2, 1, 2, 2, 2
    batch = np.array([0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 5])
    past = np.where(batch[:, None] > batch[None, :], stream.K, 0)
    A = np.linalg.solve(np.eye(11) / 0.3 + past, Z)
    for start, stop in [(0, 4), (4, 5), (5, 9), (9, 11)]:
        rows, seen = slice(start, stop), slice(0, stop)
        offline = literal.f_off(stream.Y[seen], stream.K[seen, seen], stream.K[seen, rows], 0.5)
        assert_same(stream.K[rows, seen] @ A[seen], offline)
