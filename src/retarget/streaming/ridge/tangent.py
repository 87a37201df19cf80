"""Exact learning on a network's tangent features, in bounded memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from retarget.errors import InvalidInputError
from retarget.kernels.empirical.parameters import trained_parameters
from retarget.kernels.empirical.projection import Projection
from retarget.kernels.empirical.recording import outputs_with
from retarget.kernels.feature_maps import combining, tangent_map
from retarget.labels import ClassNames, are_labels, as_classes, label_rows
from retarget.samples import as_samples, copied, take, with_type_of
from retarget.scalars import as_count
from retarget.settings import in_plain_torch
from retarget.state_files import checksum, part_of
from retarget.streaming.module import TangentNetwork
from retarget.streaming.ridge.learner import Precision, StreamingRidge
from retarget.streaming.ridge.views import View
from retarget.text import as_seed


class TangentLearner(StreamingRidge):
    r"""Continues to learn with a trained network, without forgetting, by solving its linearization.

    The network does not change. The learner adds a linear correction in its tangent features,

    $$f(x) = f(x; \theta_0) + \phi(x)^\top W, \qquad
    \phi(x) = S \, \nabla_\theta \langle r, f(x; \theta_0) \rangle,$$

    where $S$ is a random projection of the parameters to `features` numbers and $r$ a random
    combination of the outputs. $W$ is always the ridge solution on everything learned, in whatever
    order it came: the offline learner with the network's tangent kernel (Theorem 4.1), without
    keeping a sample. Samples can be forgotten, as if they had never been learned, up to rounding of
    the largest sums, and two learners can be merged.

    Use it to continue from a trained network when later data come in any order. Do not use it if
    the network itself must change, or has too few parameters for rich tangent features. A sample
    costs one forward and backward pass and `features`$^2$ multiplications; the learner keeps about
    half of `features`$^2$ float64 numbers (71 MB for 4,096). Methods such as SLDA and RanPAC solve
    the same problem on the features of the last layer only.

    If the network has one output for each target, learning starts from its outputs. Otherwise it is
    used as a feature extractor, and learning starts from zero.

    Args:
        module: The network, with outputs (n, c). It is copied and frozen, in evaluation mode.
            Samples are whatever it accepts: an array, or a dict or tuple of several (token ids and
            a mask), as for `EmpiricalNTK`.
        gamma: Ridge, 0 or more; `"auto"` chooses it by generalized cross-validation.
        features: Number of tangent features, m.
        views: Functions of a batch of samples that do not change what a sample means, such as its
            mirror image; None among them is the sample itself: `views=[None, flip]`. Every view is
            learned, and a prediction is the mean over the views: both cost a pass per view.
        precision: `"float64"`, or `"float32"` for half the memory; see `StreamingRidge`.
        combinations: Number of random combinations of the outputs whose gradients are computed;
            each costs a backward pass.
        params: Which parameters to use: a name, the name of a layer, a pattern such as
            `"*.lora_*"`, several of these, or a function of a name; None for all trainable ones
            (`requires_grad`).
        classes: The label that each output stands for, if labels are text or not the numbers from
            0 on. It also says how many classes there are if the network has another number of
            outputs.
        seed: Seed of the projection and the combinations, which are the same on every machine: the
            projection also depends on the parameters' names and shapes, and on nothing else.

    Attributes:
        module: The copy of the network that learning starts from; do not change it.
        params: The names of the parameters in use.

    Examples:
        For a linear network the tangents are constant, so this is ordinary ridge regression:

        >>> import torch, retarget as rt
        >>> network = torch.nn.Linear(2, 1, bias=False).double()
        >>> X, Y = torch.eye(2).double(), torch.tensor([[1.0], [3.0]]).double()
        >>> learner = rt.TangentLearner(network, gamma=1e-6, features=64).learn(X, Y)
        >>> learner.predict(X).round(decimals=3).tolist()
        [[1.0], [3.0]]
    """

    OPTIONS: ClassVar = (
        "gamma",
        "features",
        "precision",
        "combinations",
        "params",
        "classes",
        "seed",
    )

    def __init__(
        self,
        module: nn.Module,
        gamma: float | Literal["auto"] = "auto",
        features: int = 4096,
        *,
        views: Sequence[View] | None = None,
        precision: Precision = "float64",
        combinations: int = 1,
        params: str | Sequence[str] | Callable[[str], bool] | None = None,
        classes: ClassNames = None,
        seed: int = 0,
    ) -> None:
        self.classes = as_classes(classes)
        network = copied(module)
        if params is not None:
            network.requires_grad_(True)  # parameters chosen by name may be frozen in the original
        self.params = list(trained_parameters(network, params))
        self.combinations = as_count("combinations", combinations)
        self.module = network.eval()
        count = as_count("features", features)
        seed = as_seed("seed", seed)
        tangents = tangent_map(self.module, self.params, count, self.combinations, seed)
        super().__init__(tangents, gamma, count, views=views, precision=precision, seed=seed)

    @in_plain_torch
    def learn(self, X: Any, Y: Any, weights: Any = None, *, repeats: bool = False) -> Self:
        """Learns any number of samples; a call that fails changes nothing.

        Args:
            X: (n, ...) samples.
            Y: (n,) or (n, c) real targets; or class labels (n,): whole numbers, or text with
                `classes`.
            weights: How much each sample counts, above 0: (n,) or one number; None for 1.
            repeats: Whether a weight of 2 means that the sample was seen twice; as in
                `StreamingRidge.learn`.
        """
        return super().learn(X, self._targets(X, Y), weights, repeats=repeats)

    @in_plain_torch
    def forget(self, X: Any, Y: Any, weights: Any = None, *, repeats: bool = False) -> Self:
        """Forgets samples, as `StreamingRidge.forget` does; Y as in `learn`."""
        return super().forget(X, self._targets(X, Y), weights, repeats=repeats)

    def _targets(self, X: Any, Y: Any) -> Any:
        """Returns real targets as they are, and one-hot rows for class labels."""
        if not are_labels(Y):
            return Y
        parameter = next(self.module.parameters())
        return label_rows(Y, self._outputs_for(X), self.classes).to(parameter)

    def _outputs_for(self, X: Any) -> int:
        """Returns how many classes there are: one for each target so far, or for each output."""
        if self.learned.moments is not None:
            return self.learned.outputs
        if self.classes is not None:
            return len(self.classes)
        weights = dict([*self.module.named_parameters(), *self.module.named_buffers()])
        first = as_samples("X", take(X, slice(0, 1)))
        like = next(self.module.parameters())
        with torch.no_grad():
            outputs = outputs_with(self.module, with_type_of(like, first), weights)
        return outputs.flatten(1).shape[1]

    @in_plain_torch
    def as_module(self) -> TangentNetwork:
        """Returns a frozen module with the present predictions (n, c), to save or deploy.

        It contains a copy of the network and runs without this learner. It can be saved as any
        other module. From torch 2.13 on, `torch.export` accepts it if it accepts the network, for
        one size of batches (torch 2.11 does not).

        Raises:
            InvalidInputError: Nothing has been learned yet.
        """
        learned = self.learned
        weights = self._solved(learned).weights
        assert learned.form.dtype is not None  # as something was learned
        assert learned.network_outputs is not None
        return TangentNetwork(
            self.module,
            self.params,
            weights,
            combining(learned.network_outputs, self.combinations, self.seed),
            Projection(self.features, self.seed),
            self.views,
            learned.form.dtype,
        )

    @in_plain_torch
    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns what `save` writes: plain values, the sums, and copies of the weights."""
        values, tensors = super().to_state()
        # copies, because tied weights share memory, which a safetensors file does not support
        weights = {f"network.{k}": v.clone() for k, v in self.module.state_dict().items()}
        return values, tensors | weights

    @classmethod
    def load(
        cls,
        path: str | Path,
        module: nn.Module,
        device: str | torch.device = "cpu",
        *,
        views: Sequence[View] | None = None,
    ) -> Self:
        """Loads a file written by `save`.

        Args:
            path: The file.
            module: A network with the same architecture; its weights come from the file.
            device: The device to compute on.
            views: The same as in the constructor; they are compared by their names.
        """
        return super().load(path, module, device, views=views)

    @classmethod
    @in_plain_torch
    def from_state(
        cls,
        values: dict[str, Any],
        tensors: dict[str, Tensor],
        module: Any,
        views: Sequence[View] | None = None,
    ) -> Self:
        """Makes a learner from the result of `to_state`, on the device of the tensors."""
        weights = part_of(tensors, "network")
        network = copied(module)
        network.load_state_dict(weights)
        network = network.to(next(iter(weights.values())).device)
        if values["kernel"]["weights"] != checksum("", network.state_dict()):
            raise InvalidInputError("its weights differ from those that it was saved with")
        loaded = super().from_state(values, tensors, network, views)
        if loaded.samples:
            as_count("network_outputs", values["network_outputs"])
        return loaded
