import os

import pytest
import torch
from hypothesis import HealthCheck, settings

from mirror import running_mirror

# The workers of pytest-xdist set it, and consoles keep for good what they see when they are made.
os.environ.pop("COLUMNS", None)

# The matrices of the tests are small: threads would only wait for each other.
torch.set_num_threads(1)

# `make test` looks at some examples of every property, `make test-all` at many.
settings.register_profile(
    "retarget",
    max_examples=int(os.environ.get("RETARGET_EXAMPLES", "40")),
    deadline=None,  # machines are noisy: speed is the benchmarks' business
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("retarget")


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_mirror() as running:
        yield running


@pytest.fixture
def other_mirror():
    with running_mirror() as running:
        yield running
