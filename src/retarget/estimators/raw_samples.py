"""Texts, images and other raw samples: prepared for a network a few at a time, alike in length."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.samples import as_samples, count, is_nested

AT_A_TIME = 64


def as_raw(name: str, given: Any) -> list[Any]:
    """Returns raw samples as a list."""
    if isinstance(given, str | bytes | dict):
        raise InvalidTypeError(
            f"{name} is {given!r:.80}; expected a list of samples, which `prepare` makes ready for "
            "the network"
        )
    try:
        return list(given)
    except TypeError as error:
        raise InvalidTypeError(
            f"{name} is {a_type(given)}; expected a list of samples, which `prepare` "
            "makes ready for the network"
        ) from error


def prepared_batches(
    prepare: Callable[[list[Any]], Any], raw: list[Any], network: nn.Module
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yields rows and the samples that `prepare` makes of them, short ones first.

    Texts of one length need no padding: sorted by length, they take a third of the time.
    """
    lengths = [len(each) if isinstance(each, str | bytes | list | tuple) else 0 for each in raw]
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), AT_A_TIME):
        rows = order[start : start + AT_A_TIME]
        yield rows, prepared(prepare, [raw[row] for row in rows], network)


def prepared(prepare: Callable[..., Any], raw: list[Any], network: nn.Module) -> Any:
    """Returns what the network takes, made of a few raw samples."""
    if hasattr(prepare, "pad") and hasattr(prepare, "model_input_names"):  # Hugging Face's
        tokens = prepare(raw, padding=True, truncation=True, return_tensors="pt")
        samples = _accepted(tokens, network)
    else:
        samples = _batch(prepare, raw)
    prepared_count = count(as_samples("the result of prepare", samples))
    if prepared_count != len(raw):
        raise InvalidInputError(
            f"prepare made {prepared_count} samples of {len(raw)}; expected as many as it is given"
        )
    return samples


def _accepted(tokens: Mapping[str, Any], network: nn.Module) -> dict[str, Any]:
    """Leaves out what a tokenizer gives and a network does not take, such as token_type_ids."""
    parameters = inspect.signature(network.forward).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(tokens)
    return {name: value for name, value in tokens.items() if name in parameters} or dict(tokens)


def _batch(prepare: Callable[..., Any], raw: list[Any]) -> Any:
    """Calls a function of a list, or a transform of one sample."""
    try:
        return _stacked(prepare(raw))
    except (AttributeError, TypeError, ValueError) as error:
        try:
            return _stacked([prepare(each) for each in raw])
        except Exception:
            raise InvalidTypeError(
                f"prepare fails on a list of {len(raw)} samples ({error}), and on one sample as "
                "well; expected a function from a list of raw samples to what the network takes, "
                "or a transform of one sample"
            ) from error


def _stacked(result: Any) -> Any:
    """Joins a list of tensors, one for each sample."""
    if isinstance(result, list) and result and not is_nested(result[0]):
        return torch.stack([torch.as_tensor(each) for each in result])
    return result
