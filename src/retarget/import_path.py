"""Networks of the user's own, named by an import path: package.module:factory."""

import importlib
import re

from torch import nn

from retarget.errors import InvalidInputError, InvalidTypeError

IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*:[^\W\d]\w*(\.\w+)*")


def imported_network(name: str, what: str) -> nn.Module:
    """What the named function or class gives when it is called without arguments.

    Args:
        name: "package.module:factory".
        what: What the network is for, for messages.

    Raises:
        InvalidInputError: It cannot be imported, or fails.
        InvalidTypeError: It gives something other than a module.
    """
    module_name, _, attribute = name.partition(":")
    try:
        factory = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"the {what} {name!r} cannot be imported: {error}; expected 'package.module:factory' "
            "of an installed package, or of one on PYTHONPATH"
        ) from error
    if not callable(factory):
        raise InvalidTypeError(
            f"{name!r} is a {type(factory).__name__}; expected a function or class to call"
        )
    try:
        made = factory()
    except Exception as error:  # the user's own code: any kind
        raise InvalidInputError(
            f"the {what} {name!r} failed when it was called without arguments: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise InvalidTypeError(f"{name!r} gave a {type(made).__name__}; expected a torch.nn.Module")
    return made
