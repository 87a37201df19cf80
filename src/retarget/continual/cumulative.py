"""Cumulative replay: nothing is ever forgotten, because everything is kept."""

from typing import TYPE_CHECKING, Any

import numpy as np

from retarget.continual.method import Method
from retarget.errors import InvalidInputError

if TYPE_CHECKING:
    from retarget.continual.training import Run


class CumulativeReplay(Method):
    """After each task, shuffled passes over all samples seen so far.

    Args:
        passes: How many.
    """

    capturable = True

    def __init__(self, passes: int = 1) -> None:
        if passes < 1:
            raise InvalidInputError(f"passes is {passes}; expected 1 or more")
        self.passes = passes

    def on_start(self, run: "Run") -> None:
        """No pass yet."""
        self._done = 0

    def on_task_end(self, run: "Run") -> None:
        """Trains on everything seen, plainly."""
        while self._done < self.passes:
            run.pass_over(np.stack([random.permutation(run.span.stop) for random in run.random]))
            self._done += 1
            run.checkpoint()
        self._done = 0

    def state_dict(self, run: "Run") -> dict[str, Any]:
        """How many passes over what was seen up to this task are done."""
        return {"done": self._done}

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        """Goes on after them."""
        self._done = state["done"]
