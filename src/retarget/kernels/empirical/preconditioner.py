r"""Diagonal preconditioners: what an optimiser multiplies gradients with before a step.

A step $\theta \leftarrow \theta - \eta P \nabla L$ with a diagonal P moves the outputs by the
kernel $J P J^\top$ instead of $J J^\top$, so that all that is said of SGD and a kernel holds with
this one while P stands still.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from retarget.errors import InvalidInputError, InvalidTypeError

Preconditioner = Optimizer | Mapping[str, Tensor | float] | None


def preconditioner_of(
    source: Optimizer | Mapping[str, Tensor | float], module: nn.Module, names: list[str]
) -> dict[str, Tensor]:
    """P as it is now, by the names of parameters: of a parameter's shape, or one number for it.

    Args:
        source: An optimiser of the module, or P itself.
        module: Whose parameters.
        names: Those that it is wanted of.
    """
    if isinstance(source, Mapping):
        return _given(source, module, names)
    if type(source) not in _SECOND_MOMENTS:
        raise InvalidTypeError(
            f"preconditioner is a {type(source).__name__}; expected a torch.optim.SGD, Adam, AdamW "
            "or RMSprop, or a dict of factors by the parameters' names"
        )
    groups = source.param_groups
    held = {id(value): group for group in groups for value in group["params"]}
    for group in groups:
        _require_alike(group, groups[0], type(source).__name__)
    found = {}
    for name in names:
        value = module.get_parameter(name)
        if id(value) not in held:
            raise InvalidInputError(
                f"the optimiser does not hold the parameter {name}; expected one of this module, "
                "or choose among its parameters with params="
            )
        group = held[id(value)]
        ratio = float(group["lr"]) / float(groups[0]["lr"])
        found[name] = ratio * _SECOND_MOMENTS[type(source)](source, value, group, name)
    return found


def _given(
    factors: Mapping[str, Tensor | float], module: nn.Module, names: list[str]
) -> dict[str, Tensor]:
    found = {}
    for name in names:
        if name not in factors:
            raise InvalidInputError(
                f"the preconditioner has no factor for the parameter {name}; expected one for each "
                "that is trained, or choose among them with params="
            )
        value = module.get_parameter(name)
        factor = torch.as_tensor(factors[name]).detach().to(value)
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
        found[name] = factor
    return found


def _require_alike(group: dict[str, Any], first: dict[str, Any], kind: str) -> None:
    """Refuses groups whose steps are not one rate times P times the gradient."""
    if group.get("maximize"):
        raise InvalidInputError("maximize is set; expected an optimiser that goes down the loss")
    if not float(first["lr"]) > 0:
        raise InvalidInputError(
            f"lr is {float(first['lr'])} in parameter group 0; expected a positive rate, to which "
            "those of the other groups are relative"
        )
    decays = float(group["weight_decay"])
    decoupled = kind in ("SGD", "AdamW") or group.get("decoupled_weight_decay", False)
    if decays and not decoupled:
        raise InvalidInputError(
            f"{kind} adds weight_decay={decays} to the gradients, so that each weight shrinks at a "
            "rate of its own; use AdamW, and SGD(weight_decay=...) as the learner"
        )
    shrinks = [float(each["lr"]) * float(each["weight_decay"]) for each in (first, group)]
    if not math.isclose(*shrinks, rel_tol=1e-12):
        raise InvalidInputError(
            f"lr * weight_decay is {shrinks[0]:g} in parameter group 0 and {shrinks[1]:g} in "
            "another; expected the same, as all weights must shrink alike"
        )


def _state(optimizer: Optimizer, value: Tensor, name: str) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state.get(value, {})
    if not state:
        raise InvalidInputError(
            f"the optimiser has taken no step on {name} yet, so that it has no second moments; "
            "train a few steps first, or choose among its parameters with params="
        )
    return state


def _plain(optimizer: Optimizer, value: Tensor, group: dict[str, Any], name: str) -> Tensor:
    return value.detach().new_ones(())


def _adam(optimizer: Optimizer, value: Tensor, group: dict[str, Any], name: str) -> Tensor:
    state = _state(optimizer, value, name)
    second: Tensor = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    unbiased: Tensor = second / (1 - group["betas"][1] ** float(state["step"]))
    return (unbiased.sqrt() + float(group["eps"])).reciprocal()


def _rmsprop(optimizer: Optimizer, value: Tensor, group: dict[str, Any], name: str) -> Tensor:
    state = _state(optimizer, value, name)
    second: Tensor = state["square_avg"]
    if group["centered"]:
        second = second - state["grad_avg"].square()
    return (second.sqrt() + float(group["eps"])).reciprocal()


_SECOND_MOMENTS: dict[type, Callable[[Optimizer, Tensor, dict[str, Any], str], Tensor]] = {
    SGD: _plain,
    Adam: _adam,
    AdamW: _adam,
    RMSprop: _rmsprop,
}
