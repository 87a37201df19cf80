"""K in tiles: every function equals the one in memory, refuses what that refuses, says where."""

import pickle
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.gaussian_process.kernels import Matern

import retarget as rt
from retarget import distributed as rd
from retarget.distributed.tiles import TiledFactor, as_tiled_problem, go_through_columns
from retarget.errors import (
    DivergedError,
    DivergenceWarning,
    InvalidInputError,
    InvalidTypeError,
    NotPositiveDefiniteError,
    PrecisionWarning,
    StreamTooLargeError,
    TrainingDivergedError,
    UnreachableTargetsError,
)
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

LEARNER = rt.SGD(lr=0.1, batch_size=2, reduction="sum")
MOMENTUM = rt.SGD(lr=0.2, batch_size=7, momentum=0.5, reduction="mean")
Y = np.arange(12.0)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def K():
    return make_stream(n=12, outputs=1, seed=0).K


def tiled(K, chunk=5):
    return da.from_array(K, chunks=(chunk, chunk))


def calls(module, K, Y, learner=LEARNER, gamma=0.7, **more):
    """Every function by its name, to be called."""
    blocks = gamma, 2 * learner.batch_size
    return {
        "offline_coefficients": partial(module.offline_coefficients, K, Y, gamma, **more),
        "online_coefficients": partial(module.online_coefficients, K, Y, learner, **more),
        "effective_targets": partial(module.effective_targets, K, Y, learner, gamma, **more),
        "corrected_targets": partial(module.corrected_targets, K, Y, learner, gamma, **more),
        "iterative_targets": partial(module.iterative_targets, K, Y, learner, *blocks, **more),
    }


# --- the Gram matrix --------------------------------------------------------------------------


@pytest.mark.parametrize("tile_size", [1, 5, 100])
def test_the_gram_matrix_is_the_kernels(tile_size):
    X = np.random.default_rng(0).normal(size=(23, 4))
    for kernel in (rt.RBF(width=2.0), Matern(length_scale=1.5)):
        K = rd.gram(kernel, X, tile_size).compute()
        np.testing.assert_allclose(K, kernel(X), rtol=1e-12)
        np.testing.assert_array_equal(K, K.T)
    K = rd.gram(rt.Linear(), da.from_array(X, chunks=((9, 9, 5), (3, 1))), 6)
    assert K.chunks == ((6, 6, 6, 5), (6, 6, 6, 5))
    np.testing.assert_allclose(K.compute(), X @ X.T, atol=1e-14)
    K = rd.gram(rt.RBF(width=2.0), X.astype(np.float32).reshape(23, 2, 2), tile_size)
    assert K.dtype == K.compute().dtype == np.float32


class Counting(rt.kernels.Kernel):
    """Notes which rows (their one feature is their number) meet which."""

    def __init__(self):
        self.met = []

    def _gram(self, A, B):
        self.met.append((int(A[0, 0]), int(B[0, 0])))
        return (A @ B.mT / 99).exp()

    def _diag(self, A):
        return (A[:, 0].square() / 99).exp()


def test_only_needed_lower_tiles_are_computed():
    kernel = Counting()
    K = rd.gram(kernel, np.arange(6.0)[:, None], 2)
    del kernel.met[:]  # one row, for the precision
    K[:2, 4:].compute()
    assert kernel.met == [(4, 0)]
    for use in (K.compute, lambda: rd.online_coefficients(K, np.arange(6.0), LEARNER)):
        del kernel.met[:]
        use()
        assert sorted(kernel.met) == [(0, 0), (2, 0), (2, 2), (4, 0), (4, 2), (4, 4)]


def test_gram_refuses_what_has_no_tiles():
    for samples, tile_size, message in (
        (Y, 2.5, "tile_size is 2.5; expected a whole number"),
        (Y, 0, "tile_size is 0; expected 1 or more"),
        (Y[:0], 5, r"X has shape \(0,\); expected samples"),
    ):
        error = InvalidTypeError if tile_size == 2.5 else InvalidInputError
        with pytest.raises(error, match=message):
            rd.gram(rt.RBF(1.0), samples, tile_size)


# --- the same numbers -------------------------------------------------------------------------


@st.composite
def unequal_tiles(draw):
    """A stream, and its kernel in chunks of unequal sizes."""
    stream = draw(streams)
    n, sizes = len(stream), []
    while sum(sizes) < n:
        sizes.append(min(draw(st.integers(3, 12)), n - sum(sizes)))
    return stream, da.from_array(stream.K, chunks=(tuple(sizes), tuple(sizes)))


