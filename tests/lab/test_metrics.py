import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retarget.errors import InvalidInputError
from retarget.lab import History, average_accuracy, backward_transfer, forgetting

R = np.array([[0.9, 0.3, 0.1], [0.95, 0.8, 0.2], [0.6, 0.7, 1.0]])
matrices = st.integers(2, 5).flatmap(lambda T: arrays(float, (T, T), elements=st.floats(0, 1)))


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (average_accuracy, (0.6 + 0.7 + 1.0) / 3),
        (forgetting, ((0.95 - 0.6) + (0.8 - 0.7)) / 2),
        (backward_transfer, ((0.6 - 0.9) + (0.7 - 0.8)) / 2),
    ],
)
def test_a_case_by_hand_and_members_are_kept(measure, expected):
    assert measure(R) == pytest.approx(expected)
    stacked = np.stack([R, R**2, np.eye(3)])
    np.testing.assert_allclose(measure(stacked), [measure(one) for one in stacked])
    assert measure(stacked[None]).shape == (1, 3)


@given(R=matrices)
def test_forgetting_is_at_least_what_was_transferred_away(R):
    assert forgetting(R) >= -backward_transfer(R) - 1e-12
    assert 0 <= average_accuracy(R) <= 1
    better = np.maximum.accumulate(R, axis=0)
    # the best time before the end is the last but one: what came after it was gained
    np.testing.assert_allclose(forgetting(better), (better[-2] - better[-1])[:-1].mean())
    assert backward_transfer(better) >= -1e-12


def test_what_is_no_matrix_of_several_tasks():
    for shape in ((3,), (2, 3), (0, 0)):
        with pytest.raises(InvalidInputError, match="R has shape .*; expected .*tasks, tasks"):
            average_accuracy(np.zeros(shape))
    assert average_accuracy([[0.5]]) == 0.5
    for measure in (forgetting, backward_transfer):
        with pytest.raises(InvalidInputError, match="with 2 or more tasks"):
            measure([[0.5]])


def test_the_matrix_of_a_history():
    task = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3])
    by_task = np.arange(9 * 2 * 3).reshape(9, 2, 3) / 100
    accuracy = by_task.mean(2)
    history = History(np.arange(9) * 10, task, accuracy, by_task, accuracy)
    np.testing.assert_array_equal(history.matrix, by_task[[3, 5, 8]].swapaxes(0, 1))
    np.testing.assert_array_equal(history.final_accuracy, accuracy[-1])
    for measure in (average_accuracy, forgetting, backward_transfer):
        np.testing.assert_array_equal(getattr(history, measure.__name__), measure(history.matrix))
