"""Which of a network's parameters a kernel is of."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from retarget.errors import InvalidInputError
from retarget.text import did_you_mean

# Which parameters: a name, a layer or a pattern, several of these, or a function of a name.
Choice = str | Sequence[str] | Callable[[str], bool] | None


def trained_parameters(module: nn.Module, wanted: Choice = None) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name, and of these the ones that are wanted.

    Args:
        module: Whose parameters.
        wanted: A name, the name of a layer for all of its parameters, a pattern as in file names
            (`"*.bias"`), several of these, or a function of a name; None for all.
    """
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if not trained:
        raise InvalidInputError(
            "the module has no parameters that are trained; expected some with requires_grad=True"
        )
    if wanted is None:
        return trained
    if callable(wanted):
        chosen = {name: value for name, value in trained.items() if wanted(name)}
    else:
        given = [wanted] if isinstance(wanted, str) else list(wanted)
        names = trained.keys() & set(given)
        patterns = [each for each in given if each not in names]
        for each in patterns:
            if not any(_within(name, each) for name in trained):
                raise InvalidInputError(
                    f"params has {each!r}; expected names of trained parameters, of layers with "
                    f"some, or patterns: did you mean {_nearest(each, trained)!r}?"
                )
        chosen = {
            name: value
            for name, value in trained.items()
            if name in names or any(_within(name, each) for each in patterns)
        }
    if not chosen:
        raise InvalidInputError(
            "params is empty; expected some names of parameters, or None for all of them"
        )
    return chosen


def _within(name: str, wanted: str) -> bool:
    return name.startswith(f"{wanted}.") or fnmatchcase(name, wanted)


def _nearest(wanted: str, trained: dict[str, nn.Parameter]) -> str:
    layers = {name.rpartition(".")[0] for name in trained} - {""}
    return str(did_you_mean(wanted, [*trained, *sorted(layers)], cutoff=0.0))
