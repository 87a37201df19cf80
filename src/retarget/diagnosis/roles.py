"""What the columns of a table are for, and how they are to be treated: the user's choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from retarget.diagnosis.column_names import require_column, require_distinct
from retarget.diagnosis.stream import TargetKind
from retarget.errors import InvalidInputError

Impute = Literal["error", "mean", "median", "zero"]
Kind = Literal["auto"] | TargetKind


@dataclass(frozen=True)
class Roles:
    """What the columns are for. Those that are not named here are features.

    Attributes:
        target: The target columns.
        time: The column that orders the rows; it is no feature. None: they are in order.
        group: The column that names each row's group; no feature unless asked. It may be the
            target, or the time.
        drop: Columns to leave out.
        kind: Numbers or classes; "auto" decides by the target.
        impute: What takes the place of a missing number: an error, the column's mean, its median,
            or zero, each of the rows that are learned from. (A missing category becomes the most
            frequent one. A row without a target is left out.)
        standardise: Whether numbers are brought to mean 0 and standard deviation 1.
        group_as_feature: Whether the group is a feature as well.
        allow_leak: Whether a feature may give the target away.
    """

    target: tuple[str, ...]
    time: str | None = None
    group: str | None = None
    drop: tuple[str, ...] = ()
    kind: Kind = "auto"
    impute: Impute = "error"
    standardise: bool = True
    group_as_feature: bool = False
    allow_leak: bool = False

    def __post_init__(self) -> None:
        # a single name in the place of a list of them would be taken letter by letter
        for field in ("target", "drop"):
            value = getattr(self, field)
            object.__setattr__(self, field, (value,) if isinstance(value, str) else tuple(value))
        kinds = ("auto", *get_args(TargetKind))
        if self.kind not in kinds:
            raise InvalidInputError(f"kind is {self.kind!r}; expected one of {', '.join(kinds)}")
        if self.impute not in get_args(Impute):
            expected = ", ".join(get_args(Impute))
            raise InvalidInputError(f"impute is {self.impute!r}; expected one of {expected}")
        self._require_no_conflict()

    def _require_no_conflict(self) -> None:
        if not self.target:
            raise InvalidInputError("no target is named; name the column to be learned (--target)")
        require_distinct(self.target, "the list of targets (--target)")
        if self.time in self.target:
            raise InvalidInputError(
                f"{self.time!r} is both target and time; expected another column that orders"
            )
        for name in self.drop:
            if name in (*self.target, self.time, self.group):
                raise InvalidInputError(
                    f"{name!r} is dropped and also used as target, time or group; drop it or use it"
                )

    def require_in(self, columns: Sequence[str]) -> None:
        """Refuses a table that lacks one of the columns that are named."""
        for name in self.target:
            require_column(columns, name, "target")
        for name in self.drop:
            require_column(columns, name, "drop")
        if self.time is not None:
            require_column(columns, self.time, "time")
        if self.group is not None:
            require_column(columns, self.group, "group")

    def features(self, columns: Sequence[str]) -> list[str]:
        """Of a table's columns, those that may be features."""
        group = None if self.group_as_feature else self.group
        taken = {*self.target, *self.drop, self.time, group}
        return [name for name in columns if name not in taken]
