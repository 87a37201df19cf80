"""The kernel of a finite network, from the gradients of its parameters."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from retarget.arrays import (
    ArrayT,
    give_back,
    require_no_overflow,
)
from retarget.errors import InvalidInputError, InvalidTypeError, ResultOverflowError
from retarget.kernels.base import Kernel, mirror_lower
from retarget.kernels.empirical.assembly import Assembly
from retarget.kernels.empirical.parameters import (
    ParameterChoice,
    Preconditioner,
    as_choice,
    preconditioner_of,
    trained_parameters,
)
from retarget.kernels.empirical.plan import (
    EmpiricalPlan,
    GradientMode,
    PlanOptions,
    RuleError,
    make_plan,
    sketched,
    with_split_products,
)
from retarget.kernels.empirical.private import undisturbed
from retarget.kernels.empirical.projection import Projection
from retarget.kernels.empirical.recording import Network, load_gradients
from retarget.kernels.empirical.sketch import FrozenSketch
from retarget.kernels.empirical.terms import (
    MoreLivePositionsError,
    tensor_cores,
)
from retarget.kernels.empirical.trial import Outputs
from retarget.samples import (
    Samples,
    as_samples,
    count,
    leaves,
    library_of,
    require_finite_samples,
    require_finite_weights,
    require_network,
    with_type_of,
)
from retarget.scalars import is_whole
from retarget.settings import full_precision, in_plain_torch
from retarget.text import amount_of_memory, as_seed

ResultT = TypeVar("ResultT")


class EmpiricalNTK(Kernel):
    r"""The neural tangent kernel of a finite network, at its current weights.

    Use it to treat a network as a kernel machine around its current weights. For n samples it costs
    one forward and c backward passes, and products of gradients that grow as n^2. It equals
    `torch.func.jacrev` and a contraction, but takes at most about half the time for networks of
    linear and conv layers, and between half and nearly all of it for transformers.

    $$k(x, x') = \frac{1}{c} \sum_{k=1}^{c}
    \langle \nabla_\theta f_k(x), \nabla_\theta f_k(x') \rangle$$

    over the network's c outputs. The parameters are read at each call, so the kernel follows
    training. The module is not changed: no gradient and no hook is left in it, no buffer modified.
    Several threads may use one kernel, and use or train the module, as long as none changes its
    weights during a call. (A module whose `forward` reaches its parameters in any other way than
    through attributes of modules, or that has Keras layers, must not be used by others meanwhile.)

    Samples are an array (n, ...), or a (nested) dict or tuple of several arrays that share n, such
    as token ids and a mask. A dict is passed to the module as keywords and a tuple as arguments if
    `forward` takes them so, else as one argument. Floating point is converted to the parameters'
    type; whole numbers and booleans are passed on as they are.

    The module must treat samples one by one and give the same answer twice: call `module.eval()` if
    it has BatchNorm or Dropout. This is checked on a few samples. Frozen parameters
    (`requires_grad=False`) are left out. Autocast is off inside, and inference mode too.

    Parameters that are only used by `linear`, `conv2d`, `embedding`, norms, products and sums (so
    by Linear, Conv2d, Embedding, LayerNorm, RMSNorm, GroupNorm and BatchNorm, any number of
    times) have rules that need no Jacobian, which covers whole transformers. With a the layer's
    input and g an output's gradient by its result at each of p positions, a layer's part is,
    whichever takes fewer multiply-adds for n samples,

    * $\sum_{pq} (a_p \cdot a'_q) \sum_k (g_{kp} \cdot g'_{kq})$, about
      $n^2 p^2 (\text{in} + c \, \text{out})$; or
    * the gradients $F_k = \sum_p g_{kp} a_p^\top$ and their products, about
      $n^2 c \, \text{in} \, \text{out}$;

    and $a \cdot a'$ for a last Linear, whose g is the same for every sample. Positions that no
    output depends on are left out if every sample has equally many (as in a last block that
    only passes on its first token). Other parameters take a Jacobian, as all do with
    `mode="jacobian"`: by `torch.func`, or one gradient at a time where it is not known to be right.
    Where later samples use parameters in another way than the first few, all take it.

    Args:
        module: Any module that returns a matrix of outputs (n, c) for n samples, alone or as the
            only one among other results (`logits`, for Hugging Face models).
        outputs: "mean" over the outputs, as above; "sum", without 1/c; the number of one output,
            from 0, or a `range` of them for the mean over these; "full", the kernel between all
            outputs, (n c, n c), where row i c + k is output k of sample i.
        params: Which parameters: a name, the name of a layer for all of its parameters, a pattern
            (`"*.bias"`), several of these, or a function of a name; None for all.
        mode: "structured" uses a rule for each layer that has one, in its cheapest form, and the
            Jacobian for the rest; "jacobian" uses the Jacobian for all.
        accumulate: The type of the products and of the result; None for that of the parameters.
        max_memory: Working memory besides the kernel matrix, in bytes or as text such as "4GB";
            "auto" for half of what the matrix leaves free when a kernel is computed.
        precision: How float32 products are made on CUDA: "full", or "split", on tensor cores from
            numbers in two halves, several times faster. On other devices both are the same.
        sketch: The number of features to project to at random, for a kernel that is right on
            average, with an error that falls as 1 / sqrt(sketch); None for the exact kernel.
        seed: Seed of the projection, which depends on nothing else but the names and shapes of the
            parameters: it is the same for all calls, samples and machines.
        progress: Whether to show a progress bar when it takes more than a second; None shows it
            on a terminal.
        preconditioner: For the kernel $J P J^\top$ of steps $-\eta P \nabla L$ with a diagonal P:
            the optimizer that trains the module (Adam, AdamW and RMSprop of torch, or SGD with
            rates by parameter group), whose P is read at each call; or P itself, a dict from names
            to tensors. P holds the second moments as they are then, with their bias correction and
            eps, and each group's rate relative to the first one's. For a network with one output,
            what is computed with the kernel is exact while P is constant, and approximate if steps
            change it. For several it is always approximate: their P differ, and the kernel is the
            mean over them. Layers then use the form with gradients, unless P is one number for each
            parameter.

    Examples:
        One weight matrix: output k's gradient is the sample in row k, and zero elsewhere.

        >>> import numpy as np
        >>> from torch import nn
        >>> kernel = EmpiricalNTK(nn.Linear(2, 3, bias=False))
        >>> kernel(np.array([[1.0, 2.0], [3.0, 0.0]]))
        array([[5., 3.],
               [3., 9.]], dtype=float32)
    """

    def __init__(
        self,
        module: nn.Module,
        outputs: Outputs = "mean",
        *,
        params: ParameterChoice = None,
        preconditioner: Preconditioner = None,
        max_memory: int | str = "auto",
        mode: GradientMode = "structured",
        accumulate: torch.dtype | None = None,
        precision: Literal["full", "split"] = "full",
        sketch: int | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        require_network(module)
        load_gradients()
        _require_options(outputs, mode, accumulate, precision, sketch)
        self.module = module
        self.outputs = int(outputs) if is_whole(outputs) else outputs
        self.mode = mode
        self.accumulate = accumulate
        if not isinstance(params, str | None) and not callable(params):
            params = as_choice(params)
        self.params = params
        self.max_memory: int | Literal["auto"] = (
            "auto" if max_memory == "auto" else amount_of_memory("max_memory", max_memory)
        )
        self.precision = precision
        self.progress = progress
        self.sketch = sketch
        self.seed = as_seed("seed", seed)
        self.projection = None if sketch is None else Projection(int(sketch), self.seed)
        self.preconditioner = _as_given(preconditioner, module, list(self._parameters()))

    def __repr__(self) -> str:
        sketch = "" if self.sketch is None else f", sketch={self.sketch}, seed={self.seed}"
        return f"EmpiricalNTK({type(self.module).__name__}, outputs={self.outputs!r}{sketch})"

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the weights and the buffers of the network, by name."""
        return self.module.state_dict()

    def explicit_features(self, count: int, seed: int) -> FrozenSketch:
        """Returns the sketch of the network as it is now, of its own size if it has one."""
        return FrozenSketch(self, count, seed)

    def estimated_by(self, features: FrozenSketch) -> Kernel:
        """Returns the kernel of the copy of the network that the sketch is of."""
        return features.kernel

    def features(self, A: ArrayT) -> ArrayT:
        """(len(A), d) features whose inner products are the kernel: d is `sketch` if given.

        Without a sketch, d is the number of outputs times the number of parameters: they are one
        parameter's after the other's, and each one's output by output.
        """
        result: ArrayT = give_back(self.features_and_outputs(A)[0], library_of(A))
        return result

    @in_plain_torch
    def features_and_outputs(self, A: Any) -> tuple[Tensor, Tensor]:
        """The same as a tensor, and all outputs of the network (n, c) from the same pass."""
        if self.outputs == "full":
            raise InvalidInputError(
                "outputs is 'full', which does not give one row of features per sample; expected "
                "'mean', 'sum' or the number of an output"
            )
        samples = self._samples("A", A)
        if not count(samples):
            raise InvalidInputError("A is empty; expected at least one sample")
        both = self._assembled(samples, lambda assembly: assembly.features_and_outputs(samples))
        if not bool(both[0].isfinite().all()):
            require_finite_weights(self.module.state_dict())  # else a caller names the sample
        return both

    @in_plain_torch
    def factors(self) -> dict[str, Tensor] | None:
        """The current preconditioner, by the parameters' names; None without one."""
        if self.preconditioner is None:
            return None
        return preconditioner_of(self.preconditioner, self.module, list(self._parameters()))

    def _parameters(self) -> dict[str, nn.Parameter]:
        return trained_parameters(self.module, self.params)

    def _like(self) -> Tensor:
        """One of the parameters, all of which have its type and device."""
        chosen = self._parameters().values()
        kinds = {(each.dtype, each.device) for each in chosen}
        if len(kinds) > 1:
            described = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise InvalidInputError(
                f"the parameters are {described}; expected one type and one device: convert the "
                "module, or select some of them with params="
            )
        return next(iter(chosen)).detach()

    def _samples(self, name: str, value: Any) -> Samples:
        like = self._like()
        for leaf in leaves(value):
            if isinstance(leaf, Tensor) and leaf.device != like.device:
                raise InvalidInputError(
                    f"{name} is on {leaf.device}, but the module is on {like.device}; move both to "
                    "one device"
                )
        samples = as_samples(name, value)
        if isinstance(samples, Tensor) and samples.ndim == 1:
            samples = samples[:, None]
        return with_type_of(like, samples)

    def _symmetric_gram(self, A: Samples) -> Tensor:
        n = count(A)
        if not n:
            return self._like().new_zeros((0, 0), dtype=self._dtype())
        K = self._assembled(A, lambda assembly: assembly.symmetric_gram(A), n / 2, n, n)
        return self._without_overflow(mirror_lower(K), A)

    def _gram(self, A: Samples, B: Samples) -> Tensor:
        n = count(A)
        m = count(B)
        if n < m:  # the right-hand samples stay in memory: make them the fewer
            return self._gram(B, A).mT.contiguous()
        if not n:
            return self._like().new_zeros((0, 0), dtype=self._dtype())
        reuse = max(1, n * m / (n + m))
        K = self._assembled(A, lambda assembly: assembly.gram(A, B), reuse, n, m)
        return self._without_overflow(K, A, B)

    def _diag(self, A: Samples) -> Tensor:
        if not count(A):
            return self._like().new_zeros(0, dtype=self._dtype())
        return self._without_overflow(self._assembled(A, lambda assembly: assembly.diagonal(A)), A)

    def _assembled(
        self,
        samples: Samples,
        compute: Callable[[Assembly], ResultT],
        reuse: float = 1,
        rows: int = 0,
        columns: int = 0,
    ) -> ResultT:
        """Runs `compute` on a new `Assembly` for this many rows and columns of samples."""

        def run(private: bool, packed: bool = True, rules: bool = True) -> ResultT:
            try:
                plan = self._plan(samples, reuse, packed, private, rules)
                return compute(Assembly(plan, rows, columns, self.max_memory, self.progress))
            except MoreLivePositionsError:  # than in the samples that it was tried on
                return run(private, packed=False)
            except RuleError:
                return run(private, rules=False)

        with full_precision(self._like().device):
            return undisturbed(self.module, run)

    def _plan(
        self,
        samples: Samples,
        reuse: float,
        packed: bool = True,
        private: bool = True,
        rules: bool = True,
    ) -> EmpiricalPlan:
        """What to compute, if each sample's factors serve `reuse` pairs of samples."""
        network = Network.from_module(self.module, self._parameters(), self.factors(), private)
        like = self._like()
        dtype = self._dtype()
        sketching = self.projection is not None
        options = PlanOptions(self.outputs, self.mode, dtype, reuse, packed, rules, sketching)
        plan = make_plan(network, samples, options)
        if self.projection is not None:
            return sketched(plan, self.projection)
        single = like.dtype == dtype == torch.float32
        if self.precision == "split" and single and tensor_cores(like.device):
            return with_split_products(plan)
        return plan

    def _dtype(self) -> torch.dtype:
        return self._like().dtype if self.accumulate is None else self.accumulate

    def _without_overflow(self, result: Tensor, *samples: Samples) -> Tensor:
        try:
            require_no_overflow(result)
        except ResultOverflowError as error:
            require_finite_weights(self.module.state_dict())
            for each in samples:
                require_finite_samples(each)
            instead = "" if result.dtype == torch.float64 else ", or accumulate=torch.float64"
            raise ResultOverflowError(
                f"the kernel overflows {str(result.dtype).removeprefix('torch.')}: the module's "
                "weights, or products of them, are too large; use those from before its training "
                f"diverged{instead}"
            ) from error
        return result


def _require_options(outputs: Any, mode: Any, accumulate: Any, precision: Any, sketch: Any) -> None:
    """Rejects options of the kernel that mean nothing."""
    number = is_whole(outputs) and outputs >= 0
    several = isinstance(outputs, range) and bool(outputs) and min(outputs[0], outputs[-1]) >= 0
    counted = is_whole(sketch) and sketch >= 1
    for name, value, valid, expected in (
        (
            "outputs",
            outputs,
            number or several or outputs in ("mean", "sum", "full"),
            "'mean', 'sum', 'full' or the number of an output, from 0, or a range of them",
        ),
        ("mode", mode, mode in get_args(GradientMode), "'structured' or 'jacobian'"),
        (
            "accumulate",
            accumulate,
            accumulate in (None, torch.float32, torch.float64),
            "torch.float32, torch.float64 or None",
        ),
        ("precision", precision, precision in ("full", "split"), "'full' or 'split'"),
        ("sketch", sketch, sketch is None or counted, "a positive whole number, or None"),
    ):
        if not valid:
            raise InvalidInputError(f"{name} is {value!r}; expected {expected}")
    if sketch is not None and outputs == "full":
        raise InvalidInputError(
            "outputs is 'full', which cannot be sketched; with sketch= expected 'mean', 'sum' "
            "or the number of an output"
        )


def _as_given(preconditioner: Any, module: nn.Module, names: list[str]) -> Preconditioner:
    """Checks a preconditioner; factors are copied, because a caller may reuse their tensors."""
    if isinstance(preconditioner, Mapping):
        preconditioner_of(preconditioner, module, names)
        return {
            name: each.detach().clone() if isinstance(each, Tensor) else copy.copy(each)
            for name, each in preconditioner.items()
        }
    if not isinstance(preconditioner, torch.optim.Optimizer | None):
        raise InvalidTypeError(
            f"preconditioner is {preconditioner!r}; expected a torch optimizer, a dict of "
            "factors by the parameters' names, or None"
        )
    return preconditioner