@pytest.mark.parametrize("name", calls(rt, None, None))
@fewer_examples
@given(problem=unequal_tiles(), gamma=gammas, panel=panel_sizes, data=st.data())
def test_every_function_equals_the_one_in_memory(name, problem, gamma, panel, data):
    stream, K = problem
    learner, initial = data.draw(learners(len(stream))), None
    if learner.weight_decay == 0 and data.draw(st.booleans()):
        initial = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=stream.Y.shape)
    arguments = {"offline_coefficients": (gamma,), "online_coefficients": (learner,)}
    arguments["iterative_targets"] = (
        *(learner, gamma, data.draw(st.integers(1, 5)) * learner.batch_size, data.draw(ridges)),
        data.draw(st.sampled_from(["both", "online", "offline"])),
        data.draw(st.sampled_from(["corrected", "plain"])),
    )
    given = stream.Y, *arguments.get(name, (learner, gamma))
    with panels_of(panel):
        got = getattr(rd, name)(K, *given, initial=initial)
    expected = getattr(rt, name)(stream.K, *given, initial=initial)
    assert_same(got, expected, 1e-10 * max(1.0, np.abs(expected).max()))


def test_threads_and_a_kernel_computed_in_tiles():
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(51, 2, 3)), rng.normal(size=(51, 2))
    kernel = rt.RBF(width=1.7)
    full, targets = kernel(X), Y.copy()
    with dask.config.set(scheduler="threads"):
        K = rd.gram(kernel, X, tile_size=20).persist()
        got = calls(rd, K, Y, MOMENTUM)
        for name, expected in calls(rt, full, Y, MOMENTUM).items():
            assert_same(got[name](), expected())
        lazy = rd.online_coefficients(K, da.from_array(Y, chunks=(11, 1)), MOMENTUM)
        assert_same(lazy, rt.online_coefficients(full, Y, MOMENTUM))
        np.testing.assert_allclose(K.compute(), full, rtol=1e-12)
    np.testing.assert_array_equal(Y, targets)


def test_precision_and_shape_are_those_of_the_inputs():
    stream = make_stream(n=20, outputs=1, seed=4)
    for of_K, of_Y in (("float32", "float32"), ("float32", "float64"), ("float16", "float16")):
        K, y = stream.K.astype(of_K), stream.Y[:, 0].astype(of_Y)
        got = calls(rd, tiled(K, 8), y)
        for name, function in calls(rt, K, y).items():
            result, expected = got[name](), function()
            assert result.dtype == expected.dtype
            assert_same(result, expected, 20 * np.finfo(expected.dtype).eps)


def test_the_condition_number_is_a_lower_bound():
    stream = make_stream(n=31, outputs=2, seed=9)
    for chunk in (4, 100):
        problem = as_tiled_problem(tiled(stream.K, chunk), stream.Y, None)
        factor = TiledFactor(problem, 0.7)
        go_through_columns(problem, factor)
        assert 1 < factor.condition <= np.linalg.cond(stream.K + 0.7 * np.eye(31)) * (1 + 1e-9)


# --- what is refused --------------------------------------------------------------------------


def with_change(K, by, *places):
    K[tuple(zip(*places, strict=True))] += by
    return tiled(K), Y


