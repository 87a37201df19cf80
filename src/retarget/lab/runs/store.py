"""Stores results of runs on disk, under a key made from everything that determines them.

Each run has a folder `results/runs/<key>/` with `result.parquet` and `run.json`, which is written
last and holds the checksum of the result. A result that does not match its checksum is set aside.
"""

import hashlib
import json
import platform
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import polars as pl
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

import retarget
from retarget.errors import DamagedFileWarning, InvalidInputError
from retarget.lab.experiment import Config, Family
from retarget.locks import cached_property
from retarget.storage import PARTIAL, atomic_file

PACKAGE = Path(retarget.__file__).parent
# Packages that affect results. Others only read, write and draw.
COMPUTING = ("numba", "numpy", "pillow", "scikit-learn", "scipy", "torch")


@dataclass(frozen=True)
class Identity:
    """Everything that determines the result of a run."""

    kind: str  # the full name of the config's class
    config: dict[str, Any]
    data: dict[str, str]  # checksums of what the run reads, by name
    code: str  # the hash of retarget's source
    packages: dict[str, str]  # versions of retarget and of the packages that compute

    @cached_property
    def key(self) -> str:
        """The hash of everything here."""
        parts = [self.kind, self.config, self.data, self.code, self.packages]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def identities_of(configs: Sequence[Config], family: Family) -> list[Identity]:
    """Returns the identities of runs of a family; files that several read are hashed once."""
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


# Cached: a process keeps its code even if the files change.
@cache
def current_code() -> tuple[str, dict[str, str]]:
    """Returns the hash of the source and the versions of the packages in use now."""
    versions = {name: version for name in COMPUTING if (version := _version(name)) is not None}
    return source_hash(), {"retarget": retarget.__version__} | versions


def source_hash(package: Path = PACKAGE) -> str:
    """Returns one hash of all source files of a package, wherever it is installed."""
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


def labeled(table: pl.DataFrame, labels: Mapping[str, Any]) -> pl.DataFrame:
    """Prepends constant columns to a table, except those that it already has.

    Examples:
        >>> labeled(pl.DataFrame({"x": [1, 2]}), {"lr": 0.5, "x": 3}).rows()
        [(0.5, 1), (0.5, 2)]
    """
    more = {name: value for name, value in labels.items() if name not in table.columns}
    return table.select(
        *(pl.lit(pl.Series([v]) if isinstance(v, list) else v).alias(k) for k, v in more.items()),
        pl.all(),
    )


RESULT = "result.parquet"
RECORD = "run.json"
LOCK = "lock"
CHECKPOINTS = "checkpoint*.safetensors"
LEFTOVERS = f"{PARTIAL}*"  # from a process that was killed while writing


# Of a run in a folder of results. Outdated: computed with other code or packages, so never reused.
RunState = Literal["done", "running", "interrupted", "failed", "outdated", "damaged"]


