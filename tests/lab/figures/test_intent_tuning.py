"""Fine-tuning beside Fig. 8: what is trained on what, and what is stored."""

import numpy as np
import polars as pl
import pytest
import torch

from retarget.lab.data import minilm
from retarget.lab.figures import intent_tuning, intents
from retarget.lab.figures.intent_tuning import Tuner, Tuning


def config(**parameters):
    given = {
        "data": "banking77",
        "learner": "replay",
        "step": 2,
        "lr": 0.03,
        "head_lr": 0.03,
        "epochs": 4,
        "seed": 1,
    }
    return Tuning(**(given | {"batch_size": 8} | parameters))


def tuner(**parameters):
    chosen = config(**parameters)
    data = intents.intent_data("banking77", chosen.intents, chosen.per_intent, None)
    return Tuner(chosen, data), data


def test_joint_training_and_one_after_another():
    joint = intent_tuning.run(config(learner="joint", epochs=8))
    assert joint["intents"].to_list() == [6]
    alone = intent_tuning.run(config(learner="fine-tuning", step=1, epochs=8))
    assert alone["intents"].to_list() == [1, 2, 3, 4, 5, 6]
    assert joint["accuracy"][0] > alone["accuracy"][-1] + 0.3
    assert joint["bytes"][0] > alone["bytes"][0] == 0


def test_a_fold_of_the_training_set_is_the_test():
    table = intent_tuning.run(config(learner="joint", fold=1))
    assert table["test"].to_list() == ["folds"]
    assert table["sentences"].to_list() == [48]


def test_loss_and_rate_of_the_head():
    known, data = tuner(learner="fine-tuning", lr=1e-9, head_lr=0.03)
    labels = known.labels.numpy()
    before = [each.clone() for each in known.network.encoder.parameters()]
    known.train(data.learned[labels[data.learned] < 2], 2)
    head = known.network.head
    assert head.weight[:2].abs().min() > 0
    assert not head.weight[2:].any()
    for was, now in zip(before, known.network.encoder.parameters(), strict=True):
        torch.testing.assert_close(now, was, rtol=0, atol=1e-6)


def test_mini_batches_of_replay():
    known, data = tuner(capacity=30, epochs=1)
    first, then = data.learned[:20], data.learned[20:40]
    known.train(first, 6)
    assert sorted(known.stored) == sorted(first.tolist())
    batches = list(known._batches(then))
    assert sorted(np.concatenate([each[: len(each) // 2] for each in batches])) == then.tolist()
    for each in batches:
        assert set(each[len(each) // 2 :]) <= set(first.tolist())
    known.train(then, 6)
    assert len(known.stored) == 30
    assert known.stored_bytes == sum(len(known.texts[row]) for row in known.stored)


def test_the_stored_sentences_are_a_random_sample():
    known, _ = tuner(capacity=5)
    counts = np.zeros(20)
    for _ in range(400):
        known.stored, known.seen = [], 0
        for rows in (np.arange(4), np.arange(4, 20)):
            known._store(rows)
        counts[known.stored] += 1
    assert counts.sum() == 2000
    assert np.abs(counts - 100).max() < 40


@pytest.mark.parametrize("learner", ["joint", "fine-tuning"])
def test_runs_repeat_and_leave_the_random_numbers_alone(learner):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = intent_tuning.run(config(learner=learner, epochs=1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.equals(intent_tuning.run(config(learner=learner, epochs=1)))


def test_predictions_are_of_the_intents_so_far():
    known, data = tuner()
    assert known.predict(data.asked, 2).max() <= 1
    texts = [known.texts[row] for row in data.asked[:3]]
    scores = known.network(**minilm.as_tokens(texts))
    assert known.predict(data.asked[:3], 6).tolist() == scores.argmax(1).tolist()


def test_runs_of_a_figure_are_told_apart():
    learners = {"joint": {"lr": 0.002}, "replay": {"capacity": 4}, "fine-tuning": {}}
    tables = [
        intent_tuning.run(config(learner=learner, epochs=1, **more)).with_columns(seed=seed)
        for learner, more in learners.items()
        for seed in (0, 1)
    ]
    again = config(learner="replay", epochs=1, capacity=1000)
    table = pl.concat([*tables, intent_tuning.run(again).with_columns(seed=0)])
    (axes,) = intents.draw(table).axes
    lines = {line.get_label().split(":")[0]: line for line in axes.lines}
    names = ["joint, all kept, rate 0.002", "replay, 4 stored", "replay, 1,000 stored"]
    assert list(lines) == [*names, "fine-tuning"]
    few, many = (lines[name] for name in names[1:])
    assert few.get_color() == many.get_color()
    assert few.get_linestyle() != many.get_linestyle()
    (shown,) = intents.summarize(table)
    assert list(shown.columns[0].cells) == list(lines)
