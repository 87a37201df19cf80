"""The options that `retarget diagnose` and `retarget correct` share: columns, learner, method."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def option(panel: str, values: str | None, help_text: str, *names: str, **more: Any) -> Any:
    """Declares an option in a panel of the help, with a placeholder for its values."""
    return typer.Option(*names, metavar=values, help=help_text, rich_help_panel=panel, **more)


column_option = partial(option, "What the columns are")
learner_option = partial(option, "Your online learner")
method_option = partial(option, "How it is diagnosed")


@dataclass(frozen=True)
class StreamOptions:
    """What was typed for the options that both commands have."""

    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The stream: .csv, .tsv (also .gz), .parquet, .npz or .npy, rows in the order in "
            "which they were learned; or a folder or a quoted pattern of .parquet, .csv or .tsv "
            "files, in the order of their names. Without it: the embedded digits, class by class.",
            show_default=False,
        ),
    ] = None
    target: Annotated[
        list[str] | None, column_option("COL", "The column to learn; may be repeated.")
    ] = None
    time: Annotated[
        str | None,
        column_option("COL", "Column to sort the rows by. It is not used as a feature."),
    ] = None
    group: Annotated[
        str | None,
        column_option(
            "COL",
            "Task, user, device, class...: the report shows which group shifted whose "
            "targets. It is not used as a feature.",
        ),
    ] = None
    group_as_feature: Annotated[
        bool, column_option(None, "Use the group as a feature as well.", "--group-as-feature")
    ] = False
    column: Annotated[
        list[str] | None, column_option("COL", "Use only this feature; may be repeated.")
    ] = None
    drop: Annotated[
        list[str] | None, column_option("COL", "Column to leave out; may be repeated.")
    ] = None
    thousands: Annotated[
        Literal["auto", "point", "none"],
        column_option(
            "auto|point|none",
            "What 1.234 means in a file separated by semicolons: point: 1234; none: a number with "
            "decimals; auto: what the other numbers say.",
        ),
    ] = "auto"
    lags: Annotated[
        int,
        column_option(
            "N",
            "Use each target's N previous values as features: of earlier rows, by --time, within "
            "each --group.",
            min=0,
        ),
    ] = 0
    kind: Annotated[
        Literal["auto", "regression", "classification"],
        column_option(
            "auto|regression|classification", "Whether the target is a number or a class."
        ),
    ] = "auto"
    impute: Annotated[
        Literal["error", "mean", "median", "zero"],
        column_option(
            "error|mean|median|zero",
            "What replaces missing numbers. Missing categories become the most frequent one; "
            "rows without a target are left out.",
        ),
    ] = "error"
    standardize: Annotated[
        bool,
        column_option(
            None,
            "Scale numbers to mean 0 and standard deviation 1, or leave them as they are.",
            "--standardize/--as-they-are",
        ),
    ] = True
    allow_leak: Annotated[
        bool, column_option(None, "Accept a feature that gives the target away.", "--allow-leak")
    ] = False
    predictions: Annotated[
        list[str] | None,
        column_option(
            "COL",
            "Your model's logged prediction for each row, made just before it learned the row; "
            "repeat the option for several targets.",
        ),
    ] = None
    predictions_after: Annotated[
        list[str] | None,
        column_option("COL", "Your model's logged prediction for each row, made at the end."),
    ] = None
    model: Annotated[
        str | None,
        learner_option(
            "MODULE:FACTORY",
            "Also run your own model: your class or function, or for example "
            "sklearn.linear_model:SGDRegressor. Anything with partial_fit or learn_one, or "
            "a torch module (with its optimizer and loss).",
        ),
    ] = None
    model_options: Annotated[
        list[str] | None,
        learner_option("NAME=VALUE", "Argument for the class or function; may be repeated."),
    ] = None
    kernel: Annotated[
        str,
        learner_option(
            "NAME|MODULE:FACTORY",
            "Which rows the learner treats as similar: rbf, laplace, matern52, linear or affine "
            "(linear with an intercept), for example; the error for a name that does not exist "
            "lists all. For your own, name the kernel's class, or the function that makes it, as "
            "package.module:factory; of a network, the empirical NTK is used.",
        ),
    ] = "rbf"
    width: Annotated[
        str,
        learner_option(
            "auto|NUMBER",
            "Width of a kernel that has one; auto: the median distance between rows.",
        ),
    ] = "auto"
    lr: Annotated[
        str,
        learner_option(
            "auto|NUMBER",
            "Learning rate; auto: the stable rate with the smallest error on each row before "
            "it is learned.",
        ),
    ] = "auto"
    batch_size: Annotated[int, learner_option("N", "Rows in one step of the learner.", min=1)] = 1
    momentum: Annotated[float, learner_option("NUMBER", "Momentum, as in torch.optim.SGD.")] = 0.0
    nesterov: Annotated[
        bool, learner_option(None, "Nesterov momentum, as in torch.optim.SGD.", "--nesterov")
    ] = False
    weight_decay: Annotated[
        float, learner_option("NUMBER", "Weight decay, as in torch.optim.SGD.")
    ] = 0.0
    reduction: Annotated[
        Literal["sum", "mean"] | None,
        learner_option(
            "sum|mean",
            "Whether your loss is the sum or the mean over a mini-batch (PyTorch's default: mean). "
            "Needed with --batch-size above 1.",
        ),
    ] = None
    gamma: Annotated[
        str,
        method_option(
            "auto|NUMBER", "Ridge of the batch model; auto: smallest leave-one-out error."
        ),
    ] = "auto"
    block_size: Annotated[
        str,
        method_option(
            "auto|NUMBER",
            "Rows per block of the iterative correction; auto: about 64, at most a tenth of the "
            "rows.",
        ),
    ] = "auto"
    ridge: Annotated[
        str,
        method_option(
            "auto|NUMBER",
            "Ridge of the iterative correction's blocks; auto: whichever of a few values brings "
            "the learner closest to the batch model.",
        ),
    ] = "auto"
    features: Annotated[
        str,
        method_option(
            "auto|none|NUMBER",
            "Number of Nyström features (a linear kernel's own are exact); none: the whole kernel "
            "matrix; auto: none if that fits in --max-memory and there are at most 12,000 rows, "
            "otherwise as many as take a minute or two.",
        ),
    ] = "auto"
    max_memory: Annotated[
        str,
        method_option(
            "auto|AMOUNT",
            "Memory the exact method may use, e.g. 4GB; auto: half of the free memory, at most "
            "4 GB.",
        ),
    ] = "auto"
    seed: Annotated[int, method_option("N", "Seed for everything random.", min=0)] = 0


def stream_command(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the shared options, which it takes as one `StreamOptions`, besides its own.

    Typer reads the options of a command from its signature, so the shared ones are written there.
    """
    shared = signature(StreamOptions).parameters
    of_command = signature(command).parameters

    @wraps(command)
    def called_by_typer(**typed: Any) -> None:
        asked = StreamOptions(**{name: typed.pop(name) for name in shared})
        command(asked, **typed)

    options = {**shared, **of_command}
    del options["asked"]
    _set_signature(called_by_typer, list(options.values()))
    return called_by_typer


def _set_signature(function: Callable[..., None], options: list[Parameter]) -> None:
    """Lets a function that takes anything say which options it has."""
    vars(function)["__signature__"] = Signature(options)
    function.__annotations__ = {option.name: option.annotation for option in options}
