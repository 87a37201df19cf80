import copy
import pickle
import random

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import retarget as rt
from retarget.arrays import GrowingRows, as_tensor
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    ResultOverflowError,
    StreamTooLargeError,
)


def test_rows_grow_and_fork():
    rows, expected = GrowingRows(capacity=3), []
    with pytest.raises(InvalidInputError, match="nothing has been appended yet"):
        _ = rows.rows
    for size in (1, 2, 0, 5, 40):
        part = torch.randn(size, 2, generator=torch.Generator().manual_seed(size))
        rows.append(part)
        expected.append(part.clone())
        part.zero_()  # they are copies
        assert torch.equal(rows.rows, torch.cat(expected))
    assert len(rows) == 48
    fork, twin = rows.fork(), rows.clone()
    fork.append(torch.zeros(2, 2))
    twin.rows.zero_()
    assert torch.equal(rows.rows, torch.cat(expected))
    assert torch.equal(fork.rows, torch.cat([*expected, torch.zeros(2, 2)]))


@pytest.mark.parametrize("seed", range(5))
def test_forks_do_not_overwrite_each_other(seed):
    draw, pool = random.Random(seed), [(GrowingRows(), [])]
    for number in range(300):
        rows, expected = draw.choice(pool)
        doing = draw.choice(["append"] * 4 + ["fork", "clone", "deepcopy", "pickle", "drop"])
        if doing == "append":
            part = torch.full((draw.randrange(3), 2), float(number))
            rows.append(part)
            expected.append(part)
        elif doing == "drop" and len(pool) > 1:
            pool.remove((rows, expected))
        elif doing != "drop":
            copies = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
            twin = copies[doing](rows) if doing in copies else getattr(rows, doing)()
            pool.append((twin, list(expected)))
        for each, parts in pool:
            assert len(each) == sum(map(len, parts))
            assert not parts or torch.equal(each.rows, torch.cat(parts))


