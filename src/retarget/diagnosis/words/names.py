"""Names of learners, rows and models, and names from the user's table, safe to show anywhere."""

import html
import re

from retarget.diagnosis.answers import Answer, LearnerName, ModelWay, Question
from retarget.diagnosis.measure.holdout import ENOUGH
from retarget.diagnosis.result import Diagnosis, KernelUsed
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.words.numbers import number
from retarget.engine.offline.recent import as_aim
from retarget.learners import SGD

# Control characters, those that change the writing direction, and lone surrogates.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
FORGETTING_WORDS = "the error late in the stream, relative to that on the same rows when they came"
ORDER_WORDS = "the error as the rows came, relative to the mean over random orders"
ONE_PASS_WORDS = "that mean over random orders, relative to the error of the batch model"
# Options of the learner with words of their own; others are called what they are in Python.
TOLD = ("lr", "batch_size", "reduction", "momentum", "nesterov")


def name(text: str, longest: int = 60) -> str:
    """Shortens a name from the user's file to one line of visible characters.

    A long name loses its middle, since names often differ only at their ends.

    Examples:
        >>> name("measurement station 12", longest=12)
        'measur…on 12'
    """
    seen = " ".join(UNSEEN.sub("\ufffd", text).split()) or "(empty)"
    if len(seen) <= longest:
        return seen
    head = longest // 2
    return f"{seen[:head]}\u2026{seen[head + 1 - longest :]}"


def moment(time: object) -> str:
    """Returns the time of a row as one short line of text.

    Examples:
        >>> [moment(time) for time in ("2024-01-01 00:00:00.000000", "2024-01-01 08:30", "17")]
        ['2024-01-01', '2024-01-01 08:30', '17']
    """
    text = str(time).removesuffix(".000000").removesuffix(" 00:00:00")
    return name(text, 32)


def chart_text(text: str, longest: int = 24) -> str:
    """Escapes the tags, entities and formulas ($) that Plotly would interpret in a name."""
    return html.escape(name(text, longest), quote=False).replace("$", "&#36;")


LEARNERS: dict[LearnerName, str] = {
    "offline": "batch model",
    "online": "online model",
    "corrected": "online, exactly corrected",
    "iterative": "online, iteratively corrected",
}
# Each way of training the user's model has the mark and color of a learner.
WAYS: dict[ModelWay, str] = {
    "as it came": "online",
    "random order": "one step",
    "batch": "offline",
    "corrected": "corrected",
}
QUESTIONS: dict[Question, str] = {
    "whole": "rows from the whole stream",
    "next": "the next rows",
    "test": "the test set",
    "progressive": "each row before it was learned",
}


WHERE: dict[Question, str] = {
    "whole": "from the whole stream",
    "next": "at its end",
    "test": "in the test set",
    "progressive": "before they are learned",
}


def constant_name(stream: Stream) -> str:
    """Returns the name of the simplest predictor."""
    return "the most frequent class" if stream.kind == "classification" else "the mean"


def batch_name(aim: str) -> str:
    """Returns the name of the batch model that an aim describes."""
    recent = as_aim(aim)
    if recent.is_all:
        return "batch model"
    if recent.window is None:
        return f"batch model, older rows discounted by {recent.discount:g}"
    return f"batch model of the last {recent.window:,} rows"


def baseline_name(kind: str, diagnosis: Diagnosis) -> str:
    """Returns the name of a simple predictor of a kind (`BaselineKind`)."""
    if kind == "recent":
        return batch_name(diagnosis.aim)
    return "the last value" if kind == "last" else constant_name(diagnosis.stream)


def kernel_words(kernel: KernelUsed) -> str:
    """Describes the kernel in a few words."""
    words = kernel.name
    if kernel.width is not None:
        how = "the median distance between rows" if kernel.automatic else "given"
        words += f" of width {number(kernel.width, 4)} ({how})"
    return words


def error_word(diagnosis: Diagnosis) -> str:
    """Returns the word for the loss that learners are compared by."""
    # next to accuracies, a bare "error" would be read as theirs
    squared = diagnosis.stream.kind == "classification" and diagnosis.metric.shows_accuracy
    return "squared error" if squared else "error"


def listed_names(names: tuple[str, ...], most: int = 12) -> str:
    """Returns the first names from the user's table, and how many more there are."""
    shown = ", ".join(name(text, 40) for text in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def learner_words(diagnosis: Diagnosis) -> str:
    """Describes the online learner in a few words."""
    learner = diagnosis.learner
    words = f"SGD, one pass, rate {number(diagnosis.lr.value)}"
    if learner.batch_size > 1:
        words += f", mini-batches of {learner.batch_size} (loss: {learner.reduction})"
    if learner.momentum:
        kind = "Nesterov momentum" if learner.nesterov else "momentum"
        words += f", {kind} {number(learner.momentum)}"
    for option, value in learner.to_dict().items():
        if option not in TOLD and value != getattr(SGD, option):  # its default
            words += f", {option.replace('_', ' ')} {number(value)}"
    return words


def on(question: Question) -> str:
    """Returns where something was found."""
    return f"on {QUESTIONS[question]}"


def too_few(answers: list[Answer]) -> str:
    """Says that there are too few rows of classes that were learned."""
    return " and ".join(
        f"{QUESTIONS[one.question]} contain classes that were never learned"
        if one.unseen
        else f"only {one.rows:,} row{'s' * (one.rows != 1)} to test on {WHERE[one.question]} "
        f"({ENOUGH} needed)"
        for one in answers
    )
