"""What the columns of a table are for, and how they are to be treated: the user's choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from retarget.diagnosis.stream import TargetKind
from retarget.diagnosis.tables.names import require_column, require_distinct
from retarget.errors import InvalidInputError

Impute = Literal["error", "mean", "median", "zero"]
Kind = Literal["auto"] | TargetKind


@dataclass(frozen=True)
class Roles:
    """What the columns are for. Those that are not named here are features.

    Attributes:
        target: The target columns.
        time: The column that orders the rows; it is not used as a feature. None: they are in
            order.
        group: The column that names each row's group; it is not used as a feature unless asked. It
            may be the target, or the time.
        column: The only features to use; nothing for all that there are.
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
    column: Sequence[str] = ()
    drop: Sequence[str] = ()
    kind: Kind = "auto"
    impute: Impute = "error"
    standardise: bool = True
    group_as_feature: bool = False
    allow_leak: bool = False

    def __post_init__(self) -> None:
        # a single name instead of a list of them would be taken letter by letter
        for field in ("target", "column", "drop"):
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
        if self.group_as_feature and self.group is None:
            raise InvalidInputError(
                "group_as_feature (--group-as-feature) is set and no group is named; name the "
                "column of the group"
            )
        for name in self.drop:
            if name in (*self.target, self.time, self.group):
                raise InvalidInputError(
                    f"{name!r} is dropped and also used as target, time or group; drop it or use it"
                )
            if name in self.column:
                raise InvalidInputError(
                    f"{name!r} is dropped and also chosen as a feature (column); drop it or use it"
                )
        for name in self.column:
            if name in (*self.target, self.time):
                raise InvalidInputError(
                    f"{name!r} is chosen as a feature (column) and also used as target or time; "
                    "expected other columns as features"
                )
            if name == self.group and not self.group_as_feature:
                raise InvalidInputError(
                    f"{name!r} is chosen as a feature (column) and is the group, which is not used "
                    "as a feature unless group_as_feature (--group-as-feature) is set"
                )

    @property
    def loaded(self) -> list[str] | None:
        """The columns that are needed of a table; None for all of them."""
        if not self.column:
            return None
        named = (self.time, self.group)
        return [*self.column, *self.target, *(name for name in named if name is not None)]

    def require_in(self, columns: Sequence[str]) -> None:
        """Refuses a table that lacks one of the columns that are named."""
        for name in self.target:
            require_column(columns, name, "target")
        for name in self.column:
            require_column(columns, name, "column")
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
        wanted = {*self.column, self.group} if self.column else set(columns)
        return [name for name in columns if name in wanted - taken]
