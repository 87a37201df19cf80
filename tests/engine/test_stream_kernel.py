"""Both kernels of a stream against literal formulas and refits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.linalg import solve

import retarget as rt
from retarget.engine import stream_kernel
from retarget.engine.response import final_response
from support.diagnosis_streams import both_kernels
from support.problems import assert_same, gammas, make_stream, panel_sizes, panels_of, problems


@settings(max_examples=30)
@given(problem=problems(), gamma=gammas, panel=panel_sizes)
def test_density_blocks_and_leave_one_out(problem, gamma, panel):
    stream, learner = problem
    n, b, grid = len(stream), learner.batch_size, np.array([gamma, 3 * gamma])
    A = solve(gamma * np.eye(n) + stream.K, stream.Y)
    density = [(row.sum() - row[i]) / max(1, n - 1) for i, row in enumerate(stream.K)]
    left_out = np.zeros((2, stream.Y.shape[1]))
    for place, ridge in enumerate(grid):
        for i in range(n):
            rest = np.arange(n) != i
            refit = solve(ridge * np.eye(n - 1) + stream.K[rest][:, rest], stream.Y[rest])
            left_out[place] += (stream.Y[i] - stream.K[i, rest] @ refit) ** 2 / n
    with panels_of(panel):
        for kernel in both_kernels(stream):
            offline = kernel.offline(gamma)
            assert_same(offline.dual, A, 1e-8)
            queries = torch.from_numpy(stream.queries)
            assert_same(kernel.predict(queries, offline.coefficients), stream.K_query @ A, 1e-8)
            assert_same(kernel.density(), density)
            assert kernel.mean_diagonal() == pytest.approx(stream.K.diagonal().mean())
            blocks = [block.numpy() for part in kernel.blocks(b) for block in part]
            assert len(blocks) == learner.steps(n)
            for place, block in enumerate(blocks):
                rows = slice(place * b, (place + 1) * b)
                assert_same(block, stream.K[rows, rows])
            errors, rows = kernel.leave_one_out(torch.from_numpy(grid), seed=0)
            assert rows == n
            assert_same(errors, left_out, 1e-8)


@settings(max_examples=30)
@given(problem=problems(), gamma=gammas, panel=panel_sizes, seed=st.integers(0, 99))
def test_offline_learners_of_the_rows_before_several_moments(problem, gamma, panel, seed):
    """All of them from one factor; the same kernel serves other rows, and some of its own."""
    stream, _ = problem
    n, rng = len(stream), np.random.default_rng(seed)
    counts = [*rng.integers(1, n + 1, size=3), n, 1, n]  # in any order, and twice
    expected = [
        stream.K_query[:, :count]
        @ solve(gamma * np.eye(count) + stream.K[:count, :count], stream.Y[:count])
        for count in counts
    ]
    rows = np.sort(rng.permutation(n)[: rng.integers(1, n + 1)])
    with panels_of(panel):
        for kernel in both_kernels(stream):
            queries = torch.from_numpy(stream.queries)
            Q = kernel.query(queries)
            for made, right in zip(
                kernel.offline_predictions(Q, gamma, counts), expected, strict=True
            ):
                assert_same(made, right, 1e-8)
            # what a factor was kept for is not changed by that
            assert_same(
                kernel.offline(gamma).dual, rt.offline_coefficients(stream.K, stream.Y, gamma), 1e-8
            )
            part = kernel.part(torch.from_numpy(rows))
            other = kernel.of(part.X, part.Y)
            A = rt.offline_coefficients(stream.K[rows][:, rows], stream.Y[rows], gamma)
            for some in (part, other):
                (made,) = some.offline_predictions(some.query(queries), gamma, [len(rows)])
                assert_same(made, stream.K_query[:, rows] @ A, 1e-8)


def test_leave_one_out_of_a_long_stream(monkeypatch):
    monkeypatch.setattr(stream_kernel, "DENSE_LEAVE_ONE_OUT_ROWS", 7)
    monkeypatch.setattr(stream_kernel, "FEATURE_LEAVE_ONE_OUT_ROWS", 5)
    stream = make_stream(13, 2, seed=4)
    dense, features = both_kernels(stream)
    grid = torch.tensor([0.3, 2.0], dtype=torch.float64)
    chosen = torch.randperm(13, generator=torch.Generator().manual_seed(8))[:7].sort().values
    errors, rows = dense.leave_one_out(grid, seed=8)
    small = make_stream(13, 2, seed=4)
    small.features, small.Y = small.features[chosen], small.Y[chosen]
    assert rows == 7
    assert_same(errors, both_kernels(small)[0].leave_one_out(grid, seed=8)[0])
    # through features: the learner of all other rows, asked about rows 0, 3, 6, 9 and 12
    errors, rows = features.leave_one_out(grid, seed=8)
    A = np.linalg.inv(0.3 * np.eye(13) + stream.K)
    left_out = (A @ stream.Y) / A.diagonal()[:, None]
    assert rows == 5
    assert_same(errors[0], np.square(left_out[[0, 3, 6, 9, 12]]).mean(0))


@given(
    problem=problems(), gamma=gammas, panel=panel_sizes, count=st.integers(1, 4),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_own_and_later_parts_make_the_shift(problem, gamma, panel, count, seed):
    stream, learner = problem
    n, c, b = len(stream), stream.Y.shape[1], learner.batch_size
    member = np.random.default_rng(seed).integers(count, size=n)
    E = rt.prequential_errors(stream.K, stream.Y, learner)
    C = final_response(learner, n)[:, None] * E
    shift = rt.effective_targets(stream.K, stream.Y, learner, gamma) - stream.Y
    moved, rest = np.zeros((n, count, c)), np.zeros((n, c))
    for i in range(n):
        for j in range(n):
            if j // b > i // b:
                moved[i, member[j]] += stream.K[i, j] * C[j]
            else:
                rest[i] += stream.K[i, j] * C[j]
        rest[i] += gamma * C[i] - stream.Y[i]
    assert_same(rest + moved.sum(1), shift)  # the theorem, on the loops themselves
    with panels_of(panel):
        for kernel in both_kernels(stream):
            got = torch.full((n, count, c), torch.nan, dtype=torch.float64)
            for rows, part in kernel.later(torch.from_numpy(C), torch.from_numpy(member), count, b):
                got[rows] = part
            assert_same(got, moved)


def test_each_window_is_told_and_holds_whole_blocks():
    stream, seen = make_stream(11, 1, seed=0), []
    X, Y = torch.from_numpy(stream.features), torch.from_numpy(stream.Y)
    kernel = stream_kernel.DenseKernel(rt.Linear(), X, Y, seen.append)
    with panels_of(5):
        parts = list(kernel.windows(2, order=torch.arange(10, -1, -1)))
    assert [(part.rows.start, part.rows.stop, part.block_size) for part in parts] == [
        *((0, 6, 2), (6, 10, 2), (10, 11, 1))
    ]
    assert parts[1].samples.tolist() == [4, 3, 2, 1]
    assert seen == [6, 4, 1]


def test_windows_suit_those_who_follow():
    X = torch.randn(2000, 600, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = stream_kernel.FeatureKernel(lambda samples: samples, X, X[:, :1])
    online = [len(window.targets) for window in kernel.windows(1)]
    assert 128 <= online[0] < 256
    offline = [len(window.targets) for window in kernel.windows(50, least=kernel.offline_rows)]
    assert 300 <= offline[0] < 600
