r"""The parameters that a kernel uses, and the factors by which an optimizer scales gradients.

A step $\theta \leftarrow \theta - \eta P \nabla L$ with a diagonal P moves the outputs by the
kernel $J P J^\top$ instead of $J J^\top$, so that everything that holds for SGD and a kernel holds
for this one while P is constant. But the P of several outputs differ, as an optimizer's second
moments do, and then each output has a kernel of its own: their mean is exact only for one output.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.learners import require_one_law
from retarget.text import did_you_mean

# A parameter's name, a layer's name for all of its parameters, a pattern as in file names
# ("*.bias"), several of these, or a function of a name; None for all.
ParameterChoice = str | Sequence[str] | Callable[[str], bool] | None
Preconditioner = Optimizer | Mapping[str, Tensor | float] | None


def trained_parameters(
    module: nn.Module, wanted: ParameterChoice = None
) -> dict[str, nn.Parameter]:
    """Returns the trained parameters by name, all or those that are wanted."""
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if not trained:
        raise InvalidInputError(
            "the module has no trained parameters; expected some with requires_grad=True"
        )
    if wanted is None:
        return _real(trained)
    if callable(wanted):
        chosen = {name for name in trained if wanted(name)}
    else:
        chosen = set()
        for each in as_choice(wanted):
            matching = {each} & trained.keys() or {name for name in trained if _within(name, each)}
            if not matching:
                layers = {name.rpartition(".")[0] for name in trained} - {""}
                near = did_you_mean(each, [*trained, *sorted(layers)], cutoff=0.0)
                raise InvalidInputError(
                    f"params has {each!r}, which matches nothing; expected names of trained "
                    f"parameters or of their layers, or patterns: did you mean {str(near)!r}?"
                )
            chosen |= matching
    if not chosen:
        raise InvalidInputError(
            "params selects no parameters; expected names of parameters, or None for all of them"
        )
    return _real({name: value for name, value in trained.items() if name in chosen})


def as_choice(wanted: Any) -> tuple[str, ...]:
    """The names and patterns as a tuple; raises if they are none."""
    names = (wanted,) if isinstance(wanted, str) else wanted
    if not isinstance(names, Iterable) or not all(isinstance(each, str) for each in names):
        raise InvalidTypeError(
            f"params is {a_type(wanted)}; expected the name of a parameter or a layer, a "
            "pattern such as '*.bias', a list of these, or a function of a name"
        )
    return tuple(names)


def _real(parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    for name, value in parameters.items():
        if value.is_complex():
            raise InvalidTypeError(
                f"the parameter {name} has dtype {str(value.dtype).removeprefix('torch.')}; "
                "expected real parameters: keep real and imaginary parts as two of them, or leave "
                "it out with params="
            )
    return parameters


def _within(name: str, wanted: str) -> bool:
    return name.startswith(f"{wanted}.") or fnmatchcase(name, wanted)


def preconditioner_of(
    source: Optimizer | Mapping[str, Tensor | float], module: nn.Module, names: list[str]
) -> dict[str, Tensor]:
    """The current P for the named parameters: in a parameter's shape, or one number for it."""
    if isinstance(source, Mapping):
        return {name: _given(source, name, module.get_parameter(name)) for name in names}
    kind = type(source)
    if kind not in _FACTORS:
        raise InvalidTypeError(
            f"preconditioner is {a_type(source)}; expected a torch.optim.SGD, Adam, AdamW or "
            "RMSprop, or a dict of factors by the parameters' names"
        )
    groups = source.param_groups
    group_of = {id(value): group for group in groups for value in group["params"]}
    rates = [float(group["lr"]) for group in groups]
    if not rates[0] > 0:
        raise InvalidInputError(
            f"lr is {rates[0]} in parameter group 0; expected a positive rate, because the rates "
            "of the other groups are relative to it"
        )
    for group in groups:
        _require_decoupled(group, kind.__name__)
    require_one_law(dict(enumerate(groups)), dict(enumerate(rates)))
    factors = {}
    for name in names:
        value = module.get_parameter(name)
        if id(value) not in group_of:
            raise InvalidInputError(
                f"the optimizer does not hold the parameter {name}; expected the optimizer of this "
                "module, or leave the parameter out with params="
            )
        group = group_of[id(value)]
        state = source.state.get(value, {})
        if not state and kind is not SGD:
            raise InvalidInputError(
                f"the optimizer has taken no step on {name} yet, so that it has no second moments; "
                "train a few steps first, or leave the parameter out with params="
            )
        ratio = float(group["lr"]) / rates[0]
        factors[name] = ratio * _FACTORS[kind](value, group, state)
    return factors


def _given(factors: Mapping[str, Tensor | float], name: str, value: Tensor) -> Tensor:
    """The caller's own factors for one parameter, checked."""
    if name not in factors:
        raise InvalidInputError(
            f"the preconditioner has no factor for the parameter {name}; expected one for every "
            "trained parameter, or leave it out with params="
        )
    factor = torch.as_tensor(factors[name], dtype=value.dtype, device=value.device).detach()
    if factor.ndim and factor.shape != value.shape:
        raise InvalidInputError(
            f"the preconditioner's factors for {name} have shape {tuple(factor.shape)}; "
            f"expected {tuple(value.shape)}, or one number"
        )
    if not bool((factor.isfinite() & (factor >= 0)).all()):
        raise InvalidInputError(
            f"the preconditioner's factors for {name} hold a number that is negative or not "
            "finite; expected 0 or more"
        )
    return factor


def _require_decoupled(group: dict[str, Any], kind: str) -> None:
    """Rejects groups whose weight decay goes through the preconditioner."""
    decays = float(group["weight_decay"])
    decoupled = kind in ("SGD", "AdamW") or group.get("decoupled_weight_decay", False)
    if decays and not decoupled:
        raise InvalidInputError(
            f"{kind} adds weight_decay={decays} to the gradients, so that each weight shrinks at a "
            "rate of its own; use AdamW, and SGD(weight_decay=...) as the learner"
        )


def _sgd(value: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
    return value.detach().new_ones(())


def _adam(value: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
    second: Tensor = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    unbiased: Tensor = second / (1 - group["betas"][1] ** float(state["step"]))
    return (unbiased.sqrt() + float(group["eps"])).reciprocal()


def _rmsprop(value: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
    second: Tensor = state["square_avg"]
    if group["centered"]:
        second = second - state["grad_avg"].square()
    return (second.sqrt() + float(group["eps"])).reciprocal()


_FACTORS: dict[type, Callable[[Tensor, dict[str, Any], dict[str, Any]], Tensor]] = {
    SGD: _sgd,
    Adam: _adam,
    AdamW: _adam,
    RMSprop: _rmsprop,
}
