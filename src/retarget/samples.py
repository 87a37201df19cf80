"""Batches of samples, each made of one tensor or of several, such as token ids and a mask.

A batch is a tensor whose rows are samples, or a dict or tuple of batches that share their first
dimension, nested to any depth. The functions here count, slice and join both kinds.
"""

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from retarget.arrays import FLOATS, as_tensor, require_finite, require_numbers
from retarget.errors import InvalidInputError, InvalidTypeError, RetargetError, a_type

# A tensor, or a dict or tuple of these. With a recursive type every use would have to tell the
# three apart, which is what the functions below are for.
Samples = Any


def is_nested(value: Any) -> bool:
    """Whether the value is a batch of several parts, rather than one array or nested numbers."""
    if isinstance(value, tuple):  # a tuple of numbers, or of such tuples, is one array
        arrays = (each for each in value if isinstance(each, Tensor | np.ndarray))
        return any(np.ndim(each) > 0 for each in arrays) or any(map(is_nested, value))
    return isinstance(value, Mapping)


def as_samples(name: str, value: Any, first_row: int = 0) -> Samples:
    """The caller's samples as tensors that share their memory, detached from any graph.

    Mappings become dicts with sorted keys and without entries that are None; named tuples become
    tuples. Errors count rows from `first_row`.
    """
    if not is_nested(value):
        samples = as_tensor(name, value)
        if samples.ndim == 0:
            raise InvalidInputError(f"{name} is a single number; expected one row per sample")
        if samples.is_floating_point():
            require_finite(name, samples, first_row)
        return samples
    samples = _as_nest(name, value, first_row)
    lengths = {path: len(leaf) for path, leaf in named_leaves(name, samples).items()}
    if not lengths:
        raise InvalidInputError(
            f"{name} holds no array; expected at least one, with one row per sample"
        )
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{path} has {length} rows" for path, length in lengths.items())
        raise InvalidInputError(f"{described}; expected one row per sample in every part of {name}")
    return samples


def _as_nest(name: str, value: Any, first_row: int) -> Samples:
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidTypeError(f"{name} has keys {list(value)!r}; expected string keys")
        return {
            key: _as_nest(f"{name}[{key!r}]", entry, first_row)
            for key, entry in sorted(value.items())
            if entry is not None
        }
    if isinstance(value, tuple):
        return tuple(_as_nest(f"{name}[{i}]", entry, first_row) for i, entry in enumerate(value))
    leaf = as_tensor(name, value)
    if leaf.ndim == 0:
        raise InvalidInputError(f"{name} is a single number; expected one row per sample")
    if leaf.is_floating_point():
        require_numbers(name, leaf, first_row)  # additive masks contain infinities
    return leaf


def leaves(samples: Any) -> list[Any]:
    """Returns all tensors of the samples (or the caller's arrays, before `as_samples`)."""
    if not is_nested(samples):
        return [samples]
    parts = samples.values() if isinstance(samples, Mapping) else samples
    return [leaf for part in parts if part is not None for leaf in leaves(part)]


def mapped(change: Callable[[Any], Any], samples: Any) -> Any:
    """Applies a function to each tensor of the samples."""
    if not is_nested(samples):
        return change(samples)
    if isinstance(samples, Mapping):
        return {key: mapped(change, each) for key, each in samples.items() if each is not None}
    return tuple(mapped(change, each) for each in samples)


def with_leaves(samples: Samples, new: Sequence[Tensor]) -> Samples:
    """Replaces the tensors of the samples, in the order of `leaves`."""
    remaining = iter(new)
    return mapped(lambda _: next(remaining), samples)


def library_of(samples: Any) -> Any:
    """Returns one of the caller's arrays, in whose library results are returned."""
    return next(iter(leaves(samples)), None)


def count(samples: Any) -> int:
    """Number of samples."""
    first = library_of(samples)
    if first is None:
        return 0
    try:
        return len(first)
    except TypeError:  # a sparse matrix, a generator, a single number: say which
        return len(as_samples("X", first))


def take(samples: Any, rows: Any) -> Any:
    """Selects samples by their places, given as a slice or an index array."""
    # pandas 2 takes slices of floats, and any arrays, as labels
    return mapped(lambda leaf: (leaf.iloc if hasattr(leaf, "iloc") else leaf)[rows], samples)


