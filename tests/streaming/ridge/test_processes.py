"""Learners of real processes, which torch.distributed connects, end with what all have learned."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import retarget as rt
from retarget.streaming.ridge import learner as ridge
from support.problems import assert_same

WORK = """
import sys

import torch

import retarget as rt


def flip(X):
    return X.flip(1)


rank, processes, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=processes)
torch.manual_seed(0)
X, Y = torch.randn(60, 5).double(), torch.randn(60, 3).double()
network = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
mine = slice(rank, None, processes)
for precision in ("float64", "float32"):
    options = {"gamma": 0.7, "features": 48, "views": [None, flip], "precision": precision}
    learner = rt.TangentLearner(network.double(), combinations=2, **options)
    whole = learner.empty().learn(X, Y)
    tolerance = 1e-12 if precision == "float64" else 1e-5

    def assert_same(found, true):
        assert found.samples == true.samples
        gap = (found.predict(X) - true.predict(X)).abs().max()
        assert gap < tolerance, (precision, gap)

    assert_same(learner.learn(X[mine], Y[mine]).all_merge(), whole)
    # continues as documented: one process keeps the result, and the others start empty
    learner = learner if rank == 0 else learner.empty()
    assert_same(learner.learn(X[mine], 2 * Y[mine]).all_merge(), whole.learn(X, 2 * Y))
other = rt.TangentLearner(network.double(), 0.7, 48, combinations=2, seed=rank // 2)
if rank > 0:
    other.learn(X[mine], Y[mine])
try:
    other.all_merge()
except rt.errors.InvalidInputError as error:
    assert "the learners of the 3 processes have different features; expected" in str(error)
    assert other.samples == 20 * (rank > 0)
else:
    raise AssertionError("learners with different seeds were merged")
pair = torch.distributed.new_group([0, 1])
if rank < 2:
    learner = rt.StreamingRidge("linear", 1.0).learn(X[mine], Y[mine]).all_merge(pair)
    assert learner.samples == 40
torch.distributed.destroy_process_group()
"""


class Member:
    """One of several threads that stand for processes."""

    def __init__(self, rank, everyone, barrier):
        self.rank, self.everyone, self.barrier = rank, everyone, barrier

    def gather(self, numbers):
        self.everyone[self.rank] = numbers
        self.barrier.wait(timeout=60)
        gathered = list(self.everyone)
        self.barrier.wait(timeout=60)
        return gathered

    def add_up(self, tensor):
        tensor.copy_(sum(self.gather(tensor.clone())))


def merged(learners):
    everyone, barrier = [None] * len(learners), Barrier(len(learners))
    members = [Member(rank, everyone, barrier) for rank in range(len(learners))]
    with ThreadPoolExecutor(len(learners)) as threads:
        return list(threads.map(lambda each, group: each.all_merge(group), learners, members))


@pytest.mark.parametrize("intercept", [False, True])
def test_each_knows_what_all_have_learned(intercept, monkeypatch):
    """Features whose means are far apart, targets of several types and forms, and an empty part."""
    monkeypatch.setattr(ridge, "Processes", lambda group: group)
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 4)) + offset for n, offset in ((9, 500), (0, 0), (14, -300))]
    targets = [rng.normal(size=len(X)) + 20 * place for place, X in enumerate(parts)]
    targets[0] = targets[0].astype(np.float32)
    targets[2] = targets[2][:, None]

    def empty():
        return rt.StreamingRidge("linear", 0.3, intercept=intercept)

    found = merged([empty().learn(*part) for part in zip(parts, targets, strict=True)])
    X, Y = np.concatenate(parts), np.concatenate([each.reshape(-1, 1) for each in targets])
    whole = empty().learn(X, Y)
    for each in found:
        assert each.samples == 23
        assert each.predict(X).shape == (23, 1)
        assert each.predict(X).dtype == np.float64
        assert_same(each.predict(X), whole.predict(X), 1e-9)
    flat = merged([empty().learn(X[rows], Y[rows, 0]) for rows in (slice(9), slice(9, 23))])
    assert [each.predict(X).shape for each in flat] == [(23,), (23,)]


@pytest.mark.slow
def test_processes_end_with_everything(tmp_path):
    command = [sys.executable, "-c", WORK]
    processes = [
        subprocess.Popen(
            [*command, str(rank), "3", str(tmp_path / "store")], stderr=subprocess.PIPE
        )
        for rank in range(3)
    ]
    errors = [each.communicate(timeout=120)[1].decode() for each in processes]
    assert [each.returncode for each in processes] == [0, 0, 0], "\n".join(errors)
