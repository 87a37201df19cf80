"""The kernel machine that describes a user's model, if there is one, and what it predicts.

A linear model trained by SGD on the squared error is exactly one pass of SGD on a linear kernel. A
network trained like this is one on its tangent kernel, while that kernel does not change.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from retarget.diagnosis.measure.approximation import FEATURE_WORK, MOST_FEATURES
from retarget.diagnosis.measure.passes import OnlineRun
from retarget.diagnosis.models.adapters import (
    LossFunction,
    OneByOneModel,
    OnlineModel,
    PartialFitModel,
    TorchModel,
)
from retarget.engine.followers import follow
from retarget.engine.response import remaining_start
from retarget.engine.stream_kernel import DenseKernel, FeatureKernel, StreamKernel
from retarget.errors import InvalidInputError, InvalidTypeError, StreamTooLargeError
from retarget.import_path import USER_ERRORS, reason
from retarget.kernels import EmpiricalNTK, Features
from retarget.kernels.feature_maps import feature_map
from retarget.learners import SGD, described_river
from retarget.settings import in_plain_torch

MOST_ROWS = 4000  # for a dense kernel
SMALL = 1e-8  # relative differences below this are rounding


class NoDescriptionError(Exception):
    """No kernel machine describes the model; the message says why."""


class Description(NamedTuple):
    """A kernel machine that does what the model does; `words` say which, and how exactly."""

    words: str
    kernel: Features | EmpiricalNTK
    features: Callable[[Tensor], Tensor]  # whose inner products are the kernel, exactly
    learner: SGD
    start: Callable[[Tensor], Tensor]  # (m, c) predictions before anything was learned


class Machine(NamedTuple):
    """A description, opened on a stream.

    `start` (n, c) is what is predicted before anything was learned; the targets in `kernel` are
    those of the stream minus `start`.
    """

    learner: SGD
    kernel: StreamKernel
    start: Tensor


def describe(model: OnlineModel, X: Tensor) -> Description:
    """Returns the kernel machine that describes the model; raises `NoDescriptionError` if none."""
    if isinstance(model, PartialFitModel):
        return _describe_sgd_regressor(model, len(X))
    if isinstance(model, OneByOneModel):
        return _describe_linear_regression(model)
    assert isinstance(model, TorchModel)
    return _describe_network(model, X)


def _linear(
    words: str, learner: SGD, outputs: int, constant: float, penalty: str, start: float = 0.0
) -> Description:
    """Describes a linear model, with a feature of size `constant` for its intercept.

    With a `penalty` this is inexact: the real one does not shrink the intercept.
    """

    def features(X: Tensor) -> Tensor:
        return torch.cat([X, X.new_full((len(X), 1), constant)], dim=1) if constant else X

    def at_first(X: Tensor) -> Tensor:
        return X.new_full((len(X), outputs), start)

    nearly = f"This is nearly exact: the penalty {penalty} does not shrink the real intercept."
    words += f"{', with a constant feature for the intercept' if constant else ''}. "
    words += nearly if penalty else "This is exact."
    return Description(words, Features(features), features, learner, at_first)


def _describe_sgd_regressor(model: PartialFitModel, rows: int) -> Description:
    from sklearn.linear_model import SGDRegressor

    own = model.original
    if type(own) is not SGDRegressor:
        raise NoDescriptionError(
            f"No known kernel describes {model.name}; among models with partial_fit, one is known "
            "for scikit-learn's SGDRegressor with the squared error."
        )
    wrong = [
        f"{name}={getattr(own, name)!r}"
        for name, allowed in (
            ("loss", ("squared_error",)),
            ("penalty", (None, "l2")),
            ("learning_rate", ("constant", "invscaling")),
            ("average", (False, 0)),
        )
        if getattr(own, name) not in allowed
    ]
    if wrong:
        raise NoDescriptionError(
            f"No kernel describes {model.name} with {', '.join(wrong)}; a linear kernel would, "
            "with squared_error, no penalty or l2, a constant or invscaling rate, and no average."
        )
    if model.batch_size > 1:
        raise NoDescriptionError(
            f"No kernel describes {model.name} in mini-batches of {model.batch_size} rows: it "
            "shuffles them and learns one after another; with batch_size=1, a linear kernel would."
        )
    schedule: float | list[float] = float(own.eta0)
    words = f"One pass of SGD at the rate {own.eta0:g}"
    if own.learning_rate == "invscaling":
        schedule = [float(own.eta0) / step**own.power_t for step in range(1, rows + 1)]
        words += f" / t^{own.power_t:g}"
    decay = 0.0 if own.penalty is None else float(own.alpha)
    return _linear(
        f"{words} on the linear kernel",
        SGD(schedule, weight_decay=decay),
        model.outputs,
        constant=float(own.fit_intercept),
        penalty=f"alpha = {decay:g}" if decay and own.fit_intercept else "",
    )


def _describe_linear_regression(model: OneByOneModel) -> Description:
    own = model.original
    try:
        steps = described_river(own)
    except InvalidTypeError as error:
        raise NoDescriptionError(
            f"No known kernel describes {model.name}; among models with learn_one, one is known "
            "for river's LinearRegression with optim.SGD and the squared loss."
        ) from error
    except InvalidInputError as error:
        raise NoDescriptionError(f"No kernel describes {model.name}: {error}.") from error
    return _linear(
        f"One pass of SGD on the linear kernel at the rate {steps.learner.rate(0):g}, twice "
        "river's, whose squared loss is not halved",
        steps.learner,
        model.outputs,
        constant=steps.constant,
        penalty=f"l2 = {own.l2:g}" if own.l2 else "",
        start=steps.intercept,
    )


def _describe_network(model: TorchModel, X: Tensor) -> Description:
    module, optimizer, loss = model.original
    learner = _as_learner(model, optimizer, loss)
    random = nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase
    layers = [type(layer).__name__ for layer in module.modules() if isinstance(layer, random)]
    if layers:
        raise NoDescriptionError(
            f"No kernel describes {model.name}: its {layers[0]} layer behaves differently "
            "in training and in prediction."
        )
    groups = optimizer.param_groups
    rates = {id(parameter): float(group["lr"]) for group in groups for parameter in group["params"]}
    # the rates of the parameters, in units of the learner's
    relative = {
        name: rates[id(parameter)] / float(groups[0]["lr"])
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and id(parameter) in rates
    }
    names = tuple(relative)
    network = model.fresh().module.double().cpu().eval()
    several = relative if len(set(rates.values())) > 1 else None
    kernel = EmpiricalNTK(network, params=names, preconditioner=several, progress=False)
    try:
        linear = _is_linear(network, names, X[:4])
        alike = model.outputs == 1 or (linear and _outputs_are_alike(kernel, X[:4]))
    except USER_ERRORS as error:
        raise NoDescriptionError(
            f"No kernel describes {model.name}, which fails in double precision: {reason(error)}."
        ) from error
    words = "One pass of SGD on the tangent kernel of the module at initialization. The module "
    if linear and alike:
        words += "is linear in its parameters: this is exact."
    elif linear:
        words += (
            "is linear in its parameters, but its outputs have different kernels or share "
            "parameters: this is approximate. The agreement shows how well it holds here."
        )
    else:
        words += (
            "is not linear in its parameters: this holds while its kernel does not change, but in "
            "general it does. The agreement shows how well it holds here."
        )
    if not alike:
        words += " For several outputs, the mean of their kernels is used."

    @in_plain_torch
    def start(rows: Tensor) -> Tensor:
        outputs: Tensor = network(rows)
        return outputs.reshape(len(rows), -1)

    return Description(words, kernel, kernel.features, learner, start)


def _as_learner(model: TorchModel, optimizer: Any, loss: LossFunction) -> SGD:
    """Returns the optimizer and the loss as an `SGD` on half the squared error."""
    b = model.batch_size
    factors = [squared_error_factor(loss, rows, model.outputs) for rows in (1, 2, b)]
    one, two, whole = (factor or 0.0 for factor in factors)
    summed = bool(np.allclose([two, whole], one, rtol=SMALL, atol=0))
    averaged = bool(np.allclose([2 * two, b * whole], one, rtol=SMALL, atol=0))
    if None in factors or not (summed or averaged) or one <= 0:
        kind = getattr(loss, "__name__", type(loss).__name__)
        raise NoDescriptionError(
            f"No kernel describes {model.name}: its loss, {kind}, is not a squared error."
        )
    try:
        learner = SGD.from_torch(optimizer, b, "sum" if summed else "mean")
    except InvalidTypeError as error:
        raise NoDescriptionError(
            f"No kernel describes {model.name}: one is known only for torch.optim.SGD."
        ) from error
    except InvalidInputError as error:
        raise NoDescriptionError(f"No kernel describes {model.name}: {error}.") from error
    # a loss with gradient a (p - y) is half the squared error at a times the rate; weight decay is
    # divided by a, so that a step decays as much as before
    assert isinstance(learner.lr, float)
    return replace(learner, lr=one * learner.lr, weight_decay=learner.weight_decay / one)


def squared_error_factor(loss: LossFunction, rows: int, outputs: int) -> float | None:
    """Returns a if the measured gradient of the loss is a (p - y) for so many rows, else None."""
    generator = torch.Generator().manual_seed(rows)
    factors = []
    for _ in range(2):
        p, y = torch.randn(2, rows, outputs, dtype=torch.float64, generator=generator, device="cpu")
        p.requires_grad_()
        try:
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(loss(p, y), p)
        except USER_ERRORS:  # it then takes other targets
            return None
        factors.append((gradient / (p - y)).detach())
    ratios = torch.stack(factors)
    factor = float(ratios.mean())
    same = bool(((ratios - factor).abs() <= SMALL * abs(factor)).all())
    return factor if same and np.isfinite(factor) else None


def _is_linear(network: nn.Module, names: tuple[str, ...], X: Tensor) -> bool:
    """Whether doubling a change of the parameters doubles the change of the outputs."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    change = {
        name: torch.randn(
            weights[name].shape, dtype=torch.float64, generator=generator, device="cpu"
        )
        for name in names
    }

    def outputs(size: float) -> Tensor:
        moved = {name: weights[name] + size * change[name] for name in names}
        with torch.no_grad():
            result: Tensor = torch.func.functional_call(network, weights | moved, (X,))
        return result

    base = outputs(0.0)
    gap = outputs(2.0) - base - 2 * (outputs(1.0) - base)
    return float(gap.abs().max()) <= SMALL * (1.0 + float(base.abs().max()))


