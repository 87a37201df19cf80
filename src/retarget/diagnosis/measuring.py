"""From a `Split` to a `Diagnosis`: every learner goes over the stream, and is compared."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from retarget.diagnosis.answers import AlternativeModel, Estimate
from retarget.diagnosis.measure.along import THINNED_ROWS, errors_along
from retarget.diagnosis.measure.alternatives import tried_alternatives
from retarget.diagnosis.measure.approximation import (
    Opened,
    measure_approximation,
    open_kernel,
)
from retarget.diagnosis.measure.baselines import baseline_predictions
from retarget.diagnosis.measure.choose import (
    choose_block,
    choose_gamma,
    choose_kernel,
    choose_rate,
)
from retarget.diagnosis.measure.compare import (
    compare,
    held_out_predictions,
    predictions,
    progressive_predictions,
    rulers,
)
from retarget.diagnosis.measure.groups import group_shift, partition
from retarget.diagnosis.measure.holdout import Split, as_tensors
from retarget.diagnosis.measure.intervals import ratio
from retarget.diagnosis.measure.learn import (
    LearnedStream,
    attempt_orders,
    learn_all,
    other_learners,
)
from retarget.diagnosis.measure.passes import unknown
from retarget.diagnosis.measure.stability import largest_rate, non_normality
from retarget.diagnosis.measure.whole import WholeStream, ask_about_whole, first_fold
from retarget.diagnosis.models.model_diagnosis import diagnose_model
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.result import AllRows, Diagnosis, KernelUsed, ShiftSummary, Stability
from retarget.diagnosis.stream import HeldOf, Stream
from retarget.diagnosis.words.numbers import sentence
from retarget.engine.stream_kernel import StreamKernel
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    NotPositiveDefiniteError,
    PrecisionWarning,
    a_type,
)
from retarget.import_path import USER_ERRORS, called, imported, reason
from retarget.kernels import EmpiricalNTK, Kernel
from retarget.kernels.lookup import named_class
from retarget.kernels.stationary import MEDIAN_SAMPLES
from retarget.progress import PatientBar
from retarget.settings import in_plain_torch

# Passes over the rows, for the progress bar: of folds of a stream, and of a long stream.
PASSES = 24
PASSES_ON_DISK = 13
MOST_ROWS_SHOWN = 100_000  # of a stream that is too long for memory


def with_own_kernel(options: DiagnosisOptions, features: int) -> DiagnosisOptions:
    """Returns the options with the kernel itself, if a user's own was named."""
    if not isinstance(options.kernel, str) or ":" not in options.kernel:
        return options
    return replace(options, kernel=imported_kernel(options.kernel, features))


def imported_kernel(path: str, features: int) -> Kernel | type[Kernel]:
    """Returns the kernel, or the class of kernels, that "package.module:factory" is or makes.

    If it makes a network, that is its empirical NTK, in float64.
    """
    kernel = imported(path, "kernel")
    if not isinstance(kernel, Kernel) and named_class(kernel) is None:
        kernel = called(kernel, path, "kernel")
    if isinstance(kernel, Kernel) or named_class(kernel) is not None:
        return kernel  # type: ignore[no-any-return]  # by `named_class`
    if not isinstance(kernel, nn.Module):
        raise InvalidTypeError(
            f"{path!r} returned {a_type(kernel)}; expected a torch.nn.Module, whose "
            "tangent kernel is used, or a kernel (rt.kernels.Kernel)"
        )
    network = kernel.double().eval()
    try:
        with torch.no_grad():
            network(torch.zeros(2, features, dtype=torch.float64, device="cpu"))
    except USER_ERRORS as error:
        raise InvalidInputError(
            f"the network {path!r} does not accept rows of {features} features, which is how many "
            f"the table's columns give: {reason(error)}"
        ) from error
    return EmpiricalNTK(network)


def diagnose_split(parted: Split, options: DiagnosisOptions) -> Diagnosis:
    """Diagnoses a stream from which the rows to compare the learners on are already held out."""
    kernel, used = choose_kernel(options, _for_the_width(parted))
    with (
        _bar(parted) as bar,
        _noting_precision() as doubts,
    ):
        model = None
        if options.model is not None:  # first: if it cannot be run, that is reported at once
            model = diagnose_model(parted, options)
        opened = open_kernel(kernel, parted, options, bar.advance)
        diagnosis = run_learners(opened, parted, options, used)
    return replace(diagnosis, model=model, failures=(*diagnosis.failures, *doubts))


