"""Lets the threads that share an object change it one after the other."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Turn:
    """A lock that its thread may take again; what is deep-copied or pickled gets one of its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Turn, ()


class Shared(Protocol):
    """An object that several threads may use."""

    _turn: Turn


SharedT = TypeVar("SharedT", bound=Shared)


def in_turn(
    method: Callable[Concatenate[SharedT, Arguments], Result],
) -> Callable[Concatenate[SharedT, Arguments], Result]:
    """Makes threads that call such methods of one object wait for each other."""

    @wraps(method)
    def call(shared: SharedT, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with shared._turn.lock:
            return method(shared, *args, **kwargs)

    return call
