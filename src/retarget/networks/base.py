"""What both correctors of a network share: checks of samples, the caller's form, saved states."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from retarget.arrays import as_targets, shallow
from retarget.engine.losses import Loss
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.form import Form
from retarget.kernels import EmpiricalNTK
from retarget.kernels.base import Kernel
from retarget.kernels.empirical.parameters import (
    ParameterChoice,
    Preconditioner,
    trained_parameters,
)
from retarget.labels import are_labels, label_rows
from retarget.learners import SGD
from retarget.networks.linearization import LinearizationWatch, number_of_outputs
from retarget.samples import (
    Samples,
    as_samples,
    count,
    form_of,
    from_named,
    leaves,
    library_of,
    named_leaves,
    require_network,
    shapes_of,
    take,
)
from retarget.settings import in_plain_torch
from retarget.state_files import explained, part_of, read_state, require_shape, write_state

AUTOMATIC_BLOCK = 20  # samples: smaller blocks cost more steps, larger ones larger targets


class Corrector(ABC):
    """Takes samples and true targets, and gives back others to train a network on.

    Most arguments are those of `NetworkCorrector`. The checked options are a dataclass: they are
    saved, and compared when restored. The kernel is that of `kernel_module`, or of `module` itself.
    """

    loss: Loss = "squared"

    def __init__(
        self,
        module: nn.Module,
        learner: SGD,
        options: Any,
        kernel: Callable[..., Kernel],
        params: ParameterChoice,
        preconditioner: Preconditioner,
        kernel_module: nn.Module | None = None,
    ) -> None:
        require_network(module)
        if not callable(kernel) or isinstance(kernel, Kernel):
            raise InvalidTypeError(
                f"kernel is {kernel!r:.80}; expected a function that makes a kernel from a network,"
                " such as rt.EmpiricalNTK itself, or functools.partial of it with options"
            )
        self.module = module
        self.learner = learner
        self.options = options
        self.block_size: int = options.block_size
        self.params = None if params is None else list(trained_parameters(module, params))
        given: dict[str, Any] = {} if params is None else {"params": self.params}
        if preconditioner is not None:
            given["preconditioner"] = preconditioner
        self._kernel_module = module if kernel_module is None else kernel_module
        self.kernel = kernel(self._kernel_module, **given)
        self._watch: LinearizationWatch | None = LinearizationWatch()
        # Zero rows of the first samples and targets, which all others must match.
        self._first: tuple[Samples, Tensor] | None = None
        self._form = Form()  # of the caller's Y

    @property
    @abstractmethod
    def samples(self) -> int:
        """Number of samples for which it has returned targets."""

    @property
    def linearization_error(self) -> float | None:
        """How far the network was from the kernel's prediction, in the last few comparisons.

        It is relative to the predicted movement: 0 is exact, and above 1 there is a
        `LinearizationWarning`. None if nothing was compared: before the second call, with momentum,
        or after `NetworkCorrector.trust`.
        """
        return None if self._watch is None else self._watch.off

    def save(self, path: str | Path) -> None:
        """Saves the whole state to one file; an older file is replaced only when it is complete.

        It contains all samples and targets or, in the closed loop, the `TangentLearner` and the
        stored samples. With `refresh="never"` it contains the weights that the kernel uses;
        otherwise you must save the network's weights yourself. Loading the file runs no code.
        """
        write_state(Path(path), *self.to_state())

    @in_plain_torch
    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns what `save` writes: plain values, and tensors by name."""
        state = self._state()
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        values = {
            "class": type(self).__name__,
            "options": asdict(self.options) | {"params": self.params},
            "learner": self.learner.to_dict(),
            "form": self._form.state_dict(),
            "state": {name: value for name, value in state.items() if name not in tensors},
        }
        if self._first is not None:
            tensors |= named_leaves("first.samples", self._first[0])
            tensors["first.targets"] = self._first[1]
        return values, tensors

    @classmethod
    @in_plain_torch
    def load(
        cls,
        path: str | Path,
        module: nn.Module,
        kernel: Callable[..., Kernel] = EmpiricalNTK,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Loads a file written by `save`; the corrector then continues as if never interrupted.

        Args:
            path: The file.
            module: The network as it is now. With `refresh="never"` only its architecture matters:
                the weights that the kernel uses come from the file.
            kernel: A function that makes the kernel, as in the constructor; with a preconditioner,
                `functools.partial(EmpiricalNTK, preconditioner=optimizer)`.
            device: The device of the network; the samples are loaded there.
        """
        values, tensors = read_state(Path(path), device, cls.__name__)
        with explained(path, cls.__name__):
            learner = SGD(**values["learner"])
            options = values["options"]
            loaded = cls(module, learner, kernel=kernel, **options)
            loaded.restore(values, tensors)
        return loaded

    @in_plain_torch
    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restores the result of `to_state`; call it on a new corrector with the same options.

        Use it if you already have a corrector with its network; `load` makes one. Tensors are
        copied to the network's device.
        """
        if self._first is not None:
            raise InvalidInputError(
                "this corrector has been used; expected a new one to restore a state"
            )
        mine = self.to_state()[0]
        for name in ("options", "learner"):
            saved = SGD(**values[name]).to_dict() if name == "learner" else values[name]
            if saved != mine[name]:
                raise InvalidInputError(
                    f"the state has the {name} {saved}, the corrector {mine[name]}; expected the "
                    "same"
                )
        self._form = Form.from_state(values["form"])
        # copied, as all that a caller gives, and for the memory alignment of samples that were
        # never saved: same bits in results
        device = next(self.module.parameters()).device
        tensors = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
        first = part_of(tensors, "first")
        if first:
            samples = as_samples("samples", from_named("samples", first))
            self._first = samples, require_shape("targets", first["targets"], 0, None)
        self._restore(values["state"] | tensors)

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Returns what has been learned, as named tensors and plain values."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """Restores the result of `_state`, in a new corrector."""

    @contextmanager
    def _all_or_nothing(self) -> Iterator[Self]:
        """Yields a copy to change, which this corrector becomes if the body succeeds."""
        after = shallow(self)
        after._watch = watch = copy.copy(self._watch)
        try:
            yield after
        finally:  # a warning that is turned into an error is given only once, too
            if self._watch is not None and watch is not None:
                self._watch.warned = watch.warned
        self.__dict__ = after.__dict__  # one assignment: an interrupt finds all of it, or nothing

    def _checked(self, X: Any, Y: Any) -> tuple[Samples, Tensor]:
        """Returns samples and targets (n, c) as tensors; raises if they do not fit the first."""
        samples = as_samples("X", X)
        n = count(samples)
        targets = None if are_labels(Y) else as_targets("Y", Y)
        number = len(Y) if targets is None else len(targets)
        if n != number or not n:
            raise InvalidInputError(
                f"X has {n} samples and Y has {number}; expected the same number, at least 1"
            )
        if targets is None:
            rows = label_rows(Y, self._outputs_for(samples), self.options.classes)
            targets = rows.to(next(self.module.parameters()))
        if self._first is not None:
            _require_alike((samples, targets), self._first)
        elif targets.shape[1] != self._outputs_for(samples):
            raise InvalidInputError(
                f"Y has {targets.shape[1]} columns, but the network has "
                f"{self._outputs_for(samples)} outputs; expected one target for each output"
            )
        return samples, targets

    def _outputs_for(self, samples: Samples) -> int:
        """Returns the number of the network's outputs."""
        if self._first is not None:
            return self._first[1].shape[1]
        return number_of_outputs(self._kernel_module, samples)

    def _handed_back(self, Z: Tensor, samples: Samples, targets: Tensor, X: Any, Y: Any) -> Any:
        """Returns new targets in the form of Y; from now on all samples must match these.

        Labels have no such form: then the targets are rows, in the library of X.
        """
        labels = are_labels(Y)
        self._first = without_rows(samples, targets)
        form = Form.of(library_of(X) if labels else Y)
        self._form = replace(form, flat=form.flat and not labels)
        return self._in_given_form(Z)

    def _in_given_form(self, Z: Tensor) -> Any:
        """Returns a copy of the targets for the caller, in the form of the last Y."""
        return self._form.give(Z.clone())

    def _samples_of(self, state: dict[str, Any]) -> Samples | None:
        """Returns the samples of a state, if it has any; they must match the first ones."""
        given = from_named("samples", state)
        if given is None:
            return None
        samples = as_samples("samples", given)
        if self._first is None or form_of(samples) != form_of(self._first[0]):
            raise InvalidInputError(
                f"samples have shape {shapes_of(samples)}; expected the shape of the first samples"
            )
        return samples


def block_of(block_size: int | Literal["auto"], learner: SGD) -> int:
    """Returns the size of a block: as given, or the multiple of the batch size nearest to 20."""
    if block_size != "auto":
        return block_size
    batch = learner.batch_size
    return batch * max(1, round(AUTOMATIC_BLOCK / batch))


def without_rows(samples: Samples, targets: Tensor) -> tuple[Samples, Tensor]:
    """Returns zero rows of the samples and targets, which show their form."""
    return take(samples, slice(0, 0)), targets[:0]


def _require_alike(task: tuple[Samples, Tensor], first: tuple[Samples, Tensor]) -> None:
    """Raises if a task does not match the first one."""

    def words(samples: Samples, targets: Tensor) -> str:
        kinds = {(leaf.dtype, leaf.device) for leaf in leaves(samples)}
        types = " and ".join(sorted(f"{dtype}, on {device}" for dtype, device in kinds))
        return f"samples of shape {shapes_of(samples)}, {targets.shape[1]} targets, {types}"

    if (form_of(task[0]), task[1].shape[1]) != (form_of(first[0]), first[1].shape[1]):
        raise InvalidInputError(
            f"this task has {words(*task)}; expected {words(*first)}, as in the first task"
        )
