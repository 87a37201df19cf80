"""retarget shows what an online learner has really learned, and corrects it.

    import retarget as rt

The functions of the core work on a Gram matrix `K` (n, n) and targets `Y` (n,) or (n, c), rows in
stream order, NumPy or torch; an `SGD` describes the online learner. The rest is built on them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from retarget.continual.corrector import NetworkCorrector
from retarget.errors import (
    ClusterError,
    DamagedFileError,
    DamagedFileWarning,
    DivergedError,
    DivergenceWarning,
    DownloadError,
    InvalidInputError,
    InvalidTypeError,
    MissingDataError,
    MissingExtraError,
    NotPositiveDefiniteError,
    PrecisionWarning,
    ResultOverflowError,
    RetargetError,
    StreamTooLargeError,
    TrainingDivergedError,
    UnreachableTargetsError,
)
from retarget.kernels import RBF, EmpiricalNTK, Features, InfiniteNTK, Linear, as_kernel
from retarget.learners import SGD
from retarget.streaming.corrector import TargetCorrector
from retarget.streaming.trackers import CorrectionTracker, ShiftTracker
from retarget.theory.correction import corrected_targets
from retarget.theory.correction_terms import CorrectionTerms, correction_terms
from retarget.theory.curves import offline_learning_curve, online_learning_curve
from retarget.theory.discrepancy import discrepancy
from retarget.theory.distillation import distilled_targets
from retarget.theory.iterative import iterative_targets
from retarget.theory.offline import offline_coefficients
from retarget.theory.online import online_coefficients, prequential_errors
from retarget.theory.shift import effective_targets

if TYPE_CHECKING:
    from retarget.diagnosis.api import diagnose
    from retarget.diagnosis.result import Diagnosis
    from retarget.estimators import OnlineKernelClassifier, OnlineKernelRegressor

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 (grouped by what they are for, not by the alphabet)
    # the learner
    "SGD",
    # the theory, on (K, Y)
    "offline_coefficients",
    "online_coefficients",
    "prequential_errors",
    "effective_targets",
    "corrected_targets",
    "iterative_targets",
    "distilled_targets",
    "discrepancy",
    "correction_terms",
    "CorrectionTerms",
    "offline_learning_curve",
    "online_learning_curve",
    # the same, fed portion by portion
    "TargetCorrector",
    "ShiftTracker",
    "CorrectionTracker",
    # scikit-learn estimators
    "OnlineKernelRegressor",
    "OnlineKernelClassifier",
    # a network, task by task
    "NetworkCorrector",
    # a stream of the user's own
    "diagnose",
    "Diagnosis",
    # kernels
    "RBF",
    "Linear",
    "Features",
    "InfiniteNTK",
    "EmpiricalNTK",
    "as_kernel",
    # what can go wrong
    "RetargetError",
    "InvalidInputError",
    "InvalidTypeError",
    "NotPositiveDefiniteError",
    "DivergedError",
    "DivergenceWarning",
    "ResultOverflowError",
    "TrainingDivergedError",
    "StreamTooLargeError",
    "MissingDataError",
    "DownloadError",
    "MissingExtraError",
    "ClusterError",
    "DamagedFileError",
    "DamagedFileWarning",
    "UnreachableTargetsError",
    "PrecisionWarning",
]


# scikit-learn and Polars take a second to import: only those who use these wait for them.
_LATER = {
    "OnlineKernelRegressor": "retarget.estimators",
    "OnlineKernelClassifier": "retarget.estimators",
    "diagnose": "retarget.diagnosis.api",
    "Diagnosis": "retarget.diagnosis.result",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'retarget' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
