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

LEARNER, PAIRS = rt.SGD(lr=0.2), rt.SGD(lr=0.1, batch_size=2, reduction="sum")
DECAYING = rt.SGD(lr=0.1, weight_decay=0.1)
CORE = core_functions(LEARNER)
core = pytest.mark.parametrize("function", CORE.values(), ids=CORE.keys())
STREAM = make_stream(9, 2, seed=7)
K, Y, QUERY = STREAM.K, STREAM.Y, STREAM.K_query


@core
def test_results_have_the_callers_library_type_and_shape(function):
    expected = function(K, Y)
    assert isinstance(expected, np.ndarray)
    got = function(torch.tensor(K), torch.tensor(Y, requires_grad=True))
    assert isinstance(got, torch.Tensor)
    assert not got.requires_grad
    assert_same(got.numpy(), expected, 1e-14)
    assert expected.dtype == np.float64
    for dtype in (np.float16, np.float32):
        got = function(K.astype(dtype), Y.astype(dtype))
        assert got.dtype == dtype
        assert_same(got, expected, 100 * np.finfo(dtype).eps)
    flat = function(K, Y[:, 0])
    assert flat.shape == (9,)
    assert_same(flat, expected[:, 0], 1e-14)


@core
def test_layouts_and_inputs_left_alone(function):
    expected = function(K, Y)
    wide = np.zeros((18, 18))
    wide[::2, ::2] = K
    for layout in (
        (np.asfortranarray(K), np.asfortranarray(Y)),
        (wide[::2, ::2], Y[::-1][::-1]),
        (K.astype(">f8"), Y.tolist()),
    ):
        assert_same(function(*layout), expected, 1e-14)
    given = K.copy(), Y.copy()
    for part in given:
        part.setflags(write=False)
    got = function(*given)
    got += 1.0
    np.testing.assert_array_equal(given[0], K)
    np.testing.assert_array_equal(given[1], Y)


def test_large_numbers_are_not_down_cast():
    assert rt.effective_targets(K.astype(np.float32), Y, LEARNER, 0.7).dtype == np.float64
    large = torch.full((2, 2), 3e38, dtype=torch.float32)
    arrays.require_finite("K", large)
    assert not np.isfinite(large.sum().item())


def damaged(part, row, value):
    part = part.copy()
    part[row, 1] = value
    return part


@pytest.mark.parametrize(
    ("kernel", "targets", "error", "message"),
    [
        (K[:, :5], Y, InvalidInputError, r"K has shape \(9, 5\); expected \(n, n\)"),
        (np.float64(1.0), Y, InvalidInputError, r"K has shape \(\); expected \(n, n\)"),
        (K[:0, :0], Y[:0], InvalidInputError, "K is empty"),
        (damaged(K, 4, np.nan), Y, InvalidInputError, "K holds nan in row 4; expected finite"),
        (damaged(K, 4, np.inf), Y, InvalidInputError, "K holds inf in row 4; expected finite"),
        (K + np.tril(K), Y, InvalidInputError, "K is not symmetric: entries"),
        (K.astype(int), Y, InvalidTypeError, "K has dtype int64; expected float"),
        (K.astype(np.longdouble), Y, InvalidTypeError, "K has dtype .*128"),
        (K.astype(str), Y, InvalidTypeError, "K has dtype <U"),
        (K, Y[:4], InvalidInputError, "Y has 4 rows, but K is 9 x 9"),
        (K, Y[None], InvalidInputError, r"Y has shape \(1, 9, 2\)"),
        (K, Y[:, :0], InvalidInputError, r"Y has shape \(9, 0\)"),
        (K, damaged(Y, 5, np.nan), InvalidInputError, "Y holds nan in row 5"),
        (K, damaged(Y, 5, -np.inf), InvalidInputError, "Y holds -inf in row 5"),
        (K, Y.astype(int), InvalidTypeError, "one-hot encode class labels"),
    ],
)
def test_kernels_and_targets_that_every_function_refuses(kernel, targets, error, message):
    functions = dict(CORE)
    if targets is Y:
        functions["correction_terms"] = lambda K, Y: rt.correction_terms(K, LEARNER, 1.0, 2)
    functions["discrepancy"] = lambda K, Y: rt.discrepancy(K, STREAM.Y, Y, LEARNER, 1.0)
    functions["curve"] = lambda K, Y: rt.online_learning_curve(K, Y, QUERY, LEARNER, [9])
    for function in functions.values():
        with pytest.raises(error, match=message):
            function(kernel, targets)


