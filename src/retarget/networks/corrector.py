"""Corrected targets for a network, task by task, for your own training loop."""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retarget.arrays import as_targets, require_finite, require_no_overflow
from retarget.engine.followers import Parts
from retarget.engine.losses import Loss
from retarget.engine.response import fades_start
from retarget.engine.stability import FAR_OUTSIDE
from retarget.engine.stream import FirstBlock
from retarget.errors import InvalidInputError, LargeTargetsWarning, a_type, warn_caller
from retarget.kernels import EmpiricalNTK
from retarget.kernels.base import Kernel
from retarget.kernels.empirical.parameters import (
    ParameterChoice,
    Preconditioner,
    trained_parameters,
)
from retarget.labels import ClassNames, as_classes
from retarget.learners import SGD, require_learner
from retarget.networks.base import Corrector, block_of, without_rows
from retarget.networks.linearization import decaying_part, linear_outputs, outputs, tangent_kernel
from retarget.networks.trials import (
    Rehearsal,
    Trial,
    checked_trials,
    no_correction_in_words,
)
from retarget.samples import Samples, copied, count, join, leaves, mapped, named_leaves, take
from retarget.scalars import as_count
from retarget.settings import in_plain_torch
from retarget.state_files import part_of, require_shape
from retarget.text import as_seed
from retarget.theory.iterative import check_correction, distilled_targets, iterative_targets

LOGGER = logging.getLogger("retarget")
__all__ = ["CorrectionOptions", "Kind", "NetworkCorrector", "Refresh"]

Refresh = Literal["never", "task", "epoch"]
Kind = Literal["iterative", "distilled"]


@dataclass(frozen=True)
class CorrectionOptions:
    """The options of a `NetworkCorrector`; see there for what they mean."""

    gamma: float | Literal["auto"] = "auto"
    block_size: int | Literal["auto"] = "auto"
    refresh: Refresh = "task"
    kind: Kind = "iterative"
    ridge: float = 0.0
    parts: Parts = "both"
    first_block: FirstBlock = "corrected"
    loss: Loss = "squared"
    classes: ClassNames = None
    seed: int = 0

    def checked(self, learner: SGD) -> Self:
        """Returns the options as plain numbers; raises if they do not make sense together."""
        for name, kinds in (("refresh", get_args(Refresh)), ("kind", get_args(Kind))):
            if (given := getattr(self, name)) not in kinds:
                raise InvalidInputError(f"{name} is {given!r}; expected one of {kinds}")
        require_learner(learner)
        kind = self.kind
        automatic = self.gamma == "auto"
        iterative = self.ridge, self.parts, self.first_block
        block_size = block_of(self.block_size, learner)
        gamma = 1.0 if automatic else cast(float, self.gamma)
        gamma, ridge = check_correction(learner, gamma, block_size, *iterative, self.loss)
        if automatic and kind != "iterative":
            raise InvalidInputError(
                f"gamma is 'auto' with kind={kind!r}; only kind='iterative' is tried on held-out "
                "rows: give gamma as a number, or leave kind out"
            )
        if automatic and self.ridge != 0:
            raise InvalidInputError(
                f"ridge is {self.ridge} with gamma='auto', which chooses both together; leave "
                "ridge out, or give gamma as a number"
            )
        if kind != "iterative" and iterative != (0.0, "both", "corrected"):
            raise InvalidInputError(
                "ridge, parts and first_block are options of kind='iterative', but kind is "
                f"{kind!r}; leave them out"
            )
        if kind == "distilled" and self.loss != "squared":
            raise InvalidInputError(
                f"loss is {self.loss!r} with kind='distilled'; use loss='squared', because with "
                "cross-entropy the offline predictions are logits and not targets"
            )
        return replace(
            self,
            gamma="auto" if automatic else gamma,
            block_size=int(block_size),
            ridge=ridge,
            classes=as_classes(self.classes),
            seed=as_seed("seed", self.seed),
        )


