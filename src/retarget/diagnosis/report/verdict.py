"""Puts the numbers of a diagnosis in plain words: a headline, findings, and what to change.

A change is recommended only if it was tried and clearly helped on rows that were not used to choose
it. If the user gave a model, it was tried on that model: what is right for a kernel may be wrong
for a network.
"""

import math
from collections.abc import Iterator

import numpy as np
from rich.filesize import decimal

from retarget.diagnosis.answers import DIVERGED, Baseline
from retarget.diagnosis.options import batch_model_name
from retarget.diagnosis.report.words import (
    approximation_rows,
    baseline_lines,
    change_words,
    clear_gain,
    interval,
    largest_moves,
    learner_lines,
    number,
    opposite,
    percent,
    sentence,
    target_length,
    with_interval,
)
from retarget.diagnosis.result import OUT_OF_PROPORTION, Diagnosis, ModelDiagnosis, Verdict
from retarget.text import listed
from retarget.theory.offline.aims import as_aim

MANY = 10.0  # an excess error above this is given as a multiple, not in per cent
STRONG_INTERFERENCE = 0.25  # movement by one other group, as a share of a target's length
ROUNDING = 0.01  # relative difference allowed between exactly corrected and offline errors
NEAR_LIMIT = 0.8  # share of the largest stable rate
FEW_ROWS = 100
POOR_FEATURES = 0.2  # relative error of the shift
HIDDEN = 2.0  # progressive validation hides an error that is this many times its own


def verdict(diagnosis: Diagnosis) -> Verdict:
    """Returns the verdict on a diagnosis."""
    about, model = diagnosis.approximation, diagnosis.model
    findings, advice = [*diagnosis.failures], []
    if diagnosis.unseen:
        findings.append(
            "WARNING: the held-out rows hold classes that were never learned "
            f"({listed(diagnosis.unseen)}). No model can predict them, so these scores mean little."
        )
        advice.append(
            "Hold out rows of every class before you act on these scores: --evaluation random."
        )
    if model is not None:
        headline = _model_headline(diagnosis, model)
        findings += _model_findings(diagnosis, model)
        advice += _model_advice(model)
    else:
        headline = _headline(diagnosis)
        if about is not None and _limited_by_features(diagnosis):
            headline = f"As far as {about.words} can tell, {headline[0].lower()}{headline[1:]}"
        advice += _learner_advice(diagnosis)
    for part in (_errors, _time, _movements, _corrections, _features):
        findings += part(diagnosis)
    advice += _data_advice(diagnosis)
    nothing = "No change that was tried is clearly better: leave the learner as it is."
    return Verdict(headline, tuple(findings), tuple(advice) or (nothing,))


def _headline(diagnosis: Diagnosis) -> str:
    """Says how far the online model is from the batch model, and whether correction helps."""
    excess, reference = diagnosis.excess, _reference(diagnosis)
    if diagnosis.diverged:
        return (
            f"The online model diverges at lr = {diagnosis.lr.value:.3g}: it is worse than "
            f"predicting {diagnosis.baselines[0].name} by a factor of more than {DIVERGED:,.0f}."
        )
    if math.isnan(reference.error.value):
        return "There is no batch model to compare the online model with."
    if math.isnan(excess.value):
        return "The online and the batch model perform the same: neither makes an error."
    if excess.high < 0:
        below = opposite(excess)
        return (
            f"The online model's error is {percent(below.value)} below that of the "
            f"{reference.name} ({interval(below, share=True)})."
        )
    if excess.low <= 0:
        return (
            f"The online model is about as good as the {reference.name}: its error differs by "
            f"{with_interval(excess, share=True)}."
        )
    if excess.value < MANY:
        far, bounds = f"{percent(excess.value)} above", interval(excess, share=True)
    else:
        times, low, high = (f"{1 + value:,.0f}" for value in excess)
        far, bounds = f"{times} times", f"{low} to {high} times"
    above = f"The online model's error is {far} that of the {reference.name} ({bounds})"
    if _same_classes(diagnosis):
        return f"{above}, but its accuracy is about the same."
    return f"{above}; {_closing(diagnosis)}."


def _reference(diagnosis: Diagnosis) -> Baseline:
    """The batch model that the online one is compared with."""
    name = batch_model_name(as_aim(diagnosis.reference))
    offline = diagnosis.score("offline")
    own = Baseline("batch model", offline.error, offline.accuracy)
    return next((one for one in diagnosis.baselines if one.name == name), own)