def join(parts: Sequence[Samples]) -> Samples:
    """Concatenates batches of samples."""
    columns = zip(*(leaves(part) for part in parts), strict=True)
    return with_leaves(parts[0], [torch.cat(column) for column in columns])


def portions(samples: Samples, rows: int) -> Iterator[Samples]:
    """Yields the samples a few at a time; a single empty portion if there are none."""
    for start in range(0, max(1, count(samples)), rows):
        yield take(samples, slice(start, start + rows))


def with_type_of(like: Tensor, samples: Samples) -> Samples:
    """Moves samples to a network's device, and floating point to its type; tokens stay integers."""
    return mapped(
        lambda leaf: leaf.to(like) if leaf.is_floating_point() else leaf.to(like.device), samples
    )


def form_of(samples: Samples) -> dict[str, tuple[tuple[int, ...], torch.dtype, torch.device]]:
    """The shape, type and device of each part, which all batches of one kind share."""
    return {
        path: (tuple(leaf.shape[1:]), leaf.dtype, leaf.device)
        for path, leaf in named_leaves("", samples).items()
    }


def shapes_of(samples: Samples) -> str:
    """The shape of one sample, in words: `(3, 32, 32)`, or `input_ids (16,), mask (16,)`."""
    if not is_nested(samples):
        return str(tuple(samples.shape[1:]))
    named = named_leaves("", samples).items()
    return ", ".join(f"{path} {tuple(leaf.shape[1:])}" for path, leaf in named)


def named_leaves(name: str, samples: Samples) -> dict[str, Tensor]:
    """The tensors by names such as `name["ids", 0]`, from which `from_named` rebuilds the nest."""

    def walk(part: Samples, path: tuple[str | int, ...]) -> dict[str, Tensor]:
        if isinstance(part, Mapping | tuple):
            keyed = part.items() if isinstance(part, Mapping) else enumerate(part)
            return {k: v for key, each in keyed for k, v in walk(each, (*path, key)).items()}
        return {name + (json.dumps(path) if path else ""): part}

    return walk(samples, ())


def from_named(name: str, tensors: Mapping[str, Any]) -> Samples | None:
    """Rebuilds what `named_leaves` took apart; None if no tensor has that name."""
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
    """Returns the positional arguments and keywords to call a module with.

    A dict becomes keywords and a tuple several arguments, if `forward` accepts them; otherwise
    either is one argument.
    """
    if not is_nested(samples):
        return (samples,), {}
    positional, keywords = ((), samples) if isinstance(samples, dict) else (samples, {})
    try:
        inspect.signature(module.forward).bind(*positional, **keywords)
    except (TypeError, ValueError):  # it does not accept them, or has no readable signature
        return (samples,), {}
    return positional, keywords


def outputs_of(
    module: nn.Module, samples: Samples, weights: dict[str, Tensor] | None = None
) -> Tensor:
    """Runs a module on samples, optionally with other weights, and returns its output tensor."""
    # copies, because a layer with inplace=True would write into the caller's samples
    positional, keywords = arguments(module, mapped(torch.clone, samples))
    if weights is None:
        result = module(*positional, **keywords)
    else:
        require_replaceable_weights(module)
        result = functional_call(module, weights, positional, keywords)
    outputs = output_of(result, count(samples))
    n = count(samples)
    if not isinstance(outputs, Tensor):
        raise InvalidInputError(
            f"the module returned {a_type(result)}; expected one tensor of outputs (n, c),"
            " alone or as the only one among several results: wrap it in a module that returns the "
            "part you mean"
        )
    fits = outputs.ndim >= 2 and len(outputs) == n and (outputs.numel() or not n)
    if not fits or outputs.dtype not in FLOATS:
        raise unfit_outputs(outputs, n)
    return outputs


def require_replaceable_weights(module: nn.Module) -> None:
    """Rejects modules that torch cannot run with other weights than their own."""
    if isinstance(module, torch.jit.ScriptModule | nn.DataParallel):
        original = "module.module" if isinstance(module, nn.DataParallel) else "the original"
        raise InvalidTypeError(
            f"module is {a_type(module)}, which torch cannot run with other weights; "
            f"expected the module that it was made from: pass {original}"
        )


