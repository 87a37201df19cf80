"""What the functional core takes, what it gives back, and what it refuses."""

import warnings

import numpy as np
import pytest
import torch

import retarget as rt
from retarget import arrays
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    NotPositiveDefiniteError,
    PrecisionWarning,
    StreamTooLargeError,
)
from support.problems import assert_same, core_functions, make_stream

LEARNER = rt.SGD(lr=0.2)
CORE = core_functions(LEARNER)
core = pytest.mark.parametrize("function", CORE.values(), ids=CORE.keys())


@pytest.fixture
def stream():
    return make_stream(9, 2, seed=7)


@core
def test_torch_in_torch_out_numpy_in_numpy_out(function, stream):
    expected = function(stream.K, stream.Y)
    got = function(torch.tensor(stream.K), torch.tensor(stream.Y, requires_grad=True))
    assert isinstance(expected, np.ndarray)
    assert isinstance(got, torch.Tensor)
    assert not got.requires_grad
    assert_same(got.numpy(), expected, 1e-14)


@core
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_is_kept(function, stream, dtype):
    got = function(stream.K.astype(dtype), stream.Y.astype(dtype))
    assert got.dtype == dtype
    assert_same(got, function(stream.K, stream.Y), 100 * np.finfo(dtype).eps)


def test_nothing_is_down_cast(stream):
    got = rt.effective_targets(stream.K.astype(np.float32), stream.Y, LEARNER, 0.7)
    assert got.dtype == np.float64


@core
def test_flat_targets_give_flat_results(function, stream):
    flat = function(stream.K, stream.Y[:, 0])
    assert flat.shape == (9,)
    assert_same(flat, function(stream.K, stream.Y)[:, 0], 1e-14)


@core
def test_inputs_are_left_alone_and_not_shared(function, stream):
    K, Y = stream.K.copy(), stream.Y.copy()
    K.setflags(write=False)
    Y.setflags(write=False)
    got = function(K, Y)
    got += 1.0
    np.testing.assert_array_equal(K, stream.K)
    np.testing.assert_array_equal(Y, stream.Y)


@core
def test_layout_of_the_arrays_does_not_matter(function, stream):
    expected = function(stream.K, stream.Y)
    wide = np.zeros((18, 18))
    wide[::2, ::2] = stream.K
    assert_same(function(np.asfortranarray(stream.K), np.asfortranarray(stream.Y)), expected, 1e-14)
    assert_same(function(wide[::2, ::2], stream.Y[::-1][::-1]), expected, 1e-14)
    assert_same(function(stream.K.astype(">f8"), stream.Y.tolist()), expected, 1e-14)


@core
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_named_by_row(function, stream, bad):
    K, Y = stream.K.copy(), stream.Y.copy()
    K[4, 6] = K[6, 4] = bad
    with pytest.raises(InvalidInputError, match=f"K holds {bad} in row 4; expected finite"):
        function(K, stream.Y)
    Y[5, 1] = bad
    with pytest.raises(InvalidInputError, match=f"Y holds {bad} in row 5"):
        function(stream.K, Y)


def test_finite_numbers_whose_sum_overflows_are_fine():
    K = torch.full((2, 2), 3e38, dtype=torch.float32)
    arrays.require_finite("K", K)
    assert not np.isfinite(K.sum().item())


@core
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda K, Y: (K[:, :5], Y), InvalidInputError, r"K has shape \(9, 5\); expected \(n, n\)"),
        (lambda K, Y: (K[0], Y), InvalidInputError, r"K has shape \(9,\)"),
        (lambda K, Y: (K[:0, :0], Y[:0]), InvalidInputError, "K is empty"),
        (lambda K, Y: (K, Y[:4]), InvalidInputError, "Y has 4 rows, but K is 9 x 9"),
        (lambda K, Y: (K, Y[None]), InvalidInputError, r"Y has shape \(1, 9, 2\)"),
        (lambda K, Y: (K, Y[:, :0]), InvalidInputError, r"Y has shape \(9, 0\)"),
        (lambda K, Y: (K + np.tril(K), Y), InvalidInputError, "K is not symmetric: entries"),
        (lambda K, Y: (K.astype(int), Y), InvalidTypeError, "K has dtype int64; expected float"),
        (lambda K, Y: (K > 0, Y), InvalidTypeError, "K has dtype bool"),
        (lambda K, Y: (K, Y.astype(int)), InvalidTypeError, "one-hot encode class labels"),
        (lambda K, Y: (K.astype(complex), Y), InvalidTypeError, "K has dtype complex128"),
        (lambda K, Y: (K.astype(np.longdouble), Y), InvalidTypeError, "K has dtype .*128"),
        (lambda K, Y: (K.astype(str), Y), InvalidTypeError, "K has dtype <U"),
    ],
)
def test_refused(function, stream, change, error, message):
    with pytest.raises(error, match=message):
        function(*change(stream.K, stream.Y))


