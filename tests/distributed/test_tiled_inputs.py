"""What has no meaning is refused with the reason, and numbers that fail say where."""

import pickle

import dask
import dask.array as da
import numpy as np
import pytest

import retarget as rt
from retarget import distributed as rd
from retarget.errors import (
    ClusterError,
    DivergedError,
    DivergenceWarning,
    InvalidInputError,
    InvalidTypeError,
    MissingDataError,
    NotPositiveDefiniteError,
    PrecisionWarning,
    TrainingDivergedError,
    UnreachableTargetsError,
)
from support.problems import make_stream

LEARNER = rt.SGD(lr=0.1, batch_size=2)
Y = np.arange(12.0)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def tiled(K, chunk=5):
    return da.from_array(K, chunks=(chunk, chunk))


@pytest.fixture
def K():
    return make_stream(n=12, outputs=1, seed=0).K


def functions(K, Y, **more):
    yield lambda: rd.offline_coefficients(K, Y, 1.0, **more)
    yield lambda: rd.online_coefficients(K, Y, LEARNER, **more)
    yield lambda: rd.effective_targets(K, Y, LEARNER, 1.0, **more)
    yield lambda: rd.corrected_targets(K, Y, LEARNER, 1.0, **more)
    yield lambda: rd.iterative_targets(K, Y, LEARNER, 1.0, 4, **more)


def refuses(kind, message, K, Y, **more):
    for function in functions(K, Y, **more):
        with pytest.raises(kind, match=message):
            function()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda K: (K, Y), InvalidTypeError, "K is a ndarray; expected a Dask array"),
        (lambda K: (tiled(K.astype(int)), Y), InvalidTypeError, "K has dtype int64; expected"),
        (lambda K: (tiled(K[:, :11]), Y), InvalidInputError, r"K has shape \(12, 11\); expected"),
        (
            lambda K: (tiled(K)[da.from_array(Y >= 0, chunks=5)], Y),
            InvalidInputError,
            r"K has shape \(nan, 12\)",
        ),
        (lambda K: (da.zeros((0, 0)), Y[:0]), InvalidInputError, "K is empty"),
        (
            lambda K: (da.from_array(K, chunks=((3, 3, 3, 3), (6, 6))), Y),
            InvalidInputError,
            r"rows in chunks of 3, 3, 3, ... and columns in chunks of 6, 6; .*K.rechunk",
        ),
        (lambda K: (tiled(K), Y[:11]), InvalidInputError, "Y has 11 rows, but K is 12 x 12"),
        (lambda K: (tiled(K), np.where(Y == 3, np.inf, Y)), InvalidInputError, "inf in row 3"),
    ],
)
def test_refused(K, change, kind, message):
    refuses(kind, message, *change(K))


def test_a_start_of_another_shape(K):
    message = r"initial has shape \(12, 2\), but Y has shape \(12,\)"
    refuses(InvalidInputError, message, tiled(K), Y, initial=np.zeros((12, 2)))


@pytest.mark.parametrize(("row", "column", "found"), [(7, 2, 7), (11, 11, 11), (2, 7, 7)])
def test_k_that_is_not_finite(K, row, column, found):
    K[row, column] = K[column, row] = np.nan
    refuses(InvalidInputError, f"K holds nan in row {found}; expected finite", tiled(K), Y)


@pytest.mark.parametrize(("row", "column"), [(9, 5), (5, 9), (6, 1), (10, 6)])
def test_k_that_is_not_symmetric(K, row, column):
    K[row, column] += 0.01  # in a tile on the diagonal, and in those below it that are compared
    message = rf"K is not symmetric.*\({row}, {column}\).* differ by 0.01; expected a Gram"
    refuses(InvalidInputError, message, tiled(K), Y)


def test_rounding_is_no_asymmetry(K):
    K[9, 5] += 1e-15
    K[10, 0] -= 1e-15
    for function in functions(tiled(K), Y):
        function()


def test_a_start_that_fades(K):
    fading = rt.SGD(lr=0.1, weight_decay=0.1)
    for function in (rd.effective_targets, rd.corrected_targets):
        with pytest.raises(InvalidInputError, match="initial was given with weight_decay > 0"):
            function(tiled(K), Y, fading, 1.0, initial=Y)
    with pytest.raises(InvalidInputError, match="initial was given with weight_decay > 0"):
        rd.iterative_targets(tiled(K), Y, fading, 1.0, 4, initial=Y)


