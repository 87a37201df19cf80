"""Every function equals the in-memory one, whatever the tiles, the learner and the scheduler."""

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget import distributed as rd
from support.problems import (
    assert_same,
    fewer_examples,
    gammas,
    learners,
    make_stream,
    panel_sizes,
    panels_of,
    ridges,
    streams,
)

tile_rows = st.integers(3, 12)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@st.composite
def tiled(draw):
    """A stream, and its kernel in chunks of unequal sizes."""
    stream = draw(streams)
    n, sizes = len(stream), []
    while sum(sizes) < n:
        sizes.append(min(draw(tile_rows), n - sum(sizes)))
    return stream, da.from_array(stream.K, chunks=(tuple(sizes), tuple(sizes)))


@st.composite
def starts(draw, stream, learner):
    if learner.weight_decay > 0 or not draw(st.booleans()):
        return None
    return np.random.default_rng(draw(st.integers(0, 99))).normal(size=stream.Y.shape)


@fewer_examples
@given(problem=tiled(), gamma=gammas, panel=panel_sizes, data=st.data())
def test_offline(problem, gamma, panel, data):
    stream, K = problem
    initial = data.draw(starts(stream, rt.SGD(lr=1.0)))
    with panels_of(panel):
        got = rd.offline_coefficients(K, stream.Y, gamma, initial=initial)
    expected = rt.offline_coefficients(stream.K, stream.Y, gamma, initial=initial)
    assert_same(got, expected)


@fewer_examples
@given(problem=tiled(), gamma=gammas, panel=panel_sizes, data=st.data())
def test_online_and_effective(problem, gamma, panel, data):
    stream, K = problem
    learner = data.draw(learners(len(stream)))
    initial = data.draw(starts(stream, learner))
    with panels_of(panel):
        got = rd.online_coefficients(K, stream.Y, learner, initial=initial)
        effective = rd.effective_targets(K, stream.Y, learner, gamma, initial=initial)
    assert_same(got, rt.online_coefficients(stream.K, stream.Y, learner, initial=initial))
    expected = rt.effective_targets(stream.K, stream.Y, learner, gamma, initial=initial)
    assert_same(effective, expected)


@fewer_examples
@given(problem=tiled(), gamma=gammas, panel=panel_sizes, data=st.data())
def test_corrected(problem, gamma, panel, data):
    stream, K = problem
    learner = data.draw(learners(len(stream)))
    initial = data.draw(starts(stream, learner))
    with panels_of(panel):
        got = rd.corrected_targets(K, stream.Y, learner, gamma, initial=initial)
    expected = rt.corrected_targets(stream.K, stream.Y, learner, gamma, initial=initial)
    assert_same(got, expected)


@fewer_examples
@given(
    problem=tiled(),
    gamma=gammas,
    ridge=ridges,
    blocks=st.integers(1, 5),
    parts=st.sampled_from(["both", "online", "offline"]),
    first_block=st.sampled_from(["corrected", "plain"]),
    panel=panel_sizes,
    data=st.data(),
)
def test_iterative(problem, gamma, ridge, blocks, parts, first_block, panel, data):
    stream, K = problem
    learner = data.draw(learners(len(stream)))
    initial = data.draw(starts(stream, learner))
    arguments = (learner, gamma, blocks * learner.batch_size, ridge, parts, first_block)
    with panels_of(panel):
        got = rd.iterative_targets(K, stream.Y, *arguments, initial=initial)
    expected = rt.iterative_targets(stream.K, stream.Y, *arguments, initial=initial)
    assert_same(got, expected, 1e-10 * max(1.0, np.abs(expected).max()))


def every_function(module, K, Y, learner, gamma=0.7):
    return {
        "offline": module.offline_coefficients(K, Y, gamma),
        "online": module.online_coefficients(K, Y, learner),
        "effective": module.effective_targets(K, Y, learner, gamma),
        "corrected": module.corrected_targets(K, Y, learner, gamma),
        "iterative": module.iterative_targets(K, Y, learner, gamma, 2 * learner.batch_size),
    }


LEARNER = rt.SGD(lr=0.2, batch_size=7, momentum=0.5, reduction="mean")


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_plain_schedulers_and_a_kernel_computed_in_tiles(scheduler):
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(101, 2, 3)), rng.normal(size=(101, 2))
    kernel = rt.RBF(width=1.7)
    with dask.config.set(scheduler=scheduler):
        K = rd.gram(kernel, X, tile_size=16)
        got = every_function(rd, K, da.from_array(Y, chunks=(11, 1)), LEARNER)
    for name, expected in every_function(rt, kernel(X), Y, LEARNER).items():
        assert_same(got[name], expected)


@pytest.mark.parametrize(
    ("of_K", "of_Y"), [("float32", "float32"), ("float32", "float64"), ("float16", "float16")]
)
def test_precision_and_shape_are_those_of_the_inputs(of_K, of_Y):
    stream = make_stream(n=30, outputs=1, seed=4)
    K, y = stream.K.astype(of_K), stream.Y[:, 0].astype(of_Y)
    learner = rt.SGD(lr=0.1, batch_size=4)
    got = every_function(rd, da.from_array(K, chunks=(8, 8)), y, learner)
    for name, expected in every_function(rt, K, y, learner).items():
        assert got[name].dtype == expected.dtype
        assert_same(got[name], expected, 20 * np.finfo(got[name].dtype).eps)


def test_inputs_are_left_as_they_are():
    stream = make_stream(n=25, outputs=2, seed=5)
    K, Y = stream.K.copy(), stream.Y.copy()
    tiles = da.from_array(stream.K, chunks=(7, 7)).persist()
    every_function(rd, tiles, stream.Y, rt.SGD(lr=0.1, momentum=0.4))
    np.testing.assert_array_equal(stream.K, K)
    np.testing.assert_array_equal(stream.Y, Y)
    np.testing.assert_array_equal(tiles.compute(), K)
