"""Fig. 8: what is drawn is what the learners of the library predict."""

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

import retarget as rt
from retarget.lab.figures import intent_learners, intents
from retarget.lab.figures.intent_learners import IntentStream
from retarget.lab.reader import load_experiment
from support.problems import assert_same


def stream(n=40, width=5, classes=6, seed=0):
    random = np.random.default_rng(seed)
    labels = np.sort(np.concatenate([np.arange(classes), random.integers(0, classes, n - classes)]))
    means = random.normal(size=(classes, width))
    X = torch.from_numpy(means[labels] + random.normal(size=(n, width)))
    return IntentStream(
        features=X,
        labels=torch.from_numpy(labels),
        queries=torch.from_numpy(random.normal(size=(9, width))),
        ends=tuple(np.bincount(labels).cumsum().tolist()),
        stops=(2, 3, 6),
    )


def config(**parameters):
    given = {"data": "clinc150", "learner": "both", "step": 2, "features": 32, "seed": 3}
    return intents.Intents(**(given | parameters))


def test_each_stop_is_ridge_so_far():
    known = stream()
    X, Q = known.features, known.queries
    found = intent_learners.learn_ridge(X @ X.mT, Q @ X.mT, Q.square().sum(1), known, 0.7)
    Y = torch.nn.functional.one_hot(known.labels, 6).double()
    for stop, scores in zip(known.stops, found.scores, strict=True):
        end = known.ends[stop - 1]
        learner = rt.StreamingRidge(rt.Linear(), 0.7).learn(X[:end], Y[:end])
        assert_same(scores, learner.predict(Q)[:, :stop], 1e-10)
    inverse = torch.linalg.inv(0.7 * torch.eye(5).double() + X.mT @ X)
    assert_same(found.variance, 0.7 * ((Q @ inverse) * Q).sum(1), 1e-10)


def test_means_and_slda_are_those_of_scikit_learn():
    known = stream()
    X, y, Q = known.features.numpy(), known.labels.numpy(), known.queries
    by_distance = intent_learners.learn_means(known)[-1].argmax(1)
    assert by_distance.tolist() == NearestCentroid().fit(X, y).predict(Q.numpy()).tolist()
    by_covariance = intent_learners.learn_slda(known)
    priors = np.full(6, 1 / 6)  # SLDA has none
    lda = LinearDiscriminantAnalysis("lsqr", priors=priors).fit(X, y)
    assert by_covariance[-1].argmax(1).tolist() == lda.predict(Q.numpy()).tolist()
    assert [each.shape[1] for each in by_covariance] == [2, 3, 6]
    # before the later intents came
    end = known.ends[1]
    lda = LinearDiscriminantAnalysis("lsqr", priors=[0.5, 0.5]).fit(X[:end], y[:end])
    assert by_covariance[0].argmax(1).tolist() == lda.predict(Q.numpy()).tolist()


def test_sgd_knows_the_last_intent_best():
    table = intents.run(config(learner="SGD", data="banking77"))
    ridge = intents.run(config(learner="ridge", data="banking77"))
    assert table["intents"].to_list() == [2, 4, 6]
    assert ridge["accuracy"][-1] > table["accuracy"][-1] + 0.2


@pytest.mark.parametrize("learner", ["ridge", "random features", "tangents"])
def test_forgetting_an_intent_is_never_having_learned_it(learner):
    table = intents.run(config(part="forgetting", learner=learner))
    assert table["difference"][0] < 1e-8
    assert table["forgotten"][0] == 10
    with pytest.raises(rt.errors.InvalidInputError, match="learner is 'both'"):
        intents.run(config(part="forgetting"))


def test_the_end_does_not_depend_on_the_order():
    ends = [intents.run(config(seed=seed))["accuracy"][-1] for seed in (0, 1)]
    assert ends[0] == ends[1]


def test_both_learns_nothing_anew(monkeypatch):
    learned = []

    def learn(gram, *given):
        learned.append(gram)
        return intent_learners.learn_ridge(gram, *given)

    monkeypatch.setattr(intents, "learn_ridge", learn)
    together = intents.FAMILIES["intents"].together
    runs = [config(seed=17, learner=learner) for learner in ("random features", "tangents", "both")]
    assert len({together(each) for each in runs}) == 1
    assert together(runs[0]) != together(config(seed=18))
    assert together(config(learner="SLDA")) is None
    first, second, both = (intents.run(each) for each in runs)
    assert len(learned) == 2
    assert not first.equals(second)
    assert both["bytes"][0] == 2 * first["bytes"][0]


def test_sentences_out_of_scope_are_told_apart():
    table = intents.run(config(learner="random features", features=256))
    assert table["auroc"][-1] > 0.9
    assert table["auroc_std"][-1] > 0.9
    assert table["auroc"].null_count() == len(table) - 1
    assert "auroc" in intents.run(config(learner="SLDA")).drop_nulls("auroc").columns


def test_folds_have_a_fifth_of_every_intent():
    every = ["a"] * 10 + ["b"] * 7
    folds = intents._folds(every)
    assert np.bincount(folds[:10]).tolist() == [2] * 5
    assert sorted(np.bincount(folds[10:]).tolist()) == [1, 1, 1, 2, 2]
    table = intents.run(config(fold=1, data="banking77"))
    assert table["sentences"][0] == 48
    assert set(table["test"]) == {"folds"}


def test_what_is_kept_is_what_the_learner_keeps():
    known = stream()
    Y = torch.nn.functional.one_hot(known.labels, 6).float()
    learner = rt.StreamingRidge(rt.Linear(), 1.0, precision="float32")
    learner.learn(known.features.float(), Y)
    ours = intent_learners.kept_bytes("ridge", 0, 5, known, 0)
    assert 0.3 * learner.nbytes < ours <= learner.nbytes
    assert intent_learners.kept_bytes("logistic", 0, 5, known, 77) == 77


def test_the_small_version_says_how_small_it_is():
    small = load_experiment("fig8").small()
    assert all(run.per_intent <= 100 for run in small.runs())
    runs = [run for run in small.runs() if run.learner == "SLDA"]
    tables = [intents.run(run).with_columns(seed=run.seed) for run in runs[:1] + runs[2:3]]
    figure = intents.draw(pl.concat(tables))
    titles = [axes.get_title("left") for axes in figure.axes]
    assert "6 intents, 60 sentences" in titles[0]


def test_the_legend_says_who_left_the_picture():
    numbers = {"SGD": [0.9, 0.1], "SLDA": [0.95, 0.8]}
    rows = [
        {"seed": 0, "data": "banking77", "learner": learner, "test": "official", "sentences": 9}
        | {"intents": 2 * (place + 1), "accuracy": accuracy}
        for learner, accuracies in numbers.items()
        for place, accuracy in enumerate(accuracies)
    ]
    figure = intents.draw(pl.DataFrame(rows, schema={"seed": pl.Int64, **intents.COLUMNS}))
    (axes,) = figure.axes
    assert axes.get_ylim() == (pytest.approx(0.7), pytest.approx(1.005))
    (legend,) = (*figure.legends, *([axes.get_legend()] if axes.get_legend() else []))
    shown = {text.get_text() for text in legend.get_texts()}
    assert shown == {"SGD on outputs: 0.100, below", "SLDA: 0.800"}
