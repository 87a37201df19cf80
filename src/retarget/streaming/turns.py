"""Lets the threads that share an object change it one after the other."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from retarget.locks import Lock

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Shared(Protocol):
    """An object that several threads may use."""

    _turn: Lock


SharedT = TypeVar("SharedT", bound=Shared)


def in_turn(
    method: Callable[Concatenate[SharedT, Arguments], Result],
) -> Callable[Concatenate[SharedT, Arguments], Result]:
    """Makes threads that call such methods of one object wait for each other."""

    @wraps(method)
    def call(shared: SharedT, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with shared._turn.of_this_process:
            return method(shared, *args, **kwargs)

    return call
