"""The numbers of a diagnosis in plain words: a headline, what was found, and what to change.

Findings are a sentence each with its numbers, None where there is nothing to say. Only what was
run, on rows that took no part in choosing it, and had a clear effect there, is recommended: on the
user's own model where there is one, since what is right for a kernel may be wrong for a network.
"""

import math

from rich.filesize import decimal

from retarget.diagnosis.options import batch_model_name
from retarget.diagnosis.report.model_verdict import model_advice, model_findings, model_headline
from retarget.diagnosis.report.words import (
    approximation_rows,
    change_words,
    clear_gain,
    interval,
    largest_moves,
    number,
    opposite,
    percent,
    target_length,
    with_interval,
)
from retarget.diagnosis.result import (
    DIVERGED,
    OUT_OF_PROPORTION,
    Baseline,
    Diagnosis,
    Estimate,
    Verdict,
)
from retarget.learners import LABELS
from retarget.text import listed
from retarget.theory.offline.aims import as_aim

MANY = 10.0  # an error that is so much above another is spoken of as a multiple of it
STRONG_INTERFERENCE = 0.25  # of a target's length, moved by one other group
ROUNDING = 0.01  # by which the exactly corrected learner's error may differ from the offline one's
NEAR_LIMIT = 0.8  # of the largest stable rate
FEW_ROWS = 100
POOR_FEATURES = 0.2  # relative error of the shift
HIDDEN = 2.0  # an error so many times the progressive one is what progressive validation hides


def verdict(diagnosis: Diagnosis) -> Verdict:
    """The verdict on what was found."""
    text, about, model = _headline(diagnosis), diagnosis.approximation, diagnosis.model
    if about is not None and model is None and _limited_by_features(diagnosis):
        text = f"As far as {about.words} can tell, {text[0].lower()}{text[1:]}"
    findings = (
        _unseen(diagnosis),
        *([] if model is None else model_findings(diagnosis, model)),
        _errors(diagnosis),
        _classes_alike(diagnosis),
        _worse_than_nothing(diagnosis),
        _last_value(diagnosis),
        _drift(diagnosis),
        _hidden(diagnosis),
        _shift(diagnosis),
        _interference(diagnosis),
        _rounding(diagnosis),
        _progressive(diagnosis),
        _out_of_proportion(diagnosis),
        _aim(diagnosis),
        _ridge(diagnosis),
        _approximation(diagnosis),
        _limited(diagnosis),
    )
    advice: tuple[str | None, ...] = (_hold_out_better(diagnosis),)
    if model is None:
        advice += (_diverged(diagnosis), *_tried(diagnosis), _correction(diagnosis))
        advice += (_near_limit(diagnosis),)
    else:
        advice += model_advice(model)
    advice += (_few_rows(diagnosis), _more_features(diagnosis))
    nothing = "Nothing that was tried is clearly better: leave the learner as it is."
    return Verdict(
        text,
        (*diagnosis.failures, *(finding for finding in findings if finding)),
        tuple(change for change in advice if change) or (nothing,),
    )


def _limited_by_features(diagnosis: Diagnosis) -> bool:
    """Whether the true kernel does better with a few rows than the features with all."""
    reference = diagnosis.approximation and diagnosis.approximation.reference
    return bool(reference and clear_gain(reference))


def _reference(diagnosis: Diagnosis) -> Baseline:
    """The batch model that the online one is compared with."""
    name = batch_model_name(as_aim(diagnosis.reference))
    offline = diagnosis.score("offline")
    own = Baseline("batch model", offline.error, offline.accuracy)
    return next((one for one in diagnosis.baselines if one.name == name), own)


def _headline(diagnosis: Diagnosis) -> str:
    """How far the online model is from the batch model, and what was seen to help."""
    if diagnosis.model is not None:
        return model_headline(diagnosis, diagnosis.model)
    excess, reference = diagnosis.excess, _reference(diagnosis)
    if diagnosis.diverged:
        return (
            f"The online model diverges at lr = {diagnosis.lr.value:.3g}: it is worse than "
            f"predicting {diagnosis.baselines[0].name}, by more than {DIVERGED:,.0f} times."
        )
    if math.isnan(reference.error.value):
        return "There is no batch model to compare the online model with."
    if math.isnan(excess.value):
        return "The online and the batch model cannot be told apart: neither makes an error."
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
    above = f"The online model's error is {_above(excess, reference.name)}"
    if _same_classes(diagnosis):
        return f"{above}, but it is right about as often."
    return f"{above}; {_closing(diagnosis)}."


