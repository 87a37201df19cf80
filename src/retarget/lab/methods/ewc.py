"""Elastic weight consolidation."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import conv2d, pad, unfold
from torch.overrides import TorchFunctionMode

from retarget.engine.losses import row_losses
from retarget.errors import InvalidInputError
from retarget.lab.methods import Batch, Method
from retarget.scalars import as_non_negative
from retarget.state_files import part_of

if TYPE_CHECKING:
    from retarget.lab.figures.training import NetworkRun
    from retarget.lab.training import Run

GRADIENTS_AT_A_TIME = 2**26  # numbers: bounds the memory of per-sample gradients


class EWC(Method, name="ewc"):
    r"""Penalizes changes to parameters that matter for earlier tasks (Kirkpatrick et al., 2017).

    Adds $\tfrac\lambda2 \sum_\tau \sum_i F^{(\tau)}_i (w_i - w^{(\tau)}_i)^2$ to the loss, with one
    anchor for each task: the weights at its end $w^{(\tau)}$ and the Fisher information, the mean
    over its samples of the squared gradient of the sample's loss.

    Args:
        strength: $\lambda$, or one per member.
    """

    capturable = True

    def __init__(self, strength: float | Sequence[float]) -> None:
        values = np.atleast_1d(strength).tolist()
        self.strengths = [as_non_negative("strength", value) for value in values]

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        return {"strength": [run.strength for run in runs]}

    def on_start(self, run: "Run") -> None:
        members = len(run.ensemble)
        if len(self.strengths) not in (1, members):
            raise InvalidInputError(
                f"there are {len(self.strengths)} strengths for {members} members; expected one "
                "for all, or one per member"
            )
        self._strength = run.targets.new_tensor(self.strengths).expand(members)
        # All anchors in one: sum_t F_t (w - w_t)^2 = F (w - center)^2 + spread, with
        # F = sum_t F_t and center = sum_t F_t w_t / F. Memory does not grow with the tasks.
        self._fisher: dict[str, Tensor] = {}
        self._center: dict[str, Tensor] = {}
        self._spread = torch.zeros_like(self._strength)

    def penalty(self, run: "Run", batch: Batch) -> Tensor | None:
        if not self._fisher:
            return None
        pull = [
            (self._fisher[name] * (w - self._center[name]).square()).flatten(1).sum(1)
            for name, w in run.ensemble.parameters.items()
        ]
        return self._strength / 2 * (torch.stack(pull).sum(0) + self._spread)

    @torch.no_grad()
    def on_task_end(self, run: "Run") -> None:
        if run.span.stop == run.train.rows.shape[1]:
            return  # no later task needs the anchor
        fishers = [
            fisher_diagonal(module, run.train.inputs(m, run.span), run.targets[m, run.span])
            for m, module in enumerate(run.ensemble.modules)
        ]
        for name, w in run.ensemble.parameters.items():
            new = torch.stack([fisher[name] for fisher in fishers])
            old = self._fisher.get(name, torch.zeros_like(new))
            center = self._center.get(name, torch.zeros_like(new))
            total = old + new
            # where F is 0 there is no penalty, and the center has no meaning
            share = new / total.where(total > 0, 1.0)
            self._spread = self._spread + (old * share * (w - center).square()).flatten(1).sum(1)
            self._fisher[name] = total
            self._center[name] = center + share * (w - center)

    def kept_bytes(self, run: "Run") -> int:
        return sum(v[0].nbytes for v in (*self._fisher.values(), *self._center.values()))

    def state_dict(self, run: "Run") -> dict[str, Any]:
        both = {"fisher": self._fisher, "center": self._center}
        state = {
            f"{kind}.{k}": values for kind, named in both.items() for k, values in named.items()
        }
        return state | {"spread": self._spread}

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        self._fisher = part_of(state, "fisher")
        self._center = part_of(state, "center")
        self._spread = state["spread"]


def fisher_diagonal(module: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    r"""Returns the mean over samples of the squared gradient of $\tfrac12\|y - f(x)\|^2$."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    frozen |= {name: b.detach() for name, b in module.named_buffers()}
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    chunk = max(1, GRADIENTS_AT_A_TIME // sum(p.numel() for p in trained.values()))

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        output: Tensor = functional_call(module, parameters | frozen, (x[None],))
        return row_losses(output[0], y)

    gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    total = {name: torch.zeros_like(p) for name, p in trained.items()}
    for x, y in zip(torch.split(inputs, chunk), torch.split(targets, chunk), strict=True):
        with UnfoldedConvolutions() if inputs.is_cuda else nullcontext():
            for name, g in gradients(trained, x, y).items():
                total[name] += g.square().sum(0)
    return {name: value / len(inputs) for name, value in total.items()}


class UnfoldedConvolutions(TorchFunctionMode):
    """Computes `conv2d` without groups as a matrix product inside its context.

    vmap turns per-sample gradients into grouped convolutions with one group per sample, which are
    very slow on CUDA; a product with the unfolded input becomes a batched matrix product instead.
    (On the CPU the grouped convolution is faster.)
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replaces the convolution."""
        replaced = _convolution if func is conv2d or func is torch.conv2d else func
        return replaced(*args, **(kwargs or {}))


def _convolution(
    input: Tensor,  # noqa: A002 (the name in conv2d, which callers may use)
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Tensor:
    with torch._C.DisableTorchFunction():
        if groups != 1 or input.ndim != 4:
            return conv2d(input, weight, bias, stride, padding, dilation, groups)
        kernel = weight.shape[2:]
        step = _pair(stride)
        spread = _pair(dilation)
        extent = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
        if padding == "same":  # odd padding adds one more at the end, as in PyTorch
            top = extent[0] // 2
            left = extent[1] // 2
            input = pad(input, (left, extent[1] - left, top, extent[0] - top))  # noqa: A001
        border = (0, 0) if isinstance(padding, str) else _pair(padding)
        height, width = (
            (size + 2 * p - e - 1) // s + 1
            for size, p, e, s in zip(input.shape[2:], border, extent, step, strict=True)
        )
        patches = unfold(input, tuple(kernel), spread, border, step)
        output = (weight.flatten(1) @ patches).reshape(len(input), len(weight), height, width)
        return output if bias is None else output + bias[:, None, None]


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
