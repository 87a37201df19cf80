"""How many threads compute: one for a run, all for what all runs wait for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """A sum's rounding depends on how many threads share it: with one it is the same everywhere."""
    with threadpool_limits(limits=1), _torch_threads(1):
        yield


@contextmanager
def all_cores() -> Iterator[None]:
    """For what is computed once, and kept for all runs."""
    with _torch_threads(os.cpu_count() or 1):
        yield


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
