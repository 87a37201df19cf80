"""Features for classes that a network was not trained on: its tangents, its outputs, or both."""

from functools import lru_cache, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from retarget.arrays import as_count
from retarget.errors import InvalidInputError
from retarget.kernels.feature_maps import FeatureMap, feature_map, tangent_map
from retarget.state_files import checksum

LearnFrom = Literal["both", "tangents", "outputs"]


def network_map(
    network: nn.Module,
    params: list[str],
    features: int,
    combinations: int,
    seed: int,
    learn_from: LearnFrom = "both",
) -> FeatureMap:
    """Makes the map from samples to features of a network, each kind of length 1.

    Args:
        network: It must be in evaluation mode, and must not change any more.
        params: The names of the parameters whose tangents are used.
        features: Number of features, together.
        combinations: Random combinations of the outputs whose gradients are computed.
        seed: Seed of all random numbers.
        learn_from: `"tangents"`, random projections of the gradients; `"outputs"`, random features
            of the outputs; or `"both"`, one half of each.
    """
    if learn_from not in get_args(LearnFrom):
        raise InvalidInputError(
            f"learn_from is {learn_from!r}; expected 'both', 'tangents' or 'outputs'"
        )
    count = as_count("features", features)
    shares = {"tangents": count, "both": count // 2, "outputs": 0}
    tangents = shares[learn_from]
    if learn_from == "both" and count < 2:
        raise InvalidInputError(f"features is {count}; expected 2 or more, one of each kind")
    if tangents:
        source = tangent_map(network, params, tangents, combinations, seed)
    else:
        source = feature_map(network)
    description = {
        "features": count,
        "combinations": combinations,
        "params": params,
        "seed": seed,
        "learn_from": learn_from,
        "weights": checksum("", network.state_dict()),
    }
    compute = partial(_features, source, tangents, count - tangents, seed)
    return FeatureMap(compute, None, False, description, source=network)


def output_features(outputs: Tensor, count: int, seed: int) -> Tensor:
    """Returns random features (n, count) of a network's outputs (n, c): rectified projections."""
    directions = _directions(outputs.shape[1], count, seed, outputs.dtype).to(outputs.device)
    return _of_length_one(torch.relu(outputs @ directions))


def _features(
    source: FeatureMap, tangents: int, others: int, seed: int, X: Any
) -> tuple[Tensor, None]:
    features, outputs = source.compute(X)
    if outputs is None:  # then the features are the network's outputs
        return output_features(features, others, seed), None
    kinds = [_of_length_one(features)]
    if others:
        kinds.append(output_features(outputs, others, seed))
    return torch.cat(kinds, 1), None


def _of_length_one(features: Tensor) -> Tensor:
    length = features.norm(dim=1, keepdim=True)
    unit: Tensor = features / length.clamp(min=torch.finfo(features.dtype).tiny)
    return unit


@lru_cache(maxsize=8)
def _directions(outputs: int, count: int, seed: int, dtype: torch.dtype) -> Tensor:
    """(outputs, count) standard normal numbers, the same on every device."""
    random = torch.Generator().manual_seed(seed)
    normals = torch.randn(outputs, count, generator=random, dtype=torch.float64, device="cpu")
    return normals.to(dtype)
