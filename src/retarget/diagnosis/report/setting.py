"""What was computed, and how: the data, the learners, and what was given up."""

import math

from retarget.diagnosis.report.words import count, memory, name, number, percent
from retarget.diagnosis.result import Diagnosis


def setting(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """What was computed, and how: terms and their descriptions."""
    stream, learner = diagnosis.stream, diagnosis.learner
    kind = "classes" if stream.kind == "classification" else "targets"
    facts = [
        ("Rows learned from", count(len(stream))),
        (kind.capitalize(), _names(stream.target_names)),
        ("Features", f"{count(len(stream.feature_names))}: {_names(stream.feature_names)}"),
        ("Tested on", tested_on(diagnosis)),
        ("Kernel", diagnosis.kernel),
        ("Online learner", learner_words(diagnosis)),
        ("Iterative correction", _correction(diagnosis)),
    ]
    if stream.group_column is not None:
        facts.insert(3, ("Groups", f"by {name(stream.group_column)}"))
    if learner.weight_decay:
        facts.append(("Weight decay", number(learner.weight_decay)))
    facts.append(("Method", _method(diagnosis)))
    return facts


def _names(names: tuple[str, ...], most: int = 12) -> str:
    shown = ", ".join(name(text, 40) for text in names[:most])
    return shown + (f" and {count(len(names) - most)} more" if len(names) > most else "")


def tested_on(diagnosis: Diagnosis) -> str:
    """Which rows the scores are of."""
    rows = count(diagnosis.test_rows)
    return {
        "last part": f"the last {rows} rows of the stream, which no learner has seen",
        "test set": f"a test set of {rows} rows",
        "progressive": f"{rows} rows, each just before it was learned",
    }[diagnosis.evaluation]


def learner_words(diagnosis: Diagnosis) -> str:
    """The online learner, in words."""
    learner = diagnosis.learner
    words = f"SGD, one pass, rate {number(diagnosis.lr.value)}"
    if not isinstance(learner.lr, float):
        words = f"SGD, one pass, a schedule of {count(len(learner.lr))} rates"
    if learner.batch_size > 1:
        words += f", mini-batches of {learner.batch_size} (loss: {learner.reduction})"
    if learner.momentum:
        kind = "Nesterov momentum" if learner.nesterov else "momentum"
        words += f", {kind} {number(learner.momentum)}"
    return words


def _correction(diagnosis: Diagnosis) -> str:
    words = f"in blocks of {count(diagnosis.block_size)} rows"
    aim, ridge = diagnosis.aim, diagnosis.ridge
    if aim is not None and aim.value != diagnosis.gamma.value:
        words += f", towards the offline learner of ridge {number(aim.value)} ({aim.how})"
    if ridge is not None and ridge.value != 0:
        words += f", steadied by a ridge of {number(ridge.value)} ({ridge.how})"
    return words


def _method(diagnosis: Diagnosis) -> str:
    about = diagnosis.approximation
    if about is None:
        return "exact"
    return (
        f"{about.words} instead of the kernel matrix, which would need "
        f"{memory(about.exact_memory)} of memory, and may have {memory(about.memory_limit)}"
    )


def approximation_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """The errors that the features make, as measured on a sample; none of exact ones."""
    about = diagnosis.approximation
    if about is None or about.exact:
        return []
    errors = {
        "Kernel entries": about.kernel_error,
        "Shifts": about.shift_error,
        "Online predictions": about.prediction_error,
    }
    return [
        (what, "not defined: not compared" if math.isnan(error) else percent(error))
        for what, error in errors.items()
    ]