def _outputs_are_alike(kernel: EmpiricalNTK, X: Tensor) -> bool:
    """Whether all outputs have this kernel, and learning one of them does not move the others."""
    K = kernel(X)
    full = EmpiricalNTK(
        kernel.module,
        "full",
        params=kernel.params,
        preconditioner=kernel.preconditioner,
        progress=False,
    )(X)
    gap = full - torch.kron(K, torch.eye(len(full) // len(K), dtype=K.dtype, device=K.device))
    return float(gap.abs().max()) <= SMALL * float(K.abs().max())


def open_description(description: Description, X: Tensor, Y: Tensor) -> Machine:
    """Opens the kernel of the stream, through its features if they are few: exact in both cases.

    Raises `StreamTooLargeError` if there are too many rows for the kernel, and too many features.
    """
    kernel = description.kernel
    n = len(X)
    start = description.start(X)
    own = feature_map(description.features)
    size = own(X[:1]).shape[1]
    few = size <= MOST_FEATURES and n * size**2 <= FEATURE_WORK
    if few and 2 * size < n:
        return Machine(description.learner, FeatureKernel(own, X, Y - start), start)
    if n > MOST_ROWS:
        raise StreamTooLargeError(
            f"the kernel of {n:,} rows has {size:,} features; expected at most {MOST_ROWS:,} "
            f"rows, or at most {MOST_FEATURES:,} features"
        )
    return Machine(description.learner, DenseKernel(kernel, X, Y - start), start)


@in_plain_torch
def predicted_movement(machine: Machine) -> np.ndarray | None:
    """Returns (n, c) how far theory moves each row's prediction from after its step to the end.

    Weight decay fades the initial function. Returns None if the kernel machine diverges.
    """
    learner, kernel, start = machine
    n = len(kernel)
    left = start.new_tensor(remaining_start(learner, n))[:, None]
    next_step = (torch.arange(n, device="cpu") // learner.batch_size + 1) * learner.batch_size
    online = OnlineRun(kernel, learner, kernel.Y + (1 - left[:-1]) * start, after_steps=True)
    follow(kernel.windows(learner.batch_size), [online])
    if online.coefficients is None or online.after_steps is None:
        return None
    end = kernel.values(online.coefficients) + left[-1] * start
    movement: np.ndarray = (end - online.after_steps - left[next_step.clamp(max=n)] * start).numpy()
    return movement
