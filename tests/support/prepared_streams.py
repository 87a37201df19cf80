"""Streams from tables, in one call."""

from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.roles import Roles, order_rows, order_test_rows


def make_stream(table, target, train_rows=None, fitted=None, **roles):
    """The stream of a table; with a preparation of another table, learn nothing."""
    if fitted is not None:
        return fitted.apply(order_test_rows(table, fitted.roles))
    return prepare(order_rows(table, Roles(target, **roles)), train_rows)[0]
