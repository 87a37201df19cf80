"""Saves a training run to a file, so that it can resume with bit-identical results."""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from retarget.errors import (
    DamagedFileError,
    DamagedFileWarning,
    InvalidInputError,
    InvalidTypeError,
)
from retarget.lab.methods import Method
from retarget.state_files import checksum, explained, part_of, read_state, write_state

if TYPE_CHECKING:
    from retarget.lab.training import Run

POSITION = ("task", "epoch", "passes", "ended", "seen", "steps", "taken")
SHOWN = 60  # characters of a value in a message; for longer values only the name is shown


class Checkpoint:
    """The checkpoint file of one run; make it before the run starts."""

    def __init__(self, path: Path, run: "Run") -> None:
        if path.exists() and not path.is_file():
            raise InvalidInputError(
                f"checkpoint is {path}, which is not a file; give the path of a file"
            )
        for method in run.methods:
            _require_state(method)
        self._path = path
        self._run = run
        self._description = _describe(run)

    def save(self) -> None:
        """Saves the run as it is now; an older file stays until the new one is complete."""
        values, tensors = _state_of(self._run)
        header = {"class": "training run", "description": self._description, "state": values}
        write_state(self._path, header, tensors)

    def load(self) -> bool:
        """Restores the run from the file; returns False if there is none, or it is damaged."""
        if not self._path.exists():
            return False
        try:
            header, tensors = read_state(self._path, kind="training run")
        except DamagedFileError as error:
            aside = self._path.with_name(f"{self._path.name}.damaged")
            self._path.replace(aside)
            warnings.warn(
                f"{error}; it was renamed to {aside}, and training starts from the beginning",
                DamagedFileWarning,
                stacklevel=3,  # the caller of train
            )
            return False
        differences = _differences(header.get("description", {}), self._description)
        if differences:
            raise InvalidInputError(
                f"{self._path} is the checkpoint of another run; these differ: "
                f"{', '.join(differences)}; delete it, or use another path"
            )
        with explained(self._path, "training run of this version; delete it, or use another path"):
            _restore(self._run, header["state"] | tensors)
        return True


def _state_of(run: "Run") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the state as plain values, and tensors."""
    samples, learned, *measured = zip(*run.evaluations, strict=True)
    state: dict[str, Any] = {name: getattr(run, name) for name in POSITION} | {
        "order": torch.from_numpy(run.order.copy()),
        "random": [random.bit_generator.state for random in run.random],
        "torch random": torch.get_rng_state(),
        "loss": run.total_loss,
        "evaluated samples": samples,
        "evaluated tasks": learned,
    }
    if run.ensemble.device.type == "cuda":
        state["cuda random"] = torch.cuda.get_rng_state(run.ensemble.device)
    state |= {f"evaluated.{i}": torch.stack(values) for i, values in enumerate(measured)}
    parts = {"network": run.ensemble.state_dict(), "optimizer": run.optimizer.state_dict()}
    for i, method in enumerate(run.methods):
        parts[f"method {i}"] = method.state_dict(run)
        _require_storable(method, parts[f"method {i}"])
    state |= {
        f"{part}.{name}": value
        for part, entries in parts.items()
        for name, value in entries.items()
    }
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return {key: value for key, value in state.items() if key not in tensors}, tensors


def _restore(run: "Run", state: dict[str, Any]) -> None:
    for name in POSITION:
        setattr(run, name, state[name])
    run.order = state["order"].numpy()
    for random, known in zip(run.random, state["random"], strict=True):
        random.bit_generator.state = known
    torch.set_rng_state(state["torch random"])
    device = run.ensemble.device
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda random"], device)
    run.total_loss.copy_(state["loss"])
    measured = [state[f"evaluated.{i}"].unbind() for i in range(3)]
    run.evaluations = list(
        zip(state["evaluated samples"], state["evaluated tasks"], *measured, strict=True)
    )
    run.ensemble.load_state_dict(part_of(state, "network"))
    run.optimizer.load_state_dict(part_of(state, "optimizer"))
    for i, method in enumerate(run.methods):
        known = part_of(state, f"method {i}").items()
        method.load_state_dict(
            run, {key: v.to(device) if isinstance(v, Tensor) else v for key, v in known}
        )


def _require_state(method: Method) -> None:
    """Raises if a method has hooks that may change its state, but does not save its state."""
    classes = type(method).__mro__

    def depth(name: str) -> int:
        return next(i for i, cls in enumerate(classes) if name in vars(cls))

    hooks = [name for name in vars(Method) if name.startswith("on_")]
    unsaved = [name for name in hooks if depth(name) < depth("state_dict")]
    if unsaved:
        raise InvalidInputError(
            f"{method.name} has {', '.join(unsaved)} and no state_dict of its own, so a checkpoint "
            "would lose its state; give it state_dict and load_state_dict (with `return {}` if it "
            "has no state), or train without a checkpoint"
        )


def _require_storable(method: Method, state: dict[str, Any]) -> None:
    for key, value in state.items():
        try:
            isinstance(value, Tensor) or json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InvalidTypeError(
                f"state_dict of {method.name} gives {key!r} as {type(value).__name__}; expected a "
                "tensor, or a value that JSON can represent"
            ) from error


def _describe(run: "Run") -> dict[str, Any]:
    """Returns everything that determines the result of a new run, as JSON values."""
    networks = run.ensemble.modules
    start = {f"{m} {k}": v for m, net in enumerate(networks) for k, v in net.state_dict().items()}
    description: dict[str, Any] = {
        **{name: getattr(run, name) for name in ("epochs", "reshuffle", "evaluate_every")},
        "views": run.views.names,
        "learners": [learner.to_dict() for learner in run.learners],
        # a method's options are its attributes without a leading underscore
        "methods": [
            {"class": type(method)} | {k: v for k, v in vars(method).items() if k[0] != "_"}
            for method in run.methods
        ],
        "seeds": checksum(json.dumps([r.bit_generator.state for r in run.random]), {}),
        # a function's address differs between processes
        "network": re.sub("0x[0-9a-f]+", "", repr(networks[0])),
        "trained parameters": list(run.ensemble.parameters),
        "initial weights": checksum("", start),
        "tasks": [span.stop - span.start for span in run.train.spans[0]],
        "classes": run.targets.shape[-1],
        "device": run.ensemble.device.type,
        "torch": torch.__version__,
    }
    for name, samples in (("training", run.train), ("test", run.test)):
        parts = {"pool": samples.pool, "rows": samples.rows, "labels": samples.labels}
        description[f"{name} samples"] = checksum(repr(samples.spans), parts)
    plain: dict[str, Any] = json.loads(json.dumps(description, default=_described))
    return plain


def _described(value: Any) -> Any:
    """Describes a value that JSON cannot represent."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return checksum(f"{value.dtype} {value.tolist()}", {})
    if isinstance(value, Tensor):
        return checksum("", {"": value})
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping | Sequence):
        return dict(value) if isinstance(value, Mapping) else list(value)
    thing = value if hasattr(value, "__qualname__") else type(value)
    return f"{thing.__module__}.{thing.__qualname__}"


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns what differs between two descriptions, with the values if they are short."""
    differences = []
    for name in sorted(then.keys() | now.keys()):
        one, other = (json.dumps(described.get(name)) for described in (then, now))
        if one != other:
            short = len(one + other) <= 2 * SHOWN
            differences.append(f"{name} ({one} then, {other} now)" if short else name)
    return differences
