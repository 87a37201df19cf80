"""The base class of all methods, a few hooks into the training loop; their names; two baselines.

Every module in this folder is imported when methods are looked up by name, so a new method is one
new file.
"""

import hashlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.import_path import IMPORT_PATH, called, imported
from retarget.learners import SGD
from retarget.text import did_you_mean

if TYPE_CHECKING:
    from retarget.lab.figures.training import NetworkRun
    from retarget.lab.training import Run

# From runs that train together to their methods, in the order in which their hooks are called.
Recipe = Callable[[Sequence["NetworkRun"]], list["Method"]]
_RECIPES: dict[str, Recipe] = {}


def recipe(name: str) -> Callable[[Recipe], Recipe]:
    """Registers a function that makes several methods, or one with other options, under a name."""

    def register(make: Recipe) -> Recipe:
        _RECIPES[name] = make
        return make

    return register


@cache
def recipes() -> Mapping[str, Recipe]:
    """Returns everything that `method` can be in an experiment file, by name."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_RECIPES.items()))


def recipe_named(name: str) -> Recipe:
    """Returns how the method is made that has this name, or is at "package.module:Class"."""
    known = recipes()
    if name in known:
        return known[name]
    if not IMPORT_PATH.fullmatch(name):
        near = did_you_mean(name, known)
        hint = f"did you mean {near!r}? " if near else ""
        raise InvalidInputError(
            f"there is no method {name!r}; {hint}known: {', '.join(known)}; or give your own on "
            "the command line: --method package.module:Class"
        )
    method = imported_method(name)

    def make(runs: Sequence["NetworkRun"]) -> list[Method]:
        # for_runs takes the options from the runs; here they are what an error shows
        return [called(lambda **_: method.for_runs(runs), name, "method", runs[0].options)]

    return make


def imported_method(name: str) -> type["Method"]:
    """Imports a user's own method."""
    method = imported(name, "method")
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise InvalidInputError(
            f"{name!r} is no method; expected a subclass of retarget.lab.Method"
        )
    return method


def code_of_method(name: str) -> str:
    """Returns a checksum of the files that define a user's own method and its base classes."""
    classes = [base for base in imported_method(name).__mro__ if base is not object]
    files = {Path(inspect.getfile(base)) for base in classes}
    contents = [file.read_bytes() for file in sorted(files)]
    return hashlib.sha256(b"\0".join(contents)).hexdigest()


@dataclass
class Batch:
    """A mini-batch of every member. M members, b samples, c outputs.

    Attributes:
        step: (1,) the number of the step within its pass over the data, on the device.
        positions: (M, b) the positions of the samples in the stream.
        weights: (M, b) 1, or 0 for padding in the last mini-batch of a pass.
        inputs: (M, b, ...) the samples.
        targets: (M, b, c) the targets to train on.
        outputs: (M, b, c) the network's outputs before the step.
    """

    step: Tensor
    positions: Tensor
    weights: Tensor
    inputs: Tensor
    targets: Tensor
    outputs: Tensor

    def this_step(self, plan: Tensor) -> Tensor:
        """Returns this step's part of a plan (steps, ...) that was made for the whole pass."""
        return plan.index_select(0, self.step)[0]


