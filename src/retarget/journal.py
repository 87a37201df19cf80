"""What a long computation has done, so that after an interruption it goes on with the same bits.

Such a computation is run again from its start, in the same order. Its long loops are numbered
steps; each says what of it must be kept, and learns from the journal how much of it was done
before. Whatever is short is simply done again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from retarget.state_files import part_of, read_state, write_state

QUIET_SECONDS = 300.0  # before them, nothing is worth saving
SECONDS_BETWEEN_SAVES = 60.0
KIND = "Step"


class Kept(Protocol):
    """What changes from portion to portion of a step, beside what is written into files."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state."""


class KeptTensors:
    """Tensors that a step changes in place."""

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = tensors

    def state_dict(self) -> dict[str, Any]:
        """Returns the tensors."""
        return dict(self._tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores them."""
        for name, tensor in self._tensors.items():
            tensor.copy_(state[name])


class Journal:
    """The steps of a computation, which are saved in a folder; without a folder, nothing is.

    The first save is after five minutes, and the next ones are a minute apart. So a computation
    that an interruption costs little is not slowed down.

    Args:
        folder: Where the states of the steps are; None if the computation cannot be continued.
        flush: Called before states are saved, to write what they rely on to the disk.

    Attributes:
        continues: Whether states of an earlier run were found.
        saved: Whether there are states to go on with.
    """

    def __init__(self, folder: Path | None = None, flush: Callable[[], None] | None = None) -> None:
        self._folder = folder
        self._flush = flush
        self._steps = 0
        self._finished: list[tuple[int, dict[str, Any]]] = []  # not saved yet
        self.continues = folder is not None and any(folder.glob("*.state"))
        self.saved = self.continues
        # who goes on has waited before
        self._due = time.monotonic() + (0.0 if self.continues else QUIET_SECONDS)

    def step(self, keeping: Sequence[Kept] = ()) -> "Step":
        """Begins the next step, and restores what it keeps if some of it was done before."""
        number = self._steps
        self._steps += 1
        step = Step(self, number, keeping)
        if self._folder is not None and (path := self._path(number)).exists():
            values, tensors = read_state(path, kind=KIND)
            # copies lie in memory as all tensors do, which decides how their products are rounded
            step.restore(values | {name: tensor.clone() for name, tensor in tensors.items()})
        return step

    def same_number(self, number: int) -> int:
        """Returns what this number was when the computation was begun."""
        first = torch.tensor(number)
        step = self.step([KeptTensors(number=first)])
        if not step.finished:
            step.finish()
        return int(first)

    def note(self, step: "Step") -> None:
        """Saves a step, and those finished before it, if it is time."""
        if self._folder is None:
            return
        if step.finished:
            self._finished.append((step.number, step.state()))
        if time.monotonic() < self._due:
            return
        if self._flush is not None:
            self._flush()
        for number, state in self._finished:
            self._write(number, state)
        self._finished = []
        if not step.finished:
            self._write(step.number, step.state())
        self.saved = True
        self._due = time.monotonic() + SECONDS_BETWEEN_SAVES

    def _write(self, number: int, state: Mapping[str, Any]) -> None:
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        values = {name: value for name, value in state.items() if name not in tensors}
        write_state(self._path(number), values | {"class": KIND}, tensors)

    def _path(self, number: int) -> Path:
        if self._folder is None:
            raise ValueError("this journal has no folder")
        return self._folder / f"{number}.state"


class Step:
    """A part of a computation, in portions that are done one after the other.

    Attributes:
        number: Which step it is.
        done: How many portions are done.
        finished: Whether all of them are.
    """

    def __init__(self, journal: Journal, number: int, keeping: Sequence[Kept]) -> None:
        self.number = number
        self.done = 0
        self.finished = False
        self._journal = journal
        self._keeping = keeping

    def advance(self) -> None:
        """Notes that one more portion is done."""
        self.done += 1
        self._journal.note(self)

    def finish(self) -> None:
        """Notes that all portions are done."""
        self.finished = True
        self._journal.note(self)

    def state(self) -> dict[str, Any]:
        """Returns a copy of all that is kept, by name."""
        state: dict[str, Any] = {"done": self.done, "finished": self.finished}
        for place, kept in enumerate(self._keeping):
            for name, value in kept.state_dict().items():
                copied = value.clone() if isinstance(value, Tensor) else value
                state[f"{place}.{name}"] = copied
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self.done = int(state["done"])
        self.finished = bool(state["finished"])
        for place, kept in enumerate(self._keeping):
            kept.load_state_dict(part_of(state, str(place)))