def _above(excess: Estimate, name: str) -> str:
    if excess.value < MANY:
        return f"{percent(excess.value)} above that of the {name} ({interval(excess, share=True)})"
    times, low, high = (f"{1 + value:,.0f}" for value in excess)
    return f"{times} times that of the {name} ({low} to {high} times)"


def _closing(diagnosis: Diagnosis) -> str:
    closed = diagnosis.gap_closed["iterative"]
    if math.isnan(closed.value):
        return "there is no iterative correction to compare with"
    share = f"{with_interval(closed, share=True)} of the gap"
    if not _usable(diagnosis):
        return "iterative correction would need targets out of all proportion"
    if closed.low > 0:
        return f"iterative correction closes {share}"
    if closed.high < 0:
        return f"iterative correction widens it, by {percent(-closed.value)} of the gap"
    return f"it is not clear that iterative correction helps: it closes {share}"


def _usable(diagnosis: Diagnosis) -> bool:
    return diagnosis.target_size["iterative"] <= OUT_OF_PROPORTION


def _errors(diagnosis: Diagnosis) -> str:
    known = [
        (LABELS[score.learner], score.error.value)
        for score in diagnosis.scores
        if not (diagnosis.diverged and score.learner != "offline")
    ]
    known += [(one.name, one.error.value) for one in diagnosis.baselines]
    shown = "; ".join(f"{name} {number(value, 4)}" for name, value in known if math.isfinite(value))
    progressive = diagnosis.evaluation == "progressive"
    rows = "rows, each before its step" if progressive else "rows held out"
    return f"Mean squared error on {diagnosis.test_rows:,} {rows}: {shown}."


def _same_classes(diagnosis: Diagnosis) -> bool:
    """Whether the online model is right as often as the batch model, as far as can be told."""
    gap = diagnosis.accuracy_gap
    return gap is not None and gap.low <= 0


def _classes_alike(diagnosis: Diagnosis) -> str | None:
    gap = diagnosis.accuracy_gap
    if gap is None or not _same_classes(diagnosis) or diagnosis.diverged:
        return None
    return (
        "The online model is right about as often as the batch model: the shares of rows that are "
        f"right differ by {with_interval(gap, share=True)}."
    )


def _last_value(diagnosis: Diagnosis) -> str | None:
    """Where the row before tells more than any model here, the features lack the past."""
    last = next((one for one in diagnosis.baselines if one.name == "the last value"), None)
    best = min((score.error.value for score in diagnosis.scores[:2]), default=math.nan)
    if last is None or not last.error.high < best:
        return None
    return (
        f"Predicting the last value ({number(last.error.value, 4)}) is better than both models: "
        "what came just before tells more than the features do."
    )


def _worse_than_nothing(diagnosis: Diagnosis) -> str | None:
    """Models that predicting the mean beats are called what they are."""
    if diagnosis.diverged:
        return None
    mean = diagnosis.baselines[0]
    offline, online = (diagnosis.score(name).error.value for name in ("offline", "online"))
    models = (("the batch model", offline), ("the online model", online))
    worse = [f"{name} ({number(error, 4)})" for name, error in models if error > mean.error.value]
    if not worse:
        return None
    who = " and ".join(worse)
    return (
        f"{who[0].upper()}{who[1:]} {'are' if len(worse) > 1 else 'is'} worse than predicting "
        f"{mean.name} ({number(mean.error.value, 4)}) on these rows."
    )


def _drift(diagnosis: Diagnosis) -> str | None:
    """A batch model of recent rows that is better than that of all, or an online one that is."""
    offline = diagnosis.score("offline").error
    recent = [one for one in diagnosis.baselines if one.name.startswith("batch model")]
    better = [one for one in recent if one.error.high < offline.value]
    if better and diagnosis.reference == "all":
        rows = better[0]
        return (
            f"The stream drifts: a {rows.name} has {percent(1 - rows.error.value / offline.value)} "
            "less error than one of all rows. Compare the online model with it: --reference "
            f"window:{_window(rows)}."
        )
    if diagnosis.excess.high < 0 and diagnosis.evaluation in ("last", "progressive"):
        return (
            "The online model does better than the batch model: the stream drifts, and following "
            "it is worth more than remembering all of it."
        )
    return None


def _window(recent: Baseline) -> str:
    return "".join(letter for letter in recent.name if letter.isdigit())


