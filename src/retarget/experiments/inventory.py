"""What the runs in a folder of results are worth today."""

from collections.abc import Sequence
from enum import StrEnum

import polars as pl

from retarget.errors import InvalidInputError
from retarget.experiments.identity import current_code
from retarget.experiments.store import RunRecord, RunStore


class State(StrEnum):
    """Of a run in a folder of results."""

    DONE = "done"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    OUTDATED = "outdated"  # of other code or packages than today's: never found again
    DAMAGED = "damaged"


def state_of(store: RunStore, key: str) -> State:
    """How a run stands."""
    if store.is_locked(key):
        return State.RUNNING
    record = store.record(key)
    if record is None:
        return State.DAMAGED if store.has_record(key) else State.INTERRUPTED
    if record.status == "failed":
        return State.FAILED
    if not store.is_whole(record):
        return State.DAMAGED
    return State.DONE if _is_current(record) else State.OUTDATED


def export_table(store: RunStore, keys: Sequence[str]) -> pl.DataFrame:
    """The results of runs in one table: each with its key, its experiment and its parameters.

    A column of a result goes before a parameter of the same name.
    """
    tables = []
    for key in keys:
        record = store.record(key)
        if record is None or record.status != "done":
            continue
        table = store.result(key)
        if table is None:
            continue
        about = {"run": key, "experiment": record.experiment} | record.identity["config"]
        columns = [
            pl.lit(pl.Series([value]) if isinstance(value, list) else value).alias(name)
            for name, value in about.items()
            if name not in table.columns
        ]
        tables.append(table.select(*columns, pl.all()))
    if not tables:
        raise InvalidInputError(f"no run in {store.folder} is done; there is nothing to export")
    return pl.concat(tables, how="diagonal_relaxed")


def _is_current(record: RunRecord) -> bool:
    return (record.identity["code"], record.identity["packages"]) == current_code()
