import os
import subprocess

import pytest

from guarded_reading import HERE

collect_ignore = ["fuzz_readers.py"]  # for doctests it would be imported, and needs atheris


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
    source, tests = HERE.parents[1] / "src", HERE.parent
    path = os.pathsep.join([str(source), str(tests), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
