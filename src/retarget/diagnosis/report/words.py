"""Words a diagnosis: numbers, names from the user's table, scores, and the setting."""

import html
import math
import re
from typing import NamedTuple

from rich.filesize import decimal

from retarget.diagnosis.answers import (
    Baseline,
    Estimate,
    LearnerName,
    Metric,
    ModelScore,
    ModelWay,
    Question,
    Score,
)
from retarget.diagnosis.measure.stability import NON_NORMALITY_ROWS
from retarget.diagnosis.result import Diagnosis, KernelUsed, ModelDiagnosis
from retarget.diagnosis.stream import Stream
from retarget.engine.offline.recent import as_aim

SUPERSCRIPTS = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)
MINUS = "\u2212"
TYPED = {raised: plain for plain, raised in SUPERSCRIPTS.items()} | {ord(MINUS): "-"}
# Control characters, those that change the writing direction, and lone surrogates.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
FORGETTING_WORDS = "the error late in the stream, relative to that on the same rows when they came"
ORDER_WORDS = "the error as the rows came, relative to the mean over random orders"
ONE_PASS_WORDS = "that mean over random orders, relative to the error of the batch model"
MANY = 1.0  # a relative change above this is given as a multiple, not in per cent
MOST_TIMES = 1000.0  # beyond this a multiple says no more


def number(value: float, digits: int = 3) -> str:
    """Formats a number to a few significant digits, without trailing zeros if it is exact.

    Examples:
        >>> [number(x) for x in (0.12345, 0.3602, 0.5, 12345.6, float("nan"))]
        ['0.123', '0.360', '0.5', '12,300', 'not defined']
    """
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "infinite" if value > 0 else f"{MINUS}infinite"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -4 <= power < 7:
        rounded = float(f"{mantissa}e{exponent}")
        text = f"{rounded:,.{max(digits - 1 - power, 0)}f}"
        if rounded == value and "." in text:
            text = text.rstrip("0").rstrip(".")
    else:
        text = f"{mantissa} \u00d7 10{str(power).translate(SUPERSCRIPTS)}"
    return text.replace("-", MINUS)


def percent(share: float) -> str:
    """Formats a share as a percentage, with one decimal below 10% and near 100%."""
    if math.isnan(share):
        return number(share)
    if share > MOST_TIMES:
        return f"more than {MOST_TIMES:,.0f} times"
    places = 1 if 0.0005 <= abs(share) < 0.0995 or 0.99 < share < 0.9995 else 0
    # + 0.0 avoids -0%
    return f"{round(100 * share, places) + 0.0:,.{places}f}%".replace("-", MINUS)


def sentence(text: str) -> str:
    """Returns the text with its first letter capitalized."""
    return f"{text[0].upper()}{text[1:]}"


def interval(estimate: Estimate, share: bool = False) -> str:
    """Words the interval of an estimate."""
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return "no interval"
    write = percent if share else number
    return f"{write(estimate.low)} to {write(estimate.high)}"


def with_interval(estimate: Estimate, share: bool = False) -> str:
    """Words an estimate with its interval; a dash if it is not a finite number.

    Examples:
        >>> with_interval(Estimate(0.84, 0.71, 0.92), share=True)
        '84% (71% to 92%)'
    """
    if not math.isfinite(estimate.value):
        return "-"
    return f"{(percent if share else number)(estimate.value)} ({interval(estimate, share)})"


def opposite(estimate: Estimate) -> Estimate:
    """Returns the negated estimate: of a decrease instead of an increase."""
    return Estimate(-estimate.value, -estimate.high, -estimate.low)


def change_words(
    effect: Estimate, less: str = "lower", more: str = "higher", times: str = "as high"
) -> str:
    """Words a relative change of the loss; one that is large, by how many times."""
    if math.isnan(effect.value):
        return "not defined"
    if not (effect.low > 0 or effect.high < 0):
        return f"not clearly different ({interval(effect, share=True)})"
    if effect.value >= MANY:
        return f"{multiple(effect.value)} times {times} ({multiples(effect)})"
    seen, word = (opposite(effect), less) if effect.value < 0 else (effect, more)
    return f"{percent(seen.value)} {word} ({interval(seen, share=True)})"


