"""Streams from tables, in one call."""

from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.roles import Roles, order_rows


def make_stream(table, target, train_rows=None, drop=(), **roles):
    """The stream of a table without some of its columns."""
    left_out = {drop} if isinstance(drop, str) else drop
    kept = table[[name for name in table.columns if name not in left_out]]  # "*" is a name
    return prepare(order_rows(kept, Roles(target, **roles)), train_rows)[0]
