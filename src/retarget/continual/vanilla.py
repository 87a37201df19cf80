"""Plain SGD."""

from retarget.continual.method import Method


class Vanilla(Method):
    """Trains on each task as it comes, with its own labels."""

    capturable = True
