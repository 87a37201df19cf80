"""retarget shows what an online learner has really learned, and corrects it.

    import retarget as rt

The functions of the core work on a Gram matrix `K` (n, n) and targets `Y` (n,) or (n, c), rows in
stream order, NumPy or torch; an `SGD` describes the online learner. The rest is built on them.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retarget.diagnosis.pipeline import diagnose
    from retarget.diagnosis.result import Diagnosis
    from retarget.errors import RetargetError
    from retarget.estimators import (
        OnlineKernelClassifier,
        OnlineKernelRegressor,
        StreamingRidgeClassifier,
        StreamingRidgeRegressor,
        TangentClassifier,
    )
    from retarget.kernels import (
        RBF,
        Affine,
        EmpiricalNTK,
        Features,
        InfiniteNTK,
        Kernel,
        Laplace,
        Linear,
        Matern32,
        Matern52,
        as_kernel,
    )
    from retarget.learners import SGD
    from retarget.networks.closed_loop import ClosedLoopCorrector
    from retarget.networks.corrector import NetworkCorrector
    from retarget.streaming.corrector import TargetCorrector
    from retarget.streaming.ridge.learner import StreamingRidge
    from retarget.streaming.ridge.tangent import TangentLearner
    from retarget.streaming.trackers import CorrectionTracker, ShiftTracker
    from retarget.theory.correction import (
        CorrectionTerms,
        corrected_targets,
        correction_terms,
        discrepancy,
        effective_targets,
    )
    from retarget.theory.iterative import distilled_targets, iterative_targets
    from retarget.theory.online import (
        offline_coefficients,
        offline_learning_curve,
        online_coefficients,
        online_learning_curve,
        prequential_errors,
    )

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
    "correction_terms",
    "CorrectionTerms",
    "discrepancy",
    "offline_learning_curve",
    "online_learning_curve",
    # the same for a stream that arrives in portions
    "TargetCorrector",
    "ShiftTracker",
    "CorrectionTracker",
    # learners with bounded memory
    "StreamingRidge",
    "TangentLearner",
    # scikit-learn estimators
    "OnlineKernelRegressor",
    "OnlineKernelClassifier",
    "StreamingRidgeRegressor",
    "StreamingRidgeClassifier",
    # a pretrained network that learns classes at any time
    "TangentClassifier",
    # a network, task by task and block by block
    "NetworkCorrector",
    "ClosedLoopCorrector",
    # a report on your own stream
    "diagnose",
    "Diagnosis",
    # kernels
    "Kernel",
    "RBF",
    "Laplace",
    "Matern32",
    "Matern52",
    "Linear",
    "Affine",
    "Features",
    "InfiniteNTK",
    "EmpiricalNTK",
    "as_kernel",
    # the base class of all errors in retarget.errors
    "RetargetError",
]


# torch, scikit-learn and Polars take seconds to import: each name is imported when it is used. Keep
# this in step with the imports above, which are for type checkers and editors.
_MODULES = {
    "networks.closed_loop": "ClosedLoopCorrector",
    "networks.corrector": "NetworkCorrector",
    "diagnosis.pipeline": "diagnose",
    "diagnosis.result": "Diagnosis",
    "errors": "RetargetError",
    "estimators": "OnlineKernelClassifier OnlineKernelRegressor "
    "StreamingRidgeClassifier StreamingRidgeRegressor TangentClassifier",
    "kernels": "RBF Affine EmpiricalNTK Features InfiniteNTK Kernel Laplace Linear Matern32 "
    "Matern52 as_kernel",
    "learners": "SGD",
    "streaming.corrector": "TargetCorrector",
    "streaming.ridge.learner": "StreamingRidge",
    "streaming.ridge.tangent": "TangentLearner",
    "streaming.trackers": "CorrectionTracker ShiftTracker",
    "theory.correction": "CorrectionTerms corrected_targets correction_terms discrepancy "
    "effective_targets",
    "theory.iterative": "distilled_targets iterative_targets",
    "theory.online": "offline_coefficients offline_learning_curve online_coefficients "
    "online_learning_curve prequential_errors",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(f"retarget.{_MODULE_OF[name]}"), name)
        globals()[name] = value  # the next lookup does not come here
        return value
    if not name.startswith("_") and find_spec(f"retarget.{name}"):
        return import_module(f"retarget.{name}")  # rt.kernels, rt.errors...
    raise AttributeError(f"module 'retarget' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
