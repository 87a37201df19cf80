import pytest
import torch

import retarget as rt
from retarget.arrays import GrowingRows


def test_rows_are_appended_and_kept_when_the_buffer_grows():
    rows, expected = GrowingRows(capacity=3), []
    for size in (1, 2, 0, 5, 40):
        part = torch.randn(size, 2, generator=torch.Generator().manual_seed(size))
        rows.append(part)
        expected.append(part)
        assert torch.equal(rows.rows, torch.cat(expected))
    assert len(rows) == 48


def test_rows_are_copies():
    part = torch.ones(2, 2)
    rows = GrowingRows()
    rows.append(part)
    part.zero_()
    assert rows.rows.sum() == 4


def test_nothing_appended_yet():
    with pytest.raises(rt.InvalidInputError, match="nothing has been appended yet"):
        _ = GrowingRows().rows
