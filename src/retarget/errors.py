"""Every error and warning. Messages say what was given, what was expected, and what to do."""

import copyreg
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")

# Modules that are not the caller's code; torch's decorators appear between our own frames.
OURS = ("retarget", "torch")

__all__ = [
    "ClusterError",
    "DamagedFileError",
    "DamagedFileWarning",
    "DivergedError",
    "DivergenceWarning",
    "DownloadError",
    "InvalidInputError",
    "InvalidTypeError",
    "LargeTargetsWarning",
    "LinearizationWarning",
    "MissingDataError",
    "MissingExtraError",
    "ModelRunError",
    "NotConvergedError",
    "NotPositiveDefiniteError",
    "PrecisionWarning",
    "ResultOverflowError",
    "RetargetError",
    "StreamTooLargeError",
    "TrainingDivergedError",
    "UnreachableTargetsError",
]


class RetargetError(Exception):
    """Base class of every error that retarget raises on purpose."""

    # Exceptions are pickled by their positional arguments: keyword arguments must survive too.
    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class InvalidInputError(RetargetError, ValueError):
    """A value, shape or combination of options is not valid."""


class DamagedFileError(InvalidInputError):
    """A file has changed since it was written: truncated, overwritten, or with flipped bits."""


class ModelRunError(RetargetError):
    """The user's own model failed while it was run."""


class InvalidTypeError(RetargetError, TypeError):
    """An input has the wrong type, for example integers instead of floating point."""


class NotPositiveDefiniteError(RetargetError, ArithmeticError):
    """A kernel matrix that has no Cholesky factor in its precision.

    Attributes:
        deficit: How far the smallest eigenvalue lies below what can be factorized.
        jitter: An amount that is enough to add to the diagonal (to gamma, or as ridge).
    """

    def __init__(self, message: str, *, deficit: float, jitter: float) -> None:
        super().__init__(message)
        self.deficit = deficit
        self.jitter = jitter


class NotConvergedError(RetargetError, ArithmeticError):
    """An iterative solver found no solution, or there is none."""


class DivergedError(RetargetError, ArithmeticError):
    """The online learner's error overflowed.

    Attributes:
        step: The optimizer's step (counted from 0) whose error is no longer finite.
        largest_stable_lr: A rate below which streams in random order do not blow up.
    """

    def __init__(self, message: str, *, step: int, largest_stable_lr: float) -> None:
        super().__init__(message)
        self.step = step
        self.largest_stable_lr = largest_stable_lr


class ResultOverflowError(RetargetError, OverflowError):
    """A result is too large for the floating-point type it is returned in."""


class TrainingDivergedError(RetargetError, ArithmeticError):
    """The loss of a network in training is not finite.

    Attributes:
        step: The first such step of the pass over the data, counted from 0.
        members: Which of the networks trained together have that loss, counted from 0.
    """

    def __init__(self, message: str, *, step: int, members: tuple[int, ...]) -> None:
        super().__init__(message)
        self.step = step
        self.members = members


class StreamTooLargeError(MemoryError, RetargetError):  # in this order it can be unpickled
    """The stream is too long for an exact method to fit into the free memory."""


class MissingDataError(RetargetError, FileNotFoundError):
    """The files of a data set are not in the folder where they are expected."""


class DownloadError(RetargetError, ConnectionError):
    """A file could not be downloaded, complete and with the right checksum, from any mirror."""


class MissingExtraError(RetargetError, ImportError):
    """A part of retarget needs optional packages that are not installed."""


def missing_extra(what: str, error: ImportError, extra: str) -> MissingExtraError:
    """Makes the error for a package that cannot be imported, with the command to install it."""
    return MissingExtraError(f"{what} ({error}); install it with: {install_line(extra)}")


def a_type(value: object) -> str:
    """Says of which type a value is, in an error message.

    Examples:
        >>> a_type(3), a_type("3"), a_type([3])
        ('an int', 'a str', 'a list')
    """
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIOaeio" else f"a {name}"


def require_extra(what: str, extra: str, *packages: str) -> None:
    """Ends a script with one sentence if packages that it needs are not installed.

    Args:
        what: What needs them.
        extra: The extra that brings them, or several with commas between.
        packages: Their names, as they are imported.
    """
    for package in packages:
        if find_spec(package) is None:
            error = ImportError(f"No module named {package!r}")
            sys.exit(str(missing_extra(f"{what} needs {package}", error, extra)))


def install_line(extra: str) -> str:
    """Returns the command that installs an extra: in a clone, or from a package index."""
    package = "." if _from_a_folder() else "retarget"
    return f'pip install "{package}[{extra}]"'


def _from_a_folder() -> bool:
    """Whether this is a clone (also an editable install), or was installed from one."""
    if (Path(__file__).parents[2] / "pyproject.toml").is_file():
        return True
    import json  # with the next one 40 ms, for an error message
    from importlib import metadata

    try:
        origin = metadata.distribution("retarget").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    return "dir_info" in json.loads(origin or "{}")  # PEP 610


class ClusterError(RetargetError, RuntimeError):
    """A Dask cluster cannot be used: unreachable, with other versions, or losing its workers."""


class UnreachableTargetsError(RetargetError, ArithmeticError):
    """No targets lead this learner to the wanted function."""


class PrecisionWarning(UserWarning):
    """The result has few or no correct digits in the precision that it was computed in."""


class DivergenceWarning(UserWarning):
    """The online learner blows up at this rate, though no number has overflowed yet.

    Either its errors grow far beyond its targets, or it amplifies rounding errors until fewer than
    two digits of what it learns are correct.
    """


class LargeTargetsWarning(UserWarning):
    """Targets that lie far from all true ones: with cross-entropy far outside [0, 1].

    They are exact, but cause steps many times longer than any true target does: a network then no
    longer follows its tangent kernel, and training in low precision loses digits. With the squared
    loss only the corrector of a network warns, because a kernel machine follows them anywhere.
    """


class LinearizationWarning(UserWarning):
    """A network did not do what its tangent kernel predicted.

    Corrected targets are exact for the kernel; a network follows them only while its kernel hardly
    changes. If it changes, the targets lead somewhere else.
    """


class DamagedFileWarning(UserWarning):
    """A file could not be read; it was set aside and is computed again."""


def own_constructor(cls: type[T]) -> type[T]:
    """Gives a class its own copy of an inherited constructor.

    Python names the class that defines the constructor in a `TypeError`, which the caller of a
    subclass has never heard of.

    Examples:
        >>> import retarget as rt
        >>> rt.StreamingRidgeRegressor(alpha=1.0)
        Traceback (most recent call last):
        ...
        TypeError: StreamingRidgeRegressor.__init__() got an unexpected keyword argument 'alpha'
    """
    given: Any = cls.__init__
    copied = FunctionType(
        given.__code__, given.__globals__, given.__name__, given.__defaults__, given.__closure__
    )
    copied.__kwdefaults__ = given.__kwdefaults__
    copied.__annotations__ = given.__annotations__
    copied.__doc__ = given.__doc__
    copied.__module__ = cls.__module__
    copied.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = copied  # type: ignore[method-assign]
    return cls


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issues a warning that points to the caller's own line, however deep inside retarget."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in OURS:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
