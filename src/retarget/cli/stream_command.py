"""What `retarget diagnose` and `retarget correct` were asked, as it was typed."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retarget.errors import InvalidInputError
from retarget.text import auto_or_number, listed

if TYPE_CHECKING:
    import polars as pl

    from retarget.diagnosis.options import DiagnosisOptions
    from retarget.diagnosis.tables.roles import Roles
    from retarget.learners import SGD

KERNELS = ("rbf", "linear", "affine")


@dataclass(frozen=True)
class StreamCommand:
    """The options that both commands share, as they were typed (`retarget.cli.stream_options`)."""

    file: Path | None
    target: list[str] | None
    time: str | None
    group: str | None
    group_as_feature: bool
    column: list[str] | None
    drop: list[str] | None
    lags: int
    kind: str
    impute: str
    standardize: bool
    allow_leak: bool
    predictions: list[str] | None
    predictions_after: list[str] | None
    model: str | None
    model_options: list[str] | None
    kernel: str
    width: str
    lr: str
    batch_size: int
    momentum: float
    nesterov: bool
    weight_decay: float
    reduction: str | None
    gamma: str
    block_size: str
    ridge: str
    features: str
    max_memory: str
    seed: int

    def options(self, **more: Any) -> "DiagnosisOptions":
        """Parses the options of learner and method; errors come before any file is read."""
        from retarget.diagnosis.options import OPEN_RATE, DiagnosisOptions

        if self.kernel not in KERNELS and ":" not in self.kernel:
            expected = ", ".join(KERNELS)
            raise InvalidInputError(
                f"--kernel is {self.kernel!r}; expected {expected}, or package.module:factory"
            )
        lr = self._number("lr")
        exact = self.features.strip().lower() == "none"
        return DiagnosisOptions(
            learner=self._learner(OPEN_RATE if lr == "auto" else lr),
            choose_lr=lr == "auto",
            kernel=self.kernel,
            width=self._number("width"),
            model=self.model,
            model_options=model_arguments(self.model_options),
            gamma=self._number("gamma"),
            block_size=self._number("block_size"),
            ridge=self._number("ridge"),
            features=None if exact else self._number("features"),
            max_memory=self.max_memory,
            seed=self.seed,
            **more,
        )

    def _number(self, name: str) -> Any:
        return auto_or_number(f"--{name.replace('_', '-')}", getattr(self, name))

    def _learner(self, lr: Any) -> "SGD":
        from retarget.learners import NOT_SAID, SGD

        if self.batch_size > 1 and self.reduction is None:
            raise InvalidInputError(
                f"--batch-size is {self.batch_size}, and --reduction was not given; expected "
                "--reduction mean if the loss of a step is the mean over its mini-batch, as "
                "PyTorch's losses are by default, or --reduction sum, as in the paper"
            )
        reduction: Any = self.reduction or NOT_SAID
        return SGD(lr, self.batch_size, self.momentum, self.nesterov, self.weight_decay, reduction)

    def _roles(self, target: list[str]) -> "Roles":
        from retarget.diagnosis.tables.roles import Roles

        kind: Any = self.kind
        impute: Any = self.impute
        return Roles(
            tuple(target),
            time=self.time,
            group=self.group,
            column=self.column or (),
            drop=self.drop or (),
            kind=kind,
            impute=impute,
            standardize=self.standardize,
            group_as_feature=self.group_as_feature,
            allow_leak=self.allow_leak,
            predictions=self.predictions or (),
            predictions_after=self.predictions_after or (),
            lags=self.lags,
        )

    def load(self, test: Path | None = None) -> "tuple[pl.DataFrame, pl.DataFrame | None, Roles]":
        """Returns the stream (the embedded digits without a file), the test set, and the roles."""
        from retarget.diagnosis.tables.read import read_table
        from retarget.diagnosis.tables.roles import MOST_COLUMNS_SHOWN, Roles

        if self.file is None:
            if self.target or test or self._roles(["digit"]) != Roles(("digit",)):
                raise InvalidInputError(
                    "options for columns or a test set need a FILE; give the file of the stream as "
                    "well"
                )
            table, roles = digits_table(self.seed)
            return table, None, roles
        if not self.target:
            raise InvalidInputError(
                f"no target is named; name the column of {self.file} to be learned (--target), one "
                f"of: {listed(read_table(self.file).columns, MOST_COLUMNS_SHOWN)}"
            )
        roles = self._roles(self.target)
        table = read_table(self.file, roles.loaded, roles.drop)
        roles = replace(roles, drop=())  # they were not loaded
        roles.require_in(table.columns)
        if test is None:
            return table, None, roles
        return table, read_table(test, table.columns, require_all=False), roles


def model_arguments(given: list[str] | None) -> dict[str, Any] | None:
    """Parses NAME=VALUE arguments: numbers, true and null as in JSON, anything else as text.

    Examples:
        >>> model_arguments(["eta0=0.1", "penalty=null", "loss=squared_error"])
        {'eta0': 0.1, 'penalty': None, 'loss': 'squared_error'}
    """
    if not given:
        return None
    arguments: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidInputError(f"--model-options is {text!r}; expected NAME=VALUE")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


def digits_table(seed: int) -> "tuple[pl.DataFrame, Roles]":
    """Returns a stream of handwritten digits, class by class, and the columns' roles.

    Examples:
        >>> stream, _ = digits_table(seed=0)
        >>> len(stream), stream["digit"][0], stream["digit"][-1]
        (1797, '0', '9')
    """
    import numpy as np
    import polars as pl

    from retarget.diagnosis.tables.roles import Roles
    from retarget.lab.data.digits import digits_stream

    digits = digits_stream(seed)
    images = np.vstack([digits.x_train, digits.x_test])
    labels = np.append(digits.labels_train, digits.labels_test)
    order = np.argsort(labels, kind="stable")
    pixels = {f"pixel{number}": column for number, column in enumerate(images[order].T)}
    table = pl.DataFrame(pixels | {"digit": [str(label) for label in labels[order]]})
    # Pixels are in [0, 1] already; scaling would inflate those that hardly vary.
    return table, Roles(target=("digit",), group="digit", standardize=False)
