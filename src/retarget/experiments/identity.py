"""What determines the result of a run, and its hash: the name under which the result is kept."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from inspect import signature
from typing import Any

from retarget.experiments.experiment import Config, Family
from retarget.experiments.parts_used import PartsUsed, parts_used

# Of the packages that compute, what they are called where they come from. Others read, write and
# draw: what they do to a result would be a mistake of theirs.
COMPUTING = {
    "PIL": "pillow",
    "numba": "numba",
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch": "torch",
}


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

    @cached_property
    def key(self) -> str:
        """The hash of all of it."""
        parts = [self.kind, self.config, self.data, self.code, self.packages]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def identity_of(config: Config, family: Family) -> Identity:
    """The identity of one run of a family."""
    return identities_of([config], family)[0]


def identities_of(configs: Sequence[Config], family: Family) -> list[Identity]:
    """The identities of runs of a family. What several of them read is looked at once.

    Raises:
        MissingDataError: What a run reads is not there.
    """
    code, packages = current_code(family)
    deciding = tuple(signature(family.data).parameters)
    read: dict[tuple[Any, ...], dict[str, str]] = {}
    identities = []
    for config in configs:
        values = tuple(getattr(config, name) for name in deciding)
        if values not in read:
            read[values] = dict(family.data(*values))
        kind = f"{type(config).__module__}.{type(config).__qualname__}"
        identities.append(Identity(kind, config.identifying(), read[values], code, packages))
    return identities


def current_code(family: Family) -> tuple[str, dict[str, str]]:
    """The code and the packages that runs of a family use today, as in their identities."""
    parts = _parts(family.config, family.run)
    packages = {
        COMPUTING[name]: _version(COMPUTING[name]) for name in parts.packages & {*COMPUTING}
    }
    return parts.code, packages


# Once: the code of a process does not change when its files do.
@cache
def _parts(config: type[Config], run: Callable[..., Any]) -> PartsUsed:
    return parts_used(config, run)


@cache
def _version(package: str) -> str:
    return version(package)
