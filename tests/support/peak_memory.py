"""How much memory Python takes at most while something runs."""

import tracemalloc
from contextlib import contextmanager


@contextmanager
def at_most(limit):
    """Fails if more than `limit` bytes are in use at any moment."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit
