"""The description of an online learner, and the labels and colors of learners."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np

from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.scalars import as_count, as_number

if TYPE_CHECKING:  # torch is slow to import, and a description does not need it
    import torch

Reduction = Literal["sum", "mean"]
NOT_SAID = cast("Reduction", None)  # a reduction, which is needed only for mini-batches
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop")  # those of torch that a learner describes
LOOP = ("lr", "batch_size", "reduction")  # the work of a training loop, and not of its optimizer
NO_CLIPPING = 1e9  # river clips no gradient that occurs at such a threshold; its default is 1e12
MOST_SAMPLES = 2**53  # whole numbers beyond this are neither exact in floating point nor a batch


@dataclass(frozen=True)
class SGD:
    r"""One pass of `torch.optim.SGD` over a stream, on the loss $\tfrac12\|y - f(x)\|^2$.

    Pass it to every function that asks for an online learner. It has the options of
    `torch.optim.SGD` under the same names, plus the batch size and the reduction of the loss. It
    only describes a learner: creating one trains nothing and costs nothing.

    Args:
        lr: The learning rate $\eta$, or a schedule: a sequence with one rate per step.
        batch_size: Samples per step. A last, smaller mini-batch is a step of its own.
        momentum: Heavy-ball momentum $\mu$, as in PyTorch (no dampening).
        nesterov: Nesterov's form of the momentum, as in PyTorch.
        weight_decay: $\lambda$ of the term $\tfrac\lambda2\|w\|^2$ added to the loss of each step.
        reduction: Whether the loss is the `"sum"` over a mini-batch, as in the theory, or the
            `"mean"`, PyTorch's default, which divides the rate by the mini-batch's size. There is
            no default if `batch_size` is above 1; for single samples both are the same.

    Examples:
        >>> SGD(lr=0.1, batch_size=4, reduction="mean").steps(10)
        3
        >>> SGD(lr=[0.3, 0.2, 0.1], batch_size=4, reduction="sum").rates(10)
        array([0.3, 0.2, 0.1])
    """

    lr: float | Sequence[float]
    batch_size: int = 1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    reduction: Reduction = NOT_SAID

    def __post_init__(self) -> None:
        # the class is frozen: this is how checked values are set
        object.__setattr__(self, "lr", _positive_rates(self.lr))
        object.__setattr__(self, "batch_size", as_count("batch_size", self.batch_size))
        if self.batch_size > MOST_SAMPLES:
            raise InvalidInputError(
                f"batch_size is {self.batch_size}; expected 1 or more, and at most {MOST_SAMPLES}"
            )
        object.__setattr__(self, "momentum", as_number("momentum", self.momentum))
        object.__setattr__(self, "weight_decay", as_number("weight_decay", self.weight_decay))
        if not 0 <= self.momentum < 1:
            raise InvalidInputError(f"momentum is {self.momentum}; expected 0 <= momentum < 1")
        if not 0 <= self.weight_decay < math.inf:
            raise InvalidInputError(f"weight_decay is {self.weight_decay}; expected 0 or more")
        if not isinstance(self.nesterov, bool | np.bool_):
            raise InvalidTypeError(f"nesterov is {self.nesterov!r}; expected True or False")
        object.__setattr__(self, "nesterov", bool(self.nesterov))
        if self.nesterov and self.momentum == 0:
            raise InvalidInputError("nesterov=True needs a momentum above 0, as in torch.optim.SGD")
        if self.reduction is None:
            if self.batch_size > 1:
                raise InvalidInputError(
                    f"batch_size is {self.batch_size}, but reduction was not given; expected "
                    "reduction='mean' if the loss of a step is the mean over its mini-batch, as "
                    "PyTorch's losses are by default, or reduction='sum', as in the paper: the "
                    f"same lr then takes steps {self.batch_size} times as large"
                )
            object.__setattr__(self, "reduction", "sum")
        if self.reduction not in get_args(Reduction):
            raise InvalidInputError(f"reduction is {self.reduction!r}; expected 'sum' or 'mean'")

    @staticmethod
    def from_torch(optimizer: "torch.optim.SGD", batch_size: int, reduction: Reduction) -> "SGD":
        r"""Describes an existing `torch.optim.SGD` with its current options.

        Use it in a training loop that already has an optimizer, so that the two cannot disagree.
        An optimizer with momentum must be new, because the description cannot hold a velocity from
        earlier steps.

        Parameter groups may have different rates. The learner has the rate of the first group, and
        the others' ratios to it are a diagonal preconditioner of the kernel, which
        `rt.EmpiricalNTK(module, preconditioner=optimizer)` takes from the optimizer. Weight
        decays must then be in inverse proportion to the rates, so that all weights shrink alike.

        Args:
            optimizer: A `torch.optim.SGD`.
            batch_size: Samples per step of the loop.
            reduction: Whether the loop's loss is the `"sum"` or the `"mean"` over a mini-batch.

        Raises:
            InvalidTypeError: The optimizer is not a `torch.optim.SGD`.
            InvalidInputError: It has an option or a state that cannot be described exactly:
                `maximize`, `dampening` with a momentum, a rate that a scheduler changes, groups
                that differ in momentum or shrink differently, or a velocity from earlier steps.

        Examples:
            >>> import torch
            >>> weights = torch.zeros(3, requires_grad=True)
            >>> optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
            >>> SGD.from_torch(optimizer, batch_size=8, reduction="mean")
            SGD(lr=0.1, batch_size=8, momentum=0.9, nesterov=False, weight_decay=0.0,
                reduction='mean')
        """
        import torch

        if type(optimizer) is not torch.optim.SGD:
            raise InvalidTypeError(
                f"the optimizer is {type(optimizer).__name__} (of {type(optimizer).__module__}); "
                "expected torch.optim.SGD: for Adam, AdamW and RMSprop describe the rate with "
                "SGD(lr=...), and pass the optimizer to EmpiricalNTK(module, "
                "preconditioner=optimizer)"
            )
        if any("initial_lr" in group for group in optimizer.param_groups):
            raise InvalidInputError(
                "a scheduler changes the rate of the optimizer; describe the learner as "
                "SGD(lr=[...], ...), with one rate per step"
            )
        velocities = (state.get("momentum_buffer") for state in optimizer.state.values())
        if any(velocity is not None and bool(velocity.any()) for velocity in velocities):
            raise InvalidInputError(
                "the optimizer has a velocity from earlier steps; expected a new optimizer, or one "
                "without momentum"
            )
        return described_optimizer(optimizer, batch_size, reduction)[0]

    def to_torch(
        self, parameters: "Iterable[torch.Tensor]", first_step: int = 0
    ) -> "torch.optim.SGD":
        """Returns a new `torch.optim.SGD` that takes this learner's steps.

        Use it in a training loop that begins with a description, as `from_torch` is for a loop that
        has an optimizer. The batches and the reduction of the loss remain the loop's own work. With
        a schedule it has the rate of the step at which it begins; set
        `group["lr"] = learner.rate(step)` before each later one.

        Args:
            parameters: What to train, for example `network.parameters()`.
            first_step: The step of the schedule at which it begins.

        Examples:
            >>> import torch
            >>> learner = SGD(lr=0.1, momentum=0.9)
            >>> optimizer = learner.to_torch([torch.zeros(3, requires_grad=True)])
            >>> SGD.from_torch(optimizer, batch_size=1, reduction="sum") == learner
            True
        """
        import torch

        options = {name: value for name, value in self.to_dict().items() if name not in LOOP}
        changed = {name: value for name, value in options.items() if value != getattr(SGD, name)}
        for name, value in changed.items():
            if name not in signature(torch.optim.SGD).parameters:
                raise InvalidInputError(
                    f"{name} is {value}, an option that torch.optim.SGD does not have; expected "
                    "its default, or take the steps in a loop of your own"
                )
        return torch.optim.SGD(parameters, lr=self.rate(first_step), **changed)

    def steps(self, n: int) -> int:
        """Number of steps taken on `n` samples."""
        return -(-n // self.batch_size)

    def rates(self, n: int, epochs: int = 1) -> np.ndarray:
        """The rate of each step over `n` samples; a schedule must fit all epochs exactly."""
        steps = epochs * self.steps(n)
        if isinstance(self.lr, float):
            return np.full(steps, self.lr)
        if len(self.lr) != steps:
            passes = "" if epochs == 1 else f", {epochs} times over,"
            raise InvalidInputError(
                f"the lr schedule has {len(self.lr)} rates, but {n} samples in mini-batches of "
                f"{self.batch_size}{passes} make {steps} steps; give one rate per step"
            )
        return np.array(self.lr)

    def rate(self, step: int) -> float:
        """The rate of one step, counted from 0."""
        if isinstance(self.lr, float):
            return self.lr
        if step >= len(self.lr):
            raise InvalidInputError(
                f"the lr schedule ends after {len(self.lr)} steps, but the stream reaches step "
                f"{step + 1}; give a longer schedule"
            )
        return self.lr[step]

    def to_dict(self) -> dict[str, Any]:
        """Returns the description as plain JSON values; `SGD(**values)` restores it."""
        return asdict(self)


def require_learner(learner: Any) -> None:
    """Rejects what does not describe an online learner, such as an optimizer of torch."""
    if not isinstance(learner, SGD):
        kind = type(learner)
        package = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        raise InvalidTypeError(
            f"learner is a {package}{kind.__name__}; expected rt.SGD(...), which describes your "
            "training loop; for a torch.optim.SGD, rt.SGD.from_torch(optimizer, batch_size, "
            "reduction) makes it"
        )


def described_optimizer(optimizer: Any, batch_size: int, reduction: Reduction) -> tuple[SGD, bool]:
    """Describes a torch optimizer by its settings, whatever steps it has taken before.

    The learner has the rate and the weight decay of the first group, and SGD's momentum; a schedule
    is described by the rate from which it starts. Groups without parameters do not count.

    Returns:
        The learner; and whether its kernel needs the optimizer as a preconditioner, as it does for
        Adam, AdamW, RMSprop, and groups with different rates.
    """
    from torch import optim

    if type(optimizer) not in [getattr(optim, name) for name in OPTIMIZERS]:
        raise InvalidTypeError(
            f"the optimizer is {type(optimizer).__name__}; expected torch's "
            f"{', '.join(OPTIMIZERS[:-1])} or {OPTIMIZERS[-1]}"
        )
    groups = dict(enumerate(optimizer.param_groups))
    groups = {number: group for number, group in groups.items() if group["params"]} or groups
    rates = {n: float(group.get("initial_lr", group["lr"])) for n, group in groups.items()}
    plain = type(optimizer) is optim.SGD
    start, first = next(iter(groups.items()))
    require_one_law(groups, rates)
    for number, group in groups.items():
        where = f"in parameter group {number}"
        if plain and group["momentum"] != 0 and group["dampening"] != 0:
            raise InvalidInputError(
                f"{where} dampening is {group['dampening']}, which torch leaves out of the first "
                "step, so that no single rate describes it; expected dampening=0"
            )
        for name in ("momentum", "nesterov") if plain else ():
            if group[name] != first[name]:
                raise InvalidInputError(
                    f"{where} {name} is {group[name]}, but {first[name]} in group {start}; "
                    "expected the same in all groups"
                )
    learner = SGD(
        rates[start],
        batch_size,
        momentum=float(first["momentum"]) if plain else 0.0,
        nesterov=plain and bool(first["nesterov"]),
        weight_decay=float(first["weight_decay"]),
        reduction=reduction,
    )
    return learner, not plain or len(set(rates.values())) > 1


def require_one_law(groups: Mapping[int, Mapping[str, Any]], rates: Mapping[int, float]) -> None:
    """Rejects a torch optimizer's groups if they are not one learner, but for their rates.

    Args:
        groups: The groups, by number.
        rates: The rate of each.
    """
    start = min(groups)
    for number, group in groups.items():
        where = f"in parameter group {number}"
        if group.get("maximize"):
            raise InvalidInputError(
                f"{where} maximize is set; expected an optimizer that minimizes the loss"
            )
        shrinks = [rates[n] * float(groups[n]["weight_decay"]) for n in (start, number)]
        if not math.isclose(*shrinks, rel_tol=1e-12):
            raise InvalidInputError(
                f"{where} lr * weight_decay is {shrinks[1]:g}, but {shrinks[0]:g} in group "
                f"{start}; expected the same, as all weights must shrink alike"
            )


class RiverSteps(NamedTuple):
    """The steps of river's LinearRegression, as those of a learner on the linear kernel.

    Attributes:
        learner: Its rate is twice river's, whose squared loss is not halved. Its weight decay also
            shrinks the intercept, which river's `l2` does not.
        constant: The size of a constant feature, of which the intercept is the weight; 0 if the
            model has none. The ratio of the two rates is the square of it.
        intercept: What the intercept starts from.
    """

    learner: SGD
    constant: float
    intercept: float


def described_river(model: Any) -> RiverSteps:
    """Describes a `linear_model.LinearRegression` of river, whatever it has learned before.

    Raises:
        InvalidTypeError: The model is another one.
        InvalidInputError: It has an option that cannot be described; the message says which.
    """
    kind = type(model)
    if kind.__name__ != "LinearRegression" or not kind.__module__.startswith("river."):
        raise InvalidTypeError(f"the model is {a_type(model)}")
    parts = model.optimizer, model.loss, model.initializer
    optimizer, loss, initializer = (type(each).__name__ for each in parts)
    schedules = model.optimizer.lr, model.intercept_lr
    steady = all(type(schedule).__name__ == "Constant" for schedule in schedules)
    reasons = {
        f"its optimizer is {optimizer}": optimizer != "SGD",
        f"its loss is {loss}": loss != "Squared",
        "a rate changes with time": not steady,
        f"its weights start from {initializer}": initializer != "Zeros",
        "it has an l1 penalty": model.l1 != 0,
        f"it clips gradients at {model.clip_gradient:g}": model.clip_gradient < NO_CLIPPING,
    }
    wrong = [reason for reason, holds in reasons.items() if holds]
    if wrong:
        raise InvalidInputError(", and ".join(wrong))
    rate, intercept_rate = (float(schedule.learning_rate) for schedule in schedules)
    # SGD(2 rate, decay) shrinks weights by 2 rate decay in each step, river by rate l2
    learner = SGD(2 * rate, weight_decay=model.l2 / 2)
    return RiverSteps(learner, math.sqrt(intercept_rate / rate), float(model.intercept_init))


def _positive_rates(lr: Any) -> float | tuple[float, ...]:
    try:
        schedule = np.ndim(lr) > 0
    except ValueError as error:  # lists of different lengths
        raise InvalidTypeError(f"lr is {lr!r}; expected a number, or one per step") from error
    rates = tuple(as_number("lr", rate) for rate in (lr if schedule else (lr,)))
    if not rates:
        raise InvalidInputError("the lr schedule is empty; give one rate per step")
    for step, rate in enumerate(rates):
        if not 0 < rate < math.inf:
            where = f"lr at step {step}" if schedule else "lr"
            raise InvalidInputError(f"{where} is {rate}; expected a positive, finite rate")
    return rates if schedule else rates[0]


LABELS = {
    "offline": "offline",
    "online": "online",
    "corrected": "online, exactly corrected",
    "iterative": "online, iteratively corrected",
}
# Okabe and Ito's colors, distinguishable with any color vision (jfly.uni-koeln.de/color).
COLORS = {
    "truth": "#999999",
    "offline": "#0072B2",
    "online": "#E69F00",
    "corrected": "#009E73",
    "iterative": "#D55E00",
    "one step": "#CC79A7",
}
