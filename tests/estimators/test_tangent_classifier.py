"""A network that learns classes at any time: labels of any kind, raw samples, files."""

from enum import Enum
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import retarget as rt
from retarget.errors import DamagedFileError, InvalidInputError, InvalidTypeError
from retarget.estimators.raw_samples import AT_A_TIME
from retarget.kernels.network_map import output_features
from retarget.state_files import read_state, write_state
from support.problems import assert_same

LABELS = ["text", 3, ("a", 1), True, 2.0]


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 6)).to(dtype)


def classifier(**options):
    return rt.TangentClassifier(network(), **{"gamma": 0.2, "features": 60, **options})


def labelled_stream(n=60, seed=0):
    rng = np.random.default_rng(seed)
    numbers = np.arange(n) % len(LABELS)
    X = torch.from_numpy(2 * rng.normal(size=(5, 5))[numbers] + 0.3 * rng.normal(size=(n, 5)))
    return X, [LABELS[number] for number in numbers]


class AnyWidth(nn.Module):
    """Takes arrays of any width and type, as scikit-learn's checks make them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 24).double()

    def forward(self, x):
        x = x.double().flatten(1)
        return torch.tanh(self.layer(nn.functional.pad(x, (0, 64 - x.shape[1]))))


@pytest.mark.slow
def test_check_estimator():
    results = check_estimator(
        rt.TangentClassifier(AnyWidth(), features=60), on_skip=None, on_fail=None
    )
    not_passed = {each["check_name"] for each in results if each["status"] != "passed"}
    # joblib gives a network and its deep copy different hashes, without any call of ours
    assert not_passed <= {"check_estimators_overwrite_params", "check_array_api_input"}
    assert len(results) > 50


def test_labels_of_several_kinds():
    X, labels = labelled_stream()
    model = classifier()
    for label in LABELS[::-1]:
        rows = [i for i, each in enumerate(labels) if each == label]
        model.partial_fit(X[rows], [label] * len(rows))
    assert model.predict(X).tolist() == labels
    assert model.score(X, labels) == 1.0
    assert model.classes_.tolist() == LABELS[::-1]
    whole = classifier().fit(X, labels)
    order = [whole.classes_.tolist().index(label) for label in model.classes_.tolist()]
    assert_same(model.decision_function(X), whole.decision_function(X)[:, order], 1e-9)
    assert model.score(X, [1 if label is True else label for label in labels]) == 1.0
    assert model.score(X, ["none"] * 60) == 0.0


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([3, 1, 1, 2]), [1, 2, 3]),
        (torch.tensor([3, 1, 1, 2]), [1, 2, 3]),
        ([np.int64(3), np.str_("b"), torch.tensor(1), "b"], [3, "b", 1]),
        ((True, False, False, True), [False, True]),
        (["b", "a", "c", "a"], ["a", "b", "c"]),
        ([(2, "x"), (1, "y"), (1, "y"), (0, "z")], [(0, "z"), (1, "y"), (2, "x")]),
    ],
    ids=str,
)
def test_labels_may_come_in_any_list(labels, classes):
    X, _ = labelled_stream(4)
    model = classifier().fit(X, labels)
    assert model.classes_.tolist() == classes
    assert set(model.predict(X).tolist()) <= set(classes)


@pytest.mark.parametrize(
    ("labels", "error", "match"),
    [
        ("abcd", InvalidTypeError, "y is 'abcd'; expected a list of labels"),
        ([1, 2, None, 1], InvalidInputError, "y holds None, with which predict"),
        ([1, 2, float("nan"), 1], InvalidInputError, "y holds nan, which is not equal to itself"),
        ([1, 2, 0.5, 1], InvalidInputError, "y holds 0.5. Unknown label type"),
        ([1, 2, [3], 1], InvalidTypeError, r"y holds \[3\], which is not hashable"),
        ([1, 2], InvalidInputError, "there are 4 samples and 2 labels"),
        (None, InvalidInputError, "the target y is None"),
        (np.array([0.1, 0.2, 0.3, 0.4]), ValueError, "Unknown label type"),
    ],
    ids=str,
)
def test_labels_that_cannot_name_a_class(labels, error, match):
    X, _ = labelled_stream(4)
    model = classifier().fit(X, [1, 2, 3, 4])
    with pytest.raises(error, match=match):
        model.partial_fit(X, labels)
    assert model.learner_.samples == 4
    assert model.classes_.tolist() == [1, 2, 3, 4]


def test_features_are_tangents_and_random_ones():
    X, labels = labelled_stream()
    model = classifier(features=80).fit(X, labels)
    phi = model.learner_._map(X)
    tangents = rt.TangentLearner(network(), features=40)._map(X)
    tangents = tangents / tangents.norm(dim=1, keepdim=True)
    with torch.no_grad():
        outputs = network()(X)
    others = output_features(outputs, 40, 0)
    assert_same(phi, torch.cat([tangents, others], 1), 1e-12)
    assert_same(others.norm(dim=1), torch.ones(60).double(), 1e-12)
    random = torch.Generator().manual_seed(0)
    directions = torch.randn(6, 40, generator=random, dtype=torch.float64)
    positive = (outputs @ directions).clamp(min=0)
    assert_same(others, positive / positive.norm(dim=1, keepdim=True), 1e-12)
    alone = [
        classifier(features=40, learn_from=each).fit(X, labels) for each in ("tangents", "outputs")
    ]
    assert_same(torch.cat([each.learner_._map(X) for each in alone], 1), phi, 1e-12)


def test_outputs_alone_need_no_trainable_parameter():
    X, labels = labelled_stream()
    frozen = network().requires_grad_(False)
    model = rt.TangentClassifier(frozen, gamma=0.2, features=60, learn_from="outputs")
    assert_same(
        model.fit(X, labels).decision_function(X),
        classifier(learn_from="outputs").fit(X, labels).decision_function(X),
        1e-12,
    )
    chosen = rt.TangentClassifier(frozen, gamma=0.2, features=60, params="0.weight").fit(X, labels)
    assert chosen.score(X, labels) == 1.0
    assert not any(each.requires_grad for each in frozen.parameters())


def test_classes_start_from_zero():
    """Its outputs are not the outputs of these classes."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(36, 5)), np.arange(36) % 6
    model = classifier(gamma=1e9).fit(X, y)
    assert_same(model.decision_function(X), np.full((36, 6), 1 / 6), 1e-6)


