"""What makes a training run the run that it is, in plain values and checksums."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from retarget.continual.method import Method
from retarget.continual.samples import Samples
from retarget.state_files import checksum

if TYPE_CHECKING:
    from retarget.continual.training import Run

SHOWN = 60  # characters of a value in a message; the names of longer ones must do


def describe(run: "Run", schedule: dict[str, Any]) -> dict[str, Any]:
    """All that determines the result of a run that is about to start.

    Args:
        run: The run, with its networks as they start.
        schedule: How often there are passes and evaluations.
    """
    networks = run.ensemble.modules
    start = {f"{m} {k}": v for m, net in enumerate(networks) for k, v in net.state_dict().items()}
    seeds = json.dumps([random.bit_generator.state for random in run.random])
    return {
        **_plain(schedule),
        "learners": [_plain(learner.to_dict()) for learner in run.learners],
        "methods": [_method(method) for method in run.methods],
        "seeds": checksum(seeds, {}),
        # a function's address is another one in every process
        "network": re.sub("0x[0-9a-f]+", "", repr(networks[0])),
        "trained parameters": list(run.ensemble.parameters),
        "initial weights": checksum("", start),
        "tasks": [span.stop - span.start for span in run.train.spans[0]],
        "classes": run.targets.shape[-1],
        "training samples": _samples(run.train),
        "test samples": _samples(run.test),
        "device": run.ensemble.device.type,
        "torch": torch.__version__,
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not the same in two descriptions, with the values where they are short."""
    found = []
    for name in sorted(then.keys() | now.keys()):
        one, other = (json.dumps(described.get(name)) for described in (then, now))
        if one != other:
            short = len(one + other) <= 2 * SHOWN
            found.append(f"{name} ({one} then, {other} now)" if short else name)
    return found


def _samples(samples: Samples) -> str:
    spans = json.dumps([[[s.start, s.stop] for s in spans] for spans in samples.spans])
    parts = {"pool": samples.pool, "rows": samples.rows, "labels": samples.labels}
    return checksum(spans, parts)


def _method(method: Method) -> dict[str, Any]:
    """Its class and its options: the attributes without a leading underscore."""
    options = {name: value for name, value in vars(method).items() if not name.startswith("_")}
    return {"class": _name(type(method)), **_plain(options)}


def _plain(value: Any) -> Any:
    """The value itself where JSON has it, or what can be said of it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return checksum(f"{value.dtype} {value.tolist()}", {})
    if isinstance(value, Tensor):
        return checksum("", {"": value})
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in sorted(value.items(), key=str)}
    if isinstance(value, Sequence):
        return [_plain(part) for part in value]
    if isinstance(value, partial):
        return [_plain(part) for part in (value.func, value.args, value.keywords)]
    return _name(value if hasattr(value, "__qualname__") else type(value))


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