def _for_the_width(parted: Split) -> Tensor:
    """Returns the rows that the width of a kernel is chosen from."""
    X = as_tensors(parted.stream)[0]
    if parted.on_disk is None:
        return X
    stride = -(-len(X) // MEDIAN_SAMPLES)  # the same rows as of a stream in memory
    some: Tensor = parted.on_disk.files.taken(X, torch.arange(0, len(X), stride, device="cpu"))
    return some


def _bar(parted: Split) -> PatientBar:
    """Returns what shows how far the passes over the rows are."""
    rows = len(parted.stream)
    if parted.on_disk is None:
        return PatientBar("diagnosing", PASSES * rows)
    total = PASSES_ON_DISK * rows
    return PatientBar(f"diagnosing {rows:,} rows", total, unit="rows of a pass")


@in_plain_torch
def run_learners(
    opened: Opened, parted: Split, options: DiagnosisOptions, used: KernelUsed
) -> Diagnosis:
    """Chooses the options left open, runs every learner over the stream and compares them."""
    kernel = opened.kernel
    stream = parted.stream
    # a long stream is not scored on rows that are learned
    progressive = parted.progressive and parted.on_disk is None
    scales = stream.target_scales
    gamma = choose_gamma(options, kernel, scales, stream.groups if parted.whole_groups else None)
    limit = largest_rate(kernel, options.learner)
    lr = choose_rate(options, kernel, limit, scales, progressive)
    learner = replace(options.learner, lr=lr.value)
    block_size = choose_block(options.block_size, learner.batch_size, len(stream))

    fold = first_fold(opened, parted)
    others = other_learners(len(kernel), learner, lr)
    learned = learn_all(
        kernel, learner, gamma, block_size, options.ridge, limit, fold, others, progressive
    )
    members = partition(stream) if parted.on_disk is None else parted.on_disk.groups
    groups = group_shift(kernel, members, learned.dual, learned.effective, learner.batch_size)
    learned.changed |= attempt_orders(kernel, learner, options.seed, learned.answers, progressive)

    answers = []
    whole: WholeStream | None = None
    scored = parted.on_disk is None or not parted.progressive
    for ruler in rulers(parted, options) if scored else ():
        first = learned.answers
        if ruler.question == "whole" and first is not None:
            whole = ask_about_whole(
                opened, parted, options, learned, first, learner, others, gamma.value, block_size
            )
            answers.append(whole.answer)
            continue
        asked = parted.asked.get(ruler.question)
        if asked is None:
            predictions_of = progressive_predictions(
                kernel, learned, gamma.value, learner.batch_size
            )
        else:
            predictions_of = held_out_predictions(kernel, asked, learned)
        simple = baseline_predictions(kernel, parted, ruler.question, options)
        answers.append(compare(predictions_of, simple, ruler, parted, options))
    approximation = measure_approximation(opened, learner, gamma.value)
    batch = learned.coefficients.get("offline")
    alternatives: tuple[AlternativeModel, ...] = ()
    if batch is not None:
        alternatives = tried_alternatives(kernel, batch, gamma.value, answers, parted, options)
    if approximation is not None and batch is not None:
        true = _true_kernel(opened, parted, options, batch)
        approximation = replace(approximation, true_kernel=true)
    before = unknown(kernel) if learned.online.errors is None else learned.online.errors
    # Y - (Y^e - gamma C), as Y^e = (gamma I + K) C
    now = kernel.of_rows(
        kernel.Y.shape[1],
        lambda rows: kernel.Y[rows] - learned.effective[rows] + gamma.value * learned.dual[rows],
    )
    along, drift = errors_along(kernel, stream, gamma.value, before, now, options)
    density = kernel.density()
    held = _held_rows(kernel, parted, learned, before, density)
    return Diagnosis(
        stream=held.stream,
        answers=tuple(answers),
        metric=options.metric,
        mode="exact" if approximation is None else "features",
        kernel=used,
        learner=learner,
        block_size=block_size,
        lr=lr,
        gamma=gamma,
        aim=options.aim,
        effective=held.effective,
        corrected=held.corrected,
        iterative=held.iterative,
        prequential=held.prequential,
        density=held.density,
        hindsight=_mean_square(kernel, stream, now),
        changed=changed_rows(held.stream, held.effective),
        forgetting=None if whole is None else whole.forgetting,
        order_cost=None if whole is None else whole.order_cost,
        one_pass_cost=None if whole is None else whole.one_pass_cost,
        along=along,
        drift=drift,
        groups=groups,
        stability=Stability(limit, non_normality(kernel, learner, options.seed)),
        approximation=approximation,
        iterative_ridge=learned.iterative_ridge,
        iterative_gamma=learned.iterative_gamma,
        exactness=_exactness(kernel, learned),
        alternatives=alternatives,
        failures=tuple(learned.failures),
        all_rows=held.all_rows,
    )


class _HeldRows(NamedTuple):
    """The rows that a diagnosis holds, and all of them if these are some."""

    stream: Stream
    effective: np.ndarray
    corrected: np.ndarray
    iterative: np.ndarray
    prequential: np.ndarray
    density: np.ndarray
    all_rows: AllRows | None = None


def _held_rows(
    kernel: StreamKernel, parted: Split, learned: LearnedStream, errors: Tensor, density: Tensor
) -> _HeldRows:
    """Returns all rows of a stream in memory, and evenly spaced ones of a longer one."""
    stream = parted.stream
    effective = learned.effective.numpy()
    corrected = learned.corrected.numpy()
    iterative = learned.iterative.numpy()
    if parted.on_disk is None:
        of_all = (stream, effective, corrected, iterative, errors.numpy(), density.numpy())
        return _HeldRows(*of_all)
    sizes = {
        name: float(np.max([stream.farthest(targets[rows]) for rows in kernel.ranges()]))
        for name, targets in (("corrected", corrected), ("iterative", iterative))
    }
    all_rows = AllRows(
        described=parted.on_disk.described,
        effective=effective,
        corrected=corrected,
        iterative=iterative,
        prequential=errors.numpy(),
        density=density.numpy(),
        target_size=sizes,
        prequential_error=_mean_square(kernel, stream, errors),
        shift=_shift_summary(kernel, stream, effective),
    )
    # evenly spaced ones, and those that drift is measured on
    spread = [kernel.spread_rows(most).numpy() for most in (MOST_ROWS_SHOWN, THINNED_ROWS)]
    rows = np.union1d(*spread)
    shown = replace(parted.on_disk.described(rows), held=HeldOf(rows, len(stream)))
    taken = parted.on_disk.files.taken
    return _HeldRows(
        stream=shown,
        effective=taken(effective, rows),
        corrected=taken(corrected, rows),
        iterative=taken(iterative, rows),
        prequential=taken(errors.numpy(), rows),
        density=taken(density.numpy(), rows),
        all_rows=all_rows,
    )


def _shift_summary(kernel: StreamKernel, stream: Stream, effective: np.ndarray) -> ShiftSummary:
    """Returns how far targets were moved, from a few rows at a time."""
    total = 0.0
    largest = 0.0
    changed = 0
    for rows in kernel.ranges():
        sizes = np.linalg.norm(effective[rows] - stream.Y[rows], axis=1)
        total += float(sizes.sum())
        largest = float(np.maximum(largest, sizes.max()))  # NaN stays
        changed += int(changed_rows(stream.part(rows), effective[rows]).sum())
    return ShiftSummary(total / len(stream), largest, changed)


def _mean_square(kernel: StreamKernel, stream: Stream, errors: Tensor) -> float:
    """Returns the mean squared error over all rows, in the user's units."""
    values = errors.numpy()
    sums = [stream.squared(values[rows]).sum() for rows in kernel.ranges()]
    return float(np.sum(sums) / len(stream))


def _true_kernel(
    opened: Opened, parted: Split, options: DiagnosisOptions, batch: Tensor
) -> Estimate | None:
    """Returns how far a batch model with the true kernel, on a sample of rows, is above ours.

    Both are asked about the first set of held-out rows; `batch` are our model's coefficients.
    """
    sample = opened.sample
    if sample is None or opened.features is None or opened.features.exact or not parted.asked:
        return None
    ruler = next(rulers(parted, options))
    gamma = choose_gamma(options, sample, parted.stream.target_scales)
    try:
        true = sample.offline(gamma.value).coefficients
    except NotPositiveDefiniteError:
        return None
    models = ((sample, true), (opened.kernel, batch))
    predictions_of_both = [predictions(kernel, ruler.truth, [end])[0] for kernel, end in models]
    return ratio(ruler.mean(predictions_of_both[0]), ruler.mean(predictions_of_both[1]))


def _exactness(kernel: StreamKernel, learned: LearnedStream) -> float:
    """Returns how far the exactly corrected learner ends from the batch model, relative to it.

    Both predict the rows of the stream; without rounding they would agree.
    """
    ends = [learned.coefficients.get(name) for name in ("offline", "corrected")]
    batch, corrected = ends
    if batch is None or corrected is None:
        return math.nan
    values = kernel.values(torch.cat([batch, corrected], dim=1))
    gap = 0.0
    size = 0.0
    for rows in kernel.ranges():
        expected, got = values[rows].chunk(2, dim=1)
        gap = math.hypot(gap, float((got - expected).norm()))
        size = math.hypot(size, float(expected.norm()))
    return gap / size if size else gap


def changed_rows(stream: Stream, effective: np.ndarray) -> np.ndarray:
    """Returns (n,) whether the class changed, or a number moved to the other side of the mean."""
    known = np.isfinite(effective).all(axis=1)
    if stream.kind == "classification":
        other = effective.argmax(axis=1) != stream.Y.argmax(axis=1)
    else:
        other = (effective * stream.Y < 0).any(axis=1)
    return np.asarray(known & other)


@contextmanager
def _noting_precision() -> Iterator[list[str]]:
    """Collects precision warnings as sentences; other warnings are issued again."""
    doubts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield doubts
    for warning in caught:
        if issubclass(warning.category, PrecisionWarning):
            doubts.append(sentence(f"{warning.message}."))
        else:
            place = warning.filename, warning.lineno
            warnings.warn_explicit(warning.message, warning.category, *place)
    doubts[:] = dict.fromkeys(doubts)
