"""A kernel matrix and targets: checked once, and the results given back as they came."""

from dataclasses import dataclass
from typing import Any, Generic, cast

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import (
    ArrayT,
    as_gram,
    as_targets,
    require_memory,
    require_symmetric,
)
from retarget.errors import InvalidInputError
from retarget.form import Form


@dataclass(frozen=True)
class Problem(Generic[ArrayT]):
    """A checked kernel matrix and targets, ready to compute on.

    Attributes:
        K: (n, n) Gram matrix in stream order. The caller's own memory: never written to.
        Y: (n, c) targets.
        start: (n, c) values of the starting function on the stream, or None for zero.
        form: In which the caller gave them.
    """

    K: Tensor
    Y: Tensor
    start: Tensor | None
    form: Form

    @property
    def residual(self) -> Tensor:
        """(n, c) the targets minus the starting function."""
        return self.Y if self.start is None else self.Y - self.start

    def give(self, result: Tensor) -> ArrayT:
        """Returns a result (n, c) in the caller's library and dtype, with the shape of Y."""
        return cast(ArrayT, self.form.give(result))


def as_problem(
    K: ArrayT, Y: Any, initial: Any = None, *, factored: bool = False
) -> Problem[ArrayT]:
    """Checks the inputs of the functional core: K (n, n), Y and optionally initial (n,) or (n, c).

    With `factored`, raises a `StreamTooLargeError` if the Cholesky factor of K cannot fit into
    memory, before reading the n^2 numbers of K.
    """
    gram = as_gram(K)
    if len(gram) == 0:
        raise InvalidInputError("K is empty; expected at least one sample")
    Y_given, start, dtype = as_stream_targets(Y, initial, len(gram), gram.dtype)
    for name, values in (("Y", Y_given), ("initial", start)):
        if values is not None and values.device != gram.device:
            raise InvalidInputError(
                f"{name} is on {values.device}, but K is on {gram.device}; move both to one device"
            )
    if factored:
        require_memory(
            f"the exact method on {len(gram)} samples",
            len(gram) ** 2 / 2,
            gram,
            "use a shorter stream, float32 or TargetCorrector, which never needs all of K at once",
        )
    require_symmetric("K", gram)
    # LAPACK has no half precision: such inputs are computed in float32, and results are converted
    # back to their dtype
    wide = torch.promote_types(dtype, torch.float32)
    return Problem(
        K=gram.to(wide),
        Y=Y_given.to(wide),
        start=None if start is None else start.to(wide),
        form=Form(numpy=not isinstance(K, Tensor), flat=np.ndim(Y) == 1, dtype=dtype),
    )


def as_stream_targets(
    Y: Any, initial: Any, n: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, torch.dtype]:
    """Returns Y and the starting function's values as (n, c) matrices, and the dtype for results.

    `n` and `dtype` are the size and type of the kernel matrix.
    """
    targets = as_targets("Y", Y)
    start = None if initial is None else as_targets("initial", initial)
    for name, values in (("Y", targets), ("initial", start)):
        if values is None:
            continue
        if len(values) != n:
            raise InvalidInputError(
                f"{name} has {len(values)} rows, but K is {n} x {n}; expected one row per sample, "
                "in the same order"
            )
        dtype = torch.promote_types(dtype, values.dtype)
    if start is not None and start.shape != targets.shape:
        raise InvalidInputError(
            f"initial has shape {np.shape(initial)}, but Y has shape {np.shape(Y)}; expected the "
            "same shape: the starting function's value for each target"
        )
    return targets, start, dtype
