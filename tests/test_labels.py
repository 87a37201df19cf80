"""Class labels: which values are labels, and the rows that they become."""

import numpy as np
import pandas as pd
import pytest
import torch

from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.labels import are_labels, as_classes, label_rows, one_hot


@pytest.mark.parametrize(
    ("Y", "expected"),
    [
        (torch.tensor([0, 2]), True),
        (np.array([0, 2], dtype=np.uint8), True),
        ([0, 2], True),
        (["a", "b"], True),
        (np.array(["a", "b"]), True),
        (pd.Series(["a", "b"]), True),
        (pd.Series([1, 0]), True),
        (torch.tensor([0.0, 2.0]), False),
        ([0.5, 1.0], False),
        (torch.tensor([[0, 1]]), False),
        ([[0.0], [1.0, 2.0]], False),
        (np.array(["a", 1.5], dtype=object), False),
        ([], False),
    ],
)
def test_what_counts_as_labels(Y, expected):
    assert are_labels(Y) is expected


def test_rows_of_several_kinds():
    assert label_rows(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert label_rows(np.array([7, 3]), 2, [3, 7]).tolist() == [[0, 1], [1, 0]]
    rows = label_rows(pd.Series(["dog", "ant", "dog"]), 3, ["cat", "dog", "ant"])
    assert rows.tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert rows.dtype == torch.float64


@pytest.mark.parametrize(
    ("labels", "outputs", "classes", "message"),
    [
        ([0, 1], 1, None, r"labels \[0, 1\], ..., but the network has one output; .* Y.float"),
        (["a", "b"], 2, None, "Y holds text, such as 'a', .* classes="),
        (["a", "b"], 3, ["a", "b"], "2 classes, but the network has 3 outputs"),
        (["a", "c"], 2, ["a", "b"], r"'c' in row 1"),
        ([0, 4], 3, None, "labels are 0 to 4, and there are 3 outputs"),
    ],
)
def test_labels_without_rows(labels, outputs, classes, message):
    with pytest.raises(InvalidInputError, match=message):
        label_rows(labels, outputs, classes)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("ab", "classes is 'ab'; expected a list"),
        (3, "classes is 3; expected a list"),
        ([], r"classes is \[\]"),
        ([0.5, 1.5], r"classes is \[0.5, 1.5\]"),
        ([[0], [1]], "expected whole numbers or text"),
        (["a", "a"], "expected every label once"),
    ],
)
def test_classes_that_cannot_be_told_apart(classes, message):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        as_classes(classes)


def test_classes_become_plain_values():
    assert as_classes(None) is None
    assert as_classes(range(3)) == [0, 1, 2]
    assert as_classes(np.array(["a", "b"])) == ["a", "b"]
    assert type(as_classes(np.array([4, 5]))[0]) is int


def test_one_hot_rows_in_the_labels_library():
    rows = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    np.testing.assert_array_equal(one_hot(np.array([2, 0], dtype=np.uint8), 3), rows)
    found = one_hot(torch.tensor([2, 0], dtype=torch.int32), 3)
    assert (found.dtype, found.tolist()) == (torch.float64, rows)
    assert one_hot(torch.zeros(0, dtype=torch.int64), 5).shape == (0, 5)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([3, 4], "labels are 3 to 4, and there are 4 outputs"),
        ([-9, 1], "labels are -9 to 1"),
        ([[0, 1]], r"the labels have shape \(1, 2\) and dtype torch.int64"),
        ([0.5], "dtype torch.float64; expected classes"),
    ],
)
def test_what_has_no_one_hot_rows(labels, message):
    with pytest.raises(InvalidInputError, match=message):
        one_hot(np.array(labels), 4)