def test_asymmetry_is_found_in_any_tile():
    K = np.eye(1500)
    K[1400, 3] = 1e-3
    with pytest.raises(InvalidInputError, match=r"entries \(1400, 3\) and \(3, 1400\)"):
        rt.offline_coefficients(K, np.ones(1500), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        K[1400, 3] = 1e-14  # rounding
        rt.offline_coefficients(K, np.ones(1500), 1.0)


@pytest.mark.parametrize("initial", [np.ones(9), np.ones((9, 3))])
def test_initial_of_another_shape(stream, initial):
    with pytest.raises(InvalidInputError, match="initial has shape .* but Y has shape"):
        rt.online_coefficients(stream.K, stream.Y, LEARNER, initial=initial)


def test_arrays_on_two_devices(stream):
    Y = torch.empty((9, 2), device="meta")
    K = torch.tensor(stream.K)
    with pytest.MonkeyPatch.context() as patch:  # as if meta were a device with numbers
        patch.setattr(arrays, "_require_plain", lambda *_: None)
        patch.setattr(arrays, "require_finite", lambda *_: None)
        with pytest.raises(InvalidInputError, match="Y is on meta, but K is on cpu"):
            rt.online_coefficients(K, Y, LEARNER)


@pytest.mark.parametrize("gamma", [-1.0, np.nan, np.inf, True])
@pytest.mark.parametrize("name", ["offline_coefficients", "effective_targets", "corrected_targets"])
def test_gamma_must_not_be_negative(stream, name, gamma):
    arguments = (gamma,) if name == "offline_coefficients" else (LEARNER, gamma)
    with pytest.raises(InvalidInputError, match="gamma is .*; expected a finite number, 0 or"):
        getattr(rt, name)(stream.K, stream.Y, *arguments)


def test_without_a_ridge_the_formulas_are_the_same(stream):
    K, Y = stream.K + 0.3 * np.eye(9), stream.Y
    A = np.linalg.solve(K, Y)
    online = np.linalg.solve(np.eye(9) / 0.2 + np.tril(K, -1), Y)
    assert_same(rt.offline_coefficients(K, Y, 0.0), A)
    assert_same(rt.effective_targets(K, Y, LEARNER, 0), K @ online)
    assert_same(rt.corrected_targets(K, Y, LEARNER, 0.0), (np.eye(9) / 0.2 + np.tril(K, -1)) @ A)
    assert_same(rt.distilled_targets(K, Y, 0.0, 2), Y)  # an interpolation
    assert_same(
        rt.iterative_targets(K, Y, LEARNER, 0.0, 3),
        rt.iterative_targets(K, Y, LEARNER, 0.0, 3, parts="online"),
    )
    with pytest.raises(NotPositiveDefiniteError, match="gamma = 0; expected"):
        rt.offline_coefficients(np.ones((3, 3)), np.ones(3), 0.0)


@pytest.mark.parametrize("name", ["online_coefficients", "effective_targets", "corrected_targets"])
def test_schedule_of_the_wrong_length(stream, name):
    learner = rt.SGD(lr=[0.1] * 9, batch_size=2)
    arguments = () if name == "online_coefficients" else (1.0,)
    with pytest.raises(InvalidInputError, match="has 9 rates, but 9 samples in .* 2 make 5"):
        getattr(rt, name)(stream.K, stream.Y, learner, *arguments)


def test_not_positive_definite_says_by_how_much_and_what_would_do(stream):
    K = stream.K - (np.linalg.eigvalsh(stream.K)[0] + 0.5) * np.eye(9)  # smallest eigenvalue -0.5
    with pytest.raises(NotPositiveDefiniteError, match=r"float64, from row .* is -0\.4") as caught:
        rt.offline_coefficients(K, stream.Y, gamma=0.1)
    assert caught.value.deficit == pytest.approx(0.4)
    assert np.isfinite(
        rt.offline_coefficients(K, stream.Y, 0.1 + 1.0001 * caught.value.jitter)
    ).all()
    with pytest.raises(NotPositiveDefiniteError):
        rt.offline_coefficients(K, stream.Y, 0.1 + 0.999 * caught.value.jitter)


def test_not_positive_definite_in_float32_offers_float64(stream):
    K = (stream.K - np.eye(9)).astype(np.float32)
    with pytest.raises(NotPositiveDefiniteError, match="in float32.*or compute in float64"):
        rt.iterative_targets(K, stream.Y.astype(np.float32), LEARNER, 0.01, 3, ridge=1.0)


def test_not_positive_definite_far_into_a_long_stream(monkeypatch, stream):
    """Beyond the size where the spectrum is computed, the offered jitter is still enough."""
    monkeypatch.setattr("retarget.theory.cholesky.EXPLAINED_SIZE", 2)
    K = stream.K - 0.9 * np.diag(np.arange(9) > 5)
    with pytest.raises(NotPositiveDefiniteError, match="from row [6-8] on") as caught:
        rt.offline_coefficients(K, stream.Y, gamma=1e-3)
    assert caught.value.deficit > 0
    rt.offline_coefficients(K, stream.Y, gamma=1e-3 + 1.0001 * caught.value.jitter)


@pytest.mark.parametrize("name", ["offline_coefficients", "corrected_targets", "iterative_targets"])
def test_low_precision_is_announced_with_the_digits_to_expect(name, stream):
    function = core_functions(rt.SGD(lr=1e-7))[name]  # a stable rate for this kernel
    K, Y = (stream.K + 1e6).astype(np.float32), stream.Y.astype(np.float32)
    K += np.eye(9, dtype=np.float32)
    with pytest.warns(PrecisionWarning, match=r"in float32 expect [01]\.\d correct digits at best"):
        function(K, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(K.astype(np.float64), Y)


@pytest.mark.parametrize("name", ["offline_coefficients", "corrected_targets", "iterative_targets"])
def test_too_large_for_memory_is_said_before_it_is_tried(monkeypatch, stream, name):
    monkeypatch.setattr(arrays, "free_memory", lambda device: 200)
    with pytest.raises(StreamTooLargeError, match=r"9 samples needs about .* GB are free; use"):
        CORE[name](stream.K, stream.Y)


def test_free_memory_without_linux(monkeypatch, tmp_path):
    monkeypatch.setattr(arrays, "Path", lambda _: tmp_path / "missing")
    assert arrays.free_memory(torch.device("cpu")) > 1e8
    monkeypatch.setattr(arrays.os, "sysconf_names", {})
    assert arrays.free_memory(torch.device("cpu")) is None
