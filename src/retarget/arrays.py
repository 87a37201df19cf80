"""Converts the caller's arrays to checked tensors, and results back to the caller's library.

NumPy arrays are wrapped without a copy and results return as NumPy; torch stays torch. The tensors
are floating point and finite, with matching shapes and on one device.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    ResultOverflowError,
    StreamTooLargeError,
    a_type,
)

Array = np.ndarray | Tensor
ArrayT = TypeVar("ArrayT", np.ndarray, Tensor)
T = TypeVar("T")

# Rows worked on at a time: enough for BLAS to run at full speed, few enough that a panel's
# square stays in cache (CPU) or fills the device (CUDA). Measured by benchmarks/iterative.py.
PANEL_ROWS = {"cpu": 256}
PANEL_ROWS_ELSEWHERE = 2048

# Types with arithmetic; torch also has types without (float8, quantized).
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)
EXACT_INTEGERS = 2**53  # float64 represents every whole number up to this exactly


def as_tensor(name: str, value: Any) -> Tensor:
    """The caller's array as a tensor that shares its memory, detached from any graph."""
    if isinstance(value, Tensor):
        _require_plain(name, value)
        return value.detach() if value.requires_grad else value
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidInputError(
            f"{name} is a masked array with {np.ma.getmaskarray(value).sum()} masked entries; "
            "expected a number in every entry: remove or fill in the masked ones first"
        )
    if hasattr(value, "toarray"):
        raise InvalidTypeError(
            f"{name} is a sparse {type(value).__name__}; expected a dense array: pass "
            f"{name}.toarray()"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, for example
        raise InvalidTypeError(
            f"{name} is {a_type(value)} that is not an array of numbers ({error}); "
            "expected rows of equal length"
        ) from error
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InvalidTypeError(
            f"{name} has dtype {array.dtype}; expected float16, float32 or float64"
        )
    # torch knows no backward strides, none between two numbers, and one order of bytes
    shared = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    if not shared or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():  # which is not safe in threads
        # torch warns that a read-only array could be written to through it: we never do
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        return torch.from_numpy(array)


def _require_plain(name: str, tensor: Tensor) -> None:
    """Rejects tensors that are sparse, on the meta device or without real numbers."""
    if tensor.is_nested:
        raise InvalidTypeError(
            f"{name} is a nested tensor; expected rows of equal length: pass "
            f"torch.nested.to_padded_tensor({name}, padding), or the rows one length at a time"
        )
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise InvalidTypeError(
            f"{name} is a tensor of layout {layout}; expected a dense one: pass {name}.to_dense()"
        )
    if tensor.is_meta:
        raise InvalidTypeError(
            f"{name} is on the meta device, which holds no numbers; expected a tensor with data"
        )
    if tensor.dtype not in FLOATS + INTEGERS:
        raise InvalidTypeError(
            f"{name} has dtype {_name(tensor)}; expected float16, bfloat16, float32 or float64"
        )


def give_back(result: Tensor, like: Any, dtype: torch.dtype | None = None) -> Any:
    """Returns a result in the caller's library, converted to `dtype` if that is given."""
    if dtype is not None:
        result = result.to(dtype)
        require_no_overflow(result)
    if isinstance(like, Tensor):
        return result
    if result.dtype == torch.bfloat16:
        raise InvalidTypeError(
            "the result is bfloat16, which NumPy does not have; pass torch tensors, or use a "
            "module in another precision"
        )
    return result.cpu().numpy()


def _first_infinite_row(tensor: Tensor) -> int | None:
    """The first row that holds NaN or infinity; None if all numbers are finite."""
    # The sum is finite unless an entry is not (or the sum overflows: then look closer).
    # It costs one pass and no memory, whereas isfinite() would build a mask.
    if tensor.numel() == 0 or math.isfinite(tensor.sum().item()):
        return None
    return _first_row(tensor, lambda rows: ~rows.isfinite())


def _first_row(tensor: Tensor, wrong: Callable[[Tensor], Tensor]) -> int | None:
    """The first row that has a wrong number, looked for in a few rows at a time."""
    for start in range(0, len(tensor), 1024):
        rows = tensor[start : start + 1024]
        bad = wrong(rows).reshape(len(rows), -1).any(dim=1)
        if bad.any():
            return start + int(bad.nonzero()[0, 0])
    return None


def require_no_overflow(result: Tensor) -> None:
    """Rejects a result (n, ...) that overflowed its dtype although the inputs are finite."""
    row = _first_infinite_row(result)
    if row is not None:
        limits = torch.finfo(result.dtype)
        raise ResultOverflowError(
            f"the result for row {row} is beyond {limits.max:.3g}, the largest number of "
            f"{limits.dtype}; scale the targets down"
            + ("" if result.dtype == torch.float64 else ", or convert the inputs to float64")
        )


def require_float(name: str, tensor: Tensor, hint: str) -> None:
    """Rejects integers and booleans, with which the computation would be wrong or fail."""
    if not tensor.is_floating_point():
        raise InvalidTypeError(f"{name} has dtype {_name(tensor)}; expected floating point: {hint}")


def require_finite(name: str, tensor: Tensor, first_row: int = 0) -> None:
    """Rejects NaN and infinity, naming the first row that has one."""
    row = _first_infinite_row(tensor)
    if row is not None:
        value = tensor[row][~tensor[row].isfinite()].reshape(-1)[0].item()
        raise InvalidInputError(
            f"{name} holds {value} in row {first_row + row}; expected finite numbers: remove or "
            "fill in missing values first"
        )


def require_numbers(name: str, tensor: Tensor, first_row: int = 0) -> None:
    """Rejects NaN, naming the first row that has one; infinities are allowed, as in masks."""
    if not tensor.numel() or not math.isnan(tensor.sum().item()):  # NaN spoils every sum
        return
    row = _first_row(tensor, torch.isnan)
    if row is not None:
        raise InvalidInputError(
            f"{name} holds nan in row {first_row + row}; expected numbers: remove or fill in "
            "missing values first"
        )


def as_targets(name: str, value: Any, first_row: int = 0) -> Tensor:
    """Returns targets as a finite float matrix; error messages count rows from `first_row`."""
    Y = as_tensor(name, value)
    require_float(name, Y, "convert it first, or one-hot encode class labels")
    if Y.ndim not in (1, 2) or (Y.ndim == 2 and Y.shape[1] == 0):
        raise InvalidInputError(
            f"{name} has shape {tuple(Y.shape)}; expected (n,) or (n, outputs), one row per sample"
        )
    require_finite(name, Y, first_row)
    return Y if Y.ndim == 2 else Y[:, None]


def as_gram(K: Any) -> Tensor:
    """The caller's Gram matrix K (n, n); `require_symmetric` checks its numbers."""
    gram = as_tensor("K", K)
    require_float("K", gram, "convert it first")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise InvalidInputError(
            f"K has shape {tuple(gram.shape)}; expected (n, n), the Gram matrix of the stream"
        )
    return gram


def require_symmetric(name: str, K: Tensor) -> None:
    """Rejects a matrix that is not finite, or differs from its transpose by more than rounding.

    A matrix that is neither rejected for the one nor for the other is read only once.
    """
    extremes = [extreme for _, _, gap in _asymmetry(K) for extreme in gap.aminmax()]
    *gaps, scale = torch.stack([*extremes, K.diagonal().abs().max()]).tolist()
    tolerance = 1e3 * torch.finfo(K.dtype).eps * scale
    if all(abs(gap) <= tolerance for gap in gaps):
        return
    require_finite(name, K)  # NaN and infinity have no difference that is below anything
    for i, j, gap in _asymmetry(K):
        if gap.abs_().max().item() > tolerance:
            row, column = divmod(int(gap.argmax()), gap.shape[1])
            raise InvalidInputError(
                f"{name} is not symmetric: entries ({i + row}, {j + column}) and "
                f"({j + column}, {i + row}) differ by {gap.max().item():.3g}; expected a Gram "
                f"matrix, or pass (K + K.T) / 2 if the difference is noise"
            )


def _asymmetry(K: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """The lower triangle of K - K^T, tile by tile: (first row, first column, tile)."""
    tile = panel_rows(K.device)  # on a CPU, both tiles fit into the cache
    for i in range(0, len(K), tile):
        for j in range(0, i + 1, tile):
            rows = slice(i, i + tile)
            columns = slice(j, j + tile)
            yield i, j, K[rows, columns] - K[columns, rows].T


def panel_rows(device: torch.device) -> int:
    """Number of rows to process at a time on this device."""
    return PANEL_ROWS.get(device.type, PANEL_ROWS_ELSEWHERE)


def panels(n: int, multiple: int, device: torch.device) -> Iterator[slice]:
    """Yields consecutive row ranges; all but the last have a multiple of `multiple` rows."""
    rows = max(1, panel_rows(device) // multiple) * multiple
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on the device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def require_memory(what: str, numbers: float, like: Tensor, instead: str) -> None:
    """Rejects work whose largest arrays cannot fit, before allocating any of them."""
    needed = numbers * like.element_size()
    free = free_memory(like.device)
    if free is not None and needed > free:
        raise StreamTooLargeError(
            f"{what} needs about {needed / 1e9:.1f} GB on {like.device}, but only "
            f"{free / 1e9:.1f} GB are free; {instead}"
        )


def shallow(thing: T) -> T:
    """A copy that shares every attribute: as `copy.copy`, at a tenth of the price."""
    twin: T = object.__new__(type(thing))
    twin.__dict__ = thing.__dict__.copy()
    return twin


def claim(free: list[int], size: int) -> bool:
    """Whether the rows from `size` on are still free, in a buffer that forks share.

    `free` has the first row that none of them has, which is taken out: also of forks in different
    threads, only one gets it. Put the new one back when the rows are written.
    """
    try:
        first = free.pop()
    except IndexError:  # another one is about to write
        return False
    if first != size:
        free.append(first)
    return first == size


class GrowingRows:
    """Rows in one buffer that doubles when it is full; mixed dtypes are promoted without loss.

    Forks share the buffer: the first one that appends goes on in it, and the others take a copy.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._buffer: Tensor | None = None
        self._size = 0
        self._free = [0]  # the first row of the buffer that no fork has; see `claim`

    def __len__(self) -> int:
        return self._size

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the rows; None before the first."""
        return None if self._buffer is None else self._buffer.dtype

    @property
    def rows(self) -> Tensor:
        """All rows so far, as a view."""
        if self._buffer is None:
            raise InvalidInputError("nothing has been appended yet")
        return self._buffer[: self._size]

    def append(self, rows: Tensor) -> None:
        """Appends a copy of `rows`."""
        size = self._size + rows.shape[0]
        dtype = rows.dtype
        buffer = self._buffer
        if buffer is not None and buffer.dtype != dtype:
            dtype = _lossless_dtype(self.rows, rows)
        fits = buffer is not None and size <= buffer.shape[0] and dtype == buffer.dtype
        if buffer is None or not fits or not claim(self._free, self._size):
            capacity = max(size, 2 * self._size, self._capacity)
            buffer = rows.new_empty((capacity, *rows.shape[1:]), dtype=dtype)
            if self._buffer is not None:
                buffer[: self._size] = self._buffer[: self._size]
            self._buffer = buffer
            self._free = []
        buffer[self._size : size] = rows
        self._size = size
        self._free.append(size)

    def fork(self) -> Self:
        """Returns an independent copy to append to, at no cost; neither may change the rows."""
        return shallow(self)

    def clone(self) -> Self:
        """Returns an independent copy, whose rows may be changed."""
        twin = shallow(self)
        twin._buffer = None if self._buffer is None else self._buffer.clone()
        twin._free = [self._size]
        return twin


def _lossless_dtype(one: Tensor, other: Tensor) -> torch.dtype:
    """The smallest dtype that represents the numbers of both exactly."""
    # NumPy's rules, because torch promotes int64 and float32 to float32. NumPy has no bfloat16.
    names = [
        "float32" if tensor.dtype == torch.bfloat16 else _name(tensor) for tensor in (one, other)
    ]
    dtype: torch.dtype = getattr(torch, np.promote_types(*names).name)
    for tensor in (one, other):
        if dtype.is_floating_point and not tensor.is_floating_point() and tensor.numel():
            values = tensor.cpu().numpy()
            if max(abs(int(values.min())), abs(int(values.max()))) > EXACT_INTEGERS:
                raise InvalidInputError(
                    f"the stream has samples in {_name(one)} and in {_name(other)}, and whole "
                    "numbers beyond 2**53, which float64 cannot hold; convert them to one dtype"
                )
    return dtype


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
