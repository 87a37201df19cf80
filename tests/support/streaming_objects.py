"""The streaming objects by name, and what is done with each of them alike."""

import numpy as np

import retarget as rt

CE = "cross-entropy"
LEARNER = rt.SGD(lr=0.05, batch_size=2, momentum=0.9, reduction="sum")


def corrector(kernel, learner=LEARNER, **options):
    return rt.TargetCorrector(kernel, learner, 0.6, np.int64(4), 0.1, **options)


def shift(kernel, learner=LEARNER, **options):
    return rt.ShiftTracker(kernel, learner, 0.6, **options)


def correction(kernel, learner=LEARNER, **options):
    return rt.CorrectionTracker(kernel, learner, 0.6, **options)


def feed(thing, X, Y, **more):
    return (thing.correct if isinstance(thing, rt.TargetCorrector) else thing.update)(X, Y, **more)


def results(thing, X, Y):
    """All that comes out after these samples, the open block included."""
    fed = feed(thing, X, Y)
    if isinstance(thing, rt.TargetCorrector):
        return np.concatenate([fed, thing.flush()])
    tracked = "effective" if isinstance(thing, rt.ShiftTracker) else "corrected"
    return getattr(thing, f"{tracked}_targets")


def saved(thing, path):
    thing.save(path)
    return path.read_bytes()