def _hidden(diagnosis: Diagnosis) -> str | None:
    """What progressive validation does not show: that rows learned earlier are forgotten."""
    before, again = diagnosis.prequential_error, diagnosis.hindsight
    if diagnosis.diverged or not before > 0:
        return None
    online = diagnosis.score("online").error.value
    if diagnosis.evaluation != "progressive" and online > HIDDEN * before:
        return (
            f"Progressive validation hides this: the error on each row just before it was learned "
            f"is {number(before)}, on rows held out it is {number(online)}."
        )
    if diagnosis.evaluation == "progressive" and again > HIDDEN * before:
        return (
            f"Progressive validation hides what was forgotten: asked again at the end about the "
            f"rows that it has learned, the online model makes an error of {number(again)}, and "
            f"{number(before)} on each just before learning it."
        )
    return None


def _unseen(diagnosis: Diagnosis) -> str | None:
    if not diagnosis.unseen:
        return None
    return (
        f"WARNING: the held-out rows hold classes that were never learned "
        f"({listed(diagnosis.unseen)}). No model can predict them, so these scores say little."
    )


def _hold_out_better(diagnosis: Diagnosis) -> str | None:
    if not diagnosis.unseen:
        return None
    return "Hold out rows of every class before you act on these scores: --evaluation random."


def _shift(diagnosis: Diagnosis) -> str | None:
    shift = float(diagnosis.shift_size.mean())
    if not math.isfinite(shift) or diagnosis.diverged:
        return None
    classes = diagnosis.stream.kind == "classification"
    return (
        f"Learning moved the targets by {shift:.3g} on average, where a target's own "
        f"length is {target_length(diagnosis):.3g}; {percent(float(diagnosis.changed.mean()))} "
        f"of the rows changed their {'class' if classes else 'sign (side of the mean)'}."
    )


def _interference(diagnosis: Diagnosis) -> str | None:
    length = target_length(diagnosis)
    for move in largest_moves(diagnosis, most=1):
        if length and move.size >= STRONG_INTERFERENCE * length and not diagnosis.diverged:
            return (
                f"Learning '{move.learned}' moved the targets of '{move.moved}' by "
                f"{move.size:.3g} on average ({percent(move.size / length)} of a target's length), "
                f"{'weakening' if move.pull < 0 else 'strengthening'} them by {abs(move.pull):.3g}."
            )
    return None


def _rounding(diagnosis: Diagnosis) -> str | None:
    offline, corrected = (
        diagnosis.score(learner).error.value for learner in ("offline", "corrected")
    )
    if math.isnan(offline + corrected) or abs(corrected - offline) <= ROUNDING * offline:
        return None
    return (
        "The exact correction does not survive rounding: on its targets the online learner ends "
        f"with the error {number(corrected, 4)}, not with the batch model's {number(offline, 4)}."
    )


def _progressive(diagnosis: Diagnosis) -> str | None:
    if diagnosis.evaluation != "progressive":
        return None
    return (
        "The exactly corrected learner has no score here: its targets know the whole stream, and "
        "it is right only at the end. The iteratively corrected one waits for its block: it is "
        "scored by what it predicts before any row of the block is learned."
    )


def _out_of_proportion(diagnosis: Diagnosis) -> str | None:
    large = {name: size for name, size in diagnosis.target_size.items() if size > OUT_OF_PROPORTION}
    if not large:
        return None
    words = {"corrected": "exactly", "iterative": "iteratively"}
    sizes = " and ".join(
        f"the {words[name]} corrected targets reach {number(size)}" for name, size in large.items()
    )
    return (
        f"{sizes[0].upper()}{sizes[1:]} standard deviations from the mean: they are right for this "
        "kernel alone, and nothing else should be trained on them."
    )


def _aim(diagnosis: Diagnosis) -> str | None:
    aim, gamma = diagnosis.aim, diagnosis.gamma.value
    if aim is None or not aim.automatic or aim.value == gamma:
        return None
    return (
        f"The iterative correction follows a smoother batch model, of ridge {aim.value:.3g} "
        f"instead of {gamma:.3g}: it {aim.how}."
    )


def _ridge(diagnosis: Diagnosis) -> str | None:
    ridge = diagnosis.ridge
    if ridge is None or not ridge.automatic or ridge.value == 0:
        return None
    return f"A ridge of {ridge.value:.3g} steadies the iterative correction: it {ridge.how}."


