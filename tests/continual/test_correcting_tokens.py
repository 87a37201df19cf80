"""Learners and correctors of networks that take several tensors: token ids, masks, segments."""

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.continual import NetworkCorrector
from retarget.errors import InvalidInputError
from retarget.samples import count, leaves, take
from support.oracles.empirical_ntk import jacobian_gram
from support.small_bert import SmallBert, sentences

LEARNER = rt.SGD(0.02, batch_size=2)


def problem(n=12, layers=1, outputs=2):
    torch.manual_seed(4)
    module = SmallBert(layers=layers, outputs=outputs).double().eval()
    Y = torch.randn(n, outputs, dtype=torch.float64)
    return module, sentences(n, seed=3), Y


def rows(X, start, stop):
    return take(X, slice(start, stop))


def assert_same(one, other):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


class Vectors(nn.Module):
    """The same network behind one vector a sample, for comparison with what takes one tensor."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, x):
        parts = x.long().view(len(x), 3, -1).unbind(1)
        return self.bert(*parts)

    @staticmethod
    def of(X):
        keys = ("input_ids", "attention_mask", "token_type_ids")
        return torch.cat([X[key].double() for key in keys], 1)


def test_a_tangent_learner_of_tokens(tmp_path):
    module, X, Y = problem()
    learner = rt.TangentLearner(module, gamma=0.3, memory=64, combinations=2)
    plain = rt.TangentLearner(Vectors(module), gamma=0.3, memory=64, combinations=2)
    learner.learn(rows(X, 0, 5), Y[:5]).learn(rows(X, 5, 9), Y[5:9])
    plain.learn(Vectors.of(X)[:9], Y[:9])
    torch.testing.assert_close(learner.predict(X), plain.predict(Vectors.of(X)))
    torch.testing.assert_close(learner.predict(learner.prepare(X)), learner.predict(X))
    arrays = {key: value.numpy() for key, value in X.items()}
    np.testing.assert_allclose(learner.predict(arrays), learner.predict(X).numpy())
    learner.save(tmp_path / "state")
    again = rt.TangentLearner.load(tmp_path / "state", module)
    assert torch.equal(again.predict(X), learner.predict(X))
    learner.forget(rows(X, 5, 9), Y[5:9])
    plain.forget(Vectors.of(X)[5:9], Y[5:9])
    torch.testing.assert_close(learner.predict(X), plain.predict(Vectors.of(X)))
    with pytest.raises(InvalidInputError, match="X has 12 rows and Y has 11"):
        learner.learn(X, Y[:11])


def test_a_tangent_learner_of_a_part():
    module, X, _ = problem(n=7)
    part = ["layers.0.query.weight", "classifier.weight", "classifier.bias"]
    learner = rt.TangentLearner(module, 0.5, 4096, params=["layers.0.query.weight", "classifier*"])
    K = sum(jacobian_gram(module, X, X, "sum", [name]) for name in part)
    # one combination of two outputs: half their sum, and products of the two on average
    F = learner._tangents(X)
    assert float((F @ F.T - K / 2).norm() / K.norm()) < 0.5
    with pytest.raises(InvalidInputError, match=r"params has 'clasifier', .* did you mean 'classi"):
        rt.TangentLearner(module, params="clasifier")


@pytest.mark.parametrize("kind", ["iterative", "exact"])
def test_targets_are_those_of_the_kernel(kind):
    module, X, Y = problem()
    corrector = NetworkCorrector(module, LEARNER, gamma=0.7, block_size=4, kind=kind)
    K = jacobian_gram(module, X, X)
    found = [corrector.correct(rows(X, a, a + 4), Y[a : a + 4]) for a in (0, 4, 8)]
    expected = {
        "iterative": lambda: rt.iterative_targets(K, Y, LEARNER, 0.7, 4),
        "exact": lambda: rt.corrected_targets(K, Y, LEARNER, 0.7),
    }[kind]()
    torch.testing.assert_close(found[-1], expected[-4:], rtol=1e-8, atol=1e-8)
    assert corrector.nbytes == sum(leaf.nbytes for leaf in leaves(X)) + Y.nbytes


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_an_open_loop_goes_on_from_a_file(form, tmp_path):
    module, X, Y = problem()
    X = X if form == "dict" else tuple(X.values())
    corrector = NetworkCorrector(module, LEARNER, 0.7, 4, params="layers.*")
    corrector.correct(rows(X, 0, 4), Y[:4])
    corrector.save(tmp_path / "state")
    again = NetworkCorrector.load(tmp_path / "state", module)
    assert again.params == corrector.params
    assert all(name.startswith("layers.0.") for name in again.params)
    for each in (corrector, again):
        assert torch.equal(each.recorrect(), corrector.recorrect())
    assert_same(again.correct(rows(X, 4, 8), Y[4:8]), corrector.correct(rows(X, 4, 8), Y[4:8]))


def test_a_closed_loop_of_tokens_is_that_of_vectors_and_goes_on_from_a_file(tmp_path):
    module, X, Y = problem(n=16)
    options = {"gamma": 0.5, "block_size": 4, "memory": 32, "replay": 3, "seed": 5}
    corrector = NetworkCorrector(module, LEARNER, **options)
    plain = NetworkCorrector(Vectors(module), LEARNER, **options)
    V = Vectors.of(X)
    for a in range(0, 12, 4):
        S, Z = corrector.next_block(rows(X, a, a + 4), Y[a : a + 4])
        samples, targets = plain.next_block(V[a : a + 4], Y[a : a + 4])
        torch.testing.assert_close(Z, targets, rtol=1e-8, atol=1e-8)
        assert torch.equal(Vectors.of(S), samples)
        assert count(S) == 4 + min(3, a)
    corrector.save(tmp_path / "state")
    again = NetworkCorrector.load(tmp_path / "state", module)
    for mine, other in zip(
        corrector.next_block(rows(X, 12, 16), Y[12:]),
        again.next_block(rows(X, 12, 16), Y[12:]),
        strict=True,
    ):
        assert_same(mine, other)
    assert corrector.nbytes == again.nbytes


@pytest.mark.parametrize("memory", [None, 16])
def test_only_the_chosen_parameters_count(memory):
    module, X, Y = problem()
    corrector = NetworkCorrector(module, LEARNER, 0.5, 4, params="classifier", memory=memory)
    Z = corrector.correct(rows(X, 0, 4), Y[:4])
    frozen = SmallBert(layers=1, outputs=2).double().eval()
    frozen.load_state_dict(module.state_dict())
    frozen.requires_grad_(False)
    frozen.classifier.requires_grad_(True)
    expected = NetworkCorrector(frozen, LEARNER, 0.5, 4, memory=memory)
    torch.testing.assert_close(Z, expected.correct(rows(X, 0, 4), Y[:4]))
    with pytest.raises(InvalidInputError, match="params has 'heads', .*did you mean"):
        NetworkCorrector(module, LEARNER, 0.5, 4, params="heads", memory=memory)


def test_samples_that_do_not_fit():
    module, X, Y = problem()
    corrector = NetworkCorrector(module, LEARNER, 0.5, 4)
    corrector.correct(rows(X, 0, 4), Y[:4])
    short = {key: value[:4, :5] for key, value in X.items()}
    message = r'\["input_ids"\] \(5,\), .* expected samples of shape .* \(9,\)'
    with pytest.raises(InvalidInputError, match=message):
        corrector.correct(short, Y[:4])
    with pytest.raises(InvalidInputError, match="this task has samples of shape"):
        corrector.correct(X["input_ids"][:4], Y[:4])
    with pytest.raises(InvalidInputError, match="X has 4 samples and Y has 3"):
        corrector.correct(rows(X, 0, 4), Y[:3])
