r"""A network led by a learner of bounded memory, block by block.

The aim $F$ for a block is what a `TangentLearner` predicts that has learned everything so far. The
block's targets come from the network's *present* outputs $f$ and its *present* tangent kernel $K$
of the block:

    a = (K + rho mean(diag K) I)^-1 (F - f)        Z = f + (I / eta + K^bL) a

where $K^{bL}$ couples a sample to those of earlier mini-batches. After steps on $Z$ a network with
this kernel is at $f + K a$. Nothing of the past is kept, and there is feedback: the network is
never taken to be where the theory would have it.

How far a network can go before its kernel is another one is not known beforehand. So the damping
$\rho$ is that of Levenberg and Marquardt: doubled where the last block went otherwise than
expected, halved where it went as expected, never below what the user asked for.
"""

import copy
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from retarget.arrays import require_finite
from retarget.continual.linearisation import LinearisationWatch, outputs
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.samples import (
    Samples,
    count,
    form_of,
    from_named,
    join,
    leaves,
    mapped,
    named_leaves,
    shapes_of,
    take,
)
from retarget.state_files import part_of, require_shape
from retarget.streaming.tangent import TangentLearner
from retarget.theory.dual import Window
from retarget.theory.response import step_response

# Off by more than this share of the way, the steps were too long; by less than that, too short.
TOO_FAR, NEAR = 0.5, 0.25
MOST_DAMPING = 64.0  # times what was asked for


class Block(NamedTuple):
    """What to train on next.

    Attributes:
        samples: The block's samples, and the stored ones that were put beside them.
        targets: (m, c) their targets, in double precision.
    """

    samples: Samples
    targets: Tensor


def closed_loop_targets(
    K: Tensor, outputs: Tensor, aim: Tensor, learner: SGD, damping: float, first_step: int = 0
) -> tuple[Tensor, Tensor]:
    """The targets of a block, and the outputs that they lead to.

    Args:
        K: (m, m) the network's tangent kernel of the block.
        outputs: (m, c) its outputs.
        aim: (m, c) where they are to go.
        learner: Plain SGD, in mini-batches.
        damping: rho; how much shorter than the whole way the step is.
        first_step: The optimiser's step that the block begins with, for rates on a schedule.
    """
    damped = K.clone()
    damped.diagonal().add_(damping * K.diagonal().mean())
    a = torch.linalg.solve(damped, aim - outputs)
    window = Window(0, K, (outputs,), step_response(learner, first_step, len(K)))
    share = K.new_tensor(window.memory.deposit[0, window.memory.step_of])
    return window.targets(a / share[:, None]), outputs + K @ a


class Reservoir:
    """A fair choice of the samples so far (Vitter's algorithm R), the same for the same seed.

    Args:
        capacity: Samples kept.
        seed: Seed of every decision, together with the number of the block.
    """

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity, self.seed = capacity, seed
        self.offered = self.blocks = 0
        self.samples: Samples | None = None

    def __len__(self) -> int:
        return min(self.offered, self.capacity)

    def draw(self, number: int) -> Samples | None:
        """Some of them, each at most once."""
        if self.samples is None:
            return None
        chosen = self._random(0).choice(len(self), min(number, len(self)), replace=False)
        rows = torch.from_numpy(chosen)
        return mapped(lambda leaf: leaf[rows.to(leaf.device)], self.samples)

    def offer(self, samples: Samples) -> None:
        """Keeps each of a block's samples with the chance that all so far have."""
        if not self.capacity:
            return
        room, random = self.capacity - len(self), self._random(1)
        before = take(samples, slice(0, 0)) if self.samples is None else self.samples
        kept = join([before, take(samples, slice(0, room))])  # a copy: a fork has the old ones
        self.offered += min(room, count(samples))
        for row in range(room, count(samples)):
            self.offered += 1
            slot = int(random.integers(self.offered))
            if slot < self.capacity:
                for into, leaf in zip(leaves(kept), leaves(samples), strict=True):
                    into[slot] = leaf[row]
        self.samples, self.blocks = kept, self.blocks + 1

    def _random(self, use: int) -> np.random.Generator:
        return np.random.default_rng([self.seed % 2**64, self.blocks, use])

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and plain values."""
        state: dict[str, Any] = {"offered": self.offered, "blocks": self.blocks}
        return state | ({} if self.samples is None else named_leaves("samples", self.samples))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this reservoir must be new."""
        self.offered, self.blocks = int(state["offered"]), int(state["blocks"])
        self.samples = from_named("samples", state)
        none = self.samples is None
        if not 0 <= self.blocks <= self.offered or (self.offered > 0) == none:
            raise InvalidInputError(f"offered is {self.offered}, blocks {self.blocks}")
        if not none:
            require_kept(self.samples, len(self))


def require_kept(samples: Samples, number: int | None) -> None:
    """Refuses samples of a state that are not that many finite ones (None: any number)."""
    for leaf in leaves(samples):
        shape = getattr(leaf, "shape", (0,))[1:]
        require_shape("samples", leaf, number, *shape)
        require_finite("samples", leaf)


