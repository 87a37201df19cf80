"""The memory: what it holds, what is drawn from it, and with which probability."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retarget.lab.methods.replay import PlannedReservoir


def one_pass(positions, batch):
    """Positions and weights (S, b) of a pass; the last mini-batch filled up."""
    n = len(positions)
    filled = -(-n // batch) * batch
    padded = np.pad(positions, (0, filled - n), mode="edge").reshape(-1, batch)
    return padded, (np.arange(filled) < n).reshape(-1, batch) * 1.0


@given(
    n=st.integers(1, 30),
    capacity=st.integers(1, 12),
    batch=st.integers(1, 9),
    draws=st.integers(1, 2),
    size=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_a_plan_is_a_memory_step_by_step(n, capacity, batch, draws, size, seed):
    """A list of (position, when it was stored), filled and drawn from as the steps go by."""
    reservoir = PlannedReservoir(capacity, np.random.default_rng(seed))
    random = np.random.default_rng(seed)
    memory, written, offered = [], {}, 0
    for number in range(2):  # two passes: the memory stays
        positions = np.random.default_rng(seed + number).permutation(n) + 100 * number
        steps, weights = one_pass(positions, batch)
        plan = reservoir.plan(steps, weights, draws, size)
        assert plan.store.shape == steps.shape
        for step, samples in enumerate(positions[i : i + batch] for i in range(0, n, batch)):
            for draw in range(draws):
                slots = random.choice(len(memory), min(size, len(memory)), replace=False)
                there = len(slots)
                assert plan.weights[step, draw].tolist() == [1.0] * there + [0.0] * (size - there)
                assert plan.slots[step, draw, :there].tolist() == slots.tolist()
                drawn = plan.positions[step, draw, :there].tolist()
                assert drawn == [memory[slot][0] for slot in slots]
                assert len(set(drawn)) == there
                for slot in slots:  # what is read there is what was written with the sample
                    assert written[slot] == memory[slot][1]
            for i, position in enumerate(samples):
                offered += 1
                slot = len(memory) if len(memory) < capacity else random.integers(offered)
                if slot < capacity:
                    memory[slot : slot + 1] = [(position, (number, step, i))]
            kept = plan.store[step] < capacity
            assert len(set(plan.store[step][kept])) == kept.sum()  # no slot is written twice
            for i in np.flatnonzero(kept):
                written[plan.store[step, i]] = (number, step, i)
    assert len(memory) == min(capacity, 2 * n)
