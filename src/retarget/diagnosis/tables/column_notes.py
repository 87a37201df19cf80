"""What became of the columns, in words."""

from collections import defaultdict
from collections.abc import Sequence

from retarget.diagnosis.tables.columns import Categories, Dropped, Number
from retarget.diagnosis.tables.names import listed


def described(learned: Sequence[Number | Categories | Dropped]) -> list[str]:
    """Notes on what becomes of the columns, alike ones together."""
    dropped: dict[str, list[str]] = defaultdict(list)
    for column in learned:
        if isinstance(column, Dropped):
            dropped[column.reason].append(column.name)
    notes = [f"Left out, since they {why}: {listed(names)}." for why, names in dropped.items()]
    encoded = [c.name for c in learned if isinstance(c, Categories)]
    if encoded:
        notes.append(f"One feature for each category of {listed(encoded)}.")
    moments = [c.name for c in learned if isinstance(c, Number) and c.moments]
    if moments:
        notes.append(f"Dates and times became seconds: {listed(moments)}.")
    return notes