def _approximation(diagnosis: Diagnosis) -> str | None:
    about = diagnosis.approximation
    if about is None:
        return None
    stand = (
        f"{about.words} are used instead of the kernel matrix, which would need "
        f"{decimal(about.exact_memory)}"
    )
    if about.exact:
        return f"{stand}: nothing is approximated."
    errors = ", ".join(f"{what.lower()} {error}" for what, error in approximation_rows(diagnosis))
    return f"{stand}. Relative errors on {about.sample:,} rows: {errors}."


def _limited(diagnosis: Diagnosis) -> str | None:
    about = diagnosis.approximation
    if about is None or about.reference is None or not _limited_by_features(diagnosis):
        return None
    less = opposite(about.reference)
    return (
        f"The features hold the batch model back: with the true kernel, {about.sample:,} of the "
        f"rows alone give {percent(less.value)} less error ({interval(less, share=True)}). What is "
        "said here is about models made of these features."
    )


def _diverged(diagnosis: Diagnosis) -> str | None:
    if not diagnosis.diverged:
        return None
    limit = diagnosis.stability.largest_lr
    if diagnosis.lr.value > limit:
        return f"Lower the rate: steps are stable up to lr = {limit:.3g}."
    return (
        f"Lower the rate: single steps are stable up to lr = {limit:.3g}, but together they are "
        "not."
    )


def _tried(diagnosis: Diagnosis) -> list[str]:
    """Changes that clearly lower the error, the best first."""
    words = {
        "rate": "Use lr = {:.3g}: its error is",
        "batch": "Use mini-batches of {:.0f} rows at the same rate: the error is",
        "order": "Learn the rows in random order, if you can: over {:.0f} orders the error is",
    }
    useful = [trial for trial in diagnosis.trials if clear_gain(trial.effect)]
    return [
        f"{words[trial.change].format(trial.value)} {change_words(trial.effect)}."
        for trial in sorted(useful, key=lambda trial: trial.effect.value)
    ]


def _correction(diagnosis: Diagnosis) -> str | None:
    """Corrected targets, for the learner of this kernel: it was trained on them."""
    closed, excess = diagnosis.gap_closed["iterative"], diagnosis.excess
    if diagnosis.unseen or diagnosis.diverged:
        return None
    if math.isnan(closed.value):
        gained = any(clear_gain(trial.effect) for trial in diagnosis.trials)
        if not math.isnan(excess.value) and excess.low <= 0 and not gained:
            return "No correction is needed: there is no clear gap to close."
        return None
    if _same_classes(diagnosis):
        return "No correction is needed: the classes come out right as often without it."
    share = f"{with_interval(closed, share=True)} of the gap"
    if not _usable(diagnosis):
        return "Do not use corrected targets here: they are out of all proportion (see above)."
    if closed.low > 0:
        return (
            f"Train on iteratively corrected targets, if your learner is this one "
            f"({diagnosis.kernel.partition(' (')[0]}, lr = {diagnosis.lr.value:.3g}): they close "
            f"{share}. For a network or any other model, try them on it first (option model)."
        )
    if closed.high < 0:
        return "Do not use iterative correction as it is: it widens the gap; try a larger block."
    return f"Iterative correction is not clearly worthwhile: it closes {share}."


def _near_limit(diagnosis: Diagnosis) -> str | None:
    rate, limit = diagnosis.lr.value, diagnosis.stability.largest_lr
    if not NEAR_LIMIT * limit < rate or diagnosis.lr.automatic or diagnosis.diverged:
        return None
    if rate > limit:
        return (
            f"The rate {rate:.3g} is above the largest stable one, {limit:.3g}: some steps make "
            "their own error larger. Lower it."
        )
    return (
        f"The rate {rate:.3g} is {percent(rate / limit)} of the largest stable one, {limit:.3g}: "
        "leave it more room."
    )


def _few_rows(diagnosis: Diagnosis) -> str | None:
    rows, compared = len(diagnosis.stream), diagnosis.test_rows
    if min(rows, compared) >= FEW_ROWS:
        return None
    return (
        f"Take these numbers with care: {rows:,} rows were learned and the models were compared on "
        f"{compared:,}; {FEW_ROWS} or more of each would tell more."
    )


def _more_features(diagnosis: Diagnosis) -> str | None:
    about = diagnosis.approximation
    if about is None:
        return None
    if not about.shift_error > POOR_FEATURES and not _limited_by_features(diagnosis):
        return None
    return (
        f"Take more than {about.words}, or diagnose fewer rows exactly: the features do not stand "
        "for the kernel well enough here."
    )
