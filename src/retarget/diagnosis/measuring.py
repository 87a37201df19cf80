"""From a `Split` to a `Diagnosis`: every learner goes over the stream, and is compared."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from retarget.diagnosis.answers import AlternativeModel, Estimate
from retarget.diagnosis.measure.along import errors_along
from retarget.diagnosis.measure.alternatives import tried_alternatives
from retarget.diagnosis.measure.approximation import (
    Opened,
    measure_approximation,
    open_kernel,
    relative_difference,
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
from retarget.diagnosis.measure.stability import largest_rate, non_normality
from retarget.diagnosis.measure.whole import WholeStream, ask_about_whole, first_fold
from retarget.diagnosis.models.model_diagnosis import diagnose_model
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.result import Diagnosis, KernelUsed, Stability
from retarget.diagnosis.stream import Stream
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
from retarget.progress import PatientBar
from retarget.settings import in_plain_torch

PASSES = 24  # estimated passes over the rows, for the progress bar


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
    kernel, used = choose_kernel(options, as_tensors(parted.stream)[0])
    with (
        PatientBar("diagnosing", PASSES * len(parted.stream)) as bar,
        _noting_precision() as doubts,
    ):
        model = None
        if options.model is not None:  # first: if it cannot be run, that is reported at once
            model = diagnose_model(parted, options)
        opened = open_kernel(kernel, parted, options, bar.advance)
        diagnosis = run_learners(opened, parted, options, used)
    return replace(diagnosis, model=model, failures=(*diagnosis.failures, *doubts))


@in_plain_torch
def run_learners(
    opened: Opened, parted: Split, options: DiagnosisOptions, used: KernelUsed
) -> Diagnosis:
    """Chooses the options left open, runs every learner over the stream and compares them."""
    kernel = opened.kernel
    stream = parted.stream
    progressive = parted.progressive
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
    shift = learned.effective - kernel.Y
    groups = group_shift(kernel, stream, partition(stream), learned.dual, shift, learner.batch_size)
    learned.changed |= attempt_orders(kernel, learner, options.seed, learned.answers, progressive)

    answers = []
    whole: WholeStream | None = None
    for ruler in rulers(parted, options):
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
    effective = learned.effective.numpy()
    before = learned.online.errors
    end = effective - gamma.value * learned.dual.numpy()  # Y^e = (gamma I + K) C
    online = np.full_like(effective, np.nan) if before is None else before.numpy()
    along, drift = errors_along(kernel, stream, gamma.value, online, stream.Y - end, options)
    return Diagnosis(
        stream=stream,
        answers=tuple(answers),
        metric=options.metric,
        mode="exact" if approximation is None else "features",
        kernel=used,
        learner=learner,
        block_size=block_size,
        lr=lr,
        gamma=gamma,
        aim=options.aim,
        effective=effective,
        corrected=learned.corrected.numpy(),
        iterative=learned.iterative.numpy(),
        prequential=online,
        density=kernel.density().numpy(),
        hindsight=float(stream.squared(stream.Y - end).mean()),
        changed=changed_rows(stream, effective),
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
    )


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
    predictions_of_both = kernel.values(torch.cat([batch, corrected], dim=1)).chunk(2, dim=1)
    return relative_difference(predictions_of_both[1], predictions_of_both[0])


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
