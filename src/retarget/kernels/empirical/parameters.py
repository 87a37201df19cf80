"""The parameters that the empirical kernel takes gradients of."""

import difflib
from collections.abc import Sequence

from torch import nn

from retarget.errors import InvalidInputError


def trained_parameters(module: nn.Module, wanted: Sequence[str] | None) -> dict[str, nn.Parameter]:
    """Those that are trained, by name, and, where some are wanted, in one of these.

    Args:
        module: Whose parameters.
        wanted: Names of parameters, or of layers for all of theirs; None for all.
    """
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if not trained:
        raise InvalidInputError(
            "the module has no parameters that are trained; expected some with requires_grad=True"
        )
    if wanted is None:
        return trained
    for each in wanted:
        if not any(_within(name, each) for name in trained):
            raise InvalidInputError(
                f"params has {each!r}; expected names of trained parameters, or of layers with "
                f"some: did you mean {_nearest(each, trained)!r}?"
            )
    chosen = {
        name: value
        for name, value in trained.items()
        if any(_within(name, each) for each in wanted)
    }
    if not chosen:
        raise InvalidInputError("params is empty; expected some names, or None for all parameters")
    return chosen


def _within(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")


def _nearest(wanted: str, trained: dict[str, nn.Parameter]) -> str:
    layers = {name.rpartition(".")[0] for name in trained} - {""}
    return difflib.get_close_matches(wanted, [*trained, *sorted(layers)], n=1, cutoff=0.0)[0]
