"""Peak memory, measured in a process of its own: at most 3 n^2 numbers beyond the caller's K."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np, torch
import retarget as rt
name, block, batch, ridge = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])
n = 3000
K = np.full((n, n), 0.5) + 0.5 * np.eye(n)
Y = np.ones((n, 2))
small = slice(0, 600)
learner = rt.SGD(lr=0.001, batch_size=batch)
call = {
    "corrected_targets": lambda K, Y: rt.corrected_targets(K, Y, learner, 0.5),
    "iterative_targets": lambda K, Y: rt.iterative_targets(K, Y, learner, 0.5, block, ridge),
}[name]
call(K[small, small], Y[small])  # libraries' own buffers are not what is measured
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
copy = K.copy()
before = max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
del copy
base = before - 8 * n * n
call(K, Y)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print((peak - base) / (8 * n * n))
"""


@pytest.mark.parametrize(
    ("name", "block", "batch", "ridge", "bound"),
    [
        ("corrected_targets", 0, 1, 0.0, 1.2),
        ("iterative_targets", 20, 4, 0.0, 1.2),
        ("iterative_targets", 3000, 4, 0.1, 3.0),
    ],
)
def test_peak_memory(name, block, batch, ridge, bound):
    command = [sys.executable, "-c", SCRIPT, name, *map(str, (block, batch, ridge))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    extra = float(done.stdout)
    # A copy of K is made first, so that the peak before the call is known: 1.0 is "no more than
    # one n x n matrix", the resolution of this test.
    assert extra <= bound
