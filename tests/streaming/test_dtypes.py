"""Samples of several types in one stream: promoted without loss, or refused; never rounded."""

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.errors import InvalidInputError

MAKE = {
    "corrector": lambda kernel: rt.TargetCorrector(kernel, rt.SGD(lr=0.3), 0.5, 1),
    "shift": lambda kernel: rt.ShiftTracker(kernel, rt.SGD(lr=0.3), 0.5),
    "correction": lambda kernel: rt.CorrectionTracker(kernel, rt.SGD(lr=0.3), 0.5),
}
each = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def feed(thing, X, Y):
    (thing.correct if hasattr(thing, "correct") else thing.update)(X, Y)


def results(thing):
    if isinstance(thing, rt.TargetCorrector):
        return thing.preview()[1]
    return thing.coefficients


@each
@pytest.mark.parametrize("cuts", [[3, 4], [2, 5]])
def test_whole_numbers_before_real_ones(make, cuts):
    """As reported: 3 int rows, 1 int row, then 1.7 and -.3, which were stored as 1 and 0."""
    X = np.array([[0.0], [1], [2], [5], [1.7], [-0.3]])
    Y = np.arange(6.0)
    thing, whole = make("rbf"), make("rbf")
    feed(whole, X, Y)
    for start, stop in zip([0, *cuts], [*cuts, 6], strict=True):
        part = X[start:stop]
        feed(thing, part.astype(int) if stop <= 4 else part, Y[start:stop])
    np.testing.assert_array_equal(thing.samples, X)
    np.testing.assert_allclose(results(thing), results(whole), rtol=0, atol=1e-13)


@each
@pytest.mark.parametrize(
    ("first", "second", "stored"),
    [
        ("int8", "uint8", "int16"),
        ("int64", "float32", "float64"),
        ("float32", "float16", "float32"),
        ("bool", "int32", "int32"),
        ("float64", "int64", "float64"),
    ],
)
def test_the_least_type_that_holds_both(make, first, second, stored):
    thing = make("linear")
    feed(thing, np.array([[1], [0]]).astype(first), np.ones(2))
    feed(thing, np.array([[1], [3]]).astype(second), np.ones(2))
    assert thing.samples.dtype == stored
    np.testing.assert_array_equal(thing.samples.ravel(), np.array([1, 0, 1, 3]))


@each
def test_whole_numbers_that_float64_does_not_hold(make):
    thing = make("linear")
    feed(thing, np.array([[2**53 + 1]]), np.ones(1) * 1e-9)
    with pytest.raises(InvalidInputError, match=r"int64 and in float64.*beyond 2\*\*53"):
        feed(thing, np.array([[0.5]]), np.ones(1))
    assert thing.samples.tolist() == [[2**53 + 1]]


@each
def test_a_kernel_is_not_rounded_to_what_the_stream_began_in(make):
    thing = make(rt.RBF(1.0))
    feed(thing, np.ones((1, 1), np.float32), np.ones(1, np.float32))
    with pytest.raises(InvalidInputError, match="began in float32 and goes on in float64"):
        feed(thing, np.array([[0.1]]), np.ones(1, np.float32))
    with pytest.raises(InvalidInputError, match="began in float32 and goes on in float64"):
        feed(thing, np.ones((1, 1), np.float32), np.ones(1))
    assert len(thing) == 1
    wide = make(rt.RBF(1.0))
    feed(wide, np.ones((1, 1), np.float32), np.ones(1))  # float64 by its targets
    feed(wide, np.array([[0.1]]), np.ones(1))
    np.testing.assert_array_equal(wide.samples, [[1.0], [0.1]])


def test_bfloat16_and_float16():
    thing = MAKE["shift"](rt.Linear())
    feed(thing, torch.ones(1, 1, dtype=torch.bfloat16), torch.ones(1))
    feed(thing, torch.full((1, 1), 0.1, dtype=torch.float16), torch.ones(1))
    assert thing.samples.dtype == torch.float32


def test_a_kernel_in_float32_is_symmetric_to_its_own_digits():
    """Float64 targets make the stream float64; the kernel's entries are still of float32."""

    def kernel(A, B):  # as a library's code path may round it
        noise = np.float32(1.2e-7) * (np.arange(len(A))[:, None] > np.arange(len(B)))
        return np.float32(1e-2) * (A @ B.T) + np.float32(1e-2) * noise

    X = np.ones((4, 2), np.float32)
    thing = MAKE["shift"](kernel)
    feed(thing, X, np.ones(4))
    assert thing.coefficients.dtype == np.float64
