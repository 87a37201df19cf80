"""kill -9 while files are written: the old one or the new one, never a part of one.

The test starts this file as a program, which forks writers and kills them.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import retarget as rt
from retarget.storage import atomic_file

pytestmark = [pytest.mark.faults, pytest.mark.slow]
ROUNDS = 200 if "RETARGET_CORRUPTIONS" in os.environ else 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_killed_writer_leaves_a_whole_file(tmp_path, environment):
    command = [sys.executable, __file__, str(tmp_path), str(ROUNDS)]
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


def main(folder, rounds):
    """Prints as JSON what the writers leave."""
    chance, states = random.Random(0), [state(seed) for seed in (1, 2)]
    path, text = folder / "state.safetensors", folder / "text.json"
    found = Counter()
    for _ in range(rounds):
        states[0].save(path)
        text.write_text(json.dumps([0] * 5000))
        begun, started = os.pipe()
        writer = os.fork()
        if writer == 0:
            write_for_ever(path, text, states, started)
        os.read(begun, 1)  # however busy the machine is, something was written
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(begun)
        os.close(started)
        rest = rt.TargetCorrector.load(path).preview()[0]
        which = [np.array_equal(rest, each.preview()[0]) for each in states]
        found[f"state {which.index(True)}" if any(which) else "a broken state"] += 1
        values = set(json.loads(text.read_text()))
        found["a whole text" if len(values) == 1 else "a mixed text"] += 1
        found["left over"] = len(list(folder.glob(".partial-*")))
    print(json.dumps(found))  # noqa: T201


def state(seed):
    rng = np.random.default_rng(seed)
    corrector = rt.TargetCorrector(rt.RBF(1.0), rt.SGD(0.1), gamma=1.0, block_size=8)
    corrector.correct(rng.normal(size=(60, 50)), rng.normal(size=60))
    return corrector


def write_for_ever(path, text, states, started):
    for number in itertools.count(1):
        states[number % 2].save(path)
        os.write(started, b".")
        with atomic_file(text) as temporary:
            temporary.write_text(json.dumps([number] * 5000))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
