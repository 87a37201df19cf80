"""What determines the result of a run, and its hash: the name under which the result is kept."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import retarget
from retarget.experiments.experiment import Config, Family


@dataclass(frozen=True)
class Identity:
    """All that determines the result of a run.

    Attributes:
        kind: The class of the config, by its full name.
        config: The parameters.
        data: Checksums of what is read, by what it is.
        code: A checksum of the parts of the package that the run uses.
        packages: Versions of the packages that compute, by name.
    """

    kind: str
    config: dict[str, Any]
    data: dict[str, str]
    code: str
    packages: dict[str, str]

    @property
    def key(self) -> str:
        """The hash of all of it."""
        parts = [self.kind, self.config, self.data, self.code, self.packages]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def identity_of(config: Config, family: Family) -> Identity:
    """The identity of one run of a family."""
    kind = f"{type(config).__module__}.{type(config).__qualname__}"
    return Identity(kind, config.model_dump(mode="json"), {}, *current_code(family))


def current_code(family: Family) -> tuple[str, dict[str, str]]:
    """The code and the packages that runs of a family use today, as in their identities."""
    return _source_digest(), {}


@cache
def _source_digest() -> str:
    """Of every source file of the package: results of other code are never taken for ours."""
    digest = hashlib.sha256()
    root = Path(retarget.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
