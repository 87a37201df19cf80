"""Scikit-learn estimators for streams: online kernel learners, and exact ridge regression."""

from retarget.estimators.online import OnlineKernelClassifier, OnlineKernelRegressor
from retarget.estimators.ridge import StreamingRidgeClassifier, StreamingRidgeRegressor
from retarget.estimators.tangent import TangentClassifier

__all__ = [
    "OnlineKernelClassifier",
    "OnlineKernelRegressor",
    "StreamingRidgeClassifier",
    "StreamingRidgeRegressor",
    "TangentClassifier",
]
