"""Saved states that are whole and wrong: made by another version, or by somebody."""

import numpy as np
import pytest

import retarget as rt
from retarget.errors import RetargetError

pytestmark = pytest.mark.faults


def saved(path, monkeypatch, change):
    """A state with something else in it than `save` would write, and everything in order."""
    rng = np.random.default_rng(0)
    corrector = rt.TargetCorrector(rt.RBF(1.3), rt.SGD(0.2), gamma=0.7, block_size=5)
    corrector.correct(rng.normal(size=(23, 3)), rng.normal(size=23))
    state = corrector._state()
    change(state)
    with monkeypatch.context() as patched:
        patched.setattr(rt.TargetCorrector, "_state", lambda self: state)
        corrector.save(path)


def names():
    corrector = rt.TargetCorrector(rt.RBF(1.3), rt.SGD(0.2), gamma=0.7, block_size=5)
    corrector.correct(np.eye(3), np.ones(3))
    return sorted(set(corrector._state()) - {"waiting"})


@pytest.mark.parametrize("name", names())
def test_an_entry_that_is_missing_is_explained(tmp_path, monkeypatch, name):
    path = tmp_path / "state.safetensors"
    saved(path, monkeypatch, lambda state: state.pop(name))
    with pytest.raises(RetargetError, match=r"state\.safetensors"):
        rt.TargetCorrector.load(path)
