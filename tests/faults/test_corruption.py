"""Damaged files of every format: a clean error or the right result, never a crash."""

import faulthandler
import os
import resource
import sys
from collections import Counter
from pathlib import Path

import pytest

from retarget.errors import RetargetError
from support.corruption import corruptions
from support.formats import FOLDER_NAME, FORMATS, same

pytestmark = pytest.mark.faults
# `make test-faults` asks for 1,000 of every format
COUNT = int(os.environ.get("RETARGET_CORRUPTIONS", "8"))
# What reading a file of some kilobytes may take at the very most.
MORE_MEMORY, PATIENCE = 1 << 30, 30  # bytes, seconds
FOREIGN = (
    b"PK\x03\x04" + bytes(range(256)) + b'{"a": [1, 2], "b": null}\n' * 20 + b"\x93NUMPY\x01\x00"
)


@pytest.fixture
def limit_memory():
    """Called when all is imported and was read once; the limit ends with the test."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    def limit():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(format_, path, right):
    """One of: right, other (data, well formed), clean (error); or a failure, with its reason."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)  # also from within compiled code
    try:
        found = format_.read(path)
    except (RetargetError, OSError) as error:
        # of a data set in several files, another one or the folder may be what is wrong; an
        # experiment is called what its file is called, without the suffix
        names = (path.stem if path.suffix == ".toml" else path.name, FOLDER_NAME)
        named = any(name in str(error) for name in names)
        return "clean" if named else f"the file is not named: {error!r}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        return f"not a clean error: {error!r:.300}"
    finally:
        faulthandler.cancel_dump_traceback_later()
    if same(found, right):
        return "right"
    if format_.notices:
        return f"silently wrong: {found!r:.300}"
    return "other" if format_.well_formed(path, found, right) else f"odd form: {found!r:.300}"


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_noticed_or_harmless(name, limit_memory, tmp_path):
    folder, format_ = tmp_path / FOLDER_NAME, FORMATS[name]
    folder.mkdir()
    path = format_.make(folder)
    content, right = path.read_bytes(), format_.read(path)
    limit_memory()
    assert outcome(format_, path, right) == "right"
    outcomes, failures = Counter(), []
    for number, damaged in enumerate(corruptions(content, FOREIGN, COUNT, seed=len(name))):
        path.write_bytes(damaged)
        found = outcome(format_, path, right)
        outcomes[found] += 1
        if found not in ("right", "other", "clean"):
            failures.append(f"number {number}: {found}")
    assert not failures, f"{len(failures)} of {COUNT}\n" + "\n".join(failures[:10])
    sys.stdout.write(f"{name}: {dict(outcomes)}\n")
    seen = outcomes["right" if format_.made_again else "clean"]
    assert seen, "no damage was noticed: is it looked for at all?"
