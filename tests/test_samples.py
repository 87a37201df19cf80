"""Samples of several tensors: what is done with rows of one is done with all."""

from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.samples import (
    arguments,
    as_samples,
    count,
    form_of,
    from_named,
    join,
    leaves,
    library_of,
    named_leaves,
    output_of,
    outputs_of,
    portions,
    shapes_of,
    take,
    with_type_of,
)

Pair = namedtuple("Pair", "one two")
NEST = {"ids": torch.arange(6).view(3, 2), "more": (torch.ones(3), {"deep.er": torch.zeros(3, 1)})}


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
    if isinstance(one, dict | tuple):
        for a, b in zip(leaves(one), leaves(other), strict=True):
            assert torch.equal(a, b)


def test_rows_of_a_nest():
    assert count(NEST) == 3
    assert [tuple(leaf.shape) for leaf in leaves(NEST)] == [(3, 2), (3,), (3, 1)]
    same(join([take(NEST, slice(0, 1)), take(NEST, slice(1, 3))]), NEST)
    same(take(NEST, torch.tensor([2, 0]))["more"][0], torch.ones(2))
    assert torch.equal(take(NEST, torch.tensor([2, 0]))["ids"], torch.tensor([[4, 5], [0, 1]]))
    assert [count(part) for part in portions(NEST, 2)] == [2, 1]
    assert shapes_of(NEST) == '["ids"] (2,), ["more", 0] (), ["more", 1, "deep.er"] (1,)'
    assert form_of(NEST) != form_of(with_type_of(torch.zeros(1, dtype=torch.float64), NEST))


@pytest.mark.parametrize("samples", [NEST, torch.ones(2, 3), (torch.ones(2), torch.ones(2, 1))])
def test_names_from_which_a_nest_is_put_together(samples):
    stored = {"other": torch.ones(1), "samplesX": torch.ones(1), **named_leaves("samples", samples)}
    same(from_named("samples", stored), samples)
    assert from_named("absent", stored) is None


def test_tensors_dicts_and_tuples():
    for value in ([[1.0, 2.0]], ((1.0, 2.0), (3.0, 4.0)), np.ones((2, 2)), [np.ones(2)]):
        assert isinstance(as_samples("X", value), torch.Tensor)
    assert isinstance(as_samples("X", (np.ones(2), np.ones(2))), tuple)
    found = as_samples("X", UserDict(a=Pair(np.ones(2), np.zeros((2, 1))), b=None))
    assert list(found) == ["a"]
    assert type(found["a"]) is tuple
    assert isinstance(library_of({"a": np.ones(2)}), np.ndarray)
    assert list(as_samples("X", {"b": np.ones(1), "a": np.ones(1)})) == ["a", "b"]
    converted = with_type_of(torch.zeros(1, dtype=torch.float64), NEST)
    kinds = [leaf.dtype for leaf in leaves(converted)]
    assert kinds == [torch.int64, torch.float64, torch.float64]


UNEVEN = {"a": np.ones(2), "b": (np.ones(3),)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3.0, "X is a single number"),
        ({"a": 3.0}, r"X\['a'\] is a single number"),
        ({"a": None}, "X holds no array; expected at least one"),
        ({1: np.ones(2)}, r"X has keys \[1\]; expected string keys"),
        ({"a": "word"}, r"X\['a'\] has dtype"),
        (UNEVEN, r'X\["a"\] has 2 rows, X\["b", 0\] has 3 rows'),
        (np.array([1.0, np.nan]), "X holds nan in row 1"),
        (
            {"a": np.ones(2), "b": (np.array([1.0, np.nan]),)},
            r"X\['b'\]\[0\] holds nan in row 1; e",
        ),
        ((np.ones(2000), np.r_[np.full(1500, np.inf), -np.inf, np.full(499, np.nan)]), r"row 1501"),
    ],
)
def test_refused(value, message):
    wrong_type = "keys" in message or "dtype" in message
    error = InvalidTypeError if wrong_type else InvalidInputError
    with pytest.raises(error, match=message):
        as_samples("X", value)


class Takes(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.forward = forward


def test_how_a_module_takes_its_samples():
    ids, mask = torch.ones(2, 1), torch.zeros(2, 1)
    both = {"ids": ids, "mask": mask}
    assert arguments(Takes(lambda x: x), ids) == ((ids,), {})
    assert arguments(Takes(lambda ids, mask=None: ids), both) == ((), both)
    assert arguments(Takes(lambda **parts: parts), both) == ((), both)
    assert arguments(Takes(lambda batch: batch), both) == ((both,), {})
    assert arguments(Takes(lambda a, b: a), (ids, mask)) == ((ids, mask), {})
    assert arguments(Takes(lambda pair: pair), (ids, mask)) == (((ids, mask),), {})


class Result:
    """As Hugging Face returns them."""

    def __init__(self, **entries):
        self.__dict__.update(entries)


MATRIX, CUBE = torch.ones(3, 2), torch.ones(3, 4, 2)
STATES = {"last_hidden_state": CUBE, "pooler_output": MATRIX, "hidden_states": (CUBE, MATRIX)}


def test_the_outputs_are_the_one_matrix_among_results():
    named = {"loss": torch.ones(()), "logits": MATRIX}
    for result in (MATRIX, named, Result(**STATES), (CUBE, MATRIX)):
        assert output_of(result, 3) is MATRIX
    for result in ((MATRIX, MATRIX), {"logits": CUBE}, Result(a=MATRIX, b=MATRIX), None, 3):
        module = Takes(lambda x, result=result: result)
        with pytest.raises(InvalidInputError, match="an? .*; expected one tensor of outputs"):
            outputs_of(module, torch.ones(3, 1))


def test_rows_are_counted_from_the_first():
    with pytest.raises(InvalidInputError, match=r"X\[1\] holds nan in row 12;"):
        as_samples("X", (np.ones(4), np.array([0, 1, np.nan, np.nan])), first_row=10)
