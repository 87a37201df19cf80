# The public names, and where each is defined: read when retarget is imported, and by type checkers.

__version__: str

# the learner
from .learners import SGD as SGD

# the theory, on (K, Y)
from .theory.online import offline_coefficients as offline_coefficients
from .theory.online import online_coefficients as online_coefficients
from .theory.online import prequential_errors as prequential_errors
from .theory.correction import effective_targets as effective_targets
from .theory.correction import corrected_targets as corrected_targets
from .theory.iterative import iterative_targets as iterative_targets
from .theory.iterative import distilled_targets as distilled_targets
from .theory.correction import correction_terms as correction_terms
from .theory.correction import CorrectionTerms as CorrectionTerms
from .theory.correction import discrepancy as discrepancy
from .theory.online import offline_learning_curve as offline_learning_curve
from .theory.online import online_learning_curve as online_learning_curve

# the same for a stream that arrives in portions
from .streaming.corrector import TargetCorrector as TargetCorrector
from .streaming.trackers import ShiftTracker as ShiftTracker
from .streaming.trackers import CorrectionTracker as CorrectionTracker

# learners with bounded memory
from .streaming.ridge.learner import StreamingRidge as StreamingRidge
from .streaming.ridge.tangent import TangentLearner as TangentLearner

# scikit-learn estimators
from .estimators import OnlineKernelRegressor as OnlineKernelRegressor
from .estimators import OnlineKernelClassifier as OnlineKernelClassifier
from .estimators import StreamingRidgeRegressor as StreamingRidgeRegressor
from .estimators import StreamingRidgeClassifier as StreamingRidgeClassifier

# a pretrained network that learns classes at any time
from .estimators import TangentClassifier as TangentClassifier

# a network, task by task and block by block
from .networks.corrector import NetworkCorrector as NetworkCorrector
from .networks.closed_loop import ClosedLoopCorrector as ClosedLoopCorrector

# a report on your own stream
from .diagnosis.pipeline import diagnose as diagnose
from .diagnosis.result import Diagnosis as Diagnosis

# kernels
from .kernels import Kernel as Kernel
from .kernels import RBF as RBF
from .kernels import Laplace as Laplace
from .kernels import Matern32 as Matern32
from .kernels import Matern52 as Matern52
from .kernels import Linear as Linear
from .kernels import Affine as Affine
from .kernels import Features as Features
from .kernels import InfiniteNTK as InfiniteNTK
from .kernels import EmpiricalNTK as EmpiricalNTK
from .kernels import as_kernel as as_kernel

# the base class of all errors in retarget.errors
from .errors import RetargetError as RetargetError

# rooms that need no import of their own
from . import errors as errors
from . import kernels as kernels
from . import lab as lab
from . import theory as theory
