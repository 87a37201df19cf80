"""Streams from tables, in one call."""

from retarget.diagnosis.ordering import order_rows, order_test_rows
from retarget.diagnosis.preparation import prepare
from retarget.diagnosis.roles import Roles


def make_stream(table, target, train_rows=None, fitted=None, **roles):
    """The stream of a table; with a preparation of another table, learn nothing."""
    if fitted is not None:
        return fitted.apply(order_test_rows(table, fitted.roles))
    return prepare(order_rows(table, Roles(target, **roles)), train_rows)[0]
