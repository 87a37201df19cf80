"""The options that `retarget diagnose` and `retarget correct` share: columns, learner, method."""

from collections.abc import Callable
from functools import partial, wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from retarget.diagnosis.dialect import command_line


def option(panel: str, values: str | None, help_text: str, *names: str, **more: Any) -> Any:
    """Declares an option in a panel of the help, with a placeholder for its values."""
    return typer.Option(*names, metavar=values, help=help_text, rich_help_panel=panel, **more)


column_option = partial(option, "What the columns are")
learner_option = partial(option, "Your online learner")
method_option = partial(option, "How it is diagnosed")


def shared_options(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The stream: .csv, .tsv (also .gz), .parquet, .npz or .npy, rows in the order in "
            "which they were learned. If left out: the embedded digits, class by class.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str] | None, column_option("COL", "The column to learn; may be repeated.")
    ] = None,
    time: Annotated[
        str | None,
        column_option("COL", "Column to sort the rows by. It is not used as a feature."),
    ] = None,
    group: Annotated[
        str | None,
        column_option(
            "COL",
            "Task, user, device, class...: the report shows which group shifted whose "
            "targets. It is not used as a feature.",
        ),
    ] = None,
    group_as_feature: Annotated[
        bool, column_option(None, "Use the group as a feature as well.", "--group-as-feature")
    ] = False,
    column: Annotated[
        list[str] | None, column_option("COL", "Use only this feature; may be repeated.")
    ] = None,
    drop: Annotated[
        list[str] | None, column_option("COL", "Leave out a column; may be repeated.")
    ] = None,
    lags: Annotated[
        int,
        column_option(
            "N",
            "Use each target's N previous values as features: of earlier rows, by --time, within "
            "each --group.",
            min=0,
        ),
    ] = 0,
    kind: Annotated[
        str,
        column_option(
            "auto|regression|classification", "Whether the target is a number or a class."
        ),
    ] = "auto",
    impute: Annotated[
        str,
        column_option(
            "error|mean|median|zero",
            "What replaces missing numbers. Missing categories become the most frequent one; "
            "rows without a target are left out.",
        ),
    ] = "error",
    standardize: Annotated[
        bool,
        column_option(
            None,
            "Scale numbers to mean 0 and standard deviation 1, or leave them as they are.",
            "--standardize/--as-they-are",
        ),
    ] = True,
    allow_leak: Annotated[
        bool, column_option(None, "Accept a feature that gives the target away.", "--allow-leak")
    ] = False,
    predictions: Annotated[
        list[str] | None,
        column_option(
            "COL",
            "Logged predictions of your model for each row just before it learned it; repeat the "
            "option for several targets.",
        ),
    ] = None,
    predictions_after: Annotated[
        list[str] | None,
        column_option("COL", "Logged predictions of your model for each row, made at the end."),
    ] = None,
    model: Annotated[
        str | None,
        learner_option(
            "MODULE:FACTORY",
            "Your own model, which is run as well: a class or function of yours, or for example "
            "sklearn.linear_model:SGDRegressor. Anything with partial_fit or learn_one, or a "
            "torch module (with its optimizer and loss).",
        ),
    ] = None,
    model_options: Annotated[
        list[str] | None,
        learner_option("NAME=VALUE", "Argument for the class or function; may be repeated."),
    ] = None,
    kernel: Annotated[
        str,
        learner_option(
            "rbf|linear|MODULE:FACTORY",
            "Which rows the learner treats as similar. For a network of your own, name the "
            "function that makes it, as package.module:factory (its empirical NTK is used).",
        ),
    ] = "rbf",
    intercept: Annotated[
        bool,
        learner_option(
            None,
            "Add a constant feature to the linear kernel, as scikit-learn's linear models do.",
            "--intercept/--no-intercept",
        ),
    ] = False,
    width: Annotated[
        str,
        learner_option(
            "auto|NUMBER", "Width of the rbf kernel; auto: the median distance between rows."
        ),
    ] = "auto",
    lr: Annotated[
        str,
        learner_option(
            "auto|NUMBER",
            "Learning rate; auto: the stable rate with the smallest error on each row before "
            "it is learned.",
        ),
    ] = "auto",
    batch_size: Annotated[int, learner_option(None, "Rows in one step of the learner.", min=1)] = 1,
    momentum: Annotated[float, learner_option(None, "Momentum, as in torch.optim.SGD.")] = 0.0,
    nesterov: Annotated[
        bool, learner_option(None, "Nesterov momentum, as in torch.optim.SGD.", "--nesterov")
    ] = False,
    weight_decay: Annotated[
        float, learner_option(None, "Weight decay, as in torch.optim.SGD.")
    ] = 0.0,
    reduction: Annotated[
        str,
        learner_option(
            "sum|mean",
            "Whether your loss is the sum or the mean over a mini-batch (PyTorch's default: mean).",
        ),
    ] = "sum",
    gamma: Annotated[str, method_option("auto|NUMBER", "Ridge of the batch model.")] = "auto",
    block_size: Annotated[
        int | None, method_option(None, "Rows per block of the iterative correction.", min=1)
    ] = None,
    ridge: Annotated[
        float | None, method_option(None, "Ridge of the iterative correction's blocks.", min=0)
    ] = None,
    mode: Annotated[
        str,
        method_option(
            "auto|exact|features",
            "exact: use the whole kernel matrix; features: use Nyström features, or the exact "
            "ones of a linear kernel; auto: exact if it fits in memory.",
        ),
    ] = "auto",
    features: Annotated[
        int | None, method_option(None, "Number of Nyström features.", min=1)
    ] = None,
    memory: Annotated[
        str | None, method_option("AMOUNT", "Memory the exact method may use, e.g. 4GB.")
    ] = None,
    seed: Annotated[int, method_option(None, "Seed for everything random.", min=0)] = 0,
) -> None:
    """Declares the options; `with_shared_options` passes them to a command."""


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds these options before a command's own; the command gets them as one dict by name."""
    shared = signature(shared_options).parameters
    own = list(signature(command).parameters.values())[1:]

    @wraps(command)
    def called(**given: Any) -> None:
        asked = {name: given.pop(name) for name in shared}
        with command_line():  # errors and advice name the options of the command
            command(asked, **given)

    called.__signature__ = Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*shared.values(), *own)}
    return called