@pytest.mark.parametrize("array", [
    *(np.arange(6.0).reshape(3, 2)[:rows][::-1] for rows in (0, 1, 3)),
    np.arange(3.0)[:1][::-1],
    np.arange(6.0).reshape(3, 2)[:, :1][:, ::-1],
    np.array([(1.0, 2), (3.0, 4)], dtype=[("value", "f8"), ("number", "i4")])["value"],
    np.arange(6.0, dtype=">f8").reshape(3, 2),
    np.array(5.0, dtype=">f4"),
    np.broadcast_to(np.arange(3.0), (2, 3)),
])  # fmt: skip
def test_every_layout_of_numpy_is_taken(array):
    tensor = as_tensor("X", array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.numpy().dtype == array.dtype.newbyteorder("=")


def test_a_learner_begins_with_rows_in_reverse():
    X = np.random.default_rng(0).normal(size=(5, 3))
    Y = X @ np.arange(3.0)
    learner = rt.StreamingRidge("linear", gamma=0.1).learn(X[::-1], Y[::-1])
    learner.forget(X[:1][::-1], Y[:1][::-1])
    expected = rt.StreamingRidge("linear", gamma=0.1).learn(X[1:], Y[1:])
    np.testing.assert_allclose(learner.predict(X[:1][::-1]), expected.predict(X[:1]), rtol=1e-10)


LEARNER = rt.SGD(lr=0.2)
REFUSED = {
    "a ragged list": ([[1.0, 2.0], [3.0]], "not an array of numbers"),
    "a mask": (np.ma.masked_greater(np.eye(3), 0.5), "masked array with 3 masked entries"),
    "scipy's sparse": (csr_array(np.eye(3)), r"sparse csr_array.*K.toarray\(\)"),
    "torch's sparse": (torch.eye(3).to_sparse(), r"layout sparse_coo.*K.to_dense\(\)"),
    "no numbers": (torch.empty(3, 3, device="meta"), "meta device, which holds no numbers"),
    "float8": (torch.eye(3).to(torch.float8_e4m3fn), "dtype float8_e4m3fn; expected float16"),
    "objects": (np.array([[None] * 3] * 3), "dtype object"),
    "an array of arrays": ([[torch.eye(2), 1.0, 2.0]] * 3, "not an array of numbers|dtype object"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_arrays_that_are_none(kind):
    value, message = REFUSED[kind]
    with pytest.raises(rt.RetargetError, match=f"K (is|has).*({message})"):
        rt.offline_coefficients(value, np.ones(3), 1.0)
    message = message.replace("K.", "X.")
    with pytest.raises(rt.RetargetError, match=f"(X|A) (is|has).*({message})"):
        rt.ShiftTracker("linear", LEARNER, 1.0).update(value, np.ones(3))
    with pytest.raises(rt.RetargetError, match="Y (is|has)"):
        rt.offline_coefficients(np.eye(3), value, 1.0)


def test_a_masked_array_without_masks():
    K = np.ma.masked_greater(np.eye(3), 5.0)
    np.testing.assert_allclose(rt.offline_coefficients(K, np.ones(3), 1.0), [0.5] * 3)


HUGE = {
    "offline_coefficients": lambda K, Y: rt.offline_coefficients(K, Y, 1e-3),
    "online_coefficients": lambda K, Y: rt.online_coefficients(K, Y, rt.SGD(lr=1.9)),
    "effective_targets": lambda K, Y: rt.effective_targets(K, Y, rt.SGD(lr=1.9), 100.0),
    "corrected_targets": lambda K, Y: rt.corrected_targets(K, Y, rt.SGD(lr=1e-4), 1.0),
    "iterative_targets": lambda K, Y: rt.iterative_targets(K, Y, rt.SGD(lr=1e-4), 1.0, 2),
    "online_learning_curve": lambda K, Y: rt.online_learning_curve(
        K, Y, 4 * K, rt.SGD(lr=1.9), [4]
    ),
}


@pytest.mark.parametrize("name", HUGE)
def test_targets_that_overflow(name):
    K, Y = 0.9 * np.eye(4) + 0.1, np.array([1.7e308, -1.7e308, 1.7e308, 1.7e308])
    with pytest.raises(ResultOverflowError, match=r"beyond 1\.8e\+308.*float64.*scale"):
        HUGE[name](K, Y)


def test_float16_that_overflows():
    K, Y = np.eye(2, dtype=np.float16), np.full(2, 6e4, np.float16)
    with pytest.raises(ResultOverflowError, match=r"row 0 is beyond 6\.55e\+04.*float16.*float64"):
        rt.offline_coefficients(0.5 * K, Y, 0.0)
    tracker = rt.ShiftTracker(rt.Linear(), rt.SGD(lr=0.5), 9.0)
    tracker.update(K, Y)
    with pytest.raises(ResultOverflowError, match="float16"):
        _ = tracker.effective_targets


def test_kernels_beyond_memory_are_refused_first(monkeypatch):
    monkeypatch.setattr("retarget.arrays.require_finite", lambda *_: pytest.fail("looked at"))
    as_column = lambda _, Y: torch.as_tensor(Y)[:, None]  # noqa: E731
    monkeypatch.setattr("retarget.theory.problem.as_targets", as_column)
    K, Y = np.broadcast_to(np.ones(()), (200_000, 200_000)), np.ones(200_000)
    for function in (
        lambda: rt.offline_coefficients(K, Y, 1.0),
        lambda: rt.corrected_targets(K, Y, LEARNER, 1.0),
        lambda: rt.iterative_targets(K, Y, LEARNER, 1.0, 4),
        lambda: rt.distilled_targets(K, Y, 1.0, 4),
        lambda: rt.offline_learning_curve(K, Y, K[:1], 1.0, [4]),
    ):
        with pytest.raises(StreamTooLargeError, match="200000 samples needs about 160.0 GB"):
            function()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(InvalidTypeError, match="X is a nested tensor"):
        as_tensor("X", nested)
    as_tensor("X", torch.nested.to_padded_tensor(nested, 0.0))


def test_arrays_leave_the_filters_of_warnings_alone(monkeypatch):
    """Filters belong to the process: another thread's would be lost when ours are set back."""
    monkeypatch.setattr("retarget.arrays.warnings.filterwarnings", pytest.fail)
    as_tensor("X", np.ones((2, 2)))
