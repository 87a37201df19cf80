import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from support.command_line import run
from support.mirror import running_mirror

collect_ignore = ["faults/fuzz_readers.py"]  # for doctests it would be imported, and needs atheris

# The workers of pytest-xdist set it, and consoles keep for good what they see when they are made.
os.environ.pop("COLUMNS", None)

# The matrices of the tests are small: threads would only wait for each other.
torch.set_num_threads(1)

# `make test` looks at some examples of every property, `make test-all` at many.
settings.register_profile(
    "retarget",
    max_examples=int(os.environ.get("RETARGET_EXAMPLES", "25")),
    deadline=None,  # machines are noisy: speed is the benchmarks' business
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("retarget")


@pytest.fixture(autouse=True)
def _progress_of_each_test_is_its_own(monkeypatch):
    """A command or a worker's code in one test must not change how the next shows progress."""
    monkeypatch.setattr("retarget.progress._silent", False)
    monkeypatch.setattr("retarget.progress._in_lines", False)


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_mirror() as running:
        yield running


@pytest.fixture
def other_mirror():
    with running_mirror() as running:
        yield running


@pytest.fixture
def command(monkeypatch, capsys):
    """Calls `retarget` as a user would: its exit code, and what it printed."""
    return partial(run, monkeypatch, capsys)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 KiB, which is soon full."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command mount")
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def environment():
    """For processes that a test starts."""
    tests = Path(__file__).parent
    source = tests.parent / "src"
    path = os.pathsep.join([str(source), str(tests), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