@pytest.mark.parametrize("gamma", [-1.0, np.nan, np.inf, True])
def test_gamma_must_not_be_negative(gamma):
    functions = core_functions(LEARNER, gamma)
    del functions["online_coefficients"], functions["prequential_errors"]
    functions["correction_terms"] = lambda K, Y: rt.correction_terms(K, LEARNER, gamma, 2)
    functions["discrepancy"] = lambda K, Y: rt.discrepancy(K, Y, Y, LEARNER, gamma)
    for function in functions.values():
        with pytest.raises(InvalidInputError, match="gamma is .*; expected a finite number, 0 or"):
            function(K, Y)


@pytest.mark.parametrize("lr", [[0.1] * 9, [0.1] * 4])
def test_a_schedule_of_the_wrong_length_is_refused(lr):
    learner = rt.SGD(lr=lr, batch_size=2, reduction="sum")
    functions = core_functions(learner)
    del functions["offline_coefficients"], functions["distilled_targets"]
    functions["correction_terms"] = lambda K, Y: rt.correction_terms(K, learner, 1.0, 2)
    functions["discrepancy"] = lambda K, Y: rt.discrepancy(K, Y, Y, learner, 1.0)
    for function in functions.values():
        with pytest.raises(InvalidInputError, match=f"{len(lr)} rates, but 9 samples in .* 2 make"):
            function(K, Y)
    with pytest.raises(InvalidInputError, match="of 2, 3 times over, make 15 steps"):
        rt.online_coefficients(K, Y, learner, epochs=3)


def swept(gamma=1.0, block_size=2, **options):
    return lambda: rt.iterative_targets(K, Y, PAIRS, gamma, block_size, **options)


def measured(Z):
    return lambda: rt.discrepancy(K, Z, Y, LEARNER, 1.0)


def curve(query, stops):
    return lambda: rt.online_learning_curve(K, Y, query, PAIRS, stops)


def terms(learner, block_size=2, ridge=0.0):
    return lambda: rt.correction_terms(K, learner, 1.0, block_size, ridge)


def online(**options):
    return lambda: rt.online_coefficients(K, Y, LEARNER, **options)


