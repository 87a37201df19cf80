"""A network that a tangent learner leads, in closed loop."""

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from retarget.continual.corrector import NetworkCorrector
from retarget.continual.methods.base import Batch, Method
from retarget.kernels.feature_maps import as_count
from retarget.learners import SGD
from retarget.state_files import part_of

if TYPE_CHECKING:
    from retarget.continual.training import Run


class Led(Method):
    """Trains on targets that lead the network towards a tangent learner, block by block.

    A `NetworkCorrector(memory=...)` for each member: what is kept of the stream are the sums of a
    `TangentLearner` of the network as it was at the start. Use it where the result must be a
    network; where it need not be, `Tangent` is the better predictor. Each block costs the kernel of
    its samples and a factorisation of size `memory`.

    Args:
        gamma: Ridge of the learner that leads; `"auto"` for generalised cross-validation.
        memory: Its number of features.
        block_size: Samples corrected together, a multiple of the batch size.
        damping: How much shorter than the whole way the steps are; see `NetworkCorrector`.
    """

    keeps_order = True

    def __init__(
        self,
        gamma: float | Literal["auto"] = 1.0,
        memory: int = 4096,
        block_size: int = 20,
        damping: float = 1.0,
    ) -> None:
        self.gamma, self.memory = gamma, memory
        self.block_size, self.damping = block_size, damping
        # bad options are an error here, not when the first task begins
        self.check(SGD(1.0))

    def check(self, learner: SGD) -> None:
        """Refuses options that have no meaning, with this learner."""
        as_count("memory", self.memory)  # a corrector without one is of the open loop
        NetworkCorrector(torch.nn.Linear(1, 1), learner, **self._options())

    def on_start(self, run: "Run") -> None:
        """A corrector for each member, of the network as it is now."""
        seeds = [int(random.integers(2**31)) for random in run.random]
        self._correctors = [
            NetworkCorrector(module, learner, seed=seed, **self._options())
            for module, learner, seed in zip(run.ensemble.modules, run.learners, seeds, strict=True)
        ]
        for corrector in self._correctors:
            corrector.trust()  # a run is judged by its accuracy

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        """The targets of the mini-batch; with the first one of a block, those of the block."""
        step, size = int(batch.step), batch.positions.shape[1]
        place = step % (self.block_size // size)
        if not place:
            rows = slice(step, step + self.block_size // size)
            real = run.plan.weights[rows, 0].flatten() > 0  # the last mini-batch is filled up
            targets = []
            for m, corrector in enumerate(self._correctors):
                positions = run.plan.positions[rows, m].flatten()
                inputs = run.train.pool[run.train.rows[m, positions]]
                found = corrector.correct(inputs[real], run.targets[m, positions[real]])
                targets.append(torch.cat([found, found[-1:].expand(int((~real).sum()), -1)]))
            self._targets = torch.stack(targets)
        return self._targets[:, place * size : (place + 1) * size]

    def kept_bytes(self, run: "Run") -> int:
        """Of the sums of the learner that leads."""
        return self._correctors[0].nbytes

    def state_dict(self, run: "Run") -> dict[str, Any]:
        """The correctors, all of them; a checkpoint is made between blocks."""
        state: dict[str, Any] = {}
        for m, corrector in enumerate(self._correctors):
            values, tensors = corrector.to_state()
            state[f"values{m}"] = values
            state |= {f"tensors{m}.{name}": tensor for name, tensor in tensors.items()}
        return state

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        """Takes them back."""
        for m, module in enumerate(run.ensemble.modules):
            values, tensors = state[f"values{m}"], part_of(state, f"tensors{m}")
            self._correctors[m] = NetworkCorrector.from_state(values, tensors, module)
            self._correctors[m].trust()

    def _options(self) -> dict[str, Any]:
        return {
            "gamma": self.gamma,
            "memory": self.memory,
            "block_size": self.block_size,
            "damping": self.damping,
        }