class Tokens(nn.Module):
    """Mean embedding of the tokens that a mask leaves."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.last = nn.Embedding(30, 8), nn.Linear(8, 8)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].to(self.words.weight)
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return self.last(torch.tanh(mean))


class Tokenizer:
    """As Hugging Face's: pads to the longest, and tells more than the network wants to know."""

    model_input_names = ("input_ids", "token_type_ids", "attention_mask")

    def __init__(self):
        self.lengths = []

    def pad(self):
        raise NotImplementedError

    def __call__(self, texts, *, padding, truncation, return_tensors):
        assert (padding, truncation, return_tensors) == (True, True, "pt")
        longest = max(map(len, texts))
        self.lengths.append([len(text) for text in texts])
        ids = [[ord(letter) - 96 for letter in text] for text in texts]
        padded = torch.tensor([each + [0] * (longest - len(each)) for each in ids])
        mask = (padded > 0).long()
        return {"input_ids": padded, "attention_mask": mask, "token_type_ids": 0 * mask}


def texts(n=200):
    rng = np.random.default_rng(0)
    starts = rng.integers(3, size=n)
    words = [
        "".join("abcdefghi"[3 * start + letter] for letter in rng.integers(3, size=size))
        for start, size in zip(starts, rng.integers(1, 30, size=n), strict=True)
    ]
    return words, [("first", "second", "third")[start] for start in starts]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_raw_texts_in_batches_of_similar_length(dtype):
    words, labels = texts()
    tokenizer = Tokenizer()
    module = Tokens().to(dtype)
    options = {"features": 60, "gamma": 0.1}
    model = rt.TangentClassifier(module, prepare=tokenizer, **options).fit(words, labels)
    spans = [(min(each), max(each)) for each in tokenizer.lengths]
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert max(map(len, tokenizer.lengths)) == AT_A_TIME
    assert model.score(words, labels) > 0.95
    # the same, of one batch prepared by hand
    batch = Tokenizer()(words, padding=True, truncation=True, return_tensors="pt")
    del batch["token_type_ids"]
    peer = rt.TangentClassifier(module, **options).fit(batch, labels)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    assert_same(model.decision_function(words), peer.decision_function(batch), tolerance)
    # and text after text, in whatever batch: forgotten without a trace
    before = len(model.learner_.learned.kept.rows)
    model.forget(words[10:50], labels[10:50])
    assert len(model.learner_.learned.kept.rows) == before - 40
    fewer = rt.TangentClassifier(module, prepare=tokenizer, **options)
    fewer.fit(words[:10] + words[50:], labels[:10] + labels[50:])
    assert_same(model.decision_function(words), fewer.decision_function(words), tolerance)
    assert model.predict([]).shape == (0,)