def test_numbers_of_epochs_that_have_no_meaning():
    for epochs, error in ((0, InvalidInputError), (1.5, InvalidTypeError)):
        for call in (
            online(epochs=epochs),
            lambda epochs=epochs: rt.effective_targets(K, Y, LEARNER, 1.0, epochs=epochs),
            lambda epochs=epochs: rt.corrected_targets(K, Y, LEARNER, 1.0, epochs=epochs),
        ):
            with pytest.raises(error, match=f"epochs is {epochs}; expected"):
                call()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (online(initial=np.ones((9, 3))), InvalidInputError, "initial has shape .* but Y has"),
        (swept(block_size=3), InvalidInputError, "is 3; expected .* multiple .*size, 2"),
        (swept(block_size=0), InvalidInputError, "block_size is 0"),
        (swept(block_size=2.0), InvalidTypeError, "block_size is 2.0; .* whole number"),
        (swept(parts="neither"), InvalidInputError, "parts is 'neither'; expected one of"),
        (
            swept(parts="online", loss="cross-entropy"),
            InvalidInputError,
            "parts is 'online' with loss='cross-entropy'",
        ),
        (swept(first_block="last"), InvalidInputError, "first_block is 'last'; expected one of"),
        (swept(ridge=-1.0), InvalidInputError, "ridge is -1.0; expected a finite number, 0 or"),
        (lambda: rt.distilled_targets(K, Y, 1.0, 0), InvalidInputError, "block_size is 0"),
        (terms(rt.SGD(lr=0.1, momentum=0.9)), InvalidInputError, "= 0.9 .* expected plain SGD"),
        (terms(DECAYING), InvalidInputError, "weight_decay = 0.1; expected plain SGD"),
        (terms(PAIRS, block_size=3), InvalidInputError, "block_size is 3; .* 2"),
        (terms(PAIRS, ridge=-1.0), InvalidInputError, "ridge is -1.0; expected a finite number"),
        (measured(Y[:, :1]), InvalidInputError, r"Z has shape \(9, 1\), but Y .* \(9, 2\)"),
        (measured(Y.astype(int)), InvalidTypeError, "Z has dtype int64"),
        (measured(np.nan * Y), InvalidInputError, "Z holds nan in row 0"),
        (curve(QUERY, []), InvalidInputError, r"stops are \[\]; expected increasing"),
        (curve(QUERY, [2, 2]), InvalidInputError, "expected increasing lengths from 1 to 9"),
        (curve(QUERY, [0, 4]), InvalidInputError, "expected increasing"),
        (curve(QUERY, [2, 10]), InvalidInputError, "expected increasing"),
        (curve(QUERY, [3, 9]), InvalidInputError, "the stop at 3 is inside a mini-batch of 2"),
        (curve(QUERY[:, :5], [9]), InvalidInputError, r"K_query has shape \(5, 5\); exp"),
        (curve(QUERY.astype(int), [9]), InvalidTypeError, "K_query has dtype int64"),
        (curve(QUERY * np.nan, [9]), InvalidInputError, "K_query holds nan"),
    ],
)
def test_options_without_a_meaning(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_loss_that_there_is_not():
    for call in (
        online(loss="hinge"),
        swept(loss="hinge"),
        lambda: rt.ShiftTracker(rt.Linear(), LEARNER, 1.0, loss="hinge"),
        lambda: rt.OnlineKernelRegressor(width=1.0, loss="hinge").fit(K, Y),
    ):
        with pytest.raises(InvalidInputError, match="loss is 'hinge'; expected 'squared' or"):
            call()


def test_weight_decay_fades_a_start():
    for call in (
        lambda: rt.effective_targets(K, Y, DECAYING, 1.0, initial=Y),
        lambda: rt.corrected_targets(K, Y, DECAYING, 1.0, initial=Y),
        lambda: rt.iterative_targets(K, Y, DECAYING, 1.0, 2, initial=Y),
        lambda: rt.discrepancy(K, Y, Y, DECAYING, 1.0, initial=Y),
    ):
        with pytest.raises(InvalidInputError, match="fades the starting function"):
            call()


def test_asymmetry_is_found_in_any_tile():
    large = np.eye(1500)
    large[1400, 3] = 1e-3
    with pytest.raises(InvalidInputError, match=r"entries \(1400, 3\) and \(3, 1400\)"):
        rt.offline_coefficients(large, np.ones(1500), 1.0)
    large[1400, 3] = 1e-14  # rounding
    rt.offline_coefficients(large, np.ones(1500), 1.0)


def test_arrays_on_two_devices(monkeypatch):
    # as if meta were a device with numbers
    monkeypatch.setattr(arrays, "_require_plain", lambda *_: None)
    monkeypatch.setattr(arrays, "require_finite", lambda *_: None)
    there = torch.empty((9, 2), device="meta")
    with pytest.raises(InvalidInputError, match="Y is on meta, but K is on cpu"):
        rt.online_coefficients(torch.tensor(K), there, LEARNER)
    with pytest.raises(InvalidInputError, match="Z is on meta, but K is on cpu"):
        rt.discrepancy(K, there, Y, LEARNER, 1.0)


def test_without_a_ridge_the_formulas_are_the_same():
    M = K + 0.3 * np.eye(9)
    A = np.linalg.solve(M, Y)
    step = np.eye(9) / 0.2 + np.tril(M, -1)
    assert_same(rt.offline_coefficients(M, Y, 0.0), A)
    assert_same(rt.effective_targets(M, Y, LEARNER, 0), M @ np.linalg.solve(step, Y))
    assert_same(rt.corrected_targets(M, Y, LEARNER, 0.0), step @ A)
    assert_same(rt.distilled_targets(M, Y, 0.0, 2), Y)  # an interpolation
    assert_same(
        rt.iterative_targets(M, Y, LEARNER, 0.0, 3),
        rt.iterative_targets(M, Y, LEARNER, 0.0, 3, parts="online"),
    )
    with pytest.raises(NotPositiveDefiniteError, match="gamma = 0, which is rounding"):
        rt.offline_coefficients(np.ones((3, 3)), np.ones(3), 0.0)


def test_what_would_make_it_positive_definite(monkeypatch):
    M = K - (np.linalg.eigvalsh(K)[0] + 0.5) * np.eye(9)  # smallest eigenvalue -0.5
    with pytest.raises(NotPositiveDefiniteError, match=r"float64, from row .* is -0\.4") as caught:
        rt.offline_coefficients(M, Y, gamma=0.1)
    assert caught.value.deficit == pytest.approx(0.4)
    assert np.isfinite(rt.offline_coefficients(M, Y, 0.1 + 1.0001 * caught.value.jitter)).all()
    with pytest.raises(NotPositiveDefiniteError):
        rt.offline_coefficients(M, Y, 0.1 + 0.999 * caught.value.jitter)
    single = (K - np.eye(9)).astype(np.float32), Y.astype(np.float32)
    with pytest.raises(NotPositiveDefiniteError, match="in float32.*or compute in float64"):
        rt.iterative_targets(*single, LEARNER, 0.01, 3, ridge=1.0)
    # beyond the size where the spectrum is computed, the offered jitter is still enough
    monkeypatch.setattr("retarget.engine.cholesky.EXPLAINED_SIZE", 2)
    M = K - 0.9 * np.diag(np.arange(9) > 5)
    with pytest.raises(NotPositiveDefiniteError, match="from row [6-8] on") as caught:
        rt.offline_coefficients(M, Y, gamma=1e-3)
    assert caught.value.deficit > 0
    rt.offline_coefficients(M, Y, gamma=1e-3 + 1.0001 * caught.value.jitter)


@pytest.mark.parametrize("name", ["offline_coefficients", "corrected_targets", "iterative_targets"])
def test_low_precision_and_little_memory(monkeypatch, name):
    function = core_functions(rt.SGD(lr=1e-7))[name]  # a stable rate for this kernel
    single, targets = (K + 1e6).astype(np.float32), Y.astype(np.float32)
    single += np.eye(9, dtype=np.float32)
    with pytest.warns(PrecisionWarning, match=r"in float32 expect [01]\.\d"):
        function(single, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(single.astype(np.float64), targets)
    monkeypatch.setattr(arrays, "free_memory", lambda device: 200)
    with pytest.raises(StreamTooLargeError, match=r"9 samples needs about .* GB"):
        CORE[name](K, Y)


def test_free_memory_without_linux(monkeypatch, tmp_path):
    monkeypatch.setattr(arrays, "Path", lambda _: tmp_path / "missing")
    assert arrays.free_memory(torch.device("cpu")) > 1e8
    monkeypatch.setattr(arrays.os, "sysconf_names", {})
    assert arrays.free_memory(torch.device("cpu")) is None
