"""Learners of real processes, which torch.distributed connects, end with what all have learned."""

import subprocess
import sys

import pytest

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
