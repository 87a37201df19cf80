"""A module's structure as a private copy, in which its parameters can be replaced.

`torch.func.functional_call` replaces the parameters inside the module itself for as long as it
runs. Another thread that uses the module meanwhile, to predict or to train, would find the
replacements. So they go into a copy, which shares everything but modules and what leads to them.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, jit, nn

from retarget.locks import Lock

ResultT = TypeVar("ResultT")

# Modules by whether their copies are private. Those that are not, or are not known yet, are used by
# one thread at a time.
_known: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_in_place = Lock()


class NotPrivateError(Exception):
    """A copy of a module that still computes with the parameters of the original."""


def undisturbed(module: nn.Module, run: Callable[[bool], ResultT]) -> ResultT:
    """Calls `run(private=True)`, which copies the module; if the copy is not private, `run(False)`.

    Copies of some modules still reach the original, for example by a function that is stored in
    them. Such a module is used itself, as long as no other thread of ours does.
    """
    if _known.get(module):
        try:
            return run(True)
        except NotPrivateError:  # it has changed
            _known[module] = False
    with _in_place.of_this_process:
        if _known.get(module, can_be_copied(module)):
            try:
                result = run(True)
            except NotPrivateError:
                _known[module] = False
            else:
                _known[module] = True
                return result
        return run(False)


def can_be_copied(module: nn.Module) -> bool:
    """Whether the structure consists of Python objects, unlike that of Keras and TorchScript."""
    return not any(
        isinstance(each, jit.ScriptModule) or is_keras(each) for each in module.modules()
    )


def is_keras(layer: nn.Module) -> bool:
    """Whether this is a layer of Keras 3, on its torch backend."""
    return any(base.__module__.partition(".")[0] == "keras" for base in type(layer).__mro__)


def private_copy(module: nn.Module, instead: dict[int, Tensor]) -> nn.Module:
    """Copies modules and the containers, methods and partial functions that hold them.

    The copy has other tensors `instead`, by the `id` of those that they replace.
    """
    copied: nn.Module = _copied(module, dict(instead))
    return copied


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    if id(value) in copies:
        return copies[id(value)]
    result: Any = value
    if isinstance(value, nn.Module):
        result = copies[id(value)] = object.__new__(type(value))
        vars(result).update(_copied_values(vars(value), copies))
    elif type(value) in (dict, OrderedDict):
        result = copies[id(value)] = type(value)()
        result.update(_copied_values(value, copies))
    elif type(value) in (list, tuple, set):
        result = copies[id(value)] = type(value)(_copied(each, copies) for each in value)
    elif isinstance(value, MethodType):
        result = MethodType(value.__func__, _copied(value.__self__, copies))
    elif type(value) is partial:
        arguments = [_copied(each, copies) for each in value.args]
        keywords = _copied_values(value.keywords, copies)
        result = partial(_copied(value.func, copies), *arguments, **keywords)
    return result


def _copied_values(values: dict[Any, Any], copies: dict[int, Any]) -> dict[Any, Any]:
    return {key: _copied(each, copies) for key, each in values.items()}
