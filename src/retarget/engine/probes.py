"""Random numbers that show how a computation behaves: the same however a stream is split."""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

CHUNK = 4096  # rows of random numbers that are made at a time
PROBES = 2  # random vectors that show whether the condition is worth estimating


def random_probes(start: int, like: Tensor) -> Tensor:
    r"""(m, PROBES) random numbers of variance 1 for the rows of `like`, from this position on.

    For a unit vector $v$ and a column $x$ of them, $(v^\top x)^2$ is below $1/s$ with a probability
    of about $0.8/\sqrt s$, even if v has only two entries that are not 0. (Random signs would often
    cancel there.)
    """
    return _rows(_probe_chunk, start, like)


def random_signs(start: int, like: Tensor) -> Tensor:
    """(m, 1) random numbers of 1 and -1 for the rows of `like`, from this position on."""
    return _rows(_sign_chunk, start, like)


def _rows(
    chunk: Callable[[int, int, torch.dtype, torch.device], Tensor], start: int, like: Tensor
) -> Tensor:
    stop = start + like.shape[-2]
    begin = start - start % CHUNK
    kind = like.dtype, like.device
    together = chunk(begin, begin + CHUNK, *kind)
    for first in range(begin + CHUNK, stop, CHUNK):
        together = torch.cat([together, chunk(first, first + CHUNK, *kind)])
    return together[start - begin : stop - begin]


@lru_cache(maxsize=8)  # few rows at a time come from the same chunk
def _probe_chunk(first: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    numbers = torch.arange(PROBES * first, PROBES * stop, device=device)
    scrambled = numbers * -7046029254386353131
    scrambled = (scrambled ^ (scrambled >> 32)) * -2960836687156548461
    return (scrambled.to(dtype) * (math.sqrt(3) / 2**63)).reshape(-1, PROBES)


@lru_cache(maxsize=8)
def _sign_chunk(first: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    position = torch.arange(first, stop, device=device)
    scrambled = (position * 2654435761) >> 7  # Knuth's multiplicative hash
    return ((scrambled & 1) * 2 - 1).to(dtype)[:, None]
