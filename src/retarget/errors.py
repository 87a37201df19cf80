"""Every error and warning. Messages say what was given, what was expected, and what to do."""

import sys
import warnings
from typing import Any

# Modules that are not the caller's own code: torch's decorators stand between ours.
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
    "LinearisationWarning",
    "MissingDataError",
    "MissingExtraError",
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
    """Any error that retarget raises on purpose."""

    # Exceptions are pickled by their positional arguments: keyword arguments must survive too.
    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.args, vars(self))


def _made_again(kind: type, arguments: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


class InvalidInputError(RetargetError, ValueError):
    """A value, shape or combination of options that has no meaning here."""


class DamagedFileError(InvalidInputError):
    """A file that is not as it was written: truncated, overwritten, or with bits changed."""


class InvalidTypeError(RetargetError, TypeError):
    """An input of the wrong type, integers where real numbers are needed for one."""


class NotPositiveDefiniteError(RetargetError, ArithmeticError):
    """A kernel matrix that has no Cholesky factor in its precision.

    Attributes:
        deficit: How far the smallest eigenvalue lies below what can be factorised.
        jitter: The amount to add to the diagonal (to gamma, or as ridge) that would do.
    """

    def __init__(self, message: str, *, deficit: float, jitter: float) -> None:
        super().__init__(message)
        self.deficit = deficit
        self.jitter = jitter


class NotConvergedError(RetargetError, ArithmeticError):
    """A solution that was looked for step by step and not found, or that does not exist."""


class DivergedError(RetargetError, ArithmeticError):
    """The online learner's error overflowed.

    Attributes:
        step: The optimiser's step (counted from 0) whose error is no longer finite.
        largest_stable_lr: A rate below which streams in random order do not blow up.
    """

    def __init__(self, message: str, *, step: int, largest_stable_lr: float) -> None:
        super().__init__(message)
        self.step = step
        self.largest_stable_lr = largest_stable_lr


class ResultOverflowError(RetargetError, OverflowError):
    """A result that is too large for the floating-point type that it is returned in."""


class TrainingDivergedError(RetargetError, ArithmeticError):
    """The loss of a network in training is not finite.

    Attributes:
        step: The first such step of the pass over the data, counted from 0.
        members: The networks, of those trained at once, whose loss it is.
    """

    def __init__(self, message: str, *, step: int, members: tuple[int, ...]) -> None:
        super().__init__(message)
        self.step = step
        self.members = members


class StreamTooLargeError(RetargetError, MemoryError):
    """The stream is too long for an exact method in the memory that is free."""


class MissingDataError(RetargetError, FileNotFoundError):
    """A data set whose files are not in the folder where they were looked for."""


class DownloadError(RetargetError, ConnectionError):
    """A file that could not be downloaded from any mirror, whole and with the right checksum."""


class MissingExtraError(RetargetError, ImportError):
    """A part of retarget whose extra packages are not installed."""


def missing_extra(what: str, error: ImportError, extra: str) -> MissingExtraError:
    """The error for a package that could not be imported, with the line that installs it."""
    return MissingExtraError(f'{what} ({error}); install it with: pip install "retarget[{extra}]"')


class ClusterError(RetargetError, RuntimeError):
    """A Dask cluster that cannot be used: not reached, of other versions, or losing its workers."""


class UnreachableTargetsError(RetargetError, ArithmeticError):
    """No targets lead this learner to the wanted function."""


class PrecisionWarning(UserWarning):
    """The result has few or no correct digits in the precision that it was computed in."""


class DivergenceWarning(UserWarning):
    """The online learner blows up at this rate, though no number has overflowed yet.

    Either its errors grow far beyond its targets, or it amplifies rounding errors until less than
    two digits of what it learns are right.
    """


class LargeTargetsWarning(UserWarning):
    """Targets of a cross-entropy learner that lie far outside [0, 1].

    They are exact, but the steps that they cause are many times those of any true label: a network
    leaves its tangent kernel, and training in low precision loses digits.
    """


class LinearisationWarning(UserWarning):
    """A network did not do what its tangent kernel said it would.

    Corrected targets are exact for the kernel; a network follows them only while its kernel hardly
    changes. If it changes, the targets lead somewhere else.
    """


class DamagedFileWarning(UserWarning):
    """A file that could not be read was set aside, and is made again."""


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warns at the line of the caller's own code, however deep inside retarget the reason is."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
