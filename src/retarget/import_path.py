"""Users' own networks and models, named by an import path: package.module:factory."""

import importlib
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from retarget.errors import InvalidInputError, InvalidTypeError, RetargetError, a_type

# What a user's own code may raise; exit() inside it must not end the program. Ctrl-C does.
USER_ERRORS = (Exception, SystemExit)
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*:[^\W\d]\w*(\.\w+)*")


def imported(name: str, what: str) -> Any:
    """Imports an object named "package.module:factory"; messages call its role `what`."""
    module_name, _, attribute = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for name_inside in attribute.split("."):
            value = getattr(value, name_inside)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInputError(
            f"the {what} {name!r} cannot be imported: {error}; expected 'package.module:factory' "
            "from a package that is installed or on PYTHONPATH"
        ) from error
    except USER_ERRORS as error:
        raise InvalidInputError(
            f"the {what} {name!r} cannot be imported: importing {module_name} raises "
            f"{reason(error)}; correct that first"
        ) from error
    return value


def called(factory: Any, name: str, what: str, options: Mapping[str, Any] | None = None) -> Any:
    """Calls a user's own factory with these options; `name` and `what` appear in messages."""
    if not callable(factory):
        raise InvalidTypeError(
            f"{name!r} is {a_type(factory)}; expected a function or class to call"
        )
    options = dict(options or {})
    try:
        return factory(**options)
    except RetargetError:  # ours says itself what is wrong
        raise
    except USER_ERRORS as error:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        arguments = f"with {given}" if given else "without arguments"
        raise InvalidInputError(
            f"the {what} {name!r} failed when it was called {arguments}: {reason(error)}"
        ) from error


def reason(error: BaseException) -> str:
    r"""Returns what a user's code raised, in one line.

    Examples:
        >>> reason(RuntimeError("out of order.\nSee the manual."))
        'RuntimeError: out of order'
    """
    text = str(error).partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def imported_network(name: str, what: str) -> nn.Module:
    """Calls the function or class at an import path, without arguments, and returns its network."""
    network = called(imported(name, what), name, what)
    if not isinstance(network, nn.Module):
        raise InvalidTypeError(f"{name!r} returned {a_type(network)}; expected a torch.nn.Module")
    return network
