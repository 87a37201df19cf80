"""What a journal saves, when, and what a computation that is run again learns from it."""

from types import SimpleNamespace

import pytest
import torch

import retarget.journal
from retarget.journal import Journal, KeptTensors


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(retarget.journal, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def add_up(journal, rows, seconds, clock, stop=None):
    """Sums of numbers, in two steps; returns the sums and how many portions were done here."""
    sums = []
    work = 0
    for factor in (1, 10):
        total = torch.zeros(2)
        step = journal.step([KeptTensors(total=total)])
        for row in range(step.done, rows):
            total += factor * torch.tensor([row, 1.0])
            work += 1
            clock.now += seconds
            if work == stop:
                return sums, work
            step.advance()
        if not step.finished:
            step.finish()
        sums.append(total.tolist())
    return sums, work


def states(folder):
    return sorted(path.name for path in folder.glob("*.state"))


def test_nothing_is_saved_in_five_minutes(tmp_path, clock):
    journal = Journal(tmp_path)
    add_up(journal, 140, 1.0, clock)
    assert not journal.saved
    assert states(tmp_path) == []
    assert not Journal(tmp_path).continues


def test_then_it_is_saved_every_minute(tmp_path, clock):
    flushed = []
    journal = Journal(tmp_path, lambda: flushed.append(clock.now))
    expected, _ = add_up(journal, 240, 1.0, clock)
    # what was finished before is saved with the first state
    assert flushed == [300.0, 360.0, 420.0, 480.0]
    assert states(tmp_path) == ["0.state", "1.state"]
    again = Journal(tmp_path)
    assert again.continues
    assert add_up(again, 240, 1.0, clock) == (expected, 0)


@pytest.mark.parametrize("stop", [310, 385, 479])
def test_at_most_a_minute_is_done_again(tmp_path, clock, stop):
    expected, _ = add_up(Journal(), 240, 1.0, clock)
    clock.now = 0.0
    add_up(Journal(tmp_path), 240, 1.0, clock, stop)
    sums, work = add_up(Journal(tmp_path), 240, 1.0, clock)
    assert sums == expected
    assert work <= 480 - stop + 60


def test_without_a_folder_nothing_is_known(clock):
    journal = Journal()
    _, work = add_up(journal, 240, 10.0, clock)
    assert work == 480
    assert not journal.saved


def test_a_number_stays_as_it_was_at_first(tmp_path, clock):
    first = Journal(tmp_path)
    assert first.same_number(2**40 + 1) == 2**40 + 1
    clock.now += 1000
    first.step().finish()
    again = Journal(tmp_path)
    assert again.same_number(7) == 2**40 + 1
    assert again.step().finished
