"""Scikit-learn estimators that learn a stream, online or exactly."""

from retarget.estimators.online import OnlineKernelClassifier, OnlineKernelRegressor
from retarget.estimators.ridge import StreamingRidgeClassifier, StreamingRidgeRegressor

__all__ = [
    "OnlineKernelClassifier",
    "OnlineKernelRegressor",
    "StreamingRidgeClassifier",
    "StreamingRidgeRegressor",
]