class ClosedLoop:
    """The learner that leads, the stored samples, and what is expected of the network.

    Args:
        module: The network, as it is now: the learner has its tangent features for good.
        learner: The optimiser of the loop, plain SGD.
        gamma: Ridge of the learner that leads.
        memory: Number of its features.
        replay: Samples that are stored.
        damping: The smallest damping; see `closed_loop_targets`.
        seed: Seed of the features, and of the choice of stored samples.
        params: Names of the parameters that the loop trains; None for all that are trained.
    """

    def __init__(
        self,
        module: nn.Module,
        learner: SGD,
        gamma: float | Literal["auto"],
        memory: int,
        replay: int,
        damping: float,
        seed: int,
        params: list[str] | None = None,
    ) -> None:
        self.learner, self.least_damping, self.steps = learner, damping, 0
        self.damping = damping
        self.leader = TangentLearner(module, gamma, memory, params=params, seed=seed)
        self.reservoir = Reservoir(replay, seed)
        self.watch = LinearisationWatch()

    def fork(self) -> Self:
        """One that goes on from here by itself; this one is good until the fork is settled."""
        fork = copy.copy(self)
        fork.leader, fork.watch = self.leader.fork(), self.watch.fork()
        fork.reservoir = copy.copy(self.reservoir)
        return fork

    def settle(self) -> None:
        """Adopts a fork: the loop that it came from must not be used any more."""
        self.leader.settle()

    @property
    def nbytes(self) -> int:
        """Bytes that are kept of the stream."""
        stored = [] if self.reservoir.samples is None else leaves(self.reservoir.samples)
        kept: int = sum(leaf.nbytes for leaf in stored)
        return self.leader.nbytes + kept

    def learn(self, samples: Samples, targets: Tensor) -> Samples:
        """Learns a block; gives it back with stored samples, as many, beside it."""
        self.leader.learn(samples, targets)
        stored = self.reservoir.draw(count(samples))
        self.reservoir.offer(samples)
        return samples if stored is None else join([samples, stored])

    def lead(self, module: nn.Module, K: Tensor, samples: Samples) -> Block:
        """The targets that take the network towards what the leader predicts.

        Args:
            module: The network as it is now.
            K: (m, m) its kernel of the samples.
            samples: A block, and what was put beside it.
        """
        self._adapt()
        f = outputs(module, samples)
        aim = self.leader.predict(samples).to(f).reshape(f.shape)
        Z, expected = closed_loop_targets(K, f, aim, self.learner, self.damping, self.steps)
        self.watch.expect(samples, f, expected)
        self.steps += self.learner.steps(count(samples))
        return Block(samples, Z)

    def _adapt(self) -> None:
        """Chooses the damping by how the last block went."""
        off = self.watch.last
        if off is not None and off > TOO_FAR:
            self.damping = min(2 * self.damping, MOST_DAMPING * self.least_damping)
        elif off is not None and off < NEAR:
            self.damping = max(self.damping / 2, self.least_damping)

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and plain values."""
        state: dict[str, Any] = {"steps": self.steps, "damping": self.damping}
        state["leader"], tensors = self.leader.to_state()
        state |= {f"leader.{key}": value for key, value in tensors.items()}
        state |= {f"watch.{key}": value for key, value in self.watch.state_dict().items()}
        return state | {f"replay.{k}": value for k, value in self.reservoir.state_dict().items()}

    def load_state_dict(
        self,
        state: dict[str, Any],
        module: nn.Module,
        device: str | torch.device,
        first: tuple[Samples, Tensor] | None,
    ) -> None:
        """Goes on from a state; this loop must be new.

        Args:
            state: What `state_dict` gave.
            module: A network of the same form; the learner's weights come from the state.
            device: Where to compute.
            first: Samples and targets, of no rows, that all must be like; None if none came.
        """
        options = self.leader.gamma, self.leader.memory, self.leader.seed
        tensors = {name: tensor.to(device) for name, tensor in part_of(state, "leader").items()}
        self.leader = TangentLearner.from_state(state["leader"], tensors, module)
        same = options == (self.leader.gamma, self.leader.memory, self.leader.seed)
        if not same or state["leader"]["flat"] is not False:  # it is given matrices
            raise InvalidInputError("the learner that leads has other options than the corrector")
        self.steps, self.damping = int(state["steps"]), float(state["damping"])
        if not self.least_damping <= self.damping <= MOST_DAMPING * self.least_damping:
            raise InvalidInputError(f"damping is {self.damping}")
        self.watch.load_state_dict(part_of(state, "watch"))
        self.reservoir.load_state_dict(part_of(state, "replay"))
        for kept in (self.watch.samples, self.reservoir.samples):
            if kept is not None and first is None:
                raise InvalidInputError("there are samples in it, and none came")
            if kept is not None and first is not None:
                require_kept(kept, None)
                if form_of(kept) != form_of(first[0]):
                    raise InvalidInputError(
                        f"samples have shape {shapes_of(kept)}; expected {shapes_of(first[0])}"
                    )
        if self.watch.samples is not None and first is not None:
            require_shape("before", self.watch.before, None, first[1].shape[1])
