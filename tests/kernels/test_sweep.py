"""The compiled loops against the same mathematics without lanes, offsets and headers."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs the extra [ntk]")

from retarget.kernels.infinite import sweep

LANES = sweep.LANES
COLUMNS = 5  # pairs of pixels that come out of a row
READ = 7  # pairs that go in
PIXELS = 4


class Arrays:
    """The flat arrays of the compiled loops, filled piece by piece."""

    def __init__(self, dtype):
        self.header = np.zeros(len(sweep.COLUMNS), dtype=np.int64)
        self.index = []
        self.scale = []
        self.work = []
        self.dtype = dtype

    def put_indices(self, column, values):
        self.header[column] = len(self.index)
        self.index += list(values)

    def put_scales(self, column, values):
        self.header[column] = len(self.scale)
        self.scale += list(values)

    def put_work(self, column, values):
        """The values (entries, LANES) of a level."""
        self.header[column] = sum(map(len, self.work))
        self.work.append(np.ravel(values))

    def call(self, left, right, row, tangent):
        """The two rows that come out, (COLUMNS, LANES) each."""
        work = np.concatenate(self.work).astype(self.dtype)
        index = np.array(self.index, dtype=np.int64)
        scale = np.array(self.scale, dtype=self.dtype)
        sweep.pull_and_rectify(self.header, index, scale, work, left, right, row, tangent)
        begins = self.header[sweep.ROW], self.header[sweep.ROW_TANGENT]
        return [work[begin : begin + COLUMNS * LANES].reshape(COLUMNS, LANES) for begin in begins]


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 3e-6)])
@pytest.mark.parametrize("trained", [0, 1])
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_a_row_is_pulled_and_rectified_as_specified(dtype, tolerance, trained, slope):
    rng = np.random.default_rng(4)
    taps = np.zeros((COLUMNS, READ))
    for column in range(COLUMNS):
        taps[column, rng.choice(READ, 1 + column % 3, replace=False)] = 1
    sums = rng.normal(size=(READ, LANES))
    sums_tangent = rng.normal(size=(READ, LANES))
    column_scales = rng.uniform(0.5, 2, size=COLUMNS)
    row_scales = [9.0, 0.7]
    bias = 0.2
    row = 1
    rows = [3, 2]  # of the left and of the right pixel of this row of pairs
    columns = rng.integers(0, PIXELS, size=(2, COLUMNS))
    deviations = rng.uniform(0.8, 2, size=(2, PIXELS, PIXELS, LANES))

    arrays = Arrays(dtype)
    where, entries = np.nonzero(taps)
    arrays.put_indices(sweep.PULL_COLUMN_STARTS, np.searchsorted(where, np.arange(COLUMNS + 1)))
    arrays.put_indices(sweep.PULL_COLUMN_TAPS, entries * LANES)
    pixel = 2 * LANES  # the deviations of a pixel, then their inverses
    for side, (of_row, of_column) in enumerate(
        ((sweep.ROW_LEFT, sweep.COLUMN_LEFT), (sweep.ROW_RIGHT, sweep.COLUMN_RIGHT))
    ):
        arrays.put_indices(of_row, [0, rows[side] * PIXELS * pixel])
        arrays.put_indices(of_column, columns[side] * pixel)
    arrays.put_scales(sweep.PULL_ROW_SCALE, row_scales)
    arrays.put_scales(sweep.PULL_COLUMN_SCALE, column_scales)
    arrays.put_scales(sweep.BIAS, [bias])
    arrays.put_scales(sweep.SLOPE, [slope])
    arrays.put_work(sweep.SUM, sums)
    arrays.put_work(sweep.SUM_TANGENT, sums_tangent)
    arrays.put_work(sweep.ROW, np.zeros((COLUMNS, LANES)))
    arrays.put_work(sweep.ROW_TANGENT, np.zeros((COLUMNS, LANES)))
    arrays.header[sweep.COLUMNS_PULLED] = COLUMNS
    arrays.header[sweep.TRAINED] = trained
    arrays.header[sweep.RECTIFIED] = 1
    both = np.stack([deviations, 1 / deviations], axis=3).astype(dtype)
    rows_of_loop = arrays.call(both[0].ravel(), both[1].ravel(), row, True)

    left_sd, right_sd = (deviations[side, rows[side], columns[side]] for side in range(2))
    size = row_scales[row] * column_scales[:, None]
    expected = sweep.pulled_and_rectified(
        sums, sums_tangent, taps, size, bias, slope, trained, left_sd, right_sd
    )
    for one, other in zip(rows_of_loop, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=tolerance)
