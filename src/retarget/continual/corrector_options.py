"""Which options of a `NetworkCorrector` go together."""

from typing import Any, Literal, get_args

from torch import Tensor

from retarget.arrays import as_positive
from retarget.errors import InvalidInputError
from retarget.kernels.feature_maps import as_count
from retarget.learners import SGD
from retarget.samples import Samples, form_of, leaves, shapes_of
from retarget.theory.iterative import FirstBlock, Parts, check_correction
from retarget.theory.losses import Loss

Refresh = Literal["never", "task", "epoch"]
Kind = Literal["iterative", "exact", "distilled"]


def check_options(
    learner: SGD,
    gamma: float,
    block_size: int,
    *,
    refresh: Refresh = "task",
    kind: Kind = "iterative",
    ridge: float = 0.0,
    parts: Parts = "both",
    first_block: FirstBlock = "corrected",
    loss: Loss = "squared",
) -> tuple[float, float]:
    """Refuses options of `NetworkCorrector` that have no meaning; returns gamma and ridge."""
    if refresh not in get_args(Refresh):
        raise InvalidInputError(f"refresh is {refresh!r}; expected one of {get_args(Refresh)}")
    if kind not in get_args(Kind):
        raise InvalidInputError(f"kind is {kind!r}; expected one of {get_args(Kind)}")
    if kind != "iterative" and (ridge, parts, first_block) != (0.0, "both", "corrected"):
        raise InvalidInputError(
            f"ridge, parts and first_block are options of kind='iterative', but kind is {kind!r}; "
            "leave them out"
        )
    if kind == "distilled" and loss != "squared":
        raise InvalidInputError(
            f"loss is {loss!r} with kind='distilled'; expected loss='squared', whose offline "
            "predictions are targets: those of cross-entropy are logits"
        )
    return check_correction(learner, gamma, block_size, ridge, parts, first_block, loss)


def check_loop_options(
    learner: SGD,
    memory: int | None,
    replay: int,
    damping: float,
    others: tuple[Any, ...],
    loss: Loss = "squared",
) -> None:
    """Refuses options of the closed loop that have no meaning.

    Args:
        learner: The optimiser of the loop.
        memory: None for the open loop.
        replay: Samples to store.
        damping: How much shorter than the whole way the steps are.
        others: refresh, kind, ridge, parts and first_block, which belong to the open loop.
        loss: The loss of the loop.
    """
    if memory is None:
        if replay:
            raise InvalidInputError(
                f"replay is {replay}, which needs memory=...: without it every sample is kept"
            )
        return
    as_count("memory", memory)
    as_positive("damping", damping)
    if replay != 0:
        as_count("replay", replay)
    if others != ("task", "iterative", 0.0, "both", "corrected"):
        raise InvalidInputError(
            "refresh, kind, ridge, parts and first_block are options of the open loop; leave them "
            "out with memory=..., where damping steadies the steps"
        )
    if loss != "squared":
        raise InvalidInputError(
            f"loss is {loss!r} with memory={memory}; expected loss='squared': the learner that leads "
            "solves least squares; leave memory out"
        )
    if learner.has_memory:
        raise InvalidInputError(
            "the closed loop is for plain SGD: what momentum or weight decay will still do to the "
            "network cannot be seen in its outputs; use momentum=0 and weight_decay=0, or leave "
            "memory out"
        )


def require_current(refresh: Refresh) -> None:
    """Refuses a kernel that is kept for good together with an optimiser that goes on."""
    if refresh == "never":
        raise InvalidInputError(
            "refresh is 'never', but a preconditioner is read from the optimiser whenever the "
            "kernel is computed; use refresh='task' or 'epoch'"
        )


def require_alike(samples: Samples, targets: Tensor, X: Samples, Y: Tensor) -> None:
    """Refuses a task that does not fit the first one."""
    if (form_of(samples), targets.shape[1]) != (form_of(X), Y.shape[1]):
        raise InvalidInputError(
            f"this task has {_in_words(samples, targets)}; the first one {_in_words(X, Y)}"
        )


def _in_words(samples: Samples, targets: Tensor) -> str:
    kinds = {(leaf.dtype, leaf.device) for leaf in leaves(samples)}
    types = " and ".join(sorted(f"{dtype}, on {device}" for dtype, device in kinds))
    return f"samples of shape {shapes_of(samples)}, {targets.shape[1]} targets, {types}"
