r"""What learners are compared by: one function of truth and prediction to a loss a row.

A metric is one record. Everything that is compared (learners, ways of training, forgetting, costs,
drift) is a mean $\frac{1}{m} \sum_i \ell(y_i, \hat{y}_i)$ of such losses over rows, or the metric's
own function of that mean, such as its root. The page, the terminal, JSON and `--compare` take the
name, the words and the direction from the record.

To add one, write its function and an entry of `METRICS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retarget.errors import InvalidInputError, InvalidTypeError, a_type

if TYPE_CHECKING:  # the command's help lists the metrics, and NumPy is slow to import
    import numpy as np
    from numpy.typing import NDArray

    from retarget.diagnosis.stream import Stream, TargetKind

TargetArray = Any  # (m, c) targets, or (m,) losses
LEAST_PROBABILITY = 1e-3  # for the log-loss: predictions of a least-squares model reach 0


@dataclass(frozen=True)
class Metric:
    r"""A measure to compare learners by, as a loss: lower is better, and 0 is the best.

    Attributes:
        name: What users call it.
        words: The score in words, such as "mean absolute error".
        loss: From the true and the predicted targets, both (m, c), to (m,) a loss of at least 0 for
            each row. Numbers are in the user's units; a class has a column with 1 for its rows and
            0 for others, and predictions near them. It is called with finite predictions only.
        kinds: Which targets it is for: "regression", "classification", or both.
        score: From the mean loss to the score, if that is not the mean itself, such as
            `numpy.sqrt`; it must not decrease.
        unit: What numbers are measured in, such as "squared units"; empty if it has no unit.
        share: If the loss is a share of the rows, what the rest of it is, in words, such as "share
            of rows whose class is right". That rest is then shown, and higher is better.
        shows_accuracy: Whether classes are shown by their accuracy, though the loss decides.

    Examples:
        >>> import numpy as np
        >>> def pinball(truth, predicted):
        ...     above = truth - predicted
        ...     return np.maximum(0.9 * above, -0.1 * above).mean(axis=1)
        >>> as_metric("metric", pinball).words
        'mean of pinball'
    """

    name: str
    words: str
    loss: Callable[[TargetArray, TargetArray], TargetArray]
    kinds: "tuple[TargetKind, ...]" = ("regression", "classification")
    score: Callable[[Any], Any] | None = None
    unit: str = ""
    share: str = ""
    shows_accuracy: bool = False

    def losses(self, predicted: "NDArray[np.float64]", truth: "Stream") -> "NDArray[np.float64]":
        """Returns (m,) the loss of each row; NaN where a prediction is not finite.

        Raises:
            InvalidInputError: The function fails, or returns something else than a loss a row.
        """
        import numpy as np

        from retarget.import_path import USER_ERRORS, reason  # imports torch

        known = np.isfinite(predicted).all(axis=1)
        losses = np.full(len(predicted), np.nan)
        if not known.any():
            return losses
        true_targets = truth.in_units(truth.Y[known])
        with np.errstate(over="ignore", invalid="ignore"):  # then it is not known
            predictions = truth.in_units(predicted[known])
            try:
                losses[known] = self._checked(
                    self.loss(true_targets, predictions), len(predictions)
                )
            except InvalidInputError:
                raise
            except USER_ERRORS as error:
                raise InvalidInputError(
                    f"the metric {self.name!r} failed on targets and predictions of shape "
                    f"{true_targets.shape}: {reason(error)}"
                ) from error
        return losses

    def _checked(self, losses: Any, rows: int) -> "NDArray[np.float64]":
        """Returns (rows,) what the function returned, if it is a loss for each row."""
        import numpy as np

        array = np.asarray(losses, dtype=np.float64)
        if array.shape == (rows, 1):
            array = array[:, 0]
        if array.shape != (rows,):
            raise InvalidInputError(
                f"the metric {self.name!r} returned an array of shape {array.shape} for {rows} "
                f"rows; expected one loss for each row, of shape ({rows},)"
            )
        if (array < 0).any():
            raise InvalidInputError(
                f"the metric {self.name!r} returned {array.min():g} for a row; expected losses of "
                "at least 0, of which lower is better, since learners are compared by their ratio"
            )
        return array

    def scored(self, mean: float) -> float:
        """Returns the score of a mean loss."""
        return mean if self.score is None else float(self.score(mean))


def squared(truth: TargetArray, predicted: TargetArray) -> TargetArray:
    """The mean square of a row's errors."""
    return ((truth - predicted) ** 2).mean(axis=1)


def absolute(truth: TargetArray, predicted: TargetArray) -> TargetArray:
    """The mean size of a row's errors."""
    return abs(truth - predicted).mean(axis=1)


def wrong(truth: TargetArray, predicted: TargetArray) -> TargetArray:
    """1 for a wrong class, 0 for the right one."""
    return (truth.argmax(axis=1) != predicted.argmax(axis=1)).astype(float)


def balanced_wrong(truth: TargetArray, predicted: TargetArray) -> TargetArray:
    """As much more for a wrong class as it is rarer, so that every class counts the same."""
    counts = truth.sum(axis=0)
    own = counts[truth.argmax(axis=1)]
    return wrong(truth, predicted) * len(truth) / ((counts > 0).sum() * own)


def log_loss(truth: TargetArray, predicted: TargetArray) -> TargetArray:
    """Minus the logarithm of the class's probability in the nearest distribution, at least .001."""
    import numpy as np

    from retarget.engine.losses import nearest_distributions  # imports torch

    chances = nearest_distributions(predicted)
    own = chances[np.arange(len(chances)), truth.argmax(axis=1)]
    return -np.log(np.clip(own, LEAST_PROBABILITY, None))


CLASSES: "tuple[TargetKind, ...]" = ("classification",)
SQUARED = Metric("squared", "mean squared error", squared, unit="squared units")
ACCURACY = Metric(
    "accuracy",
    "share of rows whose class is wrong",
    wrong,
    kinds=CLASSES,
    share="share of rows whose class is right",
)
AUTO = Metric("auto", "mean squared error", squared, unit="squared units", shows_accuracy=True)
METRICS = {
    metric.name: metric
    for metric in (
        AUTO,
        SQUARED,
        Metric("absolute", "mean absolute error", absolute, unit="units"),
        Metric("log-loss", "log-loss", log_loss, kinds=CLASSES),
        ACCURACY,
        Metric(
            "balanced-accuracy",
            "mean share of wrong rows over the classes",
            balanced_wrong,
            kinds=CLASSES,
        ),
    )
}


def as_metric(name: str, given: Any) -> Metric:
    """Returns the metric that a name, an import path, a function or a record stands for.

    Args:
        name: What the option is called, for messages.
        given: One of `METRICS`, "package.module:function", a function of truth and prediction, or a
            `Metric`.

    Raises:
        InvalidInputError: There is no such metric.
        InvalidTypeError: It is nothing of these.
    """
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        if given in METRICS:
            return METRICS[given]
        if ":" not in given:
            raise InvalidInputError(
                f"{name} is {given!r}; expected one of {', '.join(METRICS)}, or a function of "
                "your own as 'package.module:function'"
            )
        from retarget.import_path import imported  # imports torch

        return as_metric(name, imported(given, "metric"))
    if callable(given):
        called = getattr(given, "__name__", type(given).__name__).strip("<>")
        return Metric(called, f"mean of {called}", given)
    raise InvalidTypeError(
        f"{name} is {a_type(given)}; expected one of {', '.join(METRICS)}, or a function "
        "of the true and the predicted targets that returns a loss for each row"
    )
