"""The options of a diagnosis: the online learner, and how it is diagnosed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from retarget.diagnosis.answers import Evaluation, HoldOut
from retarget.diagnosis.metrics import AUTO, Metric, as_metric
from retarget.diagnosis.spelling import spelled
from retarget.engine.offline.logistic import LARGEST_GAMMA
from retarget.engine.offline.recent import Aim, as_aim
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels.lookup import kernel_names, takes_width
from retarget.learners import SGD, require_learner
from retarget.scalars import as_positive, is_whole
from retarget.text import amount_of_memory, as_seed
from retarget.theory.iterative import check_correction

Auto = Literal["auto"]
OPEN_RATE = 1.0  # stands for a rate that is still to be chosen
SINGLE_ROWS = SGD(OPEN_RATE)


@dataclass(frozen=True)
class DiagnosisOptions:
    """The options of `retarget.diagnose` that do not describe the data; see there for each.

    Both Python and the command line create them. Invalid values are an error here, before any data
    are read. `choose_lr` says that the learner's rate is still to be chosen; `model_options` are
    keyword arguments of the model that the command line names.

    Raises:
        InvalidInputError: An option, or a combination of options, has no meaning.
        InvalidTypeError: An option has the wrong type.
    """

    learner: SGD = SINGLE_ROWS
    choose_lr: bool = True
    kernel: Any = "rbf"
    width: float | Auto = "auto"
    model: Any = None
    model_options: Mapping[str, Any] | None = None
    evaluation: Evaluation = "both"
    test_share: float = 0.1
    hold_out: HoldOut = "rows"
    metric: Metric = AUTO  # or anything that `as_metric` accepts
    aim: str = "all"
    gamma: float | Auto = "auto"
    block_size: int | Auto = "auto"
    ridge: float | Auto = "auto"
    features: int | Auto | None = "auto"
    max_memory: float | str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.learner.lr, float):
            raise InvalidInputError(
                f"the learner has a schedule of {len(self.learner.lr)} rates; expected a single "
                "rate"
            )
        for name in ("width", "gamma", "block_size", "ridge", "features"):
            if isinstance(value := getattr(self, name), str) and value != "auto":
                raise InvalidInputError(
                    f"{spelled(name)} is {value!r}; expected a number or 'auto'"
                )
        for name in ("width", "gamma"):
            if (value := getattr(self, name)) != "auto":
                # frozen dataclass: values are normalized once, here
                object.__setattr__(self, name, _positive(spelled(name), value))
        if self.gamma != "auto" and self.gamma > LARGEST_GAMMA:
            raise InvalidInputError(
                f"{spelled('gamma')} is {self.gamma:g}; expected at most {LARGEST_GAMMA:g}, beyond "
                "which nothing is learned and numbers overflow"
            )
        if self.max_memory != "auto":
            size = amount_of_memory(spelled("max_memory"), self.max_memory)
            object.__setattr__(self, "max_memory", size)
        if not isinstance(self.features, str | None):
            _require_count(spelled("features"), self.features)
        block = self.block_size if self.block_size != "auto" else self.learner.batch_size
        ridge = self.ridge if self.ridge != "auto" else 0.0
        check_correction(self.learner, 1.0, block, ridge, "both", "corrected")
        for name, known in (
            ("evaluation", get_args(Evaluation)),
            ("hold_out", get_args(HoldOut)),
        ):
            if (value := getattr(self, name)) not in known:
                expected = ", ".join(known)
                raise InvalidInputError(f"{spelled(name)} is {value!r}; expected one of {expected}")
        if not 0 < self.test_share <= 0.4:
            raise InvalidInputError(
                f"{spelled('test_share')} is {self.test_share}; expected a share above 0 and at "
                "most 0.4, the share of rows held out for each question"
            )
        object.__setattr__(self, "metric", as_metric(spelled("metric"), self.metric))
        as_aim(self.aim, spelled("aim"))
        as_seed(spelled("seed"), self.seed)
        to_import = isinstance(self.kernel, str) and ":" in self.kernel
        if self.width != "auto" and not to_import and not takes_width(self.kernel):
            widths = ", ".join(name for name in kernel_names() if takes_width(name))
            raise InvalidInputError(
                f"{spelled('width')} is {self.width!r} with {spelled('kernel')} {self.kernel!r}; "
                f"only the kernels {widths} take it: leave it out"
            )
        if self.model_options is not None and self.model is None:
            raise InvalidInputError(
                f"{spelled('model_options')} is {self.model_options!r} and there is no model; give "
                f"{spelled('model')} as well"
            )

    @property
    def batch_model(self) -> Aim:
        """Which rows the batch model, with which the online learner is compared, learns from."""
        return as_aim(self.aim, "aim")

    def evaluation_with(self, test: object) -> Evaluation:
        """Returns which rows learners are compared on, given the test set or None."""
        if test is not None and self.evaluation == "both":
            return "test"
        if (self.evaluation == "test") != (test is not None):
            raise InvalidInputError(
                f"{spelled('evaluation')} is {self.evaluation!r} and there is "
                f"{'no' if test is None else 'a'} test set; give {spelled('test')} for 'test', "
                "and only then"
            )
        return self.evaluation


def learner_options(learner: SGD | None, lr: float | Auto) -> tuple[SGD, bool]:
    """Returns the given learner or one of single rows, and whether its rate is to be chosen."""
    automatic = isinstance(lr, str) and lr == "auto"
    if learner is not None and not automatic:
        raise InvalidInputError(
            f"lr is {lr!r} together with a learner; give one or the other: the learner has a rate"
        )
    if learner is not None:
        require_learner(learner)
        return learner, False
    return SGD(OPEN_RATE if automatic else _positive("lr", lr)), automatic


def _positive(name: str, value: Any) -> float:
    if isinstance(value, str):
        raise InvalidInputError(f"{name} is {value!r}; expected a number or 'auto'")
    if np.ndim(value):
        raise InvalidTypeError(f"{name} is {value!r}; expected one number, or 'auto'")
    return as_positive(name, value)


def _require_count(name: str, value: Any) -> None:
    if not is_whole(value) or value < 2:
        raise InvalidInputError(
            f"{name} is {value!r}; expected a whole number, 2 or more, 'auto', or None for the "
            "exact kernel"
        )
