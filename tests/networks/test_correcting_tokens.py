"""Learners and correctors of networks that take several tensors: token ids, masks, segments."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import NetworkCorrector
from retarget.errors import InvalidInputError
from retarget.samples import count, leaves, take
from support.oracles.empirical_ntk import jacobian_gram
from support.small_bert import SmallBert, sentences

# no test is about how large targets are
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
LEARNER = rt.SGD(0.02, batch_size=2, reduction="sum")


def problem(n=12, layers=1, outputs=2):
    torch.manual_seed(4)
    module = SmallBert(layers=layers, outputs=outputs).double().eval()
    Y = torch.randn(n, outputs, dtype=torch.float64)
    return module, sentences(n, seed=3), Y


def rows(X, start, stop):
    return take(X, slice(start, stop))


class Tokens(nn.Module):
    """The same network, whose parameters have the names that `Vectors` gives them."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.bert(input_ids, attention_mask, token_type_ids)


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


def test_a_tangent_learner_of_tokens():
    """Learned and predicted in the same way as below, by the closed loop."""
    module, X, Y = problem()
    learner = rt.TangentLearner(Tokens(module), gamma=0.3, features=64, combinations=2)
    learner.learn(X, Y).forget(rows(X, 5, 9), Y[5:9])
    plain = rt.TangentLearner(Vectors(module), gamma=0.3, features=64, combinations=2)
    plain.learn(Vectors.of(X)[[0, 1, 2, 3, 4, 9, 10, 11]], Y[[0, 1, 2, 3, 4, 9, 10, 11]])
    found = learner.predict(X)
    torch.testing.assert_close(found, plain.predict(Vectors.of(X)))
    torch.testing.assert_close(learner.predict(learner.prepare(X)), found)
    arrays = {key: value.numpy() for key, value in X.items()}
    np.testing.assert_allclose(learner.predict(arrays), found.numpy())
    with pytest.raises(InvalidInputError, match="X has 12 rows and Y has 11"):
        learner.learn(X, Y[:11])


def test_targets_of_tokens_and_a_file(tmp_path):
    module, X, Y = problem()
    K, X = jacobian_gram(module, X, X), tuple(X.values())
    corrector = NetworkCorrector(module, LEARNER, gamma=0.7, block_size=4)
    for start in (0, 4):
        corrector.correct(rows(X, start, start + 4), Y[start : start + 4])
    corrector.save(tmp_path / "state")
    again = NetworkCorrector.load(tmp_path / "state", module)
    assert torch.equal(again.recorrect(), corrector.recorrect())
    expected = rt.iterative_targets(K, Y, LEARNER, 0.7, 4)[8:]
    for each in (corrector, again):
        found = each.correct(rows(X, 8, 12), Y[8:])
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
        assert each.nbytes == sum(leaf.nbytes for leaf in leaves(X)) + Y.nbytes


def test_a_closed_loop_of_tokens(tmp_path):
    module, X, Y = problem()
    module = Tokens(module)
    options = {"gamma": 0.5, "block_size": 4, "features": 32, "replay": 3, "seed": 5}
    corrector = rt.ClosedLoopCorrector(module, LEARNER, **options)
    plain = rt.ClosedLoopCorrector(Vectors(module.bert), LEARNER, **options)
    V = Vectors.of(X)
    for a in range(0, 12, 4):
        corrector.save(tmp_path / "state")
        again = rt.ClosedLoopCorrector.load(tmp_path / "state", module)
        S, Z = corrector.next_block(rows(X, a, a + 4), Y[a : a + 4])
        samples, targets = plain.next_block(V[a : a + 4], Y[a : a + 4])
        torch.testing.assert_close(Z, targets, rtol=1e-8, atol=1e-8)
        assert torch.equal(Vectors.of(S), samples)
        assert count(S) == 4 + min(3, a)
    same, targets = again.next_block(rows(X, 8, 12), Y[8:])
    assert all(torch.equal(*pair) for pair in zip(leaves(same), leaves(S), strict=True))
    assert torch.equal(targets, Z)
    assert corrector.nbytes == again.nbytes


CLOSED = partial(rt.ClosedLoopCorrector, features=16, replay=0)


@pytest.mark.parametrize("kind", [NetworkCorrector, CLOSED])
def test_only_the_chosen_parameters_count(kind, tmp_path):
    module, X, Y = problem()
    corrector = kind(module, LEARNER, gamma=0.5, block_size=4, params="classifier")
    corrector.save(tmp_path / "state")
    assert type(corrector).load(tmp_path / "state", module).params == corrector.params
    Z = corrector.correct(rows(X, 0, 4), Y[:4])
    frozen = copy.deepcopy(module).requires_grad_(False)
    frozen.classifier.requires_grad_(True)
    expected = kind(frozen, LEARNER, gamma=0.5, block_size=4)
    torch.testing.assert_close(Z, expected.correct(rows(X, 0, 4), Y[:4]))
    with pytest.raises(InvalidInputError, match="params has 'heads', .*did you mean"):
        kind(module, LEARNER, gamma=0.5, block_size=4, params="heads")


def test_samples_that_do_not_fit():
    module, X, Y = problem()
    corrector = NetworkCorrector(module, LEARNER, 0.5, 4)
    corrector.correct(rows(X, 0, 4), Y[:4])
    for wrong, message in (
        ({key: value[:4, :5] for key, value in X.items()}, r'"input_ids"\] \(5,\), .* \(9,\)'),
        (X["input_ids"][:4], "this task has samples of shape"),
        (rows(X, 0, 3), "X has 3 samples and Y has 4"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            corrector.correct(wrong, Y[:4])