class RunRecord(BaseModel):
    """The record of a run in `run.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    key: str
    status: Literal["done", "failed"]
    identity: Identity
    experiment: str  # the first one that requested it
    name: str  # distinguishes it within that experiment
    finished: str  # UTC
    seconds: float
    machine: str
    warnings: list[str] = []
    reason: str | None = None  # why it failed
    trace: str | None = None
    sha256: str | None = None  # of its result


class RunStore:
    """The runs in a folder of results."""

    def __init__(self, results: Path) -> None:
        self.folder = results / "runs"

    def __iter__(self) -> Iterator[str]:
        """Yields the keys of all runs with any files, in order."""
        if not self.folder.is_dir():
            return iter(())
        return iter(sorted(path.name for path in self.folder.iterdir() if path.is_dir()))

    def record(self, key: str) -> RunRecord | None:
        """Returns the record of a run, or None if there is no readable one."""
        try:
            record = RunRecord.model_validate_json((self.folder / key / RECORD).read_bytes())
        except (OSError, ValidationError):
            return None
        return record if record.key == record.identity.key == key else None

    def state(self, key: str) -> RunState:
        """Returns the state of a run."""
        return "running" if self._is_locked(key) else self._state_of_files(key)

    def result(self, key: str) -> pl.DataFrame | None:
        """Returns the result of a finished run, or None; sets a damaged result aside."""
        state = self._state_of_files(key)
        if state in ("done", "outdated"):
            return pl.read_parquet((self.folder / key / RESULT).read_bytes())
        if state == "damaged":
            self._set_aside(self.folder / key)
        return None

    def keep(self, identity: Identity, table: pl.DataFrame, **about: Any) -> RunRecord:
        """Writes the result of a run, then its record, and deletes its checkpoints."""
        folder = self.folder / identity.key
        with atomic_file(folder / RESULT) as temporary:
            with temporary.open("wb") as opened:  # Polars takes no path that is not UTF-8
                table.write_parquet(opened)
            sha256 = hashlib.sha256(temporary.read_bytes()).hexdigest()
        record = self._write(identity, status="done", sha256=sha256, **about)
        self.drop(identity.key, CHECKPOINTS)
        return record

    def keep_failure(self, identity: Identity, reason: str, **about: Any) -> RunRecord:
        """Records why a run has no result."""
        return self._write(identity, status="failed", reason=reason, **about)

    def checkpoint(self, key: str) -> Path:
        """Returns the path where a run may save state to resume from after an interruption."""
        return self.folder / key / CHECKPOINTS.replace("*", "")

    def drop(self, key: str, pattern: str) -> None:
        """Deletes the checkpoints or leftovers of a run."""
        for path in (self.folder / key).glob(pattern):
            path.unlink(missing_ok=True)

    def lock(self, key: str) -> FileLock | None:
        """Acquires the lock to compute a run; returns None if another process holds it.

        The operating system releases it when the process ends, however that happens.
        """
        folder = self.folder / key
        folder.mkdir(parents=True, exist_ok=True)
        # not of a thread: joblib's takes it, and ours gives it back
        lock = FileLock(folder / LOCK, blocking=False, is_singleton=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            return None
        return lock

    def remove(self, key: str) -> bool:
        """Deletes all files of a run, unless another process is computing it."""
        lock = self.lock(key)
        if lock is None:
            return False
        try:
            shutil.rmtree(self.folder / key)
        finally:
            lock.release()
        return True

    def find(self, beginning: str) -> str:
        """Returns the only key with this beginning."""
        keys = [key for key in self if key.startswith(beginning)]
        if len(keys) != 1:
            what = f"{len(keys)} runs begin" if keys else "there is no run that begins"
            raise InvalidInputError(
                f"{what} with {beginning!r} in {self.folder}; `retarget runs list` shows them all"
            )
        return keys[0]

    def export(self, keys: Sequence[str]) -> pl.DataFrame:
        """Returns the results of runs as one table, with key, experiment and parameters.

        If a result has a column with the name of a parameter, the result's is used.
        """
        tables = []
        for key in keys:
            record = self.record(key)
            table = self.result(key)
            if record is None or table is None:
                continue
            about = {"run": key, "experiment": record.experiment} | record.identity.config
            tables.append(labeled(table, about))
        if not tables:
            raise InvalidInputError(f"no run in {self.folder} is done; there is nothing to export")
        return pl.concat(tables, how="diagonal_relaxed")

    def _is_locked(self, key: str) -> bool:
        try:
            lock = self.lock(key)
        except OSError:  # a read-only folder: nobody computes there
            return False
        if lock is not None:
            lock.release()
        return lock is None

    def _state_of_files(self, key: str) -> RunState:
        folder = self.folder / key
        record = self.record(key)
        if record is None:  # a result without a record was never finished
            return "damaged" if (folder / RECORD).exists() else "interrupted"
        if record.status == "failed":
            return "failed"
        try:
            content = (folder / RESULT).read_bytes()
        except FileNotFoundError:
            return "damaged"
        if hashlib.sha256(content).hexdigest() != record.sha256:
            return "damaged"
        current = (record.identity.code, record.identity.packages) == current_code()
        return "done" if current else "outdated"

    def _write(self, identity: Identity, **about: Any) -> RunRecord:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        about |= {"finished": now, "machine": f"{platform.system()} {platform.machine()}"}
        record = RunRecord(key=identity.key, identity=identity, **about)
        with atomic_file(self.folder / identity.key / RECORD) as temporary:
            temporary.write_text(record.model_dump_json(indent=2) + "\n")
        return record

    def _set_aside(self, folder: Path) -> None:
        for name in (RECORD, RESULT):
            if (folder / name).exists():
                (folder / name).replace(folder / f"{name}.damaged")
        warnings.warn(
            f"the result of run {folder.name} is damaged; it was set aside as {folder}/*.damaged, "
            "and will be computed again",
            DamagedFileWarning,
            stacklevel=3,
        )
