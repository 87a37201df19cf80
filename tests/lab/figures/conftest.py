import numpy as np
import pytest

from retarget.lab.data import backbones, minilm
from retarget.lab.data import core50 as frames
from retarget.lab.figures import core50, intents
from support.made_bert import MadeBert, made_tokens
from support.made_cifar10 import write_images
from support.made_core50 import made_frames, picture, write_made_core50, zipped
from support.made_mnist import idx
from support.made_sentences import made_features, write_sentences


@pytest.fixture(scope="session")
def made_data(tmp_path_factory):
    """Few pictures in the formats of MNIST, CIFAR-10 and CORe50, and the stand-in's pictures."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    # ten blurred patterns with noise, easy to tell apart
    patterns = np.kron(rng.uniform(0, 200, size=(10, 7, 7)), np.ones((4, 4)))
    for split, count in (("train", 300), ("t10k", 120)):
        labels = rng.integers(10, size=count)
        images = np.clip(patterns[labels] + rng.normal(0, 60, size=(count, 28, 28)), 0, 255)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels))
    write_images(folder, per_class=3)
    write_sentences(folder, intents=6, per_intent=10)
    objects = [made_frames(range(1, 12), range(1, 51), (1,), (5, 4), seed) for seed in (0, 1)]
    write_made_core50(folder, "zip", objects[0])
    pictures = {f"core50_128x128/{name}": picture(pixels) for name, pixels in objects[1].items()}
    (folder / core50.STAND_IN).write_bytes(zipped(pictures))
    return folder


@pytest.fixture(autouse=True)
def own_folders(made_data, tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", str(made_data))
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path / "cache"))
    for function in (
        core50._data,
        frames._frames_checksum,
        backbones._network_checksum,
        intents.intent_data,
        intents._kept_products,
        intents._learned,
    ):
        function.cache_clear()
    # the network's weights are a package that need not be installed
    monkeypatch.setattr(intents, "embeddings", lambda texts: made_features(texts, 12))
    monkeypatch.setattr(minilm, "load_minilm", lambda: minilm.SentenceEncoder(MadeBert()).eval())
    monkeypatch.setattr(minilm, "as_tokens", made_tokens)
    monkeypatch.setattr(
        intents, "tangents", lambda texts, features, *_, device: made_features(texts, features)
    )


@pytest.fixture
def not_saved(monkeypatch):
    """Figures are drawn but not saved, which takes long: see test_every_family_is_drawn.py."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
