"""How long a run may take, from how long others took."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
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
        self._known: dict[str, dict[str, _Seeds]] = {}
        self._found: dict[tuple[str, str], float] = {}  # what was worked out already
        for record in records:
            self.learn(record)

    def learn(self, record: RunRecord) -> None:
        """Takes one more run into account, if it was done."""
        if record.status == "done":
            config = record.identity["config"]
            known = self._known.setdefault(record.identity["kind"], {})
            known.setdefault(_but_seed(config), _Seeds(config)).seconds.append(record.seconds)
            self._found.clear()

    def seconds(self, identity: Identity) -> float | None:
        """The median of the runs of this kind that are most like it; None where there is none."""
        known = self._known.get(identity.kind)
        if not known:
            return None
        place = identity.kind, _but_seed(identity.config)
        if place not in self._found:
            self._found[place] = median(_nearest(identity.config, known.values()))
        return self._found[place]


@dataclass(frozen=True)
class _Seeds:
    """Runs that differ in their seed only, and how long they took."""

    config: dict[str, Any]
    seconds: list[float] = field(default_factory=list)


def _but_seed(config: dict[str, Any]) -> str:
    return json.dumps({name: config[name] for name in config if name != "seed"}, sort_keys=True)


def _nearest(config: dict[str, Any], known: Iterable[_Seeds]) -> list[float]:
    """How long those took that differ in the fewest parameters."""
    differences = [(_differences(one.config, config), one.seconds) for one in known]
    least = min(count for count, _ in differences)
    return [second for count, seconds in differences if count == least for second in seconds]


def _differences(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Parameters in which two configs differ, but for the seed."""
    return sum(one.get(name) != other.get(name) for name in {*one, *other} - {"seed"})
