"""The base class of kernels, which registers those that have a name."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from retarget.arrays import ArrayT, as_tensor, give_back, panels, require_finite, require_float
from retarget.errors import InvalidInputError
from retarget.samples import Samples, library_of, shapes_of
from retarget.settings import in_plain_torch

PLAIN = str | int | float | None  # what a file can hold
NAMED: dict[str, type["Kernel"]] = {}  # the kernels that users can choose by name
KINDS: dict[str, type["Kernel"]] = {}  # those that a file can hold, by the `kind` in `to_dict`


class Kernel(ABC):
    r"""Base class of kernels: positive semi-definite functions of two samples.

    Call a kernel with samples as rows to get a matrix, as from scikit-learn's `rbf_kernel`.

    For a kernel of your own, define `_gram` and `_diag` on tensors of samples. With a name it can
    be chosen by that name wherever a kernel can: `class Mine(Kernel, name="mine")`, then
    `kernel="mine"`. Define `from_width` if it has a width, and `features(count, seed)`, which
    returns a function from samples to features (n, m) whose inner products estimate the kernel, if
    it has any. Its attributes are what is saved, if they are plain values and the arguments of its
    constructor; otherwise define `to_dict` and `from_dict`. (A kernel that cannot be made from a
    name alone, but saved, says what a file calls it: `class Mine(Kernel, kind="mine")`.)

    Attributes:
        name: What users call it, if anything; a name can be taken only once.
        exact_features: Whether the inner products of its features are the kernel itself.
        takes_new_samples: Whether it compares samples that it was not made of.

    Examples:
        >>> class Quadratic(Kernel, name="quadratic"):
        ...     def _gram(self, A, B):
        ...         return (A @ B.mT).square()
        ...     def _diag(self, A):
        ...         return A.square().sum(1).square()
        >>> import numpy as np, retarget as rt
        >>> rt.as_kernel("quadratic")(np.array([[1.0, 2.0]]))
        array([[25.]])
    """

    name: ClassVar[str | None] = None
    exact_features: ClassVar[bool] = False
    takes_new_samples: ClassVar[bool] = True

    def __init_subclass__(
        cls, name: str | None = None, kind: str | None = None, **arguments: Any
    ) -> None:
        super().__init_subclass__(**arguments)
        if name is not None:
            cls.name = name
            cls._register(NAMED, name)
        in_files = kind or name
        if in_files is not None:
            cls._register(KINDS, in_files)

    @classmethod
    def _register(cls, kernels: dict[str, type["Kernel"]], name: str) -> None:
        taken = kernels.get(name)
        # a module that is reloaded, as in a notebook, may define its kernels again
        if taken is not None and _place(taken) != _place(cls):
            raise InvalidInputError(
                f"the kernel name {name!r} is taken by {taken.__module__}.{taken.__qualname__}; "
                "expected another name"
            )
        kernels[name] = cls

    @in_plain_torch
    def __call__(self, A: ArrayT, B: ArrayT | None = None) -> ArrayT:
        """Returns the kernel (len(A), len(B)) between the rows of A and B; B defaults to A.

        `kernel(A)` is symmetric to the last bit.
        """
        left = self._samples("A", A)
        if B is None:
            K = self._symmetric_gram(left)
        else:
            right = self._samples("B", B)
            if shapes_of(left) != shapes_of(right):
                raise InvalidInputError(
                    f"A has samples of shape {shapes_of(left)}, but B of {shapes_of(right)}; "
                    "expected the same features in both"
                )
            if isinstance(left, Tensor) and left.is_floating_point() and right.is_floating_point():
                wider = torch.promote_types(left.dtype, right.dtype)  # nothing loses digits
                left, right = left.to(wider), right.to(wider)
            K = self._gram(left, right)
        result: ArrayT = give_back(K, library_of(A))
        return result

    @in_plain_torch
    def diag(self, A: ArrayT) -> ArrayT:
        """(len(A),) k(x, x) for each row."""
        result: ArrayT = give_back(self._diag(self._samples("A", A)), library_of(A))
        return result

    @classmethod
    def from_width(cls, width: float | Literal["auto"], X: Tensor | None = None) -> Self:
        """Makes the kernel with this width.

        Args:
            width: The distance over which the kernel falls; `"auto"` to choose it from the samples,
                or from their number of values if there are none.
            X: (n, d) samples.
        """
        if width != "auto":
            raise InvalidInputError(
                f"width is {width!r}, but the kernel {cls.name or cls.__name__!r} has no width; "
                "leave it out"
            )
        return cls()

    def explicit_features(self, count: int, seed: int) -> Callable[[Any], Any] | None:
        """Returns a function from samples to features; None if the kernel has none.

        A feature map is made from the function, which must not change later.
        """
        features = getattr(self, "features", None)
        return None if features is None else features(count, seed)

    def estimated_by(self, features: Any) -> "Kernel":
        """Returns the kernel of these explicit features: a copy, if this one may change later."""
        return self

    def to_dict(self) -> dict[str, Any] | None:
        """Returns plain values for `kernel_from_dict`; None if the kernel has no such form."""
        plain = all(isinstance(value, PLAIN) for value in vars(self).values())
        return {"kind": self.name, **vars(self)} if self.name is not None and plain else None

    def weights(self) -> Mapping[str, Tensor]:
        """Returns what a saved state tells this kernel from others by, beside plain values.

        A kernel of a network defines it: the network's weights and buffers, by name.
        """
        return {}

    @classmethod
    def from_dict(cls, *arguments: Any, **values: Any) -> Self:
        """Makes the kernel that `to_dict` described."""
        return cls(*arguments, **values)

    def _symmetric_gram(self, A: Samples) -> Tensor:
        """The Gram matrix, symmetric to the last bit; a kernel may compute half of it."""
        return mirror_lower(self._gram(A, A))

    @abstractmethod
    def _gram(self, A: Samples, B: Samples) -> Tensor: ...

    @abstractmethod
    def _diag(self, A: Samples) -> Tensor: ...

    def _samples(self, name: str, value: Any) -> Tensor:
        """Converts samples for the methods above: to a tensor, unless a kernel takes others."""
        samples = as_tensor(name, value)
        require_float(name, samples, "convert the features first")
        if samples.ndim == 0:
            raise InvalidInputError(f"{name} is a single number; expected one row per sample")
        require_finite(name, samples)
        return samples[:, None] if samples.ndim == 1 else samples


def mirror_lower(K: Tensor) -> Tensor:
    """Copies the lower triangle over the upper one, in place."""
    for rows in panels(len(K), 1, K.device):
        K[rows, rows.stop :] = K[rows.stop :, rows].mT
        block = K[rows, rows]
        block.copy_(block.tril() + block.tril(-1).mT)
    return K


def _place(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__
