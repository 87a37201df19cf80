import dask
import dask.array as da
import numpy as np
import pytest
import torch

from retarget.distributed.tiles import TiledFactor, as_tiled_problem, follow_columns
from retarget.theory.cholesky import factorise
from support.problems import make_stream


@pytest.mark.parametrize("chunk", [4, 7, 100])
def test_condition_and_solves_are_those_of_the_factor_in_memory(chunk):
    stream = make_stream(n=31, outputs=2, seed=9)
    expected = factorise(torch.from_numpy(stream.K), 0.7)
    K = da.from_array(stream.K, chunks=(chunk, chunk))
    problem = as_tiled_problem(K, stream.Y, None)
    factor = TiledFactor(problem, 0.7)
    with dask.config.set(scheduler="synchronous"):
        follow_columns(problem, factor)
        solution = factor.solve_transposed()
    true = np.linalg.cond(stream.K + 0.7 * np.eye(31))
    assert 1 < factor.condition <= true * (1 + 1e-9)  # a lower bound
    Y = torch.from_numpy(stream.Y)
    np.testing.assert_allclose(factor.beta, expected.solve_lower(Y), atol=1e-12)
    np.testing.assert_allclose(solution, expected.solve(Y), atol=1e-12)
