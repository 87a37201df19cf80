"""What features instead of the kernel change, measured where both can be had."""

import math

import torch
from torch import Tensor

from retarget.diagnosis.kernels.feature_maps import FeatureMap
from retarget.diagnosis.kernels.full import FullKernel
from retarget.diagnosis.measure.passes import learn_online
from retarget.diagnosis.result import Approximation
from retarget.kernels import Kernel, PrecomputedKernel
from retarget.learners import SGD
from retarget.theory.response import final_response

SAMPLE_ROWS = 2000


def measure_approximation(
    kernel: Kernel,
    features: FeatureMap,
    X: Tensor,
    Y: Tensor,
    learner: SGD,
    gamma: float,
    needed: int,
    limit: int,
) -> Approximation:
    """Runs the learner on evenly spaced rows of the stream with the kernel and with the features.

    Evenly spaced, so that the sample tells the whole stream's story in its order.

    Args:
        kernel: The kernel.
        features: What takes its place.
        X: (n, d) the stream.
        Y: (n, c) its targets.
        learner: The online learner.
        gamma: The offline learner's ridge.
        needed: Bytes of the exact method.
        limit: Bytes that it may have.
    """
    sample = sample_kernel(kernel, X, Y)
    n, Y, K = len(sample), sample.Y, sample.K
    Phi = features(sample.X)
    near = Phi @ Phi.mT
    shift, predicted = _shift(K, Y, learner, gamma)
    shift_near, predicted_near = _shift((near + near.mT) / 2, Y, learner, gamma)
    return Approximation(
        features=features.size,
        kind=features.kind,
        exact_memory=needed,
        memory_limit=limit,
        sample=n,
        kernel_error=relative_difference(near, K),
        shift_error=relative_difference(shift_near, shift),
        prediction_error=relative_difference(predicted_near, predicted),
    )


def sample_kernel(kernel: Kernel, X: Tensor, Y: Tensor) -> FullKernel:
    """The true kernel of rows evenly spaced over the stream."""
    last, n = len(X) - 1, min(len(X), SAMPLE_ROWS)
    chosen = torch.linspace(0, last, n, dtype=torch.float64).round().long()
    return FullKernel(kernel, X[chosen], Y[chosen], lambda _: None)


def relative_difference(got: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of what was expected."""
    size, gap = (float(torch.linalg.vector_norm(part)) for part in (expected, got - expected))
    return gap / size if size else gap


def _shift(K: Tensor, Y: Tensor, learner: SGD, gamma: float) -> tuple[Tensor, Tensor]:
    """The shift of each row, and what the learner predicts for it before learning it."""
    rows = torch.arange(len(K))
    kernel = FullKernel(PrecomputedKernel(K), rows, Y, lambda _: None)
    (run,) = learn_online(kernel, [(learner, Y)])
    if run.errors is None or run.coefficients is None:
        return torch.full_like(Y, math.nan), torch.full_like(Y, math.nan)
    dual = run.errors.new_tensor(final_response(learner, len(K)))[:, None] * run.errors
    return gamma * dual + K @ dual - Y, Y - run.errors
