"""Threads and forked processes: what others had taken is free in a fork."""

import copy
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import retarget
import retarget as rt
from retarget import locks
from retarget.locks import Lock
from retarget.settings import full_precision

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
PATIENCE = 20  # seconds, after which a fork that hangs is killed
X = np.random.default_rng(0).normal(size=(6, 3))
Y = X[:, :2] + 1.0


def forked(check):
    """Calls `check` in a forked process; returns whether it is true there."""
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Busy:
    """Another thread, which runs until the block ends, and stops where it calls `wait`."""

    def __init__(self, work):
        self.work, self.thread = work, threading.Thread(target=self._run)
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def _run(self):
        self.work(self.wait)

    def wait(self):
        if threading.current_thread() is self.thread:
            self.reached.set()
            self.goes_on.wait(PATIENCE)

    def __enter__(self):
        self.thread.start()
        assert self.reached.wait(PATIENCE)

    def __exit__(self, *error):
        self.goes_on.set()
        self.thread.join()


def waiting_features(busy):
    def features(samples):
        busy[0].wait()
        return samples

    return features


class Waiting(nn.Module):
    def __init__(self, busy):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()
        # reaches its layer in a way that no copy follows, so it is used by one thread at a time
        self.forward = lambda x: busy[0].wait() or self.layer(x)


def ridge(busy):
    learner = rt.StreamingRidge(waiting_features(busy), gamma=0.1)
    return lambda: learner.learn(X, Y).samples


def regressor(busy):
    model = rt.StreamingRidgeRegressor(waiting_features(busy), gamma=0.1)
    return lambda: model.partial_fit(X, Y).learner_.samples


def tracker(busy):
    kernel = rt.Features(waiting_features(busy))
    tracker = rt.ShiftTracker(kernel, rt.SGD(0.1), 0.1)
    return lambda: tracker.update(X, Y) or len(tracker)


def kernel_in_place(busy):
    kernel = rt.EmpiricalNTK(Waiting(busy))
    return lambda: len(kernel(X))


@pytest.mark.parametrize("make", [ridge, regressor, tracker, kernel_in_place])
def test_a_fork_while_a_thread_learns(make):
    busy = []
    learn = make(busy)
    busy.append(Busy(lambda _: learn()))
    with busy[0]:
        assert forked(lambda: learn() == len(X))
    assert learn() in (len(X), 2 * len(X))


def test_a_thread_forks_while_it_has_a_lock():
    lock = Lock()

    def go_on():
        with lock.of_this_process:  # which it may take again
            pass
        outer.__exit__(None, None, None)
        return True

    outer = lock.of_this_process
    with outer:
        assert forked(go_on)


def test_threads_of_a_fork_wait_for_each_other():
    """All of them see for the first time that their lock was another thread's."""
    lock, numbers = Lock(), [0]

    def count():
        for _ in range(300):
            with lock.of_this_process:
                number = numbers[0]
                time.sleep(0)
                numbers[0] = number + 1

    def counted():
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return numbers == [1200]

    def have(wait):
        with lock.of_this_process:
            wait()

    with Busy(have):
        assert forked(counted)


def test_a_lock_made_by_another_thread(monkeypatch):
    lock, of_the_other = Lock(), []

    class Late:
        """Lets the other thread go first."""

        def __enter__(self):
            monkeypatch.setattr(locks, "_making", threading.Lock())
            of_the_other.append(lock.of_this_process)

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(locks, "_forks", 1)
    monkeypatch.setattr(locks, "_making", Late())
    assert lock.of_this_process is of_the_other[0]


def test_a_fork_while_a_lock_is_made_anew():
    lock = Lock()

    def make(wait):
        with locks._making:
            wait()

    def learns():
        with lock.of_this_process:
            return True

    with Busy(make):
        assert forked(learns)


def test_settings_of_threads_without_a_fork():
    def compute(wait):
        with full_precision(torch.device("cpu")):
            wait()

    def precision_is_set_back():
        before = torch.get_float32_matmul_precision()
        with full_precision(torch.device("cpu")):
            during = torch.get_float32_matmul_precision()
        return (before, during) == ("high", "highest")

    torch.set_float32_matmul_precision("high")
    try:
        with Busy(compute):
            assert torch.get_float32_matmul_precision() == "highest"
            assert forked(precision_is_set_back)
            with full_precision(torch.device("cpu")):  # the thread that forks has it as well
                assert forked(lambda: torch.get_float32_matmul_precision() == "highest")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_copies_have_locks_of_their_own():
    lock = Lock()
    for twin in (copy.deepcopy(lock), pickle.loads(pickle.dumps(lock))):
        assert type(twin) is Lock
        assert twin._lock is not lock._lock


IMPORTS = """
import sys

import torch

import retarget as rt

network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.PReLU())
X, Y = torch.randn(6, 3), torch.randn(6, 2)
learner = rt.TangentLearner(network, 0.1, 8)
before = set(sys.modules)
learner.learn(X, Y).predict(X)
rt.EmpiricalNTK(network, mode="jacobian")(X)
assert not sys.modules.keys() - before, sys.modules.keys() - before
"""


def test_nothing_is_imported_while_a_thread_learns():
    """Python has a lock for each module: a fork would wait for a thread that it does not have."""
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


def test_all_locks_are_made_in_one_place():
    sources = Path(retarget.__file__).parent
    kinds = re.compile(r"\b(Lock|RLock|Semaphore|Condition)\b")
    lines = {
        (path.name, line)
        for path in sources.rglob("*.py")
        for line in path.read_text().splitlines()
        if "threading" in line and kinds.search(line)
    }
    assert {name for name, _ in lines} == {"locks.py"}


class Slow:
    """Has a property that takes as long as the thread that asks for it."""

    def __init__(self, wait=lambda: None):
        self.wait, self.times = wait, 0

    @locks.cached_property
    def answer(self):
        self.wait()
        self.times += 1
        return 42


def test_a_property_that_is_computed_once():
    slow = Slow()
    assert (slow.answer, slow.answer, slow.times) == (42, 42, 1)
    assert vars(slow)["answer"] == 42


def test_a_fork_while_a_thread_computes():
    with Busy(lambda wait: Slow(wait).answer):
        assert forked(lambda: Slow().answer == 42)


def test_no_property_has_the_lock_of_functools():
    """In Python 3.11 it is one for all objects."""
    sources = Path(retarget.__file__).parent.rglob("*.py")
    kinds = re.compile(
        r"^from functools import .*\bcached_property\b|functools\.cached_property", re.M
    )
    assert not [path for path in sources if kinds.search(path.read_text())]