def test_a_schedule_that_does_not_fit(K):
    short = rt.SGD(lr=[0.1, 0.2], batch_size=4)
    for function in (
        lambda: rd.online_coefficients(tiled(K), Y, short),
        lambda: rd.effective_targets(tiled(K), Y, short, 1.0),
        lambda: rd.corrected_targets(tiled(K), Y, short, 1.0),
        lambda: rd.iterative_targets(tiled(K), Y, short, 1.0, 4),
    ):
        with pytest.raises(InvalidInputError, match="schedule has 2 rates"):
            function()


def test_options_of_the_correction(K):
    with pytest.raises(InvalidInputError, match="block_size is 3; expected a positive multiple"):
        rd.iterative_targets(tiled(K), Y, LEARNER, 1.0, 3)
    with pytest.raises(InvalidInputError, match="gamma is -1"):
        rd.offline_coefficients(tiled(K), Y, -1)


def test_a_kernel_that_is_not_positive_definite_says_from_which_row(K):
    K[8, 8] = -3.0  # the first 8 rows have a factor
    with pytest.raises(NotPositiveDefiniteError, match="from row 8 on.*gamma = 0.5;") as caught:
        rd.offline_coefficients(tiled(K), Y, 0.5)
    mended = 0.5 + 1.0001 * caught.value.jitter
    assert np.linalg.eigvalsh(K + mended * np.eye(12))[0] > 0
    rd.offline_coefficients(tiled(K), Y, mended)


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


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_divergence_is_reported_as_in_memory(momentum):
    stream = make_stream(n=80, outputs=2, seed=3, scale=3.0)
    # the sample that limits the rate is not in the first mini-batch of its tile
    scale = np.where(np.arange(80) == 4, 2.0, 1.0)
    stream.K *= scale * scale[:, None]
    learner = rt.SGD(lr=1e30, batch_size=3, momentum=momentum)
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
    learner = rt.SGD(lr=12.0, batch_size=2)
    for function in (
        lambda: rd.online_coefficients(tiled(stream.K, 8), stream.Y, learner),
        lambda: rd.effective_targets(tiled(stream.K, 8), stream.Y, learner, 0.5),
    ):
        with pytest.warns(DivergenceWarning, match="lr = 12; below .* would be stable"):
            function()


def test_targets_that_cannot_be_reached(K):
    learner = rt.SGD(lr=0.9, weight_decay=1.11111)
    with pytest.raises(UnreachableTargetsError, match="forgotten by the end"):
        rd.corrected_targets(tiled(K), Y, learner, 1.0)


def test_lost_digits_are_announced_as_in_memory():
    K = np.full((12, 12), 1e14) + np.diag(1.0 + np.arange(12))
    for name, more in (("offline_coefficients", ()), ("iterative_targets", (4, 1e3))):
        slow = rt.SGD(lr=1e-15, batch_size=LEARNER.batch_size)
        arguments = (Y, 1e-3) if name == "offline_coefficients" else (Y, slow, 1e-3, *more)
        for module, gram in ((rt, K), (rd, tiled(K))):
            with pytest.warns(PrecisionWarning, match="gamma I . K has a condition number") as told:
                getattr(module, name)(gram, *arguments)
            assert {w.filename for w in told} == {__file__}


def test_gram_refuses_what_has_no_tiles():
    with pytest.raises(InvalidTypeError, match="tile_size is 2.5; expected a whole number"):
        rd.gram(rt.RBF(1.0), Y, 2.5)
    with pytest.raises(InvalidInputError, match="tile_size is 0; expected 1 or more"):
        rd.gram(rt.RBF(1.0), Y, 0)
    with pytest.raises(InvalidInputError, match=r"X has shape \(0,\); expected at least one"):
        rd.gram(rt.RBF(1.0), Y[:0])


@pytest.mark.parametrize(
    "error",
    [
        NotPositiveDefiniteError("m", deficit=1.0, jitter=2.0),
        DivergedError("m", step=3, largest_stable_lr=0.5),
        TrainingDivergedError("m", step=3, members=(1, 2)),
        ClusterError("m"),
        MissingDataError("m"),
    ],
)
def test_errors_come_back_whole_from_another_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == "m"
    assert vars(again) == vars(error)
