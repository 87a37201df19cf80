"""Damaged files of every format: a clean error or the right result, never a crash."""

import os
import sys
from collections import Counter

import pytest

from support.corruption import corruptions
from support.formats import FOLDER_NAME, FORMATS
from support.guarded_reading import GuardedReader

pytestmark = pytest.mark.faults
# `make test-faults` asks for 1,000 of every format
COUNT = int(os.environ.get("RETARGET_CORRUPTIONS", "8"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    reader = GuardedReader(tmp_path_factory.mktemp("reader") / "log")
    yield reader
    reader.close()


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_noticed_or_harmless(name, reader, tmp_path):
    folder = tmp_path / FOLDER_NAME
    folder.mkdir()
    path = FORMATS[name].make(folder)
    content = path.read_bytes()
    reader.learn(name, path)
    assert reader.read(name) == ("right", "")
    outcomes, failures = Counter(), []
    for number, damaged in enumerate(corruptions(content, FOREIGN, COUNT, seed=len(name))):
        path.write_bytes(damaged)
        outcome, reason = reader.read(name)
        outcomes[outcome] += 1
        if outcome == "FAILED":
            failures.append(f"number {number}: {reason}")
    sys.stdout.write(f"{name}: {dict(outcomes)}\n")
    assert not failures, f"{len(failures)} of {COUNT}\n" + "\n".join(failures[:10])
    seen = outcomes["right" if FORMATS[name].made_again else "clean"]
    assert seen, "no damage was noticed: is it looked for at all?"


FOREIGN = (
    b"PK\x03\x04" + bytes(range(256)) + b'{"a": [1, 2], "b": null}\n' * 20 + b"\x93NUMPY\x01\x00"
)
