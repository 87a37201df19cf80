"""The options that `retarget diagnose` and `retarget correct` share."""

from pathlib import Path
from typing import Annotated, Any

import typer

COLUMNS, LEARNER, METHOD = "What the columns are", "Your online learner", "How it is diagnosed"

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The stream: .csv, .tsv (also .gz), .parquet, .npz or .npy, rows in the order in "
        "which they were learned. Without it: the embedded digits, class by class.",
        show_default=False,
    ),
]


def _option(panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **more)


Target = Annotated[
    list[str] | None,
    _option(COLUMNS, "--target", metavar="COL", help="The column to learn; repeat it for several."),
]
Time = Annotated[
    str | None, _option(COLUMNS, "--time", metavar="COL", help="Orders the rows; no feature.")
]
Group = Annotated[
    str | None,
    _option(
        COLUMNS,
        "--group",
        metavar="COL",
        help="Task, user, device, class...: who shifted whose targets. No feature.",
    ),
]
GroupAsFeature = Annotated[
    bool, _option(COLUMNS, "--group-as-feature", help="Make the group a feature as well.")
]
Column = Annotated[
    list[str] | None,
    _option(
        COLUMNS, "--column", metavar="COL", help="Use only this feature; repeat it for several."
    ),
]
Drop = Annotated[
    list[str] | None,
    _option(COLUMNS, "--drop", metavar="COL", help="Leave a column out; repeat it for several."),
]
Kind = Annotated[
    str,
    _option(
        COLUMNS,
        "--kind",
        metavar="auto|regression|classification",
        help="Is the target a number or a class?",
    ),
]
Impute = Annotated[
    str,
    _option(
        COLUMNS,
        "--impute",
        metavar="error|mean|median|zero",
        help="What missing numbers are replaced by. (Missing categories: the most frequent. "
        "Rows without a target are left out.)",
    ),
]
Standardise = Annotated[
    bool,
    _option(
        COLUMNS,
        "--standardise/--as-they-are",
        help="Bring numbers to mean 0 and standard deviation 1, or leave them.",
    ),
]
AllowLeak = Annotated[
    bool, _option(COLUMNS, "--allow-leak", help="Accept a feature that gives the target away.")
]
Lr = Annotated[
    str,
    _option(
        LEARNER,
        "--lr",
        metavar="auto|NUMBER",
        help="Learning rate; auto: the best stable one, by the error before learning.",
    ),
]
BatchSize = Annotated[
    int, _option(LEARNER, "--batch-size", min=1, help="Rows in one step of the learner.")
]
Momentum = Annotated[float, _option(LEARNER, "--momentum", help="Momentum, as in torch.optim.SGD.")]
Nesterov = Annotated[
    bool, _option(LEARNER, "--nesterov", help="Nesterov momentum, as in torch.optim.SGD.")
]
WeightDecay = Annotated[
    float, _option(LEARNER, "--weight-decay", help="Weight decay, as in torch.optim.SGD.")
]
Reduction = Annotated[
    str,
    _option(
        LEARNER,
        "--reduction",
        metavar="sum|mean",
        help="Whether your loss is the sum or the mean over a mini-batch "
        "(PyTorch's default: mean).",
    ),
]
Kernel = Annotated[
    str,
    _option(
        LEARNER,
        "--kernel",
        metavar="rbf|linear|MODULE:FACTORY",
        help="What the learner takes as similar. For a network of yours: the function that makes "
        "it, as package.module:factory (its empirical NTK).",
    ),
]
Width = Annotated[
    str,
    _option(
        LEARNER,
        "--width",
        metavar="auto|NUMBER",
        help="Width of the rbf kernel; auto: the median distance between rows.",
    ),
]
Test = Annotated[
    Path | None,
    _option(METHOD, "--test", metavar="FILE", help="Rows to measure errors on, same columns."),
]
Evaluation = Annotated[
    str | None,
    _option(
        METHOD,
        "--evaluation",
        metavar="last|progressive",
        help="Measure errors on the last part of the stream, or on each row before it is learned.",
        show_default="last",
    ),
]
TestShare = Annotated[
    float, _option(METHOD, "--test-share", help="Share of the rows held out at the end.")
]
Gamma = Annotated[
    str,
    _option(METHOD, "--gamma", metavar="auto|NUMBER", help="Ridge of the offline learner."),
]
BlockSize = Annotated[
    int | None,
    _option(METHOD, "--block-size", min=1, help="Rows corrected together, iteratively."),
]
Ridge = Annotated[
    float | None,
    _option(METHOD, "--ridge", min=0, help="Ridge of the iterative correction's blocks."),
]
Mode = Annotated[
    str,
    _option(
        METHOD,
        "--mode",
        metavar="auto|exact|features",
        help="With the whole kernel matrix, or through features: Nyström features, or the exact "
        "ones of a linear kernel; auto: by the memory.",
    ),
]
Features = Annotated[
    int | None, _option(METHOD, "--features", min=1, help="Number of Nyström features.")
]
Memory = Annotated[
    str | None,
    _option(
        METHOD, "--memory", metavar="AMOUNT", help="Memory the exact method may use, e.g. 4GB."
    ),
]
Seed = Annotated[int, _option(METHOD, "--seed", min=0, help="Seed for everything random.")]
