"""Losses of rows, one-hot rows and nearest distributions, against cases solved by hand."""

import numpy as np
import pytest
import torch

from retarget.engine.losses import nearest_distributions, row_losses
from retarget.errors import InvalidInputError

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


def test_the_loss_of_each_row():
    f, y = torch.tensor([[0.5, 2.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.2, 0.8]])
    assert row_losses(f, y).tolist() == pytest.approx([(0.25 + 4) / 2, (1.44 + 0.64) / 2])
    p = f.exp() / f.exp().sum(1, keepdim=True)
    torch.testing.assert_close(row_losses(f, y, "cross-entropy"), -(y * p.log()).sum(1))
    one, p = f[:, :1], f[:, :1].sigmoid()
    expected = -(y[:, :1] * p.log() + (1 - y[:, :1]) * (1 - p).log())[:, 0]
    torch.testing.assert_close(row_losses(one, y[:, :1], "cross-entropy"), expected)
    assert row_losses(f[None], y[None]).shape == (1, 2)
    with pytest.raises(InvalidInputError, match=r"\(2, 1\), but .* \(2, 2\)"):
        row_losses(f, y[:, :1])
