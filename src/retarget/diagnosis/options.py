"""The options of a diagnosis: the online learner, and how it is diagnosed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from retarget.arrays import as_positive
from retarget.diagnosis.answers import Evaluation, HoldOut, Metric
from retarget.diagnosis.dialect import named, option
from retarget.diagnosis.result import Mode
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.learners import SGD, Reduction
from retarget.theory.iterative import check_correction
from retarget.theory.offline.aims import Aim, as_aim

LEARNER_OPTIONS = ("lr", "batch_size", "momentum", "nesterov", "weight_decay", "reduction")


@dataclass(frozen=True)
class Options:
    """The options of `retarget.diagnose` that do not describe the data; see there for each.

    Both Python and the command line create them. Invalid values are refused here, before any data
    are read.

    Raises:
        InvalidInputError: An option, or a combination of options, has no meaning.
        InvalidTypeError: An option has the wrong type.
    """

    kernel: Any = "rbf"
    width: float | None = None
    lr: float | Literal["auto"] = "auto"
    batch_size: int = 1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    reduction: Reduction = "sum"
    evaluation: Evaluation = "both"
    test_share: float = 0.1
    hold_out: HoldOut = "rows"
    metric: Metric = "auto"
    aim: str = "all"
    intercept: bool = False
    gamma: float | Literal["auto"] = "auto"
    block_size: int | None = None
    ridge: float | None = None
    mode: Mode | Literal["auto"] = "auto"
    features: int | None = None
    memory: int | None = None
    seed: int = 0
    model: Any = None
    model_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("lr", "gamma"):  # frozen dataclass: values are normalized once, here
            object.__setattr__(self, name, _auto_or_positive(named(name), getattr(self, name)))
        block_size = self.learner.batch_size if self.block_size is None else self.block_size
        check_correction(self.learner, 1.0, block_size, self.ridge or 0.0, "both", "corrected")
        for name, known in (
            ("evaluation", get_args(Evaluation)),
            ("hold_out", get_args(HoldOut)),
            ("metric", get_args(Metric)),
            ("mode", ("auto", *get_args(Mode))),
        ):
            if (value := getattr(self, name)) not in known:
                expected = ", ".join(known)
                raise InvalidInputError(f"{named(name)} is {value!r}; expected one of {expected}")
        if not 0 < self.test_share <= 0.4:
            raise InvalidInputError(
                f"{named('test_share')} is {self.test_share}; expected a share above 0 and at most "
                "0.4: so many rows are held out for each question"
            )
        as_aim(self.aim, named("aim"))
        for name, needed in (("intercept", "linear"), ("width", "rbf")):
            value = getattr(self, name)
            if value is not None and value is not False and self.kernel != needed:
                raise InvalidInputError(
                    f"{named(name)} is {value!r} with {named('kernel')} {self.kernel!r}; only "
                    f"{needed!r} takes it: leave it out"
                )
        if self.model_options is not None and self.model is None:
            raise InvalidInputError(
                f"{named('model_options')} is {self.model_options!r} and there is no model; give "
                f"{option('model')} as well"
            )
        _require_number(named("memory"), self.memory, int | float, "a number of bytes", above=0)
        _require_number(named("features"), self.features, int, "a whole number, 2 or more", above=1)

    @property
    def learner(self) -> SGD:
        """The online learner, with rate 1 if the rate is still to be chosen."""
        lr = 1.0 if isinstance(self.lr, str) else self.lr
        return SGD(
            lr, self.batch_size, self.momentum, self.nesterov, self.weight_decay, self.reduction
        )

    @property
    def batch_model(self) -> Aim:
        """Which rows the batch model, with which the online learner is compared, learns from."""
        return as_aim(self.aim, "aim")

    def with_learner(self, learner: SGD) -> "Options":
        """Returns these options with those of a learner, none of which may be given twice."""
        default = Options()
        repeated = [n for n in LEARNER_OPTIONS if getattr(self, n) != getattr(default, n)]
        if repeated:
            raise InvalidInputError(
                f"{', '.join(sorted(repeated))} given together with a learner; give one or the "
                "other"
            )
        if not isinstance(learner.lr, float):
            raise InvalidInputError(
                f"the learner has a schedule of {len(learner.lr)} rates; expected a single rate"
            )
        return replace(self, **learner.to_dict())

    def evaluation_with(self, test: object) -> Evaluation:
        """Returns which rows learners are compared on, given the test set or None."""
        if test is not None and self.evaluation == "both":
            return "test"
        if (self.evaluation == "test") != (test is not None):
            raise InvalidInputError(
                f"{named('evaluation')} is {self.evaluation!r} and there is "
                f"{'no' if test is None else 'a'} test set; give {option('test')} for 'test', "
                "and for it only"
            )
        return self.evaluation


def _auto_or_positive(name: str, value: Any) -> float | Literal["auto"]:
    if isinstance(value, str):
        if value != "auto":
            raise InvalidInputError(f"{name} is {value!r}; expected a number or 'auto'")
        return "auto"
    if np.ndim(value):
        raise InvalidTypeError(f"{name} is {value!r}; expected one number, or 'auto'")
    return as_positive(name, value)


def _require_number(name: str, value: Any, kind: Any, expected: str, above: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kind):
        raise InvalidTypeError(f"{name} is {value!r}; expected {expected}")
    if not value > above:
        raise InvalidInputError(f"{name} is {value!r}; expected {expected}, above {above}")
