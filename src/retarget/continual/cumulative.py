"""Cumulative replay: nothing is ever forgotten, because everything is kept."""

from typing import TYPE_CHECKING

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

    def on_task_end(self, run: "Run") -> None:
        """Trains on everything seen, plainly."""
        for _ in range(self.passes):
            run.pass_over(np.stack([random.permutation(run.span.stop) for random in run.random]))
