"""The verdict on the user's own model: what it did when it was run, and what helped it."""

import math

import numpy as np

from retarget.diagnosis.report.words import (
    change_words,
    clear_gain,
    number,
    percent,
    target_length,
    with_interval,
)
from retarget.diagnosis.result import DIVERGED, OUT_OF_PROPORTION, Diagnosis, ModelDiagnosis


def model_headline(diagnosis: Diagnosis, model: ModelDiagnosis) -> str:
    """How it compares with itself, trained in other ways."""
    came, batch = model.score("as it came").error, model.score("batch").error
    if not model.orders:  # of a log of predictions, nothing more is known
        again, before = model.remembered.value, model.prequential.value
        if math.isfinite(again) and math.isfinite(before):
            return (
                f"Asked again at the end about rows that it had learned, {model.name} have an "
                f"error of {number(again)}; when each row came, it was {number(before)}."
            )
        return f"The error of {model.name} is {with_interval(came)}."
    if not came.value <= DIVERGED * diagnosis.baselines[0].error.value:
        return f"{model.name} diverges on this stream: its error is beyond any use."
    order = f"in random order its error is {change_words(model.order)}"
    if not (math.isfinite(batch.value) and batch.value > 0):
        return f"{model.name}, row by row: {order}."
    excess = came.value / batch.value - 1
    return (
        f"{model.name}, row by row, has {percent(abs(excess))} {'more' if excess >= 0 else 'less'} "
        f"error than as a batch model; {order}."
    )


def model_findings(diagnosis: Diagnosis, model: ModelDiagnosis) -> list[str]:
    """What was seen of it, a sentence each."""
    known = [
        f"{score.way} {number(score.error.value, 4)}"
        for score in model.scores
        if math.isfinite(score.error.value)
    ]
    found = [*model.failures, f"Mean squared error of {model.name}: {'; '.join(known)}."]
    shift = float(np.linalg.norm(model.shift, axis=1).mean())
    if math.isfinite(shift):
        found.append(
            f"What {model.name} said of a row right after learning it, and what it says of it at "
            f"the end, differ by {number(shift)} on average, where a target's own length is "
            f"{number(target_length(diagnosis))}."
        )
    found.append(f"{model.description[0].upper()}{model.description[1:].rstrip('.')}.")
    if model.agreement is not None and math.isfinite(model.agreement):
        found.append(
            f"The theory's prediction of these movements agrees with {model.name} to "
            f"{percent(max(0.0, model.agreement))}."
        )
    return found


def model_advice(model: ModelDiagnosis) -> tuple[str | None, ...]:
    """What was seen to work on the user's own model, for real."""
    order = corrected = None
    if clear_gain(model.order):
        order = (
            f"Show {model.name} the rows in random order, if you can: over {len(model.orders)} "
            f"orders its error is {change_words(model.order)}."
        )
    closed = model.closed
    if model.corrected is not None and math.isfinite(closed.value):
        share = f"{with_interval(closed, share=True)} of the gap to its batch model"
        if model.corrected_size > OUT_OF_PROPORTION:
            corrected = (
                f"Do not train {model.name} on corrected targets: they reach "
                f"{number(model.corrected_size)} standard deviations."
            )
        elif model.helped:
            corrected = (
                f"Train {model.name} on iteratively corrected targets: trained on them, it closed "
                f"{share}."
            )
        else:
            corrected = (
                f"Do not train {model.name} on corrected targets: it was tried, and closed {share}."
            )
    return order, corrected
