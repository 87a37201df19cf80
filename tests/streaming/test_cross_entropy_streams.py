"""With cross-entropy too, the streaming objects give what the batch functions give."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import InvalidInputError, LargeTargetsWarning
from support.problems import (
    assert_same,
    class_problems,
    fewer_examples,
    gammas,
    make_class_stream,
    panel_sizes,
    panels_of,
)

CE = "cross-entropy"

pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")


@st.composite
def cases(draw):
    stream, learner = draw(class_problems())
    if isinstance(learner.lr, tuple):  # a schedule for the whole stream does not fit its parts
        learner = rt.SGD(**(learner.to_dict() | {"lr": learner.lr[0]}))
    cuts = [0]
    while cuts[-1] < len(stream):
        cuts.append(min(len(stream), cuts[-1] + draw(st.sampled_from([1, 4, 11, 40]))))
    return stream, learner, [slice(a, b) for a, b in pairwise(cuts)]


@fewer_examples
@given(
    case=cases(),
    gamma=gammas,
    blocks=st.integers(1, 5),
    ridge=st.sampled_from([0.0, 0.2]),
    first_block=st.sampled_from(["corrected", "plain"]),
    panel=panel_sizes,
    seed=st.integers(0, 1000),
)
def test_corrector_equals_iterative_targets(case, gamma, blocks, ridge, first_block, panel, seed):
    stream, learner, cuts = case
    block = blocks * learner.batch_size
    initial = np.random.default_rng(seed).normal(size=stream.Y.shape)
    begun = seed % 2 and learner.weight_decay == 0
    options = {"ridge": ridge, "first_block": first_block, "loss": CE}
    expected = rt.iterative_targets(
        stream.K, stream.Y, learner, gamma, block, initial=initial if begun else None, **options
    )
    with panels_of(panel):
        corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, block, **options)
        returned = [
            corrector.correct(
                stream.features[rows], stream.Y[rows], initial=initial[rows] if begun else None
            )
            for rows in cuts
        ]
        targets, coefficients = corrector.preview()
        np.testing.assert_array_equal(targets, last := corrector.flush())
    tolerance = 1e-9 * max(1.0, np.abs(expected).max())
    assert_same(np.concatenate([*returned, last]), expected, tolerance)
    A = rt.online_coefficients(
        stream.K, expected, learner, initial=initial if begun else None, loss=CE
    )
    assert_same(coefficients, A, tolerance)


@fewer_examples
@given(case=cases(), gamma=gammas, panel=panel_sizes, seed=st.integers(0, 1000))
def test_trackers_equal_the_batch_functions_all_along(case, gamma, panel, seed):
    stream, learner, cuts = case
    initial = np.random.default_rng(seed).normal(size=stream.Y.shape)
    begun = seed % 2 and learner.weight_decay == 0
    with panels_of(panel):
        shift = rt.ShiftTracker(rt.Linear(), learner, gamma, loss=CE)
        correction = rt.CorrectionTracker(rt.Linear(), learner, gamma, loss=CE)
        for rows in cuts:
            for tracker in (shift, correction):
                tracker.update(
                    stream.features[rows],
                    stream.Y[rows],
                    initial=initial[rows] if begun else None,
                )
            if rows.stop % 4 == 1 or rows.stop == len(stream):
                seen = slice(0, rows.stop)
                K, Y = stream.K[seen, seen], stream.Y[seen]
                options = {"initial": initial[seen] if begun else None, "loss": CE}
                expected = rt.effective_targets(K, Y, learner, gamma, **options)
                assert_same(shift.effective_targets, expected)
                expected = rt.online_coefficients(K, Y, learner, **options)
                assert_same(shift.coefficients, expected)
                expected = rt.corrected_targets(K, Y, learner, gamma, **options)
                tolerance = 1e-9 * max(1.0, np.abs(expected).max())
                assert_same(correction.corrected_targets, expected, tolerance)
                expected = rt.offline_coefficients(K, Y, gamma, **options)
                assert_same(correction.coefficients, expected, 1e-9)


def make_corrector(learner):
    return rt.TargetCorrector(rt.RBF(2.0), learner, 0.6, 4, 0.1, first_block="plain", loss=CE)


MAKERS = {
    "TargetCorrector": make_corrector,
    "ShiftTracker": lambda learner: rt.ShiftTracker(rt.RBF(2.0), learner, 0.6, loss=CE),
    "CorrectionTracker": lambda learner: rt.CorrectionTracker(rt.RBF(2.0), learner, 0.6, loss=CE),
}


def results(thing, X, Y):
    if isinstance(thing, rt.TargetCorrector):
        return np.concatenate([thing.correct(X, Y), thing.flush()])
    thing.update(X, Y)
    if isinstance(thing, rt.ShiftTracker):
        return thing.effective_targets
    return thing.corrected_targets


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("before", [0, 7, 60])
@pytest.mark.parametrize("outputs", [1, 3])
def test_saved_and_loaded_it_goes_on_to_the_last_bit(name, before, outputs, tmp_path):
    stream = make_class_stream(before + 9, outputs, seed=1)
    one = MAKERS[name](rt.SGD(lr=0.05, batch_size=2, momentum=0.9))
    X = stream.features[:, :3]
    take = one.correct if isinstance(one, rt.TargetCorrector) else one.update
    take(X[:before], stream.Y[:before])
    one.save(tmp_path / "state")
    other = type(one).load(tmp_path / "state")
    assert other.loss == CE
    np.testing.assert_array_equal(
        results(other, X[before:], stream.Y[before:]), results(one, X[before:], stream.Y[before:])
    )


@pytest.mark.parametrize("name", MAKERS)
def test_a_portion_that_is_refused_leaves_no_trace(name, tmp_path):
    stream = make_class_stream(12, 3, seed=2)
    thing = MAKERS[name](rt.SGD(lr=0.1, batch_size=2))
    take = thing.correct if isinstance(thing, rt.TargetCorrector) else thing.update
    take(stream.features[:7], stream.Y[:7])
    thing.save(tmp_path / "before")
    with pytest.raises(InvalidInputError, match="Y sums to 3 in row 8"):
        take(stream.features[7:9], np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))
    thing.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_large_targets_are_said_once():
    stream = make_class_stream(30, 2, seed=3, certain=True)
    corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.01), 0.1, 5, loss=CE)
    with pytest.warns(LargeTargetsWarning, match="the targets reach"):
        corrector.correct(stream.features[:15], stream.Y[:15])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corrector.correct(stream.features[15:], stream.Y[15:])


def test_a_bounded_memory_has_no_cross_entropy():
    with pytest.raises(InvalidInputError, match="memory=.* with loss='cross-entropy': .* sums"):
        rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), 1.0, 2, memory=9, loss=CE)
