"""Sums of squares by halves, and triangular solves at several rates, against whole products."""

import pytest
import torch

from retarget.engine.triangular import add_square, solve_lower_at_rates, symmetric
from support.problems import assert_same


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("columns", [1, 128, 301])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_squares_by_halves(columns, sign):
    A = random(7, columns)
    M = symmetric(random(columns, columns, seed=1))
    expected = M + sign * A.mT @ A
    add_square(M, A, sign)
    assert_same(symmetric(M), expected)
    assert (symmetric(M) == symmetric(M).mT).all()


@pytest.mark.parametrize("rows", [1, 64, 150])
def test_solves_at_several_rates(rows):
    C = random(rows, rows).tril(-1) / rows
    rates = torch.tensor([0.3, 2.0, 7.0], dtype=torch.float64)
    rhs = random(rows, 3, 2, seed=1)
    solved = solve_lower_at_rates(C, rates, rhs)
    for place, rate in enumerate(rates):
        assert_same((torch.eye(rows) + rate * C) @ solved[:, place], rhs[:, place])
