"""Distributions nearest to outputs, against cases solved by hand and against random others."""

import numpy as np
import pytest

from retarget.theory.losses import nearest_distributions

BY_HAND = [
    ([1.4, -0.2, -0.2], [1.0, 0.0, 0.0]),
    ([-1.0, -1.0], [0.5, 0.5]),
    ([0.9, 0.5, -0.3], [0.7, 0.3, 0.0]),
    ([0.2, 0.5, 0.3], [0.2, 0.5, 0.3]),  # a distribution already
    ([5.0], [1.0]),
]


@pytest.mark.parametrize(("outputs", "expected"), BY_HAND)
def test_by_hand(outputs, expected):
    found = nearest_distributions(np.array([outputs, outputs[::-1]]))
    np.testing.assert_allclose(found, [expected, expected[::-1]], rtol=0, atol=1e-12)


def test_no_other_distribution_is_nearer():
    random = np.random.default_rng(0)
    rows = random.normal(size=(50, 5))
    found = nearest_distributions(rows)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(1), 1, rtol=0, atol=1e-15)
    others = random.dirichlet(np.ones(5) * 0.3, size=200)
    for row, nearest in zip(rows, found, strict=True):
        assert ((nearest - row) ** 2).sum() <= ((others - row) ** 2).sum(1).min()
    assert np.array_equal(found.argmax(1), rows.argmax(1))
