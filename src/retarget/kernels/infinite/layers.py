"""The layers of a `torch.nn.Sequential`, as data that describe an infinitely wide network.

Widths and weights do not matter at infinite width, so all that is kept of a layer is its geometry
and the variances of its weights and biases.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.scalars import as_non_negative, as_positive

READ = (
    *(nn.Linear, nn.Conv2d, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Flatten, nn.Identity),
)
SUPPORTED = ", ".join(kind.__name__ for kind in READ) + " and nested Sequential"
# Options that are supported only with these values.
REQUIRED: dict[type[nn.Module], dict[str, Any]] = {
    nn.Conv2d: {"groups": 1, "padding_mode": "zeros"},
    nn.GELU: {"approximate": "none"},
    nn.AvgPool2d: {"ceil_mode": False, "divisor_override": None},
    nn.Flatten: {"start_dim": 1, "end_dim": -1},
}


@dataclass(frozen=True)
class Layer:
    """A layer, by its name in the module."""

    name: str


@dataclass(frozen=True)
class Weighted(Layer):
    """A layer with random weights and biases."""

    weight_variance: float
    bias_variance: float


class Dense(Weighted):
    """`nn.Linear`, of any width."""


@dataclass(frozen=True)
class Conv(Weighted):
    """`nn.Conv2d`, of any number of channels; (vertical, horizontal) throughout."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding_before: tuple[int, int]
    padding_after: tuple[int, int]


