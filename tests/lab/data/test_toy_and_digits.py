import numpy as np

from retarget.lab.data.digits import digits_stream
from retarget.lab.data.toy import GRID, toy_curve


def test_toy_uses_every_grid_point_once():
    one, same, other = toy_curve(5), toy_curve(5), toy_curve(6)
    assert len(one.x_train) == len(one.y_train) == 40
    np.testing.assert_array_equal(np.sort(np.append(one.x_train, one.x_test)), GRID)
    np.testing.assert_array_equal(one.y_train, same.y_train)
    assert np.abs(one.y_train - other.y_train).max() > 0.1


def test_variance_and_noise_of_toy_curves():
    curves = [toy_curve(seed) for seed in range(300)]
    variance = np.mean([c.y_test**2 for c in curves])
    assert abs(variance - (1 + 0.3**2)) < 0.15  # 300 draws of a smooth curve: SEM about 0.05
    # neighbors on the grid differ by noise alone: variance 2 x 0.3^2, and 5e-4 of slope
    ordered = [
        np.append(c.y_train, c.y_test)[np.argsort(np.append(c.x_train, c.x_test))] for c in curves
    ]
    assert abs(np.var(np.diff(ordered)) - 2 * 0.3**2) < 0.01


def test_digits_come_class_by_class():
    stream, other = digits_stream(seed=1), digits_stream(seed=2)
    assert (np.diff(stream.labels_train) >= 0).all()
    assert (len(stream.labels_train), len(stream.labels_test)) == (1348, 449)
    assert not np.array_equal(stream.x_test, other.x_test)
    assert 0 <= stream.x_train.min() < stream.x_train.max() == 1.0
