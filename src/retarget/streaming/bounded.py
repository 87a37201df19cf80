"""Takes in a stream without keeping it: features are used instead of the kernel."""

import math
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import GrowingRows, give_back, require_finite, require_memory
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels import RBF, EmpiricalNTK, Features, Linear
from retarget.kernels.feature_maps import FeatureMap, feature_map
from retarget.learners import SGD
from retarget.state_files import checksum, require_shape
from retarget.streaming.intake import Intake
from retarget.theory.primal import FeatureRows

COMPARED = 32  # samples of a portion whose kernel is computed, to see how near the features come


class BoundedIntake(Intake):
    """The samples of the open block, and the features of those that are worked on.

    Everything is computed in float64, whatever the stream comes in: sums over an endless stream
    lose digits, and here they cost no memory to keep.

    Args:
        kernel: One that has features, or an estimate of them: see `feature_map`.
        learner: The online learner.
        memory: Number of features; the most that there may be, where the kernel has its own.
        seed: Seed of random features.

    Attributes:
        released: Samples that were let go.
        features: Number of features; 0 before the first samples are worked on.
    """

    def __init__(self, kernel: Any, learner: SGD, memory: int, seed: int) -> None:
        super().__init__(kernel, learner)
        if not isinstance(self.kernel, Linear | Features | RBF | EmpiricalNTK):
            raise InvalidTypeError(
                f"kernel is {kernel!r:.80}, which has no features that memory= could bound; "
                "expected Linear, Features, RBF or EmpiricalNTK: use rt.Features of a feature map "
                "of your own, or leave memory out"
            )
        self.map: FeatureMap = feature_map(self.kernel, memory, seed)
        self.kernel = self.map.kernel or self.kernel  # of a network as it is now
        self.memory, self.seed, self.released, self.features = memory, seed, 0, 0
        self._gap = self._size = 0.0  # sums of squares: of the features' error, of the kernel
        if not self.map.exact:
            like = torch.empty(0, dtype=torch.float64)
            require_memory(f"memory = {memory:,}", 4.0 * memory**2, like, "use a smaller memory")

    def __len__(self) -> int:
        return self.released + len(self.samples)

    @property
    def feature_error(self) -> float:
        """Relative Frobenius error of the features' inner products, where the kernel was looked at.

        NaN as long as it was not.
        """
        if self.map.exact:
            return 0.0
        return math.sqrt(self._gap / self._size) if self._size > 0 else math.nan

    def seen(self, rows: slice) -> FeatureRows:
        """The features of these samples, which must not have been released."""
        X = self.samples.rows[rows.start - self.released : rows.stop - self.released]
        result = self._features(X)
        if not self.map.exact and len(X) > 1:
            few = X[:COMPARED]
            K, approximate = self._wide(self._kernel(few, few)), result.gram[: len(few), : len(few)]
            self._gap += (approximate - K).square().sum().item()
            self._size += K.square().sum().item()
        return result

    def _features(self, X: Tensor) -> FeatureRows:
        Phi = self._wide(self.map(give_back(X, None if self.numpy else X)))
        if self.map.exact and Phi.shape[1] > self.memory:
            raise InvalidInputError(
                f"{self.kernel!r} has {Phi.shape[1]} features, and memory is {self.memory}; "
                f"expected at most that many: use memory={Phi.shape[1]} or more"
            )
        if self.features not in (0, Phi.shape[1]):
            raise InvalidInputError(
                f"X has {Phi.shape[1]} features; the stream so far has {self.features}"
            )
        self.features = Phi.shape[1]
        result = FeatureRows(Phi)
        require_finite("the kernel of the features", result.gram)
        return result

    def release(self, stop: int) -> None:
        """Lets the samples before this position go."""
        left = self.samples.rows[stop - self.released :].clone()
        self.samples = GrowingRows()
        self.samples.append(left)
        self.released = stop

    def fork(self) -> Self:
        """An intake that goes on from here by itself."""
        fork = super().fork()
        fork.samples = self.samples.clone()
        return fork

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and plain values."""
        return super().state_dict() | {
            "released": self.released,
            "features": self.features,
            "described": self._described(),
            "error": [self._gap, self._size],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this intake must be new."""
        super().load_state_dict(state)
        self.released, self.features = int(state["released"]), int(state["features"])
        self._gap, self._size = (float(part) for part in state["error"])
        if state["described"] != self._described():
            raise InvalidInputError(
                f"it was saved with the features {state['described']}, not {self._described()}"
            )
        possible = self.released >= 0 and 0 <= self._gap < math.inf and 0 <= self._size < math.inf
        if not possible or (self.features > 0) != (self.released > 0):
            raise InvalidInputError(
                f"released is {self.released}, features {self.features}, error {state['error']}"
            )

    def _described(self) -> dict[str, Any] | None:
        """What distinguishes the features from others, as far as a file can tell."""
        kernel = self.map.kernel
        if not isinstance(kernel, EmpiricalNTK):
            return self.map.description
        weights = checksum(f"{kernel!r} {self.memory} {self.seed}", kernel.module.state_dict())
        return {"weights": weights}

    def _restore_samples(self, samples: Any) -> None:
        shape = getattr(samples, "shape", (0,))[1:]
        self.samples.append(require_shape("samples", samples, None, *shape))
        self.device = samples.device

    def _wide_dtype(self, tensor: Tensor) -> torch.dtype:
        return torch.float64