def multiple(increase: float) -> str:
    """Words an increase as how many times it is.

    Examples:
        >>> [multiple(x) for x in (0.25, 1.3, 27.6, 5e9)]
        ['1.25', '2.3', '29', 'more than 1,000']
    """
    if increase > MOST_TIMES:
        return f"more than {MOST_TIMES:,.0f}"
    return number(1 + increase) if increase < 9 else f"{1 + increase:,.0f}"


def multiples(increase: Estimate) -> str:
    """Words the interval of an increase as multiples."""
    if math.isnan(increase.low) or math.isnan(increase.high):
        return "no interval"
    return f"{multiple(increase.low)} to {multiple(increase.high)}"


def typed(text: str) -> str:
    """Rewrites the numbers in a text with characters that every terminal can show.

    Examples:
        >>> typed(number(-1.5e-7))
        '-1.50e-7'
    """
    return text.replace(" \u00d7 10", "e").translate(TYPED)


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


class ScoreLine(NamedTuple):
    """A line of a table or chart: the scores of one learner, one for each question."""

    label: str
    mark: str  # its color: a key of `retarget.learners.COLORS`, or "baseline"
    scores: tuple[Score | Baseline | ModelScore | None, ...]
    why: str  # the reason, if it has no score

    @property
    def title(self) -> str:
        """The label as the heading of a line on the page."""
        if self.mark == "baseline":
            return f"Baseline, {name(self.label)}"
        return sentence(self.label)


def learner_lines(diagnosis: Diagnosis) -> list[ScoreLine]:
    """Returns the scores of the four learners and of the baselines."""
    diverged = "it diverged: its predictions are not finite numbers"
    ahead = "the exact correction needs the whole stream in advance"
    progressive = diagnosis.answer("progressive") is not None
    learners = [
        ScoreLine(
            label,
            learner,
            tuple(answer.score(learner) for answer in diagnosis.answers),
            ahead if progressive and learner == "corrected" else diverged,
        )
        for learner, label in LEARNERS.items()
    ]
    return learners + baseline_lines(diagnosis)


def baseline_lines(diagnosis: Diagnosis) -> list[ScoreLine]:
    """Returns the scores of the baselines."""
    kinds = dict.fromkeys(one.kind for answer in diagnosis.answers for one in answer.baselines)
    return [
        ScoreLine(
            baseline_name(kind, diagnosis),
            "baseline",
            tuple(answer.baseline(kind) for answer in diagnosis.answers),
            "only for the next rows",  # the others have no row just before them
        )
        for kind in kinds
    ]


def model_lines(model: ModelDiagnosis) -> list[ScoreLine]:
    """Returns the scores of the user's model, by way of training, for those that were tried."""
    why = "it is not possible, or it failed"
    lines = [
        ScoreLine(way, mark, tuple(model.score(way, asked) for asked in model.questions), why)
        for way, mark in WAYS.items()
    ]
    return [one for one in lines if any(one.scores)]


def score_lines(diagnosis: Diagnosis) -> tuple[tuple[Question, ...], list[ScoreLine]]:
    """Returns the questions and lines of the one table of scores.

    They are those of the user's model by way of training, or else of the learners; then those of
    the baselines, if these were asked the same questions.
    """
    model = diagnosis.model
    asked = tuple(answer.question for answer in diagnosis.answers)
    if model is None:
        return asked, learner_lines(diagnosis)
    lines = model_lines(model)
    if model.questions == asked:
        lines += baseline_lines(diagnosis)
    return model.questions, lines


def move_words(move: tuple[str, str, float, float], unit: str) -> str:
    """Says how far learning a group moved the targets of another (see `largest_moves`)."""
    learned, moved, size, pull = move
    effect = ""
    if abs(pull) > 0.1 * size:
        effect = f", and {'weakened' if pull < 0 else 'strengthened'} them"
    return (
        f"Learning {name(learned)} moved the targets of {name(moved)} by "
        f"{number(size)}{unit} on average{effect}."
    )


