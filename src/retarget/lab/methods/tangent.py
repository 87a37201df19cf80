"""Least squares instead of training: on a network's tangents, or on its last hidden layer.

Both train the network by plain SGD on the first task (the first session), and leave it unchanged
afterwards. Later tasks are learned exactly, in any order, without keeping samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from retarget.errors import InvalidInputError
from retarget.lab.methods import Method
from retarget.samples import evaluating
from retarget.scalars import as_count
from retarget.streaming.ridge.answers import Prepared
from retarget.streaming.ridge.learner import Precision, StreamingRidge, as_ridge
from retarget.streaming.ridge.tangent import TangentLearner
from retarget.streaming.ridge.views import View

if TYPE_CHECKING:
    from retarget.lab.figures.training import NetworkRun
    from retarget.lab.training import Run


class _AfterFirstSession(Method, ABC):
    """Trains on the first task, then learns all tasks by least squares; see the subclasses."""

    capturable = True

    def __init__(
        self,
        gamma: float | Literal["auto"],
        first_epochs: int,
        views: Sequence[View] | None,
        precision: Precision,
    ) -> None:
        self.gamma = as_ridge(gamma)
        self.views = views
        self.precision = precision
        if first_epochs < 0:
            raise InvalidInputError(f"first_epochs is {first_epochs}; expected 0 or more")
        self.first_epochs = first_epochs

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        run = runs[0]
        return {
            "first_epochs": run.first_epochs,
            "views": run.shown,
            "precision": run.precision,
        }

    def on_start(self, run: "Run") -> None:
        self._seeds = [int(random.integers(2**31)) for random in run.random]
        self._learners: list[StreamingRidge] = []
        self._tested: dict[int, Prepared] = {}
        self._tasks = 0  # number of tasks learned so far

    def epochs(self, run: "Run", wanted: int) -> int:
        return self.first_epochs if run.task == 0 else 0

    def on_task_end(self, run: "Run") -> None:
        self._learn(run, run.task)

    def test_outputs(self, run: "Run", member: int) -> Tensor | None:
        if not self._learners:
            return None
        learner = self._learners[member]
        if member not in self._tested:  # the features are the same at every evaluation
            self._tested[member] = learner.prepare(run.test.inputs(member, slice(None)))
        return cast(Tensor, learner.predict(self._tested[member]))

    def kept_bytes(self, run: "Run") -> int:
        return self._learners[0].nbytes if self._learners else 0

    def state_dict(self, run: "Run") -> dict[str, Any]:
        return {"tasks": self._tasks, "seeds": self._seeds}  # the sums are computed again

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        self._seeds = state["seeds"]
        for task in range(state["tasks"]):
            self._learn(run, task)

    def _learn(self, run: "Run", task: int) -> None:
        if not self._learners:  # after the first session
            self._learners = [
                self._learner(module, seed)
                for module, seed in zip(run.ensemble.modules, self._seeds, strict=True)
            ]
        for member, learner in enumerate(self._learners):
            span = run.train.spans[member][task]
            learner.learn(run.train.inputs(member, span), run.targets[member, span])
        self._tasks = task + 1

    @abstractmethod
    def _learner(self, module: nn.Module, seed: int) -> StreamingRidge:
        """Returns the learner of one member, with the features of its network as it is now."""


class Tangent(_AfterFirstSession, name="tangent"):
    """Trains on the first task, then learns all tasks exactly with an `rt.TangentLearner`.

    Args:
        gamma: Ridge; `"auto"` for generalized cross-validation.
        features: Number of tangent features.
        first_epochs: Passes of plain training over the first task; 0 for none.
        views: Functions of a batch of samples, or None for the sample itself; every view is
            learned. Give `train` the same ones for the first session.
        precision: `"float64"`, or `"float32"` for half the memory.
        combinations: Number of random combinations of the outputs whose gradients are computed.
    """

    def __init__(
        self,
        gamma: float | Literal["auto"] = "auto",
        features: int = 4096,
        first_epochs: int = 1,
        views: Sequence[View] | None = None,
        precision: Precision = "float64",
        combinations: int = 1,
    ) -> None:
        super().__init__(gamma, first_epochs, views, precision)
        self.features = as_count("features", features)
        self.combinations = as_count("combinations", combinations)

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        own = {"features": runs[0].features, "combinations": runs[0].combinations}
        return super().arguments(runs) | own

    def _learner(self, module: nn.Module, seed: int) -> StreamingRidge:
        return TangentLearner(
            module,
            self.gamma,
            self.features,
            views=self.views,
            precision=self.precision,
            combinations=self.combinations,
            seed=seed,
        )


class LastLayer(_AfterFirstSession, name="last layer"):
    """Least squares on the input of the network's last linear layer, as SLDA, ACIL and RanPAC do.

    Args:
        gamma: Ridge; `"auto"` for generalized cross-validation.
        random_features: Number of random ReLU features of that input, as in RanPAC; 0 for the
            input itself.
        first_epochs: Passes of plain training over the first task; 0 for none.
        views: As in `Tangent`, and so is `precision`.
        precision: See there.
    """

    def __init__(
        self,
        gamma: float | Literal["auto"] = "auto",
        random_features: int = 0,
        first_epochs: int = 1,
        views: Sequence[View] | None = None,
        precision: Precision = "float64",
    ) -> None:
        super().__init__(gamma, first_epochs, views, precision)
        self.random_features = random_features and as_count("random_features", random_features)

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        return super().arguments(runs) | {"random_features": runs[0].random_features}

    def _learner(self, module: nn.Module, seed: int) -> StreamingRidge:
        features = _LastHidden(module, self.random_features, seed)
        return StreamingRidge(
            features, self.gamma, intercept=True, views=self.views, precision=self.precision
        )


class _LastHidden:
    """Computes the input of a network's last linear layer, or random ReLU features of it."""

    def __init__(self, module: nn.Module, random_features: int, seed: int) -> None:
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        if not layers:
            raise InvalidInputError("the network has no Linear layer; expected at least one")
        self._module = module
        self._layer = layers[-1]
        random = torch.Generator().manual_seed(seed)
        width = layers[-1].in_features
        self._projection = torch.randn((width, random_features), generator=random) / width**0.5

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = self._layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        with hook, evaluating(self._module) as module:
            module(inputs)
        hidden = seen[-1].flatten(1)
        drawn = self._projection.numel() > 0
        return (hidden @ self._projection.to(hidden)).relu() if drawn else hidden
