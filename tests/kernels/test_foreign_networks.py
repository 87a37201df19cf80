"""Networks of Hugging Face and Keras as they come, where these are installed."""

import pytest
import torch

import retarget as rt
from retarget.samples import count, outputs_of, take
from support.oracles.empirical_ntk import forms

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

N, LENGTH, VOCABULARY = 5, 9, 50
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "num_labels": 3,
    "pad_token_id": 0,
}


def by_hand(module, X):
    """(n, n) the kernel, one gradient at a time."""
    chosen = [value for value in module.parameters() if value.requires_grad]
    rows = []
    for i in range(count(X)):
        for output in outputs_of(module, take(X, slice(i, i + 1)))[0]:
            found = torch.autograd.grad(
                output, chosen, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            rows.append(torch.cat([part.flatten() for part in found]))
    F = torch.stack(rows).view(count(X), -1, rows[0].numel())
    return torch.einsum("ikp,jkp->ij", F, F) / F.shape[1]


def sentences():
    torch.manual_seed(0)
    ids, mask = torch.randint(3, VOCABULARY, (N, LENGTH)), torch.ones(N, LENGTH, dtype=torch.long)
    mask[1, 6:] = mask[3, 4:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("mode", ["structured", "jacobian"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("BertForSequenceClassification", {}),
        ("BertForSequenceClassification", {"attn_implementation": "eager"}),
        ("BertModel", {}),
        ("RobertaForSequenceClassification", {}),
        ("GPT2ForSequenceClassification", {"bos_token_id": 1, "eos_token_id": 1}),
    ],
)
def test_hugging_face(name, options, mode):
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, name)
    module = model(model.config_class(**SIZES, **options)).double().eval()
    X = sentences()
    expected = by_hand(module, X)
    kernel = rt.EmpiricalNTK(module, mode=mode)
    torch.testing.assert_close(kernel(X), expected, rtol=1e-10, atol=1e-10 * expected.abs().max())
    if mode == "structured":
        assert "Jacobian" not in forms(kernel, X)


def test_keras(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(1)
    layers = keras.layers
    network = keras.Sequential(
        [layers.Input((5,)), layers.Dense(7, "tanh"), layers.LayerNormalization(), layers.Dense(3)]
    )
    X = torch.randn(6, 5)
    torch.testing.assert_close(rt.EmpiricalNTK(network)(X), by_hand(network, X))
    learner = rt.TangentLearner(network, 1.0, 64).learn(X, X[:, :3])
    assert learner.predict(X).shape == (6, 3)
