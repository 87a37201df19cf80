"""Views: functions of samples that do not change what a sample means, such as a mirror image."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.samples import as_samples, count, form_of, leaves, mapped, shapes_of, take

View = Callable[[Any], Any] | None
TRIED_SAMPLES = 4
TRIES = 8


class Views:
    """A sample itself (None), and what functions make of it; they are tried before they are used.

    Args:
        functions: The views, or None for the sample alone.
    """

    def __init__(self, functions: Sequence[View] | None) -> None:
        several: Any = [None] if functions is None else functions
        listed = isinstance(several, Iterable)  # and not, say, a single function
        given = list(several) if listed else [several]
        wrong = [each for each in given if each is not None and not callable(each)]
        if wrong or not listed or not given:
            first = repr((wrong or given)[0]) if given else "empty"
            raise InvalidTypeError(
                f"views is {first}; expected functions of a batch of samples, or None for the "
                "sample itself: views=[None, flip]"
            )
        self.functions: tuple[View, ...] = tuple(given)
        self._tried = False

    def __len__(self) -> int:
        return len(self.functions)

    @property
    def names(self) -> list[str]:
        """What a saved state calls the views."""
        return [_name(each) for each in self.functions]

    def of(self, X: Any, first_row: int = 0) -> list[Any]:
        """Returns every view of some samples; errors count rows from `first_row`."""
        return [X if view is None else self._seen(view, X, first_row) for view in self.functions]

    def require_fit(self, X: Any) -> None:
        """Tries each view on a few samples, more often before it was ever used."""
        few = take(X, slice(0, TRIED_SAMPLES))
        for view in self.functions:
            if view is not None and count(few):
                self._try(view, few)
        self._tried = True

    def _try(self, view: Callable[[Any], Any], few: Any) -> None:
        given = _copied(few)
        first = self._seen(view, given)
        if not _same(given, few):
            raise InvalidInputError(
                f"the view {_name(view)} changes its input in place; return a new array instead"
            )
        again = [self._seen(view, _copied(few)) for _ in range(1 if self._tried else TRIES)]
        if not all(_same(first, each) for each in again):
            raise InvalidInputError(
                f"the view {_name(view)} differs from call to call; expected the same answer for "
                "the same samples, because forget and predict need it: use one view for each "
                "outcome, such as views=[None, flip] for a random flip"
            )
        alone = self._seen(view, _copied(take(few, slice(0, 1))))
        if not _same(alone, take(first, slice(0, 1))):
            raise InvalidInputError(
                f"the view {_name(view)} gives a different answer for a sample alone than for the "
                "same sample in a batch; expected it to treat each sample on its own"
            )

    @staticmethod
    def _seen(view: Callable[[Any], Any], X: Any, first_row: int = 0) -> Any:
        seen = view(X)
        shown = as_samples("a view of X", _plain(seen), first_row)
        expected = as_samples("X", X)
        if form_of(shown) != form_of(expected) or count(shown) != count(expected):
            kinds = [str(leaf.dtype) for leaf in (*leaves(shown), *leaves(expected))]
            raise InvalidInputError(
                f"the view {_name(view)} of samples {shapes_of(expected)} has shape "
                f"{shapes_of(shown)} ({kinds[0]} from {kinds[-1]}); expected the same number of "
                "samples, of the same shape and type"
            )
        return _plain(seen)


def _name(view: View) -> str:
    if view is None:
        return "sample"
    if isinstance(view, partial):
        return f"{_name(view.func)}{view.args}{view.keywords or ''}"
    return str(getattr(view, "__qualname__", type(view).__qualname__))


def _plain(seen: Any) -> Any:
    # NumPy mirrors by negative strides, which torch does not know
    return mapped(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else leaf.copy(), seen)


def _copied(X: Any) -> Any:
    return mapped(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy(), X)


def _same(one: Any, other: Any) -> bool:
    pairs = zip(leaves(as_samples("X", one)), leaves(as_samples("X", other)), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