def kernel_words(kernel: KernelUsed) -> str:
    """Describes the kernel in a few words."""
    words = kernel.name
    if kernel.width is not None:
        how = "the median distance between rows" if kernel.automatic else "given"
        words += f" of width {number(kernel.width, 4)} ({how})"
    return words


METRICS: dict[Metric, str] = {
    "auto": "mean squared error",
    "squared": "mean squared error",
    "absolute": "mean absolute error",
    "log-loss": "log-loss",
    "accuracy": "share of rows whose class is wrong",
    "balanced-accuracy": "mean share of wrong rows over the classes",
}


def error_word(diagnosis: Diagnosis) -> str:
    """Returns the word for the loss that learners are compared by."""
    # next to accuracies, a bare "error" would be read as theirs
    squared = diagnosis.stream.kind == "classification" and diagnosis.metric == "auto"
    return "squared error" if squared else "error"


def definitions(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Returns the words of the report with their meanings."""
    classes = diagnosis.stream.kind == "classification"
    unit = "1 is one standard deviation of a target."
    if classes:
        unit = "1 is the difference between belonging to a class and not."
    words = [
        ("Batch model", "Kernel ridge regression on all rows at once, whatever their order."),
        ("Online model", "Gradient descent that sees each row once, in order, and never again."),
        (
            "Baseline",
            "A simple predictor. A learner that is not clearly better has learned nothing useful.",
        ),
        ("Forgetting", f"{sentence(FORGETTING_WORDS)}. 1 time: nothing was forgotten."),
        ("Cost of the order", f"{sentence(ORDER_WORDS)}."),
        ("Cost of a single pass", f"{sentence(ONE_PASS_WORDS)}."),
        ("Gap", "How far the online model's error is above the batch model's."),
        (
            "Share of the gap closed",
            f"(online {MINUS} corrected) / (online {MINUS} batch), in the measure named under "
            "“Compared by”: "
            "100% is as good as the batch model, 0% no better than the online model.",
        ),
        ("Effective target", "Trained on them, a batch model would equal the online model."),
        (
            "Shift",
            "Effective minus true target: how far later rows moved what was learned from a row. "
            f"Its length is over all {'classes' if classes else 'targets'}. {unit}",
        ),
        (
            "Exactly corrected",
            "The online model, trained on targets that make it match the batch model at the end. "
            "Computing them needs the whole stream.",
        ),
        (
            "Iteratively corrected",
            "The same block by block, from earlier rows and the block only, so it works while the "
            "stream arrives.",
        ),
        (
            "95% interval",
            "From the means of ten runs of consecutive rows, since the errors on neighboring rows "
            "are alike. For forgetting, rows vary only within strips of the stream. It shows how "
            "certain a number is on rows like these, not what another stream would give.",
        ),
    ]
    if diagnosis.model is not None:
        moved = (
            "Its prediction for a row at the end, minus its prediction right after learning it. It "
            "is measured; no theory is involved."
        )
        words.insert(0, ("Shift of your model", moved))
    return words


def setting(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Returns what was computed and how, as terms and descriptions."""
    stream, about = diagnosis.stream, diagnosis.approximation
    facts = [
        ("Rows learned from", f"{len(stream):,}"),
        (
            "Classes" if stream.kind == "classification" else "Targets",
            listed_names(stream.target_names),
        ),
        ("Features", f"{len(stream.feature_names):,}: {listed_names(stream.feature_names)}"),
        ("Tested on", tested_on(diagnosis)),
        ("Compared by", METRICS[diagnosis.metric]),
        ("Kernel", kernel_words(diagnosis.kernel)),
        ("Online learner", learner_words(diagnosis)),
        ("Iterative correction", _correction(diagnosis)),
    ]
    if stream.group_column is not None:
        facts.insert(3, ("Groups", f"by {name(stream.group_column)}"))
    if diagnosis.learner.weight_decay:
        facts.append(("Weight decay", number(diagnosis.learner.weight_decay)))
    method = "exact"
    if about is not None:
        method = (
            f"{about.words} instead of the kernel matrix, which would need "
            f"{decimal(about.exact_memory)} (limit: {decimal(about.memory_limit)})"
        )
    return [*facts, ("Method", method)]


def listed_names(names: tuple[str, ...], most: int = 12) -> str:
    """Returns the first names from the user's table, and how many more there are."""
    shown = ", ".join(name(text, 40) for text in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def tested_on(diagnosis: Diagnosis) -> str:
    """Says which rows the scores were measured on."""
    words: dict[Question, str] = {
        "whole": "{} rows from the whole stream",
        "next": "its last {} rows (the next ones)",
        "test": "a test set of {} rows",
        "progressive": "{} rows, each just before it was learned",
    }
    parts = [words[one.question].format(f"{one.rows:,}") for one in diagnosis.answers]
    held_out = diagnosis.answers[0].question in ("whole", "next")
    return " and ".join(parts) + ", which no learner has seen" * held_out


def learner_words(diagnosis: Diagnosis) -> str:
    """Describes the online learner in a few words."""
    learner = diagnosis.learner
    words = f"SGD, one pass, rate {number(diagnosis.lr.value)}"
    if learner.batch_size > 1:
        words += f", mini-batches of {learner.batch_size} (loss: {learner.reduction})"
    if learner.momentum:
        kind = "Nesterov momentum" if learner.nesterov else "momentum"
        words += f", {kind} {number(learner.momentum)}"
    return words


def _correction(diagnosis: Diagnosis) -> str:
    words = f"in blocks of {diagnosis.block_size:,} rows"
    gamma, ridge = diagnosis.iterative_gamma, diagnosis.iterative_ridge
    if gamma is not None and gamma.value != diagnosis.gamma.value:
        words += f", following a batch model with ridge {number(gamma.value)} ({gamma.how})"
    if ridge is not None and ridge.value != 0:
        words += f", with an added ridge of {number(ridge.value)} ({ridge.how})"
    return words


def approximation_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Returns the features' relative errors on a sample; empty if nothing is approximated."""
    about = diagnosis.approximation
    if about is None or about.exact:
        return []
    return [
        ("Kernel entries", percent(about.kernel_error)),
        ("Shifts", percent(about.shift_error)),
        ("Online predictions", percent(about.prediction_error)),
    ]


class StabilityWords(NamedTuple):
    """The section on stability: sentences on the rate and on the non-normality."""

    share: float  # percentage of the largest stable rate, 0 to 100, for the bar
    rate: str
    safe: bool
    system: str


def stability_words(diagnosis: Diagnosis) -> StabilityWords:
    """Words the section on stability."""
    rate, largest = diagnosis.lr.value, diagnosis.stability.largest_lr
    share = rate / largest if largest > 0 else math.nan
    safe = not share > 1
    if math.isnan(share):
        words = "The largest stable rate is not defined."
    elif share == 0:
        words = f"The rate is {number(rate)}. Every rate is stable here, since the kernel is zero."
    else:
        words = (
            f"The rate is {number(rate)}, {percent(share)} of the largest rate at which every step "
            f"is stable, {number(largest)}."
        )
    if not safe:
        words += " Above it, steps overshoot and errors grow: use a smaller rate."
    bar = 0.0 if math.isnan(share) else 100 * min(share, 1.0)
    return StabilityWords(bar, words, safe, _system(diagnosis))


def _system(diagnosis: Diagnosis) -> str:
    condition = diagnosis.stability.non_normality
    if math.isnan(condition):
        return "The non-normality of the online system is not defined: it was not computed."
    if condition < 3:
        meaning = "hardly affect each other: an error that one step shrinks stays small."
    elif condition < 100:
        meaning = (
            "affect each other moderately: some errors grow for a while along the stream, though "
            "every single step is stable."
        )
    else:
        meaning = (
            "affect each other strongly: small changes of early targets can become large by the "
            "end, though every single step is stable. A smaller rate reduces this."
        )
    rows = ""
    if len(diagnosis.stream) > NON_NORMALITY_ROWS:
        rows = f" of the first {NON_NORMALITY_ROWS:,} rows"
    return (
        f"Non-normality of the online system (its condition number{rows}): {number(condition)}. "
        f"Steps {meaning}"
    )
