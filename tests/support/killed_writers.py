"""Writers that are killed at any moment, and what they leave. Prints what was found as JSON."""

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

import retarget as rt
from retarget.storage import atomic_file


def main() -> None:
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(0)
    states = [_state(seed) for seed in (1, 2)]
    expected = [_rest(state) for state in states]
    path, text = folder / "state.safetensors", folder / "text.json"
    found: Counter[str] = Counter()
    for _ in range(rounds):
        states[0].save(path)
        text.write_text(json.dumps([0] * 5000))
        begun, started = os.pipe()
        writer = os.fork()
        if writer == 0:
            _write_for_ever(path, text, states, started)
        os.read(begun, 1)  # however busy the machine is, something was written
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(begun)
        os.close(started)
        rest = _rest(rt.TargetCorrector.load(path))
        which = [np.array_equal(rest, each) for each in expected]
        found[f"state {which.index(True)}" if any(which) else "a broken state"] += 1
        values = set(json.loads(text.read_text()))
        found["a whole text" if len(values) == 1 else "a mixed text"] += 1
        found["left over"] = len(list(folder.glob(".partial-*")))
    print(json.dumps(found))  # noqa: T201


def _state(seed: int) -> rt.TargetCorrector:
    rng = np.random.default_rng(seed)
    corrector = rt.TargetCorrector(rt.RBF(1.0), rt.SGD(0.1), gamma=1.0, block_size=8)
    corrector.correct(rng.normal(size=(60, 50)), rng.normal(size=60))
    return corrector


def _rest(corrector: rt.TargetCorrector) -> np.ndarray:
    return np.asarray(corrector.preview()[0])


def _write_for_ever(path: Path, text: Path, states: list[rt.TargetCorrector], started: int) -> None:
    for number in itertools.count(1):
        states[number % 2].save(path)
        os.write(started, b".")
        with atomic_file(text) as temporary:
            temporary.write_text(json.dumps([number] * 5000))


if __name__ == "__main__":
    main()
