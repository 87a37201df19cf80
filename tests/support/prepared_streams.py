"""Streams from tables, in one call."""

from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.roles import Roles, order_rows


def make_stream(table, target, train_rows=None, **roles):
    """The stream of a table."""
    return prepare(order_rows(table, Roles(target, **roles)), train_rows)[0]
