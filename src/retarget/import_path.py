"""What users name by an import path, package.module:factory: networks and models of their own."""

import importlib
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from retarget.errors import InvalidInputError, InvalidTypeError

IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*:[^\W\d]\w*(\.\w+)*")


def imported(name: str, what: str) -> Any:
    """What is found under an import path.

    Args:
        name: "package.module:factory".
        what: What it is for, for messages.

    Raises:
        InvalidInputError: It is not an import path, or cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInputError(
            f"the {what} {name!r} cannot be imported: {error}; expected 'package.module:factory' "
            "of an installed package, or of one on PYTHONPATH"
        ) from error
    return found


def called(factory: Any, name: str, what: str, options: Mapping[str, Any] | None = None) -> Any:
    """What a factory of the user's own gives.

    Args:
        factory: A function or class.
        name: What it is called, for messages.
        what: What it makes, for messages.
        options: Keyword arguments to call it with.

    Raises:
        InvalidInputError: It fails.
        InvalidTypeError: It cannot be called.
    """
    if not callable(factory):
        raise InvalidTypeError(
            f"{name!r} is a {type(factory).__name__}; expected a function or class to call"
        )
    options = dict(options or {})
    try:
        return factory(**options)
    except Exception as error:  # the user's own code: any kind
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        arguments = f"with {given}" if given else "without arguments"
        raise InvalidInputError(
            f"the {what} {name!r} failed when it was called {arguments}: "
            f"{type(error).__name__}: {error}"
        ) from error


def imported_network(name: str, what: str) -> nn.Module:
    """What the named function or class gives when it is called without arguments.

    Args:
        name: "package.module:factory".
        what: What the network is for, for messages.

    Raises:
        InvalidInputError: It cannot be imported, or fails.
        InvalidTypeError: It gives something other than a module.
    """
    made = called(imported(name, what), name, what)
    if not isinstance(made, nn.Module):
        raise InvalidTypeError(f"{name!r} gave a {type(made).__name__}; expected a torch.nn.Module")
    return made
