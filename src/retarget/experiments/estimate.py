"""How long a run may take, from how long others took."""

from collections.abc import Iterable
from statistics import median
from typing import Any

from retarget.experiments.identity import Identity
from retarget.experiments.store import RunRecord


class Estimator:
    """Remembers how long finished runs took.

    Args:
        records: Of the runs.
    """

    def __init__(self, records: Iterable[RunRecord] = ()) -> None:
        self._known: dict[str, list[tuple[dict[str, Any], float]]] = {}
        for record in records:
            self.learn(record)

    def learn(self, record: RunRecord) -> None:
        """Takes one more run into account, if it was done."""
        if record.status == "done":
            known = self._known.setdefault(record.identity["kind"], [])
            known.append((record.identity["config"], record.seconds))

    def seconds(self, identity: Identity) -> float | None:
        """The median of the runs of this kind that are most like it; None where there is none."""
        known = self._known.get(identity.kind)
        if not known:
            return None
        differences = [_differences(config, identity.config) for config, _ in known]
        least = min(differences)
        return median(
            seconds
            for (_, seconds), count in zip(known, differences, strict=True)
            if count == least
        )


def _differences(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Parameters in which two configs differ, but for the seed."""
    return sum(one.get(name) != other.get(name) for name in {*one, *other} - {"seed"})