def _closing(diagnosis: Diagnosis) -> str:
    closed = diagnosis.gap_closed["iterative"]
    if math.isnan(closed.value):
        return "the iterative correction could not be computed"
    share = f"{with_interval(closed, share=True)} of the gap"
    if not _usable(diagnosis):
        return "iterative correction would need targets out of all proportion"
    if closed.low > 0:
        return f"iterative correction closes {share}"
    if closed.high < 0:
        return f"iterative correction widens the gap by {percent(-closed.value)}"
    return f"it is not clear that iterative correction helps: it closes {share}"


def _usable(diagnosis: Diagnosis) -> bool:
    return diagnosis.target_size["iterative"] <= OUT_OF_PROPORTION


def _same_classes(diagnosis: Diagnosis) -> bool:
    """Whether the online model's accuracy is not clearly below the batch model's."""
    gap = diagnosis.accuracy_gap
    return gap is not None and gap.low <= 0


def _limited_by_features(diagnosis: Diagnosis) -> bool:
    """Whether the true kernel does better with a few rows than the features do with all."""
    reference = diagnosis.approximation and diagnosis.approximation.reference
    return bool(reference and clear_gain(reference))


def _errors(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the errors, and which simple predictors do better."""
    shown = "; ".join(
        f"{line.label} {number(line.error.value, 4)}"
        for line in [*learner_lines(diagnosis), *baseline_lines(diagnosis)]
        if math.isfinite(line.error.value)
        and (line.mark in ("offline", "baseline") or not diagnosis.diverged)
    )
    progressive = diagnosis.evaluation == "progressive"
    rows = "rows, each before its step" if progressive else "held-out rows"
    yield f"Mean squared error on {diagnosis.test_rows:,} {rows}: {shown}."
    if diagnosis.accuracy_gap and _same_classes(diagnosis) and not diagnosis.diverged:
        yield (
            "The online model is about as accurate as the batch model: their accuracies "
            f"differ by {with_interval(diagnosis.accuracy_gap, share=True)}."
        )
    mean = diagnosis.baselines[0]
    offline, online = (diagnosis.score(name).error.value for name in ("offline", "online"))
    models = (("the batch model", offline), ("the online model", online))
    worse = [f"{name} ({number(error, 4)})" for name, error in models if error > mean.error.value]
    if worse and not diagnosis.diverged:
        yield sentence(
            f"{' and '.join(worse)} {'are' if len(worse) > 1 else 'is'} worse than predicting "
            f"{mean.name} ({number(mean.error.value, 4)}) on these rows."
        )
    last = next((one for one in diagnosis.baselines if one.name == "the last value"), None)
    if last is not None and last.error.high < min(offline, online):
        yield (
            f"Predicting the last value ({number(last.error.value, 4)}) is better than both "
            "models: the previous value tells more than the features do."
        )


def _time(diagnosis: Diagnosis) -> Iterator[str]:
    """Says whether the stream drifts, and what progressive validation hides."""
    offline = diagnosis.score("offline").error.value
    recent = (one for one in diagnosis.baselines if one.name.startswith("batch model"))
    better = next((one for one in recent if one.error.high < offline), None)
    if better and diagnosis.reference == "all":
        rows = "".join(letter for letter in better.name if letter.isdigit())
        yield (
            f"The stream drifts: a {better.name} has {percent(1 - better.error.value / offline)} "
            "less error than one trained on all rows. Compare the online model with it: "
            f"--reference window:{rows}."
        )
    elif diagnosis.excess.high < 0 and diagnosis.evaluation in ("last", "progressive"):
        yield (
            "The online model does better than the batch model: the stream drifts, and following "
            "it pays off more than remembering all of it."
        )
    before, again = diagnosis.prequential_error, diagnosis.hindsight
    online, progressive = diagnosis.score("online").error.value, diagnosis.evaluation
    if diagnosis.diverged or not before > 0:
        return
    if progressive != "progressive" and online > HIDDEN * before:
        yield (
            f"Progressive validation hides this: the error on each row just before it was learned "
            f"is {number(before)}, but {number(online)} on held-out rows."
        )
    if progressive == "progressive" and again > HIDDEN * before:
        yield (
            "Progressive validation hides what was forgotten: at the end, the online model's error "
            f"on the rows that it has learned is {number(again)}; just before learning each of "
            f"them, it was {number(before)}."
        )


def _movements(diagnosis: Diagnosis) -> Iterator[str]:
    """Says how far learning moved the targets, and which group moved another most."""
    if diagnosis.diverged:
        return
    shift, length = float(diagnosis.shift_size.mean()), target_length(diagnosis)
    classes = diagnosis.stream.kind == "classification"
    if math.isfinite(shift):
        yield (
            f"Learning moved the targets by {shift:.3g} on average (a target's own "
            f"length is {length:.3g}); {percent(float(diagnosis.changed.mean()))} "
            f"of the rows changed their {'class' if classes else 'sign (side of the mean)'}."
        )
    for move in largest_moves(diagnosis.groups, most=1):
        if length and move.size >= STRONG_INTERFERENCE * length:
            yield (
                f"Learning '{move.learned}' moved the targets of '{move.moved}' by "
                f"{move.size:.3g} on average ({percent(move.size / length)} of a target's length), "
                f"{'weakening' if move.pull < 0 else 'strengthening'} them by {abs(move.pull):.3g}."
            )


def _corrections(diagnosis: Diagnosis) -> Iterator[str]:
    """Says how well the corrected targets work."""
    offline, corrected = (diagnosis.score(name).error.value for name in ("offline", "corrected"))
    if abs(corrected - offline) > ROUNDING * offline:
        yield (
            "The exact correction does not survive rounding: trained on its targets, the online "
            f"learner ends with the error {number(corrected, 4)}, not with the batch model's "
            f"{number(offline, 4)}."
        )
    if diagnosis.evaluation == "progressive":
        yield (
            "The exactly corrected learner has no score here: its targets depend on the whole "
            "stream, and it is right only at the end. The iteratively corrected learner works in "
            "blocks: it is scored by what it predicts before any row of the block is learned."
        )
    large = [
        f"the {how} corrected targets reach {number(diagnosis.target_size[name])}"
        for name, how in (("corrected", "exactly"), ("iterative", "iteratively"))
        if diagnosis.target_size[name] > OUT_OF_PROPORTION
    ]
    if large:
        yield sentence(
            f"{' and '.join(large)} standard deviations from the mean: they are right only "
            "for this kernel, and nothing else should be trained on them."
        )
    aim, gamma, ridge = diagnosis.aim, diagnosis.gamma.value, diagnosis.ridge
    if aim is not None and aim.automatic and aim.value != gamma:
        yield (
            f"The iterative correction follows a smoother batch model, with ridge {aim.value:.3g} "
            f"instead of {gamma:.3g}: it {aim.how}."
        )
    if ridge is not None and ridge.automatic and ridge.value != 0:
        yield f"A ridge of {ridge.value:.3g} steadies the iterative correction: it {ridge.how}."


def _features(diagnosis: Diagnosis) -> Iterator[str]:
    """Says what was lost by using features instead of the kernel."""
    about = diagnosis.approximation
    if about is None:
        return
    errors = ", ".join(f"{what.lower()} {error}" for what, error in approximation_rows(diagnosis))
    measured = f". Relative errors on {about.sample:,} rows: {errors}."
    yield (
        f"{about.words} are used instead of the kernel matrix, which would need "
        f"{decimal(about.exact_memory)}"
        f"{': nothing is approximated.' if about.exact else measured}"
    )
    if about.reference is not None and _limited_by_features(diagnosis):
        less = opposite(about.reference)
        yield (
            f"The features hold the batch model back: with the true kernel, {about.sample:,} of "
            f"the rows alone give {percent(less.value)} less error ({interval(less, share=True)}). "
            "These findings are about models made of these features."
        )


def _learner_advice(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields what to change about the online learner, the most useful first."""
    rate, limit = diagnosis.lr.value, diagnosis.stability.largest_lr
    if diagnosis.diverged and rate > limit:
        yield f"Lower the rate: steps are stable up to lr = {limit:.3g}."
    elif diagnosis.diverged:
        yield (
            f"Lower the rate: single steps are stable up to lr = {limit:.3g}, but together they "
            "are not."
        )
    words = {
        "rate": "Use lr = {:.3g}: its error is",
        "batch": "Use mini-batches of {:.0f} rows at the same rate: the error is",
        "order": "Learn the rows in random order, if you can: over {:.0f} orders the error is",
    }
    useful = [trial for trial in diagnosis.trials if clear_gain(trial.effect)]
    for trial in sorted(useful, key=lambda trial: trial.effect.value):
        yield f"{words[trial.change].format(trial.value)} {change_words(trial.effect)}."
    if not diagnosis.unseen and not diagnosis.diverged:
        yield from _correction_advice(diagnosis, tried=bool(useful))
    if not NEAR_LIMIT * limit < rate or diagnosis.lr.automatic or diagnosis.diverged:
        return
    if rate > limit:
        yield (
            f"The rate {rate:.3g} is above the largest stable one, {limit:.3g}: some steps make "
            "their own error larger. Lower it."
        )
    else:
        yield (
            f"The rate {rate:.3g} is {percent(rate / limit)} of the largest stable one, "
            f"{limit:.3g}: leave it more room."
        )


def _correction_advice(diagnosis: Diagnosis, tried: bool) -> Iterator[str]:
    """Says whether to use corrected targets, from training this kernel's learner on them."""
    closed, excess = diagnosis.gap_closed["iterative"], diagnosis.excess
    share = f"{with_interval(closed, share=True)} of the gap"
    if math.isnan(closed.value):
        if excess.low <= 0 and not tried:
            yield "No correction is needed: there is no clear gap to close."
    elif _same_classes(diagnosis):
        yield "No correction is needed: the accuracy is the same without it."
    elif not _usable(diagnosis):
        yield "Do not use corrected targets here: they are out of all proportion (see above)."
    elif closed.low > 0:
        yield (
            f"Train on iteratively corrected targets if your learner is this one "
            f"({diagnosis.kernel.partition(' (')[0]}, lr = {diagnosis.lr.value:.3g}): they close "
            f"{share}. For a network or any other model, try them on it first (option model)."
        )
    elif closed.high < 0:
        yield "Do not use iterative correction as it is: it widens the gap; try a larger block."
    else:
        yield f"Iterative correction is not clearly worthwhile: it closes {share}."


def _data_advice(diagnosis: Diagnosis) -> Iterator[str]:
    """Says whether more rows or features are needed."""
    rows, compared, about = len(diagnosis.stream), diagnosis.test_rows, diagnosis.approximation
    if min(rows, compared) < FEW_ROWS:
        yield (
            f"Treat these numbers with care: {rows:,} rows were learned and the models were "
            f"compared on {compared:,}; {FEW_ROWS} or more of each would be more reliable."
        )
    if about and (about.shift_error > POOR_FEATURES or _limited_by_features(diagnosis)):
        yield (
            f"Use more than {about.words}, or diagnose fewer rows exactly: the features do not "
            "approximate the kernel well enough here."
        )


def _model_headline(diagnosis: Diagnosis, model: ModelDiagnosis) -> str:
    """Says how the user's model compares with itself, trained in other ways."""
    came, batch = model.score("as it came").error, model.score("batch").error
    if not model.orders:  # a log of predictions says nothing more
        again, before = model.remembered.value, model.prequential.value
        if math.isfinite(again) and math.isfinite(before):
            return (
                f"The error of {model.name} on the rows learned is {number(again)} at the end; "
                f"just before each row was learned, it was {number(before)}."
            )
        return f"The error of {model.name} is {with_interval(came)}."
    if not came.value <= DIVERGED * diagnosis.baselines[0].error.value:
        return f"{model.name} diverges on this stream: its predictions are useless."
    order = f"in random order its error is {change_words(model.order)}"
    if not (math.isfinite(batch.value) and batch.value > 0):
        return f"{model.name}, row by row: {order}."
    excess = came.value / batch.value - 1
    return (
        f"{model.name}, row by row, has {percent(abs(excess))} {'more' if excess >= 0 else 'less'} "
        f"error than as a batch model; {order}."
    )


def _model_findings(diagnosis: Diagnosis, model: ModelDiagnosis) -> Iterator[str]:
    """Yields what was found about the user's model."""
    known = [
        f"{score.way} {number(score.error.value, 4)}"
        for score in model.scores
        if math.isfinite(score.error.value)
    ]
    yield from model.failures
    yield f"Mean squared error of {model.name}: {'; '.join(known)}."
    shift = float(np.linalg.norm(model.shift, axis=1).mean())
    if math.isfinite(shift):
        yield (
            f"The predictions of {model.name} for a row right after learning it and at the end "
            f"differ by {number(shift)} on average; a target's own length is "
            f"{number(target_length(diagnosis))}."
        )
    yield sentence(f"{model.description.rstrip('.')}.")
    if model.agreement is not None and math.isfinite(model.agreement):
        yield (
            f"The theory's prediction of these movements agrees with {model.name} to "
            f"{percent(max(0.0, model.agreement))}."
        )


def _model_advice(model: ModelDiagnosis) -> Iterator[str]:
    """Yields what worked when the user's own model was trained."""
    if clear_gain(model.order):
        yield (
            f"Show {model.name} the rows in random order, if you can: over {len(model.orders)} "
            f"orders its error is {change_words(model.order)}."
        )
    share = f"{with_interval(model.closed, share=True)} of the gap to its batch model"
    if model.corrected is None or not math.isfinite(model.closed.value):
        return
    if model.corrected_size > OUT_OF_PROPORTION:
        yield (
            f"Do not train {model.name} on corrected targets: they reach "
            f"{number(model.corrected_size)} standard deviations."
        )
    elif model.helped:
        yield (
            f"Train {model.name} on iteratively corrected targets: trained on them, it closed "
            f"{share}."
        )
    else:
        yield f"Do not train {model.name} on corrected targets: it was tried, and closed {share}."