class NetworkCorrector(Corrector):
    r"""Computes corrected targets to train a network on, task by task, instead of the true ones.

    Use it in your own PyTorch training loop to replace the labels by targets before each task;
    `lab.Corrected` does the same inside `lab.train`. The network is treated as a kernel
    machine that started from zero, with its tangent kernel at the beginning of a task; the stream
    is all samples so far. They are kept: memory grows with the stream, and the kernel with its
    square. Training is assumed to use full mini-batches, so the batch size should divide the tasks.
    The block size should divide them too if earlier tasks should not influence the first block of a
    later one. Samples that the network does not respond to (all units of a layer are silent) do not
    influence the targets of others. `ClosedLoopCorrector` keeps no samples.

    Corrected targets are exact for the kernel; a network follows them only while its kernel hardly
    changes. Without momentum, each call compares the last block's outputs with where they should
    be. If they are further off than the distance that they should have moved, it issues a
    `LinearizationWarning`, once.

    Args:
        module: The network, with outputs (n, c). It is never changed.
        learner: Describes the optimizer of your loop. Its `reduction` matters: the mean over a
            mini-batch is like a rate divided by the batch size.
        gamma: Ridge of the offline learner that the targets lead to. `"auto"` chooses it and
            `ridge` again in each task, or no correction: a tenth of the rows is held out, copies of
            the network are trained on the true targets and on four corrections, and the best on
            the held-out rows of all tasks so far is chosen, if it is clearly better than the true
            targets (by two standard errors). `trials` shows what was tried; if nothing is
            corrected, the logger `retarget` says so. It costs five passes over the task and four
            more corrections. The copies have no velocity at first.
        block_size: Samples corrected together, a multiple of the batch size; `"auto"` for the
            multiple nearest to 20.
        refresh: When the kernel is recomputed: `"task"`, with every `correct`; `"epoch"`, with
            every `recorrect` too; `"never"` always uses the network as it is at construction.
        kind: `"iterative"` (Proposition 4.2), or `"distilled"`: the offline predictions
            themselves, uncorrected.
        ridge: Ridge of a block, for the iterative kind; see `iterative_targets`.
        parts: Both halves of the iterative correction, or one.
        first_block: Whether the iterative kind corrects the first block too.
        kernel: A function that makes the kernel from the module, and from `params=` and
            `preconditioner=` if these are given.
        params: Which parameters the loop trains: a name, the name of a layer, a pattern such as
            `"*.lora_*"`, several of these, or a function of a name; None for all trainable ones
            (`requires_grad`).
        preconditioner: The optimizer of the loop, if it is Adam, AdamW or RMSprop, or SGD with
            several rates: the kernel is $J P J^\top$ with its P at each call, as in `EmpiricalNTK`.
            It must have taken a step. `learner` then has its rate (that of the first group), and
            AdamW's `weight_decay`. This would be exact for one output and a constant P; it is
            approximate here, as each step changes P a little, and the kernel is the mean over
            outputs whose P differ. $\beta_1$ is ignored if the learner has no momentum. Expect
            little with Adam: its steps hardly grow with the errors.
        loss: The loss of the loop: half the squared error, or cross-entropy (softmax; logistic for
            one output), whose true targets are one-hot rows or probabilities. The corrected ones
            are real numbers, which `torch.nn.functional.cross_entropy` accepts. Cross-entropy
            cannot be used with `kind="distilled"`.
        classes: The label that each output stands for, if labels are text or not the numbers from
            0 on.
        seed: Seed of the choice of held-out rows.

    Examples:
        >>> network = nn.Linear(2, 2, bias=False).double()
        >>> corrector = NetworkCorrector(network, SGD(0.1, 2, reduction="sum"), 1.0, block_size=2)
        >>> X, Y = torch.tensor([[1.0, 0], [0, 1]]).double(), torch.eye(2).double()
        >>> corrector.correct(X, Y).round(decimals=3)
        tensor([[5., 0.],
                [0., 5.]], dtype=torch.float64)
    """

    options: CorrectionOptions

    def __init__(
        self,
        module: nn.Module,
        learner: SGD,
        gamma: float | Literal["auto"] = "auto",
        block_size: int | Literal["auto"] = "auto",
        *,
        refresh: Refresh = "task",
        kind: Kind = "iterative",
        ridge: float = 0.0,
        parts: Parts = "both",
        first_block: FirstBlock = "corrected",
        kernel: Callable[..., Kernel] = EmpiricalNTK,
        params: ParameterChoice = None,
        preconditioner: Preconditioner = None,
        loss: Loss = "squared",
        classes: ClassNames = None,
        seed: int = 0,
    ) -> None:
        options = CorrectionOptions(
            gamma, block_size, refresh, kind, ridge, parts, first_block, loss, classes, seed
        ).checked(learner)
        frozen = refresh == "never"
        if frozen and preconditioner is not None:
            raise InvalidInputError(
                "refresh is 'never', but a preconditioner is read from the optimizer whenever "
                "the kernel is computed; use refresh='task' or 'epoch'"
            )
        kernel_module = copied(module) if frozen else module
        super().__init__(module, learner, options, kernel, params, preconditioner, kernel_module)
        self.refresh = refresh
        self.loss = loss
        self._rehearsal = self._rehearsed()
        self._trials: tuple[Trial, ...] = ()
        self._X: Samples = None  # of all tasks so far
        self._Y = torch.empty(0, device="cpu")
        self._sizes: list[int] = []  # of the tasks
        self._corrected = torch.empty(0, device="cpu")  # the targets of the last task
        self._warned_of_large_targets = False

    def _rehearsed(self) -> Rehearsal | None:
        """Returns what chooses the strength of the correction, if that is asked for."""
        if self.options.gamma != "auto":
            return None
        optimizer = getattr(self.kernel, "preconditioner", None)  # `load` has it only there
        if not (optimizer is None or isinstance(optimizer, Optimizer)):
            raise InvalidInputError(
                f"the preconditioner is {a_type(optimizer)} with gamma='auto', which "
                "trains copies of the network; give the optimizer itself, or gamma as a number"
            )
        names = list(trained_parameters(self.module, self.params))
        return Rehearsal(self.module, names, optimizer, self.options)

    @in_plain_torch
    def correct(self, X: Any, Y: Any) -> Any:
        """Returns targets for the samples of the next task, given in the order of training.

        A task whose correction fails is not counted as seen.

        Args:
            X: (n, ...) samples, as the network takes them: an array, or a dict or tuple of several
                (token ids and a mask), as in `EmpiricalNTK`.
            Y: (n, c) true targets; or class labels (n,): whole numbers, or text with `classes`.

        Returns:
            Targets with the shape, library and dtype of Y. For labels they are rows (n, c) in the
            network's dtype, in the library of X.
        """
        with self._all_or_nothing() as after:
            return after._correct(X, Y)

    def _correct(self, X: Any, Y: Any) -> Any:
        samples, targets = self._checked(X, Y)
        if self._watch is not None:
            self._watch.compare(self._kernel_module)
        # copied, because a caller may reuse its arrays for the next task
        every = join([self._X, samples]) if self.samples else mapped(torch.clone, samples)
        true = torch.cat([self._Y, targets]) if self.samples else targets.clone()
        tasks = every, true, [*self._sizes, len(targets)]
        K = tangent_kernel(self.kernel, every)
        self._trials = self._tried(K, *tasks)
        self._corrected = self._computed(K, *tasks, targets.dtype)
        self._say_if_uncorrected()
        self._X, self._Y, self._sizes = tasks
        return self._handed_back(self._corrected, samples, targets, X, Y)

    @in_plain_torch
    def recorrect(self) -> Any:
        """Returns new targets for the same task, before another epoch."""
        with self._all_or_nothing() as after:
            return after._recorrect()

    def _recorrect(self) -> Any:
        if self._watch is not None:
            self._watch.compare(self._kernel_module)
            self._watch.samples = None  # the theory makes no prediction for a second pass
        if not self.samples:
            raise InvalidInputError("there is no task to correct again; call correct first")
        if self.refresh == "epoch":
            tasks = self._X, self._Y, self._sizes
            K = tangent_kernel(self.kernel, self._X)
            tried_before = bool(self._trials)
            self._trials = self._trials or self._tried(K, *tasks)
            self._corrected = self._computed(K, *tasks, self._corrected.dtype)
            if not tried_before:
                self._say_if_uncorrected()
        return self._in_given_form(self._corrected)

    @in_plain_torch
    def resume(
        self,
        tasks: Sequence[tuple[Samples, Tensor]],
        targets: Tensor,
        trials: Sequence[Sequence[Any]] = (),
    ) -> None:
        """Continues from another corrector's tasks and targets, without computing them again.

        Args:
            tasks: The samples and true targets of each task that it has corrected.
            targets: The targets that it returned for the last task.
            trials: Its `trials`, with `gamma="auto"`; without them `recorrect` chooses again.
        """
        if tasks:
            self._trials = checked_trials(trials, self._rehearsal is not None)
            self._X = join([samples for samples, _ in tasks])
            self._Y = torch.cat([true for _, true in tasks])
            self._corrected = targets.clone()
            self._sizes = [len(true) for _, true in tasks]
            self._first = without_rows(*tasks[0])

    def trust(self) -> None:
        """Stops warnings of large targets, and comparing the network with its linearization."""
        self._watch = None

    @property
    def samples(self) -> int:
        """Number of samples for which it has returned targets."""
        return len(self._Y)

    @property
    def nbytes(self) -> int:
        """Bytes kept for the stream."""
        return sum(tensor.nbytes for tensor in (*leaves(self._X), self._Y)) if self.samples else 0

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What `gamma="auto"` tried for the last task, no correction first; otherwise empty."""
        return self._trials

    def _tried(self, K: Tensor, X: Samples, Y: Tensor, sizes: list[int]) -> tuple[Trial, ...]:
        """Tries corrections for the last of the tasks, if one is to be chosen."""
        if self._rehearsal is None:
            return ()
        return self._rehearsal.trials(K, X, Y, self.learner, sizes)

    def _say_if_uncorrected(self) -> None:
        """Logs what was tried for a task, if no correction was chosen."""
        if self._rehearsal is None or not self._trials[0].chosen:
            return
        optimizer = self._rehearsal.optimizer
        adaptive = None
        if optimizer is not None and not isinstance(optimizer, torch.optim.SGD):
            adaptive = type(optimizer).__name__
        LOGGER.info(no_correction_in_words(self._trials, len(self._corrected), adaptive))

    def _computed(
        self, K: Tensor, X: Samples, Y: Tensor, sizes: list[int], dtype: torch.dtype
    ) -> Tensor:
        """Returns the targets of the last of the tasks, in this dtype, as the trials chose."""
        options = self.options
        learner = self.learner
        Y = Y.double()
        task = slice(len(Y) - sizes[-1], None)
        gamma = options.gamma
        ridge = options.ridge
        if self._trials:
            chosen = next(trial for trial in self._trials if trial.chosen)
            if chosen.gamma is None or chosen.ridge is None:
                if self._watch is not None:
                    self._watch.samples = None  # nothing to compare: the targets are the true ones
                return Y[task].to(dtype, copy=True)  # not a view of those that are kept
            gamma = chosen.gamma
            ridge = chosen.ridge
        gamma = float(gamma)
        if options.kind == "iterative":
            form = self.block_size, ridge, options.parts, options.first_block
            with warnings.catch_warnings():
                if self._trials:  # large targets that did well on held-out rows
                    warnings.simplefilter("ignore", LargeTargetsWarning)
                Z = iterative_targets(K, Y, learner, gamma, *form, loss=options.loss)
        else:
            Z = distilled_targets(K, Y, gamma, self.block_size)
        given: Tensor = Z[task].to(dtype)
        require_no_overflow(given)
        if options.loss == "squared" and not self._trials:
            self._warn_of_large_targets(Z[task], Y)
        self._expect(K[task, task], take(X, task), Z[task], sum(map(learner.steps, sizes[:-1])))
        return given

    def _warn_of_large_targets(self, Z: Tensor, Y: Tensor) -> None:
        """Warns, once, of targets far from all true ones; for cross-entropy the theory does."""
        largest = float(Z.abs().max())
        true = float(Y.abs().max())
        trusted = self._watch is None
        if trusted or self._warned_of_large_targets or largest <= (1 + FAR_OUTSIDE) * true:
            return
        self._warned_of_large_targets = True
        warn_caller(
            f"the corrected targets reach {largest:.3g} in size, but the true ones only {true:.3g};"
            " a network does not follow such long steps as its kernel does: let gamma='auto' choose"
            " gamma and ridge, or use larger ones",
            LargeTargetsWarning,
        )

    def _expect(self, K: Tensor, X: Samples, Z: Tensor, first_step: int) -> None:
        """Notes where the network's outputs should be after training on a task, at its end."""
        if self._watch is None or self.learner.momentum:  # outputs do not show a velocity
            return
        module = self._kernel_module
        before = outputs(self._kernel_module, X)
        decaying = None
        if fades_start(self.learner):
            decaying = decaying_part(module, X, trained_parameters(module, self.params))
        after = linear_outputs(K, before, Z, self.learner, first_step, self.loss, decaying)
        end = slice(-min(self.block_size, len(Z)), None)
        self._watch.expect(take(X, end), before[end], after[end])

    def _state(self) -> dict[str, Any]:
        network = self._kernel_module.state_dict() if self.refresh == "never" else {}
        kept = {f"network.{name}": value for name, value in network.items()}
        if not self.samples:
            return kept
        kept |= named_leaves("samples", self._X)
        kept |= {"targets": self._Y, "corrected": self._corrected, "sizes": self._sizes}
        return kept | {"trials": list(map(list, self._trials))}

    def _restore(self, state: dict[str, Any]) -> None:
        if self.refresh == "never":
            self._kernel_module.load_state_dict(part_of(state, "network"))
        samples = self._samples_of(state)
        if samples is None:
            return
        targets = as_targets("targets", state["targets"])
        self._X = samples
        self._Y = require_shape("targets", targets, count(samples), None)
        self._sizes = [as_count("sizes", size) for size in state["sizes"]]
        if sum(self._sizes) != self.samples:
            raise InvalidInputError(
                f"the tasks have {sum(self._sizes)} samples, but there are {self.samples} samples"
            )
        shape = self._sizes[-1], self._Y.shape[1]
        self._corrected = require_shape("corrected", state["corrected"], *shape)
        require_finite("corrected", self._corrected)
        self._trials = checked_trials(state["trials"], self._rehearsal is not None)
