"""Samples of one tensor, or of several: token ids and a mask, an image and a text.

A batch of samples is a tensor whose rows are samples, or a dict or tuple of batches that share
their first dimension, nested at will. Both are counted, cut and joined by the functions here.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from retarget.arrays import as_tensor, require_finite
from retarget.errors import InvalidInputError, InvalidTypeError

# A tensor, or a dict or tuple of these. With a recursive type every use would have to tell the
# three apart, which is what the functions below are for.
Samples = Any


def is_nested(value: Any) -> bool:
    """Whether it is a batch of several parts, rather than one array or nested numbers."""
    if isinstance(value, tuple):  # of numbers, or of tuples of these: one array written out
        arrays = (each for each in value if isinstance(each, Tensor | np.ndarray))
        return any(np.ndim(each) > 0 for each in arrays) or any(map(is_nested, value))
    return isinstance(value, Mapping)


def as_samples(name: str, value: Any) -> Samples:
    """The caller's samples as tensors that share their memory, detached from any graph.

    Mappings become dicts with sorted keys and without entries that are None; named tuples become
    tuples.
    """
    if not is_nested(value):
        samples = as_tensor(name, value)
        if samples.ndim == 0:
            raise InvalidInputError(f"{name} is a single number; expected samples as rows")
        if samples.is_floating_point():
            require_finite(name, samples)
        return samples
    samples = _as_nest(name, value)
    lengths = {path: len(leaf) for path, leaf in named_leaves(name, samples).items()}
    if not lengths:
        raise InvalidInputError(
            f"{name} holds no array; expected at least one, with a row a sample"
        )
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{path} has {length}" for path, length in lengths.items())
        raise InvalidInputError(f"{found} rows; expected one row a sample in every part of {name}")
    return samples


def _as_nest(name: str, value: Any) -> Samples:
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidTypeError(f"{name} has keys {list(value)!r}; expected strings")
        return {
            key: _as_nest(f"{name}[{key!r}]", part)
            for key, part in sorted(value.items())
            if part is not None
        }
    if isinstance(value, tuple):
        return tuple(_as_nest(f"{name}[{i}]", part) for i, part in enumerate(value))
    # need not be finite: a mask that is added has infinities
    leaf = as_tensor(name, value)
    if leaf.ndim == 0:
        raise InvalidInputError(f"{name} is a single number; expected one row a sample")
    return leaf


def leaves(samples: Any) -> list[Any]:
    """The tensors of the samples (or the caller's arrays, before `as_samples`)."""
    if not is_nested(samples):
        return [samples]
    parts = samples.values() if isinstance(samples, Mapping) else samples
    return [leaf for part in parts if part is not None for leaf in leaves(part)]


def mapped(change: Callable[[Any], Any], samples: Any) -> Any:
    """The same samples with a function applied to each tensor."""
    if not is_nested(samples):
        return change(samples)
    if isinstance(samples, Mapping):
        return {key: mapped(change, each) for key, each in samples.items() if each is not None}
    return tuple(mapped(change, each) for each in samples)


def with_leaves(samples: Samples, new: Sequence[Tensor]) -> Samples:
    """The same samples with other tensors, in the order of `leaves`."""
    remaining = iter(new)
    return mapped(lambda _: next(remaining), samples)


def library_of(samples: Any) -> Any:
    """One of the caller's arrays: results are returned in its library."""
    return next(iter(leaves(samples)), None)


def count(samples: Any) -> int:
    """How many samples there are."""
    first = library_of(samples)
    return 0 if first is None else len(first)


def take(samples: Any, rows: Any) -> Any:
    """Some of them: a slice, or an index array."""
    return mapped(lambda leaf: leaf[rows], samples)


def join(parts: Sequence[Samples]) -> Samples:
    """All of them, one batch after the other."""
    columns = zip(*(leaves(part) for part in parts), strict=True)
    return with_leaves(parts[0], [torch.cat(column) for column in columns])


def portions(samples: Samples, rows: int) -> Iterator[Samples]:
    """All of them, a few at a time; one empty portion if there are none."""
    for start in range(0, max(1, count(samples)), rows):
        yield take(samples, slice(start, start + rows))


def with_type_of(like: Tensor, samples: Samples) -> Samples:
    """The samples on a network's device, and floating point in its type; tokens stay integers."""
    return mapped(
        lambda leaf: leaf.to(like) if leaf.is_floating_point() else leaf.to(like.device), samples
    )


def form_of(samples: Samples) -> dict[str, tuple[tuple[int, ...], torch.dtype, torch.device]]:
    """The parts with their shapes, types and devices, which batches of one kind share."""
    return {
        path: (tuple(leaf.shape[1:]), leaf.dtype, leaf.device)
        for path, leaf in named_leaves("", samples).items()
    }


def shapes_of(samples: Samples) -> str:
    """The shape of one sample, in words: `(3, 32, 32)`, or `input_ids (16,), mask (16,)`."""
    if not is_nested(samples):
        return str(tuple(samples.shape[1:]))
    found = named_leaves("", samples).items()
    return ", ".join(f"{path} {tuple(leaf.shape[1:])}" for path, leaf in found)


def named_leaves(name: str, samples: Samples) -> dict[str, Tensor]:
    """The tensors by names such as `name["ids", 0]`, from which `from_named` rebuilds the nest."""

    def walk(part: Samples, path: tuple[str | int, ...]) -> dict[str, Tensor]:
        if isinstance(part, Mapping | tuple):
            keyed = part.items() if isinstance(part, Mapping) else enumerate(part)
            return {k: v for key, each in keyed for k, v in walk(each, (*path, key)).items()}
        return {name + (json.dumps(path) if path else ""): part}

    return walk(samples, ())


def from_named(name: str, tensors: Mapping[str, Any]) -> Samples | None:
    """Rebuilds what `named_leaves` took apart; None if there is nothing of that name."""
    if name in tensors:
        return tensors[name]
    nest: dict[str | int, Any] = {}
    for key, tensor in tensors.items():
        if key.startswith(f"{name}["):
            *outer, last = json.loads(key.removeprefix(name))
            inner = nest
            for step in outer:
                inner = inner.setdefault(step, {})
            inner[last] = tensor
    return _with_tuples(nest) if nest else None


def _with_tuples(nest: Any) -> Samples:
    if not isinstance(nest, dict):
        return nest
    parts = {key: _with_tuples(nest[key]) for key in sorted(nest)}
    return tuple(parts[i] for i in range(len(parts))) if 0 in parts else parts


def arguments(module: nn.Module, samples: Samples) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional arguments and keywords with which a module is called.

    A dict becomes keywords and a tuple several arguments, if `forward` accepts them; otherwise
    either is one argument.
    """
    if not is_nested(samples):
        return (samples,), {}
    positional, keywords = ((), samples) if isinstance(samples, dict) else (samples, {})
    try:
        inspect.signature(module.forward).bind(*positional, **keywords)
    except (TypeError, ValueError):  # it does not take them, or nothing tells
        return (samples,), {}
    return positional, keywords


def outputs_of(
    module: nn.Module, samples: Samples, weights: dict[str, Tensor] | None = None
) -> Tensor:
    """A module's output for its samples, one tensor, perhaps with other weights."""
    positional, keywords = arguments(module, samples)
    if weights is None:
        result = module(*positional, **keywords)
    else:
        result = functional_call(module, weights, positional, keywords)
    outputs = output_of(result, count(samples))
    if not isinstance(outputs, Tensor):
        raise InvalidInputError(
            f"the module returned a {type(result).__name__}; expected one tensor of outputs (n, c),"
            " or one such among others: wrap it in a module that returns that part"
        )
    return outputs


@contextmanager
def whole_numbers_explained(samples: Samples) -> Iterator[None]:
    """Explains the failure of a module to which samples with whole numbers were passed."""
    try:
        yield
    except RuntimeError as error:
        found = {str(leaf.dtype).removeprefix("torch.") for leaf in leaves(samples)}
        if all(leaf.is_floating_point() for leaf in leaves(samples)):
            raise
        raise InvalidTypeError(
            f"the samples have dtype {', '.join(sorted(found))}, and the module does not take them "
            f"({error}); whole numbers are not converted, because embeddings need them: convert "
            "others to floating point"
        ) from error


def output_of(result: Any, samples: int) -> Any:
    """The only matrix, one row a sample, among a module's results; otherwise these as they are.

    Networks of Hugging Face return objects with several entries, of which `logits` or
    `pooler_output` is such a matrix.
    """
    if isinstance(result, Tensor):
        return result
    entries = result.values() if isinstance(result, Mapping) else result
    if not isinstance(result, Mapping | tuple | list):
        entries = vars(result).values() if hasattr(result, "__dict__") else ()
    matrices = [
        each
        for each in entries
        if isinstance(each, Tensor) and each.ndim == 2 and len(each) == samples
    ]
    return matrices[0] if len(matrices) == 1 else result
