import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retarget.continual import History, average_accuracy, backward_transfer, forgetting
from retarget.errors import InvalidInputError

R = np.array([[0.9, 0.3, 0.1], [0.95, 0.8, 0.2], [0.6, 0.7, 1.0]])
matrices = st.integers(2, 5).flatmap(lambda T: arrays(float, (T, T), elements=st.floats(0, 1)))


def test_a_case_by_hand():
    assert average_accuracy(R) == pytest.approx((0.6 + 0.7 + 1.0) / 3)
    assert forgetting(R) == pytest.approx(((0.95 - 0.6) + (0.8 - 0.7)) / 2)
    assert backward_transfer(R) == pytest.approx(((0.6 - 0.9) + (0.7 - 0.8)) / 2)


@given(R=matrices)
def test_forgetting_is_at_least_what_was_transferred_away(R):
    assert forgetting(R) >= -backward_transfer(R) - 1e-12
    assert 0 <= average_accuracy(R) <= 1


@given(R=matrices)
def test_what_never_gets_worse_is_not_forgotten(R):
    better = np.maximum.accumulate(R, axis=0)
    # the best time before the end is the last but one: what came after it was gained
    np.testing.assert_allclose(forgetting(better), (better[-2] - better[-1])[:-1].mean())
    assert backward_transfer(better) >= -1e-12
    np.testing.assert_allclose(forgetting(better[::-1]), -(better[0] - better[-1])[:-1].mean())


@pytest.mark.parametrize("measure", [average_accuracy, forgetting, backward_transfer])
def test_members_are_kept(measure):
    stacked = np.stack([R, R**2, np.eye(3)])
    np.testing.assert_allclose(measure(stacked), [measure(one) for one in stacked])
    assert measure(stacked[None]).shape == (1, 3)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 0)])
def test_what_is_no_matrix_of_tasks(shape):
    with pytest.raises(InvalidInputError, match="R has shape .*; expected .*tasks, tasks"):
        average_accuracy(np.zeros(shape))


def test_one_task_cannot_be_forgotten():
    with pytest.raises(InvalidInputError, match="R is of one task; forgetting needs at least"):
        forgetting([[0.5]])
    with pytest.raises(InvalidInputError, match="one task; backward transfer needs at least two"):
        backward_transfer([[0.5]])
    assert average_accuracy([[0.5]]) == 0.5


def test_the_matrix_of_a_history_is_of_the_tasks_ends():
    task = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3])
    by_task = np.arange(9 * 2 * 3).reshape(9, 2, 3) / 100
    accuracy = by_task.mean(2)
    history = History(np.arange(9) * 10, task, accuracy, by_task, accuracy)
    assert history.matrix.shape == (2, 3, 3)
    for member in range(2):
        np.testing.assert_array_equal(history.matrix[member], by_task[[3, 5, 8], member])
    np.testing.assert_array_equal(history.final_accuracy, accuracy[-1])
    np.testing.assert_array_equal(history.average_accuracy, average_accuracy(history.matrix))
    np.testing.assert_array_equal(history.forgetting, forgetting(history.matrix))
    np.testing.assert_array_equal(history.backward_transfer, backward_transfer(history.matrix))
