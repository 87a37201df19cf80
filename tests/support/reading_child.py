"""A process that reads damaged files for a test, with bounded memory, and says what came of it.

Apart from the test, so that a crash of compiled code, a file that fills the memory and one that is
read for ever are results like others.
"""

import json
import os
import resource
import sys
import warnings
from pathlib import Path

MORE_MEMORY = 1 << 30  # what reading a file of some kilobytes may take at the very most


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else gets between the answers
    warnings.simplefilter("error")
    from support.formats import FORMATS

    right = {}
    for line in sys.stdin:
        question = json.loads(line)
        format_, path = FORMATS[question["format"]], Path(question["path"])
        if question["valid"]:
            right[question["format"]] = format_.read(path)
            _limit_memory()
            answers.write('"ready"\n')
        else:
            answers.write(json.dumps(_outcome(format_, path, right[question["format"]])) + "\n")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _outcome(format_, path, right):
    """One of: right, other (data, well formed), clean (error); or a failure, with its reason."""
    from retarget.errors import RetargetError
    from support.formats import FOLDER_NAME, same

    try:
        found = format_.read(path)
    except (RetargetError, OSError) as error:
        # of a data set in several files, another one or the folder may be what is wrong; an
        # experiment is called what its file is called, without the suffix
        names = (path.stem if path.suffix == ".toml" else path.name, FOLDER_NAME)
        named = any(name in str(error) for name in names)
        return ["clean", str(error)] if named else ["FAILED", f"the file is not named: {error!r}"]
    except BaseException as error:  # a panic of Rust is no Exception
        return ["FAILED", f"not a clean error: {error!r:.300}"]
    if same(found, right):
        return ["right", ""]
    if format_.notices:
        return ["FAILED", f"silently wrong: {found!r:.300}"]
    if not format_.well_formed(path, found, right):
        return ["FAILED", f"not well formed: {found!r:.300}"]
    return ["other", ""]


if __name__ == "__main__":
    main()
