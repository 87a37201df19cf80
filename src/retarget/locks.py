"""Locks of threads, which are free in a process that was forked while another thread had them."""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

ResultT = TypeVar("ResultT")

_forks = 0  # between the first process and this one
_making = threading.Lock()


class Lock:
    """A lock that its thread may take again; what is deep-copied or pickled gets one of its own.

    In a forked process it is made anew, when it is first used. A fork has only the thread that
    called `os.fork`: what other threads had taken, nobody would ever give back there. What they
    were changing is complete without them, because our objects replace their state by one
    assignment.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._forks = _forks

    @property
    def of_this_process(self) -> AbstractContextManager[Any]:
        """What to write after `with`: a lock of Python itself, in which no interrupt is lost."""
        if self._forks != _forks:
            with _making:
                if self._forks != _forks:
                    # not by trying it: a thread of the fork may have the number of a former one
                    self._lock = threading.RLock()
                    self._forks = _forks
        return self._lock

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()


def in_forks(action: Callable[[], None]) -> None:
    """Calls this first in every process that `os.fork` makes; Windows has none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def _count_fork() -> None:
    global _forks, _making
    _forks += 1
    _making = threading.Lock()


in_forks(_count_fork)


class cached_property(Generic[ResultT]):  # noqa: N801  (a decorator, as in functools)
    """A property that is computed once; threads that ask at the same time may each compute it.

    That of `functools` has a lock in Python 3.11, one for all objects of a class: their threads
    wait for each other, and a forked process may wait forever.
    """

    def __init__(self, compute: Callable[[Any], ResultT]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> ResultT:
        result: ResultT = vars(instance).setdefault(self._name, self._compute(instance))
        return result