class Method:
    """Plain SGD: every hook does nothing. Subclass it, and override the hooks that you need.

    A method is like a plugin in Avalanche or a callback in PyTorch Lightning; several methods can
    be combined.

    All tensors have the members as their first dimension, and members never mix. `targets`,
    `penalty`, `gradients` and `on_batch_end` are called at every step. Set `capturable` to true
    only if they use nothing but tensor operations, with the same shapes at every step, and never
    read a value: on CUDA the step can then be recorded once and replayed.

    A run with a checkpoint resumes from the saved state. If a method keeps anything between hooks,
    it must return it from `state_dict` and restore it in `load_state_dict`; with a checkpoint, a
    method with an `on_...` hook and no `state_dict` is an error. Attributes without a leading
    underscore are options: a run resumes only with the same options, so they must not change during
    a run.

    With a name, `class Mine(Method, name="mine")`, it is what `method = "mine"` in an experiment
    file means, once its module is imported; the package's own are. Define `arguments` to take
    parameters of the run.
    """

    capturable = False
    keeps_order = False  # whether all epochs of a task must use the same order

    def __init_subclass__(cls, name: str | None = None, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if name is not None:
            recipe(name)(lambda runs: [cls.for_runs(runs)])

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        """Returns the constructor's arguments for runs of an experiment that train together."""
        return {}

    @classmethod
    def for_runs(cls, runs: Sequence["NetworkRun"], **fixed: Any) -> Self:
        """Makes the method for runs: from `arguments`, these values, and the runs' `options`."""
        given = runs[0].options
        known = inspect.signature(cls).parameters
        unknown = [option for option in given if option not in known]
        if unknown:
            raise InvalidInputError(
                f"{cls.__name__} has no option {unknown[0]!r}; "
                + (f"it has: {', '.join(known)}" if known else "it has none")
            )
        return cls(**cls.arguments(runs) | fixed | given)

    def check(self, learner: SGD) -> None:
        """Raises if the options do not make sense with this learner."""

    @property
    def name(self) -> str:
        """The name in messages and tables."""
        return type(self).__name__

    def on_start(self, run: "Run") -> None:
        """Called before the first task; reset anything left from an earlier run."""

    def epochs(self, run: "Run", wanted: int) -> int:
        """Returns the number of passes over the current task; the user asked for `wanted`."""
        return wanted

    def on_task_start(self, run: "Run") -> None:
        """Called before the first epoch of a task."""

    def on_epoch_start(self, run: "Run") -> None:
        """Called before each pass over a task; `run.plan` has the samples of each step."""

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        """Returns the targets (M, b, c) to train on, from `batch.targets`."""
        return batch.targets

    def penalty(self, run: "Run", batch: Batch) -> Tensor | None:
        """Returns what is added to each member's loss (M,), or None."""
        return None

    def gradients(
        self, run: "Run", batch: Batch, gradients: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Returns the gradients (M, ...) of the parameters to step along, by name."""
        return gradients

    def on_batch_end(self, run: "Run", batch: Batch) -> None:
        """Called after each step."""

    def on_task_end(self, run: "Run") -> None:
        """Called after the last epoch of a task."""

    def test_outputs(self, run: "Run", member: int) -> Tensor | None:
        """Returns a member's outputs (n, c) for its test samples; None to use its network."""
        return None

    def kept_bytes(self, run: "Run") -> int:
        """Returns the bytes kept for one member at the end, besides its network."""
        return 0

    def state_dict(self, run: "Run") -> dict[str, Any]:
        """Returns everything kept between hooks, as tensors and plain (JSON) values."""
        return {}

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; called after `on_start`, when a run resumes."""

    def likely_cause(self, run: "Run", member: int) -> str | None:
        """Returns why a member's loss may have become infinite, or None if it cannot tell."""
        return None


class Vanilla(Method, name="vanilla"):
    """Plain training on each task in turn, with the true labels: the baseline for all methods."""

    capturable = True


class LabelSmoothing(Method, name="label smoothing"):
    r"""Targets $(1 - \epsilon)\, y + \epsilon / c$ (Szegedy et al., 2016).

    It does the same as `label_smoothing` in `torch.nn.CrossEntropyLoss`, but for the squared error,
    at no cost.

    Args:
        amount: $\epsilon$, from 0 to 1.
    """

    capturable = True

    def __init__(self, amount: float = 0.1) -> None:
        if not 0 <= amount <= 1:
            raise InvalidInputError(f"amount is {amount}; expected 0 to 1")
        self.amount = amount

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        """Returns the smoothed targets."""
        return (1 - self.amount) * batch.targets + self.amount / batch.targets.shape[-1]