REFUSED = {
    "K is a ndarray; expected a Dask array": lambda K: (K, Y),
    "K has dtype int64; expected": lambda K: (tiled(K.astype(int)), Y),
    r"K has shape \(12, 11\); expected": lambda K: (tiled(K[:, :11]), Y),
    r"K has shape \(nan, 12\)": lambda K: (tiled(K)[da.from_array(Y >= 0, chunks=5)], Y),
    "K is empty": lambda K: (da.zeros((0, 0)), Y[:0]),
    r"rows in chunks of 3, 3, 3, ... and columns in chunks of 6, 6; .*K.rechunk": lambda K: (
        (da.from_array(K, chunks=((3, 3, 3, 3), (6, 6))), Y)
    ),
    "Y has 11 rows, but K is 12 x 12": lambda K: (tiled(K), Y[:11]),
    "inf in row 3": lambda K: (tiled(K), np.where(Y == 3, np.inf, Y)),
    "K holds nan in row 7; expected finite": lambda K: with_change(K, np.nan, (7, 2), (2, 7)),
    # in a tile on the diagonal, and in those below it that are compared
    r"K is not symmetric.*\(9, 5\).* differ by 0.01": lambda K: with_change(K, 0.01, (9, 5)),
    r"K is not symmetric.*\(6, 1\).* expected a Gram": lambda K: with_change(K, 0.01, (6, 1)),
    r"K is not symmetric.*\(10, 6\)": lambda K: with_change(K, 0.01, (10, 6)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(K, message):
    wrong_type = "ndarray" in message or "dtype" in message
    error = InvalidTypeError if wrong_type else InvalidInputError
    for function in calls(rd, *REFUSED[message](K)).values():
        with pytest.raises(error, match=message):
            function()


def test_rounding_is_no_asymmetry(K):
    rd.online_coefficients(*with_change(K, 1e-15, (9, 5), (10, 0)), LEARNER)


def test_starts_schedules_and_options_that_do_not_fit(K):
    every = list(calls(rd, K, Y))
    fading, short = (
        rt.SGD(lr=0.1, weight_decay=0.1),
        rt.SGD(lr=[0.1, 0.2], batch_size=4, reduction="sum"),
    )
    shape = r"initial has shape \(12, 2\), but Y has shape \(12,\)"
    for message, names, arguments, initial in (
        (shape, every, (), np.zeros((12, 2))),
        ("initial was given with weight_decay > 0", every[2:], (fading,), Y),
        ("schedule has 2 rates", every[1:], (short,), None),
        ("gamma is -1", [every[0], *every[2:]], (LEARNER, -1), None),
    ):
        for name in names:
            with pytest.raises(InvalidInputError, match=message):
                calls(rd, tiled(K), Y, *arguments, initial=initial)[name]()
    with pytest.raises(InvalidInputError, match="block_size is 3"):
        rd.iterative_targets(tiled(K), Y, LEARNER, 1.0, 3)


# --- numbers that fail say where --------------------------------------------------------------


def test_the_row_that_is_not_positive_definite(K):
    K[8, 8] = -3.0  # the first 8 rows have a factor
    with pytest.raises(NotPositiveDefiniteError, match="from row 8 on.*gamma = 0.5;") as caught:
        rd.offline_coefficients(tiled(K), Y, 0.5)
    enough = 0.5 + 1.0001 * caught.value.jitter
    assert np.linalg.eigvalsh(K + enough * np.eye(12))[0] > 0
    rd.offline_coefficients(tiled(K), Y, enough)


def test_a_block_that_is_not_positive_definite(K):
    K[8:10, 8:10] = 1.0
    K[8:10] = K[[8, 8]]
    K[:, 8:10] = K[:, [8, 8]]
    message = "kernel of the block of samples 8 to 9 is not positive definite"
    with pytest.raises(NotPositiveDefiniteError, match=message):
        rd.iterative_targets(tiled(K) - 1e-9 * da.eye(12, chunks=4), Y, LEARNER, 1.0, 2)
    # samples that are the same make it singular, no more: then there is a solution
    expected = rt.iterative_targets(K, Y, LEARNER, 1.0, 2)
    np.testing.assert_allclose(rd.iterative_targets(tiled(K), Y, LEARNER, 1.0, 2), expected)


def test_divergence_is_reported_as_in_memory():
    stream = make_stream(n=80, outputs=2, seed=3, scale=3.0)
    # the sample that limits the rate is not in the first mini-batch of its tile
    scale = np.where(np.arange(80) == 4, 2.0, 1.0)
    stream.K *= scale * scale[:, None]
    learner = rt.SGD(lr=1e30, batch_size=3, momentum=0.5, reduction="sum")
    with pytest.raises(DivergedError) as expected:
        rt.online_coefficients(stream.K, stream.Y, learner)
    assert expected.value.step > 2  # not in the first tile
    with pytest.raises(DivergedError) as caught:
        rd.online_coefficients(tiled(stream.K, 7), stream.Y, learner)
    assert str(caught.value) == str(expected.value)
    assert caught.value.step == expected.value.step
    assert caught.value.largest_stable_lr == pytest.approx(expected.value.largest_stable_lr)


def test_a_learner_that_blows_up_is_announced():
    stream = make_stream(n=80, outputs=1, seed=3)
    with pytest.warns(DivergenceWarning, match="lr = 12; below .* would be stable"):
        rd.online_coefficients(
            tiled(stream.K, 20), stream.Y, rt.SGD(lr=12.0, batch_size=2, reduction="sum")
        )


def test_targets_that_cannot_be_reached(K):
    with pytest.raises(UnreachableTargetsError, match="forgotten by the end"):
        rd.corrected_targets(tiled(K), Y, rt.SGD(lr=0.9, weight_decay=1.11111), 1.0)


def test_lost_digits_are_announced_as_in_memory():
    K = np.full((12, 12), 1e14) + np.diag(1.0 + np.arange(12))
    slow = rt.SGD(lr=1e-15, batch_size=2, reduction="sum")
    for module, gram in ((rt, K), (rd, tiled(K))):
        for name, arguments in {
            "offline_coefficients": (1e-3,),
            "iterative_targets": (slow, 1e-3, 4, 1e3),
        }.items():
            with pytest.warns(PrecisionWarning, match="gamma I . K has a condition number") as told:
                getattr(module, name)(gram, Y, *arguments)
            assert {w.filename for w in told} == {__file__}


def test_errors_come_back_whole_from_another_process():
    for error in (
        NotPositiveDefiniteError("m", deficit=1.0, jitter=2.0),
        DivergedError("m", step=3, largest_stable_lr=0.5),
        TrainingDivergedError("m", step=3, members=(1, 2)),
        StreamTooLargeError("m"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), "m", vars(error))