def unfit_outputs(outputs: Tensor, n: int) -> InvalidInputError:
    """Makes the error for outputs that are not a matrix of real numbers, one row per sample."""
    return InvalidInputError(
        f"the module returned {outputs.dtype} of shape {tuple(outputs.shape)} for {n} samples; "
        f"expected real outputs of shape ({n}, c), with c of 1 or more: wrap it in a module that "
        "converts or reshapes them"
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[nn.Module]:
    """Puts the module in evaluation mode; afterwards restores the mode of each submodule."""
    training = [layer for layer in module.modules() if layer.training]
    try:
        yield module.eval()
    finally:
        for layer in training:
            layer.training = True


def require_network(module: Any) -> None:
    """Rejects what is not a network with weights that can be read."""
    if not isinstance(module, nn.Module):
        raise InvalidTypeError(f"module is {module!r}; expected a torch.nn.Module")
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if nn.parameter.is_lazy(value):
            raise InvalidTypeError(
                f"the module's {name} has no shape yet, because its layer is lazy; call the module "
                "once on a few samples first"
            )
        if value.is_meta:
            raise InvalidTypeError(
                f"the module's {name} is on the meta device, which holds no numbers; load the "
                "weights first: module.to_empty(device='cpu'), then module.load_state_dict(...)"
            )


def copied(module: nn.Module) -> nn.Module:
    """A copy of a network, which must have weights that can be read."""
    require_network(module)
    try:
        with torch.inference_mode(False):  # what is made in that mode can never be differentiated
            return copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise InvalidTypeError(
            f"the {type(module).__name__} cannot be copied ({error}); expected a module that "
            "copy.deepcopy copies: keep no computed tensors, locks or files in it, and replace "
            "torch.nn.utils.weight_norm by torch.nn.utils.parametrizations.weight_norm"
        ) from error


def require_finite_weights(weights: Mapping[str, Tensor]) -> None:
    """Rejects weights of which one is not finite."""
    for name, value in weights.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            bad = value[~value.isfinite()][0].item()
            raise InvalidInputError(
                f"the module's {name} holds {bad}; expected finite weights: use those from before "
                "its training diverged"
            )


def require_finite_samples(samples: Samples) -> None:
    """Rejects samples with infinities, which are allowed until a result is not finite."""
    for path, leaf in named_leaves("samples", samples).items():
        if leaf.is_floating_point() and bool(leaf.isinf().any()):
            raise InvalidInputError(
                f"the module's results are not finite, though its weights are, and {path} holds "
                "inf; expected it in masks only: remove or fill in infinite values first"
            )


def require_finite_outputs(
    outputs: Tensor, weights: Mapping[str, Tensor], samples: Samples
) -> None:
    """Rejects outputs that are not finite, and says whether weights or samples are the reason."""
    if bool(outputs.isfinite().all()):
        return
    require_finite_weights(weights)
    require_finite_samples(samples)
    raise InvalidInputError(
        "the module's outputs are not finite, though its weights and samples are, as if they "
        f"overflowed {str(outputs.dtype).removeprefix('torch.')}; use weights from before its "
        "training diverged, or smaller samples"
    )


@contextmanager
def failure_explained(samples: Samples) -> Iterator[None]:
    """Explains a module's failure on these samples."""
    try:
        yield
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        other = isinstance(error, RuntimeError) and type(error) is not RuntimeError
        if other and not isinstance(error, NotImplementedError):  # out of memory, for example
            raise
        if isinstance(error, RetargetError):
            raise
        dtypes = {str(leaf.dtype).removeprefix("torch.") for leaf in leaves(samples)}
        types = ", ".join(sorted(dtypes))
        if all(leaf.is_floating_point() for leaf in leaves(samples)):
            raise InvalidInputError(
                f"the module does not take samples of shape {shapes_of(samples)} and dtype {types} "
                f"({error}); expected samples as it was made for"
            ) from error
        raise InvalidTypeError(
            f"the samples have dtype {types}, and the module does not take them "
            f"({error}); whole numbers are not converted, because embeddings need them: convert "
            "the samples to floating point unless they are tokens"
        ) from error


def output_of(result: Any, samples: int) -> Any:
    """Returns the only matrix with one row per sample among a module's results, else all of them.

    Hugging Face models return objects with several entries, of which `logits` or `pooler_output`
    is such a matrix.
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
