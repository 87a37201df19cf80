"""Problems for the property tests: streams, learners and sizes that are not the defaults."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

import retarget as rt
from retarget import arrays

# For properties whose every example takes long; `make test-all` still looks at many of them.
fewer_examples = settings(max_examples=max(5, settings.default.max_examples // 3))


@dataclass
class Stream:
    """Explicit features, so that the kernel can be checked in weight space too."""

    features: np.ndarray  # (n, d)
    K: np.ndarray
    Y: np.ndarray
    queries: np.ndarray  # (m, d)
    K_query: np.ndarray  # (m, n)

    def __len__(self):
        return len(self.Y)


def make_stream(n, outputs, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    d = 2 * n + 3  # more features than samples: every block has a kernel of full rank
    features = rng.normal(size=(n, d)) * scale / np.sqrt(d)
    queries = rng.normal(size=(5, d)) * scale / np.sqrt(d)
    Y = rng.normal(size=(n, outputs)) * 2 + 0.5
    K = features @ features.T
    return Stream(features, (K + K.T) / 2, Y, queries, queries @ features.T)


def make_class_stream(n, outputs, seed, scale=1.0, certain=False):
    """The same, with targets for cross-entropy: labels if `certain`, else probabilities."""
    stream = make_stream(n, outputs, seed, scale)
    logits = 3 * stream.Y
    if outputs == 1:
        stream.Y = 1 / (1 + np.exp(-logits))
        if certain:
            stream.Y = stream.Y.round()
    else:
        stream.Y = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        if certain:
            stream.Y = np.eye(outputs)[logits.argmax(1)]
    return stream


class_streams = st.builds(
    make_class_stream,
    n=st.integers(1, 33),
    outputs=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.5, 1.0, 3.0]),
    certain=st.booleans(),
)
streams = st.builds(
    make_stream,
    n=st.integers(1, 33),
    outputs=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.5, 1.0, 1.4]),
)
rates = st.floats(0.02, 0.9)
gammas = st.floats(0.01, 20.0)
ridges = st.sampled_from([0.0, 0.03, 1.7])
batches = st.sampled_from([1, 2, 3, 5, 40])
reductions = st.sampled_from(["sum", "mean"])


@st.composite
def plain_learners(draw):
    """SGD without a memory: any batch and reduction."""
    batch = draw(batches)
    lr = draw(rates)
    reduction = draw(reductions)
    return rt.SGD(lr=lr, batch_size=batch, reduction=reduction)


@st.composite
def learners(draw, n, epochs=1):
    """Any SGD: momentum, Nesterov, weight decay, schedules and all of it together."""
    batch = draw(batches)
    momentum = draw(st.sampled_from([0.0, 0.4, 0.9]))
    lr = draw(st.floats(0.02, 0.5)) * (1 - momentum)
    if draw(st.booleans()):
        steps = -(-n // batch) * epochs
        lr = tuple(lr * draw(st.floats(0.3, 1.0)) for _ in range(steps))
    return rt.SGD(
        lr=lr,
        batch_size=batch,
        momentum=momentum,
        nesterov=momentum > 0 and draw(st.booleans()),
        weight_decay=draw(st.sampled_from([0.0, 0.05])),
        reduction=draw(reductions),
    )


@st.composite
def problems(draw, memory=True):
    stream = draw(streams)
    learner = draw(learners(len(stream)) if memory else plain_learners())
    return stream, learner


@st.composite
def problems_of(draw, loss, most_epochs=1, memory=True):
    """A stream with targets for the loss, a learner, and how many epochs its schedule is for."""
    stream, epochs = draw(streams if loss == "squared" else class_streams), 1
    if most_epochs > 1:
        epochs = draw(st.integers(1, most_epochs))
    return stream, draw(learners(len(stream), epochs) if memory else plain_learners()), epochs


each_loss = pytest.mark.parametrize("loss", ["squared", "cross-entropy"])


def core_functions(learner, gamma=0.7, block_size=2, ridge=0.0):
    """The functions of the core by name, as functions of K and Y."""
    correction = learner, gamma, block_size, ridge
    return {
        "offline_coefficients": lambda K, Y: rt.offline_coefficients(K, Y, gamma),
        "online_coefficients": lambda K, Y: rt.online_coefficients(K, Y, learner),
        "prequential_errors": lambda K, Y: rt.prequential_errors(K, Y, learner),
        "effective_targets": lambda K, Y: rt.effective_targets(K, Y, learner, gamma),
        "corrected_targets": lambda K, Y: rt.corrected_targets(K, Y, learner, gamma),
        "iterative_targets": lambda K, Y: rt.iterative_targets(K, Y, *correction),
        "distilled_targets": lambda K, Y: rt.distilled_targets(K, Y, gamma, block_size),
    }


@contextmanager
def panels_of(rows):
    """Makes streams of a few samples span several panels."""
    saved = arrays.PANEL_ROWS["cpu"]
    arrays.PANEL_ROWS["cpu"] = rows
    try:
        yield
    finally:
        arrays.PANEL_ROWS["cpu"] = saved


panel_sizes = st.sampled_from([1, 4, 256])


def assert_same(got, expected, tolerance=1e-10):
    """Equal to the tolerance, relative to the largest entry."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert np.abs(got - expected).max(initial=0.0) <= tolerance * scale
