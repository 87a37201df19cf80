r"""Rows that a learner keeps, so that it can tell how well it does on samples it has not learned.

The sums do not tell the errors of single samples. For a row that is kept, the error without it
follows from the present solution W, without learning anything again:

    y - f_-i(x) = (y - f(x)) / (1 - w h),   h = phi^T (C + gamma I)^-1 phi .

The rows are a random sample of those learned: each draws a ticket from 0 to 1 when it is learned,
and those below a bound are kept. When there are too many, the bound falls to the ticket of the
first that must go. So each sample is kept with the same probability, whenever it came. A sample
that is forgotten goes from the rows as well, and what is left is a random sample of what is left.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from retarget.errors import InvalidInputError
from retarget.state_files import require_shape

# Features of the same sample that were computed twice differ by less than this, relative to their
# length: other samples beside it in a batch change the order in which a network adds numbers.
SAME = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


class KeptRow(NamedTuple):
    """A row that was learned."""

    ticket: float
    features: Tensor  # (m,)
    targets: Tensor  # (c,); those of outputs that came later were 0
    weight: float  # of one sample
    times: float  # how many samples it stands for


class RowTable(NamedTuple):
    """The same for k rows."""

    features: Tensor  # (k, m)
    targets: Tensor  # (k, c)
    weights: Tensor  # (k,)
    times: Tensor  # (k,)


class KeptRows(NamedTuple):
    """A random sample of the rows that were learned; it is replaced as a whole.

    Attributes:
        most: How many there may be.
        bound: Rows whose ticket is below it are kept.
        rows: These rows.
    """

    most: int
    bound: float = 1.0
    rows: tuple[KeptRow, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(row.features.nbytes + row.targets.nbytes for row in self.rows)

    def plus(
        self, features: Tensor, targets: Tensor, weights: Tensor | None, repeats: bool, before: int
    ) -> "KeptRows":
        """Draws from rows that are learned; the weights count repeats, or certainty.

        The tickets follow from the first row and the number of samples `before`: the same stream
        always gives the same rows, and learners of two parts of a stream draw different tickets.
        """
        if not self.most:
            return self
        drawn = _tickets(features, before)
        chosen = np.flatnonzero(drawn < self.bound).tolist()
        added = []
        for row in chosen:
            number = 1.0 if weights is None else float(weights[row])
            added.append(
                KeptRow(
                    float(drawn[row]),
                    features[row].clone(),
                    targets[row].clone(),
                    weight=1.0 if repeats else number,
                    times=number if repeats else 1.0,
                )
            )
        return self._within_bounds((*self.rows, *added), self.bound)

    def without(self, features: Tensor, targets: Tensor) -> "KeptRows":
        """Returns the rows that are left when these samples are forgotten.

        Of the rows with a sample's features, up to rounding, and its targets, the closest goes.
        """
        if not self.rows:
            return self
        table = self.table(targets.shape[1])
        share = SAME[torch.promote_types(table.features.dtype, features.dtype)]
        left = torch.ones(len(self.rows), dtype=torch.bool, device=table.features.device)
        phi = features.to(table.features)
        size = share * phi.double().norm(dim=1)
        gaps = torch.cdist(phi.double(), table.features.double())
        answers = targets.to(table.targets)
        slack = share * (1 + answers.abs())[:, None]
        alike = ((answers[:, None] - table.targets).abs() <= slack).all(2)
        alike &= gaps <= size[:, None]
        for row in alike.any(1).nonzero()[:, 0].tolist():
            candidates = (alike[row] & left).nonzero()[:, 0]
            if len(candidates):
                left[candidates[gaps[row, candidates].argmin()]] = False
        stay = left.tolist()
        return self._replace(
            rows=tuple(row for row, yes in zip(self.rows, stay, strict=True) if yes)
        )

    def joined(self, other: "KeptRows") -> "KeptRows":
        """Returns a random sample of what two learners have learned."""
        bound = min(self.bound, other.bound)
        both = (*self.rows, *other.rows)
        return self._within_bounds(tuple(row for row in both if row.ticket < bound), bound)

    def scaled(self, factor: float) -> "KeptRows":
        """Multiplies the weight of every row by this factor."""
        return self._replace(
            rows=tuple(row._replace(weight=row.weight * factor) for row in self.rows)
        )

    def rearranged(self, columns: Sequence[int | None]) -> "KeptRows":
        """Makes output j that of columns[j]; of a new one, where it is None, the target was 0.

        Rows that had another target than 0 for an output that is left out go with it.
        """
        rows = []
        for row in self.rows:
            gone = sorted(set(range(len(row.targets))) - set(columns))
            if not bool(row.targets[gone].any()):
                rows.append(row._replace(targets=rearranged(row.targets, columns)))
        return self._replace(rows=tuple(rows))

    def table(self, outputs: int) -> RowTable:
        """Returns all rows, with so many outputs; there must be one at least."""
        like = self.rows[0].targets.new_zeros(0, dtype=torch.float64)
        targets = [pad(row.targets, (0, outputs - len(row.targets))) for row in self.rows]
        return RowTable(
            torch.stack([row.features for row in self.rows]),
            torch.stack(targets),
            like.new_tensor([row.weight for row in self.rows]),
            like.new_tensor([row.times for row in self.rows]),
        )

    def to_state(self, outputs: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the state as plain values and tensors."""
        values = {"kept_bound": self.bound}
        if not self.rows:
            return values, {}
        features, targets, weights, times = self.table(outputs)
        return values, {
            "kept_tickets": weights.new_tensor([row.ticket for row in self.rows]),
            "kept_features": features,
            "kept_targets": targets,
            "kept_weights": weights,
            "kept_times": times,
        }

    @classmethod
    def from_state(
        cls,
        values: dict[str, Any],
        tensors: dict[str, Tensor],
        most: int,
        features: int,
        outputs: int,
    ) -> "KeptRows":
        """Checks and restores a saved state."""
        bound = float(values["kept_bound"])
        if not 0 <= bound <= 1:
            raise InvalidInputError(f"kept_bound is {bound}; expected 0 to 1")
        if "kept_features" not in tensors:
            return cls(most, bound)
        rows = require_shape("kept_features", tensors["kept_features"], None, features)
        count = len(rows)
        targets = require_shape("kept_targets", tensors["kept_targets"], count, outputs)
        columns = {}
        for name in ("kept_tickets", "kept_weights", "kept_times"):
            columns[name] = require_shape(name, tensors[name], count).double()
        tickets = columns["kept_tickets"]
        finite = all(bool(each.isfinite().all()) for each in (rows, targets, *columns.values()))
        fits = bool(((tickets >= 0) & (tickets < bound)).all()) and 0 < count <= most
        above = bool((columns["kept_weights"] > 0).all() and (columns["kept_times"] > 0).all())
        if not (finite and fits and above and rows.dtype in SAME):
            raise InvalidInputError(
                f"the {count} kept rows are not rows that a learner keeps: expected at most "
                f"{most}, finite numbers, tickets below {bound}, weights and times above 0"
            )
        numbers = (each.tolist() for each in columns.values())
        return cls(
            most,
            bound,
            tuple(
                KeptRow(ticket, row.clone(), target.double().clone(), weight, times)
                for row, target, ticket, weight, times in zip(rows, targets, *numbers, strict=True)
            ),
        )

    def _within_bounds(self, rows: tuple[KeptRow, ...], bound: float) -> "KeptRows":
        if len(rows) <= self.most:
            return self._replace(bound=bound, rows=rows)
        ordered = sorted(rows, key=lambda row: row.ticket)
        lower = ordered[self.most].ticket
        return self._replace(bound=lower, rows=tuple(row for row in rows if row.ticket < lower))


def rearranged(values: Tensor, columns: Sequence[int | None]) -> Tensor:
    """Selects entries along the last axis; zeros where a column is None or not there yet."""
    wider = pad(values, (0, 1))
    last = values.shape[-1]
    places = [last if column is None else min(column, last) for column in columns]
    return wider[..., places]


def _tickets(features: Tensor, before: int) -> np.ndarray:
    first = features[:1].double().cpu().numpy().tobytes()
    digest = hashlib.sha256(first + str(before).encode()).digest()
    drawn: np.ndarray = np.random.default_rng(list(digest)).random(len(features))
    return drawn
