"""Turns whatever the user gave as a model into one that can be run."""

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from retarget.diagnosis.models.adapters import (
    ModelFailedError,
    OneByOneModel,
    OnlineModel,
    PartialFitModel,
    TorchModel,
    seeded,
)
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.stream import Stream
from retarget.engine.losses import batch_loss
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.import_path import called, imported

LARGER_BATCHES = (8, 32)  # rows, tried if a model cannot learn a mini-batch


def open_model(stream: Stream, options: DiagnosisOptions) -> OnlineModel:
    """Returns the user's model, ready to run, after checking that a copy learns one mini-batch.

    `options` hold the model, its options, and the learner for a torch module without an optimizer.
    """
    with seeded(options.seed):
        given = _created(options.model, options.model_options)
        try:
            model = _adapted(given, stream, options)
        except ModelFailedError as error:
            raise InvalidInputError(f"{error}; every run starts from a copy of it") from error
        try:
            trial = model.fresh()
            _learn_first_rows(trial, stream.X, stream.Y)
        except ModelFailedError as error:
            raise InvalidInputError(f"{error}; {what_it_needs(model, stream, 0)}") from error
    return model


def _learn_first_rows(model: OnlineModel, X: np.ndarray, Y: np.ndarray) -> None:
    rows = slice(0, model.batch_size)
    model.learn(X[rows], Y[rows])
    model.predict(X[rows])


def what_it_needs(model: OnlineModel, stream: Stream, start: int) -> str:
    """Says what a model was given that failed at the mini-batch from row `start`, and what helps.

    What helps is found by trying it: the same rows without a sign, and more rows in a mini-batch.
    """
    X = stream.X[start:]
    Y = stream.Y[start:]
    batch = len(X[: model.batch_size])
    targets = "classes" if stream.kind == "classification" else "numbers"
    given = (
        f"it was given features of shape {X[:batch].shape} and {targets} as targets, of shape "
        f"{Y[:batch].shape}"
    )

    def learns(X: np.ndarray, size: int) -> bool:
        trial = model.fresh()
        trial.batch_size = size
        try:
            _learn_first_rows(trial, X, Y)
        except ModelFailedError:
            return False
        return True

    if learns(X, batch):  # it fails only after what it learned before
        return given
    if (X[:batch] < 0).any() and learns(np.abs(X), batch):
        return (
            f"{given}, some of them negative, as standardized features are, and needs features "
            f"that are not; give them as they are, {spelled('standardize', False)}"
        )
    for size in LARGER_BATCHES:
        if not isinstance(model, OneByOneModel) and batch < size <= len(X) and learns(X, size):
            return (
                f"{given}, and needs more rows at a time; use mini-batches of {size} rows, "
                f"{spelled('batch_size', size)}"
            )
    return given


def _created(model: Any, model_options: Any) -> Any:
    """Creates the model if a class, a factory or the import path of one was given."""
    named = imported(model, "model") if isinstance(model, str) else model
    known = isinstance(named, nn.Module | tuple)
    ready = known or hasattr(named, "partial_fit") or hasattr(named, "learn_one")
    if isinstance(named, type) or not ready:
        name = model if isinstance(model, str) else getattr(model, "__name__", repr(model))
        return called(named, name, "model", model_options)
    if model_options:
        raise InvalidInputError(
            f"{spelled('model_options')} is {model_options!r} and the model is a "
            f"{type(named).__name__}, which is already an instance; give its class, or set these "
            "options yourself"
        )
    return named


def _adapted(model: Any, stream: Stream, options: DiagnosisOptions) -> OnlineModel:
    parts = model if isinstance(model, tuple) else (model,)
    if parts and isinstance(parts[0], nn.Module):
        return _adapted_network(parts, stream, options)
    if hasattr(model, "partial_fit") and hasattr(model, "predict"):
        return PartialFitModel(model, stream, options.learner.batch_size)
    if hasattr(model, "learn_one") and hasattr(model, "predict_one"):
        return OneByOneModel(model, stream)
    raise InvalidTypeError(
        f"the model is {model!r}; expected partial_fit and predict, learn_one and predict_one, or "
        "a torch module (with its optimizer and loss, if it has them)"
    )


def _adapted_network(
    parts: tuple[Any, ...], stream: Stream, options: DiagnosisOptions
) -> TorchModel:
    module = parts[0]
    others = list(parts[1:])
    optimizers = [each for each in others if isinstance(each, torch.optim.Optimizer)]
    losses = [each for each in others if callable(each) and each not in optimizers]
    if len(optimizers) > 1 or len(losses) > 1 or len(optimizers) + len(losses) < len(others):
        kinds = ", ".join(type(each).__name__ for each in parts)
        raise InvalidTypeError(
            f"the model is a tuple of {kinds}; expected a module, an optimizer and a loss"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInputError(
            f"the module {type(module).__name__} has no parameter that requires a gradient; there "
            "is nothing to learn"
        )
    loss = losses[0] if losses else partial(batch_loss, reduction=options.learner.reduction)
    if optimizers:
        return TorchModel(module, optimizers[0], loss, stream, options.learner.batch_size)
    if options.choose_lr:
        raise InvalidInputError(
            f"the module {type(module).__name__} comes without an optimizer and {spelled('lr')} is "
            f"'auto'; give {spelled('lr')}, or return (module, optimizer) from the factory"
        )
    # on a copy: the optimizer must not change the user's own parameters
    module = copy.deepcopy(module)
    if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
        with torch.no_grad():  # lazy layers get the number of features from a first row
            module(torch.zeros(1, stream.X.shape[1], device="cpu"))
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = options.learner.to_torch(trained)
    return TorchModel(module, optimizer, loss, stream, options.learner.batch_size)
