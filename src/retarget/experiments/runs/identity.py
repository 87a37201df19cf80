"""What determines the result of a run, and its hash: the name under which the result is kept."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pathlib import Path
from typing import Any

import retarget
from retarget.experiments.experiment import Config, Family

PACKAGE = Path(retarget.__file__).parent
# The packages that compute. Others read, write and draw, and do not change a result.
COMPUTING = ("numba", "numpy", "pillow", "scikit-learn", "scipy", "torch")


@dataclass(frozen=True)
class Identity:
    """All that determines the result of a run.

    Attributes:
        kind: The class of the config, by its full name.
        config: The parameters.
        data: Checksums of what is read, by what it is.
        code: The hash of retarget's source.
        packages: Versions of retarget and of the packages that compute, by name.
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


def identities_of(configs: Sequence[Config], family: Family) -> list[Identity]:
    """The identities of runs of a family. What several of them read is looked at once.

    Raises:
        MissingDataError: What a run reads is not there.
    """
    code, packages = current_code()
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


# Once: the code of a process does not change when its files do.
@cache
def current_code() -> tuple[str, dict[str, str]]:
    """The hash of the source and the versions of the packages that runs use today."""
    versions = {name: found for name in COMPUTING if (found := _version(name)) is not None}
    return source_hash(), {"retarget": retarget.__version__} | versions


def source_hash(package: Path = PACKAGE) -> str:
    """One hash of every source file of a package, wherever it is installed."""
    digest = hashlib.sha256()
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name, path in sorted(files.items()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
