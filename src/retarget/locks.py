"""Locks of threads, which are free in a process that was forked while another thread had them."""

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet


def in_forks(action: Callable[[], None]) -> None:
    """Calls this first in every process that `os.fork` makes; Windows has none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


class Lock:
    """A lock that its thread may take again; what is deep-copied or pickled gets one of its own.

    A forked process has only the thread that called `os.fork`: what other threads had taken, nobody
    would ever give back there. What they were changing is complete without them, because our
    objects replace their state by one assignment.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()


_all: WeakSet[Lock] = WeakSet()


def _free_what_others_had() -> None:
    for lock in list(_all):
        if lock._lock.acquire(blocking=False):
            lock._lock.release()
        else:
            lock._lock = threading.RLock()


in_forks(_free_what_others_had)
