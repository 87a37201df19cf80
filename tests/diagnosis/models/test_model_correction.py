"""Which corrected targets a user's model gets: those on which it ends best on its own rows."""

from dataclasses import replace

import numpy as np
import pytest

from retarget.diagnosis.measure.choose import choose_block
from retarget.diagnosis.measure.holdout import as_tensors, split
from retarget.diagnosis.models import correction
from retarget.diagnosis.models.correction import best_correction, candidates
from retarget.diagnosis.models.equivalent import describe, open_description
from retarget.diagnosis.models.model_diagnosis import diagnose_model
from retarget.diagnosis.models.runs import pass_in_order
from support.diagnosis_options import options_for
from support.diagnosis_streams import drifting
from support.user_models import network, opened, quietly

STREAM = drifting(90, dimensions=4)


def machine_of(options):
    model = opened(
        options.model, STREAM, lr=options.learner.lr, batch_size=options.learner.batch_size
    )
    return model, open_description(describe(model, as_tensors(STREAM)[0]), *as_tensors(STREAM))


def chosen_by_hand(model, options, machine):
    """Trains the model on every candidate; the error on the stream's own rows of each."""
    block = choose_block(options.block_size, options.learner.batch_size, len(STREAM))
    tried = [targets for targets, _ in candidates(machine, STREAM, options, block)]
    errors = []
    for targets in tried:
        order = np.arange(len(STREAM))
        trained, _ = pass_in_order(model, STREAM.X, targets, order, options.seed, quietly)
        errors.append(np.square(trained.predict(STREAM.X) - STREAM.Y).mean())
    return tried, errors


def test_the_candidate_with_the_least_error():
    options = options_for(model=network(4, hidden=16), lr=0.008, batch_size=3)
    model, machine = machine_of(options)
    tried, errors = chosen_by_hand(model, options, machine)
    assert len(tried) == 1 + len(correction.PARTS_OF_THE_WAY) + len(correction.GENTLER)
    best = int(np.argmin(errors))
    assert best != 0  # the kernel machine's own choice is not the network's
    plain, _ = pass_in_order(model, STREAM.X, STREAM.Y, np.arange(90), 0, quietly)
    without = np.square(plain.predict(STREAM.X) - STREAM.Y).mean()
    assert any(error < without for error in errors[:best])  # the first that helps is not the best
    found = best_correction(model, machine, STREAM, options, quietly)
    np.testing.assert_array_equal(found.targets, tried[best])
    end = np.square(found.model.predict(STREAM.X) - STREAM.Y).mean()
    assert end == pytest.approx(errors[best], rel=1e-12)
    assert found.before_blocks.shape == STREAM.Y.shape


def test_a_part_of_the_way():
    options = options_for(model=network(4), lr=0.02, batch_size=3)
    _, machine = machine_of(options)
    made = candidates(machine, STREAM, options, 9)
    (first, words), (half, _), (quarter, of_quarter), *_ = made
    np.testing.assert_allclose(half, (first + STREAM.Y) / 2, atol=1e-12)
    np.testing.assert_allclose(quarter, first / 4 + 0.75 * STREAM.Y, atol=1e-12)
    assert of_quarter == f"25% of the way to {words}"


@pytest.mark.parametrize("given", [{"gamma": 0.5}, {"ridge": 0.3}])
def test_what_the_user_gave_is_kept(given):
    options = options_for(model=network(4), lr=0.02, batch_size=3, **given)
    _, machine = machine_of(options)
    ((_, words),) = candidates(machine, STREAM, options, 9)
    word = {"gamma": "ridge 0.5 and", "ridge": "stabilizer 0.3"}[next(iter(given))]
    assert word in words


def test_targets_of_a_usable_size_are_preferred(monkeypatch):
    options = options_for(model=network(4), lr=0.02, batch_size=3)
    model, machine = machine_of(options)
    tried, errors = chosen_by_hand(model, options, machine)
    sizes = [STREAM.farthest(targets) for targets in tried]
    best = int(np.argmin(errors))
    limit = 0.99 * sizes[best]
    monkeypatch.setattr(correction, "TOO_LARGE", limit)
    found = best_correction(model, machine, STREAM, options, quietly)
    least = min(error for error, size in zip(errors, sizes, strict=True) if size <= limit)
    assert STREAM.farthest(found.targets) <= limit
    end = np.square(found.model.predict(STREAM.X) - STREAM.Y).mean()
    assert end == pytest.approx(least, rel=1e-12)


def test_after_failing_on_some_targets():
    options = options_for(model=network(4, hidden=24), lr=0.05, batch_size=3)
    model, machine = machine_of(options)
    found = best_correction(model, machine, STREAM, options, quietly)
    assert found.failures[0].startswith("On targets corrected with ridge ")
    assert ", Sequential with SGD gave predictions that are not finite" in found.failures[0]
    assert np.isfinite(found.model.predict(STREAM.X)).all()


def test_held_out_rows_choose_nothing():
    options = options_for(model=network(4, hidden=24), lr=0.05, batch_size=3)
    parted = split(drifting(150, dimensions=4), None, options)
    other = parted._replace(
        asked={question: replace(rows, Y=-3 * rows.Y) for question, rows in parted.asked.items()}
    )
    one, two = (diagnose_model(rows, options) for rows in (parted, other))
    np.testing.assert_array_equal(one.corrected, two.corrected)
    assert one.score("corrected", "whole").error != two.score("corrected", "whole").error