def test_a_transform_and_functions_that_fail():
    X, labels = labelled_stream()
    images = [np.asarray(row) for row in X]

    def one(image):
        if not isinstance(image, np.ndarray):
            raise TypeError("expected an image")
        return torch.from_numpy(image)

    peer = classifier().fit(X, labels).decision_function(X)
    for prepare in (
        one,
        lambda images: np.stack(images),
        lambda images: [one(each) for each in images],
    ):
        model = classifier(prepare=prepare).fit(images, labels)
        assert_same(model.decision_function(images), peer, 1e-9)
    with pytest.raises(InvalidTypeError, match="prepare fails on a list of 60 samples"):
        classifier(prepare=lambda images: images.nothing).fit(images, labels)
    with pytest.raises(InvalidInputError, match="prepare made 1 samples of 60"):
        classifier(prepare=lambda images: one(images[0])[None]).fit(images, labels)
    for wrong in ("a text", {"a": 1}, 7):
        with pytest.raises(InvalidTypeError, match="expected a list .*`prepare`"):
            classifier(prepare=one).fit(wrong, labels)


def test_saved_and_loaded_it_goes_on(tmp_path):
    X, labels = labelled_stream()
    path = tmp_path / "model.safetensors"
    for options in ({}, {"learn_from": "outputs", "gamma": "auto"}, {"params": "2.*", "seed": 4}):
        model = classifier(**options).fit(X[:40], labels[:40])
        model.save(path)
        loaded = rt.TangentClassifier.load(path, network(seed=9))
        assert loaded.classes_.tolist() == model.classes_.tolist()
        assert_same(loaded.predict_proba(X), model.predict_proba(X), 1e-9)
        assert loaded.predict(X, reject=0.1).tolist() == model.predict(X, reject=0.1).tolist()
        for one in (loaded, model):
            one.forget(X[:7], labels[:7]).partial_fit(X[40:], labels[40:])
        assert_same(loaded.decision_function(X), model.decision_function(X), 1e-9)
        loaded.merge(model)


class Color(Enum):
    RED = 1


def test_labels_that_cannot_be_saved(tmp_path):
    X, _ = labelled_stream(4)
    with pytest.raises(InvalidTypeError, match="RED.* is a Color"):
        classifier().fit(X, [Color.RED, 1, 2, 3]).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(ValueError, match="not fitted"):
        classifier().save(tmp_path / "model")


def test_forged_and_damaged_files(tmp_path):
    X, labels = labelled_stream()
    path = tmp_path / "model.safetensors"
    classifier().fit(X, labels).save(path)
    values, tensors = read_state(path)
    weight = {"network.0.weight": tensors["network.0.weight"] + 1}
    for other_values, other_tensors, match in (
        ({"labels": ["a", "a", "b", "c", "d"]}, {}, "5 labels of 60 samples"),
        ({"labels": values["labels"][:4]}, {}, "4 labels"),
        ({"labels": [*values["labels"][:4], [1]]}, {}, r"a label is \[1\]"),
        ({"labels": [*values["labels"][:4], {"list": 1}]}, {}, "KeyError"),
        ({"counts": [12, 12, 12, 12, 13]}, {}, "5 labels of 61 samples"),
        ({"counts": [12, 12, 12, 36, -12]}, {}, "5 labels of 60 samples"),
        ({"class": "TangentLearner"}, {}, "holds a TangentLearner, not a TangentClassifier"),
        ({"learner": {}}, {}, "KeyError"),
        ({}, weight, "saved with the kernel"),
    ):
        write_state(path, values | other_values, tensors | other_tensors)
        with pytest.raises(InvalidInputError, match=match):
            rt.TangentClassifier.load(path, network())
    classifier().fit(X, labels).save(path)
    damaged = bytearray(path.read_bytes())
    damaged[-20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DamagedFileError):
        rt.TangentClassifier.load(path, network())


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"learn_from": "layers"}, InvalidInputError, "learn_from is 'layers'"),
        ({"features": 1}, InvalidInputError, "features is 1; expected 2 or more"),
        ({"features": 0}, InvalidInputError, "features is 0"),
        ({"gamma": "best"}, InvalidTypeError, "gamma is 'best'"),
        ({"precision": "half"}, InvalidInputError, "precision is 'half'"),
        ({"params": "nothing"}, InvalidInputError, "nothing"),
    ],
    ids=str,
)
def test_options_are_checked_when_a_stream_begins(options, error, match):
    X, labels = labelled_stream()
    with pytest.raises(error, match=match):
        classifier(**options).fit(X, labels)


def test_networks_of_other_weights_are_not_merged():
    X, labels = labelled_stream()
    other = rt.TangentClassifier(network(seed=1), gamma=0.2, features=60).fit(X, labels)
    with pytest.raises(InvalidInputError, match="other has"):
        classifier().fit(X, labels).merge(other)


def test_the_callers_network_may_change_afterwards():
    X, labels = labelled_stream()
    module = network().train()
    model = rt.TangentClassifier(module, gamma=0.2, features=60).fit(X, labels)
    before = model.decision_function(X)
    with torch.no_grad():
        module[0].weight += 1
    assert_same(model.decision_function(X), before, 0)
    assert module.training
    assert model.nbytes == model.learner_.nbytes
