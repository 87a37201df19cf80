"""The options that `retarget diagnose` and `retarget correct` share: columns, learner, method."""

from collections.abc import Callable
from functools import partial, wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

column_option = partial(typer.Option, rich_help_panel="What the columns are")
learner_option = partial(typer.Option, rich_help_panel="Your online learner")
method_option = partial(typer.Option, rich_help_panel="How it is diagnosed")


def shared_options(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The stream: .csv, .tsv (also .gz), .parquet, .npz or .npy, rows in the order in "
            "which they were learned. Without it: the embedded digits, class by class.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        column_option(metavar="COL", help="The column to learn; repeat it for several."),
    ] = None,
    time: Annotated[
        str | None,
        column_option(
            metavar="COL", help="Column that orders the rows. It is not used as a feature."
        ),
    ] = None,
    group: Annotated[
        str | None,
        column_option(
            metavar="COL",
            help="Task, user, device, class...: the report shows which group shifted whose "
            "targets. It is not used as a feature.",
        ),
    ] = None,
    group_as_feature: Annotated[
        bool, column_option("--group-as-feature", help="Use the group as a feature as well.")
    ] = False,
    column: Annotated[
        list[str] | None,
        column_option(metavar="COL", help="Use only this feature; repeat it for several."),
    ] = None,
    drop: Annotated[
        list[str] | None,
        column_option(metavar="COL", help="Leave a column out; repeat it for several."),
    ] = None,
    kind: Annotated[
        str,
        column_option(
            metavar="auto|regression|classification",
            help="Whether the target is a number or a class.",
        ),
    ] = "auto",
    impute: Annotated[
        str,
        column_option(
            metavar="error|mean|median|zero",
            help="What replaces missing numbers. Missing categories become the most frequent one; "
            "rows without a target are left out.",
        ),
    ] = "error",
    standardise: Annotated[
        bool,
        column_option(
            "--standardise/--as-they-are",
            help="Scale numbers to mean 0 and standard deviation 1, or leave them as they are.",
        ),
    ] = True,
    allow_leak: Annotated[
        bool, column_option("--allow-leak", help="Accept a feature that gives the target away.")
    ] = False,
    predictions: Annotated[
        list[str] | None,
        column_option(
            metavar="COL",
            help="What your model said of each row just before it learned it, where that was "
            "logged; repeat it for several targets.",
        ),
    ] = None,
    predictions_after: Annotated[
        list[str] | None,
        column_option(metavar="COL", help="What your model says of each row at the end."),
    ] = None,
    model: Annotated[
        str | None,
        learner_option(
            metavar="MODULE:FACTORY",
            help="Your own model, to be run for real: a class or function of yours, or for example "
            "sklearn.linear_model:SGDRegressor. Anything with partial_fit or learn_one, or a "
            "torch module (with its optimiser and loss).",
        ),
    ] = None,
    model_options: Annotated[
        list[str] | None,
        learner_option(
            metavar="NAME=VALUE", help="Argument for the model's factory; may be given repeatedly."
        ),
    ] = None,
    kernel: Annotated[
        str,
        learner_option(
            metavar="rbf|linear|MODULE:FACTORY",
            help="Which rows the learner treats as similar. For a network of your own, name the "
            "function that makes it, as package.module:factory (its empirical NTK is used).",
        ),
    ] = "rbf",
    intercept: Annotated[
        bool,
        learner_option(
            "--intercept/--no-intercept",
            help="Give the linear kernel a constant feature, as scikit-learn's linear models have.",
        ),
    ] = False,
    width: Annotated[
        str,
        learner_option(
            metavar="auto|NUMBER",
            help="Width of the rbf kernel; auto: the median distance between rows.",
        ),
    ] = "auto",
    lr: Annotated[
        str,
        learner_option(
            metavar="auto|NUMBER",
            help="Learning rate; auto: the stable rate with the smallest error on rows before "
            "they are learned.",
        ),
    ] = "auto",
    batch_size: Annotated[int, learner_option(min=1, help="Rows in one step of the learner.")] = 1,
    momentum: Annotated[float, learner_option(help="Momentum, as in torch.optim.SGD.")] = 0.0,
    nesterov: Annotated[
        bool, learner_option("--nesterov", help="Nesterov momentum, as in torch.optim.SGD.")
    ] = False,
    weight_decay: Annotated[
        float, learner_option(help="Weight decay, as in torch.optim.SGD.")
    ] = 0.0,
    reduction: Annotated[
        str,
        learner_option(
            metavar="sum|mean",
            help="Whether your loss is the sum or the mean over a mini-batch "
            "(PyTorch's default: mean).",
        ),
    ] = "sum",
    gamma: Annotated[
        str, method_option(metavar="auto|NUMBER", help="Ridge of the offline learner.")
    ] = "auto",
    block_size: Annotated[
        int | None, method_option(min=1, help="Rows per block of the iterative correction.")
    ] = None,
    ridge: Annotated[
        float | None, method_option(min=0, help="Ridge of the iterative correction's blocks.")
    ] = None,
    mode: Annotated[
        str,
        method_option(
            metavar="auto|exact|features",
            help="exact: use the whole kernel matrix; features: use Nyström features, or the exact "
            "ones of a linear kernel; auto: exact if it fits in memory.",
        ),
    ] = "auto",
    features: Annotated[
        int | None, method_option(min=1, help="Number of Nyström features.")
    ] = None,
    memory: Annotated[
        str | None,
        method_option(metavar="AMOUNT", help="Memory the exact method may use, e.g. 4GB."),
    ] = None,
    seed: Annotated[int, method_option(min=0, help="Seed for everything random.")] = 0,
) -> None:
    """Declares the options; `with_shared_options` passes them to a command."""


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options before its own: it is called with them, by name, as a dict."""
    shared = signature(shared_options).parameters
    own = list(signature(command).parameters.values())[1:]

    @wraps(command)
    def called(**given: Any) -> None:
        asked = {name: given.pop(name) for name in shared}
        command(asked, **given)

    called.__signature__ = Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*shared.values(), *own)}
    return called
