"""What a local worker process does as it starts. Dask imports it there, by its name."""

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Leaves Ctrl-C, which the terminal sends to every process, to the one that started this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
