"""Turns whatever the user gave as a model into one that can be run."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from retarget.diagnosis.dialect import named, option
from retarget.diagnosis.models.adapters import (
    ModelFailedError,
    OneByOneModel,
    OnlineModel,
    PartialFitModel,
    TorchModel,
    seeded,
)
from retarget.diagnosis.options import Options
from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.import_path import called, imported
from retarget.learners import Reduction


def open_model(stream: Stream, options: Options) -> OnlineModel:
    """Returns the user's model, ready to run, after checking that a copy learns one mini-batch.

    `options` hold the model, its options, and the learner for a torch module without an optimiser.
    """
    with seeded(options.seed):
        model = _adapted(_made(options.model, options.model_options), stream, options)
        trial, rows = model.fresh(), slice(0, model.batch_size)
        try:
            trial.learn(stream.X[rows], stream.Y[rows])
            trial.predict(stream.X[rows])
        except ModelFailedError as error:
            targets = "classes" if stream.kind == "classification" else "numbers"
            raise InvalidInputError(
                f"{error}; it was given {len(stream.X[rows])} rows of {stream.X.shape[1]} features "
                f"and {stream.Y.shape[1]} targets ({targets})"
            ) from error
    return model


def _made(model: Any, model_options: Any) -> Any:
    """Creates the model if a class, a factory or the import path of one was given."""
    found = imported(model, "model") if isinstance(model, str) else model
    known = isinstance(found, nn.Module | tuple)
    ready = known or hasattr(found, "partial_fit") or hasattr(found, "learn_one")
    if isinstance(found, type) or not ready:
        name = model if isinstance(model, str) else getattr(model, "__name__", repr(model))
        return called(found, name, "model", model_options)
    if model_options:
        raise InvalidInputError(
            f"{named('model_options')} is {model_options!r} and the model is a "
            f"{type(found).__name__}, which is already an instance; give its class, or set these "
            "options yourself"
        )
    return found


def _adapted(model: Any, stream: Stream, options: Options) -> OnlineModel:
    parts = model if isinstance(model, tuple) else (model,)
    if parts and isinstance(parts[0], nn.Module):
        return _adapted_network(parts, stream, options)
    if hasattr(model, "partial_fit") and hasattr(model, "predict"):
        return PartialFitModel(model, stream, options.batch_size)
    if hasattr(model, "learn_one") and hasattr(model, "predict_one"):
        return OneByOneModel(model, stream)
    raise InvalidTypeError(
        f"the model is {model!r}; expected partial_fit and predict, learn_one and predict_one, or "
        "a torch module (with its optimiser and loss, if it has them)"
    )


def _adapted_network(parts: tuple[Any, ...], stream: Stream, options: Options) -> TorchModel:
    module, others = parts[0], list(parts[1:])
    optimisers = [part for part in others if isinstance(part, torch.optim.Optimizer)]
    losses = [part for part in others if callable(part) and part not in optimisers]
    if len(optimisers) > 1 or len(losses) > 1 or len(optimisers) + len(losses) < len(others):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise InvalidTypeError(
            f"the model is a tuple of {kinds}; expected a module, an optimiser and a loss"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInputError(
            f"the module {type(module).__name__} has no parameter that requires a gradient; there "
            "is nothing to learn"
        )
    loss = losses[0] if losses else HalfSquaredError(options.reduction)
    if optimisers:
        return TorchModel(module, optimisers[0], loss, stream, options.batch_size)
    if isinstance(options.lr, str):
        raise InvalidInputError(
            f"the module {type(module).__name__} comes without an optimiser and {named('lr')} is "
            f"'auto'; give {option('lr')}, or return (module, optimiser) from the factory"
        )
    # on a copy: the optimiser must not change the user's own parameters
    module = copy.deepcopy(module)
    if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
        with torch.no_grad():  # lazy layers get the number of features from a first row
            module(torch.zeros(1, stream.X.shape[1]))
    optimiser = torch.optim.SGD(
        [parameter for parameter in module.parameters() if parameter.requires_grad],
        lr=options.lr,
        momentum=options.momentum,
        nesterov=options.nesterov,
        weight_decay=options.weight_decay,
    )
    return TorchModel(module, optimiser, loss, stream, options.batch_size)


class HalfSquaredError:
    """Half the squared error, summed over targets and over rows, or averaged over rows."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of a mini-batch."""
        total = 0.5 * (outputs - targets).square().sum()
        return total / len(outputs) if self._reduction == "mean" else total