@dataclass(frozen=True)
class Pool(Layer):
    """`nn.AvgPool2d`."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    count_padding: bool


@dataclass(frozen=True)
class AdaptivePool(Layer):
    """`nn.AdaptiveAvgPool2d`; None keeps the size."""

    size: tuple[int | None, int | None]


class Flat(Layer):
    """`nn.Flatten`."""


@dataclass(frozen=True)
class Rectifier(Layer):
    """`nn.ReLU` (slope 0) and `nn.LeakyReLU`: x if x > 0, else slope * x."""

    slope: float


class Gelu(Layer):
    """`nn.GELU`: x times the probability that a standard normal number is below x."""


OnImages = Conv | Pool | AdaptivePool
KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Dense, Conv, Pool, AdaptivePool, Flat, Rectifier, Gelu)
}


def read_layers(module: Any, weight_std: Any, bias_std: Any) -> tuple[Layer, ...]:
    """The layers of a Sequential in the order in which they act, checked and in normal form."""
    if not isinstance(module, nn.Sequential):
        raise InvalidTypeError(
            f"module is {a_type(module)}; expected a torch.nn.Sequential of {SUPPORTED}"
        )
    named = [
        (name, layer)
        for name, layer in module.named_modules(remove_duplicate=False)  # nn.ReLU may come twice
        if not isinstance(layer, nn.Sequential | nn.Identity)
    ]
    weighted: dict[str, nn.Module] = {}
    for name, layer in named:
        if type(layer) in (nn.Linear, nn.Conv2d):
            for earlier, other in weighted.items():
                if other is layer:  # shared weights have another kernel
                    raise InvalidInputError(
                        f"layer '{name}' is the same module as layer '{earlier}'; expected every "
                        "Linear and Conv2d to have weights of its own: make a second one"
                    )
            weighted[name] = layer
    weights = _by_layer("weight_std", weight_std, list(weighted), default=1.0)
    biases = _by_layer("bias_std", bias_std, list(weighted), default=0.0)
    layers = [
        _read(name, layer, weights.get(name, 0.0) ** 2, biases.get(name, 0.0) ** 2)
        for name, layer in named
    ]
    _check_order(layers)
    return tuple(_normal_form(layers))


def layers_to_dicts(layers: tuple[Layer, ...]) -> list[dict[str, Any]]:
    """The layers as plain values, fit for JSON."""
    return [
        {"layer": type(layer).__name__}
        | {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(layer).items()}
        for layer in layers
    ]


def layers_from_dicts(dicts: list[dict[str, Any]]) -> tuple[Layer, ...]:
    """Rebuilds the layers that `layers_to_dicts` described."""
    layers = []
    for entry in dicts:
        values = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
        layers.append(KINDS[str(values.pop("layer"))](**values))
    return tuple(layers)


def _by_layer(argument: str, value: Any, weighted: list[str], default: float) -> dict[str, float]:
    """One standard deviation for each layer that has weights."""
    check = as_positive if argument == "weight_std" else as_non_negative
    if not isinstance(value, Mapping):
        return dict.fromkeys(weighted, check(argument, value))
    unknown = sorted(set(map(str, value)) - set(weighted))
    if unknown:
        raise InvalidInputError(
            f"{argument} names {', '.join(map(repr, unknown))}; expected names of Linear and "
            f"Conv2d layers of this network: {', '.join(map(repr, weighted))}"
        )
    given = {name: check(f"{argument}[{name!r}]", number) for name, number in value.items()}
    return dict.fromkeys(weighted, default) | given


def _read(name: str, layer: nn.Module, weight: float, bias: float) -> Layer:
    if type(layer) not in READ:  # a subclass may compute anything
        raise _refuse(name, layer, f"supported are {SUPPORTED}")
    for option, wanted in REQUIRED.get(type(layer), {}).items():
        if getattr(layer, option) != wanted:
            raise _refuse(name, layer, f"expected {option}={wanted!r}")
    match layer:
        case nn.Linear():
            return Dense(name, weight, bias)
        case nn.Conv2d():
            kernel = _two(layer.kernel_size)
            dilation = _two(layer.dilation)
            before = after = (0, 0) if isinstance(layer.padding, str) else _two(layer.padding)
            if layer.padding == "same":  # an odd pixel goes to the end, as in PyTorch
                height, width = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
                before = height // 2, width // 2
                after = height - before[0], width - before[1]
            return Conv(name, weight, bias, kernel, _two(layer.stride), dilation, before, after)
        case nn.ReLU():
            return Rectifier(name, 0.0)
        case nn.LeakyReLU():
            return Rectifier(name, float(layer.negative_slope))
        case nn.GELU():
            return Gelu(name)
        case nn.AvgPool2d():
            kernel = _two(layer.kernel_size)
            padding = _two(layer.padding)
            if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
                raise _refuse(
                    name, layer, "expected padding of at most half the kernel, as PyTorch does"
                )
            return Pool(name, kernel, _two(layer.stride), padding, bool(layer.count_include_pad))
        case nn.AdaptiveAvgPool2d():
            return AdaptivePool(name, _two(layer.output_size))
        case _:
            return Flat(name)


def _two(value: Any) -> tuple[Any, Any]:
    return tuple(value) if isinstance(value, tuple | list) else (value, value)


def _refuse(name: str, layer: nn.Module, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"layer '{name}', {layer}, has no infinite-width kernel here; {why}: leave it out or "
        "replace it"
    )


def _check_order(layers: list[Layer]) -> None:
    """Rejects orders that PyTorch could not run, or that have no Gaussian limit here."""
    images: bool | None = None  # None: unknown until a layer decides it
    gaussian = False
    rectified = False
    for layer in layers:
        if isinstance(layer, OnImages):
            if images is False:
                raise InvalidInputError(
                    f"layer '{layer.name}' ({type(layer).__name__}) comes after the images were "
                    "flattened; expected every Conv2d and pooling before Flatten and Linear"
                )
            images = True
        elif isinstance(layer, Dense) and images:
            raise InvalidInputError(
                f"layer '{layer.name}' (Linear) acts on images; expected a Flatten before it"
            )
        elif isinstance(layer, Dense | Flat):
            images = False
        if isinstance(layer, Weighted):
            gaussian = True
            rectified = False
        elif isinstance(layer, Rectifier | Gelu):
            # a rectifier of rectified values is a rectifier; no other nonlinearity may follow one
            merges = rectified and isinstance(layer, Rectifier)
            if not gaussian and not merges:
                label = "GELU" if isinstance(layer, Gelu) else "ReLU or LeakyReLU"
                raise InvalidInputError(
                    f"layer '{layer.name}' ({label}) acts on values that are not Gaussian at "
                    "infinite width; expected a Linear or Conv2d between it and the input, and "
                    "between it and an earlier nonlinearity"
                )
            gaussian = False
            rectified = isinstance(layer, Rectifier)
        elif isinstance(layer, Pool | AdaptivePool):
            rectified = False  # an average of rectified values: neither Gaussian nor rectified
    if not any(isinstance(layer, Weighted) for layer in layers):
        raise InvalidInputError(
            "module has no Linear and no Conv2d; expected at least one layer with weights"
        )
    if images:
        raise InvalidInputError(
            f"the network ends in images, with layer '{layers[-1].name}'; expected a Flatten (and "
            "a Linear read-out) at the end"
        )


def _normal_form(layers: list[Layer]) -> Iterator[Layer]:
    """Merges consecutive rectifiers, and moves nonlinearities before a Flatten.

    Flatten averages the covariance over pixels, so what acts on each pixel must come before it.
    """
    flat: list[Layer] = []  # a Flatten that has not been yielded yet
    nonlinear: list[Layer] = []
    for layer in layers:
        if isinstance(layer, Rectifier):
            # For x < 0 the first gives slope * x, and the second sees that number's sign.
            first = nonlinear[0].slope if nonlinear and isinstance(nonlinear[0], Rectifier) else 1.0
            nonlinear = [replace(layer, slope=first * layer.slope if first >= 0 else first)]
        elif isinstance(layer, Gelu):
            nonlinear = [layer]
        elif isinstance(layer, Flat):
            flat = flat or [layer]
        else:
            yield from [*nonlinear, *flat, layer]
            nonlinear = []
            flat = []
    yield from [*nonlinear, *flat]
