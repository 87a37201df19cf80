"""Stand-ins for the computation and the report, where only the way to them is tested."""

from dataclasses import replace

import numpy as np

from retarget.diagnosis.answers import Estimate
from support.real_diagnosis import classification, regression


def diagnosis_of(stream):
    """A real diagnosis with another stream's shapes: nothing was moved, nothing corrected."""
    real = classification() if stream.kind == "classification" else regression()
    factor = stream.variance / real.stream.variance
    scored = [
        replace(one, scores=tuple(in_units(score, factor) for score in one.scores))
        for one in real.answers
    ]
    arrays = ("effective", "corrected", "iterative", "prequential")
    return replace(
        real,
        stream=stream,
        answers=tuple(scored),
        density=np.zeros(len(stream)),
        changed=np.zeros(len(stream), dtype=bool),
        **dict.fromkeys(arrays, stream.Y),
    )


def in_units(score, factor):
    """The score of targets whose variance is so many times as large."""
    error, loss = (Estimate(*(factor * end for end in part)) for part in (score.error, score.loss))
    return replace(score, error=error, loss=loss)


class Stand:
    """Replaces the computation and the report, and notes how they were called."""

    def __init__(self):
        self.stream = self.test = self.options = self.command = self.compared = None
        self.report_fails = False

    def diagnose_split(self, parted, options):
        self.stream, self.options, self.asked = parted.stream, options, parted.asked
        self.test = parted.asked.get("test")
        return diagnosis_of(parted.stream)

    def report_html(self, diagnosis, *, command=None, compared=()):
        self.command, self.compared = command, compared
        if self.report_fails:
            raise OSError("no space left on device")
        return "<!doctype html>"


def standing_in(monkeypatch):
    """Puts the stand-ins where the functions are looked up."""
    regression(), classification()  # computed now, and once: it needs what is about to be replaced
    stand = Stand()
    monkeypatch.setattr("retarget.diagnosis.pipeline.diagnose_split", stand.diagnose_split)
    monkeypatch.setattr("retarget.diagnosis.report.page.report_html", stand.report_html)
    return stand
