"""Scikit-learn estimators that learn a stream online, with or without corrected targets."""

from retarget.estimators.classifier import OnlineKernelClassifier
from retarget.estimators.regressor import OnlineKernelRegressor

__all__ = ["OnlineKernelClassifier", "OnlineKernelRegressor"]
