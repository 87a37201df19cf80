"""A pretrained network that learns classes at any time, and forgets none."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from retarget.errors import InvalidInputError
from retarget.estimators.classes import Classes, Label, as_labels, decoded, encoded
from retarget.estimators.raw_samples import as_raw, prepared_batches
from retarget.estimators.ridge_base import samples_in
from retarget.estimators.ridge_classifier import RidgeClassifier
from retarget.kernels.empirical.parameters import trained_parameters
from retarget.kernels.feature_maps import FeatureMap
from retarget.kernels.network_map import LearnFrom, network_map
from retarget.samples import copied, is_nested
from retarget.settings import in_plain_torch
from retarget.state_files import explained, part_of, read_state, write_state
from retarget.streaming.ridge.learner import Precision, StreamingRidge


class TangentClassifier(RidgeClassifier):
    r"""Learns classes with a pretrained network: labels in, labels out, a new class at any time.

    The network does not change, and no sample is stored. From each sample it makes features, and a
    ridge regression on them answers with labels. It is always the solution on everything learned,
    in whatever order it came: adding a class costs one column and takes nothing from the others.

    The features are random projections of the network's tangents (the gradients of its outputs with
    respect to its parameters) and random features of its outputs, each of length 1. The outputs
    need not mean classes: an encoder's embedding is best.

    It can say that it does not know: `predict(samples, reject=.05)` answers None for samples that
    look like nothing learned. `predict_proba` returns calibrated probabilities. `forget` deletes
    samples as if they had never been learned, `merge` joins what two classifiers have learned, of
    the same classes or of different ones.

    To calibrate, it keeps the features (not the samples) of at most `calibration` samples, chosen
    at random. The sums take 8 `features`$^2$ / 2 bytes (268 MB for 8,192), however much is learned.

    Several threads may use one classifier, as all estimators; a call that fails or is interrupted
    changes nothing. Parameters are read when a stream begins.

    Args:
        network: A `torch.nn.Module` with outputs (n, c). It is copied and frozen, in evaluation
            mode, when the first samples are learned.
        prepare: Makes of raw samples (texts, images) what the network takes: a tokenizer of Hugging
            Face; a function from a list of samples to a batch; or a transform of one sample. Raw
            samples are then taken in batches of similar length. None if samples are what the
            network takes: a tensor, an array, or a dict or tuple of several.
        features: Number of features, m. A sample costs $m^2$ multiplications.
        gamma: Ridge, 0 or more; `"auto"` chooses it by generalized cross-validation.
        learn_from: `"both"`; `"tangents"`; or `"outputs"`, for which a sample needs only a forward
            pass.
        combinations: Number of random combinations of the outputs whose gradients are computed;
            each costs a backward pass.
        params: Which parameters' tangents to use, as for `rt.TangentLearner`.
        precision: `"float64"`, or `"float32"` for half the memory; see `rt.StreamingRidge`.
        calibration: Number of samples, at most, whose features are kept; 0 for none, and then no
            `predict_proba` and no `reject`.
        seed: Seed of all random numbers.

    Attributes:
        classes_: (c,) the labels so far: sorted, or in the order of appearance if they cannot be.
        gamma_: The ridge in use.
        learner_: The `rt.StreamingRidge`. Its outputs are in the order in which classes appeared.
        nbytes: Bytes of the sums and the kept features.

    Examples:
        >>> import torch, retarget as rt
        >>> network = torch.nn.Linear(2, 3).double()
        >>> model = rt.TangentClassifier(network, features=64)
        >>> X = torch.tensor([[0.0, 1.0], [0.1, 0.9], [-1.0, -1.0], [-0.9, -1.1]]).double()
        >>> model.partial_fit(X[:2], ["up", "up"]).partial_fit(X[2:], [("down", 1)] * 2).classes_
        array(['up', ('down', 1)], dtype=object)
        >>> model.predict(torch.tensor([[0.05, 1.0], [-1.0, -0.9]]).double()).tolist()
        ['up', ('down', 1)]
    """

    _network: nn.Module  # the copy that features are made with

    def __init__(
        self,
        network: nn.Module,
        *,
        prepare: Callable[[list[Any]], Any] | None = None,
        features: int = 8192,
        gamma: float | Literal["auto"] = "auto",
        learn_from: LearnFrom = "both",
        combinations: int = 1,
        params: str | Sequence[str] | Callable[[str], bool] | None = None,
        precision: Precision = "float64",
        calibration: int = 1024,
        seed: int = 0,
    ) -> None:
        self.network = network
        self.prepare = prepare
        self.features = features
        self.gamma = gamma
        self.learn_from = learn_from
        self.combinations = combinations
        self.params = params
        self.precision = precision
        self.calibration = calibration
        self.seed = seed

    @property
    def nbytes(self) -> int:
        """Bytes of the sums and the kept features, which are bounded however much is learned."""
        check_is_fitted(self, self.FITTED)
        return self.learner_.nbytes

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the share of samples that get the right label."""
        labels = as_labels("y", y)
        right = [one == other for one, other in zip(self.predict(X), labels, strict=True)]
        return float(np.average(right, weights=sample_weight))

    @in_plain_torch
    def save(self, path: str | Path) -> None:
        """Saves what was learned to one file; an older one is replaced only when it is complete.

        It holds the sums, the kept features, the labels and the network's weights. Labels must be
        text, numbers, booleans or tuples of these. Loading runs no code.
        """
        now = self._now()
        check_is_fitted(now, now.FITTED)
        learner, tensors = now.learner_.to_state()
        # copies, because tied weights share memory, which a safetensors file does not support
        weights = {f"network.{k}": v.clone() for k, v in now._network.state_dict().items()}
        values = {
            "class": type(self).__name__,
            "learner": learner,
            "labels": [encoded(label) for label in now._classes.labels],
            "counts": list(now._classes.counts),
        }
        named = {f"learner.{name}": tensor for name, tensor in tensors.items()}
        write_state(Path(path), values, named | weights)

    @classmethod
    @in_plain_torch
    def load(
        cls,
        path: str | Path,
        network: nn.Module,
        *,
        prepare: Callable[[list[Any]], Any] | None = None,
        device: str = "cpu",
    ) -> Self:
        """Loads a file written by `save`.

        Args:
            path: The file.
            network: A network with the same architecture; its weights come from the file.
            prepare: As in the constructor: a file cannot contain a function.
            device: The device to compute on.
        """
        values, tensors = read_state(Path(path), device, cls.__name__)
        with explained(path, cls.__name__):
            return cls._from_state(values, tensors, network, prepare)

    @classmethod
    def _from_state(
        cls,
        values: dict[str, Any],
        tensors: dict[str, Tensor],
        network: nn.Module,
        prepare: Callable[[list[Any]], Any] | None,
    ) -> Self:
        weights = part_of(tensors, "network")
        own = copied(network)
        own.load_state_dict(weights)
        own = own.to(next(iter(weights.values())).device)
        options = values["learner"]["options"]
        description = values["learner"]["kernel"]
        model = cls(
            own,
            prepare=prepare,
            features=description["features"],
            gamma=options["gamma"],
            learn_from=description["learn_from"],
            combinations=description["combinations"],
            params=description["params"] or None,
            precision=options["precision"],
            calibration=options["calibration"],
            seed=options["seed"],
        )
        features = model._features()
        learner = StreamingRidge.from_state(
            values["learner"], part_of(tensors, "learner"), features
        )
        classes = Classes(
            tuple(decoded(label) for label in values["labels"]),
            tuple(int(number) for number in values["counts"]),
        )
        _require_possible(classes, learner)
        model._become(classes, learner)
        return model

    def _features(self) -> FeatureMap:
        """Copies the network, and makes its features."""
        network = copied(self.network)
        if self.params is not None:
            network.requires_grad_(True)  # parameters chosen by name may be frozen in the original
        params = []
        if self.learn_from != "outputs":
            params = list(trained_parameters(network, self.params))
        self._network = network.eval()
        return network_map(
            self._network, params, self.features, self.combinations, self.seed, self.learn_from
        )

    def _new_learner(self) -> StreamingRidge:
        return StreamingRidge(
            self._features(),
            self.gamma,
            self.features,
            intercept=True,
            precision=self.precision,
            seed=self.seed,
            calibration=self.calibration,
        )

    def _samples(self, X: Any) -> Any:
        return self._taken(X, reset=False)

    def _labeled(self, X: Any, y: Any, restart: bool) -> tuple[Any, list[Label]]:
        if y is None:
            raise InvalidInputError(
                "learning requires y to be passed, but the target y is None: expected a label for "
                "each sample"
            )
        X = self._taken(X, reset=restart)
        labels = as_labels("y", y)
        if len(labels) != samples_in(X) or not labels:
            raise InvalidInputError(
                f"there are {samples_in(X)} samples and {len(labels)} labels; expected one label "
                "for each sample, and one sample at least"
            )
        return X, labels

    def _taken(self, X: Any, reset: bool) -> Any:
        if self.prepare is not None:
            return as_raw("X", X)
        if isinstance(X, Tensor) or (is_nested(X) and not issparse(X)):  # some are dicts
            return X
        return validate_data(self, X, reset=reset, allow_nd=True)

    def _batches(self, X: Any) -> Iterator[tuple[Any, Any]]:
        if self.prepare is None:
            yield slice(None), X
        else:
            yield from prepared_batches(self.prepare, X, self._network)


def _require_possible(classes: Classes, learner: StreamingRidge) -> None:
    """Rejects labels of a file that are not those of its sums."""
    outputs = learner.learned.outputs
    known = len(classes.labels)
    counts = sum(classes.counts)
    if (
        len(set(classes.labels)) != known
        or not known == len(classes.counts) == outputs
        or min(classes.counts) < 0
        or counts != learner.samples
    ):
        raise InvalidInputError(
            f"it has {known} labels of {counts} samples, and sums of {outputs} classes over "
            f"{learner.samples} samples"
        )
