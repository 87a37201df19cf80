"""kill -9 while files are written: the old one or the new one, never a part of one."""

import json
import os
import subprocess
import sys

import pytest

from support.guarded_reading import HERE

pytestmark = pytest.mark.faults
ROUNDS = 200 if "RETARGET_CORRUPTIONS" in os.environ else 12


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path, environment):
    command = [sys.executable, str(HERE / "killed_writers.py"), str(tmp_path), str(ROUNDS)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["a whole text"] == ROUNDS
    assert found.get("state 0", 0) + found["state 1"] == ROUNDS
    assert found["state 1"], "no file was ever replaced before the kill"
    assert found["left over"], "no kill ever came in the middle of writing"
    # what is left over, of ours and of safetensors, has hidden names and is in nobody's way
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert names == {"state.safetensors", "text.json"}
